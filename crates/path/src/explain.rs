//! The limit of a path: the used-up resource, proved by slowing each element in turn (Coz, SOSP
//! 2015, inverted). An element slowed by a known time moves the whole by as much if it is the
//! limit. It moves nothing if it waits for others.
//!
//! Four kinds of runs are interleaved: free, as fast as the path goes; with known work added to
//! each block of one element; with eight times as many buffers; and with blocks due at four fifths
//! of the free rate. The free runs give the use of each resource. The slowed runs give the *slope*
//! of each element: the time per block added to the whole over that added to the element.
//! `evidence.rs` draws the conclusion; rounds go on until there is one. The runs at a rate give the
//! need of a block while there is time to spare, which predicts the largest rate. A limiting part
//! whose work can be left out is left out: the faster rate is the gain of its removal.

use daqmeter_record::PathRun;
use daqmeter_record::path::PathThread;
use daqmeter_record::resources::{Resource, What, all_resources, least_without_ns};

use crate::evidence::{Evidence, MIN_USED};
pub use crate::evidence::{Interval, LimitAnswer, PathPart, Slope, Used};

pub trait PathSystem {
    type Error;

    fn run(&mut self, load: PathLoad) -> Result<Seen, Self::Error>;

    /// Number of runs with time to spare that are worth their time once the limit is found: the
    /// longest wait in a second is not that of an hour.
    fn watches(&self) -> usize {
        0
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PathLoad {
    /// As fast as it goes.
    Free,
    /// As fast as it goes, with work added to each block of an element.
    Slowed {
        /// Number of the element; 0 is the source.
        element: usize,
        ns: f64,
    },
    /// As fast as it goes without the work of an element.
    Without {
        /// Number of the element.
        element: usize,
    },
    /// As fast as it goes with a multiple of the blocks between two threads.
    Buffers {
        /// Factor on the number of blocks.
        times: usize,
    },
    /// A block due every `ns` nanoseconds.
    Every {
        /// Nanoseconds from block to block of the whole path.
        ns: f64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub block_ns: f64,
    /// Needs of blocks, always of the same resources in the same order.
    pub resources: Vec<Resource>,
    /// From the release of its threads to the end of the last one, in nanoseconds.
    pub wall_ns: f64,
    /// The longest time for which blocks that were due found no room, in nanoseconds.
    pub no_room_ns: f64,
    /// Largest filling of the rings behind the source, as a share of their blocks; more than 1 with
    /// blocks that were due and found no room.
    pub fullest: f64,
}

impl Seen {
    /// Results of a run. A CPU that one thread has to itself is no resource beside that thread: no
    /// other uses its rest.
    pub fn of(run: &PathRun) -> Seen {
        let no_room_ns = run.threads.iter().map(|thread| thread.no_room_ns).max();
        let is_shared = |resource: &Resource| match resource.what {
            What::Cpu(cpu) => run.threads.iter().filter(|one| one.cpu == Some(cpu)).count() > 1,
            _ => true,
        };
        let mut resources = all_resources(run);
        resources.retain(is_shared);
        Seen {
            block_ns: run.wall_ns as f64 / run.blocks.max(1) as f64,
            resources,
            wall_ns: run.wall_ns as f64,
            no_room_ns: no_room_ns.unwrap_or(0) as f64,
            fullest: fullest(run),
        }
    }
}

/// Share of the time per block that is added: smaller ones were lost in the noise of short runs.
pub const SHARE: f64 = 0.2;
/// Share of the free rate at which a path has time to spare. At less of it neighbours disturb one
/// another less than at the maximum, and blocks wake threads up that are awake then.
pub const SPARE: f64 = 0.8;
const MORE_BUFFERS: usize = 8;
/// Factor, below the whole interval of the gain with more buffers, from which on buffers are the
/// limit.
const WORTH_BUFFERS: f64 = 1.05;
pub const MIN_ROUNDS: usize = 4;
const TRIALS: usize = 8;
/// Runs that watch the filling of the buffers once the limit is found, if there is time for them:
/// 1.6 s with runs of 100 ms.
pub const WATCHES: usize = 16;
/// Free runs the median of which is the present rate.
const PRESENT: usize = 5;

#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub slopes: Vec<Slope>,
    pub resources: Vec<Used>,
    pub answer: LimitAnswer,
    pub block_ns: Interval,
    /// Time per block predicted from the runs with time to spare, in nanoseconds.
    pub predicted_ns: Interval,
    /// Room for due blocks in the runs with time to spare.
    pub room: Room,
    /// Factor by which the rate grows with eight times as many buffers.
    pub more_buffers: Interval,
    /// Factor by which the rate grows when the limit is removed; `None` without a limit.
    pub gain: Option<Gain>,
    pub runs: usize,
}

impl Explanation {
    /// True if more buffers make the path faster while nothing is nearly used up.
    fn needs_buffers(&self) -> bool {
        let mut used = self.resources.iter();
        let is_used_up = |used: &Used| !used.is_refuted() && used.used.mean >= MIN_USED;
        self.more_buffers.low > WORTH_BUFFERS && !used.any(is_used_up)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Gain by a block's needs of all other resources. Without the limit there are fewer wake-ups,
    /// and less time to spare.
    pub predicted: Interval,
    /// Gain of runs without the work of the limiting part; `None` if it cannot be left out.
    pub tried: Option<Interval>,
}

struct Rounds<'a, S> {
    system: &'a mut S,
    parts: &'a [PathPart],
    free: Vec<Seen>,
    spare: Vec<Seen>,
    slopes: Vec<Vec<f64>>,
    /// Rate with more buffers over that with those of the path, by round.
    more_buffers: Vec<f64>,
    runs: usize,
}

#[derive(Clone, Copy)]
enum Task {
    Slow(usize),
    Buffers,
    Spare,
}

/// Runs the path in all ways, round by round, until there is an answer or the caller wants no more
/// after [`MIN_ROUNDS`].
pub fn explain<S: PathSystem>(
    system: &mut S,
    parts: &[PathPart],
    mut wants_more: impl FnMut(usize) -> bool,
) -> Result<Explanation, S::Error> {
    let mut found = Rounds {
        system,
        parts,
        free: Vec::new(),
        spare: Vec::new(),
        slopes: vec![Vec::new(); parts.len()],
        more_buffers: Vec::new(),
        runs: 0,
    };
    found.free()?;
    let mut round = 0;
    loop {
        round += 1;
        found.round(round as u64)?;
        let is_open = || found.explained().answer == LimitAnswer::CannotTell;
        if round >= MIN_ROUNDS && !(is_open() && wants_more(round)) {
            break;
        }
    }
    for _ in 0..found.system.watches() {
        found.spare()?;
    }
    let mut explained = found.explained();
    match &explained.answer {
        LimitAnswer::Limit(what) => {
            explained.gain = Some(found.gain(what)?);
            explained.runs = found.runs;
        }
        // Threads with too little between them wait for one another, and nothing is used up.
        LimitAnswer::NoSingle | LimitAnswer::CannotTell if explained.needs_buffers() => {
            explained.answer = LimitAnswer::Limit(What::Buffers);
            explained.gain = Some(Gain {
                predicted: explained.more_buffers,
                tried: Some(explained.more_buffers),
            });
        }
        LimitAnswer::NoSingle | LimitAnswer::CannotTell => {}
    }
    Ok(explained)
}

impl<S: PathSystem> Rounds<'_, S> {
    fn run(&mut self, load: PathLoad) -> Result<Seen, S::Error> {
        self.runs += 1;
        self.system.run(load)
    }

    fn free(&mut self) -> Result<f64, S::Error> {
        let seen = self.run(PathLoad::Free)?;
        let block_ns = seen.block_ns;
        self.free.push(seen);
        Ok(block_ns)
    }

    fn round(&mut self, seed: u64) -> Result<(), S::Error> {
        let slow = (0..self.parts.len()).map(Task::Slow);
        let all = slow.chain([Task::Buffers, Task::Spare]).collect();
        for (_, task) in daqmeter_harness::ordered(all, seed) {
            match task {
                Task::Slow(element) => self.slow(element)?,
                Task::Buffers => {
                    let times = MORE_BUFFERS;
                    let ratio = self.beside(PathLoad::Buffers { times })?;
                    self.more_buffers.push(ratio);
                }
                Task::Spare => self.spare()?,
            }
        }
        Ok(())
    }

    fn spare(&mut self) -> Result<(), S::Error> {
        let ns = self.present_ns() / SPARE;
        let seen = self.run(PathLoad::Every { ns })?;
        self.spare.push(seen);
        Ok(())
    }

    fn slow(&mut self, element: usize) -> Result<(), S::Error> {
        let before_ns = self.free[self.free.len() - 1].block_ns;
        let added_ns = SHARE * self.present_ns();
        // Threads that share the blocks share the work, too.
        let ns = added_ns * self.parts[element].threads as f64;
        let slowed = self.run(PathLoad::Slowed { element, ns })?;
        let beside_ns = (before_ns + self.free()?) / 2.0;
        self.slopes[element].push((slowed.block_ns - beside_ns) / added_ns);
        Ok(())
    }

    fn beside(&mut self, load: PathLoad) -> Result<f64, S::Error> {
        let before_ns = self.free[self.free.len() - 1].block_ns;
        let other = self.run(load)?;
        let beside_ns = (before_ns + self.free()?) / 2.0;
        Ok(beside_ns / other.block_ns)
    }

    fn present_ns(&self) -> f64 {
        let last = self.free.iter().rev().take(PRESENT);
        let last: Vec<f64> = last.map(|seen| seen.block_ns).collect();
        daqmeter_stats::median(&last)
    }

    fn explained(&self) -> Explanation {
        let (slopes, resources) = (self.slopes(), self.used());
        let possible = resources.iter().zip(&self.free[0].resources);
        let possible = possible.filter(|(used, _)| !used.is_refuted());
        let (used, all): (Vec<Used>, Vec<Resource>) =
            possible.map(|(used, all)| (used.clone(), all.clone())).unzip();
        let evidence = Evidence {
            parts: self.parts,
            slopes: &slopes,
            used: &used,
            resources: &all,
            share: SHARE,
        };
        let answer = evidence.answer();
        Explanation {
            answer,
            block_ns: each(&self.free, |seen| seen.block_ns),
            predicted_ns: self.predicted_ns(&used),
            room: self.room(),
            more_buffers: Interval::of(&self.more_buffers),
            gain: None,
            runs: self.runs,
            slopes,
            resources,
        }
    }

    fn room(&self) -> Room {
        let spare = self.spare.iter();
        Room {
            every_ns: self.present_ns() / SPARE,
            watched_ns: spare.clone().map(|seen| seen.wall_ns).sum(),
            no_room_ns: spare.clone().map(|seen| seen.no_room_ns).fold(0.0, f64::max),
            fullest: all_but(0.1, spare.map(|seen| seen.fullest).collect()),
        }
    }

    fn slopes(&self) -> Vec<Slope> {
        let slope = |(part, slopes): (&PathPart, &Vec<f64>)| Slope {
            name: part.name.clone(),
            slope: Interval::of(slopes),
        };
        self.parts.iter().zip(&self.slopes).map(slope).collect()
    }

    fn used(&self) -> Vec<Used> {
        let used = |(at, resource): (usize, &Resource)| Used {
            what: resource.what.clone(),
            used: self.used_share(at),
            occupied: self.occupied_share(at),
            least_ns: self.least_ns(at),
        };
        self.free[0].resources.iter().enumerate().map(used).collect()
    }

    fn used_share(&self, at: usize) -> Interval {
        each(&self.free, |seen| seen.resources[at].least_ns() / seen.block_ns)
    }

    fn occupied_share(&self, at: usize) -> Interval {
        each(&self.free, |seen| seen.resources[at].least_beside_others_ns() / seen.block_ns)
    }

    fn least_ns(&self, at: usize) -> Interval {
        each(&self.spare, |seen| seen.resources[at].least_beside_others_ns())
    }

    /// Predicts by the resource that allows least. CPUs that threads share idle while a thread
    /// wakes up or moves. If they allow least, they get as much idle time as they had at full
    /// speed.
    fn predicted_ns(&self, possible: &[Used]) -> Interval {
        let most = possible.iter().max_by(|a, b| a.least_ns.mean.total_cmp(&b.least_ns.mean));
        match most {
            Some(most) if most.what == What::AllCpus => most.least_ns.over_share(most.used),
            Some(most) => most.least_ns,
            None => Interval::of(&[]),
        }
    }

    fn gain(&mut self, limit: &What) -> Result<Gain, S::Error> {
        let mut tried = None;
        if let What::Threads { element, .. } = limit
            && self.parts[*element].can_be_left_out
        {
            let mut ratios = Vec::new();
            for _ in 0..TRIALS {
                ratios.push(self.beside(PathLoad::Without { element: *element })?);
            }
            tried = Some(Interval::of(&ratios));
        }
        let refuted: Vec<What> =
            self.used().into_iter().filter(Used::is_refuted).map(|used| used.what).collect();
        let predicted = each(&self.free, |seen| {
            let mut possible = seen.clone();
            possible.resources.retain(|one| !refuted.contains(&one.what));
            gain(&possible, limit)
        });
        Ok(Gain { predicted, tried })
    }
}

fn each(runs: &[Seen], of: impl Fn(&Seen) -> f64) -> Interval {
    let values: Vec<f64> = runs.iter().map(of).collect();
    Interval::of(&values)
}

/// Factor by which the path would be faster without its limit, by a block's needs of everything
/// else.
fn gain(seen: &Seen, limit: &What) -> f64 {
    let next_ns = match limit {
        What::Threads { .. } => {
            let own = seen.resources.iter().find(|one| one.what == *limit);
            let elements = own.map(|one| one.uses.keys().copied().collect::<Vec<_>>());
            least_without_ns(&seen.resources, &elements.unwrap_or_default())
        }
        What::Between { element, .. } => least_without_ns(&seen.resources, &[*element]),
        What::Cpu(_) | What::AllCpus | What::Link { .. } | What::Memory | What::Buffers => {
            let others = seen.resources.iter();
            let others = others.filter(|resource| resource.what != *limit);
            others.map(Resource::least_ns).fold(0.0, f64::max)
        }
    };
    seen.block_ns / next_ns.max(f64::MIN_POSITIVE)
}

/// Results of the runs with time to spare for the buffers. A source that cannot wait loses blocks
/// without room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Time from block to block of the whole path in the last of them, in nanoseconds.
    pub every_ns: f64,
    pub watched_ns: f64,
    /// The longest time for which blocks that were due found no room, in nanoseconds.
    pub no_room_ns: f64,
    /// Filling of the rings behind the source in nine of ten runs, as a share of their blocks. A
    /// rate counts as one without loss though one such run loses a block.
    pub fullest: f64,
}

impl Room {
    /// Share of the largest rate that a source that cannot wait reaches without loss, for `now` and
    /// `then` blocks in a ring. The largest queue grows as 1 / (1 - rate) near the largest rate (a
    /// queue in heavy traffic: Kingman, "On queues in heavy traffic", J. R. Stat. Soc. B 24(2),
    /// 1962). The blocks that come while a thread is stopped grow with the rate.
    pub fn share_without_loss(&self, now: u64, then: u64) -> f64 {
        let full = self.fullest * now as f64 / then.max(1) as f64;
        match full > 1.0 {
            true => SPARE / full,
            false => 1.0 - (1.0 - SPARE) * full,
        }
    }

    /// Blocks that would have held the due ones of one of several streams, with `now` blocks in a
    /// ring. Twice the observed number, as the next wait may be longer, as a power of two. It is
    /// `now` if nothing waited.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "blocks of a wait, at most as many as fit into 64 bits"
    )]
    pub fn wanted(&self, buffers: u64, streams: f64) -> u64 {
        match self.no_room_ns > 0.0 {
            true => {
                let due = (self.no_room_ns / self.every_ns / streams).ceil() as u64;
                (2 * (buffers + due)).next_power_of_two()
            }
            false => buffers,
        }
    }
}

/// Largest of values but for this share of them, rounded down.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most as many as there are"
)]
fn all_but(share: f64, mut values: Vec<f64>) -> f64 {
    values.sort_by(|a, b| b.total_cmp(a));
    let left_out = (values.len() as f64 * share) as usize;
    values.get(left_out).copied().unwrap_or(0.0)
}

/// Largest number of blocks that waited behind the source or were due, as a share of the blocks of
/// their ring.
fn fullest(run: &PathRun) -> f64 {
    let sources: Vec<&PathThread> = run.threads.iter().filter(|one| one.element == 0).collect();
    let blocks_of_each = run.blocks as f64 / sources.len().max(1) as f64;
    let of_source = |source: &&PathThread| {
        let due = source.no_room_ns as f64 / run.wall_ns.max(1) as f64 * blocks_of_each;
        let rings = run.queues.iter().filter(|queue| queue.from == source.name);
        let full = rings.filter_map(|queue| {
            let most = queue.seen.iter().rposition(|&looks| looks > 0)?;
            Some((most as f64 + due) / (queue.seen.len() - 1).max(1) as f64)
        });
        full.fold(0.0, f64::max)
    };
    sources.iter().map(of_source).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use daqmeter_record::resources::bottleneck;
    use daqmeter_stats::Random;

    use super::*;

    /// Parts in line with a CPU each, or on shared CPUs; noise as a share of the time per block,
    /// and a host that slows down.
    struct Simulated {
        needs_ns: Vec<f64>,
        threads: Vec<usize>,
        cpus: Option<f64>,
        memory_ns: Option<f64>,
        /// Share of the time in which nothing works at full speed.
        idle: f64,
        noise: f64,
        drift: f64,
        /// Time without room for the blocks due at a rate.
        no_room_ns: f64,
        fullest: f64,
        lockstep: f64,
        random: Random,
        runs: u32,
    }

    impl Simulated {
        fn new(needs_ns: &[f64], noise: f64) -> Simulated {
            Simulated {
                needs_ns: needs_ns.to_vec(),
                threads: vec![1; needs_ns.len()],
                cpus: None,
                memory_ns: None,
                idle: 0.0,
                noise,
                drift: 0.0,
                no_room_ns: 0.0,
                fullest: 0.0,
                lockstep: 0.0,
                random: Random::new(7),
                runs: 0,
            }
        }

        fn explained(mut self, rounds: usize) -> Explanation {
            let part = |(at, &threads): (usize, &usize)| PathPart {
                name: format!("part {at}"),
                threads,
                can_be_left_out: true,
            };
            let parts: Vec<PathPart> = self.threads.iter().enumerate().map(part).collect();
            explain(&mut self, &parts, |round| round < rounds).unwrap()
        }

        fn resources(&self, needs: &[f64]) -> Vec<Resource> {
            let row = |(element, (&ns, &threads)): (usize, (&f64, &usize))| Resource {
                what: threads_of(element),
                capacity: threads as f64,
                uses: BTreeMap::from([(element, ns)]),
                preempted_ns: 0.0,
            };
            let rows = needs.iter().zip(&self.threads).enumerate().map(row);
            let cpus = self.cpus.map(|capacity| Resource {
                what: What::AllCpus,
                capacity,
                uses: needs.iter().copied().enumerate().collect(),
                preempted_ns: 0.0,
            });
            let memory = self.memory_ns.map(|ns| Resource {
                what: What::Memory,
                capacity: 1.0,
                uses: BTreeMap::from([(0, ns)]),
                preempted_ns: 0.0,
            });
            rows.chain(cpus).chain(memory).collect()
        }
    }

    fn threads_of(element: usize) -> What {
        What::Threads { element, name: format!("part {element}") }
    }

    impl PathSystem for Simulated {
        type Error = Infallible;

        fn run(&mut self, load: PathLoad) -> Result<Seen, Infallible> {
            self.runs += 1;
            let drift = 1.0 + self.drift * f64::from(self.runs);
            let noise = 1.0 + self.noise * self.random.normal();
            let needs = self.needs_ns.iter().map(|ns| ns * drift * noise);
            let mut needs: Vec<f64> = needs.collect();
            match load {
                PathLoad::Slowed { element, ns } => needs[element] += ns,
                PathLoad::Without { element } => needs[element] = 0.0,
                PathLoad::Free | PathLoad::Buffers { .. } | PathLoad::Every { .. } => {}
            }
            let resources = self.resources(&needs);
            let (_, least_ns) = bottleneck(&resources).unwrap();
            let lockstep = match load {
                PathLoad::Buffers { .. } => 0.0,
                _ => self.lockstep,
            };
            let together_ns = lockstep * needs.iter().sum::<f64>();
            let full_ns = (least_ns / (1.0 - self.idle)).max(together_ns);
            let block_ns = match load {
                PathLoad::Every { ns } => full_ns.max(ns),
                _ => full_ns,
            };
            Ok(Seen {
                block_ns,
                resources,
                wall_ns: 1e6,
                no_room_ns: match load {
                    PathLoad::Every { .. } => self.no_room_ns,
                    _ => 0.0,
                },
                fullest: self.fullest,
            })
        }
    }

    #[test]
    fn a_cpu_is_a_resource_where_threads_share_it() {
        let thread = |element, cpu| daqmeter_record::path::PathThread {
            name: format!("part {element}"),
            part: format!("part {element}"),
            element,
            cpu: Some(cpu),
            cpu_ns: 500,
            busy_ns: 500,
            ..Default::default()
        };
        let cpus = |places: [u32; 2]| {
            let run = PathRun {
                wall_ns: 1000,
                blocks: 1,
                threads: vec![thread(0, places[0]), thread(1, places[1])],
                ..PathRun::default()
            };
            let seen = Seen::of(&run).resources.into_iter();
            seen.filter(|resource| matches!(resource.what, What::Cpu(_))).count()
        };
        assert_eq!((cpus([0, 1]), cpus([1, 1])), (0, 1));
    }

    #[test]
    fn the_slowest_part_is_named_whatever_the_noise_and_the_drift() {
        for slow in 0..4 {
            let mut needs = [1000.0, 1100.0, 900.0, 1050.0];
            needs[slow] = 1600.0;
            let mut system = Simulated::new(&needs, 0.01);
            system.drift = 0.001;
            let explained = system.explained(8);
            assert_eq!(explained.answer, LimitAnswer::Limit(threads_of(slow)), "{explained:?}");
            let slope = explained.slopes[slow].slope;
            assert!(slope.low < 1.0 && 1.0 < slope.high + 0.1, "{slope:?}");
        }
    }

    #[test]
    fn a_part_with_several_threads_is_slowed_by_its_share() {
        let mut system = Simulated::new(&[1000.0, 4800.0, 900.0], 0.005);
        system.threads = vec![1, 3, 1];
        assert_eq!(system.explained(8).answer, LimitAnswer::Limit(threads_of(1)));
    }

    #[test]
    fn parts_that_share_cpus_are_limited_by_them() {
        let mut system = Simulated::new(&[1000.0, 1000.0, 1000.0, 1000.0], 0.005);
        system.cpus = Some(2.0);
        let explained = system.explained(8);
        assert_eq!(explained.answer, LimitAnswer::Limit(What::AllCpus), "{explained:?}");
        // Twice the CPUs: then each part is a limit.
        let gain = explained.gain.unwrap();
        assert!((gain.predicted.mean - 2.0).abs() < 0.05, "{gain:?}");
    }

    #[test]
    fn memory_that_is_used_up_is_the_limit_where_the_path_follows_no_part() {
        let mut system = Simulated::new(&[1000.0, 1100.0, 900.0], 0.005);
        system.memory_ns = Some(2000.0);
        let explained = system.explained(8);
        assert_eq!(explained.answer, LimitAnswer::Limit(What::Memory), "{explained:?}");
        let mut spare = Simulated::new(&[1000.0, 1600.0, 900.0], 0.005);
        spare.memory_ns = Some(800.0);
        assert_eq!(spare.explained(8).answer, LimitAnswer::Limit(threads_of(1)));
    }

    #[test]
    fn cpus_that_idle_while_threads_move_are_in_the_prediction() {
        let mut system = Simulated::new(&[1000.0, 1000.0, 1000.0, 1000.0], 0.005);
        system.cpus = Some(2.0);
        system.idle = 0.15;
        let explained = system.explained(8);
        let ratio = explained.predicted_ns.mean / explained.block_ns.mean;
        assert!((ratio - 1.0).abs() < 0.02, "{explained:?}");
    }

    #[test]
    fn the_rate_and_the_gain_are_predicted_from_what_the_rest_needs() {
        let explained = Simulated::new(&[1000.0, 1600.0, 1280.0], 0.002).explained(8);
        let gain = explained.gain.unwrap();
        // A disturbance of a whole run changes all of its parts.
        assert!((gain.predicted.mean - 1.25).abs() < 1e-6, "{gain:?}");
        let predicted = explained.predicted_ns;
        assert!((predicted.mean / 1600.0 - 1.0).abs() < 0.01, "{predicted:?}");
    }

    #[test]
    fn what_limits_nothing_that_was_seen_is_no_single_one() {
        // Something outside of all parts, such as memory, takes twice their time.
        struct Hidden(Simulated);
        impl PathSystem for Hidden {
            type Error = Infallible;
            fn run(&mut self, load: PathLoad) -> Result<Seen, Infallible> {
                let mut seen = self.0.run(load)?;
                seen.block_ns = seen.block_ns.max(3200.0 * (1.0 + 0.002 * self.0.random.normal()));
                Ok(seen)
            }
        }
        let parts: Vec<PathPart> = (0..3)
            .map(|at| PathPart { name: format!("part {at}"), threads: 1, can_be_left_out: true })
            .collect();
        let mut hidden = Hidden(Simulated::new(&[1000.0, 1600.0, 900.0], 0.002));
        let explained = explain(&mut hidden, &parts, |round| round < 8).unwrap();
        assert_eq!(explained.answer, LimitAnswer::NoSingle, "{explained:?}");
        assert_eq!(explained.gain, None);
    }

    #[test]
    fn two_equal_parts_are_a_tie_and_a_part_just_below_the_limit_is_none() {
        let tie = Simulated::new(&[1000.0, 1600.0, 1600.0], 0.005).explained(12);
        assert_eq!(tie.answer, LimitAnswer::CannotTell, "{tie:?}");
        // The slower one follows what is added to it by most of it: that is expected of it.
        let near = Simulated::new(&[1000.0, 1600.0, 1440.0], 0.005).explained(12);
        assert_eq!(near.answer, LimitAnswer::Limit(threads_of(1)), "{near:?}");
        assert!(near.slopes[2].slope.mean > 0.4, "{near:?}");
    }

    #[test]
    fn noise_is_answered_with_more_rounds_and_a_clear_limit_with_few() {
        let noisy = Simulated::new(&[1000.0, 1600.0, 1200.0], 0.3).explained(60);
        let clear = Simulated::new(&[1000.0, 1600.0, 900.0], 0.002).explained(40);
        for explained in [&noisy, &clear] {
            assert_eq!(explained.answer, LimitAnswer::Limit(threads_of(1)), "{explained:?}");
        }
        assert!(noisy.runs > clear.runs, "{} {}", noisy.runs, clear.runs);
    }

    #[test]
    fn a_limit_is_named_wrongly_in_fewer_than_one_of_a_hundred_noisy_paths() {
        let mut random = Random::new(3);
        let (mut right, mut wrong) = (0, 0);
        for seed in 0..200 {
            let mut needs: Vec<f64> = (0..4).map(|_| 1000.0 * random.uniform()).collect();
            let slow = seed % needs.len();
            needs[slow] = 1100.0 + 500.0 * random.uniform();
            let mut system = Simulated::new(&needs, 0.05);
            system.random = Random::new(seed as u64);
            match system.explained(12).answer {
                LimitAnswer::Limit(what) if what == threads_of(slow) => right += 1,
                LimitAnswer::CannotTell => {}
                _ => wrong += 1,
            }
        }
        assert!(wrong < 2 && right >= 180, "{right} right, {wrong} wrong");
    }

    #[test]
    fn threads_that_wait_for_one_another_are_limited_by_their_buffers() {
        let mut system = Simulated::new(&[1000.0, 1100.0, 1050.0], 0.005);
        system.lockstep = 0.7;
        let explained = system.explained(8);
        assert_eq!(explained.answer, LimitAnswer::Limit(What::Buffers), "{explained:?}");
        let gain = explained.gain.unwrap().tried.unwrap();
        assert!((gain.mean - 0.7 * 3150.0 / 1100.0).abs() < 0.05, "{gain:?}");
        // Beside a nearly used-up resource the limit cannot be told.
        let mut both = Simulated::new(&[1000.0, 1100.0, 1050.0], 0.005);
        both.lockstep = 0.42;
        assert_eq!(both.explained(8).answer, LimitAnswer::CannotTell);
        // A used-up resource is the limit for any gain of more buffers.
        let mut used_up = Simulated::new(&[1000.0, 1600.0, 900.0], 0.005);
        used_up.lockstep = 0.4;
        let explained = used_up.explained(8);
        assert_eq!(explained.answer, LimitAnswer::Limit(threads_of(1)));
        assert!((explained.more_buffers.mean - 1.0).abs() < 0.02);
    }

    #[test]
    fn buffers_are_to_hold_twice_what_was_due_while_there_was_no_room() {
        let enough = Simulated::new(&[1000.0, 1600.0, 900.0], 0.002).explained(8);
        assert_eq!(enough.room.wanted(8, 1.0), 8);
        assert_eq!(enough.room.watched_ns, MIN_ROUNDS as f64 * 1e6);
        let mut system = Simulated::new(&[1000.0, 1600.0, 900.0], 0.0);
        // At four fifths of the rate a block is due each 2 us: 100 in 200 us.
        system.no_room_ns = 200_000.0;
        let room = system.explained(8).room;
        assert!((room.every_ns - 2000.0).abs() < 1e-6, "{room:?}");
        assert_eq!(room.wanted(8, 1.0), 256);
        // Of four streams each has a fourth of it.
        assert_eq!(room.wanted(8, 4.0), 128);
    }

    #[test]
    fn fuller_rings_leave_less_of_the_rate_to_a_source_that_cannot_wait() {
        let share = |fullest: f64, then: u64| {
            let mut system = Simulated::new(&[1000.0, 1600.0, 900.0], 0.0);
            system.fullest = fullest;
            system.explained(8).room.share_without_loss(64, then)
        };
        assert_eq!(share(0.0, 64), 1.0);
        // Half full at four fifths: twice as full at nine tenths, which is all there is.
        assert!((share(0.5, 64) - 0.9).abs() < 1e-9);
        assert!((share(0.5, 128) - 0.95).abs() < 1e-9);
        assert!((share(1.0, 64) - SPARE).abs() < 1e-9);
        // As many blocks again were due while there was no room: half of the rate fills the ring
        // just so.
        assert!((share(2.0, 64) - SPARE / 2.0).abs() < 1e-6);
    }

    #[test]
    fn a_part_that_can_be_left_out_is_left_out_for_its_gain() {
        let explained = Simulated::new(&[1000.0, 1600.0, 1280.0], 0.002).explained(8);
        let tried = explained.gain.unwrap().tried.unwrap();
        assert!((tried.mean - 1.25).abs() < 0.01, "{tried:?}");
    }

    #[test]
    fn too_much_noise_gives_no_answer() {
        let explained = Simulated::new(&[1000.0, 1600.0, 900.0], 0.4).explained(3);
        assert_eq!(explained.answer, LimitAnswer::CannotTell, "{explained:?}");
    }

    #[test]
    fn the_fullest_ring_is_one_behind_the_source() {
        let thread = |element, name: &str| daqmeter_record::path::PathThread {
            name: name.to_owned(),
            element,
            ..Default::default()
        };
        let queue = |from: &str, seen: &[u64]| daqmeter_record::path::PathQueue {
            from: from.to_owned(),
            seen: seen.to_vec(),
            ..Default::default()
        };
        let mut run = PathRun {
            wall_ns: 1000,
            blocks: 10,
            threads: vec![thread(0, "memory"), thread(1, "copy")],
            queues: vec![queue("memory", &[7, 2, 1, 0, 0]), queue("copy", &[0, 0, 0, 0, 9])],
            ..PathRun::default()
        };
        assert_eq!(fullest(&run), 0.5);
        // Four blocks were due while there was no room.
        run.threads[0].no_room_ns = 400;
        assert_eq!(fullest(&run), 1.5);
    }

    #[test]
    fn one_of_ten_values_is_left_out() {
        assert_eq!(all_but(0.1, (0..20).map(f64::from).collect()), 17.0);
        assert_eq!(all_but(0.1, vec![3.0, 4.0]), 4.0);
    }
}
