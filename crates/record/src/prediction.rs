//! Predictions of a path: figures with the intervals that hold the measured values. The record of a
//! prediction has no run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number and the interval that holds the measured one with 90 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Predicted {
    /// The number.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Predicted {
    pub fn holds(&self, measured: f64) -> bool {
        self.low <= measured && measured <= self.high
    }

    #[must_use]
    pub fn scaled(self, factor: f64) -> Predicted {
        Predicted { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }
}

/// Threads of a part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PartPrediction {
    /// Its name, as in the threads of a run.
    pub name: String,
    /// Its threads.
    pub threads: usize,
    /// CPU time of a block in nanoseconds: what the profile says.
    pub cost_ns: f64,
    /// CPUs of each thread.
    pub cpu: Predicted,
}

/// What is predicted of a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prediction {
    /// The path in one line.
    pub line: String,
    /// Which thread does what.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub layout: String,
    /// Bytes of a block at the source.
    pub block_bytes: u64,
    /// Largest rate in blocks per second, all streams.
    pub largest_hz: Predicted,
    /// The resource that allows no more.
    pub limit: String,
    /// Blocks that are due per second, all streams; none as fast as it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_hz: Option<f64>,
    /// Share of these that is lost, or held back where the source waits.
    pub lost: Predicted,
    /// Latency in nanoseconds at that rate: the median.
    pub p50_ns: Predicted,
    /// The same: p99.
    pub p99_ns: Predicted,
    /// From source to sink, at that rate.
    pub parts: Vec<PartPrediction>,
    /// What lies outside of what was checked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_its_ends_in_every_unit() {
        let found = Predicted { value: 2.0, low: 1.0, high: 4.0 };
        assert!(found.holds(1.0) && found.holds(4.0) && !found.holds(4.1));
        assert!(found.scaled(0.5).holds(0.5) && !found.scaled(0.5).holds(4.0));
    }

    #[test]
    fn a_field_of_an_older_prediction_that_went_costs_no_record() {
        let mut older = serde_json::to_value(Prediction::default()).unwrap();
        older["limit_used"] = 1.0.into();
        older["profile_time_utc"] = "2026-11-25T00:00:00.000Z".into();
        assert_eq!(serde_json::from_value::<Prediction>(older).unwrap(), Prediction::default());
    }
}
