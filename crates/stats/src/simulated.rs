//! Simulated hosts: rows and samples whose truth is known, for holding comparisons and histories to their promises.

use std::f64::consts::TAU;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// How the values of one point vary from run to run on a host where nothing changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// 2 %, each run by itself.
    Independent,
    /// 2 %, each run resembles the one before: an AR(1) process of that correlation.
    Correlated(f64),
    /// 2 %, and at 3 % of the runs begin one to five runs that are 10 to 50 % slower.
    Bursts,
    /// 1 %, and three runs of ten are 12 % slower.
    TwoModes,
    /// Never faster than a level, slower by 5 % on average: exponential.
    Skewed,
}

/// Random numbers, the same everywhere for a seed.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// The sequence of that seed.
    pub fn new(seed: u64) -> Random {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Evenly between 0 and 1, neither of them included.
    pub fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Normally distributed, of mean 0 and standard deviation 1 (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
    }
}

/// A row of `n` runs without a step, around 1.
pub fn null_row(kind: Kind, n: usize, random: &mut Random) -> Vec<f64> {
    match kind {
        Kind::Independent => correlated(0.0, n, random),
        Kind::Correlated(correlation) => correlated(correlation, n, random),
        Kind::Bursts => bursts(n, random),
        Kind::TwoModes => (0..n)
            .map(|_| {
                let slower = if random.uniform() < 0.3 { 0.12 } else { 0.0 };
                (slower + 0.01 * random.normal()).exp()
            })
            .collect(),
        Kind::Skewed => (0..n).map(|_| 1.0 - 0.05 * random.uniform().ln()).collect(),
    }
}

fn correlated(correlation: f64, n: usize, random: &mut Random) -> Vec<f64> {
    let fresh = (1.0 - correlation * correlation).sqrt();
    let mut state = random.normal();
    let mut values = Vec::with_capacity(n);
    for _ in 0..n {
        values.push((0.02 * state).exp());
        state = correlation * state + fresh * random.normal();
    }
    values
}

fn bursts(n: usize, random: &mut Random) -> Vec<f64> {
    let mut values = correlated(0.0, n, random);
    let mut at = 0;
    while at < n {
        if random.uniform() >= 0.03 {
            at += 1;
            continue;
        }
        let length = 1 + (5.0 * random.uniform()) as usize;
        let slower = (0.1 + 0.4 * random.uniform()).exp();
        let end = (at + length).min(n);
        values[at..end]
            .iter_mut()
            .for_each(|value| *value *= slower);
        at = end;
    }
    values
}
