//! Ratio of a quantile of two rows of samples that were taken in turn, with its interval.

use crate::Random;
use crate::{quantile, sorted, supports};

/// Number of resamples: the ends of a 95 % interval are the 50th of 2,000 from each side.
const RESAMPLES: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
}

/// Returns a quantile of `ours` over that of `theirs`, if sample k of one was taken beside sample k
/// of the other. The interval is a bootstrap over blocks of neighbouring pairs (Kuensch 1989,
/// Annals of Statistics 17), because a disturbance affects neighbouring pairs. `None` if the pairs
/// are too few for the quantile, or a quantile is not above zero.
pub fn quantile_ratio(ours: &[f64], theirs: &[f64], q: f64) -> Option<Ratio> {
    let n = ours.len().min(theirs.len());
    let usable = |row: &[f64]| row.iter().all(|x| x.is_finite() && *x > 0.0);
    if n == 0 || !supports(n, q) || !usable(&ours[..n]) || !usable(&theirs[..n]) {
        return None;
    }
    let of = |places: &[usize]| {
        let level = |row: &[f64]| {
            let taken: Vec<f64> = places.iter().map(|at| row[*at]).collect();
            quantile(&sorted(&taken), q)
        };
        level(ours) / level(theirs)
    };
    let all: Vec<usize> = (0..n).collect();
    let mut random = Random::new(1);
    let resampled: Vec<f64> = (0..RESAMPLES).map(|_| of(&blocks(n, &mut random))).collect();
    let resampled = sorted(&resampled);
    Some(Ratio {
        ratio: of(&all),
        low: quantile(&resampled, 0.025),
        high: quantile(&resampled, 0.975),
    })
}

/// Draws `n` places in circular blocks of about the cube root of `n`.
fn blocks(n: usize, random: &mut Random) -> Vec<usize> {
    let length = (n as f64).cbrt().round().max(1.0) as usize;
    let mut places = Vec::with_capacity(n + length);
    while places.len() < n {
        let start = (random.uniform() * n as f64) as usize;
        places.extend((start..start + length).map(|at| at % n));
    }
    places.truncate(n);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row around a level: never far below, now and then far above, slower for some time.
    fn row(level: f64, n: usize, random: &mut Random) -> Vec<f64> {
        let one = |at: usize| {
            let slower = if at % 60 < 15 { 1.2 } else { 1.0 };
            let disturbed = if random.uniform() < 0.3 { 1.5 } else { 1.0 };
            level * slower * disturbed * (1.0 + 0.02 * random.normal().abs())
        };
        (0..n).map(one).collect()
    }

    #[test]
    fn nineteen_of_twenty_intervals_hold_the_true_ratio() {
        const ROWS: usize = 40;
        let (mut held, mut widest) = (0, 0.0_f64);
        let mut random = Random::new(7);
        for _ in 0..ROWS {
            let (ours, theirs) = (row(187.0, 201, &mut random), row(170.0, 201, &mut random));
            let found = quantile_ratio(&ours, &theirs, 0.05).unwrap();
            assert!(found.low <= found.ratio && found.ratio <= found.high, "{found:?}");
            held += usize::from((found.low..=found.high).contains(&1.1));
            widest = widest.max(found.high - found.low);
        }
        // 95 % of 40 are 38; fewer than 33 come once in a thousand.
        assert!(held >= 33, "{held} of {ROWS}");
        assert!(widest < 0.05, "{widest}");
    }

    #[test]
    fn what_says_nothing_has_no_ratio() {
        let row = vec![1.0; 58];
        assert_eq!(quantile_ratio(&row, &row, 0.05), None, "59 are needed");
        let row = vec![2.0; 59];
        let same = quantile_ratio(&row, &row, 0.05).unwrap();
        assert_eq!((same.ratio, same.low, same.high), (1.0, 1.0, 1.0));
        let mut bad = row.clone();
        bad[3] = 0.0;
        assert_eq!(quantile_ratio(&row, &bad, 0.05), None);
        assert_eq!(quantile_ratio(&[], &[], 0.5), None);
    }
}
