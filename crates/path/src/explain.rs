//! What limits a path: the resource that is used up, proved by slowing each element in turn (Coz, SOSP 2015, turned round: an element
//! that is slowed by a known time moves the whole by as much where it is the limit, and by nothing where it waits for others).
//!
//! Three kinds of runs, interleaved: free, as fast as the path goes; with known work added to each block of one element; and with blocks due
//! at half of the free rate. The free runs say how far each resource is used. The slowed runs say what the whole follows:
//! the *slope* of an element is the time per block that was added to the whole over that which was added to the element. The half
//! runs say what a block needs while there is time to spare, and from that the largest rate is predicted.

use daqmeter_record::PathRun;
use daqmeter_record::resources::{Resource, What, bottleneck, least_without_ns, resources};
use daqmeter_stats::student_interval;

/// A path that can be run.
pub trait System {
    /// Why it could not be run.
    type Error;

    /// Runs it.
    ///
    /// # Errors
    /// When it cannot be run.
    fn run(&mut self, load: Load) -> Result<Seen, Self::Error>;
}

/// How it is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// As fast as it goes.
    Free,
    /// The same, with work added to each block of an element.
    Slowed {
        /// The element; 0 is the source.
        element: usize,
        /// Nanoseconds of work.
        ns: f64,
    },
    /// A block due every so many nanoseconds.
    Every {
        /// Nanoseconds from block to block of the whole path.
        ns: f64,
    },
}

/// What a run showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Time per block of the whole path in nanoseconds.
    pub block_ns: f64,
    /// What blocks needed, always the same resources in the same order.
    pub resources: Vec<Resource>,
}

impl Seen {
    /// Of a run.
    pub fn of(run: &PathRun) -> Seen {
        Seen {
            block_ns: run.wall_ns as f64 / run.blocks.max(1) as f64,
            resources: resources(run),
        }
    }
}

/// An element and how many threads share its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its threads.
    pub threads: usize,
}

/// Shares of the time per block that are added.
pub const SHARES: [f64; 3] = [0.05, 0.1, 0.2];
/// The share of the free rate at which a path has time to spare.
pub const SPARE: f64 = 0.5;
/// Fewest rounds with which an interval is stated.
pub const MIN_ROUNDS: usize = 3;
/// The confidence of all intervals of an answer together.
const CONFIDENCE: f64 = 0.95;

/// A value with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean of the rounds.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    fn of(values: &[f64], confidence: f64) -> Interval {
        let interval = student_interval(values, confidence);
        let (mean, low, high) = interval.unwrap_or((f64::NAN, f64::NEG_INFINITY, f64::INFINITY));
        Interval { mean, low, high }
    }
}

/// How far the whole follows one element.
#[derive(Clone, Debug, PartialEq)]
pub struct Slope {
    /// The element.
    pub name: String,
    /// Added time per block of the whole, over that which was added to the element.
    pub slope: Interval,
}

/// A resource and how far it is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Used {
    /// Which.
    pub what: What,
    /// Share of its time in which it works while the path goes as fast as it can.
    pub used: Interval,
    /// Time per block below which the path cannot come for it, from runs with time to spare, in nanoseconds.
    pub least_ns: Interval,
}

/// What limits a path.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// This resource: it is used up, and the whole follows those elements that use it and no others.
    Limit(What),
    /// None of them alone: no element moves the whole one for one, and no resource is used up.
    NoSingle,
    /// What was measured fits several, or none.
    CannotTell,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// One for each element, from source to sink.
    pub slopes: Vec<Slope>,
    /// One for each resource.
    pub resources: Vec<Used>,
    /// What follows from both.
    pub answer: Answer,
    /// Time per block of the free runs, in nanoseconds.
    pub block_ns: Interval,
    /// The same, predicted from the runs with time to spare.
    pub predicted_ns: Interval,
    /// By which factor the rate grows at most when the limit is removed; none without a limit.
    pub gain: Option<Interval>,
    /// Runs in all.
    pub runs: usize,
}

/// What the rounds brought together.
#[derive(Default)]
struct Rounds {
    free: Vec<Seen>,
    spare: Vec<Seen>,
    /// By element, then by round.
    slopes: Vec<Vec<f64>>,
    runs: usize,
}

/// Runs the path in all ways, in as many rounds.
///
/// # Errors
/// When a run fails.
pub fn explain<S: System>(
    system: &mut S,
    parts: &[Part],
    rounds: usize,
) -> Result<Explained, S::Error> {
    let mut found = Rounds {
        free: vec![system.run(Load::Free)?],
        slopes: vec![Vec::new(); parts.len()],
        runs: 1,
        ..Rounds::default()
    };
    for round in 0..rounds.max(MIN_ROUNDS) {
        found.round(system, parts, round as u64 + 1)?;
    }
    Ok(found.explained(parts))
}

impl Rounds {
    fn round<S: System>(
        &mut self,
        system: &mut S,
        parts: &[Part],
        seed: u64,
    ) -> Result<(), S::Error> {
        let mut sums = vec![(0.0, 0.0); parts.len()];
        let all: Vec<(usize, f64)> = (0..parts.len())
            .flat_map(|part| SHARES.map(|share| (part, share)))
            .collect();
        for (_, (part, share)) in daqmeter_harness::ordered(all, seed) {
            let before_ns = self.last_free_ns();
            let added_ns = share * before_ns;
            // Threads that share the blocks share the work, too.
            let slowed = system.run(Load::Slowed {
                element: part,
                ns: added_ns * parts[part].threads as f64,
            })?;
            self.free.push(system.run(Load::Free)?);
            self.runs += 2;
            let response_ns = slowed.block_ns - (before_ns + self.last_free_ns()) / 2.0;
            let (products, squares) = &mut sums[part];
            *products += response_ns * added_ns;
            *squares += added_ns * added_ns;
        }
        for (slopes, (products, squares)) in self.slopes.iter_mut().zip(sums) {
            slopes.push(products / squares);
        }
        let ns = self.last_free_ns() / SPARE;
        self.spare.push(system.run(Load::Every { ns })?);
        self.runs += 1;
        Ok(())
    }

    fn last_free_ns(&self) -> f64 {
        self.free[self.free.len() - 1].block_ns
    }

    fn explained(&self, parts: &[Part]) -> Explained {
        let slopes = self.slopes(parts);
        let resources = self.used();
        let answer = answer(parts, &slopes, &resources, &self.free[0].resources);
        let each = |runs: &[Seen], of: &dyn Fn(&Seen) -> f64| {
            let values: Vec<f64> = runs.iter().map(of).collect();
            Interval::of(&values, CONFIDENCE)
        };
        let least = |seen: &Seen| bottleneck(&seen.resources).map_or(0.0, |(_, ns)| ns);
        let gain = match &answer {
            Answer::Limit(what) => Some(each(&self.free, &|seen| gain(seen, what))),
            Answer::NoSingle | Answer::CannotTell => None,
        };
        Explained {
            slopes,
            resources,
            answer,
            block_ns: each(&self.free, &|seen| seen.block_ns),
            predicted_ns: each(&self.spare, &least),
            gain,
            runs: self.runs,
        }
    }

    /// One slope for each part. All intervals together hold with [`CONFIDENCE`] (Bonferroni).
    fn slopes(&self, parts: &[Part]) -> Vec<Slope> {
        let confidence = 1.0 - (1.0 - CONFIDENCE) / parts.len().max(1) as f64;
        let slope = |(part, slopes): (&Part, &Vec<f64>)| Slope {
            name: part.name.clone(),
            slope: Interval::of(slopes, confidence),
        };
        parts.iter().zip(&self.slopes).map(slope).collect()
    }

    fn used(&self) -> Vec<Used> {
        let count = self.free[0].resources.len();
        let column = |runs: &[Seen], of: &dyn Fn(&Seen) -> f64| {
            let values: Vec<f64> = runs.iter().map(of).collect();
            Interval::of(&values, CONFIDENCE)
        };
        let used = |at: usize| Used {
            what: self.free[0].resources[at].what.clone(),
            used: column(&self.free, &|seen| {
                seen.resources[at].least_ns() / seen.block_ns
            }),
            least_ns: column(&self.spare, &|seen| seen.resources[at].least_ns()),
        };
        (0..count).map(used).collect()
    }
}

/// How much faster the path would be without its limit, from what a block needs of everything else.
fn gain(seen: &Seen, limit: &What) -> f64 {
    let next_ns = match limit {
        What::Threads { element, .. } | What::Between { element, .. } => {
            least_without_ns(&seen.resources, *element)
        }
        What::Cpu(_) | What::AllCpus => {
            let others = seen.resources.iter();
            let others = others.filter(|resource| resource.what != *limit);
            others.map(Resource::least_ns).fold(0.0, f64::max)
        }
    };
    seen.block_ns / next_ns.max(f64::MIN_POSITIVE)
}

/// A resource whose interval ends below this has time to spare.
const USED_UP: f64 = 0.85;
/// How far a slope may lie from what a limit makes of it, beyond its interval: what is added changes the rest a little.
const NEAR: f64 = 0.15;
/// An element whose whole interval is below this does not move the path one for one.
const NOT_ONE_FOR_ONE: f64 = 0.9;

fn answer(parts: &[Part], slopes: &[Slope], used: &[Used], resources: &[Resource]) -> Answer {
    let used_up = used.iter().zip(resources);
    let used_up = used_up.filter(|(used, _)| used.used.high >= USED_UP);
    let mut fitting: Vec<(&What, Vec<f64>)> = Vec::new();
    for (_, resource) in used_up {
        let expected: Vec<f64> = (0..parts.len())
            .map(|element| resource.slope(element, parts[element].threads))
            .collect();
        // A thread that has a CPU to itself and that CPU are one limit.
        let is_new = fitting.iter().all(|(_, known)| *known != expected);
        if is_new && fits(&expected, slopes) {
            fitting.push((&resource.what, expected));
        }
    }
    let is_below = |slope: &Slope| slope.slope.high < NOT_ONE_FOR_ONE;
    match &fitting[..] {
        [(what, _)] => Answer::Limit((*what).clone()),
        [] if slopes.iter().all(is_below) => Answer::NoSingle,
        _ => Answer::CannotTell,
    }
}

/// Whether the slopes are those of a limit, and known well enough to say so.
fn fits(expected: &[f64], slopes: &[Slope]) -> bool {
    let near = |(expected, found): (&f64, &Slope)| {
        found.slope.low - NEAR <= *expected && *expected <= found.slope.high + NEAR
    };
    let moves =
        |(expected, found): (&f64, &Slope)| *expected > 0.0 && found.slope.low > *expected / 2.0;
    expected.iter().zip(slopes).all(near) && expected.iter().zip(slopes).any(moves)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use daqmeter_stats::simulated::Random;

    use super::*;

    /// Parts in line with a CPU each, or on shared CPUs; noise as a share of the time per block, and a host that slows down.
    struct Simulated {
        needs_ns: Vec<f64>,
        threads: Vec<usize>,
        cpus: Option<f64>,
        noise: f64,
        drift: f64,
        random: Random,
        runs: u32,
    }

    impl Simulated {
        fn new(needs_ns: &[f64], noise: f64) -> Simulated {
            Simulated {
                needs_ns: needs_ns.to_vec(),
                threads: vec![1; needs_ns.len()],
                cpus: None,
                noise,
                drift: 0.0,
                random: Random::new(7),
                runs: 0,
            }
        }

        fn explained(mut self, rounds: usize) -> Explained {
            let part = |(at, &threads): (usize, &usize)| Part {
                name: format!("part {at}"),
                threads,
            };
            let parts: Vec<Part> = self.threads.iter().enumerate().map(part).collect();
            explain(&mut self, &parts, rounds).unwrap()
        }

        fn resources(&self, needs: &[f64]) -> Vec<Resource> {
            let row = |(element, (&ns, &threads)): (usize, (&f64, &usize))| Resource {
                what: threads_of(element),
                capacity: threads as f64,
                uses: BTreeMap::from([(element, ns)]),
            };
            let rows = needs.iter().zip(&self.threads).enumerate().map(row);
            let cpus = self.cpus.map(|capacity| Resource {
                what: What::AllCpus,
                capacity,
                uses: needs.iter().copied().enumerate().collect(),
            });
            rows.chain(cpus).collect()
        }
    }

    fn threads_of(element: usize) -> What {
        What::Threads {
            element,
            name: format!("part {element}"),
        }
    }

    impl System for Simulated {
        type Error = Infallible;

        fn run(&mut self, load: Load) -> Result<Seen, Infallible> {
            self.runs += 1;
            let drift = 1.0 + self.drift * f64::from(self.runs);
            let noise = 1.0 + self.noise * self.random.normal();
            let needs = self.needs_ns.iter().map(|ns| ns * drift * noise);
            let mut needs: Vec<f64> = needs.collect();
            if let Load::Slowed { element, ns } = load {
                needs[element] += ns;
            }
            let resources = self.resources(&needs);
            let (_, least_ns) = bottleneck(&resources).unwrap();
            let block_ns = match load {
                Load::Every { ns } => least_ns.max(ns),
                Load::Free | Load::Slowed { .. } => least_ns,
            };
            Ok(Seen {
                block_ns,
                resources,
            })
        }
    }

    #[test]
    fn the_slowest_part_is_named_whatever_the_noise_and_the_drift() {
        for slow in 0..4 {
            let mut needs = [1000.0, 1100.0, 900.0, 1050.0];
            needs[slow] = 1600.0;
            let mut system = Simulated::new(&needs, 0.01);
            system.drift = 0.001;
            let explained = system.explained(8);
            assert_eq!(
                explained.answer,
                Answer::Limit(threads_of(slow)),
                "{explained:?}"
            );
            let slope = explained.slopes[slow].slope;
            assert!(slope.low < 1.0 && 1.0 < slope.high + 0.1, "{slope:?}");
        }
    }

    #[test]
    fn a_part_with_several_threads_is_slowed_by_its_share() {
        let mut system = Simulated::new(&[1000.0, 4800.0, 900.0], 0.005);
        system.threads = vec![1, 3, 1];
        assert_eq!(system.explained(8).answer, Answer::Limit(threads_of(1)));
    }

    #[test]
    fn parts_that_share_cpus_are_limited_by_them() {
        let mut system = Simulated::new(&[1000.0, 1000.0, 1000.0, 1000.0], 0.005);
        system.cpus = Some(2.0);
        let explained = system.explained(8);
        assert_eq!(
            explained.answer,
            Answer::Limit(What::AllCpus),
            "{explained:?}"
        );
        // Twice the CPUs: then each part is a limit.
        let gain = explained.gain.unwrap();
        assert!((gain.mean - 2.0).abs() < 0.05, "{gain:?}");
    }

    #[test]
    fn the_rate_and_the_gain_are_predicted_from_what_the_rest_needs() {
        let explained = Simulated::new(&[1000.0, 1600.0, 1280.0], 0.002).explained(8);
        let gain = explained.gain.unwrap();
        // What disturbs a whole run disturbs all of its parts.
        assert!((gain.mean - 1.25).abs() < 1e-6, "{gain:?}");
        let predicted = explained.predicted_ns;
        assert!(
            (predicted.mean / 1600.0 - 1.0).abs() < 0.01,
            "{predicted:?}"
        );
    }

    #[test]
    fn what_limits_nothing_that_was_seen_is_no_single_one() {
        // Something outside of all parts, such as memory, takes twice their time.
        struct Hidden(Simulated);
        impl System for Hidden {
            type Error = Infallible;
            fn run(&mut self, load: Load) -> Result<Seen, Infallible> {
                let mut seen = self.0.run(load)?;
                seen.block_ns = seen
                    .block_ns
                    .max(3200.0 * (1.0 + 0.002 * self.0.random.normal()));
                Ok(seen)
            }
        }
        let parts: Vec<Part> = (0..3)
            .map(|at| Part {
                name: format!("part {at}"),
                threads: 1,
            })
            .collect();
        let mut hidden = Hidden(Simulated::new(&[1000.0, 1600.0, 900.0], 0.002));
        let explained = explain(&mut hidden, &parts, 8).unwrap();
        assert_eq!(explained.answer, Answer::NoSingle, "{explained:?}");
        assert_eq!(explained.gain, None);
    }

    #[test]
    fn too_much_noise_gives_no_answer() {
        let explained = Simulated::new(&[1000.0, 1600.0, 900.0], 0.4).explained(3);
        assert_eq!(explained.answer, Answer::CannotTell, "{explained:?}");
    }
}
