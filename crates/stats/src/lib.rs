//! Slices in, numbers out: what a handful of raw samples says, and how far it can be trusted.
//!
//! Nothing here reads a clock, drops a sample or knows what is measured. Begin with [`Summary::of`].

#![allow(
    clippy::cast_possible_truncation,
    reason = "ranks are computed as f64 from slice lengths, which stay far below 2^53"
)]

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Resamples of the bootstrap; the interval's own error is then about 1 % of its width.
const RESAMPLES: usize = 1000;
/// Above this many samples the exact order-statistic interval replaces the bootstrap: both agree there, and it is O(n).
const BOOTSTRAP_MOST: usize = 2000;
/// MAD times this estimates the standard deviation of normal data: 1 / quantile(3/4).
const MAD_TO_SIGMA: f64 = 1.4826;
/// Iglewicz and Hoaglin's limit on the modified z-score.
const OUTLIER_SIGMAS: f64 = 3.5;

/// What the samples say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of samples.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Median absolute deviation from the median (not scaled).
    pub mad: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// 99th percentile (nearest rank).
    pub p99: f64,
    /// 95 % confidence interval of the median.
    pub median_ci: (f64, f64),
    /// Samples further than 3.5 robust standard deviations from the median. They are marked, never dropped.
    pub outliers: usize,
    /// Drift over the run as a fraction of the median, see [`drift`].
    pub drift: f64,
}

impl Summary {
    /// Summarises samples in the order in which they were taken; `None` when there are none or one is not a number.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        if samples.is_empty() || samples.iter().any(|x| x.is_nan()) {
            return None;
        }
        let sorted = sorted(samples);
        let median = quantile(&sorted, 0.5);
        Some(Summary {
            n: samples.len(),
            mean: samples.iter().sum::<f64>() / samples.len() as f64,
            median,
            mad: mad(&sorted),
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            p99: percentile(&sorted, 0.99),
            median_ci: median_ci(&sorted, 0x0DA9_3E7E_5EED),
            outliers: outliers(samples).iter().filter(|&&is| is).count(),
            drift: drift(samples),
        })
    }

    /// Spread relative to the median: robust standard deviation over median.
    pub fn relative_spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { self.mad * MAD_TO_SIGMA / self.median.abs() }
    }
}

/// The samples in ascending order.
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Quantile by linear interpolation between order statistics (Hyndman and Fan's type 7). `sorted` ascends; NaN if empty.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let rank = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = rank.floor() as usize;
    let above = rank.ceil() as usize;
    let (low, high) = (sorted[below], sorted[above]);
    if low == high { low } else { low + (high - low) * (rank - below as f64) }
}

/// Percentile by nearest rank: always one of the samples, as latencies want it. `sorted` ascends; NaN if empty.
pub fn percentile(sorted: &[f64], q: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let rank = (q.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Median absolute deviation from the median. `sorted` ascends.
pub fn mad(sorted: &[f64]) -> f64 {
    let median = quantile(sorted, 0.5);
    let mut deviations: Vec<f64> = sorted.iter().map(|x| (x - median).abs()).collect();
    deviations.sort_by(f64::total_cmp);
    quantile(&deviations, 0.5)
}

/// 95 % confidence interval of the median: percentile bootstrap with a seeded generator, or for many samples the
/// order-statistic interval from the normal approximation of the binomial. `sorted` ascends and is not empty.
pub fn median_ci(sorted: &[f64], seed: u64) -> (f64, f64) {
    let n = sorted.len();
    if n > BOOTSTRAP_MOST {
        let half_width = 1.96 * (n as f64).sqrt() / 2.0;
        let low = (n as f64 / 2.0 - half_width).floor().max(0.0) as usize;
        let high = (n as f64 / 2.0 + half_width).ceil() as usize;
        return (sorted[low], sorted[high.min(n - 1)]);
    }
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut medians: Vec<f64> = (0..RESAMPLES).map(|_| resampled_median(sorted, &mut generator)).collect();
    medians.sort_by(f64::total_cmp);
    (quantile(&medians, 0.025), quantile(&medians, 0.975))
}

/// Median of one resample. Drawing ranks and counting them is enough, since `sorted` already ascends.
fn resampled_median(sorted: &[f64], generator: &mut Xoshiro256PlusPlus) -> f64 {
    let n = sorted.len();
    let mut drawn = vec![0_u32; n];
    for _ in 0..n {
        // Multiply-shift maps 64 random bits to 0..n; its bias is below n / 2^64.
        let at = ((u128::from(generator.next_u64()) * n as u128) >> 64) as usize;
        drawn[at] += 1;
    }
    let (lower_rank, upper_rank) = ((n - 1) / 2, n / 2);
    let mut seen = 0;
    let mut lower = None;
    for (value, &times) in sorted.iter().zip(&drawn) {
        seen += times as usize;
        if lower.is_none() && seen > lower_rank {
            lower = Some(*value);
        }
        if seen > upper_rank {
            return (lower.unwrap_or(*value) + value) / 2.0;
        }
    }
    sorted[n - 1]
}

/// For each sample, whether it lies further than 3.5 robust standard deviations from the median.
/// With a zero MAD nothing is marked: more than half the samples are equal, and any distance would be infinite.
pub fn outliers(samples: &[f64]) -> Vec<bool> {
    let sorted = sorted(samples);
    let median = quantile(&sorted, 0.5);
    let limit = OUTLIER_SIGMAS * MAD_TO_SIGMA * mad(&sorted);
    samples.iter().map(|x| limit > 0.0 && (x - median).abs() > limit).collect()
}

/// Drift: median of the last third minus median of the first third, as a fraction of the median of all.
/// Zero below six samples.
pub fn drift(samples: &[f64]) -> f64 {
    if samples.len() < 6 {
        return 0.0;
    }
    let third = samples.len() / 3;
    let median_of = |part: &[f64]| quantile(&sorted(part), 0.5);
    let all = median_of(samples);
    if all == 0.0 {
        return 0.0;
    }
    (median_of(&samples[samples.len() - third..]) - median_of(&samples[..third])) / all
}

/// Counts of values in buckets that are about 3 % wide: quantiles of millions of values in little memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHistogram {
    counts: Vec<u64>,
    total: u64,
    most: u64,
}

/// Buckets per factor of two, as a power of two.
const OCTAVE_BITS: u32 = 5;

impl Default for LogHistogram {
    fn default() -> Self {
        LogHistogram { counts: vec![0; (64 << OCTAVE_BITS) as usize], total: 0, most: 0 }
    }
}

impl LogHistogram {
    fn bucket(value: u64) -> usize {
        let shift = (63 - (value | 1).leading_zeros()).saturating_sub(OCTAVE_BITS);
        // Below 64 each value is a bucket; above, the highest six bits and their place tell it.
        (shift << OCTAVE_BITS) as usize + (value >> shift) as usize
    }

    /// Smallest value of a bucket, and how many it holds.
    fn range(bucket: usize) -> (u64, u64) {
        let octave = bucket >> OCTAVE_BITS;
        if octave < 2 {
            return (bucket as u64, 1);
        }
        let shift = octave - 1;
        (((bucket - (shift << OCTAVE_BITS)) as u64) << shift, 1 << shift)
    }

    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.counts[LogHistogram::bucket(value)] += 1;
        self.total += 1;
        self.most = self.most.max(value);
    }

    /// Adds all values of another.
    pub fn merge(&mut self, other: &LogHistogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.most = self.most.max(other.most);
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The largest value, exactly.
    pub fn max(&self) -> u64 {
        self.most
    }

    /// The value below which that share of all lies, to the middle of its bucket; 0 without values.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank among the values")]
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (self.total as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                let (from, width) = LogHistogram::range(bucket);
                return (from + width / 2).min(self.most);
            }
        }
        0
    }

    /// The buckets that are not empty: smallest value, count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let full = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        full.map(|(bucket, count)| (LogHistogram::range(bucket).0, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_of_a_known_row() {
        let row = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&row, 0.5), 2.5);
        assert_eq!(quantile(&row, 0.0), 1.0);
        assert_eq!(percentile(&row, 0.99), 4.0);
        assert_eq!(percentile(&row, 0.25), 1.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn the_spread_ignores_one_wild_sample() {
        let summary = Summary::of(&[10.0, 11.0, 9.0, 10.0, 10.5, 9.5, 1000.0]).unwrap();
        assert_eq!(summary.median, 10.0);
        assert_eq!(summary.outliers, 1);
        assert_eq!(summary.max, 1000.0);
        assert!(summary.relative_spread() < 0.1);
    }

    #[test]
    fn not_a_number_gives_no_summary() {
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_ramp_drifts_and_noise_does_not() {
        let ramp: Vec<f64> = (0..30).map(|i| 100.0 + f64::from(i)).collect();
        assert!(drift(&ramp) > 0.1);
        let flat: Vec<f64> = (0..30).map(|i| 100.0 + f64::from(i % 3)).collect();
        assert!(drift(&flat).abs() < 0.02);
    }

    #[test]
    fn the_bootstrap_covers_the_true_median_about_as_often_as_it_says() {
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(1);
        let rounds = 200;
        let covered = (0..rounds)
            .filter(|&round| {
                let samples: Vec<f64> = (0..31).map(|_| generator.next_u32() as f64 / f64::from(u32::MAX)).collect();
                let (low, high) = median_ci(&sorted(&samples), round);
                low <= 0.5 && 0.5 <= high
            })
            .count();
        assert!((180..=200).contains(&covered), "{covered} of {rounds}");
    }

    #[test]
    fn both_interval_methods_agree_where_they_meet() {
        let samples: Vec<f64> = (0..BOOTSTRAP_MOST).map(|i| (i as f64 * 0.618).fract()).collect();
        let bootstrap = median_ci(&sorted(&samples), 7);
        let mut more = samples.clone();
        more.push(0.5);
        let exact = median_ci(&sorted(&more), 7);
        assert!((bootstrap.0 - exact.0).abs() < 0.01 && (bootstrap.1 - exact.1).abs() < 0.01);
    }

    /// The plain bootstrap that the counting one must equal.
    fn naive_resampled_median(sorted_samples: &[f64], generator: &mut Xoshiro256PlusPlus) -> f64 {
        let n = sorted_samples.len();
        let drawn: Vec<f64> =
            (0..n).map(|_| sorted_samples[((u128::from(generator.next_u64()) * n as u128) >> 64) as usize]).collect();
        let drawn = sorted(&drawn);
        (drawn[(n - 1) / 2] + drawn[n / 2]) / 2.0
    }

    proptest! {
        #[test]
        fn counting_ranks_equals_sorting_the_resample(samples in proptest::collection::vec(-1e6..1e6_f64, 1..40), seed: u64) {
            let samples = sorted(&samples);
            let fast = resampled_median(&samples, &mut Xoshiro256PlusPlus::seed_from_u64(seed));
            let slow = naive_resampled_median(&samples, &mut Xoshiro256PlusPlus::seed_from_u64(seed));
            prop_assert_eq!(fast, slow);
        }

        #[test]
        fn the_numbers_keep_their_order(samples in proptest::collection::vec(-1e9..1e9_f64, 1..200)) {
            let s = Summary::of(&samples).unwrap();
            prop_assert!(s.min <= s.median && s.median <= s.max);
            prop_assert!(s.median <= s.p99 && s.p99 <= s.max);
            prop_assert!(s.median_ci.0 <= s.median_ci.1);
            prop_assert!(s.min <= s.median_ci.0 && s.median_ci.1 <= s.max);
        }
    }

    #[test]
    fn a_histogram_keeps_quantiles_to_3_percent() {
        let mut histogram = LogHistogram::default();
        let values: Vec<u64> = (1..=100_000_u64).map(|at| at * at % 9_999_991).collect();
        values.iter().for_each(|&value| histogram.add(value));
        let mut sorted = values;
        sorted.sort_unstable();
        for share in [0.01, 0.5, 0.9, 0.999] {
            let exact = sorted[(share * 1e5) as usize - 1] as f64;
            let found = histogram.quantile(share) as f64;
            assert!((found / exact - 1.0).abs() < 0.032, "{share}: {found} for {exact}");
        }
        assert_eq!((histogram.count(), histogram.quantile(1.0)), (100_000, histogram.max()));
        assert_eq!(LogHistogram::default().quantile(0.5), 0);
    }

    #[test]
    fn every_value_is_in_the_bucket_that_says_so() {
        for value in (0..70).chain([127, 128, 1000, 4095, 4096, u64::MAX / 2, u64::MAX]) {
            let (from, width) = LogHistogram::range(LogHistogram::bucket(value));
            assert!(from <= value && value - from < width, "{value}: {from} + {width}");
        }
    }
}
