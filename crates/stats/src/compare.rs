//! Comparison of two sides of many points: differences, and for every point the largest slowdown
//! and speed-up that its data do not exclude.
//!
//! Each invocation of a side gives one [`Level`]. Levels of unchanged work on an unchanged host
//! still differ: the wider the instances of an invocation spread, the more. Several invocations, or
//! a history, show that difference themselves. What other programs and machines took from a side
//! can only have slowed it.

use crate::level::{FLOOR, Level, Unit};
use crate::{MAD_TO_SIGMA, mad, median, sorted, trimmed};

/// Probability that any interval of a comparison misses its ratio.
pub(crate) const FALSE_ALARM: f64 = 0.01;
/// Freedom of a deviation that is not estimated by the instances of a point.
pub(crate) const KNOWN_FREEDOM: f64 = 60.0;
/// Invocations that the deviation by the instances weighs as much as, where others show their own
/// scatter.
pub(crate) const SEEN_FREEDOM: f64 = 2.0;
/// Fewest instances whose spread says how invocations differ, and fewest invocations that do.
pub const MIN_INSTANCES: usize = 5;
pub(crate) const MIN_SEEN: f64 = 4.0;
/// Fewest invocations of a history that show which side is the odd one, and how much farther from
/// them it lies than the other.
const MIN_USUAL: usize = 3;
const ODD: f64 = 3.0;
/// A busy sibling, or a CPU that is shared, takes up to this factor.
pub(crate) const SHARED: f64 = 4.0;
/// Factor between clocks of one host, where they were not measured.
const CLOCKS: f64 = 1.25;

/// Levels of a point, one for each invocation, in the order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    pub a: Vec<Level>,
    pub b: Vec<Level>,
    /// Other invocations on the host of both sides.
    pub history: Vec<Level>,
    /// Standard deviation between invocations beyond what their instances show.
    pub beyond: f64,
    /// Logarithms of the factors by which others may have slowed A and B, beyond what their levels
    /// show.
    pub slowed: [f64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Slower,
    Faster,
    /// No difference is proven: it is within the joint interval.
    Bounded,
}

/// Main reason for a wide interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The CPU or its core was shared during all of a side.
    Shared,
    /// The clock of the CPU is not known.
    Clock,
    /// The point has too few instances.
    Once,
    /// The instances themselves differ.
    Spread,
}

/// Difference of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Times of one operation in nanoseconds, at the clock of A.
    pub a: f64,
    pub b: f64,
    /// B over A.
    pub ratio: f64,
    /// 95 % interval of this ratio.
    pub interval: (f64, f64),
    /// Interval of the verdict: all of a comparison hold together with 99 %.
    pub joint: (f64, f64),
    /// Smallest slowdown that would count, as a fraction.
    pub visible: f64,
    pub verdict: Verdict,
    pub doubt: Doubt,
    pub unit: Unit,
    /// Invocations of A, of B, and of the history.
    pub invocations: (usize, usize, usize),
    /// Number of the side that is unlike the history, which the other resembles.
    pub odd: Option<usize>,
}

/// How points are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Differences up to this fraction are not called one.
    pub ignore: f64,
    /// Number of comparisons that share the chance of a false alarm.
    pub looks: f64,
    /// True for sides that were measured in turn: neighbours shared both alike.
    pub in_turn: bool,
}

/// Compares the sides of points of one comparison. A point without a level on one side gives
/// `None`.
pub fn compare(points: &[Point], terms: Terms) -> Vec<Option<Effect>> {
    let differences = points.iter().map(|point| Difference::of(point, terms));
    let differences: Vec<Option<Difference<'_>>> = differences.collect();
    // A point without a bound gives no false alarm.
    let told = |one: &&Difference<'_>| one.slowed.iter().all(|slowed| slowed.is_finite());
    let told = differences.iter().flatten().filter(told).count();
    let chance = FALSE_ALARM / told.max(1) as f64 / terms.looks;
    let pairs = points.iter().zip(differences);
    pairs.map(|(point, found)| Some(found?.effect(point, terms, chance))).collect()
}

/// Difference of two sides in one unit, as logarithms.
struct Difference<'a> {
    sides: [Vec<&'a Level>; 2],
    unit: Unit,
    log: f64,
    /// Variance of a level times the freedom of its estimate, and that freedom.
    seen: (f64, f64),
    /// The same by the spread of the instances.
    prior: (f64, f64),
    /// Parts that the host may have slowed A and B by, and why.
    slowed: [f64; 2],
    doubt: Doubt,
    odd: Option<usize>,
}

impl Difference<'_> {
    fn of(point: &Point, terms: Terms) -> Option<Difference<'_>> {
        let is_there = !point.a.is_empty() && !point.b.is_empty();
        is_there.then(|| if terms.in_turn { paired(point) } else { apart(point) })
    }

    fn effect(self, point: &Point, terms: Terms, chance: f64) -> Effect {
        let ignore = terms.ignore.ln_1p();
        let Difference { sides: [a, b], unit, log, seen, prior, slowed, doubt, odd } = self;
        let from = trimmed(&places(&a, unit)).mean;
        // The clock of A: chains of A, if both have them.
        let clock = a.iter().filter_map(|level| level.chain).collect::<Vec<_>>();
        let scale = median(&clock).filter(|_| unit == Unit::Chains).unwrap_or(0.0);
        let freedom = prior.1 + seen.1;
        let variance = (prior.0 + seen.0) / freedom;
        let error = (variance * (1.0 / a.len() as f64 + 1.0 / b.len() as f64)).sqrt();
        let half = |chance: f64| crate::student(freedom, 1.0 - chance) * error;
        let around = |half: f64| (log - half, log + half);
        let (low, high) = around(half(chance));
        // Others that slowed B are no slowdown of it; those that slowed A hide one.
        let (low, high) = (low - slowed[1] - point.slowed[1], high + slowed[0] + point.slowed[0]);
        let verdict = match log {
            log if low > 0.0 && log > ignore => Verdict::Slower,
            log if high < 0.0 && log < -ignore => Verdict::Faster,
            _ => Verdict::Bounded,
        };
        let ratios = |(low, high): (f64, f64)| (low.exp(), high.exp());
        Effect {
            a: (from + scale).exp(),
            b: (from + log + scale).exp(),
            ratio: log.exp(),
            interval: ratios(around(half(0.05))),
            joint: ratios((low, high)),
            visible: (log - low).max(ignore).exp_m1(),
            verdict,
            doubt,
            unit,
            invocations: (point.a.len(), point.b.len(), point.history.len()),
            odd: odd.filter(|_| verdict != Verdict::Bounded),
        }
    }
}

/// Returns the variance that levels have by the spread of their instances and beyond it, times its
/// freedom (Welch and Satterthwaite), and this freedom, which is at most `most`.
fn prior(levels: &[&Level], unit: Unit, beyond: f64, most: f64) -> (f64, f64) {
    let located: Vec<_> = levels.iter().filter_map(|level| level.located(unit)).collect();
    let own = located.iter().map(|own| own.error.powi(2)).sum::<f64>() / levels.len() as f64;
    let known = FLOOR.powi(2) + beyond.powi(2);
    let own_freedom = located.iter().map(|own| own.freedom).sum::<f64>();
    let all = own + known;
    let freedom = all.powi(2) / (own.powi(2) / own_freedom + known.powi(2) / KNOWN_FREEDOM);
    (all * freedom.min(most), freedom.min(most))
}

/// Compares sides that were measured at different times: without levels that were shared, if there
/// are others.
fn apart(point: &Point) -> Difference<'_> {
    let sides = [&point.a, &point.b].map(|side| clean(side));
    let [a, b] = &sides;
    let both: Vec<&Level> = a.iter().chain(b).copied().collect();
    let unit = Level::steadier(both.clone());
    let [of_a, of_b] = [a, b].map(|side| trimmed(&places(side, unit)));
    let history = places(&clean(&point.history), unit);
    let seen = [of_a.squares(), of_b.squares(), steps(&history)];
    let seen = seen.iter().fold((0.0, 0.0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
    let (slowed, doubt) = slowed(a, b, unit);
    let is_once = both.iter().any(|level| level.instances < MIN_INSTANCES);
    // Invocations show themselves what their instances do not.
    let is_seen = seen.1 >= MIN_SEEN && (is_once || point.beyond > 0.0);
    let (beyond, most) = if is_seen { (0.0, SEEN_FREEDOM) } else { (point.beyond, f64::INFINITY) };
    // Repetitions within one instance say nothing about the next one.
    let (slowed, doubt) = match doubt {
        _ if is_once && !is_seen => ([f64::INFINITY; 2], Doubt::Once),
        doubt => (slowed, doubt.unwrap_or(Doubt::Spread)),
    };
    let log = of_b.mean - of_a.mean;
    let prior = prior(&both, unit, beyond, most);
    let odd = odd([of_a.mean, of_b.mean], &history);
    Difference { sides, unit, log, seen, prior, slowed, doubt, odd }
}

/// Returns the side that lies at least [`ODD`] times as far from the history as the other.
fn odd(sides: [f64; 2], history: &[f64]) -> Option<usize> {
    let usual = median(history).filter(|_| history.len() >= MIN_USUAL)?;
    let [a, b] = sides.map(|side| (side - usual).abs());
    (0..2).find(|side| [a, b][*side] >= ODD * [b, a][*side] && a != b)
}

/// Compares sides of pairs: neighbours slow both of a pair alike. Pairs without a clock are left
/// out, if there are others. The unit is that in which the differences scatter less.
fn paired(point: &Point) -> Difference<'_> {
    let pairs = point.a.iter().zip(&point.b);
    let clocked = pairs.clone().filter(|(a, b)| a.chain.is_some() && b.chain.is_some());
    let clocked: (Vec<_>, Vec<_>) = clocked.unzip();
    let has_clock = !clocked.0.is_empty();
    let (a, b) = if has_clock { clocked } else { pairs.unzip() };
    let found = |unit| {
        let (a, b) = (places(&a, unit), places(&b, unit));
        trimmed(&a.iter().zip(b).map(|(a, b)| b - a).collect::<Vec<_>>())
    };
    let ns = found(Unit::Ns);
    let chains = has_clock.then(|| found(Unit::Chains));
    let steadier = chains.filter(|chains| chains.squares().0 <= ns.squares().0);
    let (unit, pairs) = steadier.map_or((Unit::Ns, ns), |chains| (Unit::Chains, chains));
    let (squares, freedom) = pairs.squares();
    let both: Vec<&Level> = a.iter().chain(&b).copied().collect();
    Difference {
        unit,
        log: pairs.mean,
        // The difference of two levels has twice the variance of one.
        seen: (squares / 2.0, freedom),
        prior: prior(&both, unit, 0.0, SEEN_FREEDOM),
        sides: [a, b],
        slowed: [0.0; 2],
        doubt: Doubt::Spread,
        odd: None,
    }
}

fn places(side: &[&Level], unit: Unit) -> Vec<f64> {
    side.iter().filter_map(|level| level.located(unit)).map(|located| located.log).collect()
}

/// Returns the levels that were not shared, or all if each was.
fn clean(levels: &[Level]) -> Vec<&Level> {
    let has_clean = levels.iter().any(|level| !level.is_shared);
    levels.iter().filter(|level| !level.is_shared || !has_clean).collect()
}

/// Returns the parts by which the host may have slowed A and B, and why.
fn slowed(a: &[&Level], b: &[&Level], unit: Unit) -> ([f64; 2], Option<Doubt>) {
    if a.iter().chain(b).any(|level| level.is_shared) {
        return ([SHARED.ln(); 2], Some(Doubt::Shared));
    }
    let clock = |side: &[&Level]| {
        let known: Option<Vec<f64>> = side.iter().map(|level| level.chain).collect();
        known.and_then(|known| median(&known))
    };
    match (unit, clock(a).zip(clock(b))) {
        (Unit::Chains, _) => ([0.0; 2], None),
        (Unit::Ns, Some((a, b))) => ([(a - b).max(0.0), (b - a).max(0.0)], None),
        (Unit::Ns, None) => ([CLOCKS.ln(); 2], Some(Doubt::Clock)),
    }
}

/// Returns the variation of a history by its neighbours, with its freedom: a change of the program
/// or the host is one of many differences.
fn steps(places: &[f64]) -> (f64, f64) {
    let steps: Vec<f64> = places.windows(2).map(|pair| pair[1] - pair[0]).collect();
    if steps.is_empty() {
        return (0.0, 0.0);
    }
    let deviation = MAD_TO_SIGMA * mad(&sorted(&steps)) / std::f64::consts::SQRT_2;
    let freedom = steps.len() as f64;
    (deviation.powi(2) * freedom, freedom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::tests::{Drawn, QUIET};
    use crate::{Random, SliceTime};

    fn terms(ignore: f64) -> Terms {
        Terms { ignore, looks: 1.0, in_turn: false }
    }

    fn slower(drawn: Drawn, by: f64, random: &mut Random) -> Level {
        let mut repetitions = drawn.repetitions(random);
        repetitions.iter_mut().flatten().for_each(|slice| slice.op_ns *= by);
        Level::of(&repetitions, Some(0.5), true).unwrap()
    }

    fn effects(a: Drawn, b: Drawn, by: f64, runs: usize) -> Vec<Effect> {
        let mut random = Random::new(11);
        let mut point = || Point {
            a: (0..runs).map(|_| a.level(&mut random)).collect(),
            b: (0..runs).map(|_| slower(b, by, &mut random)).collect(),
            ..Point::default()
        };
        let points: Vec<Point> = (0..18).map(|_| point()).collect();
        compare(&points, terms(0.0)).into_iter().map(Option::unwrap).collect()
    }

    fn share(effects: &[Effect], verdict: Verdict) -> f64 {
        let count = effects.iter().filter(|effect| effect.verdict == verdict).count();
        count as f64 / effects.len() as f64
    }

    #[test]
    fn two_per_cent_are_found_with_one_invocation_a_side_whatever_clock_and_neighbours_do() {
        let busy = Drawn { clock: 1.2, busy: 0.6, lost: 0.2, ..QUIET };
        for (a, b) in [(QUIET, QUIET), (QUIET, busy), (busy, QUIET)] {
            let same = effects(a, b, 1.0, 1);
            assert_eq!(share(&same, Verdict::Bounded), 1.0, "nothing is ignored: {same:?}");
            let found = effects(a, b, 1.02, 1);
            assert!(share(&found, Verdict::Slower) > 0.9, "{found:?}");
            let covered = |effect: &&Effect| effect.interval.0 <= 1.02 && 1.02 <= effect.interval.1;
            assert!(found.iter().filter(covered).count() >= 17, "{found:?}");
            assert_eq!(share(&effects(a, b, 0.97, 1), Verdict::Faster), 1.0);
        }
    }

    #[test]
    fn several_invocations_see_less() {
        let (one, five) = (effects(QUIET, QUIET, 1.01, 1), effects(QUIET, QUIET, 1.01, 5));
        assert!(five[0].visible < one[0].visible / 1.8, "{one:?} {five:?}");
        assert_eq!(share(&five, Verdict::Slower), 1.0);
    }

    #[test]
    fn a_side_that_was_shared_all_the_time_shows_factors_only() {
        let busy = Drawn { busy: 1.0, ..QUIET };
        let found = effects(QUIET, busy, 1.0, 1);
        assert_eq!(share(&found, Verdict::Bounded), 1.0);
        assert_eq!(found[0].doubt, Doubt::Shared);
        assert_eq!(share(&effects(QUIET, busy, 5.0, 1), Verdict::Slower), 1.0);
    }

    #[test]
    fn times_without_a_clock_may_differ_by_the_clocks_of_a_host() {
        let level = |ns: f64| {
            let slice = SliceTime { ns, op_ns: ns, ..SliceTime::default() };
            Level::of(&vec![vec![slice; 40]; 6], None, true).unwrap()
        };
        let found = |b: f64| {
            let point = Point { a: vec![level(100.0)], b: vec![level(b)], ..Point::default() };
            compare(&[point], terms(0.0))[0].unwrap()
        };
        assert_eq!((found(120.0).verdict, found(120.0).doubt), (Verdict::Bounded, Doubt::Clock));
        assert_eq!(found(140.0).verdict, Verdict::Slower);
    }

    #[test]
    fn a_history_says_how_much_invocations_differ() {
        let mut random = Random::new(13);
        let scattered = |random: &mut Random| {
            let by = (0.03 * random.normal()).exp();
            slower(QUIET, by, random)
        };
        let point = Point {
            a: vec![QUIET.level(&mut random)],
            b: vec![slower(QUIET, 1.04, &mut random)],
            history: (0..40).map(|_| scattered(&mut random)).collect(),
            ..Point::default()
        };
        let alone = Point { history: Vec::new(), ..point.clone() };
        let verdict = |point: Point| compare(&[point], terms(0.0))[0].unwrap().verdict;
        assert_eq!((verdict(alone), verdict(point)), (Verdict::Slower, Verdict::Bounded));
    }

    #[test]
    fn in_turn_what_slows_both_of_a_pair_is_no_difference_and_a_pair_without_a_clock_is_none() {
        let mut random = Random::new(17);
        let mut point = Point::default();
        for _ in 0..20 {
            // Neither the chain nor the sibling shows this neighbour.
            let neighbour = (0.1 * random.normal()).exp();
            point.a.push(slower(QUIET, neighbour, &mut random));
            point.b.push(slower(QUIET, 1.01 * neighbour, &mut random));
        }
        let effect = |point: &Point, in_turn| {
            compare(std::slice::from_ref(point), Terms { in_turn, ..terms(0.002) })[0].unwrap()
        };
        let (apart, paired) = (effect(&point, false), effect(&point, true));
        assert_eq!((apart.verdict, paired.verdict), (Verdict::Bounded, Verdict::Slower));
        assert!((1.009..1.011).contains(&paired.ratio), "{paired:?}");
        let slice = SliceTime { ns: 9e9, op_ns: 9e9, ..SliceTime::default() };
        point.a.push(Level::of(&[vec![slice; 40]], None, true).unwrap());
        point.b.push(QUIET.level(&mut random));
        assert_eq!(effect(&point, true).ratio, paired.ratio);
        let alone = point.a.split_off(20);
        let same = effect(&Point { b: alone.clone(), a: alone, ..Point::default() }, true);
        assert_eq!((same.ratio, same.unit), (1.0, Unit::Ns), "no pair has a clock");
    }

    #[test]
    fn sides_without_a_level_have_no_effect() {
        let level = QUIET.level(&mut Random::new(1));
        let only_a = Point { a: vec![level], ..Point::default() };
        assert_eq!(compare(&[only_a, Point::default()], terms(0.02)), [None, None]);
        assert_eq!(compare(&[], terms(0.02)), []);
    }
}
