//! Whether two sides differ, looked at after every pair, as often as one likes.
//!
//! An ordinary interval holds for a number of pairs that was fixed before. Who looks after each
//! pair and stops when the answer is pleasing is wrong far more often than the interval says. A
//! [`MedianSequence`] is a confidence *sequence*: with the stated confidence the true median lies
//! in all of its intervals, from the first pair to the last one, so that a test may stop as soon as
//! its question is decided.
//!
//! It asks of every value that might be the median whether the signs of the differences from it are
//! those of a fair coin. The bet against the coin is a mixture over all unfair ones (Ville's
//! inequality; Robbins 1970), which needs no variance and no normal distribution: a pair that
//! something disturbed is one sign, however far away it lies. It holds if each pair, whatever the
//! pairs before it were, lies above the median as often as below: between equal sides drawing lots
//! for the order makes sure of that, however slowly the host wanders. Pairs that resemble the ones
//! before make it wrong about an effect that wanders.
//!
//! The mixture gives every coin the same weight. Weights nearer to the fair one were tried (beta
//! priors of 2 to 16, effects of 0 to 1 % in noise of 0.3 to 1.5 %): they need more pairs for the
//! clear cases and save less than a tenth in the others.

use crate::quantile;

/// Logarithms of ratios of pairs, and the interval that their median lies in.
#[derive(Clone, Debug)]
pub struct MedianSequence {
    /// In order of size.
    values: Vec<f64>,
    /// Chance that the median ever lies outside.
    alpha: f64,
    /// Of all intervals so far.
    interval: (f64, f64),
}

/// What is known of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// B takes longer, by more than is to be ignored.
    Slower,
    /// B takes less time, by more than is to be ignored.
    Faster,
    /// The sides differ by less than is to be ignored.
    Same,
    /// The interval is still too wide.
    Undecided,
}

impl MedianSequence {
    /// An empty one, which is wrong with at most that chance.
    pub fn new(alpha: f64) -> MedianSequence {
        MedianSequence { values: Vec::new(), alpha, interval: (f64::NEG_INFINITY, f64::INFINITY) }
    }

    /// Adds the logarithm of a pair's ratio, B's time over A's. What is not a number is passed
    /// over.
    pub fn push(&mut self, log_ratio: f64) {
        if log_ratio.is_nan() {
            return;
        }
        let at = self.values.partition_point(|value| *value < log_ratio);
        self.values.insert(at, log_ratio);
        if let Some(outside) = outside(self.values.len(), self.alpha) {
            let (low, high) = (outside, self.values.len() - 1 - outside);
            self.interval.0 = self.interval.0.max(self.values[low]);
            self.interval.1 = self.interval.1.min(self.values[high]);
        }
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The middle of the values; none without any.
    pub fn median(&self) -> Option<f64> {
        (!self.values.is_empty()).then(|| quantile(&self.values, 0.5))
    }

    /// The interval so far, infinite on both sides while there are too few pairs.
    pub fn interval(&self) -> (f64, f64) {
        self.interval
    }

    /// What is decided, if ratios up to `ignore` (0.01 is 1 %) are to be ignored.
    pub fn decision(&self, ignore: f64) -> Decision {
        let ((low, high), bound) = (self.interval, (1.0 + ignore).ln());
        match () {
            () if self.is_contradictory() => Decision::Undecided,
            () if low > bound => Decision::Slower,
            () if high < -bound => Decision::Faster,
            () if low >= -bound && high <= bound => Decision::Same,
            () => Decision::Undecided,
        }
    }

    /// Whether no median fits all intervals: the effect itself wandered while it was looked at, and
    /// nothing can be decided.
    pub fn is_contradictory(&self) -> bool {
        self.interval.0 > self.interval.1
    }

    /// The smallest ratio beyond `ignore` that this many pairs could have decided: half of the
    /// interval's width beyond it. None while there are too few.
    pub fn visible(&self, ignore: f64) -> Option<f64> {
        let half = (self.interval.1 - self.interval.0) / 2.0;
        (half.is_finite() && half >= 0.0).then(|| (half + (1.0 + ignore).ln()).exp() - 1.0)
    }

    /// How many pairs more would probably decide, if the median stays where it is and the interval
    /// narrows with the root of their number; while there is no interval, how many it takes to have
    /// one. None when the median lies on the bound.
    pub fn missing(&self, ignore: f64) -> Option<usize> {
        if self.is_contradictory() {
            return None;
        }
        let half = (self.interval.1 - self.interval.0) / 2.0;
        if !half.is_finite() {
            return Some(min_pairs(self.alpha).saturating_sub(self.len()).max(1));
        }
        let distance = (self.median()?.abs() - (1.0 + ignore).ln()).abs();
        let pairs = self.len() as f64 * (half / distance).powi(2);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below 1e9 and not negative"
        )]
        let missing = |pairs: f64| (pairs.ceil() as usize).saturating_sub(self.len()).max(1);
        (pairs < 1e9).then(|| missing(pairs))
    }
}

/// Fewest pairs that can decide anything, were all on one side.
fn min_pairs(alpha: f64) -> usize {
    (1..).find(|n| outside(*n, alpha).is_some()).expect("2^n outgrows n / alpha")
}

/// How many of n values lie outside of the interval at each end: the median is not among them
/// unless the coin's bet won 1 / alpha. None where no number of equal signs is enough.
fn outside(n: usize, alpha: f64) -> Option<usize> {
    let wins = |heads: usize| log_bet(heads, n) >= -alpha.ln();
    // The bet grows with the distance of the heads from n / 2.
    let (mut low, mut high) = (0, n / 2);
    if !wins(0) {
        return None;
    }
    while low < high {
        let middle = (low + high).div_ceil(2);
        if wins(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Some(low)
}

/// Logarithm of what a bet of 1 on the mixture of unfair coins has become after so many heads of n:
/// B(h + 1, n - h + 1) * 2^n.
fn log_bet(heads: usize, n: usize) -> f64 {
    let (heads, n) = (heads as f64, n as f64);
    log_beta(heads + 1.0, n - heads + 1.0) + n * std::f64::consts::LN_2
}

pub(crate) fn log_beta(a: f64, b: f64) -> f64 {
    use statrs::function::gamma::ln_gamma;
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// Noise of a pair: normal of 1 %, and one of ten is disturbed by up to 30 % on one side or the
    /// other.
    fn noise(random: &mut Random) -> f64 {
        let disturbed = random.uniform() < 0.1;
        let shift = if disturbed { 0.6 * (random.uniform() - 0.5) } else { 0.0 };
        0.01 * random.normal() + shift
    }

    /// Decisions of `tests` tests that look after every pair, up to `pairs` of them.
    fn decided(effect: f64, pairs: usize, tests: usize, alpha: f64) -> Vec<Decision> {
        let mut random = Random::new(3);
        let mut one = || {
            let mut sequence = MedianSequence::new(alpha);
            for _ in 0..pairs {
                sequence.push(effect + noise(&mut random));
                if sequence.decision(0.01) != Decision::Undecided {
                    break;
                }
            }
            sequence.decision(0.01)
        };
        (0..tests).map(|_| one()).collect()
    }

    fn count(decisions: &[Decision], wanted: Decision) -> usize {
        decisions.iter().filter(|found| **found == wanted).count()
    }

    #[test]
    fn equal_sides_are_the_same_and_never_called_different_though_it_is_looked_after_every_pair() {
        let found = decided(0.0, 400, 500, 0.01);
        assert!(count(&found, Decision::Same) >= 495, "{found:?}");
    }

    #[test]
    fn three_per_cent_are_found_in_noise_of_one() {
        let found = decided(0.03, 400, 300, 0.01);
        assert!(count(&found, Decision::Slower) >= 297);
        let found = decided(-0.03, 400, 300, 0.01);
        assert!(count(&found, Decision::Faster) >= 297);
    }

    /// On the bound itself either answer is wrong: the chance of both together stays below that
    /// stated, however long it goes on.
    #[test]
    fn an_effect_on_the_bound_is_seldom_decided_either_way() {
        let found = decided((1.01_f64).ln(), 200, 3000, 0.05);
        let wrong = found.len() - count(&found, Decision::Undecided);
        // And not hardly ever, which would be intervals that are too wide.
        assert!((15..=150).contains(&wrong), "{wrong} of 3000");
    }

    /// Whether the true median ever left the intervals, for a sequence that claims less than it
    /// should.
    #[test]
    fn intervals_hold_over_all_their_length_and_half_as_wide_ones_do_not() {
        let mut random = Random::new(5);
        let mut left = |width: f64| {
            let mut sequence = MedianSequence::new(0.05);
            (0..500).any(|_| {
                sequence.push(noise(&mut random));
                let (low, high) = sequence.interval();
                let (middle, half) = ((low + high) / 2.0, (high - low) / 2.0 * width);
                half.is_finite() && middle.abs() > half
            })
        };
        let honest = (0..400).filter(|_| left(1.0)).count();
        let narrow = (0..400).filter(|_| left(0.5)).count();
        assert!(honest <= 20 && narrow > 80, "{honest} and {narrow} of 400");
    }

    #[test]
    fn it_says_what_it_could_have_seen_and_what_is_missing() {
        let mut sequence = MedianSequence::new(0.01);
        assert_eq!((sequence.visible(0.01), sequence.missing(0.01)), (None, Some(11)));
        let mut random = Random::new(9);
        (0..20).for_each(|_| sequence.push(0.02 + noise(&mut random)));
        let visible = sequence.visible(0.01).unwrap();
        assert!((0.01..0.3).contains(&visible), "{visible}");
        if sequence.decision(0.01) == Decision::Undecided {
            let missing = sequence.missing(0.01).unwrap();
            assert!((1..1000).contains(&missing), "{missing}");
        }
        sequence.push(f64::NAN);
        assert_eq!(sequence.len(), 20);
    }

    #[test]
    fn an_effect_that_comes_and_goes_is_decided_neither_way() {
        let mut sequence = MedianSequence::new(0.01);
        (0..40).for_each(|at| sequence.push(0.05 + 1e-6 * f64::from(at)));
        assert_eq!(sequence.decision(0.01), Decision::Slower);
        (0..200).for_each(|at| sequence.push(-1e-6 * f64::from(at)));
        assert!(sequence.is_contradictory());
        assert_eq!(sequence.decision(0.01), Decision::Undecided);
        assert_eq!((sequence.visible(0.01), sequence.missing(0.01)), (None, None));
    }

    /// An oracle that looks at every number of heads.
    #[test]
    fn the_number_outside_is_the_greatest_whose_bet_wins() {
        for alpha in [0.1_f64, 0.01, 0.0001] {
            for n in 1..200 {
                let wins = |heads: &usize| log_bet(*heads, n) >= -alpha.ln();
                assert_eq!(outside(n, alpha), (0..=n / 2).rev().find(wins), "{n} {alpha}");
            }
        }
    }

    #[test]
    fn few_equal_signs_decide_nothing() {
        // 2^n / (n + 1) of a mixture that won every time, against 100: 93 with ten, 171 with
        // eleven.
        assert_eq!((outside(10, 0.01), outside(11, 0.01)), (None, Some(0)));
        assert_eq!(min_pairs(0.01), 11);
        assert!(outside(20, 0.01).is_some());
        let shares: Vec<f64> =
            [50, 500, 5000].map(|n| outside(n, 0.01).unwrap() as f64 / n as f64).into();
        assert!(shares.is_sorted() && shares[2] > 0.45, "{shares:?}");
    }
}
