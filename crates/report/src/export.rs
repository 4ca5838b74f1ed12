//! Records as flat tables for other tools: CSV and Parquet, which DuckDB, pandas and Polars read as they are.
//!
//! Three tables: one row a stage ([`summary`]), one row a sample ([`samples`]), one row a counter ([`counters`]). Names of columns carry
//! their unit last, as in the record; parameters of workloads are columns of their own, `param.<name>`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

use daqmeter_record::{Param, RunRecord, sanitise};
use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
pub use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use crate::rate::Doubt;
use crate::rows::{Row, rows_of};

/// Values of one column; holes are values that a row does not have.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Names.
    Text(Vec<Option<String>>),
    /// Counts and nanoseconds.
    Int(Vec<Option<i64>>),
    /// Numbers.
    Float(Vec<Option<f64>>),
}

/// A table: columns by name, all of one length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frame {
    /// The columns in their order.
    pub columns: Vec<(String, Column)>,
}

/// Values of one row as they come.
enum Cell {
    Text(String),
    Int(u64),
    Float(f64),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

/// Rows with names, from which columns are made: a name that any row has is a column.
#[derive(Default)]
struct Rows {
    names: Vec<String>,
    places: BTreeMap<String, usize>,
    /// Columns of numbers, even where no row has one: the type of a column does not depend on the records.
    numbers: BTreeSet<usize>,
    rows: Vec<Vec<Option<Cell>>>,
}

impl Rows {
    fn begin(&mut self) {
        self.rows.push(Vec::new());
    }

    fn set(&mut self, name: &str, value: impl Into<Cell>) {
        let at = self.place(name);
        self.put(at, value.into());
    }

    /// The column of that name, made where there is none yet.
    fn place(&mut self, name: &str) -> usize {
        if let Some(at) = self.places.get(name) {
            return *at;
        }
        self.places.insert(name.to_owned(), self.names.len());
        self.names.push(name.to_owned());
        self.names.len() - 1
    }

    fn put(&mut self, at: usize, cell: Cell) {
        let Some(row) = self.rows.last_mut() else {
            return;
        };
        if row.len() <= at {
            row.resize_with(at + 1, || None);
        }
        row[at] = Some(cell);
    }

    /// A number that not every row has; the column is there in any case.
    fn set_if(&mut self, name: &str, value: Option<f64>) {
        let at = self.place(name);
        self.numbers.insert(at);
        if let Some(value) = value {
            self.put(at, Cell::Float(value));
        }
    }

    fn frame(mut self) -> Frame {
        let column = |at: usize| -> Vec<Option<Cell>> {
            self.rows
                .iter_mut()
                .map(|row| row.get_mut(at).and_then(Option::take))
                .collect()
        };
        let cells: Vec<Vec<Option<Cell>>> = (0..self.names.len()).map(column).collect();
        let numbers = self.numbers;
        let columns = cells
            .into_iter()
            .enumerate()
            .map(|(at, cells)| typed(cells, numbers.contains(&at)));
        Frame {
            columns: self.names.into_iter().zip(columns).collect(),
        }
    }
}

/// The narrowest type that holds all of them: a parameter may be a number at one engine and a name at another.
fn typed(cells: Vec<Option<Cell>>, is_number: bool) -> Column {
    let any = |wanted: fn(&Cell) -> bool| cells.iter().flatten().any(wanted);
    if any(|cell| matches!(cell, Cell::Text(_))) {
        let text = |cell| match cell {
            Cell::Text(text) => text,
            Cell::Int(number) => number.to_string(),
            Cell::Float(number) => number.to_string(),
        };
        return Column::Text(cells.into_iter().map(|cell| cell.map(text)).collect());
    }
    if is_number || any(|cell| matches!(cell, Cell::Float(_))) {
        let number = |cell| match cell {
            Cell::Float(number) => number,
            Cell::Int(number) => number as f64,
            Cell::Text(_) => f64::NAN,
        };
        return Column::Float(cells.into_iter().map(|cell| cell.map(number)).collect());
    }
    let whole = |cell| match cell {
        Cell::Int(number) => i64::try_from(number).unwrap_or(i64::MAX),
        Cell::Float(_) | Cell::Text(_) => 0,
    };
    Column::Int(cells.into_iter().map(|cell| cell.map(whole)).collect())
}

impl From<u64> for Cell {
    fn from(number: u64) -> Cell {
        Cell::Int(number)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        Cell::Float(number)
    }
}

impl From<&Param> for Cell {
    fn from(param: &Param) -> Cell {
        match param {
            Param::Flag(flag) => Cell::Int(u64::from(*flag)),
            Param::Int(number) => Cell::Int(*number),
            Param::Float(number) => Cell::Float(*number),
            Param::Text(text) => Cell::Text(text.clone()),
        }
    }
}

/// What tells the records apart, and whether they are to be believed.
fn identity(rows: &mut Rows, record: &RunRecord, workload: &str) {
    rows.begin();
    rows.set("run_id", record.run_id.as_str());
    rows.set("time_utc", record.time_utc.as_str());
    rows.set("study", record.study.as_str());
    rows.set("engine", record.engine.name.as_str());
    rows.set("target", record.engine.target.as_str());
    rows.set("workload", workload);
    let (outcome, reason) = crate::rate::undone(&record.outcome).unwrap_or(("ok", ""));
    rows.set("outcome", outcome);
    rows.set("reason", reason);
}

/// One row for each stage of each lane; a record without lanes (waived, failed) is a row with its reason.
pub fn summary(records: &[RunRecord]) -> Frame {
    let mut rows = Rows::default();
    for record in records {
        let stages = rows_of(record);
        let workload = record.workload.to_string();
        for at in 0..stages.len().max(1) {
            identity(&mut rows, record, &workload);
            rows.set("emulated", u64::from(record.engine.emulated));
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
    ];
    for (name, value) in optional {
        rows.set_if(name, value);
    }
}

/// One row for each sample, in the order in which they were taken.
pub fn samples(records: &[RunRecord]) -> Frame {
    samples_in_parts(records, usize::MAX)
        .next()
        .unwrap_or_default()
}

/// The same in frames of so many rows at most, all with the same columns: samples are many.
pub fn samples_in_parts(records: &[RunRecord], most_rows: usize) -> impl Iterator<Item = Frame> {
    let stages = records.iter().flat_map(|record| {
        record
            .lanes
            .iter()
            .flat_map(move |lane| lane.stages.iter().map(move |stage| (record, lane, stage)))
    });
    let mut all = stages.flat_map(|(record, lane, stage)| {
        let (mut next_ns, workload): (_, Rc<str>) =
            (stage.start_ns, record.workload.to_string().into());
        stage
            .sample_ns
            .iter()
            .enumerate()
            .map(move |(at, &sample_ns)| {
                let start_ns = stage.sample_start_ns.get(at).copied().unwrap_or(next_ns);
                next_ns = next_ns.saturating_add(sample_ns);
                (
                    record,
                    Rc::clone(&workload),
                    lane,
                    stage,
                    at,
                    start_ns,
                    sample_ns,
                )
            })
    });
    std::iter::from_fn(move || {
        let mut rows = Rows::default();
        for (record, workload, lane, stage, at, start_ns, sample_ns) in all.by_ref().take(most_rows)
        {
            identity(&mut rows, record, &workload);
            rows.set("device", lane.device.as_str());
            rows.set("stage", stage.name.as_str());
            rows.set("index", at as u64);
            rows.set("start_ns", start_ns);
            rows.set("sample_ns", sample_ns);
            rows.set("ops", stage.ops_per_sample);
            rows.set("bytes_per_op", stage.bytes_per_op);
        }
        Some(rows.frame()).filter(|frame| !frame.is_empty())
    })
}

/// One row for each counter of each record.
pub fn counters(records: &[RunRecord]) -> Frame {
    let mut rows = Rows::default();
    for record in records {
        let workload = record.workload.to_string();
        for counter in &record.counters {
            identity(&mut rows, record, &workload);
            rows.set("counter", counter.name.as_str());
            rows.set("value", counter.value);
            rows.set("unit", counter.unit.as_str());
            rows.set("share", counter.share);
        }
    }
    rows.frame()
}

impl Frame {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.columns.first().map_or(0, |(_, column)| match column {
            Column::Text(values) => values.len(),
            Column::Int(values) => values.len(),
            Column::Float(values) => values.len(),
        })
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Comma-separated values (RFC 4180): a heading, then the rows; holes are empty.
    pub fn csv(&self) -> String {
        let names: Vec<String> = self
            .columns
            .iter()
            .map(|(name, _)| sanitise::csv(name).into_owned())
            .collect();
        names.join(",") + "\n" + &self.csv_rows()
    }

    /// The rows alone, for what follows a first part.
    pub fn csv_rows(&self) -> String {
        let mut out = String::new();
        for at in 0..self.len() {
            for (place, (_, column)) in self.columns.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                match column {
                    Column::Text(values) => {
                        out.push_str(&values[at].as_deref().map(sanitise::csv).unwrap_or_default())
                    }
                    Column::Int(values) => values[at].iter().for_each(|value| {
                        let _ = write!(out, "{value}");
                    }),
                    Column::Float(values) => values[at].iter().for_each(|value| {
                        let _ = write!(out, "{value}");
                    }),
                }
            }
            out.push('\n');
        }
        out
    }

    /// Parquet, Snappy-compressed, in one row group.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn parquet(&self, sink: impl Write + Send) -> Result<(), ParquetError> {
        let mut file = self.begin_parquet(sink)?;
        self.append_to(&mut file)?;
        file.close().map(drop)
    }

    /// A Parquet file with these columns and no row yet.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn begin_parquet<W: Write + Send>(
        &self,
        sink: W,
    ) -> Result<SerializedFileWriter<W>, ParquetError> {
        let field = |(name, column): &(String, Column)| {
            let (physical, converted) = match column {
                Column::Text(_) => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
                Column::Int(_) => (Physical::INT64, ConvertedType::NONE),
                Column::Float(_) => (Physical::DOUBLE, ConvertedType::NONE),
            };
            let built = Type::primitive_type_builder(name, physical)
                .with_repetition(Repetition::OPTIONAL)
                .with_converted_type(converted)
                .build()?;
            Ok(Arc::new(built))
        };
        let fields = self
            .columns
            .iter()
            .map(field)
            .collect::<Result<Vec<_>, ParquetError>>()?;
        let schema = Arc::new(
            Type::group_type_builder("daqmeter")
                .with_fields(fields)
                .build()?,
        );
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .build();
        SerializedFileWriter::new(sink, schema, Arc::new(properties))
    }

    /// Appends the rows, as a row group, to a file with the same columns.
    ///
    /// # Errors
    /// Those of the sink, and when the columns are others.
    pub fn append_to<W: Write + Send>(
        &self,
        file: &mut SerializedFileWriter<W>,
    ) -> Result<(), ParquetError> {
        let mut group = file.next_row_group()?;
        for (_, column) in &self.columns {
            let mut sink = group
                .next_column()?
                .ok_or_else(|| ParquetError::General("a column too many".to_owned()))?;
            match column {
                Column::Text(values) => {
                    let bytes = |text: &String| ByteArray::from(text.as_str());
                    write_column::<ByteArrayType, _>(sink.typed(), values, bytes)?;
                }
                Column::Int(values) => {
                    write_column::<Int64Type, _>(sink.typed(), values, |value| *value)?
                }
                Column::Float(values) => {
                    write_column::<DoubleType, _>(sink.typed(), values, |value| *value)?
                }
            }
            sink.close()?;
        }
        group.close().map(drop)
    }
}

fn write_column<T: DataType, V>(
    sink: &mut parquet::column::writer::ColumnWriterImpl<'_, T>,
    values: &[Option<V>],
    as_stored: impl Fn(&V) -> T::T,
) -> Result<(), ParquetError> {
    let levels: Vec<i16> = values
        .iter()
        .map(|value| i16::from(value.is_some()))
        .collect();
    let there: Vec<T::T> = values.iter().flatten().map(as_stored).collect();
    sink.write_batch(&there, Some(&levels), None).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{above_its_limit, example};
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    fn waived() -> RunRecord {
        let mut record = example();
        record.lanes.clear();
        record.outcome = daqmeter_record::Outcome::Waived("no \"card\", here".into());
        record.workload = record.workload.with("function", "all");
        record
    }

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
        let frames = [
            summary(&[failed.clone()]),
            samples(&[failed.clone()]),
            counters(&[failed]),
        ];
        for frame in frames {
            assert!(
                frame
                    .csv()
                    .lines()
                    .skip(1)
                    .all(|line| line.contains(",failed,bytes differ,")),
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
        let (_, column) = doubted
            .columns
            .iter()
            .find(|(name, _)| name == "doubt")
            .unwrap();
        let Column::Text(values) = column else {
            panic!("text")
        };
        assert_eq!(
            values
                .iter()
                .flatten()
                .filter(|value| *value == "above-limit")
                .count(),
            2
        );
    }

    #[test]
    fn samples_follow_one_another_in_time() {
        let frame = samples(&[example()]);
        assert_eq!(frame.len(), 12);
        let column = |wanted: &str| {
            frame
                .columns
                .iter()
                .find(|(name, _)| name == wanted)
                .unwrap()
                .1
                .clone()
        };
        let (Column::Int(starts), Column::Int(times)) = (column("start_ns"), column("sample_ns"))
        else {
            panic!("whole numbers")
        };
        assert_eq!(starts[1].unwrap(), starts[0].unwrap() + times[0].unwrap());
        let records = [example()];
        let parts: Vec<Frame> = samples_in_parts(&records, 5).collect();
        assert_eq!(parts.iter().map(Frame::len).collect::<Vec<_>>(), [5, 5, 2]);
        let text: String = parts.iter().map(Frame::csv_rows).collect();
        assert!(frame.csv().ends_with(&text) && text.lines().count() == 12);
        let mut bytes = Vec::new();
        let mut file = parts[0].begin_parquet(&mut bytes).unwrap();
        parts
            .iter()
            .for_each(|part| part.append_to(&mut file).unwrap());
        file.close().unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        assert_eq!(
            (
                reader.num_row_groups(),
                reader.metadata().file_metadata().num_rows()
            ),
            (3, 12)
        );
        assert!(counters(&[example()]).is_empty());
    }

    #[test]
    fn parquet_is_read_back_with_its_holes() {
        let mut bytes = Vec::new();
        let frame = summary(&[example(), waived()]);
        frame.parquet(&mut bytes).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let names: Vec<String> = reader
            .metadata()
            .file_metadata()
            .schema()
            .get_fields()
            .iter()
            .map(|field| field.name().to_owned())
            .collect();
        assert_eq!(
            names,
            frame
                .columns
                .iter()
                .map(|(name, _)| name.clone())
                .collect::<Vec<_>>()
        );
        let place = |wanted: &str| names.iter().position(|name| name == wanted).unwrap();
        let rows: Vec<_> = reader
            .get_row_iter(None)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(rows.len(), 5);
        assert_eq!(
            rows[0].get_double(place("rate_bytes_per_s")).unwrap(),
            1.2e9
        );
        assert_eq!(rows[4].get_string(place("outcome")).unwrap(), "waived");
        assert!(rows[4].get_double(place("median_ns")).is_err(), "a hole");
        assert_eq!(
            rows[4].get_string(place("param.function")).unwrap(),
            "all",
            "a column of numbers and names is text"
        );
    }
}
