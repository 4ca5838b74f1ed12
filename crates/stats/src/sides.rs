//! What is compared: sides of a point, each a few occasions, each occasion a few repetitions, each
//! repetition its samples.

use crate::{BLOCKS, MAD_TO_SIGMA, mad, median, sorted};

/// Of so many occasions of a side the fastest and the slowest are trimmed (Yuen 1974): a bad one
/// does not move ten.
const TRIMMED: usize = 10;

/// What of many samples stands for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// The median: what one operation takes, whatever disturbed others.
    #[default]
    Median,
    /// The mean: all the time that all operations took, which a sustained rate is made of.
    Mean,
}

impl Level {
    /// The level of samples in any order; NaN without any.
    pub fn of(self, samples: &[f64]) -> f64 {
        match self {
            Level::Median => median(samples),
            Level::Mean => samples.iter().sum::<f64>() / samples.len() as f64,
        }
    }
}

/// One invocation of the program: what it measured of a point shares its process, its memory and
/// its minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Occasion {
    /// When, in any unit that grows; only the order counts.
    pub at: f64,
    /// Samples of each repetition, all above zero, in the order in which they were taken.
    pub repetitions: Vec<Vec<f64>>,
    /// Time of a control that loads the same resource, measured in this occasion, in any unit; none
    /// without one.
    pub control: Option<f64>,
}

/// One side of a point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// Occasions in any order.
    pub occasions: Vec<Occasion>,
    /// What of a repetition's samples stands for it; the same on both sides of a point.
    pub level: Level,
}

/// A point with its two sides and what is known besides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// What is compared with.
    pub a: Side,
    /// What is judged.
    pub b: Side,
    /// Other occasions of this point on this host, none of them in a side: they tell how much
    /// occasions differ.
    pub history: Vec<Occasion>,
    /// Points of one number share their records (lanes, stages): they are not independent.
    pub group: usize,
}

/// One occasion in numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) at: f64,
    /// Logarithm of the level.
    pub(crate) log: f64,
    /// Standard deviation of the logarithm of one repetition; none where there is a single sample.
    pub(crate) within: Option<f64>,
    /// Logarithm of the control's time.
    pub(crate) control: Option<f64>,
}

impl Occasion {
    /// None without a usable sample.
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
            control: self.control.map(f64::ln).filter(|log| log.is_finite()),
        })
    }
}

/// Consecutive blocks of the samples of a single repetition: its own halves of halves of halves.
fn blocks(samples: &[f64]) -> impl Iterator<Item = &[f64]> {
    let count = BLOCKS.min(samples.len());
    let bound = move |at: usize| at * samples.len() / count;
    (0..count).map(move |at| &samples[bound(at)..bound(at + 1)])
}

/// Robust standard deviation; of few values the larger of it and the plain one's half, since most
/// of few may be equal.
fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    let plain = (squares / (values.len() - 1) as f64).sqrt();
    (MAD_TO_SIGMA * mad(&sorted(values))).max(plain / 2.0)
}

impl Side {
    /// Values of the usable occasions in the order of their time.
    pub(crate) fn values(&self) -> Vec<Value> {
        in_order(&self.occasions, self.level)
    }
}

/// Values of the usable ones in the order of their time.
pub(crate) fn in_order(occasions: &[Occasion], level: Level) -> Vec<Value> {
    let found = occasions.iter().filter_map(|occasion| occasion.value(level));
    let mut found: Vec<Value> = found.collect();
    found.sort_by(|a, b| a.at.total_cmp(&b.at));
    found
}

/// Values that are trimmed at either end of so many.
pub(crate) fn trimmed(n: usize) -> usize {
    n / TRIMMED
}

/// Trimmed mean.
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
        let occasion = Occasion {
            at: 0.0,
            repetitions: vec![vec![1.0; 3], vec![2.0; 3], vec![100.0; 3]],
            control: None,
        };
        let value = occasion.value(Level::Median).unwrap();
        assert_eq!(value.log, 2.0_f64.ln());
        assert!(value.within.unwrap() > 0.5);
    }

    #[test]
    fn a_single_repetition_is_judged_by_its_blocks_and_a_single_sample_by_nothing() {
        let of = |samples: Vec<f64>| {
            let occasion = Occasion { at: 0.0, repetitions: vec![samples], control: None };
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
