//! Simulated rows whose truth is known. The tests of this crate and the
//! benchmark `promises` share this file by its path.

#![allow(dead_code, reason = "tests use one part of it, the benchmark another")]

use super::Random;

/// Variation of the values of one point from run to run on a host without a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
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
    /// 2 %, and each run a tenth of that slower than the one before.
    Drift,
}

impl Kind {
    pub(crate) const ALL: [Kind; 8] = [
        Kind::Independent,
        Kind::Correlated(0.3),
        Kind::Correlated(0.5),
        Kind::Correlated(0.8),
        Kind::TwoModes,
        Kind::Skewed,
        Kind::Bursts,
        Kind::Drift,
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Kind::Independent => "independent".to_owned(),
            Kind::Correlated(correlation) => format!("AR(1) {correlation}"),
            Kind::Bursts => "bursts".to_owned(),
            Kind::TwoModes => "two modes".to_owned(),
            Kind::Skewed => "skewed".to_owned(),
            Kind::Drift => "drift".to_owned(),
        }
    }
}

/// A row of `n` runs without a step, around 1.
pub(crate) fn null_row(kind: Kind, n: usize, random: &mut Random) -> Vec<f64> {
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
        Kind::Drift => {
            let row = correlated(0.0, n, random).into_iter().enumerate();
            row.map(|(at, value)| value * (0.002 * at as f64).exp()).collect()
        }
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
        values[at..end].iter_mut().for_each(|value| *value *= slower);
        at = end;
    }
    values
}
