//! The limit of a path, by slowing each element in turn (Coz, SOSP 2015, inverted). An element
//! slowed by a known time moves the whole by as much if it is the limit, and by nothing if it waits
//! for others.
//!
//! Four kinds of runs are interleaved: free, as fast as the path goes; with known work added to
//! each block of one element; with eight times as many buffers; and in another layout, if there is
//! one. Free runs give the *use* of each resource, slowed runs the *slope* of each element: the
//! time per block added to the whole over that added to the element. The resource that a block
//! needs most is the limit if its threads work or wait for a CPU nearly always, and if the slopes
//! confirm it with certainty; until then there are more rounds.

use daqmeter_record::RunRecord;
use daqmeter_record::path::{
    Interval, LimitFound, PathCost, PathLimit, PathOther, PathThread, PathUsed,
};
use daqmeter_record::resources::{Resource, What, resources};
use daqmeter_stats::{median, trimmed_interval};

use crate::definition::Path;
pub use crate::definition::PathPart;
use crate::engine::PathRequest;

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
    /// As fast as it goes with eight times as many blocks between two threads.
    Buffers,
    /// As fast as it goes in the other layout.
    Other,
}

impl PathLoad {
    /// Returns the request for such a run of its path; `other` is that in the other layout.
    pub fn of(
        self,
        mut request: PathRequest,
        path: &Path,
        other: Option<&PathRequest>,
    ) -> PathRequest {
        match self {
            PathLoad::Other => {
                let Some(other) = other else { return request };
                request.layout.clone_from(&other.layout);
                request.cpus.clone_from(&other.cpus);
            }
            PathLoad::Free => {}
            PathLoad::Slowed { element, ns } => request.slower.push((element as u64, ns)),
            PathLoad::Buffers => request.path = path.with_more_buffers(MORE_BUFFERS),
        }
        request
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub block_ns: f64,
    /// Needs of blocks, always of the same resources in the same order.
    pub resources: Vec<Resource>,
    pub longest_gap_ns: u64,
    /// Cycles per nanosecond of the CPUs at work; `None` without probes.
    pub clock_ghz: Option<f64>,
    /// CPU time of all threads for a block, and what of it are waits.
    pub cpu_ns: f64,
    pub wait_cpu_ns: f64,
    /// CPUs that the threads may use, and what other programs used of them on average: a
    /// difference of accounts in ticks, which is right for several runs.
    pub cpus: f64,
    pub others: f64,
    /// Share of its time that the thread waits for a CPU that waits most, and its name.
    pub waits_for_cpu: (f64, String),
    pub is_pinned: bool,
}

impl Seen {
    /// Results of a run; `None` if it carried no block, or for the record of something else. A CPU
    /// that one thread has to itself is no resource apart from that thread: no other uses its rest.
    pub fn of(record: &RunRecord) -> Option<Seen> {
        let run = record.sections.path.as_deref()?;
        let is_shared = |resource: &Resource| match resource.what {
            What::Cpu(cpu) => run.threads.iter().filter(|one| one.cpu == Some(cpu)).count() > 1,
            _ => true,
        };
        let mut resources = resources(record);
        if resources.is_empty() {
            return None;
        }
        resources.retain(is_shared);
        let blocks = run.blocks.max(1) as f64;
        let per_block = |of: fn(&PathThread) -> u64| {
            run.threads.iter().map(|thread| of(thread) as f64).sum::<f64>() / blocks
        };
        let waits = run.threads.iter().map(|thread| {
            let ns = thread.preempted_ns.unwrap_or(0);
            (ns as f64 / thread.wall_ns.max(1) as f64, thread.name.clone())
        });
        Some(Seen {
            cpu_ns: per_block(|thread| thread.cpu_ns),
            wait_cpu_ns: per_block(|thread| thread.cpu_ns.saturating_sub(thread.busy_ns)),
            cpus: run.cpus,
            others: others(record),
            waits_for_cpu: waits.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default(),
            is_pinned: run.threads.iter().any(|thread| thread.cpu.is_some()),
            block_ns: run.wall_ns as f64 / blocks,
            resources,
            longest_gap_ns: run.longest_gap_ns,
            clock_ghz: clock_ghz(record),
        })
    }
}

/// Returns the CPUs that other programs used of those that this one may use.
fn others(record: &RunRecord) -> f64 {
    let RunRecord { host, host_cpu, process_cpu, .. } = record;
    let busy = host_cpu.busy_by_cpu_ns.iter().filter(|(cpu, _)| host.allowed_cpus.contains(cpu));
    let busy_ns: f64 = busy.map(|(_, ns)| *ns as f64).sum();
    let own_ns = process_cpu.total_ns().saturating_add(host_cpu.peers_ns) as f64;
    (busy_ns - own_ns) / record.wall_ns.max(1) as f64
}

/// Returns the mean clock of a path's threads by their time at work.
fn clock_ghz(record: &RunRecord) -> Option<f64> {
    let threads = record.sections.path.iter().flat_map(|run| &run.threads);
    let (mut busy_ns, mut cycles) = (0.0, 0.0);
    for thread in threads.filter(|thread| thread.chain_ns > 0) {
        busy_ns += thread.busy_ns as f64;
        let ghz = record.clock.chain_cycles as f64 / f64::from(thread.chain_ns);
        cycles += thread.busy_ns as f64 * ghz;
    }
    (cycles > 0.0).then(|| cycles / busy_ns)
}

/// Interval of independent values; without ends if one is not finite.
fn interval(values: &[f64], confidence: f64) -> Interval {
    let interval = trimmed_interval(values, confidence);
    let (mean, low, high) = interval.unwrap_or((0.0, f64::MIN, f64::MAX));
    Interval { mean, low, high }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Slope {
    pub name: String,
    /// Time per block added to the whole over that added to the element.
    pub slope: Interval,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Used {
    pub what: What,
    /// Share of its time in which it works while the path goes as fast as it can.
    pub used: Interval,
    /// Use with the time in which its threads wait for a CPU: a thread that others keep from its
    /// CPU cannot take more blocks either (Neilson, Woodside et al., "Software bottlenecking in
    /// client-server systems", IEEE TSE 21(9), 1995).
    pub occupied: Interval,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub slopes: Vec<Slope>,
    pub resources: Vec<Used>,
    pub block_ns: Interval,
    /// The answer, as a record has it; without rates.
    pub limit: PathLimit,
}

/// Share of the time per block that is added: smaller ones were lost in the noise of short runs.
pub const SHARE: f64 = 0.2;
pub const MIN_ROUNDS: usize = 4;
const MORE_BUFFERS: usize = 8;
/// Free runs the median of which is the present rate.
const PRESENT: usize = 5;
/// Least use of a limit, with the time in which its threads wait for a CPU: hand-overs of blocks of
/// 16 KiB leave a thread of 9 us of work 16 % of its time (`benches/validate.rs`, seed 1).
const FULL: f64 = 0.8;
/// Use of the fullest resource below which none alone is the limit.
const NONE_FULL: f64 = 0.7;
/// Most that any other is used, as a share of that.
const CLEARLY: f64 = 0.95;
/// Slope of what the path does not follow: nearer to that of a part with time to spare than to 1.
const LITTLE: f64 = 0.5;
/// Least share of the CPUs that other programs use where they are the limit: without them a path
/// that is not [`FULL`] of its own work may be faster by as much.
const MIN_OTHERS: f64 = 1.0 - FULL;
/// Most that they use where it says something of the path that nothing is full.
const FEW_OTHERS: f64 = 0.05;
/// Least gain of another layout beside which the present one is the limit.
const MIN_GAIN: f64 = 1.1;
/// Least share of the time that a thread waits for its CPU, where its place or others are the
/// limit.
const MIN_WAIT: f64 = 0.15;
/// Confidence of the intervals.
const CONFIDENCE: f64 = 0.95;
/// Certainty that the path follows its limit. It is looked at after each round.
const CERTAINTY: f64 = 0.99;

/// Runs the path in all ways, round by round, until there is an answer or the caller wants no more
/// after [`MIN_ROUNDS`]. `other` is the name of the other layout.
pub fn explain<E>(
    mut run: impl FnMut(PathLoad) -> Result<Seen, E>,
    parts: &[PathPart],
    other: Option<&str>,
    wants_more: impl Fn(usize) -> bool,
) -> Result<Explanation, E> {
    let first = run(PathLoad::Free)?;
    let mut seen = Rounds {
        parts,
        other,
        free: vec![first],
        changed: (0..=parts.len() + usize::from(other.is_some())).map(|_| Vec::new()).collect(),
    };
    for round in 1.. {
        seen.round(&mut run, round as u64)?;
        if round < MIN_ROUNDS {
            continue;
        }
        let explained = seen.explained();
        let is_open = explained.limit.found == LimitFound::CannotTell;
        if !(is_open && wants_more(round)) {
            return Ok(explained);
        }
    }
    unreachable!("the rounds end above")
}

/// Returns the factor by which a changed path is faster, in runs that alternate with its own. `run`
/// returns the time of a byte, of the changed path if that is true.
pub fn alternately<E>(
    mut run: impl FnMut(bool) -> Result<f64, E>,
    pairs: usize,
) -> Result<Interval, E> {
    let mut gain = |pair: usize| {
        let is_changed = pair % 2 == 1;
        let (first, second) = (run(is_changed)?, run(!is_changed)?);
        Ok(if is_changed { second / first } else { first / second })
    };
    let gains: Vec<f64> = (0..pairs).map(&mut gain).collect::<Result<_, E>>()?;
    Ok(interval(&gains, CONFIDENCE))
}

/// A changed run between two free ones.
struct Changed {
    /// Place of the free run before it; the next is the one after it.
    before: usize,
    seen: Seen,
    added_ns: f64,
}

struct Rounds<'a> {
    parts: &'a [PathPart],
    other: Option<&'a str>,
    free: Vec<Seen>,
    /// Runs of each part slowed, then those with more buffers and in the other layout, by round.
    changed: Vec<Vec<Changed>>,
}

impl Rounds<'_> {
    fn round<E>(
        &mut self,
        run: &mut impl FnMut(PathLoad) -> Result<Seen, E>,
        seed: u64,
    ) -> Result<(), E> {
        let slowed = (0..self.parts.len()).map(|element| PathLoad::Slowed { element, ns: 0.0 });
        let other = self.other.map(|_| PathLoad::Other);
        let loads = slowed.chain([PathLoad::Buffers]).chain(other).enumerate().collect();
        for (_, (at, mut load)) in daqmeter_harness::ordered(loads, seed) {
            let added_ns = SHARE * self.present_ns();
            if let PathLoad::Slowed { element, ns } = &mut load {
                // Threads that share the blocks share the work, too.
                *ns = added_ns * self.parts[*element].threads as f64;
            }
            let changed = Changed { before: self.free.len() - 1, seen: run(load)?, added_ns };
            self.free.push(run(PathLoad::Free)?);
            self.changed[at].push(changed);
        }
        Ok(())
    }

    fn present_ns(&self) -> f64 {
        middle(self.free.iter().rev().take(PRESENT).map(|seen| seen.block_ns))
    }

    /// Time per block of each run at the clock of the first, if that is steadier from one free run
    /// to the next: work follows the clock, and waits do not.
    fn steadier(&self) -> fn(&Seen, &Seen) -> f64 {
        let plain: fn(&Seen, &Seen) -> f64 = |seen, _| seen.block_ns;
        let at_first: fn(&Seen, &Seen) -> f64 = |seen, first| {
            let clocks = seen.clock_ghz.zip(first.clock_ghz);
            seen.block_ns * clocks.map_or(1.0, |(own, first)| own / first)
        };
        let scatter = |of: fn(&Seen, &Seen) -> f64| {
            let times: Vec<f64> = self.free.iter().map(|seen| of(seen, &self.free[0])).collect();
            middle(times.windows(2).map(|pair| (pair[1] / pair[0]).ln().abs()))
        };
        if scatter(at_first) < scatter(plain) { at_first } else { plain }
    }

    /// Slopes of each part, and gains of more buffers and of the other layout, by round.
    fn effects(&self) -> (Vec<Vec<f64>>, [Vec<f64>; 2]) {
        let of = self.steadier();
        let time = |seen: &Seen| of(seen, &self.free[0]);
        let beside = |changed: &Changed| {
            let at = changed.before;
            f64::midpoint(time(&self.free[at]), time(&self.free[at + 1]))
        };
        let slope = |changed: &Changed| (time(&changed.seen) - beside(changed)) / changed.added_ns;
        let (slowed, others) = self.changed.split_at(self.parts.len());
        let slopes = slowed.iter().map(|all| all.iter().map(slope).collect());
        let gain = |changed: &Changed| beside(changed) / time(&changed.seen);
        let gains = |at| others.get(at).into_iter().flatten().map(gain).collect();
        (slopes.collect(), [0, 1].map(gains))
    }

    /// Runs in the other layout.
    fn in_other(&self) -> &[Changed] {
        self.changed.get(self.parts.len() + 1).map_or(&[], Vec::as_slice)
    }

    fn explained(&self) -> Explanation {
        let slope = |(part, slopes): (&PathPart, &Vec<f64>)| Slope {
            name: part.name.clone(),
            slope: interval(slopes, CONFIDENCE),
        };
        let resources = self.used();
        let (slopes, gains) = self.effects();
        let [more_buffers, faster] = gains.map(|gains| interval(&gains, CONFIDENCE));
        let other = self.other.map(|layout| self.beside(layout, faster));
        let taken = self.is_beside_others() && resources.iter().all(|one| one.used.mean < FULL);
        let found = match self.layout_limit(other.as_ref()) {
            Some(placed @ LimitFound::Limit(What::Placement)) => placed,
            _ if taken => LimitFound::Limit(What::OtherPrograms),
            Some(found) => found,
            None => self.answer(&slopes, &resources, more_buffers),
        };
        let largest = resources.iter().map(|one| one.used.mean).fold(0.0, f64::max);
        let is_its = |one: &Used| match &found {
            LimitFound::Limit(What::OtherPrograms) => one.used.mean >= largest,
            found => *found == LimitFound::Limit(one.what.clone()),
        };
        let at = resources.iter().position(is_its);
        let used = at.map(|at| &resources[at]).map(|own| PathUsed {
            works: own.used,
            waits_for_cpu: match own.what {
                What::Threads { .. } => own.occupied.mean - own.used.mean,
                _ => 0.0,
            },
        });
        let runs = self.free.len() + self.changed.iter().map(Vec::len).sum::<usize>();
        let limit = PathLimit {
            runs: runs as u64,
            used,
            gain: Some(more_buffers),
            costs: at.map_or(Vec::new(), |at| self.costs(at)),
            tried: Vec::new(),
            change: None,
            others: self.others().max(0.0),
            longest_gap_ns: self.free.iter().map(|seen| seen.longest_gap_ns).max().unwrap_or(0),
            found,
            other,
            carries_bytes_per_s: 0.0,
            rate_bytes_per_s: None,
        };
        let slopes = self.parts.iter().zip(&slopes).map(slope).collect();
        let block_ns = each(&self.free, |seen| seen.block_ns);
        Explanation { slopes, resources, block_ns, limit }
    }

    /// Share of the CPUs that other programs used in all free runs.
    fn others(&self) -> f64 {
        let sum = |of: fn(&Seen) -> f64| self.free.iter().map(of).sum::<f64>();
        sum(|seen| seen.others) / sum(|seen| seen.cpus).max(1.0)
    }

    /// Tests if other programs have much of the CPUs, and these do not idle, or a thread waits for
    /// one.
    fn is_beside_others(&self) -> bool {
        let free = |of: fn(&Seen) -> f64| middle(self.free.iter().map(of));
        let own = free(|seen| seen.cpu_ns / (seen.block_ns * seen.cpus.max(1.0)));
        let others = self.others();
        others > MIN_OTHERS && (own + others > FULL || free(|seen| seen.waits_for_cpu.0) > MIN_WAIT)
    }

    /// Returns the limit if the other layout is faster although the work leaves time in this one.
    fn layout_limit(&self, other: Option<&PathOther>) -> Option<LimitFound> {
        let other = other.filter(|other| other.gain.mean > MIN_GAIN && self.leaves_time())?;
        let is_placed = self.free.iter().all(|seen| seen.is_pinned)
            && other.waits_for_cpu > MIN_WAIT.max(other.ns / self.present_ns());
        Some(match (other.gain.low > MIN_GAIN, is_placed) {
            (false, _) => LimitFound::CannotTell,
            (true, true) => LimitFound::Limit(What::Placement),
            (true, false) => LimitFound::Limit(What::HandOver),
        })
    }

    /// Work of each element for a resource of threads or CPUs, the largest first.
    fn costs(&self, at: usize) -> Vec<PathCost> {
        let Resource { what, uses, .. } = &self.free[0].resources[at];
        let in_run = |seen: &Seen, element: &usize| seen.resources[at].uses.get(element).copied();
        let ns =
            |element: &usize| middle(self.free.iter().filter_map(|seen| in_run(seen, element)));
        let sum_ns = uses.keys().map(ns).sum::<f64>().max(f64::MIN_POSITIVE);
        let cost = |element: &usize| PathCost {
            name: self.parts[*element].name.clone(),
            share: ns(element) / sum_ns,
            bytes_per_s: self.parts[*element].bytes as f64 / ns(element).max(1.0) * 1e9,
            limit_bytes_per_s: self.parts[*element].limit_bytes_per_s,
        };
        let uses = uses.keys().filter(|_| !what.follows_no_part());
        let mut all: Vec<PathCost> = uses.map(cost).collect();
        all.sort_by(|a, b| b.share.total_cmp(&a.share));
        all
    }

    /// CPU time of a block beyond that in the other layout.
    fn beside(&self, layout: &str, gain: Interval) -> PathOther {
        let free = |of: fn(&Seen) -> f64| middle(self.free.iter().map(of));
        let other_ns = middle(self.in_other().iter().map(|other| other.seen.cpu_ns));
        let ns = (free(|seen| seen.cpu_ns) - other_ns).max(0.0);
        let wake_ns = free(|seen| seen.wait_cpu_ns);
        let ghz = self.free.iter().find_map(|seen| seen.clock_ghz);
        PathOther {
            layout: layout.to_owned(),
            gain,
            ns,
            cycles: ghz.map(|ghz| ghz * ns),
            wake_up: (wake_ns / ns.max(f64::MIN_POSITIVE)).min(1.0),
            waits_for_cpu: free(|seen| seen.waits_for_cpu.0),
            waits: self.free[0].waits_for_cpu.1.clone(),
        }
    }

    /// Tests if the work alone, as the other layout does it, leaves time in the present one:
    /// neither a part nor the CPUs are full of it.
    fn leaves_time(&self) -> bool {
        let most_ns = |other: &Changed| {
            let parts = self.parts.iter().enumerate();
            let part =
                parts.map(|(at, part)| work_ns(&other.seen, at) / part.threads.max(1) as f64);
            part.fold(other.seen.cpu_ns / self.free[0].cpus.max(1.0), f64::max)
        };
        middle(self.in_other().iter().map(most_ns)) < FULL * self.present_ns()
    }

    fn used(&self) -> Vec<Used> {
        let used = |(at, resource): (usize, &Resource)| Used {
            what: resource.what.clone(),
            used: each(&self.free, |seen| seen.resources[at].least_ns() / seen.block_ns),
            occupied: each(&self.free, |seen| {
                seen.resources[at].least_beside_others_ns() / seen.block_ns
            }),
        };
        self.free[0].resources.iter().enumerate().map(used).collect()
    }

    /// Answers with the threads or CPUs that a block needs more than any other, if these work or
    /// wait for a CPU nearly always and the path follows them; with a link, if it follows nothing.
    /// The need decides: of three threads on two CPUs each may wait longer than these are used.
    fn answer(&self, slopes: &[Vec<f64>], used: &[Used], more_buffers: Interval) -> LimitFound {
        let most = |of: fn(&Used) -> f64| used.iter().map(of).fold(0.0, f64::max);
        if most(|one| one.occupied.high) < NONE_FULL && self.others() < FEW_OTHERS {
            return match more_buffers.low > 1.0 {
                true => LimitFound::Limit(What::Buffers),
                false => LimitFound::NoSingleOne,
            };
        }
        let least = CLEARLY * most(|one| one.used.low);
        let mut largest: Vec<usize> =
            (0..used.len()).filter(|at| used[*at].used.high >= least).collect();
        largest.sort_by(|a, b| used[*b].used.mean.total_cmp(&used[*a].used.mean));
        // Of those that the path would follow alike the most used one.
        largest.dedup_by(|next, first| are_alike(&self.moves(*next), &self.moves(*first)));
        let mut found = Vec::new();
        for at in largest {
            match self.agrees(at, slopes) {
                None => return LimitFound::CannotTell,
                Some(agrees) => found.extend(agrees.then_some(&used[at])),
            }
        }
        match found[..] {
            [own] if own.occupied.low >= FULL => LimitFound::Limit(own.what.clone()),
            _ => LimitFound::CannotTell,
        }
    }

    /// Tests if the path follows work that is added to the users of threads or CPUs, or does not
    /// follow those of a link; `None` as long as the rounds do not show it. Threads take more
    /// blocks at once when their CPU is short, so that slopes need not be those of a sum.
    fn agrees(&self, at: usize, slopes: &[Vec<f64>]) -> Option<bool> {
        let Resource { what, uses, .. } = &self.free[0].resources[at];
        let sum_ns: f64 = uses.values().sum();
        let one = |round: usize| {
            let each = uses.iter().map(|(&element, ns)| ns / sum_ns * slopes[element][round]);
            each.sum::<f64>()
        };
        let rounds: Vec<f64> = (0..self.changed[0].len()).map(one).collect();
        let slope = interval(&rounds, CERTAINTY);
        let is_known = slope.low > 0.0 || slope.high < LITTLE;
        is_known.then(|| (slope.low > 0.0) != what.follows_no_part())
    }

    fn moves(&self, at: usize) -> Vec<f64> {
        let parts = self.parts.iter().enumerate();
        let resource = &self.free[0].resources[at];
        parts.map(|(element, part)| resource.slope(element, part.threads)).collect()
    }
}

/// Tests if a path follows its parts in the same way, but for a few per cent of stolen CPU time.
fn are_alike(one: &[f64], other: &[f64]) -> bool {
    one.iter().zip(other).all(|(one, other)| (one - other).abs() <= 0.05 * one.max(*other))
}

/// Work of a part on a block.
fn work_ns(seen: &Seen, part: usize) -> f64 {
    let threads = seen.resources.iter().filter(|one| matches!(one.what, What::Threads { .. }));
    threads.filter_map(|one| one.uses.get(&part)).sum()
}

/// Median of runs that were made, whose times are finite.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(&values.collect::<Vec<_>>()).expect("finite values of runs")
}

fn each(runs: &[Seen], of: impl Fn(&Seen) -> f64) -> Interval {
    let values: Vec<f64> = runs.iter().map(of).collect();
    interval(&values, CONFIDENCE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use daqmeter_record::path::LinkBy;
    use daqmeter_record::resources::bottleneck;
    use daqmeter_stats::Random;

    use super::*;

    /// Parts in line with a CPU each, or on shared CPUs; noise as a share of the time per block,
    /// and a host that slows down.
    struct Simulated {
        needs_ns: Vec<f64>,
        threads: Vec<usize>,
        cpus: Option<f64>,
        link_ns: f64,
        /// Time per block of something that is no resource.
        hidden_ns: f64,
        noise: f64,
        drift: f64,
        /// Share of the sum of all needs that a block takes with few buffers.
        lockstep: f64,
        /// Clocks of the CPUs, drawn for each run.
        clocks_ghz: Vec<f64>,
        /// Share of its time that a pinned thread waits for its CPU, in a path that has another
        /// layout: that shares all work among two CPUs.
        other: Option<f64>,
        /// CPUs that other programs use, for which its threads wait, which are not pinned.
        others: f64,
        random: Random,
        runs: u32,
    }

    impl Simulated {
        fn new(needs_ns: &[f64], noise: f64) -> Simulated {
            Simulated {
                needs_ns: needs_ns.to_vec(),
                threads: vec![1; needs_ns.len()],
                cpus: None,
                link_ns: 0.0,
                hidden_ns: 0.0,
                noise,
                drift: 0.0,
                lockstep: 0.0,
                clocks_ghz: vec![1.0],
                other: None,
                others: 0.0,
                random: Random::new(7),
                runs: 0,
            }
        }

        fn explained(mut self, rounds: usize) -> Explanation {
            let part = |(at, &threads): (usize, &usize)| PathPart {
                name: format!("part {at}"),
                threads,
                ..PathPart::default()
            };
            let parts: Vec<PathPart> = self.threads.iter().enumerate().map(part).collect();
            let other = self.other.map(|_| "fused");
            let Ok(explained) =
                explain(|load| self.run(load), &parts, other, |round| round < rounds);
            explained
        }

        fn answer(self) -> LimitFound {
            self.explained(8).limit.found
        }

        fn resources(&self, needs: &[f64]) -> Vec<Resource> {
            let resource =
                |what, capacity, uses| Resource { what, capacity, uses, preempted_ns: 0.0 };
            let row = |(element, (&ns, &threads)): (usize, (&f64, &usize))| {
                resource(threads_of(element), threads as f64, BTreeMap::from([(element, ns)]))
            };
            let mut all: Vec<Resource> =
                needs.iter().zip(&self.threads).enumerate().map(row).collect();
            let uses = needs.iter().copied().enumerate().collect();
            all.extend(self.cpus.map(|capacity| resource(What::AllCpus, capacity, uses)));
            all.push(resource(link(), 1.0, BTreeMap::from([(0, self.link_ns)])));
            all
        }
    }

    fn threads_of(element: usize) -> What {
        What::Threads { element, name: format!("part {element}") }
    }

    fn link() -> What {
        What::Link { element: 0, name: "PCIe".to_owned(), by: LinkBy::Sysfs }
    }

    fn limit(element: usize) -> LimitFound {
        LimitFound::Limit(threads_of(element))
    }

    impl Simulated {
        fn run(&mut self, load: PathLoad) -> Result<Seen, Infallible> {
            self.runs += 1;
            let drift = 1.0 + self.drift * f64::from(self.runs);
            let noise = 1.0 + self.noise * self.random.normal();
            self.random.shuffle(&mut self.clocks_ghz);
            let ghz = self.clocks_ghz[0];
            let factor = drift * noise / ghz;
            let mut needs: Vec<f64> = self.needs_ns.iter().map(|ns| ns * factor).collect();
            if let PathLoad::Slowed { element, ns } = load {
                needs[element] += ns / ghz;
            }
            let resources = self.resources(&needs);
            let (_, least_ns) = bottleneck(&resources).unwrap();
            let lockstep = if load == PathLoad::Buffers { 0.0 } else { self.lockstep };
            let block_ns = least_ns.max(lockstep * needs.iter().sum::<f64>());
            let mut block_ns = block_ns.max(self.hidden_ns * noise);
            let mut cpu_ns = needs.iter().sum::<f64>();
            match load {
                PathLoad::Other => block_ns = cpu_ns / 2.0,
                _ => cpu_ns *= 1.5,
            }
            Ok(Seen {
                block_ns,
                resources,
                clock_ghz: Some(ghz),
                cpu_ns,
                cpus: 2.0,
                others: self.others,
                wait_cpu_ns: cpu_ns / 12.0,
                waits_for_cpu: (self.other.unwrap_or(0.0), "part 1".to_owned()),
                is_pinned: self.others == 0.0 && self.other.is_some_and(|waits| waits > 0.0),
                ..Seen::default()
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
            assert_eq!(explained.limit.found, limit(slow), "{explained:?}");
            let slope = explained.slopes[slow].slope;
            assert!(slope.low < 1.0 && 1.0 < slope.high + 0.1, "{slope:?}");
        }
    }

    #[test]
    fn steps_of_the_clock_are_not_in_the_slopes() {
        let mut system = Simulated::new(&[1000.0, 1600.0, 900.0], 0.002);
        system.clocks_ghz = vec![1.0, 1.05, 1.17];
        let explained = system.explained(MIN_ROUNDS);
        assert_eq!(explained.limit.found, limit(1));
        assert!(explained.slopes[0].slope.high < 0.1, "{:?}", explained.slopes);
    }

    #[test]
    fn each_kind_of_limit_is_named_and_what_is_no_resource_is_no_single_one() {
        let quiet = |needs: &[f64]| Simulated::new(needs, 0.005);
        let buffers = LimitFound::Limit(What::Buffers);
        let three = [1000.0, 1600.0, 900.0];
        let alike = [1000.0, 1100.0, 1050.0];
        for (system, wanted) in [
            (Simulated { threads: vec![1, 3, 1], ..quiet(&[1000.0, 4800.0, 900.0]) }, limit(1)),
            (Simulated { link_ns: 2000.0, ..quiet(&three) }, LimitFound::Limit(link())),
            (Simulated { link_ns: 800.0, ..quiet(&three) }, limit(1)),
            (Simulated { hidden_ns: 3200.0, ..quiet(&three) }, LimitFound::NoSingleOne),
            (Simulated { lockstep: 0.7, ..quiet(&alike) }, buffers),
            // A resource that is used up is the limit for any gain of more buffers.
            (Simulated { lockstep: 0.4, ..quiet(&three) }, limit(1)),
            // Two equal parts are a tie, and a part just below the limit is none.
            (quiet(&[1000.0, 1600.0, 1600.0]), LimitFound::CannotTell),
            (quiet(&[1000.0, 1600.0, 1440.0]), limit(1)),
            (Simulated::new(&three, 0.4), LimitFound::CannotTell),
        ] {
            assert_eq!(system.answer(), wanted);
        }
    }

    #[test]
    fn hand_over_and_placement_are_named_where_the_work_leaves_time_and_another_layout_is_faster() {
        let system = |needs: &[f64], hidden_ns, waits| Simulated {
            hidden_ns,
            other: Some(waits),
            ..Simulated::new(needs, 0.005)
        };
        let explained = system(&[1000.0; 3], 3200.0, 0.0).explained(8);
        assert_eq!(explained.limit.found, LimitFound::Limit(What::HandOver));
        let hand_over = explained.limit.other.unwrap();
        let gain = hand_over.gain;
        assert!((gain.mean / (3200.0 / 1500.0) - 1.0).abs() < 0.02, "{gain:?}");
        // Half of 3000 ns, of which a quarter waits.
        assert!((hand_over.ns / 1500.0 - 1.0).abs() < 0.02, "{hand_over:?}");
        assert!((hand_over.wake_up - 0.25).abs() < 0.02 && hand_over.cycles.is_some());
        let placed = system(&[1000.0; 3], 3200.0, 0.6).answer();
        assert_eq!(placed, LimitFound::Limit(What::Placement));
        // Regression: beside four programs that spin, 7 of 12 answers were "hand-over".
        let held_up = Simulated { others: 0.9, ..system(&[1000.0; 3], 6000.0, 0.5) };
        let explained = held_up.explained(8);
        assert_eq!(explained.limit.found, LimitFound::Limit(What::OtherPrograms));
        assert!((explained.limit.others - 0.45).abs() < 1e-9);
        // A part that is always at work is the limit, however much faster two of it are.
        let explained = system(&[1000.0, 2900.0, 1000.0], 0.0, 0.0).explained(8);
        assert!(explained.limit.found == limit(1) && explained.limit.other.unwrap().gain.low > 1.1);
    }

    #[test]
    fn parts_that_share_cpus_are_limited_by_them() {
        let mut system = Simulated::new(&[1000.0; 4], 0.005);
        system.cpus = Some(2.0);
        let explained = system.explained(8);
        assert_eq!(explained.limit.found, LimitFound::Limit(What::AllCpus), "{explained:?}");
    }

    /// Explains a path of one thread a part, with these slopes. Resources have their uses, and the
    /// waits of their threads for a CPU, as shares of the time per block.
    fn measured(slopes: &[f64], resources: &[(What, f64, &[f64], f64)]) -> PathLimit {
        let mut random = Random::new(11);
        let parts: Vec<PathPart> =
            slopes.iter().map(|_| PathPart { threads: 1, ..PathPart::default() }).collect();
        let run = |load| {
            let block_ns = 8900.0 * (1.0 + 0.02 * random.normal());
            let resource = |(what, capacity, uses, waits): &(What, f64, &[f64], f64)| Resource {
                what: what.clone(),
                capacity: *capacity,
                uses: uses
                    .iter()
                    .map(|share| share * block_ns)
                    .enumerate()
                    .filter(|(_, ns)| *ns > 0.0)
                    .collect(),
                preempted_ns: waits * block_ns,
            };
            let added_ns = match load {
                PathLoad::Slowed { element, ns } => slopes[element] * ns,
                _ => 0.0,
            };
            Ok::<_, Infallible>(Seen {
                block_ns: block_ns + added_ns,
                resources: resources.iter().map(resource).collect(),
                longest_gap_ns: 7,
                ..Seen::default()
            })
        };
        let Ok(explained) = explain(run, &parts, None, |round| round < 12);
        explained.limit
    }

    /// `memory` and `tcp out` on CPU 0, `tcp in` and `read` on CPU 1, in blocks of 1 KiB: measured
    /// slopes and uses, of which none fits a sum.
    #[test]
    fn a_cpu_that_never_idles_is_the_limit_if_the_path_follows_what_uses_it() {
        let found = |slopes: [f64; 3], used: f64| {
            let first = (What::Cpu(0), 1.0, &[0.1, used - 0.1, 0.0][..], 0.0);
            let limit = measured(&slopes, &[first, (What::Cpu(1), 1.0, &[0.0, 0.6, 0.33], 0.0)]);
            assert_eq!(limit.longest_gap_ns, 7);
            limit.found
        };
        assert_eq!(found([0.2, 2.1, 0.46], 0.997), LimitFound::Limit(What::Cpu(0)));
        // One that spins is full, too, but nothing follows it.
        assert_ne!(found([0.0, 0.0, 1.0], 0.997), LimitFound::Limit(What::Cpu(0)));
        assert_ne!(found([0.2, 2.1, 0.46], 0.93), LimitFound::Limit(What::Cpu(0)));
    }

    /// Regression: measured uses of three stages of work on two CPUs. The second works or waits for
    /// a CPU longer than the CPUs are used, and was named.
    #[test]
    fn threads_that_wait_for_one_another_s_cpus_are_limited_by_them() {
        let work = |element, uses, waits| (threads_of(element), 1.0, uses, waits);
        let limit = measured(
            &[0.21, 0.52, 0.36],
            &[
                work(0, &[0.53][..], 0.15),
                work(1, &[0.0, 0.53], 0.38),
                work(2, &[0.0, 0.0, 0.53], 0.23),
                (What::AllCpus, 2.0, &[0.53; 3], 0.76),
            ],
        );
        assert_eq!(limit.found, LimitFound::Limit(What::AllCpus));
        let shares = limit.costs.iter().map(|cost| (cost.share - 1.0 / 3.0).abs());
        assert!(limit.costs.len() == 3 && shares.fold(0.0, f64::max) < 0.01, "{:?}", limit.costs);
    }

    #[test]
    fn noise_is_answered_with_more_rounds_and_a_clear_limit_with_few() {
        let noisy = Simulated::new(&[1000.0, 1600.0, 1200.0], 0.1).explained(60);
        let clear = Simulated::new(&[1000.0, 1600.0, 900.0], 0.002).explained(40);
        assert_eq!((&noisy.limit.found, &clear.limit.found), (&limit(1), &limit(1)));
        assert!(noisy.limit.runs > clear.limit.runs, "{} {}", noisy.limit.runs, clear.limit.runs);
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
            match system.explained(12).limit.found {
                found if found == limit(slow) => right += 1,
                LimitFound::CannotTell => {}
                _ => wrong += 1,
            }
        }
        assert!(wrong < 2 && right >= 180, "{right} right, {wrong} wrong");
    }
}
