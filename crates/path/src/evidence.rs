//! Which resource limits a path, from two kinds of evidence: how far each is used while the path goes as fast as it can, and how far the
//! path follows work that is added to each part. Each resource in turn is taken for the limit; what would have been seen then is
//! compared with what was seen, and the best explanation is named where it is much likelier than all others.
//!
//! The slopes are weighed by what each part needs. If every time in a path were longer by a factor, so would be the whole: by Euler's
//! theorem on homogeneous functions the sum of slope times need over all parts is the time per block. The *contribution* of a part,
//! its slope times its need over the time per block, is therefore its share of the limit: all of it for the threads that limit, and
//! for CPUs that parts share as much for each as it takes of them. A part that needs little contributes little, whatever its slope.

use daqmeter_record::resources::{MAX_USED, Resource, What};
use daqmeter_stats::trimmed_interval;

/// The confidence of each interval.
const CONFIDENCE: f64 = 0.95;
/// Half the width of an interval of that confidence, in standard deviations.
const WIDTH: f64 = 1.96;

/// A value with its interval (95 %).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean of the rounds, without the fifth at either end from five on.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Of independent values; without ends where there are fewer than two.
    pub(crate) fn of(values: &[f64]) -> Interval {
        let interval = trimmed_interval(values, CONFIDENCE);
        let (mean, low, high) = interval.unwrap_or((f64::NAN, f64::NEG_INFINITY, f64::INFINITY));
        Interval { mean, low, high }
    }

    /// Over a share that is at most 1.
    pub(crate) fn over_share(self, share: Interval) -> Interval {
        let within = |share: f64| share.clamp(f64::MIN_POSITIVE, 1.0);
        Interval {
            mean: self.mean / within(share.mean),
            low: self.low / within(share.high),
            high: self.high / within(share.low),
        }
    }

    /// Standard deviation of a normal mean whose interval is as wide: larger than the rounds' own where they are few.
    fn deviation(&self) -> f64 {
        (self.high - self.low) / 2.0 / WIDTH
    }
}

/// An element and how many threads share its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its threads.
    pub threads: usize,
    /// Whether the path can be run without its work.
    pub can_be_left_out: bool,
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
    /// The same, with the time in which its threads wait for a CPU: a thread that others keep from its CPU cannot take more blocks
    /// either (Neilson, Woodside et al., "Software bottlenecking in client-server systems", IEEE TSE 21(9), 1995).
    pub occupied: Interval,
    /// Time per block below which the path cannot come for it, from runs with time to spare, in nanoseconds.
    pub least_ns: Interval,
}

impl Used {
    /// Whether threads that work or wait for a CPU at all times: they neither wait for the next block nor for room.
    fn never_waits_for_blocks(&self) -> bool {
        matches!(self.what, What::Threads { .. }) && self.occupied.low > ALL_TIMES
    }

    /// Whether it would have worked more than all of its time: what it carries for a block is estimated, and was estimated too high.
    /// It is not taken for a limit.
    pub fn is_refuted(&self) -> bool {
        self.what.is_estimated() && self.used.low > MAX_USED
    }
}

/// What limits a path.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// This resource: it is used up, and the whole follows those elements that use it as this resource demands.
    Limit(What),
    /// None of them: no element moves the whole one for one, and no resource is used up.
    NoSingle,
    /// What was measured fits several, or none.
    CannotTell,
}

/// What was seen.
pub(crate) struct Evidence<'a> {
    pub(crate) parts: &'a [Part],
    /// One for each part.
    pub(crate) slopes: &'a [Slope],
    pub(crate) used: &'a [Used],
    /// In the order of `used`.
    pub(crate) resources: &'a [Resource],
    /// Time that was added to each part, as a share of the time per block of the path.
    pub(crate) share: f64,
}

/// How far slopes lie from what a limit makes of them, beyond their noise: work that is added to a thread with time to spare fills
/// that first, and changes how often threads wake one another.
const SLOPE_OFF: f64 = 0.1;
/// How far contributions do, as a share of the time per block, however little a part needs.
const CONTRIBUTION_OFF: f64 = 0.06;
/// By how much all slopes together are off, as a standard deviation: added arithmetic takes longer beside a busy neighbour.
const SCALE_OFF: f64 = 0.25;
/// A limit that is used less than all of its time is given slopes that are larger by as much, at most by this factor.
const MAX_STRETCH: f64 = 1.5;
/// How far below all of its time a limit is used, as a standard deviation: CPUs that threads share idle while one wakes up.
const USED_OFF: f64 = 0.1;
/// No resource that is used less than this is a limit.
pub(crate) const MIN_USED: f64 = 0.8;
/// A resource is nearly used up where its whole interval is above this: without any other limit the path would gain less than a fifth.
const NEARLY_USED_UP: f64 = 0.85;
/// Beside CPUs whose whole interval is above this a thread's wait for one does not make it the limit.
const CPU_USED_UP: f64 = 0.9;
/// Threads that are ready or at work for this share of the time wait for no block: what is left is within the noise of their clocks.
const ALL_TIMES: f64 = 0.95;
/// Of threads that work this share of the time, and wait for nothing but a CPU, more CPUs gain less than a sixth.
const WORKS: f64 = 0.86;
/// What one observation says against an explanation at most: one that was disturbed does not decide alone.
const MAX_AGAINST: f64 = 8.0;
/// By how much the log likelihood of the best explanation is larger than any other's: 150 to 1.
const SURE: f64 = 5.0;
/// What a good explanation has against it on average of its observations: two standard deviations.
const BAD: f64 = 2.0;
/// A path that follows what is added by less than this share of what the limit demands did not confirm it.
const CONFIRMED: f64 = 0.5;
/// Nor did one of which the whole interval is not above this share: it may follow nothing.
const FOLLOWS: f64 = 0.1;
/// An element whose whole interval is below this does not move the path one for one.
const NOT_ONE_FOR_ONE: f64 = 0.9;

/// What an observation says against an explanation, as a log likelihood, where it is so many standard deviations off.
fn against(off: f64) -> f64 {
    (off * off / 2.0).min(MAX_AGAINST)
}

/// What a part contributes to the time per block, as a share of it.
struct Contribution {
    seen: f64,
    expected: f64,
    deviation: f64,
}

/// The factor by which what was seen is that which was expected, drawn towards 1.
fn scale(all: &[Contribution]) -> f64 {
    let (mut products, mut squares) = (SCALE_OFF.powi(-2), SCALE_OFF.powi(-2));
    for of in all {
        let weight = of.deviation.powi(-2);
        products += weight * of.seen * of.expected;
        squares += weight * of.expected * of.expected;
    }
    products / squares
}

impl Evidence<'_> {
    pub(crate) fn answer(&self) -> Answer {
        let mut all: Vec<(Option<usize>, f64)> = Vec::new();
        if !self.is_one_used_up() {
            all.push((None, self.against_none()));
        }
        for (at, resource) in self.resources.iter().enumerate() {
            // A thread that has a CPU to itself and that CPU are one limit.
            let is_new = resource.what.follows_no_part()
                || self.resources[..at]
                    .iter()
                    .all(|known| self.moves(known) != self.moves(resource));
            if is_new && resource.least_ns() > 0.0 && !self.would_gain_little(at) {
                all.push((Some(at), self.against_limit(at)));
            }
        }
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        let observations = self.slopes.len() as f64 + 1.0;
        let is_good = all[0].1 <= BAD * observations;
        let is_sure = all.get(1).is_none_or(|second| second.1 - all[0].1 >= SURE);
        if !is_good || !is_sure {
            return Answer::CannotTell;
        }
        match all[0].0 {
            Some(at) if self.may_be_used_up(at) && self.is_confirmed(at) => {
                Answer::Limit(self.used[at].what.clone())
            }
            None if self.is_below() => Answer::NoSingle,
            _ => Answer::CannotTell,
        }
    }

    /// Whether a resource works nearly all of its time, or threads work or wait for a CPU all of it: without any other limit the path
    /// would be hardly faster. Where no part moves it, the slopes are the same with it and with no limit at all, and how far it is used
    /// decides.
    fn is_one_used_up(&self) -> bool {
        let is = |used: &Used| used.used.low > NEARLY_USED_UP || used.never_waits_for_blocks();
        self.used.iter().any(is)
    }

    /// Whether more CPUs would hardly make the path faster: threads that wait for nothing but a CPU work nearly all of the time
    /// themselves, and the path is never faster than their work.
    fn would_gain_little(&self, at: usize) -> bool {
        let is_cpu = matches!(self.used[at].what, What::Cpu(_) | What::AllCpus);
        let works = |used: &Used| used.never_waits_for_blocks() && used.used.mean > WORKS;
        is_cpu && self.used.iter().any(works)
    }

    /// How much each part moves a resource.
    fn moves(&self, resource: &Resource) -> Vec<f64> {
        let parts = self.parts.iter().enumerate();
        parts.map(|(element, part)| resource.slope(element, part.threads)).collect()
    }

    /// The slopes that a limit would show: a part that does not move it becomes the limit itself where it was nearly one before.
    fn expected(&self, limit: usize) -> Vec<f64> {
        let own = self.moves(&self.resources[limit]);
        let stretch = self.stretch(limit);
        let slope = |(element, own): (usize, &f64)| {
            let threads = self.parts[element].threads;
            let others = self.resources.iter().zip(self.used).enumerate();
            let others = others.filter(|(at, _)| *at != limit);
            let after = others.map(|(_, (resource, used))| {
                used.used.mean.min(1.0) + self.share * resource.slope(element, threads)
            });
            (after.fold(1.0 + self.share * own * stretch, f64::max) - 1.0) / self.share
        };
        own.iter().enumerate().map(slope).collect()
    }

    /// By which factor added work takes longer on a resource that limits: what keeps it from working all of its time, such as others
    /// on its CPU, grows with it.
    fn stretch(&self, limit: usize) -> f64 {
        let used = self.used[limit].used;
        let all = match self.used[limit].what {
            What::Threads { .. } => self.occupied(limit).mean.min(1.0),
            _ => 1.0,
        };
        (all / used.mean.max(f64::MIN_POSITIVE)).clamp(1.0, MAX_STRETCH)
    }

    /// Share of the time in which a resource takes no more. Threads that wait for a CPU that is used up itself are not the limit: the
    /// CPU is.
    fn occupied(&self, at: usize) -> Interval {
        let Used { what, used, occupied, .. } = &self.used[at];
        match what {
            What::Threads { element, .. } if !self.is_cpu_used_up(*element) => *occupied,
            _ => *used,
        }
    }

    /// Whether CPUs that an element works on are busy all of their time.
    fn is_cpu_used_up(&self, element: usize) -> bool {
        let mut all = self.resources.iter().zip(self.used);
        all.any(|(resource, used)| {
            let is_cpu = matches!(resource.what, What::Cpu(_) | What::AllCpus);
            is_cpu && resource.uses.contains_key(&element) && used.used.low > CPU_USED_UP
        })
    }

    /// What a part needs of its own threads, as a share of the time per block.
    fn need(&self, part: usize) -> f64 {
        let own = self
            .used
            .iter()
            .filter(|used| matches!(&used.what, What::Threads { element, .. } if *element == part));
        own.map(|used| used.used.mean.min(1.0)).fold(0.0, f64::max)
    }

    /// Of each part what it contributed, its standard deviation, and what would be expected with these slopes.
    fn contributions(&self, expected: &[f64]) -> Vec<Contribution> {
        let one = |(part, (slope, expected)): (usize, (&Slope, &f64))| {
            let need = self.need(part);
            Contribution {
                seen: need * slope.slope.mean,
                expected: need * expected,
                deviation: (need * self.deviation(slope)).hypot(CONTRIBUTION_OFF),
            }
        };
        let slopes = self.slopes.iter().zip(expected);
        slopes.enumerate().map(one).collect()
    }

    fn slopes_against(&self, expected: &[f64]) -> f64 {
        let all = self.contributions(expected);
        let scale = scale(&all);
        let one = |of: &Contribution| against((of.seen - scale * of.expected) / of.deviation);
        against((scale - 1.0) / SCALE_OFF) + all.iter().map(one).sum::<f64>()
    }

    fn deviation(&self, slope: &Slope) -> f64 {
        slope.slope.deviation().hypot(SLOPE_OFF)
    }

    fn against_limit(&self, at: usize) -> f64 {
        let used = self.occupied(at);
        let idle = 1.0 - used.mean.min(1.0);
        let used = against(idle / used.deviation().hypot(USED_OFF));
        used + self.slopes_against(&self.expected(at))
    }

    /// Against a limit that is none of the resources.
    fn against_none(&self) -> f64 {
        let used = self.used.iter().map(|used| used.used);
        let most = used.max_by(|a, b| a.mean.total_cmp(&b.mean));
        let used = most.map_or(0.0, |most| {
            let over = (most.mean - MIN_USED).max(0.0);
            against(over / most.deviation().hypot(USED_OFF))
        });
        used + self.slopes_against(&vec![0.0; self.slopes.len()])
    }

    /// Whether the path follows what is added as this limit demands, beyond noise. What lies between two ends, a link and memory
    /// cannot be slowed: there nothing may follow.
    fn is_confirmed(&self, at: usize) -> bool {
        let (mut products, mut squares) = (0.0, 0.0);
        for of in self.contributions(&self.moves(&self.resources[at])) {
            let weight = of.deviation.powi(-2);
            products += weight * of.seen * of.expected;
            squares += weight * of.expected * of.expected;
        }
        match squares > 0.0 {
            true => {
                let share = products / squares;
                share > CONFIRMED && share - WIDTH / squares.sqrt() > FOLLOWS
            }
            false => self.is_below(),
        }
    }

    fn may_be_used_up(&self, at: usize) -> bool {
        self.occupied(at).high >= MIN_USED
    }

    fn is_below(&self) -> bool {
        let mut slopes = self.slopes.iter();
        slopes.all(|slope| slope.slope.high < NOT_ONE_FOR_ONE)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A part: its need and the time in which it waits for a CPU, as shares of the time per block, and its slope.
    type Row = (f64, f64, f64);

    fn around(mean: f64, half: f64) -> Interval {
        Interval { mean, low: mean - half, high: mean + half }
    }

    /// What is answered of parts with a thread each on two CPUs, where slopes are known to so much either way.
    fn answer(rows: &[Row], half: f64) -> Answer {
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
        let part = |at: usize| Part { name: name(at), threads: 1, can_be_left_out: true };
        let slope = |(at, (.., slope)): (usize, &Row)| Slope {
            name: name(at),
            slope: around(*slope, half),
        };
        let parts: Vec<Part> = (0..rows.len()).map(part).collect();
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

    fn limit(answer: &Answer) -> Option<String> {
        match answer {
            Answer::Limit(what) => Some(what.text()),
            Answer::NoSingle | Answer::CannotTell => None,
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
        assert_eq!(answer(&rows, 3.0), Answer::CannotTell);
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
        assert_eq!(answer(&rows, 3.0), Answer::CannotTell);
    }

    #[test]
    fn a_thread_that_waits_for_nothing_is_the_limit_beside_cpus_with_time_to_spare() {
        // As a path of three on two CPUs showed: slopes known to one, but one thread never waits.
        let rows = [(0.19, 0.02, 0.3), (0.93, 0.06, 1.3), (0.15, 0.0, 0.0)];
        assert_eq!(limit(&answer(&rows, 0.75)).unwrap(), "part 1");
        // One that waits for the next block now and then may have another limit.
        let rows = [(0.19, 0.02, 0.3), (0.83, 0.06, 1.3), (0.15, 0.0, 0.0)];
        assert_eq!(answer(&rows, 0.75), Answer::CannotTell);
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
