//! The source document's study beside model and measurement: what to run, and what the records then say.
//!
//! Works on records alone, fresh or read back from a file. Prints nothing.

use daqmeter_record::study::{Comparison, Measured};
use daqmeter_record::{RunRecord, Workload};

use crate::devices::sis8300::emulated::Profile;
use crate::published::{CpuRow, Document, Kind, Table};

mod findings;

pub use findings::{INCONSISTENCIES, findings};

/// Prefix of the studies of all records here.
pub const STUDY: &str = "reproduce/digitizer";
/// Passes of a CPU measurement: a second and a half at 14 Hz.
pub const CPU_PASSES: u64 = 21;

/// How a point of the reproduction is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// `-N`.
    Reads(u64),
    /// `-l`.
    Passes(u64),
    /// As long as it takes for a good median.
    Timed,
}

/// One point to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Study of its record.
    pub study: String,
    /// Name of the engine, `digitizer` or `convert`.
    pub engine: &'static str,
    /// What to ask.
    pub workload: Workload,
    /// How often.
    pub steps: Steps,
    /// Sample what takes the time.
    pub profile: bool,
}

/// Everything that the reproduction runs.
pub fn plan(published: &Document) -> Vec<Planned> {
    let table = |table: &Table| Planned {
        study: format!("{STUDY}/{}", table.id),
        engine: "digitizer",
        workload: table.workload(),
        steps: Steps::Reads(table.reads),
        profile: false,
    };
    let cpu = |(at, row): (usize, &CpuRow)| Planned {
        study: format!("{STUDY}/cpu-{at}"),
        engine: "digitizer",
        workload: cpu_workload(row),
        steps: Steps::Passes(CPU_PASSES),
        profile: row.command,
    };
    let scale = |(factor, offset): (f64, f64)| Planned {
        study: format!("{STUDY}/scale-{factor}-{offset}"),
        engine: "convert",
        workload: Workload::new("convert")
            .with("samples", 3_000_000_u64)
            .with("function", 3_u64)
            .with("scale_factor", factor)
            .with("scale_offset", offset),
        steps: Steps::Timed,
        profile: false,
    };
    // A run of tens of milliseconds is at the mercy of one hiccup of the host: it is done five times, the median counts.
    let repeats = |table: &Table| {
        if table.samples < 10_000_000 && table.kind == Kind::Readout {
            5
        } else {
            1
        }
    };
    let tables = published
        .table
        .iter()
        .flat_map(|one| std::iter::repeat_n(table(one), repeats(one)));
    tables
        .chain(published.cpu.iter().enumerate().map(cpu))
        .chain(SCALES.map(scale))
        .collect()
}

/// Two scalings that differ in nothing but their values.
const SCALES: [(f64, f64); 2] = [(1.0, 0.0), (0.123, -45.6)];

fn cpu_workload(row: &CpuRow) -> Workload {
    let devices = if row.boards == 1 {
        "emu:l0".to_owned()
    } else {
        format!("emu:l0..{}", row.boards - 1)
    };
    Workload::new("digitizer")
        .with("devices", devices)
        .with("samples", row.samples)
        .with("function", row.function)
        .with("completion", if row.polling { "poll" } else { "interrupt" })
        .with("trigger_rate_hz", 14.0)
}

/// The record of a study; of several, the one with the median wall time. What failed or was waived is no record of it.
fn find<'a>(records: &'a [RunRecord], study: &str) -> Option<&'a RunRecord> {
    let is_of = |record: &&RunRecord| {
        record.study == study && record.outcome.is_ok() && !record.lanes.is_empty()
    };
    let mut found: Vec<&RunRecord> = records.iter().filter(is_of).collect();
    found.sort_by_key(|record| record.wall_ns);
    found.get(found.len() / 2).copied()
}

/// Speeds of the lanes in the stage that the table times, in MB/s by the document's definition, fastest first.
fn speeds(record: &RunRecord, table: &Table) -> Vec<f64> {
    let stage_at = match table.kind {
        Kind::Readout => 0,
        Kind::Conversion => 1,
    };
    let mut speeds: Vec<f64> = record
        .lanes
        .iter()
        .filter_map(|lane| lane.stages.get(stage_at))
        .map(|stage| {
            let bytes = stage.bytes_per_op * stage.ops_per_sample * stage.sample_ns.len() as u64;
            bytes as f64 / (stage.end_ns.saturating_sub(stage.start_ns)).max(1) as f64 * 1e3
        })
        .collect();
    speeds.sort_by(|a, b| b.total_cmp(a));
    speeds
}

/// Speeds that were measured for a table, fastest first. Read-out speeds are those of emulated boards, conversions run on this
/// host's own processor.
fn measured(records: &[RunRecord], table: &Table) -> Vec<Measured> {
    let Some(record) = find(records, &format!("{STUDY}/{}", table.id)) else {
        return Vec::new();
    };
    let of = |speed| match table.kind {
        Kind::Readout => Measured::of(record, speed),
        Kind::Conversion => Measured::of_processor(record, speed),
    };
    speeds(record, table).into_iter().filter_map(of).collect()
}

/// The mean over the boards of a table.
fn measured_mean(records: &[RunRecord], table: &Table) -> Option<Measured> {
    let record = find(records, &format!("{STUDY}/{}", table.id))?;
    let mean = mean(&speeds(record, table));
    match table.kind {
        Kind::Readout => Measured::of(record, mean),
        Kind::Conversion => Measured::of_processor(record, mean),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Every row of every table. Boards of one model are interchangeable, so rows are compared in order of speed.
pub fn tables(published: &Document, profile: &Profile, records: &[RunRecord]) -> Vec<Comparison> {
    published
        .table
        .iter()
        .flat_map(|table| rows(table, profile, records))
        .collect()
}

/// The rows of one table, and their mean.
fn rows(table: &Table, profile: &Profile, records: &[RunRecord]) -> Vec<Comparison> {
    let mut model = table.model_mb_per_s(profile).unwrap_or_default();
    model.sort_by(|a, b| b.total_cmp(a));
    let here = measured(records, table);
    let mut rows: Vec<_> = table.rows.iter().collect();
    rows.sort_by(|a, b| b.speed_mb_per_s.order(&a.speed_mb_per_s));
    let scoped = |line: Comparison| {
        if table.kind == Kind::Conversion {
            line.of_this_host()
        } else {
            line
        }
    };
    let line = |(at, row): (usize, &crate::published::Row)| {
        let speed = row.speed_mb_per_s.within(&table.place);
        let line = Comparison::new(
            &table.title,
            format!("sis8300-{}", row.board),
            speed,
            "MB/s",
        );
        scoped(
            line.model(model.get(at).copied())
                .measured(here.get(at).copied()),
        )
    };
    let mut lines: Vec<Comparison> = rows.into_iter().enumerate().map(line).collect();
    let of_all = Comparison::new(&table.title, "mean", None, "MB/s").derived(table.mean_mb_per_s());
    lines.push(scoped(
        of_all
            .model(mean(&model))
            .measured(measured_mean(records, table)),
    ));
    lines
}

/// CPU time of the process over wall time, in per cent of one core.
pub fn cpu_percent(record: &RunRecord) -> f64 {
    record.process_cpu.total_ns() as f64 / record.wall_ns.max(1) as f64 * 100.0
}

/// What was measured for a CPU figure: emulated boards do not cost what the document's do, so it is this host's own.
fn measured_cpu(records: &[RunRecord], at: usize) -> Option<Measured> {
    let record = find(records, &format!("{STUDY}/cpu-{at}"))?;
    Measured::of(record, cpu_percent(record))
}

/// What the model gives for a CPU figure. It is of read-out; conversion adds its cost per sample.
fn modelled_cpu(row: &CpuRow, profile: &Profile) -> f64 {
    let bytes = row.samples * 2;
    let own = profile
        .own_bytes_per_s(crate::devices::sis8300::regs::Model::L)
        .unwrap_or(f64::INFINITY);
    let own: Vec<f64> = vec![own; row.boards as usize];
    let read_s =
        crate::devices::sis8300::emulated::uplink::predict(&profile.uplink, &own, bytes as f64)[0];
    let converted = if row.function == 5 {
        profile.conversion_ns_per_raw_byte.unsigned_f64
    } else {
        0.0
    };
    let conversion = 14.0 * f64::from(row.boards) * bytes as f64 * converted * 1e-9 * 100.0;
    profile.cpu_percent(row.boards, bytes, read_s, 14.0, row.polling) + conversion
}

/// Every CPU figure.
pub fn cpu(published: &Document, profile: &Profile, records: &[RunRecord]) -> Vec<Comparison> {
    let line = |(at, row): (usize, &CpuRow)| {
        let how = if row.polling { "poll" } else { "interrupt" };
        let name = format!("{}, {} board(s), {how}", row.title, row.boards);
        Comparison::new("CPU at 14 Hz", name, row.percent.clone(), "% of a core")
            .model(modelled_cpu(row, profile))
            .measured(measured_cpu(records, at))
            .of_this_host()
    };
    published.cpu.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_record::{Lane, Stage};

    #[test]
    fn the_plan_covers_every_table_and_every_cpu_row() {
        let published = Document::default();
        let plan = plan(&published);
        let mut studies: Vec<&str> = plan.iter().map(|point| point.study.as_str()).collect();
        studies.sort_unstable();
        studies.dedup();
        assert_eq!(
            studies.len(),
            published.table.len() + published.cpu.len() + 2,
            "each has a study of its own"
        );
        assert_eq!(
            plan.len(),
            studies.len() + 4 * 4,
            "the four short read-out tables are repeated"
        );
    }

    #[test]
    fn a_record_lands_in_its_row_with_the_documents_definition_of_speed() {
        let published = Document::default();
        let mut record = RunRecord::default();
        record.study = format!("{STUDY}/l1-60mb");
        let stage = Stage {
            bytes_per_op: 60_000_000,
            ops_per_sample: 1,
            sample_ns: vec![1; 30],
            start_ns: 300_000,
            end_ns: 2_895_600_000,
            ..Stage::default()
        };
        record.lanes.push(Lane {
            stages: vec![stage],
            ..Lane::default()
        });
        let lines = tables(&published, &Profile::default(), &[record]);
        let line = lines
            .iter()
            .find(|line| line.row == "sis8300-6" && line.table == "1x L, 60 MB")
            .unwrap();
        assert_eq!(
            line.published.as_ref().unwrap().place(),
            "PCIe transfer speed, 1x AMC SIS8300L/L2, row 1, speed"
        );
        assert!(
            (line.measured.unwrap().value() - 621.7).abs() < 0.05,
            "the document's own start and end give its own speed"
        );
        assert!(line.difference().unwrap().abs() < 1e-3);
    }

    #[test]
    fn conversions_and_cpu_figures_are_never_judged_by_this_host() {
        let published = Document::default();
        let all = [
            tables(&published, &Profile::default(), &[]),
            cpu(&published, &Profile::default(), &[]),
        ]
        .concat();
        let of = |table: &'static str| {
            all.iter()
                .filter(move |line| line.table == table && line.row != "mean")
        };
        assert!(
            of("cast to float").all(|line| line.verdict().to_string() == "not measured"),
            "no model of conversions"
        );
        assert!(of("CPU at 14 Hz").all(|line| line.verdict().to_string().ends_with("(model)")));
        assert_eq!(
            all.iter().filter(|line| line.published.is_some()).count(),
            68 + 18
        );
        assert!(
            all.iter()
                .filter(|line| line.row == "mean")
                .all(|line| line.verdict().to_string() == "nothing published")
        );
    }
}
