//! Published figures beside what the twin predicts for the document's machine: a formula where there is one, and a simulation.

use daqmeter_record::study::Comparison;
use daqmeter_twin::{Arrivals, Draw, Source};

/// A published figure and its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The figure, or what follows from published ones; its model is the formula.
    pub figure: Comparison,
    /// What the simulation gives.
    pub simulated: Option<f64>,
    /// Where the figure, or one that follows from it, went into the model: then agreement says nothing.
    pub fitted: bool,
    /// How far it may be off, as a share of the figure.
    pub band: f64,
    /// Why it lies outside of its band, where that is known.
    pub misses: Option<&'static str>,
}

/// The band of a row that says no other: what a study's verdict calls reproduced.
const BAND: f64 = 0.05;

impl Prediction {
    /// A figure with what the simulation gives for it.
    pub(super) fn new(figure: Comparison, simulated: impl Into<Option<f64>>) -> Prediction {
        Prediction {
            figure,
            simulated: simulated.into().filter(|value| value.is_finite()),
            fitted: false,
            band: BAND,
            misses: None,
        }
    }

    /// The same with another band.
    pub(super) fn within(self, band: f64) -> Prediction {
        Prediction { band, ..self }
    }

    /// The same for a figure that the model is known to miss, and why.
    pub(super) fn misses(self, why: &'static str) -> Prediction {
        Prediction { misses: Some(why), ..self }
    }

    /// Whether it lies within its band; none where there is nothing to compare.
    pub fn is_within(&self) -> Option<bool> {
        Some(self.difference()?.abs() <= self.band)
    }

    /// The same for a figure that the model was fitted to.
    pub(super) fn fitted(self) -> Prediction {
        Prediction { fitted: true, ..self }
    }

    /// The simulation, or the formula where nothing is simulated, less what is published (or derived, where nothing is), relative to it.
    pub fn difference(&self) -> Option<f64> {
        let formula = self.figure.model.map(|model| model.value());
        let value = self.simulated.or(formula)?;
        let published = self.figure.published.as_ref();
        let derived = self.figure.derived.as_ref();
        published
            .map(|published| published.difference(value))
            .or(derived.map(|derived| derived.difference(value)))
    }
}

/// Items of so many bytes every `gap_ps`, for each of these stations.
pub(super) fn periodic(name: &str, gap_ps: u64, bytes: u64, to: Vec<usize>) -> Source {
    Source {
        name: name.to_owned(),
        arrivals: Arrivals::Open { first_ps: None, gap: Draw::Constant(gap_ps), burst: 1 },
        bytes: Draw::Constant(bytes),
        to,
        each: true,
    }
}

/// Microseconds as the simulation has them.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of the documents, microseconds to seconds"
)]
pub(super) fn us_ps(us: f64) -> u64 {
    (us.max(0.0) * 1e6).round() as u64
}
