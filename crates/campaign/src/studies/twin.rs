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
}

impl Prediction {
    /// A figure with what the simulation gives for it.
    pub(super) fn new(figure: Comparison, simulated: impl Into<Option<f64>>) -> Prediction {
        Prediction {
            figure,
            simulated: simulated.into().filter(|value| value.is_finite()),
            fitted: false,
        }
    }

    /// The same for a figure that the model was fitted to.
    pub(super) fn fitted(self) -> Prediction {
        Prediction {
            fitted: true,
            ..self
        }
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
        arrivals: Arrivals::Open {
            first_ps: None,
            gap: Draw::Constant(gap_ps),
            burst: 1,
        },
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
