//! What was measured on this host, point by point.

use daqmeter_record::study::{Measured, Statement};
use daqmeter_record::{RunRecord, conditions};

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

    /// Returns the record of a point. Of several records, it is the one with the median wall time
    /// among those of a quiet host, if there are any. Failed and waived runs do not count.
    pub(super) fn record(&self, point: &str) -> Option<&RunRecord> {
        let study = format!("reproduce/digitizer/{point}");
        let is_of = |record: &&RunRecord| {
            record.study == study && record.outcome.is_ok() && !record.lanes.is_empty()
        };
        let mut found: Vec<&RunRecord> = self.records.iter().filter(is_of).collect();
        let is_quiet = |record: &&RunRecord| conditions::of(record).is_empty();
        if found.iter().any(is_quiet) {
            found.retain(is_quiet);
        }
        found.sort_by_key(|record| record.wall_ns);
        found.get(found.len() / 2).copied()
    }

    /// Times that were measured for the boards of a table, fastest first. Read-out times are those of emulated boards, conversions
    /// run on this host's own processor.
    pub(super) fn boards(&self, table: &Table) -> Vec<Board> {
        let Some(record) = self.record(&table.id) else {
            return Vec::new();
        };
        let measured = |value| of_kind(table.kind, record, value);
        let board = |times: Times| {
            Some(Board {
                speed: measured(times.speed_mb_per_s)?,
                start: measured(times.start_ms)?,
                end: measured(times.end_ms)?,
                duration: measured((times.end_ms - times.start_ms) / times.reads as f64)?,
            })
        };
        times(record, table).into_iter().filter_map(board).collect()
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

/// What was measured of one board, by the document's definitions.
pub(super) struct Board {
    /// MB/s.
    pub(super) speed: Measured,
    /// Start of the first repetition, in ms.
    pub(super) start: Measured,
    /// End of the last.
    pub(super) end: Measured,
    /// Per repetition.
    pub(super) duration: Measured,
}

/// The stage of one lane that a table times.
struct Times {
    start_ms: f64,
    end_ms: f64,
    reads: u64,
    speed_mb_per_s: f64,
}

/// The lanes in the stage that the table times, fastest first.
fn times(record: &RunRecord, table: &Table) -> Vec<Times> {
    let stage_at = match table.kind {
        Kind::Readout => 0,
        Kind::Conversion => 1,
    };
    let stages = record.lanes.iter().filter_map(|lane| lane.stages.get(stage_at));
    let of = |stage: &daqmeter_record::Stage| {
        let reads = stage.ops_per_sample * stage.sample_ns.len() as u64;
        let ns = (stage.end_ns.saturating_sub(stage.start_ns)).max(1) as f64;
        Times {
            start_ms: stage.start_ns as f64 / 1e6,
            end_ms: stage.end_ns as f64 / 1e6,
            reads: reads.max(1),
            speed_mb_per_s: (stage.bytes_per_op * reads) as f64 / ns * 1e3,
        }
    };
    let mut times: Vec<Times> = stages.map(of).collect();
    times.sort_by(|a, b| b.speed_mb_per_s.total_cmp(&a.speed_mb_per_s));
    times
}

/// Speeds of the lanes in the stage that the table times, in MB/s by the document's definition, fastest first.
pub(super) fn speeds(record: &RunRecord, table: &Table) -> Vec<f64> {
    let times = times(record, table).into_iter();
    times.map(|times| times.speed_mb_per_s).collect()
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
