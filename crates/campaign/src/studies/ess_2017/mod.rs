//! "Performance measurements with SIS8300 boards" (ESS, 2017): read-out of one to six boards, conversions, CPU load.

mod claims;
mod findings;
mod here;
mod model;

use std::collections::BTreeMap;

use daqmeter_record::RunRecord;
use daqmeter_record::study::{About, Comparison, Finding, Published, Statement};
use serde::Deserialize;

use super::{Study, Wanted, planned, shipped};
use crate::PlannedPoint;
use here::Here;

/// The data file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    study: About,
    table: Vec<Table>,
    cpu: Vec<CpuRow>,
    finding: BTreeMap<String, Statement>,
}

/// What a table times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Readout,
    /// A conversion after read-out.
    Conversion,
}

/// One table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Short name, the last part of its records' study.
    id: String,
    title: String,
    /// Section of the document.
    place: String,
    kind: Kind,
    /// Models of the boards.
    boards: Vec<String>,
    /// Samples per read.
    samples: u64,
    reads: u64,
    /// `-A`.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with the plan"))]
    function: u64,
    /// `-f`.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with the plan"))]
    dec_factor: u64,
    /// Rows in the document's order.
    rows: Vec<Row>,
}

/// One row: a board, and the times of its reads.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// Slot of the board.
    board: String,
    /// Start of the first repetition.
    start_ms: f64,
    /// End of the last.
    end_ms: f64,
    /// Per repetition.
    dur_ms: f64,
    /// Raw bytes per second.
    speed_mb_per_s: Published,
}

/// CPU use at 14 Hz.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CpuRow {
    title: String,
    /// Samples per read.
    samples: u64,
    /// Boards of model L.
    boards: u32,
    /// `-A`.
    function: u64,
    /// Polling or interrupt.
    polling: bool,
    /// Per cent of one core.
    percent: Published,
    /// The document shows the command and a profile.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with the plan"))]
    command: bool,
}

impl Default for Document {
    fn default() -> Self {
        shipped(include_str!("published.toml"))
    }
}

impl Document {
    fn here<'a>(&'a self, records: &'a [RunRecord]) -> Here<'a> {
        Here { published: self, records }
    }
}

impl Study for Document {
    fn names(&self) -> &'static [&'static str] {
        &["digitizer"]
    }

    fn about(&self) -> &About {
        &self.study
    }

    fn points(&self, _: &Wanted<'_>) -> Vec<PlannedPoint> {
        planned(include_str!("plan.toml"))
    }

    fn compare(&self, records: &[RunRecord]) -> Vec<Comparison> {
        claims::compare(&self.here(records))
    }

    fn findings(&self, records: &[RunRecord]) -> Vec<Finding> {
        findings::findings(&self.here(records))
    }
}

#[cfg(test)]
mod tests;
