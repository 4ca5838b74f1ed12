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
}
