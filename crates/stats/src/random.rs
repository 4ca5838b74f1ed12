//! Reproducible random numbers for resampling and simulations.

use std::f64::consts::TAU;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Shuffles by Fisher and Yates: a seed always gives one order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let drawn = (u128::from(self.0.next_u64()) * (last as u128 + 1)) >> 64;
            items.swap(last, drawn as usize);
        }
    }

    /// Draws evenly between 0 and 1, both excluded.
    pub fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Draws from the standard normal distribution (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
    }

    /// Draws a chi-squared value of that freedom, above zero: twice a gamma variate (Marsaglia and
    /// Tsang 2000).
    pub(crate) fn chi_squared(&mut self, freedom: f64) -> f64 {
        let shape = freedom / 2.0;
        // A shape below one uses the shape plus one and a power of a uniform.
        let (lifted, boost) = if shape < 1.0 {
            (shape + 1.0, self.uniform().powf(1.0 / shape))
        } else {
            (shape, 1.0)
        };
        let d = lifted - 1.0 / 3.0;
        loop {
            let normal = self.normal();
            let v = (1.0 + normal / (9.0 * d).sqrt()).powi(3);
            if v > 0.0 && self.uniform().ln() < 0.5 * normal * normal + d - d * v + d * v.ln() {
                return 2.0 * d * v * boost;
            }
        }
    }
}
