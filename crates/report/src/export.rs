//! Records as flat tables for other tools: CSV and Parquet, directly readable by DuckDB, pandas and
//! Polars.
//!
//! There are four tables, with one row per stage ([`stages`]), sample ([`samples`]), counter
//! ([`counters`]) or value of a time series ([`series`]). Names of columns carry their unit last,
//! as in the record. Parameters of workloads are columns of their own, `param.<name>`.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::iter::repeat_n;

use daqmeter_record::{Counter, Lane, Param, RunRecord, sanitise};

pub use crate::columns::Cell;
use crate::columns::{COLUMNS, CONTEXT, StageColumn};
use crate::levels::ShownLevels;
use crate::names::{self, Names};
use crate::points::StagePoint;
use crate::rows::{StageRow, rows_of};
use crate::samples::{drop_samples, samples as samples_of};
use crate::words::label;

impl Cell {
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
#[derive(Clone, Debug, PartialEq)]
pub struct DataColumn {
    pub name: String,
    /// Cell of the narrowest type that the column may have, whatever its rows.
    least: Cell,
    runs: Vec<(Cell, usize)>,
}

impl DataColumn {
    fn new(name: &str, least: Cell) -> DataColumn {
        DataColumn { name: name.to_owned(), least, runs: Vec::new() }
    }

    fn push(&mut self, cell: Cell) {
        match self.runs.last_mut() {
            Some((last, rows)) if *last == cell => *rows += 1,
            _ => self.runs.push((cell, 1)),
        }
    }

    pub fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.runs.iter().flat_map(|(cell, count)| repeat_n(cell, *count))
    }

    /// Returns a cell of the narrowest type that holds all values, as a parameter may be a number
    /// for one engine and a name for another.
    pub fn widest(&self) -> &Cell {
        self.runs.iter().map(|(cell, _)| cell).fold(&self.least, wider)
    }
}

fn wider<'a>(a: &'a Cell, b: &'a Cell) -> &'a Cell {
    if b > a { b } else { a }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataFrame {
    pub columns: Vec<DataColumn>,
    rows: usize,
}

impl DataFrame {
    /// Makes a table without rows: these columns, then its own.
    fn new<'a>(first: &[StageColumn], own: impl IntoIterator<Item = &'a str>) -> DataFrame {
        let first = first.iter().filter(|column| !column.name.is_empty());
        let first = first.map(|column| DataColumn::new(column.name, column.least()));
        let own = own.into_iter().map(|name| DataColumn::new(name, Cell::None));
        DataFrame { columns: first.chain(own).collect(), rows: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the table without its host, which is the name of a folder.
    #[must_use]
    pub fn without_host(mut self) -> DataFrame {
        self.columns.retain(|column| column.name != "host");
        self
    }

    /// Appends a row with a cell for each column.
    fn push(&mut self, context: &[Cell], own: impl IntoIterator<Item = Cell>) {
        let cells = context.iter().cloned().chain(own);
        self.columns.iter_mut().zip(cells).for_each(|(column, cell)| column.push(cell));
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

/// Returns the cells of the context of a record, or of one of its lanes.
fn context(record: &RunRecord, lane: Option<&Lane>) -> Vec<Cell> {
    let row = StageRow::new(record, lane, None, "");
    COLUMNS[..CONTEXT].iter().map(|column| column.cell(&row)).collect()
}

/// Parameters and points of records that become several tables, so that columns, types and names
/// of points are the same in each.
#[derive(Debug, Default)]
pub struct DataSet {
    /// Cell of the narrowest type of each parameter.
    params: BTreeMap<String, Cell>,
    /// A record without samples for each point.
    points: Vec<RunRecord>,
    known: HashSet<StagePoint>,
}

impl DataSet {
    pub fn add(&mut self, records: &[RunRecord]) {
        for record in records {
            for (name, value) in record.workload.params.iter() {
                let widest = self.params.entry(name.clone()).or_insert(Cell::None);
                *widest = wider(widest, &Cell::from(value)).clone();
            }
            let new = names::points(record).filter(|point| self.known.insert(point.clone()));
            if new.count() > 0 {
                let mut point = record.clone();
                drop_samples(&mut point);
                self.points.push(point);
            }
        }
    }

    /// Returns one row for each stage of each lane of these records. A record without lanes
    /// (waived, failed) is a row with its reason and without numbers.
    pub fn stages(&self, records: &[RunRecord]) -> DataFrame {
        let mut frame = DataFrame::new(&COLUMNS, []);
        let params = self.params.iter();
        let params = params.map(|(name, it)| DataColumn::new(&format!("param.{name}"), it.clone()));
        frame.columns.extend(params);
        let (known, levels) = (Names::of(&self.points), ShownLevels::of(records));
        for record in records {
            let mut rows = rows_of(record, &known, Some(&levels));
            if rows.is_empty() {
                rows.push(StageRow::new(record, None, None, known.of_record(record)));
            }
            for row in rows {
                let own = COLUMNS.iter().filter(|column| !column.name.is_empty());
                let params = self.params.keys().map(|name| record.workload.params.get(name));
                let params = params.map(|value| value.map_or(Cell::None, Cell::from));
                frame.push(&[], own.map(|column| column.cell(&row)).chain(params));
            }
        }
        frame
    }
}

/// Returns the rows of [`DataSet::stages`] of one table.
pub fn stages(records: &[RunRecord]) -> DataFrame {
    let mut set = DataSet::default();
    set.add(records);
    set.stages(records)
}

pub fn samples(records: &[RunRecord]) -> DataFrame {
    let mut frame = DataFrame::new(
        &COLUMNS[..CONTEXT],
        ["device", "stage", "label", "index", "start_ns", "sample_ns", "ops", "bytes_per_op"],
    );
    for record in records {
        for lane in &record.lanes {
            for stage in &lane.stages {
                let mut about = context(record, Some(lane));
                about.extend([lane.device.as_str().into(), stage.name.as_str().into()]);
                about.push(label(&record.workload, &stage.name).into());
                let (ops, bytes) = (stage.ops_per_sample, stage.bytes_per_op);
                let times = stage.sample_starts_ns().zip(&stage.sample_ns).enumerate();
                for (index, (start_ns, ns)) in times {
                    let own = [index as u64, start_ns, *ns, ops, bytes];
                    frame.push(&about, own.map(Cell::from));
                }
            }
        }
    }
    frame
}

/// Returns the samples in tables of about this number of rows, with equal columns, because samples
/// are many. No record is split.
pub fn sample_parts(records: &[RunRecord], rows: usize) -> impl Iterator<Item = DataFrame> {
    let mut left = records;
    let parts = std::iter::from_fn(move || {
        let mut taken = 0;
        let fits = |record: &&RunRecord| {
            let is_room = taken < rows;
            taken += samples_of(record);
            is_room
        };
        let (part, rest) = left.split_at(left.iter().take_while(fits).count());
        left = rest;
        (!part.is_empty()).then(|| samples(part))
    });
    parts.filter(|part| !part.is_empty())
}

pub fn counters(records: &[RunRecord]) -> DataFrame {
    let mut frame = DataFrame::new(&COLUMNS[..CONTEXT], ["counter", "value", "unit", "share"]);
    for record in records {
        let context = context(record, None);
        for Counter { name, value, unit, share } in &record.counters {
            let [name, unit] = [name, unit].map(|text| text.as_str().into());
            frame.push(&context, [name, (*value).into(), unit, (*share).into()]);
        }
    }
    frame
}

/// Returns one row for each value of each time series, and for each interval of each event and
/// rate.
pub fn series(records: &[RunRecord]) -> DataFrame {
    let mut frame = DataFrame::new(
        &COLUMNS[..CONTEXT],
        ["series", "time_ns", "value", "unit", "per_s", "share"],
    );
    for record in records {
        let context = context(record, None);
        let mut push = |name: &str, unit: &str, time_ns: u64, value, per_s, share| {
            let [value, per_s, share] = [value, per_s, share].map(Cell::Float);
            frame.push(&context, [name.into(), time_ns.into(), value, unit.into(), per_s, share]);
        };
        for series in &record.series {
            for (&time_ns, &value) in series.times_ns.iter().zip(&series.values) {
                push(&series.name, &series.unit, time_ns, value, None, None);
            }
        }
        let Some(observed) = &record.sections.observed else { continue };
        for (at, &time_ns) in observed.end_ns.iter().enumerate() {
            for event in &observed.events {
                let (value, per_s) = (event.scaled(at), observed.rate_at(event, at));
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
    use crate::examples::{example, waived};

    #[test]
    fn every_table_says_how_a_record_ended() {
        let mut failed = example();
        failed.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
        failed.counters = vec![daqmeter_record::Counter::count("polls", 3)];
        let frames = [stages(&[failed.clone()]), samples(&[failed.clone()]), counters(&[failed])];
        for csv in frames.map(|frame| frame.csv(true)) {
            let mut rows = csv.lines().skip(1);
            assert!(rows.all(|line| line.contains(",failed,bytes differ,")), "{csv}");
        }
    }

    #[test]
    fn a_point_has_one_name_in_all_parts_of_a_data_set() {
        let mut other = example();
        other.set_param("samples", 5_u64);
        let mut set = DataSet::default();
        set.add(&[example(), other]);
        let names = |frame: DataFrame| frame.csv(true).matches("read-out, 3000000 samples").count();
        assert_eq!([stages(&[example()]), set.stages(&[example()])].map(names), [0, 2]);
        assert!(set.points.iter().all(|point| crate::samples::samples(point) == 0));
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
        assert_eq!(whole.rows, 36);
        let (starts, times) = (floats(&whole, "start_ns"), floats(&whole, "sample_ns"));
        assert_eq!(starts[1].unwrap(), starts[0].unwrap() + times[0].unwrap());
        for (rows, expected) in [(1, &[12; 3][..]), (12, &[12; 3]), (13, &[24, 12]), (99, &[36])] {
            let parts: Vec<DataFrame> = sample_parts(&records, rows).collect();
            assert!(parts.iter().map(|part| part.rows).eq(expected.iter().copied()), "{rows}");
            let csv = parts.iter().enumerate().map(|(at, part)| part.csv(at == 0));
            assert_eq!(csv.collect::<String>(), whole.csv(true));
        }
        assert!(counters(&[example()]).is_empty());
    }

    #[test]
    fn a_column_that_holds_numbers_and_names_is_text_and_rows_without_it_have_holes() {
        let mut frame = DataFrame::new(&[], ["a", "b", "c"]);
        frame.push(&[], [7_u64.into(), Cell::Float(None), Cell::None]);
        frame.push(&[], ["seven".into(), Cell::None, Cell::Flag(true)]);
        frame.push(&[], [Cell::None, 1.5.into(), Cell::Flag(false)]);
        assert_eq!(frame.csv(true), "a,b,c\n7,,\nseven,,true\n,1.5,false\n");
        let types: Vec<&Cell> = frame.columns.iter().map(DataColumn::widest).collect();
        assert!(matches!(types[..], [Cell::Text(_), Cell::Float(_), Cell::Flag(_)]), "{types:?}");
    }

    #[test]
    fn what_was_counted_over_time_is_a_row_for_each_interval() {
        let mut record = example();
        record.sections.observed = Some(Box::new(crate::families::pmu::heat::tests::example()));
        let observed = record.sections.observed.as_ref().unwrap();
        let rows = observed.end_ns.len() * (observed.events.len() + observed.metrics.len());
        let (event, end_ns) = (observed.events[0].clone(), observed.end_ns[0]);
        let rate = event.scaled(0).unwrap() / observed.seconds_of(&event, 0).unwrap();
        let frame = series(&[record]);
        assert_eq!(frame.rows, rows);
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
        for row in [",ring filling,10,64,B,,\n", ",ring filling,20,,B,,\n"] {
            assert!(csv.contains(row), "{csv}");
        }
    }
}
