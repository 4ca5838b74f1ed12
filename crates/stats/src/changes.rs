//! Where a row of values over time took a step.

use crate::{MAD_TO_SIGMA, mad, quantile, sorted};

/// A step: from this index on the level is another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Index of the first value of the new level.
    pub at: usize,
    /// Level after over level before.
    pub ratio: f64,
}

/// Fewest values of a level.
const FEWEST: usize = 3;
/// Penalty of a step, in units of ln n: twice what the Bayesian criterion asks for, because rows of measurements are not
/// normally distributed.
const PENALTY: f64 = 4.0;

/// Steps in a row of positive values, in order. Logarithms are clipped at three robust deviations from the median of five
/// neighbours, so that a single wild run is none; then segments of equal level are sought exactly (optimal partitioning, Jackson et
/// al. 2005, least squares with the penalty above). Steps below `ignore` are passed over.
pub fn change_points(values: &[f64], ignore: f64) -> Vec<Change> {
    let n = values.len();
    if n < 2 * FEWEST || values.iter().any(|x| !x.is_finite() || *x <= 0.0) {
        return Vec::new();
    }
    let logs = clipped(&values.iter().map(|x| x.ln()).collect::<Vec<_>>());
    // Noise from differences of neighbours, which a step hardly moves.
    let steps: Vec<f64> = logs.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let sigma = (MAD_TO_SIGMA * mad(&sorted(&steps)) / std::f64::consts::SQRT_2).max(1e-4);
    let sums = |power: i32| -> Vec<f64> {
        std::iter::once(0.0)
            .chain(logs.iter().scan(0.0, |sum, x| {
                *sum += x.powi(power);
                Some(*sum)
            }))
            .collect()
    };
    let (first, second) = (sums(1), sums(2));
    let cost = |from: usize, to: usize| {
        let sum = first[to] - first[from];
        (second[to] - second[from] - sum * sum / (to - from) as f64) / sigma.powi(2)
    };
    let penalty = PENALTY * (n as f64).ln();
    let (mut best, mut last) = (vec![f64::INFINITY; n + 1], vec![0; n + 1]);
    best[0] = -penalty;
    for to in FEWEST..=n {
        for from in (0..=to - FEWEST).filter(|&from| from == 0 || from >= FEWEST) {
            let total = best[from] + cost(from, to) + penalty;
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
    let level = |from: usize, to: usize| quantile(&sorted(&logs[from..to]), 0.5);
    let ratio =
        |window: &[usize]| (level(window[1], window[2]) - level(window[0], window[1])).exp();
    let changes = bounds.windows(3).map(|window| Change {
        at: window[1],
        ratio: ratio(window),
    });
    changes
        .filter(|change| change.ratio.ln().abs() > (1.0 + ignore).ln())
        .collect()
}

fn clipped(logs: &[f64]) -> Vec<f64> {
    let around = |at: usize| sorted(&logs[at.saturating_sub(2)..(at + 3).min(logs.len())]);
    let residuals: Vec<f64> = logs
        .iter()
        .enumerate()
        .map(|(at, x)| x - quantile(&around(at), 0.5))
        .collect();
    let most = (3.0 * MAD_TO_SIGMA * mad(&sorted(&residuals))).max(1e-4);
    logs.iter()
        .zip(&residuals)
        .map(|(x, residual)| x - residual + residual.clamp(-most, most))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row around a level with a fixed pattern of noise.
    fn row(level: f64, n: usize) -> Vec<f64> {
        (0..n)
            .map(|at| level * (1.0 + 0.01 * ((at * 7 % 11) as f64 / 5.0 - 1.0)))
            .collect()
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        let values = [row(100.0, 12), row(108.0, 9)].concat();
        let changes = change_points(&values, 0.02);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert!(
            (11..=13).contains(&changes[0].at) && (changes[0].ratio - 1.08).abs() < 0.015,
            "{changes:?}"
        );
    }

    #[test]
    fn down_and_up_again_are_two() {
        let values = [row(100.0, 10), row(80.0, 10), row(100.0, 10)].concat();
        let found = change_points(&values, 0.02);
        assert_eq!(
            found.iter().map(|change| change.at).collect::<Vec<_>>(),
            [10, 20]
        );
    }

    #[test]
    fn noise_and_one_wild_run_are_no_step() {
        assert_eq!(change_points(&row(100.0, 40), 0.02), []);
        let mut wild = row(100.0, 40);
        wild[20] = 300.0;
        assert_eq!(change_points(&wild, 0.02), []);
    }

    #[test]
    fn rows_that_are_short_or_equal_or_no_numbers_have_none() {
        assert_eq!(change_points(&[1.0, 2.0], 0.02), []);
        assert_eq!(change_points(&[5.0; 50], 0.02), []);
        assert_eq!(change_points(&[f64::NAN; 50], 0.02), []);
        assert_eq!(change_points(&[], 0.02), []);
    }
}
