//! What `daqmeter cmp` and `daqmeter history` promise: on simulated hosts whose truth is known, and with real work on this host, alone
//! and while a load of our own overcommits its CPUs five times. Every promise is kept or broken.
//!
//! `cargo bench -p daqmeter-campaign --bench promises [-- SECONDS [FOLDER]]`; exits with 1 when a promise is broken. SECONDS is for all but
//! FOLDER: 240 unless it is given. What is simulated comes first; real work has the rest, up to 60 rounds of it each alone and beside our
//! load. Fewer than 20 rounds are too few for any promise, and break it. FOLDER holds files of one plan on one unchanged host, one
//! invocation each: 500 random pairs of them are compared, too.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a benchmark prints what it found, and stops where it fails"
)]

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use daqmeter_campaign::{Options, Plan, PlannedPoint, Runner, Site, Watch, engines};
use daqmeter_harness::{
    Availability, Context, DeviceTime, Engine, Fault, Refusal, Session, StageSpec, Tally,
};
use daqmeter_record::{Host, RunRecord, Workload, jsonl};
use daqmeter_report::cmp::{Compared, Conclusion, cmp};
use daqmeter_stats::promises::{Promise, histories, measured};
use daqmeter_stats::simulated::Random;
use daqmeter_stats::{Asked, FALSE_ALARM};

/// Comparisons of each simulated kind of host, occasion effect and layout.
const SIMULATED: usize = 25;
/// Rows of each kind of history.
const ROWS: usize = 1000;
/// Time for all of it, unless an argument says otherwise.
const SECONDS: u64 = 240;
/// Part of the time left that real work gets alone: beside our load every invocation takes about six times as long.
const ALONE: f64 = 0.25;
/// Part of the time left for real work that is for measuring; comparing takes the rest.
const MEASURING: f64 = 0.9;
/// Rounds of real work at most: more say little more.
const MAX_ROUNDS: usize = 60;
/// Fewest rounds that are compared: their 60 invocations are as many as `cmp` promises something for.
const MIN_ROUNDS: usize = 20;
/// Occasions a side of a comparison with real work.
const OCCASIONS: usize = 10;
/// Comparisons with real work of one kind.
const COMPARISONS: usize = 500;
/// Pairs of single invocations.
const PAIRS: usize = 500;
/// Other invocations that a pair is given as its history.
const HISTORY: usize = 20;
/// Threads of our own load for each CPU.
const OVERCOMMIT: usize = 5;
/// Differences that are ignored, as `daqmeter cmp` does by default.
const IGNORE: f64 = 0.02;

/// An engine whose every so many operations one is done twice: every twentieth is 5 % slower, with real work. Both sides go through it:
/// one call more on one side only would shift the stack, which alone changes conversions of 270 ns by 4 % on some hosts.
struct Slowed {
    inner: Box<dyn Engine>,
    slower: Slower,
}

struct SlowedSession {
    inner: Box<dyn Session>,
    every: u64,
    owed: u64,
}

/// Every twentieth, and none.
const SLOWED: u64 = 20;
const UNCHANGED: u64 = u64::MAX;

impl Engine for Slowed {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn description(&self) -> &'static str {
        self.inner.description()
    }

    fn probe(&self) -> Availability {
        self.inner.probe()
    }

    fn target(&self, workload: &Workload) -> String {
        self.inner.target(workload)
    }

    fn example(&self) -> Workload {
        self.inner.example()
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let every = if (self.slower)(workload) {
            SLOWED
        } else {
            UNCHANGED
        };
        let slowed = |inner| -> Box<dyn Session> {
            Box::new(SlowedSession {
                inner,
                every,
                owed: 0,
            })
        };
        Ok(self.inner.open(workload)?.into_iter().map(slowed).collect())
    }
}

impl Session for SlowedSession {
    fn device(&self) -> String {
        self.inner.device()
    }

    fn stages(&self) -> Vec<StageSpec> {
        self.inner.stages()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.inner.prepare()
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        self.owed += operations;
        let more = self.owed / self.every;
        self.owed %= self.every;
        self.inner.step(stage, operations + more)
    }

    fn device_time(&self) -> DeviceTime {
        self.inner.device_time()
    }

    fn verify(&mut self) -> Result<(), Fault> {
        self.inner.verify()
    }

    fn tally(&mut self) -> Tally {
        self.inner.tally()
    }
}

/// Points whose operations are far shorter than a sample: the twentieth then falls into every sample.
const POINTS: &str = "
title = 'promises'
repetitions = 2
time = '10ms'
[[sweep]]
study = 'promises'
engine = 'convert'
workload = { scale_factor = 0.123, scale_offset = -45.6, samples = 2000 }
axes = { function = [3, 2] }
[[sweep]]
study = 'promises'
engine = 'copy'
workload = { path = 'pread', context = 'cpu', direction = 'to', block_bytes = '4KiB', lanes = 1 }
";

/// Which points are slower.
type Slower = fn(&Workload) -> bool;

/// Keeps the records.
struct Kept(Vec<RunRecord>);

impl Watch for Kept {
    type Error = Infallible;

    fn record(&mut self, record: RunRecord) -> Result<(), Infallible> {
        assert!(record.outcome.is_ok(), "{:?}", record.outcome);
        self.0.push(record);
        Ok(())
    }

    fn refused(&mut self, point: &PlannedPoint, refusal: Refusal) -> Result<(), Infallible> {
        panic!("{}: {refusal}", point.workload)
    }
}

/// One invocation's worth: all points on the last CPU, in an order of their own.
fn occasion(context: &Context, number: u64, slower: Slower) -> Vec<RunRecord> {
    let pin = context.host.allowed_cpus.last().copied();
    let site = Site {
        host: Host::clone(&context.host),
        pin: Some(pin.into_iter().collect()),
        seed: Some(number * 100),
    };
    let plan = Plan::parse_for(POINTS, "promises", &site).unwrap();
    let engines = engines(context.host.last_level_cache_bytes()).into_iter();
    let slowed = engines.map(|inner| Box::new(Slowed { inner, slower }) as Box<dyn Engine>);
    let mut runner = Runner::with_engines(context.clone(), slowed.collect());
    let mut kept = Kept(Vec::new());
    let Ok(_) = runner.run(plan.points, Options::default(), &mut kept);
    for record in &mut kept.0 {
        record.run_id = format!("occasion {number:06}");
        record.time_utc.clone_from(&record.run_id);
    }
    kept.0
}

/// Occasions in turn: of the program as it is twice, and of one whose every point is 5 % slower.
struct Rounds {
    plain: [Vec<Vec<RunRecord>>; 2],
    slowed: Vec<Vec<RunRecord>>,
}

impl Rounds {
    /// As many as there is time for.
    fn measured(context: &Context, time: Duration) -> Rounds {
        let began = Instant::now();
        let mut found = Rounds {
            plain: [Vec::new(), Vec::new()],
            slowed: Vec::new(),
        };
        while began.elapsed() < time && found.slowed.len() < MAX_ROUNDS {
            let first = 3 * found.slowed.len() as u64;
            let [before, after] = &mut found.plain;
            before.push(occasion(context, first, |_| false));
            found.slowed.push(occasion(context, first + 1, |_| true));
            after.push(occasion(context, first + 2, |_| false));
        }
        found
    }

    /// Comparisons of so many neighbouring rounds a side, from a random one on, and in each round by lot which of two of its invocations
    /// is A's: nothing but the lot makes A of one of two invocations of the same program. None of too few rounds.
    fn compared(&self, is_slowed: bool) -> Vec<Compared> {
        let rounds = self.slowed.len();
        if rounds < MIN_ROUNDS {
            return Vec::new();
        }
        let mut random = Random::new(7);
        let mut compare = |_| {
            let first = (random.uniform() * (rounds - OCCASIONS + 1) as f64) as usize;
            let (mut a, mut b) = (Vec::new(), Vec::new());
            for round in first..first + OCCASIONS {
                let lot = usize::from(random.uniform() < 0.5);
                a.extend_from_slice(&self.plain[lot][round]);
                let other = match is_slowed {
                    true => &self.slowed[round],
                    false => &self.plain[1 - lot][round],
                };
                b.extend_from_slice(other);
            }
            cmp(&a, &b, &[], Asked::ignoring(IGNORE))
        };
        (0..COMPARISONS).map(&mut compare).collect()
    }

    fn promises(&self, where_: &str) -> Vec<Promise> {
        let (alike, slowed) = (self.compared(false), self.compared(true));
        let count = |of: &[Compared], is: fn(&Compared) -> bool| {
            of.iter().filter(|found| is(found)).count()
        };
        let is_same = |found: &Compared| found.conclusion == Conclusion::Same;
        println!(
            "{where_}: {} rounds; of {} comparisons in turn, ten a side, {} found the 5 % slowdown; of {} of the same program, {} were told to be the same",
            self.slowed.len(),
            slowed.len(),
            count(&slowed, slower),
            alike.len(),
            count(&alike, is_same)
        );
        let promise = |name: &str, count: usize, of: usize| Promise {
            name: format!("real work, {where_}, {name}"),
            found: count as f64 / of.max(1) as f64,
            bounds: (0.0, FALSE_ALARM),
            of,
        };
        let false_ones = count(&alike, differs);
        let wrong = count(&slowed, |found| found.count("faster") > 0);
        let (single, compared) = self.single();
        vec![
            promise("in turn, false comparisons", false_ones, alike.len()),
            promise("slowdown taken for a speed-up", wrong, slowed.len()),
            promise("single invocations, false comparisons", single, compared),
        ]
    }

    /// False comparisons of pairs of invocations, and how many pairs; none of too few rounds.
    fn single(&self) -> (usize, usize) {
        match self.slowed.len() < MIN_ROUNDS {
            true => (0, 0),
            false => (pairs(&self.plain.concat(), 0), PAIRS),
        }
    }
}

fn differs(found: &Compared) -> bool {
    found.conclusion == Conclusion::Different
}

/// Points that are found to be slower by about what was put in.
fn slower(found: &Compared) -> bool {
    let is_found = |ratio: f64| (1.02..1.10).contains(&ratio);
    let points = found
        .points
        .iter()
        .filter(|point| point.verdict == "slower");
    points.filter(|point| is_found(point.ratio)).count() > 0
}

/// Random pairs of invocations that are found to differ; each with so many others as history.
fn pairs(invocations: &[Vec<RunRecord>], history: usize) -> usize {
    let mut random = Random::new(3);
    let mut draw = || {
        let place = (random.uniform() * invocations.len() as f64) as usize;
        place.min(invocations.len() - 1)
    };
    let mut false_ones = 0;
    for _ in 0..PAIRS {
        let (a, mut b) = (draw(), draw());
        while b == a {
            b = draw();
        }
        let others: Vec<usize> = (0..history)
            .map(|_| draw())
            .filter(|at| *at != a && *at != b)
            .collect();
        let others: std::collections::BTreeSet<usize> = others.into_iter().collect();
        let others: Vec<RunRecord> = others
            .into_iter()
            .flat_map(|at| invocations[at].clone())
            .collect();
        let found = cmp(
            &invocations[a],
            &invocations[b],
            &others,
            Asked::ignoring(IGNORE),
        );
        if differs(&found) {
            println!("false comparison of a pair:\n{}", found.text(false));
        }
        false_ones += usize::from(differs(&found));
    }
    false_ones
}

/// Threads that keep the CPUs busy until it is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn begun() -> Load {
        let ends = Arc::new(AtomicBool::new(false));
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for _ in 0..OVERCOMMIT * cpus {
            let ends = Arc::clone(&ends);
            std::thread::spawn(move || {
                let mut at = 1_u64;
                while !ends.load(Ordering::Relaxed) {
                    at = std::hint::black_box(
                        at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1),
                    );
                }
            });
        }
        Load(ends)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Invocations that were stored in a folder, a file each.
fn stored(folder: &Path) -> Vec<Vec<RunRecord>> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "jsonl")
    });
    files.sort();
    let read = |path: &PathBuf| {
        let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
        jsonl::read_printable(file).unwrap().records
    };
    files.iter().map(read).collect()
}

fn stored_promises(folder: &Path) -> Vec<Promise> {
    let invocations = stored(folder);
    println!("{} stored invocations", invocations.len());
    let promise = |name: &str, false_ones: usize, of: usize| Promise {
        name: format!("stored invocations, {name}"),
        found: false_ones as f64 / of.max(1) as f64,
        bounds: (0.0, FALSE_ALARM),
        of,
    };
    let in_turn: Vec<bool> = invocations
        .windows(2 * OCCASIONS)
        .map(is_false_in_turn)
        .collect();
    let false_ones = in_turn.iter().filter(|is_false| **is_false).count();
    vec![
        promise("pairs, no history", pairs(&invocations, 0), PAIRS),
        promise(
            "pairs, up to 20 others as history",
            pairs(&invocations, HISTORY),
            PAIRS,
        ),
        promise(
            "twenty neighbours as sides in turn",
            false_ones,
            in_turn.len(),
        ),
    ]
}

/// Whether every second of neighbouring invocations differs from the others.
fn is_false_in_turn(neighbours: &[Vec<RunRecord>]) -> bool {
    let side = |parity: usize| -> Vec<RunRecord> {
        let of_it = neighbours.iter().skip(parity).step_by(2);
        of_it.flatten().cloned().collect()
    };
    differs(&cmp(&side(0), &side(1), &[], Asked::ignoring(IGNORE)))
}

/// What real work promises, alone and beside our load, in so much time.
fn real(left: Duration) -> Vec<Promise> {
    let measuring = left.mul_f64(MEASURING);
    let context = Context::gather(Default::default(), "cargo bench".to_owned(), Vec::new());
    let alone = Rounds::measured(&context, measuring.mul_f64(ALONE));
    let load = Load::begun();
    let overcommitted = Rounds::measured(&context, measuring.mul_f64(1.0 - ALONE));
    drop(load);
    [
        alone.promises("alone"),
        overcommitted.promises("overcommitted"),
    ]
    .concat()
}

fn main() -> ExitCode {
    let began = Instant::now();
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'));
    let seconds = arguments
        .next()
        .map_or(SECONDS, |text| text.parse().unwrap());
    let mut promises = measured(SIMULATED, 1.0);
    promises.extend(histories(ROWS));
    println!("simulated in {:.0} s", began.elapsed().as_secs_f64());
    promises.extend(real(
        Duration::from_secs(seconds).saturating_sub(began.elapsed()),
    ));
    if let Some(folder) = arguments.next() {
        promises.extend(stored_promises(Path::new(&folder)));
    }
    println!(
        "{:63} {:>9}   {:16} {:>7}",
        "promise", "measured", "promised [%]", "of"
    );
    promises
        .iter()
        .for_each(|promise| println!("{}", promise.line()));
    println!("in {:.0} s", began.elapsed().as_secs_f64());
    if promises.iter().all(Promise::is_kept) {
        ExitCode::SUCCESS
    } else {
        println!("broken; where comparisons are too few: more time, as -- SECONDS");
        ExitCode::FAILURE
    }
}
