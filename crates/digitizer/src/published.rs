//! What the source document measured, as data: `data/ess-2017-published.toml`.

use std::collections::BTreeMap;

use daqmeter_record::Workload;
use daqmeter_record::study::{Derived, Published, Statement};
use serde::Deserialize;

use crate::devices::sis8300::emulated::{Profile, uplink};

const TABLES: &str = include_str!("../data/ess-2017-published.toml");

/// Everything that the document published.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Read-out and conversion tables.
    pub table: Vec<Table>,
    /// CPU use.
    pub cpu: Vec<CpuRow>,
    /// What it says in words.
    pub finding: BTreeMap<String, Statement>,
}

/// What a table times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Read-out.
    Readout,
    /// A conversion after read-out.
    Conversion,
}

/// One table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Short name, used in studies.
    pub id: String,
    /// For people.
    pub title: String,
    /// Section of the document.
    pub place: String,
    /// What it times.
    pub kind: Kind,
    /// Models of the boards.
    pub boards: Vec<String>,
    /// Samples per read.
    pub samples: u64,
    /// Reads.
    pub reads: u64,
    /// `-A`.
    pub function: u64,
    /// `-f`.
    pub dec_factor: u64,
    /// Rows in the document's order.
    pub rows: Vec<Row>,
}

/// One row.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Slot of the board.
    pub board: String,
    /// Start of the first repetition.
    pub start_ms: f64,
    /// End of the last.
    pub end_ms: f64,
    /// Per repetition.
    pub dur_ms: f64,
    /// Raw bytes per second.
    pub speed_mb_per_s: Published,
}

/// CPU use at 14 Hz.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuRow {
    /// For people.
    pub title: String,
    /// Samples per read.
    pub samples: u64,
    /// Boards of model L.
    pub boards: u32,
    /// `-A`.
    pub function: u64,
    /// Polling or interrupt.
    pub polling: bool,
    /// Per cent of one core.
    pub percent: Published,
    /// The document shows the command and a profile.
    pub command: bool,
}

impl Default for Document {
    fn default() -> Self {
        toml::from_str(TABLES).expect("the shipped tables are tested")
    }
}

impl Table {
    /// The workload that repeats the table on emulated boards.
    pub fn workload(&self) -> Workload {
        let count = |model: &str, at: usize| {
            self.boards[..at]
                .iter()
                .filter(|board| *board == model)
                .count()
        };
        let names: Vec<String> = self
            .boards
            .iter()
            .enumerate()
            .map(|(at, model)| format!("emu:{model}{}", count(model, at)))
            .collect();
        // The document's -A 1 run is where its "Readout" rows come from.
        Workload::new("digitizer")
            .with("devices", names.join(" "))
            .with("samples", self.samples)
            .with("function", self.function)
            .with("dec_factor", self.dec_factor)
    }

    /// What the profile's model says of each read-out row, in MB/s, in the order of [`Table::boards`]. Nothing for conversions:
    /// their described costs are the means of these very tables.
    pub fn model_mb_per_s(&self, profile: &Profile) -> Option<Vec<f64>> {
        if self.kind == Kind::Conversion {
            return None;
        }
        let bytes = (self.samples * 2 * self.reads) as f64;
        let own = |model: &String| {
            profile
                .board
                .iter()
                .find(|board| &board.model == model)
                .map(|b| b.own_bytes_per_s)
        };
        let own: Vec<f64> = self.boards.iter().filter_map(own).collect();
        let seconds = uplink::predict(&profile.uplink, &own, bytes);
        Some(
            seconds
                .into_iter()
                .map(|seconds| bytes / seconds / 1e6)
                .collect(),
        )
    }

    /// Mean of the published speeds.
    pub fn mean_mb_per_s(&self) -> Option<Derived> {
        Derived::mean(
            self.rows.iter().map(|row| &row.speed_mb_per_s),
            "mean of the published rows above",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_68_rows_satisfy_the_documents_own_definitions() {
        let published = Document::default();
        let mut rows = 0;
        for table in &published.table {
            for row in &table.rows {
                rows += 1;
                let span_ms = row.end_ms - row.start_ms;
                assert!(
                    (span_ms / table.reads as f64 - row.dur_ms).abs() <= 0.055,
                    "{} {}",
                    table.id,
                    row.board
                );
                let speed = (table.samples * 2 * table.reads) as f64 / span_ms / 1e3;
                // start and end are rounded to 0.1 ms, so the speed is known to 0.1 ms over the span.
                let tolerance = 0.05 + speed * 0.1 / span_ms;
                let off = row.speed_mb_per_s.difference(speed) * speed;
                assert!(
                    off.abs() <= tolerance * 1.01,
                    "{} {}: {speed}",
                    table.id,
                    row.board
                );
            }
        }
        assert_eq!(rows, 68);
    }

    #[test]
    fn the_model_reproduces_the_33_readout_rows_within_3_per_cent_per_table() {
        let profile = Profile::default();
        let mut rows = 0;
        for table in Document::default()
            .table
            .iter()
            .filter(|table| table.kind == Kind::Readout)
        {
            rows += table.rows.len();
            let model = table.model_mb_per_s(&profile).expect("a read-out table");
            let mean = model.iter().sum::<f64>() / model.len() as f64;
            let error = table.mean_mb_per_s().expect("rows").difference(mean);
            assert!(error.abs() < 0.03, "{}: {:.1} %", table.id, error * 100.0);
        }
        assert_eq!(rows, 33);
    }

    #[test]
    fn workloads_name_each_board_once() {
        let published = Document::default();
        let mixed = published
            .table
            .iter()
            .find(|table| table.id == "ku1-l5-60mb")
            .unwrap();
        assert_eq!(
            mixed.workload().text("devices"),
            Ok("emu:ku0 emu:l0 emu:l1 emu:l2 emu:l3 emu:l4")
        );
    }
}
