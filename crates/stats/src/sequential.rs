//! Sequential comparison of two sides, with a look after every pair. An ordinary interval holds for
//! a number of pairs that was fixed before the test. A [`MedianSequence`] is a confidence
//! *sequence*. With the stated confidence the true median lies in all of its intervals, from the
//! first pair to the last. A test may therefore stop as soon as its question is decided.
//!
//! For each candidate median it tests if the signs of the differences are those of a fair coin. The
//! bet against the coin is a mixture over all unfair ones (Ville's inequality; Robbins 1970). It
//! needs no variance and no normal distribution: a disturbed pair is one sign, at any distance. It
//! holds if each pair lies above or below the median with equal probability, given the pairs before
//! it. Between equal sides a random order ensures that, even if the host drifts slowly. Correlated
//! pairs break it for an effect that drifts.
//!
//! The mixture gives every coin equal weight. Weights nearer to the fair coin were tried (beta
//! priors of 2 to 16, effects of 0 to 1 % in noise of 0.3 to 1.5 %). They need more pairs for the
//! clear cases and save less than a tenth in the others.

use statrs::function::gamma::ln_gamma;

use crate::quantile;

/// Logarithms of ratios of pairs, and the interval of their median.
#[derive(Clone, Debug)]
pub struct MedianSequence {
    /// Ascending order.
    values: Vec<f64>,
    /// Probability that the median ever lies outside.
    alpha: f64,
    /// Intersection of all intervals so far.
    interval: (f64, f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Slower,
    Faster,
    Same,
    Undecided,
}

impl MedianSequence {
    /// Returns an empty sequence that is wrong with at most the probability `alpha`.
    pub fn new(alpha: f64) -> MedianSequence {
        MedianSequence { values: Vec::new(), alpha, interval: (f64::NEG_INFINITY, f64::INFINITY) }
    }

    /// Adds the logarithm of a pair's ratio, B's time over A's. NaN is ignored.
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

    pub fn median(&self) -> Option<f64> {
        (!self.values.is_empty()).then(|| quantile(&self.values, 0.5))
    }

    /// Returns the interval so far, infinite on both sides with too few pairs.
    pub fn interval(&self) -> (f64, f64) {
        self.interval
    }

    /// Returns the decision, with ratios up to `ignore` (0.01 is 1 %) ignored.
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

    /// Tests if no median fits all intervals: the effect itself changed during the test, and no
    /// decision is possible.
    pub fn is_contradictory(&self) -> bool {
        self.interval.0 > self.interval.1
    }

    /// Returns the smallest ratio beyond `ignore` that this many pairs could have decided: half of
    /// the interval's width beyond it. `None` with too few pairs.
    pub fn visible(&self, ignore: f64) -> Option<f64> {
        let half = (self.interval.1 - self.interval.0) / 2.0;
        (half.is_finite() && half >= 0.0).then(|| (half + (1.0 + ignore).ln()).exp() - 1.0)
    }
}

/// Returns the number of n values outside of the interval at each end: the bet against the coin won
/// 1 / alpha there. `None` if no number of equal signs is enough.
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

/// Returns the logarithm of the value of a bet of 1 on the mixture of unfair coins after `heads` of
/// n: B(h + 1, n - h + 1) * 2^n.
fn log_bet(heads: usize, n: usize) -> f64 {
    let (heads, n) = (heads as f64, n as f64);
    let (a, b) = (heads + 1.0, n - heads + 1.0);
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b) + n * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// Noise of a pair: normal of 1 %; one of ten is disturbed by up to 30 % in either direction.
    fn noise(random: &mut Random) -> f64 {
        let disturbed = random.uniform() < 0.1;
        let shift = if disturbed { 0.6 * (random.uniform() - 0.5) } else { 0.0 };
        0.01 * random.normal() + shift
    }

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

    /// On the bound itself either answer is wrong: the probability of both together stays below
    /// `alpha`.
    #[test]
    fn an_effect_on_the_bound_is_seldom_decided_either_way() {
        let found = decided((1.01_f64).ln(), 200, 3000, 0.05);
        let wrong = found.len() - count(&found, Decision::Undecided);
        // Too few wrong answers would mean intervals that are too wide.
        assert!((15..=150).contains(&wrong), "{wrong} of 3000");
    }

    /// Counts sequences whose intervals ever excluded the true median, with a weakened claim as a
    /// control.
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
    fn it_says_what_it_could_have_seen() {
        let mut sequence = MedianSequence::new(0.01);
        assert_eq!(sequence.visible(0.01), None);
        let mut random = Random::new(9);
        (0..20).for_each(|_| sequence.push(0.02 + noise(&mut random)));
        let visible = sequence.visible(0.01).unwrap();
        assert!((0.01..0.3).contains(&visible), "{visible}");
        sequence.push(f64::NAN);
        assert_eq!(sequence.values.len(), 20);
    }

    #[test]
    fn an_effect_that_comes_and_goes_is_decided_neither_way() {
        let mut sequence = MedianSequence::new(0.01);
        (0..40).for_each(|at| sequence.push(0.05 + 1e-6 * f64::from(at)));
        assert_eq!(sequence.decision(0.01), Decision::Slower);
        (0..200).for_each(|at| sequence.push(-1e-6 * f64::from(at)));
        assert!(sequence.is_contradictory());
        assert_eq!(sequence.decision(0.01), Decision::Undecided);
        assert_eq!(sequence.visible(0.01), None);
    }

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
        assert!(outside(20, 0.01).is_some());
        let shares: Vec<f64> =
            [50, 500, 5000].map(|n| outside(n, 0.01).unwrap() as f64 / n as f64).into();
        assert!(shares.is_sorted() && shares[2] > 0.45, "{shares:?}");
    }
}
