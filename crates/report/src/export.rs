//! Records as flat tables for other tools: CSV and Parquet, directly readable by DuckDB, pandas and
//! Polars.
//!
//! There are four tables, with one row per stage ([`stages`]), sample ([`samples`]), counter
//! ([`counters`]) or value of a time series ([`series`]). Names of columns carry their unit last,
//! as in the record. Parameters of workloads are columns of their own, `param.<name>`.

use std::borrow::Cow;
use std::fmt::Write;
use std::iter::repeat_n;
use std::time::UNIX_EPOCH;

use daqmeter_record::units::plural;
use daqmeter_record::{Outcome, Param, RunRecord, sanitise};

pub use crate::columns::Cell;
use crate::columns::{COLUMNS, StageColumn};
use crate::families::label;
#[cfg(feature = "parquet")]
pub use crate::parquet::{ParquetError, parquet};
use crate::rate::undone;
use crate::rows::{StageRow, outcome_of, points, rows_of};

/// Narrowest type of a column that holds all of its values: a parameter may be a number for one
/// engine and a name for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CellType {
    Flag,
    Int,
    Float,
    Time,
    Text,
}

impl Cell {
    fn cell_type(&self) -> Option<CellType> {
        Some(match self {
            Cell::None => return None,
            Cell::Flag(_) => CellType::Flag,
            Cell::Int(_) => CellType::Int,
            Cell::Float(_) => CellType::Float,
            Cell::Time(_) => CellType::Time,
            Cell::Text(_) => CellType::Text,
        })
    }

    pub fn int(&self) -> Option<i64> {
        match self {
            Cell::Int(number) => Some(*number),
            Cell::Flag(flag) => Some(i64::from(*flag)),
            Cell::Time(ms) => *ms,
            _ => None,
        }
    }

    pub fn float(&self) -> Option<f64> {
        match self {
            Cell::Float(number) => *number,
            other => other.int().map(|number| number as f64),
        }
    }
}

impl From<&Param> for Cell {
    fn from(param: &Param) -> Cell {
        match param {
            Param::Flag(flag) => Cell::Flag(*flag),
            Param::Int(number) => (*number).into(),
            Param::Float(number) => (*number).into(),
            Param::Text(text) => text.as_str().into(),
        }
    }
}

/// Column of a table; equal values of consecutive rows are held once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataColumn {
    pub name: String,
    runs: Vec<(Cell, usize)>,
}

impl DataColumn {
    fn push(&mut self, cell: Cell, count: usize) {
        match self.runs.last_mut() {
            Some((last, rows)) if *last == cell => *rows += count,
            _ => self.runs.push((cell, count)),
        }
    }

    pub fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.runs.iter().flat_map(|(cell, count)| repeat_n(cell, *count))
    }

    pub fn cell_type(&self) -> CellType {
        self.runs.iter().filter_map(|(cell, _)| cell.cell_type()).max().unwrap_or(CellType::Text)
    }
}

type Named = (Cow<'static, str>, Cell);

fn named(name: &'static str, value: impl Into<Cell>) -> Named {
    (Cow::Borrowed(name), value.into())
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataFrame {
    pub columns: Vec<DataColumn>,
    rows: usize,
}

impl DataFrame {
    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Appends a row. Each name of a row becomes a column.
    fn push(&mut self, row: impl IntoIterator<Item = Named>) {
        let mut is_set = vec![false; self.columns.len()];
        for (expected, (name, cell)) in row.into_iter().enumerate() {
            let has_name = |column: &DataColumn| column.name == name;
            let at = match self.columns.get(expected) {
                Some(column) if has_name(column) => expected,
                _ => self.columns.iter().position(has_name).unwrap_or_else(|| {
                    let mut column = DataColumn { name: name.into_owned(), runs: Vec::new() };
                    column.push(Cell::None, self.rows);
                    self.columns.push(column);
                    is_set.push(true);
                    self.columns.len() - 1
                }),
            };
            is_set[at] = true;
            self.columns[at].push(cell, 1);
        }
        let unset = self.columns.iter_mut().zip(is_set).filter(|(_, is_set)| !is_set);
        unset.for_each(|(column, _)| column.push(Cell::None, 1));
        self.rows += 1;
    }

    /// Returns comma-separated values (RFC 4180), without the names of the columns for any part but
    /// the first.
    pub fn csv(&self, with_names: bool) -> String {
        let names = self.columns.iter().map(|column| sanitise::csv(&column.name));
        let mut out =
            if with_names { names.collect::<Vec<_>>().join(",") + "\n" } else { String::new() };
        let mut columns: Vec<_> = self.columns.iter().map(DataColumn::cells).collect();
        for _ in 0..self.rows {
            for (at, cell) in columns.iter_mut().filter_map(Iterator::next).enumerate() {
                let comma = if at == 0 { "" } else { "," };
                let _ = match cell {
                    Cell::Text(text) => write!(out, "{comma}{}", sanitise::csv(text)),
                    number => write!(out, "{comma}{number}"),
                };
            }
            out.push('\n');
        }
        out
    }
}

fn context(record: &RunRecord, outcome: &Outcome, emulated: bool) -> [Named; 10] {
    let (outcome, reason) = undone(outcome).unwrap_or(("ok", ""));
    let time = humantime::parse_rfc3339(&record.time_utc).ok();
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let time_ms = since.and_then(|since| i64::try_from(since.as_millis()).ok());
    [
        named("run_id", record.run_id.as_str()),
        named("time_utc", Cell::Time(time_ms)),
        named("study", record.study.as_str()),
        named("engine", record.engine.name.as_str()),
        named("target", record.engine.target.as_str()),
        named("workload", record.workload.to_string()),
        named("outcome", outcome),
        named("reason", reason),
        named("host", host(record)),
        named("emulated", Cell::Flag(emulated)),
    ]
}

fn context_of(record: &RunRecord) -> [Named; 10] {
    context(record, &record.outcome, record.engine.emulated)
}

fn host(record: &RunRecord) -> String {
    let host = &record.host;
    if !host.is_known() {
        return host.cpu_model.clone();
    }
    let cpus = plural(u64::from(host.logical_cpus), "CPU");
    let kernel = host.kernel.split(' ').next().unwrap_or_default();
    let name = if host.name.is_empty() { String::new() } else { format!("{}: ", host.name) };
    format!("{name}{}, {cpus}, kernel {kernel}", host.cpu_model)
}

/// Returns one row for each stage of each lane. A record without lanes (waived, failed) is a row
/// with its reason and without numbers.
pub fn stages(records: &[RunRecord]) -> DataFrame {
    let mut frame = DataFrame::default();
    for (record, point) in records.iter().zip(points(records)) {
        let mut rows = rows_of(record);
        if rows.is_empty() {
            rows.push(StageRow::empty(record, "", record.outcome.clone()));
        }
        for mut row in rows {
            row.point.clone_from(&point);
            let about = [
                named("cpu_model", record.host.cpu_model.as_str()),
                named("logical_cpus", u64::from(record.host.logical_cpus)),
                named("kernel", record.host.kernel.as_str()),
                named("tool_version", record.tool.version.as_str()),
                named("git_revision", record.tool.git_revision.as_str()),
            ];
            let value = |column: &StageColumn| match column.name {
                "device" | "point" => (column.value)(&row),
                _ if row.stage.is_empty() => Cell::None,
                _ => (column.value)(&row),
            };
            let own = COLUMNS.iter().filter(|column| !column.name.is_empty());
            let own = own.map(|column| named(column.name, value(column)));
            let params = record.workload.params.iter();
            let params = params.map(|(name, value)| (format!("param.{name}").into(), value.into()));
            let context = context(record, &row.outcome, row.emulated);
            frame.push(context.into_iter().chain(about).chain(own).chain(params));
        }
    }
    frame
}

pub fn samples(records: &[RunRecord]) -> DataFrame {
    let mut frame = DataFrame::default();
    for record in records {
        for lane in &record.lanes {
            let context = context(record, outcome_of(record, lane), lane.is_emulated(record));
            for stage in &lane.stages {
                let about = [
                    named("device", lane.device.as_str()),
                    named("stage", stage.name.as_str()),
                    named("label", label(record, stage)),
                ];
                let times = stage.sample_starts_ns().zip(&stage.sample_ns).enumerate();
                for (index, (start_ns, ns)) in times {
                    let own = [
                        named("index", index as u64),
                        named("start_ns", start_ns),
                        named("sample_ns", *ns),
                        named("ops", stage.ops_per_sample),
                        named("bytes_per_op", stage.bytes_per_op),
                    ];
                    frame.push(context.iter().chain(&about).cloned().chain(own));
                }
            }
        }
    }
    frame
}

/// Returns the samples in tables of about this number of rows, with equal columns, because samples
/// are many. No record is split.
pub fn sample_parts(records: &[RunRecord], rows: usize) -> impl Iterator<Item = DataFrame> {
    let of = |record: &RunRecord| -> usize {
        let stages = record.lanes.iter().flat_map(|lane| &lane.stages);
        stages.map(|stage| stage.sample_ns.len()).sum()
    };
    let mut left = records;
    let parts = std::iter::from_fn(move || {
        let mut taken = 0;
        let fits = |record: &&RunRecord| {
            let is_room = taken < rows;
            taken += of(record);
            is_room
        };
        let (part, rest) = left.split_at(left.iter().take_while(fits).count());
        left = rest;
        (!part.is_empty()).then(|| samples(part))
    });
    parts.filter(|part| !part.is_empty())
}

pub fn counters(records: &[RunRecord]) -> DataFrame {
    let mut frame = DataFrame::default();
    for record in records {
        let context = context_of(record);
        for counter in &record.counters {
            let own = [
                named("counter", counter.name.as_str()),
                named("value", counter.value),
                named("unit", counter.unit.as_str()),
                named("share", counter.share),
            ];
            frame.push(context.iter().cloned().chain(own));
        }
    }
    frame
}

/// Returns one row for each value of each time series, and for each interval of each event and
/// rate.
pub fn series(records: &[RunRecord]) -> DataFrame {
    let mut frame = DataFrame::default();
    for record in records {
        let context = context_of(record);
        let mut push = |name: &str, unit: &str, time_ns: u64, value, per_s, share| {
            let own = [
                named("series", name),
                named("time_ns", time_ns),
                named("value", Cell::Float(value)),
                named("unit", unit),
                named("per_s", Cell::Float(per_s)),
                named("share", Cell::Float(share)),
            ];
            frame.push(context.iter().cloned().chain(own));
        };
        for series in &record.series {
            for (&time_ns, &value) in series.times_ns.iter().zip(&series.values) {
                push(&series.name, &series.unit, time_ns, value, None, None);
            }
        }
        let Some(observed) = &record.observed else { continue };
        for (at, &time_ns) in observed.end_ns.iter().enumerate() {
            for event in &observed.events {
                let value = event.scaled(at);
                let seconds = observed.seconds_of(event, at);
                let per_s = value.zip(seconds).map(|(value, seconds)| value / seconds);
                push(&event.name, &event.unit, time_ns, value, per_s, event.share(at));
            }
            for metric in &observed.metrics {
                let value = metric.values.get(at).copied().flatten();
                push(&metric.name, &metric.unit, time_ns, value, None, None);
            }
        }
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{above_its_limit, example, waived};

    #[test]
    fn every_table_says_how_a_record_ended_and_which_rate_cannot_be() {
        let mut failed = example();
        failed.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
        failed.counters = vec![daqmeter_record::Counter::count("polls", 3)];
        let frames = [stages(&[failed.clone()]), samples(&[failed.clone()]), counters(&[failed])];
        for frame in frames {
            assert!(
                frame.csv(true).lines().skip(1).all(|line| line.contains(",failed,bytes differ,")),
                "{}",
                frame.csv(true)
            );
        }
        let doubted = stages(&[above_its_limit()]);
        assert_eq!(floats(&doubted, "p99_ns"), [None; 4]);
        assert_eq!(doubted.csv(true).matches(",above-limit,").count(), 2);
    }

    fn floats(frame: &DataFrame, wanted: &str) -> Vec<Option<f64>> {
        let column = frame.columns.iter().find(|column| column.name == wanted).unwrap();
        column.cells().map(Cell::float).collect()
    }

    #[test]
    fn parts_hold_the_rows_of_the_whole_which_follow_one_another_in_time() {
        let mut other = example();
        other.set_param("devices", "emu:l7");
        let records = [example(), waived(), other, example()];
        let whole = samples(&records);
        assert_eq!(whole.len(), 36);
        let (starts, times) = (floats(&whole, "start_ns"), floats(&whole, "sample_ns"));
        assert_eq!(starts[1].unwrap(), starts[0].unwrap() + times[0].unwrap());
        for (rows, expected) in
            [(1, &[12, 12, 12][..]), (12, &[12, 12, 12]), (13, &[24, 12]), (99, &[36])]
        {
            let parts: Vec<DataFrame> = sample_parts(&records, rows).collect();
            assert_eq!(parts.iter().map(DataFrame::len).collect::<Vec<_>>(), expected);
            let csv: String =
                parts.iter().enumerate().map(|(at, part)| part.csv(at == 0)).collect();
            assert_eq!(csv, whole.csv(true));
        }
        assert!(counters(&[example()]).is_empty());
    }

    #[test]
    fn a_column_that_holds_numbers_and_names_is_text_and_rows_without_it_have_holes() {
        let mut frame = DataFrame::default();
        frame.push([named("a", 7_u64), named("b", Cell::Float(None))]);
        frame.push([named("a", "seven"), named("c", Cell::Flag(true))]);
        frame.push([named("c", Cell::Flag(false)), named("b", 1.5)]);
        assert_eq!(frame.csv(true), "a,b,c\n7,,\nseven,,true\n,1.5,false\n");
        let types: Vec<CellType> = frame.columns.iter().map(DataColumn::cell_type).collect();
        assert_eq!(types, [CellType::Text, CellType::Float, CellType::Flag]);
    }

    #[test]
    fn what_was_counted_over_time_is_a_row_for_each_interval() {
        let mut record = example();
        record.observed = Some(Box::new(crate::families::pmu::heat::tests::example()));
        let observed = record.observed.as_ref().unwrap();
        let rows = observed.end_ns.len() * (observed.events.len() + observed.metrics.len());
        let (event, end_ns) = (observed.events[0].clone(), observed.end_ns[0]);
        let rate = event.scaled(0).unwrap() / observed.seconds_of(&event, 0).unwrap();
        let frame = series(&[record]);
        assert_eq!(frame.len(), rows);
        let value = |wanted: &str| floats(&frame, wanted)[0].unwrap();
        assert_eq!(value("value"), event.scaled(0).unwrap());
        assert_eq!(value("per_s"), rate);
        assert_eq!(value("time_ns"), end_ns as f64);
    }

    #[test]
    fn a_time_series_is_a_row_for_each_value() {
        let mut record = example();
        record.series = vec![daqmeter_record::TimeSeries {
            name: "ring filling".into(),
            unit: "B".into(),
            times_ns: vec![10, 20],
            values: vec![Some(64.0), None],
        }];
        let csv = series(&[record, waived()]).csv(true);
        assert_eq!(csv.lines().count(), 3, "{csv}");
        assert!(
            csv.contains(",ring filling,10,64,B,,\n") && csv.contains(",ring filling,20,,B,,\n"),
            "{csv}"
        );
    }
}
