//! Level of a point: the time that an operation takes when nothing else is in its way.
//!
//! Times of one piece of work differ for four reasons: the clock of its core moves, the core's
//! sibling takes issue slots, the thread loses its CPU, and each allocation of memory is a draw of
//! places in the caches. The first three are measured beside each slice ([`SliceTime`]). Time over
//! chain is a time in clock cycles. Slices beside a busy sibling, or without their CPU, are left
//! out. The fourth varies from repetition to repetition: the level is a low quantile of these.
//!
//! METHODOLOGY.md has the measurements behind the estimator and its constants.

use crate::{median, quantile, sorted};

/// Quantile of the slices of a repetition, and of the repetitions. Beside a machine that uses the
/// sibling half of the time, in turns shorter than a slice, a tenth of the slices is clean.
const WITHIN: f64 = 0.1;
const ACROSS: f64 = 0.4;
/// Fewest slices of a repetition, and repetitions of a level, after some were left out.
const MIN_SLICES: usize = 2;
const MIN_REPETITIONS: usize = 3;
/// Part of the repetitions that these must be as well: where idle siblings are rarer, a sibling
/// that was idle before and after a slice was often busy during it.
const MIN_PART: usize = 4;
/// A sibling is idle while the ratio of the probes is that near, as a fraction, to its least value.
const IDLE: f64 = 0.04;
/// Width of the least value, share of the slices that has it, and the fewest that do.
const LEAST: (f64, f64, usize) = (0.03, 0.03, 5);
/// Chains longer than the middle one by this factor were interrupted: 5 to 10 % of those after work
/// with AVX-512 took 1.6 times as long on a Xeon, which looks like a sibling idler than idle.
const INTERRUPTED: f64 = 1.3;
/// Blocks that stand for repetitions in an invocation with one.
const BLOCKS: usize = 8;
/// Slices longer than this say nothing about the sibling: its state changes meanwhile.
const LONG_NS: f64 = 2e6;
/// Factor and constant over the error in nanoseconds up to which chains are as steady.
const CHAINS_OVER_NS: (f64, f64) = (1.5, 0.001);
/// Part of the standard deviation of an invocation's level that its repetitions do not show. It
/// holds for pairs of files beside load and without, see METHODOLOGY.
pub(crate) const FLOOR: f64 = 0.0032;

/// A slice of work and its probes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SliceTime {
    pub ns: f64,
    /// Time of one operation.
    pub op_ns: f64,
    /// Time of a fixed number of cycles after it.
    pub chain_ns: Option<f64>,
    /// Time of independent operations after those.
    pub sibling_ns: Option<f64>,
    /// True if the thread lost its CPU.
    pub is_lost: bool,
}

impl SliceTime {
    /// Returns the time of the independent operations over that of the chain.
    pub fn sibling(&self) -> Option<f64> {
        Some(self.sibling_ns? / self.chain_ns?).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
    }

    /// Tests if the sibling was idle after the slice. True if that is not known.
    pub fn has_idle_sibling(&self, least: Option<f64>) -> bool {
        self.sibling().zip(least).is_none_or(|(own, least)| (own / least - 1.0).abs() <= IDLE)
    }
}

/// Returns the least ratio of both probes: that of an idle sibling, if it ever was idle. `None`
/// for too few slices with probes.
pub fn least_sibling<'a>(slices: impl IntoIterator<Item = &'a SliceTime>) -> Option<f64> {
    let clean: Vec<_> = slices.into_iter().filter(|slice| !slice.is_lost).collect();
    let chains: Vec<f64> = clean.iter().filter_map(|slice| slice.chain_ns).collect();
    let longest = INTERRUPTED * median(&chains)?;
    let whole = clean.iter().filter(|slice| slice.chain_ns.is_some_and(|ns| ns <= longest));
    let ratios = sorted(&whole.filter_map(|slice| slice.sibling()).collect::<Vec<f64>>());
    let (width, share, fewest) = LEAST;
    let fewest = fewest.max((ratios.len() as f64 * share).ceil() as usize);
    let from =
        |low: usize| &ratios[low..ratios.partition_point(|it| *it <= ratios[low] * (1.0 + width))];
    let dense = (0..ratios.len()).map(from).find(|near| near.len() >= fewest);
    dense.and_then(|near| quantile(near, 0.5))
}

/// Unit in which a point is steadier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    #[default]
    Ns,
    /// Times of the chain.
    Chains,
}

/// Time of one operation by its repetitions, in both units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    ns: Located,
    /// `None` if the clock is not known.
    chains: Option<Located>,
    /// Logarithm of the middle time of the chain during the slices that were kept.
    pub chain: Option<f64>,
    /// True if the core or the CPU was shared in nearly all slices, so that none was left out.
    pub is_shared: bool,
    /// Number of repetitions: each had its own memory, threads and sockets.
    pub instances: usize,
}

/// Location of one side in one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Located {
    /// Logarithm of the time.
    pub log: f64,
    /// Standard deviation of that place by the repetitions, and the freedom of its estimate.
    pub error: f64,
    pub freedom: f64,
}

impl Located {
    /// Returns the place of repetitions by their logarithms, their 40th percentile: a state of the
    /// host that lasts for less than a third of them does not move it. Its error is that of an
    /// order statistic, a quarter of the way between those two binomial deviations off.
    fn of(logs: &[f64]) -> Option<Located> {
        let logs = &sorted(logs);
        let off = 2.0 * (ACROSS * (1.0 - ACROSS) / logs.len() as f64).sqrt();
        let at = |share: f64| quantile(logs, share);
        let error = (at(ACROSS + off)? - at(ACROSS - off)?) / 4.0;
        Some(Located { log: at(ACROSS)?, error, freedom: (logs.len() - 1).max(1) as f64 })
    }
}

impl Level {
    /// Returns the level of one invocation's repetitions. `least` is the least ratio of the probes
    /// on this host ([`least_sibling`]). Work that `waits` gives its CPU away: all its slices count
    /// as lost. `None` without a time.
    pub fn of(repetitions: &[Vec<SliceTime>], least: Option<f64>, waits: bool) -> Option<Level> {
        let is_time = |slice: &SliceTime| slice.op_ns.is_finite() && slice.op_ns > 0.0;
        let usable = |all: &Vec<SliceTime>| !all.is_empty() && all.iter().all(is_time);
        let all: Vec<&Vec<SliceTime>> = repetitions.iter().filter(|all| usable(all)).collect();
        let instances = all.len();
        let all: Vec<&[SliceTime]> = match all[..] {
            [only] => blocks(only).collect(),
            _ => all.into_iter().map(Vec::as_slice).collect(),
        };
        let kept = |is_kept: fn(&SliceTime) -> bool| -> Vec<Vec<SliceTime>> {
            let clean = |slices: &&[SliceTime]| {
                let before = slices.iter().map(Some);
                let before = std::iter::once(None).chain(before);
                let idle = |slice: &SliceTime| slice.has_idle_sibling(least);
                let pairs = slices.iter().zip(before);
                let kept = pairs.filter(|(slice, before)| {
                    slice.ns > LONG_NS || (idle(slice) && before.is_none_or(idle))
                });
                kept.map(|(slice, _)| *slice).filter(is_kept).collect::<Vec<_>>()
            };
            let found = all.iter().map(clean);
            let enough = |left: &Vec<SliceTime>| left.len() >= MIN_SLICES.min(all[0].len());
            found.filter(enough).collect()
        };
        let clean = [kept(|slice| !slice.is_lost), if waits { kept(|_| true) } else { vec![] }];
        let enough = MIN_REPETITIONS.max(all.len().div_ceil(MIN_PART)).min(all.len()).max(1);
        let clean = clean.into_iter().find(|left| left.len() >= enough);
        let is_shared = clean.is_none();
        let kept = clean.unwrap_or_else(|| all.iter().map(|slices| slices.to_vec()).collect());
        // A level has both a clock and its times in chains, or none of them.
        let chain = |slices: &[SliceTime]| {
            let all: Option<Vec<f64>> = slices.iter().map(|slice| slice.chain_ns).collect();
            all.and_then(|all| median(&all)).filter(|ns| *ns > 0.0).map(f64::ln)
        };
        let low = |slices: &Vec<SliceTime>| {
            let times: Vec<f64> = slices.iter().map(|slice| slice.op_ns).collect();
            Some((quantile(&sorted(&times), WITHIN)?.ln(), chain(slices)))
        };
        let places: Vec<(f64, Option<f64>)> = kept.iter().map(low).collect::<Option<_>>()?;
        let ns = Located::of(&places.iter().map(|(ns, _)| *ns).collect::<Vec<_>>())?;
        let chains: Option<Vec<f64>> = places.iter().map(|(ns, own)| Some(ns - (*own)?)).collect();
        let chains = chains.and_then(|chains| Located::of(&chains));
        let chain = chain(&kept.concat()).filter(|_| chains.is_some());
        Some(Level { ns, chains, chain, is_shared, instances })
    }

    /// Returns the place in that unit. `None` in chains if the clock is not known.
    pub fn located(&self, unit: Unit) -> Option<Located> {
        if unit == Unit::Chains { self.chains } else { Some(self.ns) }
    }

    /// Returns the level of work that takes longer by a factor, given by its logarithm.
    #[must_use]
    pub fn slower(&self, log: f64) -> Level {
        let slower = |own: Located| Located { log: own.log + log, ..own };
        Level { ns: slower(self.ns), chains: self.chains.map(slower), ..*self }
    }

    /// Returns the unit in which these levels together are steadier.
    pub fn steadier<'a>(levels: impl IntoIterator<Item = &'a Level> + Clone) -> Unit {
        let sum = |unit| -> f64 {
            let located = levels.clone().into_iter().filter_map(|level| level.located(unit));
            located.map(|located| located.error.hypot(FLOOR)).sum()
        };
        let is_known = levels.clone().into_iter().all(|level| level.chains.is_some());
        // With a clock that stands still, both are alike; another file may be of another clock.
        let is_steady = || sum(Unit::Chains) <= CHAINS_OVER_NS.0 * sum(Unit::Ns) + CHAINS_OVER_NS.1;
        if is_known && is_steady() { Unit::Chains } else { Unit::Ns }
    }

    /// Returns the time of one operation in nanoseconds, at a clock at which the chain takes
    /// `chain_ns`, with its 95 % interval.
    pub fn shown(&self, chain_ns: Option<f64>) -> (f64, (f64, f64)) {
        let unit = if chain_ns.is_some() { Level::steadier([self]) } else { Unit::Ns };
        let Located { log, error, .. } = self.located(unit).expect("a level has a time");
        let scale = if unit == Unit::Chains { chain_ns.unwrap_or(1.0) } else { 1.0 };
        let half = 1.96 * error.hypot(FLOOR);
        (log.exp() * scale, ((log - half).exp() * scale, (log + half).exp() * scale))
    }
}

fn blocks(slices: &[SliceTime]) -> impl Iterator<Item = &[SliceTime]> {
    let count = BLOCKS.min(slices.len());
    let bound = move |at: usize| at * slices.len() / count;
    (0..count).map(move |at| &slices[bound(at)..bound(at + 1)])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Random;

    /// A host whose clock, sibling and placement of memory change.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Drawn {
        pub(crate) clock: f64,
        /// Share of slices beside a busy sibling, which makes work half as long again.
        pub(crate) busy: f64,
        pub(crate) lost: f64,
        /// Standard deviation of a repetition.
        pub(crate) placement: f64,
    }

    pub(crate) const QUIET: Drawn = Drawn { clock: 1.0, busy: 0.0, lost: 0.0, placement: 0.002 };

    impl Drawn {
        /// Draws 24 repetitions of 20 slices of work that takes 100 ns at the first clock.
        pub(crate) fn repetitions(self, random: &mut Random) -> Vec<Vec<SliceTime>> {
            let repetition = |random: &mut Random| {
                let own = (self.placement * random.normal().abs()).exp();
                (0..20).map(|_| self.slice(100.0 * own, random)).collect()
            };
            (0..24).map(|_| repetition(random)).collect()
        }

        fn slice(self, op_ns: f64, random: &mut Random) -> SliceTime {
            let (is_busy, is_lost) = (random.uniform() < self.busy, random.uniform() < self.lost);
            let noise = (0.001 * random.normal()).exp();
            let factor = if is_busy { 1.5 } else { 1.0 } * if is_lost { 3.0 } else { 1.0 };
            SliceTime {
                ns: 3e5,
                op_ns: op_ns * factor * noise * self.clock,
                chain_ns: Some(3000.0 * self.clock),
                sibling_ns: Some(if is_busy { 2600.0 } else { 1500.0 } * self.clock),
                is_lost,
            }
        }

        pub(crate) fn level(self, random: &mut Random) -> Level {
            let repetitions = self.repetitions(random);
            Level::of(&repetitions, Some(0.5), true).unwrap()
        }
    }

    fn ns(drawn: Drawn) -> f64 {
        drawn.level(&mut Random::new(3)).shown(Some(3000.0)).0
    }

    #[test]
    fn a_level_is_the_work_whatever_the_clock_the_sibling_and_the_scheduler_do() {
        let lost = Drawn { lost: 0.5, ..QUIET };
        let busy = Drawn { busy: 0.5, ..QUIET };
        let slow = Drawn { clock: 1.2, ..QUIET };
        for drawn in [QUIET, lost, busy, slow, Drawn { busy: 0.5, lost: 0.3, ..slow }] {
            assert!((99.8..100.5).contains(&ns(drawn)), "{drawn:?}: {}", ns(drawn));
        }
    }

    #[test]
    fn the_least_ratio_of_the_probes_is_that_of_an_idle_sibling() {
        let mut random = Random::new(5);
        let mut of = |busy: f64| {
            let slices = Drawn { busy, ..QUIET }.repetitions(&mut random).concat();
            least_sibling(&slices)
        };
        assert_eq!((of(0.0), of(0.9)), (Some(0.5), Some(0.5)));
        assert!(of(1.0).unwrap() > 0.8, "it was never idle");
        assert_eq!(least_sibling(&[]), None);
    }

    #[test]
    fn work_beside_a_sibling_that_is_never_idle_is_shared() {
        let mut random = Random::new(5);
        assert!(Drawn { busy: 1.0, ..QUIET }.level(&mut random).is_shared);
        assert!(!QUIET.level(&mut random).is_shared);
        // Work that waits loses its CPU in each slice, and is not shared by that.
        assert!(!Drawn { lost: 1.0, ..QUIET }.level(&mut random).is_shared);
    }

    #[test]
    fn the_unit_is_the_steadier_one() {
        let mut random = Random::new(7);
        let level = QUIET.level(&mut random);
        // The clock stands still, and the chain after a slice says little about a device.
        let mut device = QUIET.repetitions(&mut random);
        for slice in device.iter_mut().flatten() {
            slice.chain_ns = Some(3000.0 * (0.1 * random.normal()).exp());
            slice.sibling_ns = None;
        }
        let device = Level::of(&device, None, true).unwrap();
        assert_eq!(Level::steadier([&device]), Unit::Ns);
        let mut moving = QUIET.repetitions(&mut random);
        for (at, slices) in moving.iter_mut().enumerate() {
            let clock = 1.0 + 0.02 * (at % 5) as f64;
            slices.iter_mut().for_each(|slice| {
                (slice.op_ns, slice.chain_ns) =
                    (slice.op_ns * clock, slice.chain_ns.map(|ns| ns * clock));
            });
        }
        let moving = Level::of(&moving, None, true).unwrap();
        assert_eq!(Level::steadier([&level, &moving]), Unit::Chains);
    }

    #[test]
    fn older_samples_are_judged_in_blocks_and_what_is_no_time_not_at_all() {
        let old = |times: &[f64]| {
            let slice = |ns: &f64| SliceTime { ns: *ns, op_ns: *ns, ..SliceTime::default() };
            Level::of(&[times.iter().map(slice).collect()], None, true)
        };
        let level = old(&[vec![1.0; 50], vec![3.0; 50]].concat()).unwrap();
        assert_eq!((level.ns.freedom, level.chain), (7.0, None));
        assert!(level.located(Unit::Ns).unwrap().error > 0.2);
        assert_eq!(old(&[2.0]).unwrap().shown(None).0, 2.0);
        for bad in [&[][..], &[0.0], &[f64::NAN, 1.0], &[-1.0], &[f64::INFINITY]] {
            assert_eq!(old(bad), None);
        }
        assert_eq!(Level::of(&[], None, true), None);
    }
}
