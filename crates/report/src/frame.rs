//! Tables with typed columns, as CSV; as Parquet in `parquet.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use daqmeter_record::{Param, sanitise};

/// Values of one column; holes are values that a row does not have.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Names.
    Text(Vec<Option<String>>),
    /// Counts and nanoseconds.
    Int(Vec<Option<i64>>),
    /// True or false.
    Flag(Vec<Option<bool>>),
    /// Moments: milliseconds since 1970, UTC.
    Time(Vec<Option<i64>>),
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
    Flag(bool),
    Time(i64),
}

impl Cell {
    fn into_text(self) -> String {
        match self {
            Cell::Text(text) => text,
            Cell::Int(number) => number.to_string(),
            Cell::Float(number) => number.to_string(),
            Cell::Flag(flag) => flag.to_string(),
            Cell::Time(ms) => rfc3339(ms),
        }
    }
}

/// A moment as records have it (RFC 3339), in milliseconds since 1970; none where it is none.
fn moment_ms(text: &str) -> Option<i64> {
    let time = humantime::parse_rfc3339(text).ok()?;
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// A moment as text.
fn rfc3339(ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

impl From<bool> for Cell {
    fn from(flag: bool) -> Cell {
        Cell::Flag(flag)
    }
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
    /// Columns of moments, in the same way.
    times: BTreeSet<usize>,
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

    /// A moment as records have it; a hole where it is none.
    pub(crate) fn set_time(&mut self, name: &str, text: &str) {
        let at = self.place(name);
        self.times.insert(at);
        if let Some(ms) = moment_ms(text) {
            self.put(at, Cell::Time(ms));
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
        let (numbers, times) = (self.numbers, self.times);
        let columns = cells
            .into_iter()
            .enumerate()
            .map(|(at, cells)| match times.contains(&at) {
                true => Column::Time(moments(cells)),
                false => typed(cells, numbers.contains(&at)),
            });
        Frame {
            columns: self.names.into_iter().zip(columns).collect(),
        }
    }
}

/// The narrowest type that holds all of them: a parameter may be a number at one engine and a name at another.
fn typed(cells: Vec<Option<Cell>>, is_number: bool) -> Column {
    let any = |wanted: fn(&Cell) -> bool| cells.iter().flatten().any(wanted);
    let is_flag = any(|cell| matches!(cell, Cell::Flag(_)));
    let has_numbers = any(|cell| matches!(cell, Cell::Int(_) | Cell::Float(_)));
    if any(|cell| matches!(cell, Cell::Text(_))) {
        let text = |cell: Option<Cell>| cell.map(Cell::into_text);
        return Column::Text(cells.into_iter().map(text).collect());
    }
    if is_flag && !has_numbers && !is_number {
        let flag = |cell| matches!(cell, Cell::Flag(true));
        return Column::Flag(cells.into_iter().map(|cell| cell.map(flag)).collect());
    }
    if is_number || any(|cell| matches!(cell, Cell::Float(_))) {
        return Column::Float(cells.into_iter().map(|cell| cell.map(float)).collect());
    }
    Column::Int(cells.into_iter().map(|cell| cell.map(whole)).collect())
}

fn moments(cells: Vec<Option<Cell>>) -> Vec<Option<i64>> {
    let ms = |cell| match cell {
        Cell::Time(ms) => Some(ms),
        _ => None,
    };
    cells.into_iter().map(|cell| cell.and_then(ms)).collect()
}

fn float(cell: Cell) -> f64 {
    match cell {
        Cell::Float(number) => number,
        Cell::Int(number) => number as f64,
        Cell::Flag(flag) => f64::from(u8::from(flag)),
        Cell::Text(_) | Cell::Time(_) => f64::NAN,
    }
}

fn whole(cell: Cell) -> i64 {
    match cell {
        Cell::Int(number) => i64::try_from(number).unwrap_or(i64::MAX),
        Cell::Flag(flag) => i64::from(flag),
        Cell::Float(_) | Cell::Text(_) | Cell::Time(_) => 0,
    }
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
            Param::Flag(flag) => Cell::Flag(*flag),
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
            Column::Int(values) | Column::Time(values) => values.len(),
            Column::Flag(values) => values.len(),
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
                    Column::Flag(values) => values[at].iter().for_each(|value| {
                        let _ = write!(out, "{value}");
                    }),
                    Column::Time(values) => {
                        values[at].iter().for_each(|ms| out.push_str(&rfc3339(*ms)))
                    }
                }
            }
            out.push('\n');
        }
        out
    }
}
