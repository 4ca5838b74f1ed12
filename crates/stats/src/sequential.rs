//! Whether two sides differ, looked at after every pair, as often as one likes.
//!
//! An ordinary interval holds for a number of pairs that was fixed before. Who looks after each pair and stops when the answer is
//! pleasing is wrong far more often than the interval says. A [`MedianSequence`] is a confidence *sequence*: with the stated
//! confidence the true median lies in all of its intervals, from the first pair to the last one, so that a test may stop as soon as
//! its question is decided.
//!
//! It asks of every value that might be the median whether the signs of the differences from it are those of a fair coin. The bet
//! against the coin is a mixture over all unfair ones (Ville's inequality; Robbins 1970, with a beta prior), which needs no variance and
//! no normal distribution: a pair that something disturbed is one sign, however far away it lies. It assumes that pairs are
//! independent, which turns in the order A B B A with fresh processes for each make likely.

use crate::quantile;

/// The prior of the coin's bias is a beta distribution with both parameters this: it bets on coins that are moderately unfair, as those
/// are that decide after some tens of pairs.
const PRIOR: f64 = 4.0;

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
        MedianSequence {
            values: Vec::new(),
            alpha,
            interval: (f64::NEG_INFINITY, f64::INFINITY),
        }
    }

    /// Adds the logarithm of a pair's ratio, B's time over A's. What is no number is passed over.
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
            () if low > bound => Decision::Slower,
            () if high < -bound => Decision::Faster,
            () if low >= -bound && high <= bound => Decision::Same,
            () => Decision::Undecided,
        }
    }

    /// The smallest ratio beyond `ignore` that this many pairs could have decided: half of the interval's width beyond it. None while
    /// there are too few.
    pub fn visible(&self, ignore: f64) -> Option<f64> {
        let half = (self.interval.1 - self.interval.0) / 2.0;
        (half.is_finite()).then(|| (half + (1.0 + ignore).ln()).exp() - 1.0)
    }

    /// How many pairs more would probably decide, if the median stays where it is and the interval narrows with the root of their
    /// number. None while there are too few to tell, or when the median lies on the bound.
    pub fn missing(&self, ignore: f64) -> Option<usize> {
        let median = self.median()?;
        let half = (self.interval.1 - self.interval.0) / 2.0;
        let distance = (median.abs() - (1.0 + ignore).ln()).abs();
        if !half.is_finite() || distance <= 0.0 {
            return None;
        }
        let pairs = self.len() as f64 * (half / distance).powi(2);
        (pairs < 1e9).then(|| (pairs.ceil() as usize).saturating_sub(self.len()).max(1))
    }
}

/// How many of n values lie outside of the interval at each end: the median is not among them unless the coin's bet won 1 / alpha. None
/// where no number of equal signs is enough.
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

/// Logarithm of what a bet of 1 on the mixture of unfair coins has become after so many heads of n: B(h + a, n - h + a) / B(a, a) * 2^n.
fn log_bet(heads: usize, n: usize) -> f64 {
    let (heads, n) = (heads as f64, n as f64);
    log_beta(heads + PRIOR, n - heads + PRIOR) - log_beta(PRIOR, PRIOR) + n * std::f64::consts::LN_2
}

fn log_beta(a: f64, b: f64) -> f64 {
    use statrs::function::gamma::ln_gamma;
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Random;

    /// Noise of a pair: normal of 1 %, and one of ten is disturbed by up to 30 % on one side or the other.
    fn noise(random: &mut Random) -> f64 {
        let disturbed = random.uniform() < 0.1;
        let shift = if disturbed {
            0.6 * (random.uniform() - 0.5)
        } else {
            0.0
        };
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

    /// On the bound itself either answer is wrong: the chance of both together stays below that stated, however long it goes on.
    #[test]
    fn an_effect_on_the_bound_is_seldom_decided_either_way() {
        let found = decided((1.01_f64).ln(), 1000, 400, 0.05);
        let wrong = found.len() - count(&found, Decision::Undecided);
        assert!(wrong <= 26, "{wrong} of 400");
    }

    /// Whether the true median ever left the intervals, for a sequence that claims less than it should.
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
        assert_eq!(
            (sequence.visible(0.01), sequence.missing(0.01)),
            (None, None)
        );
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
    fn few_equal_signs_decide_nothing() {
        // 2^-n of one end against a chance of 1 %: the mixture needs more than eight.
        assert_eq!(outside(8, 0.01), None);
        assert!(outside(20, 0.01).is_some());
        let shares: Vec<f64> = [50, 500, 5000]
            .map(|n| outside(n, 0.01).unwrap() as f64 / n as f64)
            .into();
        assert!(shares.is_sorted() && shares[2] > 0.45, "{shares:?}");
    }
}
