//! Random times and sizes, the same bits on every host: the generator is integer arithmetic, and the logarithm is `libm`'s, not the C library's.

use std::sync::Arc;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Random numbers of one station: what happens at another does not change them.
#[derive(Clone, Debug)]
pub(crate) struct Stream(Xoshiro256PlusPlus);

impl Stream {
    /// The stream of that station in the run of that seed.
    pub(crate) fn new(seed: u64, station: usize) -> Stream {
        // The golden ratio's bits keep streams of neighbouring seeds and stations apart; SplitMix64 does the rest.
        let own = (station as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Stream(Xoshiro256PlusPlus::seed_from_u64(
            seed.wrapping_add(1).wrapping_mul(0xd134_2543_de82_ef95) ^ own,
        ))
    }

    /// Evenly between 0 and 1, neither of them included.
    pub(crate) fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Evenly from 0 to `below`, which is above 0: multiply and shift, off by less than 2^-32 for such tables.
    pub(crate) fn index(&mut self, below: usize) -> usize {
        let product = u128::from(self.0.next_u64()) * below as u128;
        usize::try_from(product >> 64).expect("below a length")
    }
}

/// How a time (in ps) or a size (in bytes) is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Draw {
    /// Always the same.
    Constant(u64),
    /// Exponential of that mean.
    Exponential(u64),
    /// Evenly from the first to the second.
    Uniform(u64, u64),
    /// The sum of so many exponentials; the second is the mean of the sum.
    Erlang(u32, u64),
    /// One of these, all as likely.
    Sampled(Arc<[u64]>),
    /// These in turn, from the beginning again after the last.
    Trace(Arc<[u64]>),
}

impl Draw {
    /// Mean and variance.
    pub fn moments(&self) -> (f64, f64) {
        match self {
            Draw::Constant(value) => (*value as f64, 0.0),
            Draw::Exponential(mean) => (*mean as f64, (*mean as f64).powi(2)),
            Draw::Uniform(from, to) => {
                let width = *to as f64 - *from as f64;
                (*from as f64 + width / 2.0, width * width / 12.0)
            }
            Draw::Erlang(phases, mean) => {
                (*mean as f64, (*mean as f64).powi(2) / f64::from(*phases))
            }
            Draw::Sampled(values) | Draw::Trace(values) => {
                let n = values.len() as f64;
                let mean = values.iter().map(|value| *value as f64).sum::<f64>() / n;
                let square = |value: &u64| (*value as f64 - mean).powi(2);
                (mean, values.iter().map(square).sum::<f64>() / n)
            }
        }
    }

    /// The largest value that is certain to come; a distribution without an end has none, and its mean stands for it.
    pub(crate) fn largest(&self) -> u64 {
        match self {
            Draw::Constant(value) | Draw::Exponential(value) | Draw::Erlang(_, value) => *value,
            Draw::Uniform(_, to) => *to,
            Draw::Sampled(values) | Draw::Trace(values) => {
                values.iter().copied().max().unwrap_or(0)
            }
        }
    }

    /// Whether it can be drawn at all.
    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Draw::Uniform(from, to) => from <= to,
            Draw::Erlang(phases, _) => (1..=1000).contains(phases),
            Draw::Sampled(values) | Draw::Trace(values) => !values.is_empty(),
            Draw::Constant(_) | Draw::Exponential(_) => true,
        }
    }

    /// The next value; `at` is the place in a trace.
    pub(crate) fn next(&self, at: &mut usize, stream: &mut Stream) -> u64 {
        match self {
            Draw::Constant(value) => *value,
            Draw::Exponential(mean) => exponential(*mean as f64, stream),
            Draw::Uniform(from, to) => from + whole((to - from) as f64 * stream.uniform()),
            Draw::Erlang(phases, mean) => {
                let each = *mean as f64 / f64::from(*phases);
                (0..*phases).map(|_| exponential(each, stream)).sum()
            }
            Draw::Sampled(values) => values[stream.index(values.len())],
            Draw::Trace(values) => {
                let value = values[*at];
                *at = (*at + 1) % values.len();
                value
            }
        }
    }
}

pub(crate) fn exponential(mean: f64, stream: &mut Stream) -> u64 {
    whole(-mean * libm::log(stream.uniform()))
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative; what is larger than 64 bits hold becomes the largest"
)]
pub(crate) fn whole(value: f64) -> u64 {
    (value + 0.5) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_their_mean_and_variance() {
        let table: Arc<[u64]> = [1_000, 2_000, 60_000].into();
        for draw in [
            Draw::Constant(5000),
            Draw::Exponential(1_000_000),
            Draw::Uniform(1000, 9000),
            Draw::Erlang(4, 1_000_000),
            Draw::Sampled(table.clone()),
            Draw::Trace(table),
        ] {
            let (mut stream, mut at) = (Stream::new(1, 0), 0);
            let values: Vec<f64> =
                (0..60_000).map(|_| draw.next(&mut at, &mut stream) as f64).collect();
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let (known_mean, known_variance) = draw.moments();
            assert!((mean / known_mean - 1.0).abs() < 0.02, "{draw:?}: {mean}");
            let off = (variance - known_variance).abs();
            assert!(off <= 0.04 * known_variance, "{draw:?}: {variance}");
        }
    }

    #[test]
    fn a_stream_has_the_same_bits_everywhere_and_another_at_each_station() {
        let bits = |seed, station| {
            let mut stream = Stream::new(seed, station);
            exponential(1e12, &mut stream)
        };
        assert_eq!(bits(1, 0), EXPECTED_PS);
        assert_ne!(bits(1, 0), bits(1, 1));
        assert_ne!(bits(1, 0), bits(2, 0));
    }

    /// Written down once; a host that draws something else has another logarithm or generator.
    const EXPECTED_PS: u64 = 1_533_803_548_087;
}
