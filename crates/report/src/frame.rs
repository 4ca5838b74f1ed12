//! Tables with typed columns, as CSV and as Parquet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;

use daqmeter_record::{Param, sanitise};
use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

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
pub(crate) enum Cell {
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
pub(crate) struct Rows {
    names: Vec<String>,
    places: BTreeMap<String, usize>,
    /// Columns of numbers, even where no row has one: the type of a column does not depend on the records.
    numbers: BTreeSet<usize>,
    rows: Vec<Vec<Option<Cell>>>,
}

impl Rows {
    /// Rows whose first columns are these, even where no row has one.
    pub(crate) fn with_columns(names: &[&str]) -> Rows {
        let mut rows = Rows::default();
        for name in names {
            rows.place(name);
        }
        rows
    }

    pub(crate) fn begin(&mut self) {
        self.rows.push(Vec::new());
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<Cell>) {
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
    pub(crate) fn set_if(&mut self, name: &str, value: Option<f64>) {
        let at = self.place(name);
        self.numbers.insert(at);
        if let Some(value) = value {
            self.put(at, Cell::Float(value));
        }
    }

    pub(crate) fn frame(mut self) -> Frame {
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
        let names = self.columns.iter().map(|(name, _)| sanitise::csv(name));
        names.collect::<Vec<_>>().join(",") + "\n" + &self.csv_rows()
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
