//! Steps in a row of values over time.
//!
//! Runs of one point resemble their neighbours, because a host changes over minutes and hours. A
//! step therefore counts only if it is larger than the correlation of the row explains. In order:
//!
//! 1. Candidates by optimal partitioning (Jackson et al. 2005) of the logarithms.
//! 2. Forward selection: the strongest candidate is accepted while its z, with the long-run
//!    variance of an AR(1) process fitted to differences of neighbours, reaches a gate that grows
//!    with the number of rows that are judged together. Levels of a few values that come back are
//!    excursions of the host, not steps.
//! 3. A slope that explains the values better than the step is a drift, not a step.

use std::ops::Range;

use crate::{MAD_TO_SIGMA, mad, middle, sorted};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub at: usize,
    /// First and last index at which the new level may have begun, with 95 % confidence.
    pub between: (usize, usize),
    pub ratio: f64,
    /// Step in standard errors of the difference of its levels, correlation included.
    pub z: f64,
}

const MIN_LEVEL: usize = 3;
/// Fewest values of the first and of the last level. A step must be visible after five runs of the
/// last level.
const MIN_BEGIN: usize = 6;
const MIN_END: usize = 5;
/// Fewest values of a row that can have a step.
pub const MIN_STEP_VALUES: usize = MIN_BEGIN + MIN_END;
/// Most values of an excursion, a level that comes back and is no step.
const MAX_EXCURSION: usize = 6;
/// Distance of a wild value in units of the clipping bound.
const WILD: f64 = 4.0;
const MAX_LEVELS_OUT: usize = 3;
/// Penalty of a candidate in units of ln n: twice that of the Bayesian criterion.
const PENALTY: f64 = 4.0;
/// Least z of a step in one row. At 60 values it keeps false steps below 2 % of rows of correlation
/// 0.5, of two modes, of bursts and of skewed values (`rows_without_a_step_have_none`).
const GATE: f64 = 4.25;
/// Addition to the gate for a pair of steps, because there are many more pairs.
const PAIR_MARGIN: f64 = 1.5;
/// Addition to the correlation, which an estimate from 60 values often understates.
const CORRELATION_MARGIN: f64 = 0.1;

/// Returns the steps of a row of positive values, in order, that exceed `ignore` (0.02 is 2 %). The
/// gate holds for `rows` rows that are judged together.
pub fn change_points(values: &[f64], ignore: f64, rows: usize) -> Vec<Change> {
    let is_short = values.len() < MIN_STEP_VALUES;
    if is_short || values.iter().any(|x| !x.is_finite() || *x <= 0.0) {
        return Vec::new();
    }
    let series = Series::of(values.iter().map(|x| x.ln()).collect());
    let gate = (GATE * GATE + 2.0 * (rows.max(1) as f64).ln()).sqrt();
    let accepted = series.accept(gate);
    let inner = accepted.iter().map(|(at, _)| *at);
    let bounds: Vec<usize> = [0].into_iter().chain(inner).chain([values.len()]).collect();
    let change = |(window, (_, z)): (&[usize], &(usize, f64))| {
        let (from, at, to) = (window[0], window[1], window[2]);
        let ratio = (middle(&series.logs[at..to]) - middle(&series.logs[from..at])).exp();
        let counts = ratio.ln().abs() > ignore.ln_1p() && !series.is_slope([from, at, to]);
        counts.then(|| Change { at, between: series.between([from, at, to]), ratio, z: *z })
    };
    bounds.windows(3).zip(&accepted).filter_map(change).collect()
}

/// Logarithms of a row, with running sums for means and squares of any range.
struct Series {
    logs: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
}

impl Series {
    fn of(logs: Vec<f64>) -> Series {
        let running = |power: i32| {
            let sums = logs.iter().scan(0.0, |sum, x| {
                *sum += x.powi(power);
                Some(*sum)
            });
            std::iter::once(0.0).chain(sums).collect()
        };
        Series { first: running(1), second: running(2), logs }
    }

    fn clipped(&self) -> (Series, bool) {
        let logs = &self.logs;
        let around = |at: usize| middle(&logs[at.saturating_sub(2)..(at + 3).min(logs.len())]);
        let residuals: Vec<f64> = (0..logs.len()).map(|at| logs[at] - around(at)).collect();
        let bound = (3.0 * MAD_TO_SIGMA * mad(&sorted(&residuals))).max(1e-4);
        let has_wild_values = residuals.iter().any(|far| far.abs() > WILD * bound);
        let clip = |(x, far): (&f64, &f64)| x - far + far.clamp(-bound, bound);
        (Series::of(logs.iter().zip(&residuals).map(clip).collect()), has_wild_values)
    }

    fn mean(&self, from: usize, to: usize) -> f64 {
        (self.first[to] - self.first[from]) / (to - from) as f64
    }

    fn squares(&self, from: usize, to: usize) -> f64 {
        let sum = self.first[to] - self.first[from];
        (self.second[to] - self.second[from] - sum * sum / (to - from) as f64).max(0.0)
    }

    /// Returns the bounds of levels, 0 and n included: exact least squares with a penalty for each.
    fn partition(&self) -> Vec<usize> {
        let n = self.logs.len();
        let steps: Vec<f64> = self.logs.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // A step hardly changes the differences of neighbours, so the noise comes from them.
        let sigma = (MAD_TO_SIGMA * mad(&sorted(&steps)) / std::f64::consts::SQRT_2).max(1e-4);
        let penalty = PENALTY * (n as f64).ln();
        let (mut best, mut last) = (vec![f64::INFINITY; n + 1], vec![0; n + 1]);
        best[0] = -penalty;
        for to in MIN_LEVEL..=n {
            for from in (0..=to - MIN_LEVEL).filter(|from| *from == 0 || *from >= MIN_LEVEL) {
                let total = best[from] + self.squares(from, to) / sigma.powi(2) + penalty;
                if total < best[to] {
                    (best[to], last[to]) = (total, from);
                }
            }
        }
        let before = |at: &usize| (*at > 0).then(|| last[*at]);
        let mut bounds: Vec<usize> = std::iter::successors(Some(n), before).collect();
        bounds.reverse();
        bounds
    }

    /// Returns the inner bounds without those of excursions; true if there are any.
    fn candidates(&self) -> (Vec<usize>, bool) {
        let (clipped, has_wild_values) = self.clipped();
        let mut bounds = clipped.partition();
        let all = bounds.len();
        let excursion = |bounds: &[usize]| {
            let levels = (1..=MAX_LEVELS_OUT).flat_map(|count| {
                (1..(bounds.len() - 1).saturating_sub(count)).map(move |at| at..at + count)
            });
            levels.into_iter().find(|levels| self.comes_back(bounds, levels))
        };
        while let Some(levels) = excursion(&bounds) {
            bounds.drain(levels.start..=levels.end);
        }
        let has_excursions = has_wild_values || bounds.len() < all;
        (bounds[1..bounds.len() - 1].to_vec(), has_excursions)
    }

    /// Tests if the levels before and after are much nearer to each other than to these levels.
    fn comes_back(&self, bounds: &[usize], levels: &Range<usize>) -> bool {
        let level = |at: usize| middle(&self.logs[bounds[at]..bounds[at + 1]]);
        let (before, after) = (level(levels.start - 1), level(levels.end));
        let from_either = |at| (level(at) - before).abs().min((level(at) - after).abs());
        let jump = levels.clone().map(from_either).fold(f64::INFINITY, f64::min);
        // Excursions may touch; neighbours of one level are one.
        let touch = levels.clone().skip(1).all(|at| (level(at) - level(at - 1)).abs() > 0.2 * jump);
        let max = if levels.len() > 1 && touch { 2 * MAX_EXCURSION } else { MAX_EXCURSION };
        let length = bounds[levels.end] - bounds[levels.start];
        length <= max && (after - before).abs() < 0.5 * jump
    }

    /// Returns the places of steps, in order, with their z. It tries single steps and pairs,
    /// because two steps can hide each other.
    fn accept(&self, gate: f64) -> Vec<(usize, f64)> {
        let (mut candidates, has_excursions) = self.candidates();
        // On a host with excursions the first and the last level may be one.
        let ends = if has_excursions { [MAX_EXCURSION + 1; 2] } else { [MIN_BEGIN, MIN_END] };
        let mut accepted: Vec<(usize, f64)> = Vec::new();
        loop {
            let places: Vec<usize> = accepted.iter().map(|(at, _)| *at).collect();
            let pairs = candidates
                .iter()
                .enumerate()
                .flat_map(|(nth, low)| candidates[nth..].iter().map(move |high| (*low, *high)));
            let tried = pairs.filter_map(|(low, high)| {
                let z = self.z(ends, &places, low, high)?;
                let needed = gate + if low < high { PAIR_MARGIN } else { 0.0 };
                (z >= needed).then_some((low, high, z))
            });
            let Some((low, high, z)) = tried.max_by(|a, b| a.2.total_cmp(&b.2)) else {
                return accepted;
            };
            candidates.retain(|other| *other != low && *other != high);
            accepted.push((low, z));
            accepted.extend((low < high).then_some((high, z)));
            accepted.sort_by_key(|(at, _)| *at);
        }
    }

    /// Returns the difference of the levels on both sides of a step, or inside and outside of a
    /// pair, in standard errors. The values lie between accepted steps. `None` if a level is too
    /// short, or an accepted step lies inside the pair.
    fn z(&self, ends: [usize; 2], accepted: &[usize], low: usize, high: usize) -> Option<f64> {
        let from = accepted.iter().copied().filter(|place| *place < low).max();
        let to = accepted.iter().copied().filter(|place| *place > low).min();
        let (first, last) = (from.unwrap_or(0), to.unwrap_or(self.logs.len()));
        let before = from.map_or(ends[0], |_| MIN_LEVEL);
        let after = to.map_or(ends[1], |_| MIN_LEVEL);
        if low < first + before || last < high + after {
            return None;
        }
        let breaks: Vec<usize> = accepted.iter().copied().chain([low, high]).collect();
        let variance = long_run_variance(&self.logs, &breaks);
        let inside = if low == high { low..last } else { low..high };
        let (within, all) = (inside.len() as f64, (last - first) as f64);
        let inner = self.mean(inside.start, inside.end);
        let outer = (self.mean(first, last) * all - inner * within) / (all - within);
        let error = (variance * (1.0 / within + 1.0 / (all - within))).sqrt();
        Some((inner - outer).abs() / error)
    }

    fn is_slope(&self, [from, at, to]: [usize; 3]) -> bool {
        if at - from <= MIN_END || to - at <= MIN_END {
            return false;
        }
        let n = (to - from) as f64;
        let (center, mean) = ((n - 1.0) / 2.0, self.mean(from, to));
        let product = |(x, y): (usize, &f64)| (x as f64 - center) * (y - mean);
        let covariance: f64 = self.logs[from..to].iter().enumerate().map(product).sum();
        let spread = n * (n * n - 1.0) / 12.0;
        let line = self.squares(from, to) - covariance * covariance / spread;
        line < self.squares(from, at) + self.squares(at, to)
    }

    /// Returns the range in which the new level may have begun. The likelihood there is at least a
    /// seventh of the maximum. That holds 95 % of a normal likelihood: 1.96 squared is 2 ln 6.8.
    fn between(&self, [from, at, to]: [usize; 3]) -> (usize, usize) {
        let left = |place: usize| self.squares(from, place) + self.squares(place, to);
        let variance = (left(at) / (to - from) as f64).max(1e-8);
        let likely = |place: &usize| left(*place) - left(at) <= 3.84 * variance;
        let low = (from + 1..at).rev().take_while(likely).last();
        let high = (at + 1..to).take_while(likely).last();
        (low.unwrap_or(at), high.unwrap_or(at))
    }
}

/// Returns n times the variance of the mean of n values of an AR(1) process. It uses differences of
/// values one, two and three places apart that cross no break.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use crate::simulated::{Kind, null_row};

    fn steady(level: f64, n: usize) -> Vec<f64> {
        let row = null_row(Kind::Independent, n, &mut Random::new(n as u64));
        row.into_iter().map(|x| level * x.sqrt()).collect()
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        let values = [steady(100.0, 12), steady(108.0, 9)].concat();
        let changes = change_points(&values, 0.02, 1);
        assert_eq!(changes.len(), 1, "{changes:?}");
        let Change { at, ratio, between, .. } = changes[0];
        assert!((11..=13).contains(&at) && (ratio - 1.08).abs() < 0.015);
        assert!(between.0 <= 12 && 12 <= between.1, "{changes:?}");
    }

    #[test]
    fn down_and_up_again_are_two() {
        let values = [steady(100.0, 10), steady(80.0, 10), steady(100.0, 10)].concat();
        let found = change_points(&values, 0.02, 1);
        let places: Vec<usize> = found.iter().map(|change| change.at).collect();
        assert_eq!(places, [10, 20]);
    }

    #[test]
    fn noise_and_one_wild_run_are_no_step() {
        assert_eq!(change_points(&steady(100.0, 40), 0.02, 1), []);
        let mut wild = steady(100.0, 40);
        wild[20] = 300.0;
        assert_eq!(change_points(&wild, 0.02, 1), []);
    }

    #[test]
    fn what_comes_back_and_slow_growth_are_no_step() {
        let mut values = steady(100.0, 40);
        values[20..24].iter_mut().for_each(|x| *x *= 1.3);
        assert_eq!(change_points(&values, 0.02, 1), []);
        let grown = steady(100.0, 60).into_iter().enumerate();
        let grown: Vec<f64> = grown.map(|(at, x)| x * (0.004 * at as f64).exp()).collect();
        assert_eq!(change_points(&grown, 0.02, 1), []);
    }

    #[test]
    fn rows_that_are_short_or_equal_or_no_numbers_have_none() {
        assert_eq!(change_points(&[1.0, 2.0], 0.02, 1), []);
        assert_eq!(change_points(&[5.0; 50], 0.02, 1), []);
        assert_eq!(change_points(&[f64::NAN; 50], 0.02, 1), []);
        assert_eq!(change_points(&[], 0.02, 1), []);
    }

    fn with_step(kind: Kind, rows: u64) -> f64 {
        let mut random = Random::new(7);
        let found = (0..rows)
            .filter(|_| !change_points(&null_row(kind, 60, &mut random), 0.02, 1).is_empty())
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
            change_points(&values, 0.02, 1).iter().any(|change| (43..=47).contains(&change.at))
        };
        let found = (0..2000).filter(is_found).count();
        assert!(found >= 1880, "{found} of 2000");
    }
}
