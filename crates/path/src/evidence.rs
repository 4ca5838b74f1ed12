//! Which resource limits a path, from two kinds of evidence: how far each is used while the path goes as fast as it can, and how far the
//! path follows work that is added to each part. Each resource in turn is taken for the limit; what would have been seen then is
//! compared with what was seen, and the best explanation is named where it is much likelier than all others.

use daqmeter_record::resources::{Resource, What};
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
    /// Time per block below which the path cannot come for it, from runs with time to spare, in nanoseconds.
    pub least_ns: Interval,
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

/// How far slopes lie from what a limit makes of them, beyond their noise: added arithmetic takes longer beside a busy neighbour, and
/// changes how often threads wake one another.
const SLOPE_OFF: f64 = 0.15;
/// How far below all of its time a limit is used, as a standard deviation: CPUs that threads share idle while one wakes up.
const USED_OFF: f64 = 0.1;
/// No resource that is used less than this is a limit.
pub(crate) const MIN_USED: f64 = 0.8;
/// A resource that no part moves is used up where its whole interval is above this.
const USED_UP: f64 = 0.9;
/// What one observation says against an explanation at most: one that was disturbed does not decide alone.
const MAX_AGAINST: f64 = 8.0;
/// By how much the log likelihood of the best explanation is larger than any other's: 150 to 1.
const SURE: f64 = 5.0;
/// What a good explanation has against it on average of its observations: two standard deviations.
const BAD: f64 = 2.0;
/// A path that follows what is added by less than this share of what the limit demands did not confirm it.
const CONFIRMED: f64 = 0.4;
/// An element whose whole interval is below this does not move the path one for one.
const NOT_ONE_FOR_ONE: f64 = 0.9;

/// What an observation says against an explanation, as a log likelihood, where it is so many standard deviations off.
fn against(off: f64) -> f64 {
    (off * off / 2.0).min(MAX_AGAINST)
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
            if is_new && resource.least_ns() > 0.0 {
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
            Some(at) if self.is_confirmed(at) => Answer::Limit(self.used[at].what.clone()),
            None if self.is_below() => Answer::NoSingle,
            _ => Answer::CannotTell,
        }
    }

    /// Whether a resource that no part moves works all of its time: the slopes are the same with it and with no limit at all, and how
    /// far it is used decides.
    fn is_one_used_up(&self) -> bool {
        let mut used = self.used.iter();
        used.any(|used| used.what.follows_no_part() && used.used.low > USED_UP)
    }

    /// How much each part moves a resource.
    fn moves(&self, resource: &Resource) -> Vec<f64> {
        let parts = self.parts.iter().enumerate();
        parts
            .map(|(element, part)| resource.slope(element, part.threads))
            .collect()
    }

    /// The slopes that a limit would show: a part that does not move it becomes the limit itself where it was nearly one before.
    fn expected(&self, limit: usize) -> Vec<f64> {
        let own = self.moves(&self.resources[limit]);
        let slope = |(element, own): (usize, &f64)| {
            let threads = self.parts[element].threads;
            let others = self.resources.iter().zip(self.used).enumerate();
            let others = others.filter(|(at, _)| *at != limit);
            let after = others.map(|(_, (resource, used))| {
                used.used.mean.min(1.0) + self.share * resource.slope(element, threads)
            });
            (after.fold(1.0 + self.share * own, f64::max) - 1.0) / self.share
        };
        own.iter().enumerate().map(slope).collect()
    }

    fn slopes_against(&self, expected: &[f64]) -> f64 {
        let one = |(slope, expected): (&Slope, &f64)| {
            against((slope.slope.mean - expected) / self.deviation(slope))
        };
        self.slopes.iter().zip(expected).map(one).sum()
    }

    fn deviation(&self, slope: &Slope) -> f64 {
        slope.slope.deviation().hypot(SLOPE_OFF)
    }

    fn against_limit(&self, at: usize) -> f64 {
        let used = self.used[at].used;
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
        let expected = self.moves(&self.resources[at]);
        let (mut products, mut squares) = (0.0, 0.0);
        for (slope, expected) in self.slopes.iter().zip(&expected) {
            let weight = self.deviation(slope).powi(-2);
            products += weight * slope.slope.mean * expected;
            squares += weight * expected * expected;
        }
        match squares > 0.0 {
            true => products / squares - WIDTH / squares.sqrt() > CONFIRMED,
            false => self.is_below(),
        }
    }

    fn is_below(&self) -> bool {
        let mut slopes = self.slopes.iter();
        slopes.all(|slope| slope.slope.high < NOT_ONE_FOR_ONE)
    }
}
