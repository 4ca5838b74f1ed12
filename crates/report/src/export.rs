//! Records as flat tables for other tools: CSV and Parquet, which DuckDB, pandas and Polars read as they are.
//!
//! Four tables: one row a stage ([`summary`]), a sample ([`samples`]), a counter ([`counters`]), a value of a time series
//! ([`series`]). Names of columns carry
//! their unit last, as in the record; parameters of workloads are columns of their own, `param.<name>`.

use std::sync::Arc;

use daqmeter_record::observed::ObservedEvent;
use daqmeter_record::units::plural;
use daqmeter_record::{Lane, Outcome, RunRecord, Stage, Workload};

use crate::frame::{Cell, Rows};
pub use crate::frame::{Column, Frame, Names};
#[cfg(feature = "parquet")]
pub use crate::parquet::ParquetError;
use crate::rate::Doubt;
use crate::rows::{Row, absent_rows, outcome_of, rows, rows_of};

/// Begins so many rows of one record: what tells the records apart, and whether they are to be believed.
fn begin(rows: &mut Rows, count: usize, record: &RunRecord, workload: &str) {
    let ended = (&record.outcome, record.engine.emulated);
    begin_of(rows, count, record, workload, ended);
}

/// Begins rows of one lane, which has its own outcome and emulated flag.
fn begin_of(
    rows: &mut Rows,
    count: usize,
    record: &RunRecord,
    workload: &str,
    (outcome, emulated): (&Outcome, bool),
) {
    rows.begin_many(count);
    rows.set("run_id", record.run_id.as_str());
    rows.set_time("time_utc", &record.time_utc);
    rows.set("study", record.study.as_str());
    rows.set("engine", record.engine.name.as_str());
    rows.set("target", record.engine.target.as_str());
    rows.set("workload", workload);
    let (outcome, reason) = crate::rate::undone(outcome).unwrap_or(("ok", ""));
    rows.set("outcome", outcome);
    rows.set("reason", reason);
    rows.set("host", host(record));
    rows.set("emulated", emulated);
}

/// The machine in one text, by which records of several are told apart.
fn host(record: &RunRecord) -> Cell {
    let host = &record.host;
    if !host.is_known() {
        return Cell::from(&*host.cpu_model);
    }
    let cpus = plural(u64::from(host.logical_cpus), "CPU");
    let kernel = host.kernel.split(' ').next().unwrap_or_default();
    let name = match host.name.as_str() {
        "" => String::new(),
        name => format!("{name}: "),
    };
    Cell::from(&*format!("{name}{}, {cpus}, kernel {kernel}", host.cpu_model))
}

/// One row for each stage of each lane; a record without lanes (waived, failed) is a row with its reason.
pub fn summary(records: &[RunRecord]) -> Frame {
    let mut rows = Rows::default();
    for record in records {
        let stages = rows_of(record);
        let workload = record.workload.to_string();
        for at in 0..stages.len().max(1) {
            let ended = stages.get(at).map(|row| (&row.outcome, row.emulated));
            let ended = ended.unwrap_or((&record.outcome, record.engine.emulated));
            begin_of(&mut rows, 1, record, &workload, ended);
            rows.set("cpu_model", record.host.cpu_model.as_str());
            rows.set("logical_cpus", u64::from(record.host.logical_cpus));
            rows.set("kernel", record.host.kernel.as_str());
            rows.set("tool_version", record.tool.version.as_str());
            rows.set("git_revision", record.tool.git_revision.as_str());
            if let Some(row) = stages.get(at) {
                numbers(&mut rows, row);
            }
            for (name, value) in &record.workload.params {
                rows.set(&format!("param.{name}"), value);
            }
        }
    }
    rows.frame()
}

/// The columns of a stage's summary.
fn numbers(rows: &mut Rows, row: &Row) {
    rows.set("device", row.device.as_str());
    rows.set("stage", row.stage.as_str());
    rows.set("label", row.label.as_str());
    rows.set("n", row.n as u64);
    rows.set("ops_per_sample", row.ops_per_sample);
    rows.set("bytes_per_op", row.bytes_per_op);
    rows.set("median_ns", row.median_ns);
    rows.set("ci_low_ns", row.ci_ns.0);
    rows.set("ci_high_ns", row.ci_ns.1);
    rows.set("spread", row.spread);
    rows.set("outliers", row.outliers as u64);
    rows.set("rate_bytes_per_s", row.rate_bytes_per_s);
    rows.set("cpu_fraction", row.cpu_fraction);
    rows.set("doubt", row.doubt.map_or("", Doubt::name));
    rows.set("disturbed", row.disturbed.as_str());
    let interval = |ends: Option<(f64, f64)>| ends.unzip();
    let (rate_low, rate_high) = interval(row.rate_interval_bytes_per_s);
    let (limit_low, limit_high) = interval(row.limit_interval_bytes_per_s);
    let optional = [
        ("p99_ns", row.p99_ns),
        ("rate_low_bytes_per_s", rate_low),
        ("rate_high_bytes_per_s", rate_high),
        ("limit_bytes_per_s", row.limit_bytes_per_s),
        ("limit_low_bytes_per_s", limit_low),
        ("limit_high_bytes_per_s", limit_high),
        ("fraction", row.fraction),
        ("carried_bytes", row.carried_bytes.map(|bytes| bytes as f64)),
    ];
    for (name, value) in optional {
        rows.set_if(name, value);
    }
}

/// Columns of the table for spreadsheets. New ones go to the end.
const TABLE_COLUMNS: [&str; 29] = [
    "study",
    "engine",
    "device",
    "stage",
    "point",
    "emulated",
    "n",
    "bytes_per_op",
    "median_ns",
    "spread",
    "ci_low_ns",
    "ci_high_ns",
    "p99_ns",
    "outliers",
    "rate_bytes_per_s",
    "limit_bytes_per_s",
    "fraction",
    "cpu_fraction",
    "outcome",
    "reason",
    "ops_per_sample",
    "rate_low_bytes_per_s",
    "rate_high_bytes_per_s",
    "limit_low_bytes_per_s",
    "limit_high_bytes_per_s",
    "doubt",
    "carried_bytes",
    "disturbed",
    "label",
];

/// The table for spreadsheets: a row for each stage, with what tells its point from others. What was waived or failed before it
/// began is a row, too, without numbers.
pub fn table(records: &[RunRecord]) -> Frame {
    let mut all = Rows::with_columns(&TABLE_COLUMNS);
    for row in rows(records) {
        outcome(&mut all, &row);
        numbers(&mut all, &row);
    }
    for row in absent_rows(records) {
        outcome(&mut all, &row);
    }
    all.frame()
}

/// What a row is of, and how it ended.
fn outcome(rows: &mut Rows, row: &Row) {
    rows.begin();
    let (outcome, reason) = row.undone().unwrap_or(("ok", ""));
    let texts = [
        ("study", row.study.as_str()),
        ("engine", row.engine.as_str()),
        ("point", row.point.as_str()),
        ("outcome", outcome),
        ("reason", reason),
    ];
    for (name, text) in texts {
        rows.set(name, text);
    }
    rows.set("emulated", row.emulated);
}

/// One row for each sample, in the order in which they were taken.
pub fn samples(records: &[RunRecord]) -> Frame {
    let mut parts = SampleParts::new(usize::MAX);
    for record in records {
        parts.add(record);
    }
    parts.finish().unwrap_or_default()
}

/// The same in frames of so many rows at most, all with the same columns, from records as they come: samples are many.
pub struct SampleParts {
    max_rows: usize,
    rows: Rows,
    /// What the last record was asked, and its text: records that follow one another often share it.
    asked: Option<(Arc<Workload>, String)>,
}

impl SampleParts {
    /// No rows yet.
    pub fn new(max_rows: usize) -> SampleParts {
        SampleParts { max_rows: max_rows.max(1), rows: Rows::default(), asked: None }
    }

    /// Adds the samples of a record; the frames that are full now.
    pub fn add(&mut self, record: &RunRecord) -> Vec<Frame> {
        let asked = self.asked.take();
        let is_same = |(asked, _): &(Arc<Workload>, _)| Arc::ptr_eq(asked, &record.workload);
        let asked = asked.filter(is_same).unwrap_or_else(|| {
            let text = record.workload.to_string();
            (Arc::clone(&record.workload), text)
        });
        let mut full = Vec::new();
        for lane in &record.lanes {
            for stage in &lane.stages {
                let mut samples = Samples::of(record, lane, stage, &asked.1);
                while samples.left() > 0 {
                    samples.take(self.max_rows - self.rows.len(), &mut self.rows);
                    if self.rows.len() == self.max_rows {
                        full.push(std::mem::take(&mut self.rows).frame());
                    }
                }
            }
        }
        self.asked = Some(asked);
        full
    }

    /// What is left, where anything is.
    pub fn finish(self) -> Option<Frame> {
        Some(self.rows.frame()).filter(|frame| !frame.is_empty())
    }
}

/// The samples of a stage that are not rows yet.
struct Samples<'a> {
    record: &'a RunRecord,
    lane: &'a Lane,
    stage: &'a Stage,
    /// What the record was asked.
    asked: &'a str,
    /// Of the samples so many are rows.
    taken: usize,
    starts_ns: Box<dyn Iterator<Item = u64> + 'a>,
}

impl<'a> Samples<'a> {
    fn of(record: &'a RunRecord, lane: &'a Lane, stage: &'a Stage, asked: &'a str) -> Samples<'a> {
        Samples {
            record,
            lane,
            stage,
            asked,
            taken: 0,
            starts_ns: Box::new(stage.sample_starts_ns()),
        }
    }

    fn left(&self) -> usize {
        self.stage.sample_ns.len() - self.taken
    }

    /// Makes rows of the next samples, so many at most.
    fn take(&mut self, max_rows: usize, rows: &mut Rows) {
        let first = self.taken;
        let count = self.left().min(max_rows);
        let (record, stage) = (self.record, self.stage);
        let ended = (outcome_of(record, self.lane), self.lane.is_emulated(record));
        begin_of(rows, count, record, self.asked, ended);
        rows.set("device", self.lane.device.as_str());
        rows.set("stage", stage.name.as_str());
        rows.set("label", &*crate::families::label(record, stage));
        rows.set_each("index", (first..first + count).map(|at| at as u64));
        rows.set_each("start_ns", &mut self.starts_ns);
        rows.set_each("sample_ns", stage.sample_ns[first..].iter().copied());
        rows.set("ops", stage.ops_per_sample);
        rows.set("bytes_per_op", stage.bytes_per_op);
        self.taken += count;
    }
}

/// One row for each counter of each record.
pub fn counters(records: &[RunRecord]) -> Frame {
    let mut rows = Rows::default();
    for record in records {
        let workload = record.workload.to_string();
        for counter in &record.counters {
            begin(&mut rows, 1, record, &workload);
            rows.set("counter", counter.name.as_str());
            rows.set("value", counter.value);
            rows.set("unit", counter.unit.as_str());
            rows.set("share", counter.share);
        }
    }
    rows.frame()
}

/// One row for each value of each time series, and for each interval of each event and rate
/// that was counted over time.
pub fn series(records: &[RunRecord]) -> Frame {
    let mut rows = Rows::default();
    for record in records {
        let workload = record.workload.to_string();
        for series in &record.series {
            for (&time_ns, &value) in series.times_ns.iter().zip(&series.values) {
                begin(&mut rows, 1, record, &workload);
                rows.set("series", series.name.as_str());
                rows.set("time_ns", time_ns);
                rows.set_if("value", value);
                rows.set("unit", series.unit.as_str());
            }
        }
        if let Some(observed) = &record.observed {
            let mut row = |name: &str,
                           unit: &str,
                           at: usize,
                           value: Option<f64>,
                           event: Option<&ObservedEvent>| {
                begin(&mut rows, 1, record, &workload);
                rows.set("series", name);
                rows.set("time_ns", observed.end_ns[at]);
                rows.set_if("value", value);
                rows.set("unit", unit);
                let seconds = event.and_then(|event| observed.seconds_of(event, at));
                let rate = value.zip(seconds).map(|(value, seconds)| value / seconds);
                rows.set_if("per_s", rate);
                rows.set_if("share", event.and_then(|event| event.share(at)));
            };
            for at in 0..observed.end_ns.len() {
                for event in &observed.events {
                    row(&event.name, &event.unit, at, event.scaled(at), Some(event));
                }
                for metric in &observed.metrics {
                    let value = metric.values.get(at).copied().flatten();
                    row(&metric.name, &metric.unit, at, value, None);
                }
            }
        }
    }
    rows.frame()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{above_its_limit, chain, example, waived};

    #[test]
    fn a_row_for_each_stage_and_for_what_was_waived() {
        let frame = summary(&[example(), waived()]);
        assert_eq!(frame.len(), 5);
        let csv = frame.csv();
        assert!(
            csv.lines()
                .next()
                .unwrap()
                .ends_with("param.dec_factor,param.devices,param.function,param.samples"),
            "{csv}"
        );
        assert!(csv.contains("\"no \"\"card\"\", here\""));
        assert_eq!(csv.lines().count(), 6);
    }

    #[test]
    fn every_table_says_how_a_record_ended_and_which_rate_cannot_be() {
        let mut failed = example();
        failed.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
        failed.counters = vec![daqmeter_record::Counter::count("polls", 3)];
        let frames = [summary(&[failed.clone()]), samples(&[failed.clone()]), counters(&[failed])];
        for frame in frames {
            assert!(
                frame.csv().lines().skip(1).all(|line| line.contains(",failed,bytes differ,")),
                "{}",
                frame.csv()
            );
        }
        let doubted = summary(&[above_its_limit()]);
        let p99 = doubted.columns.iter().find(|(name, _)| name == "p99_ns");
        assert!(
            matches!(p99, Some((_, Column::Float(values))) if values.iter().all(Option::is_none)),
            "{p99:?}"
        );
        let (_, column) = doubted.columns.iter().find(|(name, _)| name == "doubt").unwrap();
        let Column::Text(values) = column else { panic!("text") };
        assert_eq!(values.iter().flatten().filter(|value| *value == "above-limit").count(), 2);
    }

    fn in_parts(records: &[RunRecord], max_rows: usize) -> Vec<Frame> {
        let mut parts = SampleParts::new(max_rows);
        let mut frames: Vec<Frame> = Vec::new();
        for record in records {
            frames.extend(parts.add(record));
        }
        frames.extend(parts.finish());
        frames
    }

    #[test]
    fn parts_of_any_size_hold_the_rows_of_the_whole() {
        let mut other = example();
        other.set_param("devices", "emu:l7");
        let records = [example(), waived(), other, example()];
        let whole = samples(&records).csv();
        for max_rows in [1, 5, 12, 13, 35, 36, 37, usize::MAX] {
            let frames = in_parts(&records, max_rows);
            let rows: String = frames.iter().map(Frame::csv_rows).collect();
            let heading = whole.split_inclusive('\n').next().unwrap();
            assert_eq!([heading, &rows].concat(), whole, "{max_rows}");
            let (last, full) = frames.split_last().unwrap();
            assert!(full.iter().all(|frame| frame.len() == max_rows));
            assert!(!last.is_empty() && last.len() <= max_rows);
        }
    }

    #[test]
    fn samples_follow_one_another_in_time() {
        let frame = samples(&[example()]);
        assert_eq!(frame.len(), 12);
        let column =
            |wanted: &str| frame.columns.iter().find(|(name, _)| name == wanted).unwrap().1.clone();
        let (Column::Int(starts), Column::Int(times)) = (column("start_ns"), column("sample_ns"))
        else {
            panic!("whole numbers")
        };
        assert_eq!(starts[1].unwrap(), starts[0].unwrap() + times[0].unwrap());
        let parts = in_parts(&[example()], 5);
        assert_eq!(parts.iter().map(Frame::len).collect::<Vec<_>>(), [5, 5, 2]);
        let text: String = parts.iter().map(Frame::csv_rows).collect();
        assert!(frame.csv().ends_with(&text) && text.lines().count() == 12);
        assert!(counters(&[example()]).is_empty());
    }

    #[test]
    fn a_table_has_the_bytes_that_were_carried_and_their_rate() {
        for frame in [summary(&[chain(400_000)]), table(&[chain(400_000)])] {
            let value = |wanted: &str| {
                let column = frame.columns.iter().find(|(name, _)| name == wanted);
                match &column.unwrap().1 {
                    Column::Float(values) => values[0],
                    _ => None,
                }
            };
            assert_eq!(value("rate_bytes_per_s"), Some(400_000.0));
            assert_eq!(value("carried_bytes"), Some(400_000.0));
        }
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
        let value = |wanted: &str| match &frame
            .columns
            .iter()
            .find(|(name, _)| name == wanted)
            .unwrap()
            .1
        {
            Column::Float(values) => values[0].unwrap(),
            Column::Int(values) => values[0].unwrap() as f64,
            _ => panic!("a number"),
        };
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
        let csv = series(&[record, waived()]).csv();
        assert_eq!(csv.lines().count(), 3, "{csv}");
        assert!(
            csv.contains(",ring filling,10,64,B\n") && csv.contains(",ring filling,20,,B\n"),
            "{csv}"
        );
    }
}
