//! What was measured on this host, point by point.

use daqmeter_record::RunRecord;
use daqmeter_record::study::{Measured, Statement};

use super::super::named;
use super::{Document, Kind, Table};

/// The records, and the document whose points they are of.
pub(super) struct Here<'a> {
    pub(super) published: &'a Document,
    pub(super) records: &'a [RunRecord],
}

impl Here<'_> {
    pub(super) fn statement(&self, name: &str) -> &Statement {
        named(&self.published.finding, name)
    }

    pub(super) fn table(&self, id: &str) -> Option<&Table> {
        self.published.table.iter().find(|table| table.id == id)
    }

    /// The record of a point; of several, the one with the median wall time. What failed or was waived is no record of it.
    pub(super) fn record(&self, point: &str) -> Option<&RunRecord> {
        let study = format!("reproduce/digitizer/{point}");
        let is_of = |record: &&RunRecord| {
            record.study == study && record.outcome.is_ok() && !record.lanes.is_empty()
        };
        let mut found: Vec<&RunRecord> = self.records.iter().filter(is_of).collect();
        found.sort_by_key(|record| record.wall_ns);
        found.get(found.len() / 2).copied()
    }

    /// Speeds that were measured for a table, fastest first. Read-out speeds are those of emulated boards, conversions run on
    /// this host's own processor.
    pub(super) fn speeds(&self, table: &Table) -> Vec<Measured> {
        let Some(record) = self.record(&table.id) else {
            return Vec::new();
        };
        let speeds = speeds(record, table).into_iter();
        speeds
            .filter_map(|speed| of_kind(table.kind, record, speed))
            .collect()
    }

    /// The mean over the boards of a table.
    pub(super) fn mean(&self, id: &str) -> Option<Measured> {
        let table = self.table(id)?;
        let record = self.record(id)?;
        of_kind(table.kind, record, mean(&speeds(record, table)))
    }

    /// CPU time of the process over wall time, in per cent of one core.
    pub(super) fn cpu_percent(&self, row: usize) -> Option<Measured> {
        let record = self.record(&format!("cpu-{row}"))?;
        let share = record.process_cpu.total_ns() as f64 / record.wall_ns.max(1) as f64;
        Measured::of(record, share * 100.0)
    }
}

fn of_kind(kind: Kind, record: &RunRecord, speed: f64) -> Option<Measured> {
    match kind {
        Kind::Readout => Measured::of(record, speed),
        Kind::Conversion => Measured::of_processor(record, speed),
    }
}

/// Speeds of the lanes in the stage that the table times, in MB/s by the document's definition, fastest first.
pub(super) fn speeds(record: &RunRecord, table: &Table) -> Vec<f64> {
    let stage_at = match table.kind {
        Kind::Readout => 0,
        Kind::Conversion => 1,
    };
    let stages = record
        .lanes
        .iter()
        .filter_map(|lane| lane.stages.get(stage_at));
    let speed = |stage: &daqmeter_record::Stage| {
        let bytes = stage.bytes_per_op * stage.ops_per_sample * stage.sample_ns.len() as u64;
        bytes as f64 / (stage.end_ns.saturating_sub(stage.start_ns)).max(1) as f64 * 1e3
    };
    let mut speeds: Vec<f64> = stages.map(speed).collect();
    speeds.sort_by(|a, b| b.total_cmp(a));
    speeds
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
