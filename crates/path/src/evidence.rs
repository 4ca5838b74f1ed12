//! Inference of the resource that limits a path, from two kinds of evidence: the use of each while
//! the path goes as fast as it can, and the path's response to work added to each part. Each
//! resource in turn is assumed to be the limit, and the expected values are compared with the
//! observed ones. The best explanation is named if it is much likelier than all others.
//!
//! The slopes are weighed by each part's need. If every time in a path were longer by a factor, so
//! would be the whole. By Euler's theorem on homogeneous functions the sum of slope times need over
//! all parts is the time per block. The *contribution* of a part, its slope times its need over the
//! time per block, is therefore its share of the limit. It is 1 for the threads that limit; for
//! CPUs that parts share it is each part's share of their time. A part that needs little
//! contributes little, whatever its slope.

use daqmeter_record::resources::{MAX_USED, Resource, What};
use daqmeter_stats::trimmed_interval;

const CONFIDENCE: f64 = 0.95;
/// Half the width of an interval of that confidence, in standard deviations.
const WIDTH: f64 = 1.96;

/// A value with its interval (95 %).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Mean of the rounds, without a fifth at either end from five rounds on.
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// Interval of independent values; without ends for fewer than two.
    pub(crate) fn of(values: &[f64]) -> Interval {
        let interval = trimmed_interval(values, CONFIDENCE);
        let (mean, low, high) = interval.unwrap_or((f64::NAN, f64::NEG_INFINITY, f64::INFINITY));
        Interval { mean, low, high }
    }

    /// Divides by a share that is at most 1.
    pub(crate) fn over_share(self, share: Interval) -> Interval {
        let within = |share: f64| share.clamp(f64::MIN_POSITIVE, 1.0);
        Interval {
            mean: self.mean / within(share.mean),
            low: self.low / within(share.high),
            high: self.high / within(share.low),
        }
    }

    /// Standard deviation of a normal mean with an interval of this width: larger than that of the
    /// rounds if these are few.
    fn deviation(&self) -> f64 {
        (self.high - self.low) / 2.0 / WIDTH
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPart {
    pub name: String,
    pub threads: usize,
    pub can_be_left_out: bool,
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
    /// Least time per block that it allows, in nanoseconds, from runs with time to spare.
    pub least_ns: Interval,
}

impl Used {
    /// True if it would have worked more than all of its time: the estimate of its time per block
    /// was too high. It is not taken for a limit.
    pub fn is_refuted(&self) -> bool {
        self.what.is_estimated() && self.used.low > MAX_USED
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum LimitAnswer {
    /// This resource: it is used up, and the whole follows those elements that use it as this
    /// resource demands.
    Limit(What),
    /// None of them: no element moves the whole one for one, and no resource is used up.
    NoSingle,
    CannotTell,
}

pub(crate) struct Evidence<'a> {
    pub(crate) parts: &'a [PathPart],
    pub(crate) slopes: &'a [Slope],
    pub(crate) used: &'a [Used],
    /// In the order of `used`.
    pub(crate) resources: &'a [Resource],
    /// Time that was added to each part, as a share of the time per block of the path.
    pub(crate) share: f64,
}

/// Least use of a limit, and largest of any other resource: CPUs that threads share idle while one
/// wakes up.
pub(crate) const MIN_USED: f64 = 0.8;
/// Least use of an exhausted resource: without any other limit the path would gain less than a
/// fifth.
const USED_UP: f64 = 0.85;
/// Standard deviation of a use or a contribution beyond the noise of the rounds: added work fills
/// spare time first, and changes how often threads wake one another.
const NOISE: f64 = 0.1;
/// Log likelihood by which the best explanation leads any other: 150 to 1.
const SURE: f64 = 5.0;
/// Least share of what the limit demands by which the path follows added work.
const CONFIRMED: f64 = 0.5;

/// Log likelihood of a value seen `off` from the expected one, against the expected one.
fn against(off: f64, deviation: f64) -> f64 {
    (off / deviation.hypot(NOISE)).powi(2) / 2.0
}

impl Evidence<'_> {
    pub(crate) fn answer(&self) -> LimitAnswer {
        let mut all = Vec::new();
        // If no part moves the used-up resource, slopes are alike with it and without any limit.
        if !self.used.iter().any(|used| used.used.low.max(used.occupied.low - NOISE) > USED_UP) {
            all.push((None, self.slopes_against(&vec![0.0; self.slopes.len()])));
        }
        for (at, resource) in self.resources.iter().enumerate() {
            // A thread that has a CPU to itself and that CPU are one limit.
            let mut known = self.resources[..at].iter();
            let is_new = resource.what.follows_no_part()
                || known.all(|known| self.moves(known) != self.moves(resource));
            if is_new && resource.least_ns() > 0.0 {
                let used = self.occupied(at);
                let idle = against(1.0 - used.mean.min(1.0), used.deviation());
                all.push((Some(at), idle + self.slopes_against(&self.expected(at))));
            }
        }
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        let Some((best, least)) = all.first().copied() else {
            return LimitAnswer::CannotTell;
        };
        if all.get(1).is_some_and(|second| second.1 - least < SURE) {
            return LimitAnswer::CannotTell;
        }
        match best {
            Some(at) if self.occupied(at).high >= MIN_USED && self.is_followed(at) => {
                LimitAnswer::Limit(self.used[at].what.clone())
            }
            None if self.follows_no_part() => LimitAnswer::NoSingle,
            _ => LimitAnswer::CannotTell,
        }
    }

    fn moves(&self, resource: &Resource) -> Vec<f64> {
        let parts = self.parts.iter().enumerate();
        parts.map(|(element, part)| resource.slope(element, part.threads)).collect()
    }

    /// Slopes that a limit would show: a part that does not move it becomes the limit itself if it
    /// was nearly one before.
    fn expected(&self, limit: usize) -> Vec<f64> {
        let slope = |(element, own): (usize, f64)| {
            let others = self.resources.iter().zip(self.used).enumerate();
            let others = others.filter(|(at, _)| *at != limit);
            let after = others.map(|(_, (resource, used))| {
                let slope = resource.slope(element, self.parts[element].threads);
                used.used.mean.min(1.0) + self.share * slope
            });
            (after.fold(1.0 + self.share * own, f64::max) - 1.0) / self.share
        };
        self.moves(&self.resources[limit]).into_iter().enumerate().map(slope).collect()
    }

    /// Share of the time in which a resource takes no more. Threads that wait for a used-up CPU are
    /// not the limit: the CPU is.
    fn occupied(&self, at: usize) -> Interval {
        let Used { what, used, occupied, .. } = &self.used[at];
        let What::Threads { element, .. } = what else {
            return *used;
        };
        let mut all = self.resources.iter().zip(self.used);
        let waits_for_limit = all.any(|(resource, used)| {
            let is_cpu = matches!(resource.what, What::Cpu(_) | What::AllCpus);
            is_cpu && resource.uses.contains_key(element) && used.used.low > USED_UP
        });
        if waits_for_limit { *used } else { *occupied }
    }

    /// Need of a part of its own threads, as a share of the time per block.
    fn need(&self, part: usize) -> f64 {
        let mut all = self.used.iter();
        let own = all
            .find(|used| matches!(&used.what, What::Threads { element, .. } if *element == part));
        own.map_or(0.0, |used| used.used.mean.min(1.0))
    }

    fn slopes_against(&self, expected: &[f64]) -> f64 {
        let slopes = self.slopes.iter().zip(expected).enumerate();
        let one = slopes.map(|(part, (slope, expected))| {
            let need = self.need(part);
            let Slope { slope, .. } = slope;
            against(need * (slope.mean - expected), need * slope.deviation())
        });
        one.sum()
    }

    /// Checks that the path follows added work as this limit demands. Resources between two ends, a
    /// link and memory cannot be slowed: the path follows none of them.
    fn is_followed(&self, at: usize) -> bool {
        let (mut products, mut squares) = (0.0, 0.0);
        let moves = self.moves(&self.resources[at]);
        for (part, (slope, demanded)) in self.slopes.iter().zip(moves).enumerate() {
            let need = self.need(part);
            let weight = (need * slope.slope.deviation()).hypot(NOISE).powi(-2);
            products += weight * need * slope.slope.mean * need * demanded;
            squares += weight * (need * demanded).powi(2);
        }
        match squares > 0.0 {
            true => products / squares > CONFIRMED && products > WIDTH * squares.sqrt(),
            false => self.follows_no_part(),
        }
    }

    fn follows_no_part(&self) -> bool {
        self.slopes.iter().all(|slope| slope.slope.high < 1.0 - NOISE)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A part: its need and the time in which it waits for a CPU, as shares of the time per block,
    /// and its slope.
    type Row = (f64, f64, f64);

    fn around(mean: f64, half: f64) -> Interval {
        Interval { mean, low: mean - half, high: mean + half }
    }

    /// Answer for parts with a thread each on two CPUs, with slopes known to `half` either way.
    fn answer(rows: &[Row], half: f64) -> LimitAnswer {
        let name = |at: usize| format!("part {at}");
        let (mut resources, mut used) = (Vec::new(), Vec::new());
        let mut add = |what: What, capacity: f64, uses: BTreeMap<usize, f64>, waits: f64| {
            let share = uses.values().sum::<f64>() / capacity;
            used.push(Used {
                what: what.clone(),
                used: around(share, 0.01),
                occupied: around(share + waits, 0.01),
                least_ns: around(share, 0.01),
            });
            resources.push(Resource { what, capacity, uses, preempted_ns: waits });
        };
        for (element, (need, waits, _)) in rows.iter().enumerate() {
            let name = name(element);
            let what = What::Threads { element, name };
            add(what, 1.0, BTreeMap::from([(element, *need)]), *waits);
        }
        let all = rows.iter().enumerate().map(|(at, (need, ..))| (at, *need));
        add(What::AllCpus, 2.0, all.collect(), 0.0);
        let part = |at: usize| PathPart { name: name(at), threads: 1, can_be_left_out: true };
        let slope = |(at, (.., slope)): (usize, &Row)| Slope {
            name: name(at),
            slope: around(*slope, half),
        };
        let parts: Vec<PathPart> = (0..rows.len()).map(part).collect();
        let slopes: Vec<Slope> = rows.iter().enumerate().map(slope).collect();
        let evidence = Evidence {
            parts: &parts,
            slopes: &slopes,
            used: &used,
            resources: &resources,
            share: 0.2,
        };
        evidence.answer()
    }

    fn limit(answer: &LimitAnswer) -> Option<String> {
        match answer {
            LimitAnswer::Limit(what) => Some(what.text()),
            LimitAnswer::NoSingle | LimitAnswer::CannotTell => None,
        }
    }

    #[test]
    fn a_thread_that_others_keep_from_its_cpu_limits_where_the_path_follows_it_alone() {
        let rows = [
            (0.1, 0.1, 0.3),
            (0.1, 0.1, -0.2),
            (0.75, 0.22, 1.4),
            (0.1, 0.0, 0.2),
            (0.5, 0.1, 0.0),
        ];
        assert_eq!(limit(&answer(&rows, 0.3)).unwrap(), "part 2");
        assert_eq!(answer(&rows, 3.0), LimitAnswer::CannotTell);
    }

    #[test]
    fn cpus_limit_where_the_path_follows_all_that_take_much_of_them() {
        let rows = [
            (0.05, 0.1, 0.0),
            (0.55, 0.35, 0.5),
            (0.55, 0.35, 0.7),
            (0.55, 0.35, 0.35),
            (0.1, 0.1, 0.1),
        ];
        assert_eq!(limit(&answer(&rows, 0.25)).unwrap(), What::AllCpus.text());
        assert_eq!(answer(&rows, 3.0), LimitAnswer::CannotTell);
    }

    #[test]
    fn a_thread_that_waits_for_nothing_is_the_limit_beside_cpus_with_time_to_spare() {
        // As a path of three on two CPUs showed: slopes known to one, but one thread never waits.
        let rows = [(0.19, 0.02, 0.3), (0.93, 0.06, 1.3), (0.15, 0.0, 0.0)];
        assert_eq!(limit(&answer(&rows, 0.75)).unwrap(), "part 1");
        // A thread that waits for the next block now and then may have another limit.
        let rows = [(0.19, 0.02, 0.3), (0.83, 0.06, 1.3), (0.15, 0.0, 0.0)];
        assert_eq!(answer(&rows, 0.75), LimitAnswer::CannotTell);
    }

    #[test]
    fn what_is_used_up_needs_no_slopes_against_no_limit_at_all() {
        // As a path of five on two CPUs showed, with slopes known to a few tenths.
        let rows = [(0.04, 0.01, 0.35), (0.6, 0.2, 0.36), (0.6, 0.3, 0.25), (0.6, 0.2, 0.45)];
        assert_eq!(limit(&answer(&rows, 0.3)).unwrap(), What::AllCpus.text());
    }

    #[test]
    fn threads_that_wait_for_a_cpu_that_is_used_up_are_not_the_limit() {
        // As much work as two CPUs do; some of the threads never wait for a block.
        let rows = [
            (0.1, 0.0, 0.4),
            (0.62, 0.38, 0.75),
            (0.58, 0.4, 0.7),
            (0.6, 0.4, 0.65),
            (0.1, 0.0, 0.4),
        ];
        assert_eq!(limit(&answer(&rows, 0.1)).unwrap(), What::AllCpus.text());
    }

    #[test]
    fn a_part_that_needs_little_decides_nothing_by_a_steep_slope() {
        let rows = [(0.02, 0.0, 1.5), (0.98, 0.01, 1.0), (0.02, 0.0, -1.5)];
        assert_eq!(limit(&answer(&rows, 0.3)).unwrap(), "part 1");
    }
}
