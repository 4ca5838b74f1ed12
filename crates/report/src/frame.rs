//! Tables with typed columns, as CSV; as Parquet in `parquet.rs`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{Display, Write as _};
use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

use daqmeter_record::{Param, sanitise};

/// Values of one column; holes are values that a row does not have.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Names.
    Text(Names),
    /// Counts and nanoseconds.
    Int(Vec<Option<i64>>),
    /// True or false.
    Flag(Vec<Option<bool>>),
    /// Moments: milliseconds since 1970, UTC.
    Time(Vec<Option<i64>>),
    /// Numbers.
    Float(Vec<Option<f64>>),
}

/// Names of rows: few different ones, many times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    /// The different ones, in the order in which they came.
    pub distinct: Vec<String>,
    /// Of each row its place among them.
    pub places: Vec<Option<u32>>,
}

impl Names {
    /// The name of each row.
    pub fn iter(&self) -> impl Iterator<Item = Option<&str>> {
        let name = |place: Option<u32>| Some(&*self.distinct[place? as usize]);
        self.places.iter().map(move |place| name(*place))
    }
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

/// Rows with names, from which columns are made: a name that any row has is a column. Rows that follow one another are set
/// together where they have a value in common.
#[derive(Default)]
pub(crate) struct Rows {
    columns: Vec<(String, Runs)>,
    places: HashMap<String, usize>,
    /// The rows that are being set, the last of all.
    set: Range<usize>,
}

/// What was set of one column, in the order of rows.
#[derive(Default)]
struct Runs {
    runs: Vec<(Range<usize>, Values)>,
    /// What it holds even where no row has a value: the type of a column does not depend on the records.
    holds: Option<Holds>,
}

#[derive(Clone, Copy, PartialEq)]
enum Holds {
    Numbers,
    Moments,
}

/// Values of consecutive rows.
enum Values {
    /// The same for all.
    All(Cell),
    /// One for each.
    Each(Vec<i64>),
}

impl Rows {
    /// Rows whose first columns are these, even where no row has one.
    pub(crate) fn with_columns(names: &[&str]) -> Rows {
        let mut rows = Rows::default();
        for name in names {
            rows.column(name);
        }
        rows
    }

    /// Rows so far.
    pub(crate) fn len(&self) -> usize {
        self.set.end
    }

    pub(crate) fn begin(&mut self) {
        self.begin_many(1);
    }

    /// Begins so many rows, which are set together.
    pub(crate) fn begin_many(&mut self, rows: usize) {
        self.set = self.set.end..self.set.end + rows;
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<Cell>) {
        self.put(name, Values::All(value.into()));
    }

    /// A whole number for each of the rows that were begun.
    pub(crate) fn set_each(&mut self, name: &str, values: impl Iterator<Item = u64>) {
        let values: Vec<i64> = values.take(self.set.len()).map(signed).collect();
        debug_assert_eq!(values.len(), self.set.len());
        self.put(name, Values::Each(values));
    }

    /// The column of that name, made where there is none yet.
    fn column(&mut self, name: &str) -> &mut Runs {
        let at = match self.places.get(name) {
            Some(at) => *at,
            None => {
                let at = self.columns.len();
                self.places.insert(name.to_owned(), at);
                self.columns.push((name.to_owned(), Runs::default()));
                at
            }
        };
        &mut self.columns[at].1
    }

    fn put(&mut self, name: &str, values: Values) {
        let rows = self.set.clone();
        self.column(name).runs.push((rows, values));
    }

    /// A number that not every row has; the column is there in any case.
    pub(crate) fn set_if(&mut self, name: &str, value: Option<f64>) {
        self.column(name).holds = Some(Holds::Numbers);
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// A moment as records have it; a hole where it is none.
    pub(crate) fn set_time(&mut self, name: &str, text: &str) {
        self.column(name).holds = Some(Holds::Moments);
        if let Some(ms) = moment_ms(text) {
            self.set(name, Cell::Time(ms));
        }
    }

    pub(crate) fn frame(self) -> Frame {
        let rows = self.set.end;
        let columns = self.columns.into_iter();
        Frame { columns: columns.map(|(name, runs)| (name, runs.typed(rows))).collect() }
    }
}

impl Runs {
    /// The narrowest type that holds all of them: a parameter may be a number at one engine and a name at another.
    fn typed(self, rows: usize) -> Column {
        let any = |wanted: fn(&Cell) -> bool| {
            let mut runs = self.runs.iter();
            runs.any(|(_, values)| matches!(values, Values::All(cell) if wanted(cell)))
        };
        let is_each = |(_, values): &(_, Values)| matches!(values, Values::Each(_));
        let has_numbers = any(|cell| matches!(cell, Cell::Int(_) | Cell::Float(_)))
            || self.runs.iter().any(is_each);
        if self.holds == Some(Holds::Moments) {
            return Column::Time(self.filled(rows, moment, Some));
        }
        if any(|cell| matches!(cell, Cell::Text(_))) {
            return Column::Text(self.names(rows));
        }
        let is_number = self.holds == Some(Holds::Numbers);
        if any(|cell| matches!(cell, Cell::Flag(_))) && !has_numbers && !is_number {
            let flag = |cell| Some(matches!(cell, Cell::Flag(true)));
            return Column::Flag(self.filled(rows, flag, |_| None));
        }
        if is_number || any(|cell| matches!(cell, Cell::Float(_))) {
            return Column::Float(self.filled(rows, float, |value| Some(value as f64)));
        }
        Column::Int(self.filled(rows, whole, Some))
    }

    /// A value for each row; a hole where none was set.
    fn filled<T: Copy>(
        self,
        rows: usize,
        of_cell: impl Fn(Cell) -> Option<T>,
        of_each: impl Fn(i64) -> Option<T>,
    ) -> Vec<Option<T>> {
        let mut filled = vec![None; rows];
        for (range, values) in self.runs {
            let place = &mut filled[range];
            match values {
                Values::All(cell) => place.fill(of_cell(cell)),
                Values::Each(values) => {
                    for (place, value) in place.iter_mut().zip(values) {
                        *place = of_each(value);
                    }
                }
            }
        }
        filled
    }

    fn names(self, rows: usize) -> Names {
        let mut names = Names { places: vec![None; rows], ..Names::default() };
        let mut known: HashMap<String, u32> = HashMap::new();
        for (range, values) in self.runs {
            match values {
                Values::All(cell) => {
                    let place = place_of(cell.into_text(), &mut names.distinct, &mut known);
                    names.places[range].fill(Some(place));
                }
                Values::Each(values) => {
                    for (place, value) in names.places[range].iter_mut().zip(values) {
                        let text = value.to_string();
                        *place = Some(place_of(text, &mut names.distinct, &mut known));
                    }
                }
            }
        }
        names
    }
}

fn place_of(text: String, distinct: &mut Vec<String>, known: &mut HashMap<String, u32>) -> u32 {
    if let Some(place) = known.get(&text) {
        return *place;
    }
    let place = u32::try_from(distinct.len()).expect("a frame has fewer rows");
    distinct.push(text.clone());
    known.insert(text, place);
    place
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn moment(cell: Cell) -> Option<i64> {
    match cell {
        Cell::Time(ms) => Some(ms),
        _ => None,
    }
}

fn float(cell: Cell) -> Option<f64> {
    Some(match cell {
        Cell::Float(number) => number,
        Cell::Int(number) => number as f64,
        Cell::Flag(flag) => f64::from(u8::from(flag)),
        Cell::Text(_) | Cell::Time(_) => f64::NAN,
    })
}

fn whole(cell: Cell) -> Option<i64> {
    Some(match cell {
        Cell::Int(number) => signed(number),
        Cell::Flag(flag) => i64::from(flag),
        Cell::Float(_) | Cell::Text(_) | Cell::Time(_) => 0,
    })
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
            Column::Text(names) => names.places.len(),
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
        let mut columns: Vec<CsvColumn<'_>> = self.columns.iter().map(CsvColumn::of).collect();
        let mut out = String::new();
        // Rows of one stage begin with the same names, which are long.
        let names = columns.iter().take_while(|column| column.is_names()).count();
        let mut begins = 0..0;
        for at in 0..self.len() {
            let from = out.len();
            let is_same = |column: &CsvColumn<'_>| at > 0 && column.is_same(at - 1, at);
            let first = match columns[..names].iter().all(is_same) {
                true => names,
                false => 0,
            };
            if first > 0 {
                out.extend_from_within(begins);
            }
            begins = from..out.len();
            for (place, column) in columns.iter_mut().enumerate().skip(first) {
                if place > 0 {
                    out.push(',');
                }
                column.push(at, &mut out);
                if place + 1 == names {
                    begins.end = out.len();
                }
            }
            out.push('\n');
        }
        out
    }
}

/// A column that is being written as CSV.
enum CsvColumn<'a> {
    /// The names as they are written.
    Text(Vec<Cow<'a, str>>, &'a [Option<u32>]),
    /// The last moment and how it is written: rows of one record have the same.
    Time((Option<i64>, String), &'a [Option<i64>]),
    Int(&'a [Option<i64>]),
    Float(&'a [Option<f64>]),
    Flag(&'a [Option<bool>]),
}

impl<'a> CsvColumn<'a> {
    fn of((_, column): &'a (String, Column)) -> CsvColumn<'a> {
        match column {
            Column::Text(names) => {
                let written = names.distinct.iter().map(|name| sanitise::csv(name));
                CsvColumn::Text(written.collect(), &names.places)
            }
            Column::Time(values) => CsvColumn::Time((None, String::new()), values),
            Column::Int(values) => CsvColumn::Int(values),
            Column::Float(values) => CsvColumn::Float(values),
            Column::Flag(values) => CsvColumn::Flag(values),
        }
    }

    /// Whether it holds names and moments, not numbers.
    fn is_names(&self) -> bool {
        matches!(self, CsvColumn::Text(..) | CsvColumn::Time(..) | CsvColumn::Flag(_))
    }

    /// Whether two rows have the same value. Numbers are not compared.
    fn is_same(&self, a: usize, b: usize) -> bool {
        match self {
            CsvColumn::Text(_, places) => places[a] == places[b],
            CsvColumn::Time(_, values) => values[a] == values[b],
            CsvColumn::Flag(values) => values[a] == values[b],
            CsvColumn::Int(_) | CsvColumn::Float(_) => false,
        }
    }

    /// Adds the value of a row; nothing for a hole.
    fn push(&mut self, row: usize, out: &mut String) {
        match self {
            CsvColumn::Text(written, places) => {
                out.push_str(places[row].map_or("", |place| &*written[place as usize]));
            }
            CsvColumn::Time((last, written), values) => {
                if *last != values[row] {
                    (*last, *written) =
                        (values[row], values[row].map_or_else(String::new, rfc3339));
                }
                out.push_str(written);
            }
            CsvColumn::Int(values) => push_shown(values[row], out),
            CsvColumn::Float(values) => push_shown(values[row], out),
            CsvColumn::Flag(values) => push_shown(values[row], out),
        }
    }
}

fn push_shown(value: Option<impl Display>, out: &mut String) {
    if let Some(value) = value {
        let _ = write!(out, "{value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two records of two and three rows; the parameter is a number in one and a name in the other.
    fn rows(together: bool) -> Frame {
        let mut rows = Rows::default();
        let mut next = 0;
        for (count, name, mixed) in [(2, "a", Cell::Int(7)), (3, "b, c", Cell::from("seven"))] {
            let mixed = mixed.into_text();
            let parts = if together { vec![count] } else { vec![1; count] };
            for part in parts {
                rows.begin_many(part);
                rows.set("name", name);
                rows.set_time("time_utc", "2026-11-22T01:02:03.004Z");
                rows.set_each("at", (next..).take(part));
                next += part as u64;
                match mixed.parse::<u64>() {
                    Ok(number) => rows.set("mixed", number),
                    Err(_) => rows.set("mixed", mixed.as_str()),
                }
            }
        }
        rows.begin();
        rows.set("flag", true);
        rows.set_if("number", None);
        rows.frame()
    }

    #[test]
    fn rows_that_are_set_together_are_those_that_are_set_one_by_one() {
        let frame = rows(true);
        assert_eq!(frame, rows(false));
        assert_eq!(
            frame.csv(),
            "name,time_utc,at,mixed,flag,number\n\
             a,2026-11-22T01:02:03.004Z,0,7,,\n\
             a,2026-11-22T01:02:03.004Z,1,7,,\n\
             \"b, c\",2026-11-22T01:02:03.004Z,2,seven,,\n\
             \"b, c\",2026-11-22T01:02:03.004Z,3,seven,,\n\
             \"b, c\",2026-11-22T01:02:03.004Z,4,seven,,\n\
             ,,,,true,\n"
        );
    }

    #[test]
    fn a_name_is_held_once_however_many_rows_have_it() {
        let frame = rows(true);
        let Column::Text(names) = &frame.columns[0].1 else { panic!("text") };
        assert_eq!(names.distinct, ["a", "b, c"]);
        let found: Vec<Option<&str>> = names.iter().collect();
        let (a, b) = (Some("a"), Some("b, c"));
        assert_eq!(found, [a, a, b, b, b, None]);
    }
}
