//! Definition of a rate, and of its share of a limit. A rate is *sustained*: all bytes over all the
//! time that they took. The median of the samples is a latency: it ignores the duration of the slow
//! half. Limits are rates by the same definition, so shares compare equal quantities.

/// Number of blocks of consecutive samples whose means give the interval of a rate.
const BLOCKS: usize = 20;

/// Allowed standard deviation of one rate within an invocation.
const ALLOWED: f64 = 0.02;
/// Allowed factor between rate and limit, which are measured at different moments. Each varies by
/// the standard deviation that `compare` allows for single runs; 95 % of the differences stay below
/// 4.7 %.
const APART: f64 = 1.645 * std::f64::consts::SQRT_2 * ALLOWED;

/// Factor over the limit above which a rate is marked for any width of the intervals. Intervals of
/// few samples are so wide that a factor of 2.7 was not marked. The value leaves twice [`APART`]
/// for chance.
const REFUTED: f64 = 1.1;

/// A rate per second and its confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    pub per_s: f64,
    /// 95 % confidence interval; `None` with too few samples, or for a rate that was given and not
    /// measured.
    pub interval: Option<(f64, f64)>,
}

impl Rate {
    pub fn exactly(per_s: f64) -> Rate {
        Rate { per_s, interval: None }
    }

    pub fn low(&self) -> f64 {
        self.interval.map_or(self.per_s, |(low, _)| low)
    }

    pub fn high(&self) -> f64 {
        self.interval.map_or(self.per_s, |(_, high)| high)
    }

    #[must_use]
    pub fn times(&self, factor: f64) -> Rate {
        Rate {
            per_s: self.per_s * factor,
            interval: self.interval.map(|(low, high)| (low * factor, high * factor)),
        }
    }

    /// Returns the mean of rates that were measured together, e.g. of the lanes of a run. A
    /// disturbance of one affects the others, so their intervals are averaged. `None` without
    /// rates; no interval if a rate has none.
    pub fn mean_of(rates: &[Rate]) -> Option<Rate> {
        let n = rates.len() as f64;
        let mean = |of: fn(&Rate) -> f64| rates.iter().map(of).sum::<f64>() / n;
        let all_known = rates.iter().all(|rate| rate.interval.is_some());
        let interval = all_known.then(|| (mean(Rate::low), mean(Rate::high)));
        (!rates.is_empty()).then(|| Rate { per_s: mean(|rate| rate.per_s), interval })
    }
}

/// Returns the sustained rate of samples that moved `per_sample` each: the total over the sum of
/// their times. `None` without samples, without time, or without bytes. Its interval is that of the
/// mean time of a sample, see [`mean_interval`].
pub fn sustained(per_sample: f64, sample_ns: &[u64]) -> Option<Rate> {
    let times: Vec<f64> = sample_ns.iter().map(|&ns| ns as f64).collect();
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let rate = |ns: f64| per_sample / ns * 1e9;
    let interval = mean_interval(&times).map(|(low, high)| (rate(high), rate(low)));
    let is_rate = mean > 0.0 && per_sample > 0.0 && rate(mean).is_finite();
    is_rate.then(|| Rate { per_s: rate(mean), interval })
}

/// Returns the 95 % confidence interval of the mean of samples in the order of measurement. It uses
/// the means of up to 20 blocks of consecutive samples and Student's factor (batch means; Law,
/// Simulation Modeling and Analysis, 9.5.3), because neighbours are correlated. The ends are
/// equally far from the mean by ratio: a time is positive, and a few slow samples raise its mean.
/// `None` below two samples, or if the mean is not above zero.
pub fn mean_interval(samples: &[f64]) -> Option<(f64, f64)> {
    let n = samples.len();
    let blocks = n.min(BLOCKS);
    if blocks < 2 {
        return None;
    }
    let total = n as f64;
    let mean = samples.iter().sum::<f64>() / total;
    let squares: f64 = (0..blocks)
        .map(|block| {
            let own = &samples[block * n / blocks..(block + 1) * n / blocks];
            // Deviation of the block's sum: blocks of unequal length weigh by their length.
            (own.iter().sum::<f64>() - mean * own.len() as f64).powi(2)
        })
        .sum();
    let freedom = (blocks - 1) as f64;
    let half = crate::student(freedom, 0.95) * (squares * blocks as f64 / freedom).sqrt() / total;
    let factor = (half / mean).exp();
    (mean > 0.0 && factor.is_finite()).then(|| (mean / factor, mean * factor))
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    pub fraction: f64,
    /// True if the rate exceeds the limit by more than both intervals and `APART` allow, or by
    /// more than a tenth. One of the two was then measured wrongly, and the share is meaningless.
    pub is_above: bool,
}

/// Compares a rate with its limit. `None` if either is not above zero.
pub fn share(rate: Rate, limit: Rate) -> Option<Share> {
    let usable = |rate: Rate| rate.per_s.is_finite() && rate.per_s > 0.0;
    (usable(rate) && usable(limit)).then(|| Share {
        fraction: rate.per_s / limit.per_s,
        is_above: rate.low() > limit.high() * (1.0 + APART) || rate.per_s > limit.per_s * REFUTED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn slow_samples_count_with_all_their_time() {
        // A disk: 60 % of the reads of 100 kB take 0.1 ms, 40 % take 10 ms.
        let ns: Vec<u64> =
            (0..1000).map(|at| if at % 5 < 3 { 100_000 } else { 10_000_000 }).collect();
        let rate = sustained(100_000.0, &ns).unwrap();
        assert!((rate.per_s / (1e5 / 4.06e-3) - 1.0).abs() < 1e-9, "{rate:?}");
        assert!(rate.low() <= rate.per_s && rate.per_s <= rate.high() && rate.interval.is_some());
    }

    #[test]
    fn nothing_moved_or_no_time_is_no_rate() {
        for (per_sample, ns) in [(0.0, &[1, 2][..]), (1.0, &[]), (1.0, &[0, 0]), (f64::NAN, &[1])] {
            assert_eq!(sustained(per_sample, ns), None);
        }
        assert_eq!(sustained(2.0, &[4]), Some(Rate::exactly(0.5e9)));
    }

    /// Counts in how many of 400 rows the interval covers the true mean of `n` correlated samples.
    fn covered(n: usize, kept: f64) -> usize {
        let mut random = Random::new(3);
        let hits = (0..400).filter(|_| {
            let mut last = 1.0;
            let samples: Vec<f64> = (0..n)
                .map(|_| {
                    // Exponential with mean 1, and its moving average, which also has mean 1.
                    last = kept * last - (1.0 - kept) * random.uniform().ln();
                    last
                })
                .collect();
            let (low, high) = mean_interval(&samples).unwrap();
            low <= 1.0 && 1.0 <= high
        });
        hits.count()
    }

    #[test]
    fn the_interval_covers_the_true_mean_about_as_often_as_it_says() {
        for (n, kept) in [(20, 0.0), (200, 0.0), (2000, 0.0), (2000, 0.9)] {
            let hits = covered(n, kept);
            assert!((356..=396).contains(&hits), "{n} samples, {kept} kept: {hits} of 400");
        }
    }

    #[test]
    fn an_interval_needs_two_samples_and_stays_above_zero() {
        assert_eq!((mean_interval(&[5.0]), mean_interval(&[0.0, 0.0])), (None, None));
        assert_eq!(mean_interval(&[5.0, 5.0]), Some((5.0, 5.0)));
        let (low, high) = mean_interval(&[1.0, 100.0]).unwrap();
        assert!(low > 0.0 && high > 1e4, "two such samples say next to nothing");
        // By hand: sums of the halves differ from the mean by 0.5, 12.706 x sqrt(2 x 2 x 0.25) / 2
        // = 6.353.
        let (low, high) = mean_interval(&[5.0, 6.0]).unwrap();
        assert!(
            (high / 5.5 - (6.353_102_f64 / 5.5).exp()).abs() < 1e-6
                && (low * high - 5.5 * 5.5).abs() < 1e-9
        );
    }

    #[test]
    fn a_rate_is_above_its_limit_only_beyond_both_intervals() {
        let rate = |per_s: f64, low: f64, high: f64| Rate { per_s, interval: Some((low, high)) };
        let above = |rate, limit| share(rate, limit).unwrap().is_above;
        assert!(above(rate(3.06, 3.0, 3.1), rate(1.0, 0.9, 1.1)));
        assert!(!above(rate(1.08, 1.0, 1.3), rate(1.0, 0.9, 1.1)), "the intervals overlap");
        // Regression: 2.7 times the limit was not marked, because intervals of three samples are
        // wide.
        assert!(above(rate(2.7, 0.8, 9.1), rate(1.0, 0.5, 2.0)));
        assert!(!above(Rate::exactly(1.04), Rate::exactly(1.0)), "they are not of the same moment");
        assert!(above(Rate::exactly(1.06), Rate::exactly(1.0)));
        assert_eq!(share(Rate::exactly(1.0), Rate::exactly(4.0)).unwrap().fraction, 0.25);
        for nothing in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(share(Rate::exactly(nothing), Rate::exactly(1.0)), None);
            assert_eq!(share(Rate::exactly(1.0), Rate::exactly(nothing)), None);
        }
    }

    #[test]
    fn lanes_are_averaged_with_their_intervals() {
        let rates = [
            Rate { per_s: 1.0, interval: Some((0.5, 2.0)) },
            Rate { per_s: 3.0, interval: Some((2.5, 4.0)) },
        ];
        assert_eq!(Rate::mean_of(&rates), Some(Rate { per_s: 2.0, interval: Some((1.5, 3.0)) }));
        assert_eq!(Rate::mean_of(&[rates[0], Rate::exactly(3.0)]), Some(Rate::exactly(2.0)));
        assert_eq!(Rate::mean_of(&[]), None);
    }
}
