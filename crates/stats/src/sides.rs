//! Sides of a compared point: occasions, their repetitions, and samples.

use crate::{BLOCKS, MAD_TO_SIGMA, mad, median, sorted};

/// Fewest occasions of a side from which the fastest and the slowest are trimmed (Yuen 1974), so
/// that a bad one has little effect.
const TRIMMED: usize = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Median: the time of one operation, however others were disturbed.
    #[default]
    Median,
    /// Mean: total time of all operations, as in a sustained rate.
    Mean,
}

impl Level {
    /// Returns the level of unsorted samples; NaN without samples.
    pub fn of(self, samples: &[f64]) -> f64 {
        match self {
            Level::Median => median(samples),
            Level::Mean => samples.iter().sum::<f64>() / samples.len() as f64,
        }
    }
}

/// One invocation of the program: its values of a point share its process, its memory and its
/// minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Occasion {
    /// Time in any unit; only the order counts.
    pub at: f64,
    /// Positive samples of each repetition, in the order of measurement.
    pub repetitions: Vec<Vec<f64>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    pub occasions: Vec<Occasion>,
    pub level: Level,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    pub a: Side,
    pub b: Side,
    /// Other occasions of this point on this host, outside of the sides: they show the variation
    /// between occasions.
    pub history: Vec<Occasion>,
    /// Number that points share if they share their records (lanes, stages): they are not
    /// independent.
    pub group: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) at: f64,
    pub(crate) log: f64,
    /// Standard deviation of the logarithm of one repetition; `None` for a single sample.
    pub(crate) within: Option<f64>,
}

impl Occasion {
    pub(crate) fn value(&self, level: Level) -> Option<Value> {
        let is_time = |x: &f64| x.is_finite() && *x > 0.0;
        let usable: Vec<&Vec<f64>> = self
            .repetitions
            .iter()
            .filter(|samples| !samples.is_empty() && samples.iter().all(is_time))
            .collect();
        let logs: Vec<f64> = usable.iter().map(|run| level.of(run).ln()).collect();
        let parts = match usable[..] {
            [] => return None,
            [only] => blocks(only).map(|block| level.of(block).ln()).collect(),
            _ => logs.clone(),
        };
        Some(Value {
            at: self.at,
            log: median(&logs),
            within: (parts.len() > 1).then(|| deviation(&parts)),
        })
    }
}

fn blocks(samples: &[f64]) -> impl Iterator<Item = &[f64]> {
    let count = BLOCKS.min(samples.len());
    let bound = move |at: usize| at * samples.len() / count;
    (0..count).map(move |at| &samples[bound(at)..bound(at + 1)])
}

/// Returns the robust standard deviation. For few values it is the larger of it and half the plain
/// one, because most of few may be equal.
fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    let plain = (squares / (values.len() - 1) as f64).sqrt();
    (MAD_TO_SIGMA * mad(&sorted(values))).max(plain / 2.0)
}

impl Side {
    pub(crate) fn values(&self) -> Vec<Value> {
        in_order(&self.occasions, self.level)
    }
}

pub(crate) fn in_order(occasions: &[Occasion], level: Level) -> Vec<Value> {
    let found = occasions.iter().filter_map(|occasion| occasion.value(level));
    let mut found: Vec<Value> = found.collect();
    found.sort_by(|a, b| a.at.total_cmp(&b.at));
    found
}

pub(crate) fn trimmed(n: usize) -> usize {
    n / TRIMMED
}

pub(crate) fn location_of(values: &[f64]) -> f64 {
    let (sorted, trimmed) = (sorted(values), trimmed(values.len()));
    let kept = &sorted[trimmed..sorted.len() - trimmed];
    kept.iter().sum::<f64>() / kept.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_occasion_is_its_middle_repetition() {
        let occasion =
            Occasion { at: 0.0, repetitions: vec![vec![1.0; 3], vec![2.0; 3], vec![100.0; 3]] };
        let value = occasion.value(Level::Median).unwrap();
        assert_eq!(value.log, 2.0_f64.ln());
        assert!(value.within.unwrap() > 0.5);
    }

    #[test]
    fn a_single_repetition_is_judged_by_its_blocks_and_a_single_sample_by_nothing() {
        let of = |samples: Vec<f64>| {
            let occasion = Occasion { at: 0.0, repetitions: vec![samples] };
            occasion.value(Level::Mean)
        };
        let halves = [vec![2.0; 50], vec![4.0; 50]].concat();
        assert!(of(halves).unwrap().within.unwrap() > 0.3);
        assert_eq!(of(vec![2.0; 100]).unwrap().within, Some(0.0));
        assert_eq!(of(vec![2.0]).unwrap().within, None);
        for bad in [vec![], vec![0.0], vec![f64::NAN, 1.0], vec![-1.0]] {
            assert!(of(bad).is_none());
        }
    }
}
