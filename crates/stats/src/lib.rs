//! Statistics of raw samples. Nothing here reads a clock, drops a sample or knows the measured
//! quantity. A row with a value that is not finite has no statistics: the result is `None`. Begin
//! with [`Summary::of`].

#![allow(
    clippy::cast_possible_truncation,
    reason = "ranks are computed as f64 from slice lengths, which stay far below 2^53"
)]

mod changes;
mod compare;
mod level;
mod population;
mod random;
mod rate;

pub use changes::{Change, MIN_STEP_VALUES, change_points};
pub use compare::{Doubt, Effect, MIN_INSTANCES, Point, Terms, Verdict, compare};
pub use level::{Level, Located, SliceTime, Unit, least_sibling};
pub use population::{
    Borders, MIN_SIDE, NEAR, Place, Spread, Standing, between, others, two_kinds,
};
pub use random::Random;
pub use rate::{Rate, Share, mean_interval, share, sustained};

use statrs::distribution::{Beta, Binomial, ContinuousCDF, DiscreteCDF, StudentsT};

/// Factor from MAD to the standard deviation of normal data: 1 / quantile(3/4).
const MAD_TO_SIGMA: f64 = 1.4826;

/// Returns the factor of a two-sided interval by Student's t with that freedom, above 0.
fn student(freedom: f64, confidence: f64) -> f64 {
    let student = StudentsT::new(0.0, 1.0, freedom).expect("a freedom above 0");
    student.inverse_cdf(0.5 + confidence / 2.0)
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    pub n: usize,
    pub mean: f64,
    /// Sample variance (divided by n - 1); 0 for one sample.
    pub variance: f64,
    pub median: f64,
    pub mad: f64,
    pub min: f64,
    pub max: f64,
    /// 99th percentile, if there are enough samples for one, see [`supports`].
    pub p99: Option<f64>,
    pub median_ci: (f64, f64),
}

impl Summary {
    /// Summarises samples in the order of measurement; `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let n = samples.len();
        let sorted = row(samples)?;
        let mean = samples.iter().sum::<f64>() / n as f64;
        let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
        Some(Summary {
            n,
            mean,
            variance: squares / (n - 1).max(1) as f64,
            median: at(&sorted, 0.5),
            mad: mad(&sorted),
            min: sorted[0],
            max: sorted[n - 1],
            p99: supported_quantile(&sorted, 0.99),
            median_ci: median_ci(&sorted),
        })
    }

    pub fn relative_spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { self.mad * MAD_TO_SIGMA / self.median.abs() }
    }
}

pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Returns the values in ascending order; `None` without values, or if one is not finite.
fn row(values: &[f64]) -> Option<Vec<f64>> {
    let is_row = !values.is_empty() && values.iter().all(|value| value.is_finite());
    is_row.then(|| sorted(values))
}

/// Largest probability that all samples lie on one side of a quantile that is shown.
const UNSEEN: f64 = 0.05;

/// Tests if `n` samples support a quantile: at least one of them lies beyond it with 95 %. Then
/// `q^n` is at most 5 % (for low quantiles `(1 - q)^n`). That takes 29 samples for the 90th
/// percentile, 299 for the 99th, 2,995 for the 99.9th. With fewer, the largest sample would be
/// reported as the quantile.
pub fn supports(n: usize, q: f64) -> bool {
    let tail = q.max(1.0 - q);
    n as f64 * tail.ln() <= UNSEEN.ln()
}

/// Returns the quantile by linear interpolation between order statistics (Hyndman and Fan's type
/// 7), the definition of all tables. `sorted` ascends; `None` without values.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let is_row = sorted.first()?.is_finite() && sorted.last()?.is_finite();
    is_row.then(|| at(sorted, q))
}

/// Returns the quantile of values that are not empty.
fn at(sorted: &[f64], q: f64) -> f64 {
    let rank = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
    if low == high { low } else { low + (high - low) * rank.fract() }
}

/// Returns a quantile that the samples support, see [`supports`]. `sorted` ascends.
pub fn supported_quantile(sorted: &[f64], q: f64) -> Option<f64> {
    quantile(sorted, q).filter(|_| supports(sorted.len(), q))
}

/// Returns the unscaled median absolute deviation. `sorted` ascends and is not empty.
fn mad(sorted: &[f64]) -> f64 {
    let median = at(sorted, 0.5);
    middle(&sorted.iter().map(|x| (x - median).abs()).collect::<Vec<f64>>())
}

/// Returns the median of unsorted values, without a full sort. `None` without values.
pub fn median(samples: &[f64]) -> Option<f64> {
    let is_row = !samples.is_empty() && samples.iter().all(|value| value.is_finite());
    is_row.then(|| middle(samples))
}

/// Returns the median of values that are not empty.
fn middle(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    let n = values.len();
    let (below, upper, _) = values.select_nth_unstable_by(n / 2, f64::total_cmp);
    let upper = *upper;
    if n % 2 == 1 {
        return upper;
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if lower == upper { lower } else { lower + (upper - lower) * 0.5 }
}

/// Returns the 95 % confidence interval of the median: the narrowest symmetric pair of order
/// statistics with that coverage for any distribution (sign test; Conover, Practical Nonparametric
/// Statistics, 3.2). Below six samples no pair reaches it: the whole range then covers the median
/// with 1 - 2^(1-n). `sorted` ascends and is not empty.
fn median_ci(sorted: &[f64]) -> (f64, f64) {
    let depth = sign_test_depth(sorted.len()).max(1);
    (sorted[depth - 1], sorted[sorted.len() - depth])
}

/// Returns the deepest r at which P(Binomial(n, 1/2) < r) stays within 2.5 %; 0 if there is none.
fn sign_test_depth(n: usize) -> usize {
    let binomial = Binomial::new(0.5, n as u64).expect("one half is a probability");
    binomial.inverse_cdf(0.025) as usize
}

/// Returns the 95 % interval of a share by Clopper and Pearson (1934, Biometrika 26): `count` of a
/// number of independent trials, above 0.
pub fn share_interval(count: u64, of: u64) -> (f64, f64) {
    let (count, rest) = (count as f64, of.saturating_sub(count) as f64);
    let beta = |a, b, share| Beta::new(a, b).expect("above 0").inverse_cdf(share);
    let low = if count == 0.0 { 0.0 } else { beta(count, rest + 1.0, 0.025) };
    let high = if rest == 0.0 { 1.0 } else { beta(count + 1.0, rest, 0.975) };
    (low, high)
}

/// Trimmed mean of independent values of any sign, of which a fifth may be far off at either end
/// (Yuen 1974, Biometrika 61). Below five values nothing is trimmed.
#[derive(Clone, Copy, Debug)]
struct Trimmed {
    mean: f64,
    /// Number of values, and of those that are left.
    n: f64,
    left: f64,
    /// Sum of squares of the winsorised values around their mean.
    winsorised: f64,
}

/// `values` are not empty.
fn trimmed(values: &[f64]) -> Trimmed {
    let sorted = sorted(values);
    let (n, cut) = (sorted.len(), sorted.len() / 5);
    let (low, high) = (sorted[cut], sorted[n - 1 - cut]);
    let left = (n - 2 * cut) as f64;
    let clamped = || values.iter().map(|value| value.max(low).min(high));
    let centre = clamped().sum::<f64>() / n as f64;
    Trimmed {
        mean: sorted[cut..n - cut].iter().sum::<f64>() / left,
        n: n as f64,
        left,
        winsorised: clamped().map(|value| (value - centre).powi(2)).sum(),
    }
}

impl Trimmed {
    /// Returns the variance of a value times the freedom of its estimate, and that freedom.
    fn squares(self) -> (f64, f64) {
        (self.winsorised * self.n / self.left, self.left - 1.0)
    }
}

/// Returns a trimmed mean and its interval, (mean, low, high): Student's factor with the winsorised
/// variance. `None` below two values.
pub fn trimmed_interval(values: &[f64], confidence: f64) -> Option<(f64, f64, f64)> {
    let found = trimmed(&row(values).filter(|values| values.len() > 1)?);
    let (squares, freedom) = found.squares();
    let half = student(freedom, confidence) * (squares / freedom / found.n).sqrt();
    Some((found.mean, found.mean - half, found.mean + half))
}

/// Histogram with buckets that are about 3 % wide: quantiles of millions of values in little
/// memory.
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

    /// Returns the smallest value of a bucket and the number of its values.
    fn range(bucket: usize) -> (u64, u64) {
        let octave = bucket >> OCTAVE_BITS;
        if octave < 2 {
            return (bucket as u64, 1);
        }
        let shift = octave - 1;
        (((bucket - (shift << OCTAVE_BITS)) as u64) << shift, 1 << shift)
    }

    pub fn add(&mut self, value: u64) {
        self.counts[LogHistogram::bucket(value)] += 1;
        self.total += 1;
        self.most = self.most.max(value);
    }

    pub fn merge(&mut self, other: &LogHistogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.most = self.most.max(other.most);
    }

    pub fn count(&self) -> u64 {
        self.total
    }

    pub fn max(&self) -> u64 {
        self.most
    }

    /// Returns the value below which that share of all values lies, to the middle of its bucket; 0
    /// without values.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank among the values"
    )]
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = (self.total as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reaches = |count: &u64| {
            seen += count;
            seen >= rank
        };
        self.counts.iter().position(reaches).map_or(0, |bucket| {
            let (from, width) = LogHistogram::range(bucket);
            (from + width / 2).min(self.most)
        })
    }

    /// Returns a quantile if there are enough values for it, see [`supports`].
    pub fn supported_quantile(&self, share: f64) -> Option<u64> {
        supports(usize::try_from(self.total).unwrap_or(usize::MAX), share)
            .then(|| self.quantile(share))
    }

    /// Iterates over the buckets that are not empty: smallest value, count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let full = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        full.map(|(bucket, count)| (LogHistogram::range(bucket).0, *count))
    }
}

#[cfg(test)]
#[path = "../benches/simulated/mod.rs"]
mod simulated;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_ends_of_a_share_s_interval_leave_2_5_per_cent_outside() {
        assert_eq!((share_interval(0, 10).0, share_interval(10, 10).1), (0.0, 1.0));
        for (count, of) in [(1, 10), (1, 990), (7, 20), (9, 10)] {
            let (low, high) = share_interval(count, of);
            let few = Binomial::new(high, of).unwrap().cdf(count);
            let many = Binomial::new(low, of).unwrap().sf(count - 1);
            assert!((few - 0.025).abs() < 1e-6 && (many - 0.025).abs() < 1e-6, "{few} {many}");
        }
    }

    #[test]
    fn quantiles_of_a_known_row() {
        let row = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&row, 0.5), Some(2.5));
        assert_eq!(quantile(&row, 0.0), Some(1.0));
    }

    #[test]
    fn student_s_interval_of_a_known_row() {
        // t(0.975, 3) = 3.1824; the standard deviation of 1, 2, 3, 4 is 1.2910.
        let (mean, low, high) = trimmed_interval(&[1.0, 2.0, 3.0, 4.0], 0.95).unwrap();
        assert!((mean - 2.5).abs() < 1e-12);
        assert!(
            (high - mean - 3.182_446 * 1.290_994 / 2.0).abs() < 1e-4
                && (mean - low - (high - mean)).abs() < 1e-9
        );
        assert_eq!(trimmed_interval(&[1.0], 0.95), None);
        // Yuen: 7 of 11 values are left; the winsorised values are 3 (three times), 2, 1 and their
        // negatives: 2 (27 + 4 + 1) = 64.
        let values: Vec<f64> = (-4..=4).map(f64::from).chain([1e9, -1e9]).collect();
        let (mean, low, high) = trimmed_interval(&values, 0.95).unwrap();
        assert!(mean.abs() < 1e-9 && (high + low).abs() < 1e-9);
        let half = 2.446_912 * (64.0_f64 / 42.0).sqrt();
        assert!((high - half).abs() < 1e-5, "{high} {half}");
    }

    #[test]
    fn the_spread_ignores_one_wild_sample() {
        let summary = Summary::of(&[10.0, 11.0, 9.0, 10.0, 10.5, 9.5, 1000.0]).unwrap();
        assert_eq!(summary.median, 10.0);
        assert_eq!(summary.max, 1000.0);
        assert!(summary.relative_spread() < 0.1);
    }

    #[test]
    fn not_a_number_gives_no_summary() {
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn the_interval_covers_the_true_median_at_least_as_often_as_it_says() {
        let mut random = Random::new(1);
        for n in [6, 31, 200, 1500] {
            let covered = (0..400).filter(|_| {
                let samples: Vec<f64> = (0..n).map(|_| random.uniform().powi(3)).collect();
                let (low, high) = median_ci(&sorted(&samples));
                low <= 0.125 && 0.125 <= high
            });
            assert!((374..=400).contains(&covered.count()), "{n} samples");
        }
    }

    #[test]
    fn the_depth_is_that_of_the_tables() {
        // Two-sided 95 %: tables of the sign test, e.g. Conover's A3.
        for (n, depth) in [(5, 0), (6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (30, 10), (100, 40)] {
            assert_eq!(sign_test_depth(n), depth, "{n} samples");
        }
    }

    #[test]
    fn a_percentile_needs_samples_beyond_it() {
        for (q, fewest) in [(0.5, 5), (0.9, 29), (0.1, 29), (0.99, 299), (0.999, 2995)] {
            assert!(supports(fewest, q) && !supports(fewest - 1, q), "{q}");
        }
        assert!(!supports(0, 0.5) && !supports(1_000_000, 1.0));
        let row = |n: u32| (0..n).map(f64::from).collect::<Vec<f64>>();
        assert_eq!(Summary::of(&row(298)).unwrap().p99, None);
        let p99 = Summary::of(&row(301)).unwrap().p99;
        assert_eq!((p99, supported_quantile(&row(301), 0.99)), (Some(297.0), Some(297.0)));
    }

    proptest! {
        #[test]
        fn selecting_the_middle_equals_sorting(samples in proptest::collection::vec(-1e6..1e6_f64, 1..60)) {
            prop_assert_eq!(median(&samples), quantile(&sorted(&samples), 0.5));
        }

        /// Regression: one run whose clock was not known ended a survey of half a minute.
        #[test]
        fn no_row_panics_and_each_statistic_of_it_is_a_number_or_none(
            values in proptest::collection::vec(any::<f64>(), 0..40),
            at in 0..40_usize, odd in proptest::sample::select(&[
                f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, f64::MAX, 1.0,
            ][..]),
        ) {
            let with_odd = || {
                let mut values: Vec<f64> = values.iter().map(|value| value % 1e9).collect();
                if let Some(value) = values.get_mut(at) { *value = odd; }
                values
            };
            let row = with_odd();
            let is_row = row.iter().all(|value| value.is_finite());
            let sorted = sorted(&row);
            prop_assert_eq!(Summary::of(&row).is_some(), is_row && !row.is_empty());
            prop_assert_eq!(trimmed_interval(&row, 0.95).is_some(), is_row && row.len() > 1);
            let numbers = [
                median(&row), quantile(&sorted, 0.3), supported_quantile(&sorted, 0.9),
                mean_interval(&row).map(|(low, _)| low), sustained(odd, &[1, 2]).map(|rate| rate.low()),
            ];
            prop_assert!(numbers.iter().flatten().all(|number| number.is_finite()), "{:?}", numbers);
            change_points(&row, 0.02, 1);
            let slice = |(at, ns): (usize, &f64)| SliceTime {
                ns: *ns, op_ns: *ns, is_lost: at % 7 == 0,
                chain_ns: row.get(at + 1).copied(), sibling_ns: row.get(at + 2).copied(),
            };
            let slices: Vec<SliceTime> = row.iter().enumerate().map(slice).collect();
            let least = least_sibling(&slices);
            let halves = slices.split_at(slices.len() / 2);
            let level = Level::of(&[halves.0.to_vec(), halves.1.to_vec()], least, true);
            let other = Level::of(&[slices], None, false);
            let point = Point {
                a: level.into_iter().collect(), b: other.into_iter().collect(),
                history: level.into_iter().chain(other).collect(), beyond: 0.0,
                slowed: [0.0; 2],
            };
            for in_turn in [false, true] {
                compare(std::slice::from_ref(&point), Terms { ignore: 0.02, looks: 1.0, in_turn });
            }
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
