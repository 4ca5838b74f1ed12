//! Where a row of values over time took a step.
//!
//! Runs of one point resemble their neighbours: a host has minutes and hours of its own. A step therefore counts only where it is
//! larger than what the row's own correlation explains. In order:
//!
//! 1. Candidates by optimal partitioning (Jackson et al. 2005) of the logarithms.
//! 2. Short excursions that come back are bad hours, not steps. Where there are too many of them the row has two modes, and all of
//!    its scatter is noise.
//! 3. Forward selection: the strongest candidate is accepted while its z, with the long-run variance of an AR(1) process fitted to
//!    differences of neighbours, reaches a gate that grows with the number of rows that are looked at together.
//! 4. A slope that explains the values better than the step is a drift.

use std::ops::Range;

use crate::{MAD_TO_SIGMA, mad, median, sorted};

/// A step: from this index on the level is another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index of the first value of the new level.
    pub at: usize,
    /// First and last index at which the new level may have begun, with 95 % confidence.
    pub between: (usize, usize),
    /// Level after over level before.
    pub ratio: f64,
    /// The step in standard errors of the difference of its levels, correlation included.
    pub z: f64,
}

/// What a row of values over time shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Steps, in order.
    pub changes: Vec<Change>,
    /// Excursions that came back, each the indices of its values: bad hours of the host.
    pub excursions: Vec<Range<usize>>,
    /// The values change between two levels, back and forth.
    pub has_two_modes: bool,
    /// A slope explains the values better than any step.
    pub drifts: bool,
}

/// Fewest values of a level between two steps.
const MIN_LEVEL: usize = 3;
/// Fewest values of the first and of the last level: fewer may be the end or the beginning of a bad hour. The last level is what is new,
/// and has to be seen after five runs.
const MIN_BEGIN: usize = 6;
const MIN_END: usize = 5;
/// An excursion of more values than this is a level of its own.
const MAX_EXCURSION: usize = 6;
/// As many levels in a row are taken for one excursion, or for several that touch.
const MAX_LEVELS_OUT: usize = 3;
/// Above this share of values in excursions they are a mode.
const MAX_EXCURSIONS_SHARE: f64 = 0.15;
/// Penalty of a candidate in units of ln n: twice what the Bayesian criterion asks for.
const PENALTY: f64 = 4.0;
/// Least z of a step in one row. At 60 values it keeps false steps below 2 % of rows of correlation 0.5, of two modes, of bursts and of
/// skewed values (`rows_without_a_step_have_none`).
const GATE: f64 = 4.25;
/// What a pair of steps needs above the gate.
const PAIR_MARGIN: f64 = 1.5;
/// Added to the correlation, which 60 values estimate too low more often than too high.
const CORRELATION_MARGIN: f64 = 0.1;

/// Steps of one row of positive values, in order, that exceed `ignore` (0.02 is 2 %).
pub fn change_points(values: &[f64], ignore: f64) -> Vec<Change> {
    row(values, ignore, 1).changes
}

/// What a row of positive values shows, one of `rows` that are looked at together: the gate holds for all of them.
pub fn row(values: &[f64], ignore: f64, rows: usize) -> Row {
    let is_short = values.len() < MIN_BEGIN + MIN_END;
    if is_short || values.iter().any(|x| !x.is_finite() || *x <= 0.0) {
        return Row::default();
    }
    let logs: Vec<f64> = values.iter().map(|x| x.ln()).collect();
    let parted = Parted::of(&logs);
    let kept: Vec<usize> = (0..logs.len()).filter(|at| parted.keep[*at]).collect();
    let series: Vec<f64> = kept.iter().map(|at| logs[*at]).collect();
    let candidates = parted.candidates(&kept);
    let gate = (GATE * GATE + 2.0 * (rows.max(1) as f64).ln()).sqrt();
    let accepted = accept(&series, candidates, gate);
    let (changes, drifts) = described(&series, &accepted, &kept, ignore);
    Row { changes, drifts, excursions: parted.excursions, has_two_modes: parted.has_two_modes }
}

/// Candidates, and which values are left when excursions are taken out.
struct Parted {
    /// Bounds of the levels, 0 and n among them.
    bounds: Vec<usize>,
    keep: Vec<bool>,
    excursions: Vec<Range<usize>>,
    has_two_modes: bool,
}

impl Parted {
    fn of(logs: &[f64]) -> Parted {
        let mut parted = Parted {
            bounds: partition(&clipped(logs)),
            keep: vec![true; logs.len()],
            excursions: Vec::new(),
            has_two_modes: false,
        };
        while parted.take_out_one(logs) {}
        parted.take_out_wild(logs);
        while parted.take_out_one(logs) {}
        let out = parted.keep.iter().filter(|keep| !**keep).count();
        if out as f64 > MAX_EXCURSIONS_SHARE * logs.len() as f64 {
            parted.keep.fill(true);
            parted.excursions.clear();
            parted.has_two_modes = true;
        } else if !parted.excursions.is_empty() {
            parted.take_out_ends();
        }
        parted.excursions.sort_by_key(|range| range.start);
        parted
    }

    /// Takes out a short level, or a few of them in a row, whose neighbours are much nearer to one another than to it.
    fn take_out_one(&mut self, logs: &[f64]) -> bool {
        let levels = self.bounds.len() - 1;
        let inner = (1..=MAX_LEVELS_OUT)
            .flat_map(|count| (1..levels.saturating_sub(count)).map(move |at| at..at + count));
        let Some(found) = inner.into_iter().find(|levels| self.comes_back(logs, levels)) else {
            return false;
        };
        let range = self.bounds[found.start]..self.bounds[found.end];
        self.keep[range.clone()].fill(false);
        self.excursions.push(range);
        self.bounds.drain(found.start..=found.end);
        true
    }

    /// Whether these levels are an excursion from that before and after them.
    fn comes_back(&self, logs: &[f64], levels: &Range<usize>) -> bool {
        let level = |at: usize| median(&logs[self.bounds[at]..self.bounds[at + 1]]);
        let (before, after) = (level(levels.start - 1), level(levels.end));
        let from_either = |at| (level(at) - before).abs().min((level(at) - after).abs());
        let jump = levels.clone().map(from_either).fold(f64::INFINITY, f64::min);
        let length = self.bounds[levels.end] - self.bounds[levels.start];
        let mut inner = levels.clone().skip(1);
        let differ = inner.all(|at| (level(at) - level(at - 1)).abs() > 0.2 * jump);
        let range = self.bounds[levels.start]..self.bounds[levels.end];
        // One bad hour may touch the next, or follow soon.
        let several = (levels.len() > 1 && differ) || self.keep[range].contains(&false);
        let max = if several { 2 * MAX_EXCURSION } else { MAX_EXCURSION };
        length <= max && (after - before).abs() < 0.5 * jump
    }

    /// Takes out single values far from their level.
    fn take_out_wild(&mut self, logs: &[f64]) {
        let mut residuals = vec![0.0; logs.len()];
        for bounds in self.bounds.windows(2) {
            let range = bounds[0]..bounds[1];
            let kept: Vec<f64> =
                range.clone().filter(|at| self.keep[*at]).map(|at| logs[at]).collect();
            let level = median(&kept);
            range.for_each(|at| residuals[at] = logs[at] - level);
        }
        let kept: Vec<f64> =
            (0..logs.len()).filter(|at| self.keep[*at]).map(|at| residuals[at]).collect();
        let sigma = (MAD_TO_SIGMA * mad(&sorted(&kept))).max(1e-4);
        for (at, residual) in residuals.iter().enumerate() {
            if self.keep[at] && residual.abs() > 5.0 * sigma {
                self.keep[at] = false;
                self.excursions.push(at..at + 1);
            }
        }
    }

    /// In a row with bad hours, a short first or last level may be one.
    fn take_out_ends(&mut self) {
        let last = self.bounds.len() - 1;
        if last > 1 && self.bounds[last] - self.bounds[last - 1] <= MAX_EXCURSION {
            self.keep[self.bounds[last - 1]..].fill(false);
            self.bounds.remove(last - 1);
        }
        if self.bounds.len() > 2 && self.bounds[1] <= MAX_EXCURSION {
            self.keep[..self.bounds[1]].fill(false);
            self.bounds.remove(1);
        }
    }

    /// The inner bounds as places among the values that are kept.
    fn candidates(&self, kept: &[usize]) -> Vec<usize> {
        let inner = &self.bounds[1..self.bounds.len() - 1];
        let place = |bound: &usize| kept.partition_point(|at| at < bound);
        let mut places: Vec<usize> = inner.iter().map(place).collect();
        places.dedup();
        places
    }
}

/// Bounds of levels, 0 and n among them: least squares with a penalty for each, exactly.
fn partition(logs: &[f64]) -> Vec<usize> {
    let n = logs.len();
    let steps: Vec<f64> = logs.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Noise from differences of neighbours, which a step hardly moves.
    let sigma = (MAD_TO_SIGMA * mad(&sorted(&steps)) / std::f64::consts::SQRT_2).max(1e-4);
    let sums = Sums::of(logs);
    let penalty = PENALTY * (n as f64).ln();
    let (mut best, mut last) = (vec![f64::INFINITY; n + 1], vec![0; n + 1]);
    best[0] = -penalty;
    for to in MIN_LEVEL..=n {
        for from in (0..=to - MIN_LEVEL).filter(|from| *from == 0 || *from >= MIN_LEVEL) {
            let total = best[from] + sums.squares(from, to) / sigma.powi(2) + penalty;
            if total < best[to] {
                (best[to], last[to]) = (total, from);
            }
        }
    }
    let mut bounds = vec![n];
    while let Some(&to) = bounds.last()
        && to > 0
    {
        bounds.push(last[to]);
    }
    bounds.reverse();
    bounds
}

/// Running sums, for means and squares of any range.
struct Sums {
    first: Vec<f64>,
    second: Vec<f64>,
}

impl Sums {
    fn of(values: &[f64]) -> Sums {
        let running = |power: i32| {
            let sums = values.iter().scan(0.0, |sum, x| {
                *sum += x.powi(power);
                Some(*sum)
            });
            std::iter::once(0.0).chain(sums).collect()
        };
        Sums { first: running(1), second: running(2) }
    }

    fn mean(&self, from: usize, to: usize) -> f64 {
        (self.first[to] - self.first[from]) / (to - from) as f64
    }

    /// Squares of the distances from the mean.
    fn squares(&self, from: usize, to: usize) -> f64 {
        let sum = self.first[to] - self.first[from];
        (self.second[to] - self.second[from] - sum * sum / (to - from) as f64).max(0.0)
    }
}

/// Clips at three robust deviations from the median of five neighbours, so that a single wild value makes no candidate.
fn clipped(logs: &[f64]) -> Vec<f64> {
    let around = |at: usize| median(&logs[at.saturating_sub(2)..(at + 3).min(logs.len())]);
    let residuals: Vec<f64> = (0..logs.len()).map(|at| logs[at] - around(at)).collect();
    let bound = (3.0 * MAD_TO_SIGMA * mad(&sorted(&residuals))).max(1e-4);
    let values = logs.iter().zip(&residuals);
    values.map(|(x, residual)| x - residual + residual.clamp(-bound, bound)).collect()
}

/// Places of steps, in order, with their z. Tried are single steps, and pairs of steps that come back, which hide one another.
fn accept(series: &[f64], mut candidates: Vec<usize>, gate: f64) -> Vec<(usize, f64)> {
    let sums = Sums::of(series);
    let mut accepted: Vec<(usize, f64)> = Vec::new();
    loop {
        let places: Vec<usize> = accepted.iter().map(|(at, _)| *at).collect();
        let tried = tries(&candidates).filter_map(|places_tried| {
            let z = z(series, &sums, &places, &places_tried)?;
            // There are many more pairs to choose from.
            let needed = gate + if places_tried.len() > 1 { PAIR_MARGIN } else { 0.0 };
            (z >= needed).then_some((places_tried, z))
        });
        let Some((found, z)) = tried.max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return accepted;
        };
        candidates.retain(|other| !found.contains(other));
        accepted.extend(found.into_iter().map(|at| (at, z)));
        accepted.sort_by_key(|(at, _)| *at);
    }
}

/// Single candidates and pairs of them.
fn tries(candidates: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let pairs = candidates
        .iter()
        .enumerate()
        .flat_map(|(nth, first)| candidates[nth + 1..].iter().map(|second| vec![*first, *second]));
    candidates.iter().map(|at| vec![*at]).chain(pairs)
}

/// Levels on both sides of a step, or inside and outside of a pair, in standard errors of their difference; between the steps that are
/// accepted already. None where a level would be too short, or an accepted step lies inside the pair.
fn z(series: &[f64], sums: &Sums, accepted: &[usize], tried: &[usize]) -> Option<f64> {
    let (&low, &high) = (tried.first()?, tried.last()?);
    let from = accepted.iter().copied().filter(|place| *place < low).max();
    let to = accepted.iter().copied().filter(|place| *place > low).min();
    let (first, last) = (from.unwrap_or(0), to.unwrap_or(series.len()));
    let before = from.map_or(MIN_BEGIN, |_| MIN_LEVEL);
    let after = to.map_or(MIN_END, |_| MIN_LEVEL);
    if low < first + before || last < high + after {
        return None;
    }
    let breaks: Vec<usize> = accepted.iter().chain(tried).copied().collect();
    let variance = long_run_variance(series, &breaks);
    let inside = if low == high { low..last } else { low..high };
    let (within, all) = (inside.len() as f64, (last - first) as f64);
    let inner = sums.mean(inside.start, inside.end);
    let outer = (sums.mean(first, last) * all - inner * within) / (all - within);
    let error = (variance * (1.0 / within + 1.0 / (all - within))).sqrt();
    Some((inner - outer).abs() / error)
}

/// n times the variance of the mean of n values of an AR(1) process, from differences of values one, two and three places apart that
/// lie on one side of every break.
fn long_run_variance(series: &[f64], breaks: &[usize]) -> f64 {
    let apart = |lag: usize| {
        let one_level = |at: &usize| !breaks.iter().any(|b| *at < *b && *b <= at + lag);
        let squares: Vec<f64> = (0..series.len() - lag)
            .filter(one_level)
            .map(|at| (series[at + lag] - series[at]).powi(2))
            .collect();
        squares.iter().sum::<f64>() / squares.len().max(1) as f64
    };
    let (one, two, three) = (apart(1), apart(2), apart(3));
    if one <= 1e-12 {
        return 1e-8;
    }
    let correlation = (two / one - 1.0 + CORRELATION_MARGIN).clamp(0.0, 0.95);
    let variance = (one / (2.0 * (1.0 - correlation))).max((one + two + three) / 6.0);
    (variance * (1.0 + correlation) / (1.0 - correlation)).max(1e-8)
}

/// Steps that are larger than `ignore` and no slope, at their places in the whole row.
fn described(
    series: &[f64],
    accepted: &[(usize, f64)],
    kept: &[usize],
    ignore: f64,
) -> (Vec<Change>, bool) {
    let inner = accepted.iter().map(|(at, _)| *at);
    let bounds: Vec<usize> = [0].into_iter().chain(inner).chain([series.len()]).collect();
    let (mut changes, mut drifts) = (Vec::new(), false);
    for (window, (_, z)) in bounds.windows(3).zip(accepted) {
        let (from, at, to) = (window[0], window[1], window[2]);
        let ratio = (median(&series[at..to]) - median(&series[from..at])).exp();
        if is_slope(series, from, at, to) {
            drifts = true;
        } else if ratio.ln().abs() > (1.0 + ignore).ln() {
            let (low, high) = between(series, from, at, to);
            changes.push(Change { at: kept[at], between: (kept[low], kept[high]), ratio, z: *z });
        }
    }
    (changes, drifts)
}

/// Whether a straight line leaves less than two levels do.
fn is_slope(series: &[f64], from: usize, at: usize, to: usize) -> bool {
    if at - from <= MIN_END || to - at <= MIN_END {
        return false;
    }
    let sums = Sums::of(&series[from..to]);
    let n = (to - from) as f64;
    let (center, mean) = ((n - 1.0) / 2.0, sums.mean(0, to - from));
    let product = |(x, y): (usize, &f64)| (x as f64 - center) * (y - mean);
    let covariance: f64 = series[from..to].iter().enumerate().map(product).sum();
    let spread = n * (n * n - 1.0) / 12.0;
    let line = sums.squares(0, to - from) - covariance * covariance / spread;
    line < sums.squares(0, at - from) + sums.squares(at - from, to - from)
}

/// Places at which the new level may have begun: there the likelihood is at least a seventh of that at the best one, which holds 95 %
/// of a normal likelihood (the square of 1.96 is twice the logarithm of 6.8).
fn between(series: &[f64], from: usize, at: usize, to: usize) -> (usize, usize) {
    let sums = Sums::of(series);
    let left = |place: usize| sums.squares(from, place) + sums.squares(place, to);
    let variance = (left(at) / (to - from) as f64).max(1e-8);
    let likely = |place: &usize| left(*place) - left(at) <= 3.84 * variance;
    let low = (from + 1..at).rev().take_while(likely).last();
    let high = (at + 1..to).take_while(likely).last();
    (low.unwrap_or(at), high.unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{Kind, Random, null_row};

    /// A row around a level with noise of 1 %.
    fn steady(level: f64, n: usize) -> Vec<f64> {
        let row = null_row(Kind::Independent, n, &mut Random::new(n as u64));
        row.into_iter().map(|x| level * x.sqrt()).collect()
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        let values = [steady(100.0, 12), steady(108.0, 9)].concat();
        let changes = change_points(&values, 0.02);
        assert_eq!(changes.len(), 1, "{changes:?}");
        let Change { at, ratio, between, .. } = changes[0];
        assert!((11..=13).contains(&at) && (ratio - 1.08).abs() < 0.015);
        assert!(between.0 <= 12 && 12 <= between.1, "{changes:?}");
    }

    #[test]
    fn down_and_up_again_are_two() {
        let values = [steady(100.0, 10), steady(80.0, 10), steady(100.0, 10)].concat();
        let found = change_points(&values, 0.02);
        let places: Vec<usize> = found.iter().map(|change| change.at).collect();
        assert_eq!(places, [10, 20]);
    }

    #[test]
    fn noise_and_one_wild_run_are_no_step() {
        assert_eq!(change_points(&steady(100.0, 40), 0.02), []);
        let mut wild = steady(100.0, 40);
        wild[20] = 300.0;
        let found = row(&wild, 0.02, 1);
        assert_eq!(found.changes, []);
        assert_eq!(found.excursions.as_slice(), std::slice::from_ref(&(20..21)));
    }

    #[test]
    fn a_bad_hour_is_an_excursion_and_slow_growth_a_drift() {
        let mut values = steady(100.0, 40);
        values[20..24].iter_mut().for_each(|x| *x *= 1.3);
        let found = row(&values, 0.02, 1);
        assert_eq!(found.changes, []);
        assert_eq!(found.excursions.as_slice(), std::slice::from_ref(&(20..24)));
        let grown = steady(100.0, 60).into_iter().enumerate();
        let grown: Vec<f64> = grown.map(|(at, x)| x * (0.004 * at as f64).exp()).collect();
        let found = row(&grown, 0.02, 1);
        assert_eq!((found.changes, found.drifts), (vec![], true));
    }

    #[test]
    fn rows_that_are_short_or_equal_or_no_numbers_have_none() {
        assert_eq!(change_points(&[1.0, 2.0], 0.02), []);
        assert_eq!(change_points(&[5.0; 50], 0.02), []);
        assert_eq!(change_points(&[f64::NAN; 50], 0.02), []);
        assert_eq!(change_points(&[], 0.02), []);
    }

    /// Share of rows with a step, in per cent.
    fn with_step(kind: Kind, rows: u64) -> f64 {
        let mut random = Random::new(7);
        let found = (0..rows)
            .filter(|_| !change_points(&null_row(kind, 60, &mut random), 0.02).is_empty())
            .count();
        found as f64 / rows as f64 * 100.0
    }

    #[test]
    fn rows_without_a_step_have_none() {
        for kind in [
            Kind::Independent,
            Kind::Correlated(0.3),
            Kind::Correlated(0.5),
            Kind::Bursts,
            Kind::TwoModes,
            Kind::Skewed,
        ] {
            let found = with_step(kind, 400);
            assert!(found <= 2.0, "{kind:?}: {found} % of rows");
        }
    }

    #[test]
    fn five_per_cent_in_noise_of_one_are_found_after_five_runs() {
        let mut random = Random::new(11);
        let is_found = |_: &u64| {
            let half = null_row(Kind::Independent, 50, &mut random);
            // The simulated noise is 2 %.
            let quiet = half.iter().map(|x| x.sqrt());
            let values: Vec<f64> =
                quiet.enumerate().map(|(at, x)| if at < 45 { x } else { x * 1.05 }).collect();
            change_points(&values, 0.02).iter().any(|change| (43..=47).contains(&change.at))
        };
        let found = (0..400).filter(is_found).count();
        assert!(found >= 376, "{found} of 400");
    }
}
