//! The simulator beside formulas that are exact: rows for the validation and the tests. What they compute is in [`closed`]; threads on
//! CPUs are held to the utilisation law.

use crate::closed;
use crate::draw::Draw;
use crate::model::{Arrivals, Full, Model, Poll, Rest, Room, SECOND_PS, Source, Station, Takes};
use crate::outcome::Outcome;
use crate::replicate::{Estimate, estimate, replicate};
use crate::simulate::run;
use crate::threads::{ThreadRow, Threads, run_threads};

const US_PS: u64 = SECOND_PS / 1_000_000;
/// Poisson arrivals, every 10 us in the mean.
const POISSON: Draw = Draw::Exponential(10 * US_PS);
/// The same per second.
const RATE: f64 = 1e5;
/// Widest half of an interval (95 %), relative to the mean, that still says something.
const MAX_HALF: f64 = 0.06;

/// A formula and what the simulation gives for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// What is computed, and whose formula it is.
    pub name: String,
    /// By the formula; `unit` says in what.
    pub formula: f64,
    /// By simulation, the mean of the seeds; both ends are the mean where nothing is random.
    pub simulated: Estimate,
    /// Unit of both.
    pub unit: &'static str,
    /// How far it may be off, as a share, where nothing is random: what begins and ends within the time that is counted.
    edge: f64,
}

impl Form {
    /// Whether the mean lies within twice its interval (95 %), which one of 10,000 leaves by chance, and the interval says something.
    /// Where nothing is random: whether it is the same but for what begins and ends within the time.
    pub fn holds(&self) -> bool {
        let Estimate { mean, low, high } = self.simulated;
        let half = (high - low) / 2.0;
        let off = (mean - self.formula).abs();
        match self.edge > 0.0 {
            true => off <= self.edge * self.formula,
            false => off <= 2.0 * half && half < MAX_HALF * self.formula,
        }
    }
}

/// All of them with so many seeds, on so many threads.
pub fn forms(seeds: usize, threads: usize) -> Vec<Form> {
    let of = Of { seeds, threads };
    let mut all = of.one_server();
    all.extend(of.several_servers());
    all.extend(of.sleeping_servers());
    all.extend(of.closed_networks());
    all.extend([periodic_items(), full_buffer()]);
    all.extend(threads_on_cpus());
    all
}

struct Of {
    seeds: usize,
    threads: usize,
}

impl Of {
    fn outcomes(&self, model: &Model) -> Vec<Outcome> {
        replicate(model, 1, self.seeds, self.threads).expect("the models of this file are sound")
    }

    /// Mean wait before service: mean time in the system less the service.
    fn wait(&self, name: String, model: &Model, service_s: f64, formula_s: f64) -> Form {
        let outcomes = self.outcomes(model);
        let wait_us = |run: &Outcome| Some((run.latency_mean_s()? - service_s) * 1e6);
        random(name, formula_s * 1e6, "us", estimate(&outcomes, wait_us))
    }

    /// Pollaczek and Khinchine: exponential service is M/M/1, constant M/D/1.
    fn one_server(&self) -> Vec<Form> {
        let mean_ps = 7 * US_PS;
        let services = [
            ("M/M/1", Draw::Exponential(mean_ps)),
            ("M/D/1", Draw::Constant(mean_ps)),
            ("M/G/1, uniform", Draw::Uniform(0, 2 * mean_ps)),
            ("M/G/1, Erlang 3", Draw::Erlang(3, mean_ps)),
            ("M/G/1, two values", Draw::Sampled([US_PS, US_PS, 19 * US_PS].into())),
        ];
        let row = |(name, service): (&str, Draw)| {
            let (mean, variance) = service.moments();
            let formula = closed::mg1_wait_s(RATE, mean * 1e-12, variance * 1e-24);
            let model = queue(POISSON, Station::new("server", service), SECOND_PS);
            self.wait(format!("{name}: wait"), &model, mean * 1e-12, formula)
        };
        services.map(row).into()
    }

    /// Erlang's C.
    fn several_servers(&self) -> Vec<Form> {
        let row = |servers: u32| {
            let mean_ps = 8 * US_PS * u64::from(servers);
            let station = Station {
                servers: Some(servers),
                ..Station::new("servers", Draw::Exponential(mean_ps))
            };
            let mean_s = mean_ps as f64 * 1e-12;
            let formula = closed::mmc_wait_s(RATE, mean_s, servers);
            let model = queue(POISSON, station, SECOND_PS);
            self.wait(format!("M/M/{servers}: wait"), &model, mean_s, formula)
        };
        [2, 5].map(row).into()
    }

    /// A server that leaves whenever it finds nothing.
    fn sleeping_servers(&self) -> Vec<Form> {
        let rests = [
            ("constant", Draw::Constant(100 * US_PS)),
            ("exponential", Draw::Exponential(40 * US_PS)),
        ];
        let row = |(name, rest): (&str, Draw)| {
            let (mean, variance) = rest.moments();
            let station = sleeper(rest, Draw::Exponential(6 * US_PS));
            let (rest_s, rest_s2) = (mean * 1e-12, variance * 1e-24);
            let formula = closed::mg1_vacations_wait_s(RATE, (6e-6, 36e-12), rest_s, rest_s2);
            let model = queue(POISSON, station, SECOND_PS / 2);
            self.wait(format!("M/M/1, {name} vacations: wait"), &model, 6e-6, formula)
        };
        rests.map(row).into()
    }

    /// Three stations and a delay with 1, 4 and 12 items: mean value analysis.
    fn closed_networks(&self) -> Vec<Form> {
        let demands = [3_u64, 5, 2].into_iter().enumerate();
        let mut stations: Vec<Station> = demands
            .map(|(at, us)| Station::new("server", Draw::Exponential(us * US_PS)).to(at + 1))
            .collect();
        stations.push(Station {
            servers: None,
            ..Station::new("delay", Draw::Exponential(20 * US_PS))
        });
        let rows = |items: u32| {
            let model = Model {
                stations: stations.clone(),
                sources: vec![Source {
                    arrivals: Arrivals::Closed(items),
                    ..Source::open(Draw::Constant(1), 100, vec![0])
                }],
                time_ps: SECOND_PS / 5,
                warm_up_ps: SECOND_PS / 100,
                samples: 0,
            };
            let (rate, queues) = closed::closed_network(&[3e-6, 5e-6, 2e-6], 20e-6, items);
            let outcomes = self.outcomes(&model);
            let khz = estimate(&outcomes, |run| Some(run.left as f64 / run.seconds * 1e-3));
            let queue = estimate(&outcomes, |run| Some(run.stations[1].mean_items));
            let name = format!("closed network of {items} items");
            [
                random(format!("{name}: rate"), rate * 1e-3, "kHz", khz),
                random(format!("{name}: queue"), queues[1], "items", queue),
            ]
        };
        [1, 4, 12].map(rows).into_iter().flatten().collect()
    }
}

fn random(name: String, formula: f64, unit: &'static str, simulated: Option<Estimate>) -> Form {
    Form {
        name,
        formula,
        simulated: simulated.expect("each run has items, and there are two seeds at least"),
        unit,
        edge: 0.0,
    }
}

fn exact(name: &str, formula: f64, unit: &'static str, mean: f64, edge: f64) -> Form {
    let simulated = Estimate { mean, low: mean, high: mean };
    let name = name.to_owned();
    Form { name, formula, simulated, unit, edge }
}

fn queue(arrivals: Draw, station: Station, time_ps: u64) -> Model {
    Model {
        stations: vec![station],
        sources: vec![Source::open(arrivals, 100, vec![0])],
        time_ps,
        warm_up_ps: time_ps / 10,
        samples: 0,
    }
}

fn sleeper(rest: Draw, service: Draw) -> Station {
    Station {
        poll: Some(Poll { rest: Rest::Sleep(rest), look_ps: 0, takes: Takes::All }),
        ..Station::new("reader", service)
    }
}

/// Items every 10 us at a reader that sleeps for 60 us.
fn periodic_items() -> Form {
    let station = sleeper(Draw::Constant(60 * US_PS), Draw::Constant(4 * US_PS));
    let mut model = queue(Draw::Constant(10 * US_PS), station, SECOND_PS / 10);
    model.sources[0].arrivals =
        Arrivals::Open { first_ps: Some(5 * US_PS), gap: Draw::Constant(10 * US_PS), burst: 1 };
    let outcome = run(&model, 1).expect("the model is sound");
    let wait_s = outcome.latency_mean_s().expect("items came") - 4e-6;
    let formula_s = closed::dd1_vacations_wait_s(10e-6, 4e-6, 60e-6, 5e-6);
    let formula_s = formula_s.expect("a cycle is ten items");
    exact("D/D/1, vacations: wait", formula_s * 1e6, "us", wait_s * 1e6, 1e-3)
}

/// What an overloaded buffer of 50 items lets pass in 10 ms.
fn full_buffer() -> Form {
    let station = Station {
        room: Room { items: 50, ..Room::default() },
        full: Full::Lose,
        ..Station::new("server", Draw::Constant(10 * US_PS))
    };
    let mut model = queue(Draw::Constant(US_PS), station, SECOND_PS / 100);
    model.warm_up_ps = 0;
    let outcome = run(&model, 1).expect("the model is sound");
    let accepted = (outcome.sources[0].offered - outcome.stations[0].lost_full) as f64;
    let formula = closed::token_bucket(50.0, RATE, 10e-3);
    exact("token bucket: items", formula, "items", accepted, 2e-3)
}

/// Threads with 1, 5 and 2 us of work for a block, without any cost of sleeping: the row or the CPU that is used all the time
/// gives the time of a block.
fn threads_on_cpus() -> Vec<Form> {
    let row =
        |(work_ns, threads): (f64, usize)| ThreadRow { threads, work_ns, ..ThreadRow::default() };
    let model = |threads: [usize; 3], cpus: u32| {
        let rows = [1000.0, 5000.0, 2000.0].into_iter().zip(threads).map(row);
        Threads::without_costs(rows.collect(), cpus, 5000)
    };
    let mut pinned = model([1, 1, 1], 4);
    pinned.rows[0].cpus = vec![2];
    pinned.rows[1].cpus = vec![2];
    let cases = [
        ("threads, a CPU each: time of a block", model([1, 1, 1], 8), 5.0),
        ("threads, two in the slowest row", model([1, 2, 1], 8), 2.5),
        ("threads, one CPU for all", model([1, 1, 1], 1), 8.0),
        ("threads, two pinned to one CPU", pinned, 6.0),
    ];
    let form = |(name, model, formula_us): (&str, Threads, f64)| {
        let block_us = 1e6 / run_threads(&model, 1).rate_hz();
        exact(name, formula_us, "us", block_us, 1e-2)
    };
    cases.map(form).into()
}
