//! Simulated hosts: rows and samples whose truth is known. The tests of this crate and the
//! benchmark `promises` share this file by its path.

#![allow(dead_code, reason = "tests use one part of it, the benchmark another")]

use super::{Occasion, Point, Random};

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

    /// Approximate standard deviation of the logarithm.
    fn deviation(self) -> f64 {
        match self {
            Kind::Independent | Kind::Correlated(_) | Kind::Bursts | Kind::Drift => 0.02,
            Kind::TwoModes => 0.056,
            Kind::Skewed => 0.046,
        }
    }

    /// Approximate mean of the logarithm of a row. The sides are compared with it as the truth.
    fn mean(self) -> f64 {
        match self {
            Kind::TwoModes => 0.3 * 0.12,
            Kind::Skewed => 0.0478,
            _ => 0.0,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One occasion per side after this number of occasions of history.
    Single {
        /// Occasions of history.
        history: usize,
    },
    /// Number of occasions of each side, in turn.
    InTurn(usize),
    /// Number of occasions of each side: all of A, then all of B.
    OneAfterTheOther(usize),
}

impl Layout {
    /// Returns the occasions in the order of time: `None` is history, `Some(true)` is B.
    fn sides(self) -> Vec<Option<bool>> {
        let of = |b: bool, n: usize| std::iter::repeat_n(Some(b), n);
        match self {
            Layout::Single { history } => {
                let before = std::iter::repeat_n(None, history);
                before.chain([Some(false), Some(true)]).collect()
            }
            Layout::InTurn(n) => (0..2 * n).map(|at| Some(at % 2 == 1)).collect(),
            Layout::OneAfterTheOther(n) => of(false, n).chain(of(true, n)).collect(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Host {
    pub(crate) kind: Kind,
    /// Standard deviation of an occasion: existing hosts have 0.001 to 0.1.
    pub(crate) occasion: f64,
    pub(crate) points: usize,
    pub(crate) layout: Layout,
    /// Time of B over time of A at the first point; 1 without a change.
    pub(crate) slower: f64,
}

impl Host {
    /// Draws one comparison. The noise of samples spans four orders of magnitude over the points. A
    /// third of each occasion's effect is common to all points.
    pub(crate) fn draw(&self, random: &mut Random) -> Vec<Point> {
        let sides = self.layout.sides();
        let common = self.effects(sides.len(), random);
        let points = (0..self.points).map(|at| {
            let own = self.effects(sides.len(), random);
            let effect =
                |at: usize| (1.0_f64 / 3.0).sqrt() * common[at] + (2.0_f64 / 3.0).sqrt() * own[at];
            let effects: Vec<f64> = (0..sides.len()).map(effect).collect();
            self.point(at, &sides, &effects, random)
        });
        points.collect()
    }

    fn effects(&self, n: usize, random: &mut Random) -> Vec<f64> {
        let row = null_row(self.kind, n, random).into_iter();
        let (scale, mean) = (self.occasion / self.kind.deviation(), self.kind.mean());
        row.map(|value| (value.ln() - mean) * scale).collect()
    }

    fn point(
        &self,
        at: usize,
        sides: &[Option<bool>],
        effects: &[f64],
        random: &mut Random,
    ) -> Point {
        let noise = 1e-5 * 1e4_f64.powf((at * 7 % 10) as f64 / 9.0);
        let slower = if at == 0 { self.slower } else { 1.0 };
        let mut point = Point { group: at, ..Point::default() };
        for (when, (side, effect)) in sides.iter().zip(effects).enumerate() {
            let level = 100.0 * effect.exp() * if *side == Some(true) { slower } else { 1.0 };
            let occasion = occasion(when, level, noise, random);
            match side {
                None => point.history.push(occasion),
                Some(false) => point.a.occasions.push(occasion),
                Some(true) => point.b.occasions.push(occasion),
            }
        }
        point
    }
}

fn occasion(at: usize, level: f64, noise: f64, random: &mut Random) -> Occasion {
    let mut sample = |_| level * (noise * random.normal()).exp();
    Occasion {
        at: at as f64,
        repetitions: (0..5).map(|_| (0..5).map(&mut sample).collect()).collect(),
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
