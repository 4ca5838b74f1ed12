//! Columns of a stage's row: one table for the terminal, the page, Markdown, CSV and Parquet.

use std::fmt;
use std::sync::Arc;

use daqmeter_record::units::{plural, show_ns, significant};

use crate::rate::{shown_interval, shown_share};
use crate::rows::StageRow;

/// Value of a table. A missing number has its type, so that the type of a column does not depend on
/// the records.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    None,
    Flag(bool),
    Int(i64),
    Float(Option<f64>),
    /// Milliseconds since 1970, UTC.
    Time(Option<i64>),
    Text(Arc<str>),
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::None | Cell::Float(None) | Cell::Time(None) => Ok(()),
            Cell::Flag(flag) => flag.fmt(f),
            Cell::Int(number) => number.fmt(f),
            Cell::Float(Some(number)) => number.fmt(f),
            Cell::Time(Some(ms)) => {
                let since = std::time::Duration::from_millis(u64::try_from(*ms).unwrap_or(0));
                humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + since).fmt(f)
            }
            Cell::Text(text) => text.fmt(f),
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text.into())
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Cell {
        Cell::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<Option<f64>> for Cell {
    fn from(number: Option<f64>) -> Cell {
        Cell::Float(number)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        Cell::Float(Some(number))
    }
}

#[derive(Clone, Copy)]
enum Unit {
    Plain,
    Ns,
    Fraction,
    BytesPerS,
}

pub(crate) struct StageColumn {
    /// Name in exports; empty for columns for people alone.
    pub(crate) name: &'static str,
    /// Heading for people; empty for columns of exports alone.
    pub(crate) heading: &'static str,
    unit: Unit,
    pub(crate) value: fn(&StageRow) -> Cell,
}

const fn column(
    name: &'static str,
    heading: &'static str,
    unit: Unit,
    value: fn(&StageRow) -> Cell,
) -> StageColumn {
    StageColumn { name, heading, unit, value }
}

/// Returns the lower or upper end of an interval.
fn low(interval: Option<(f64, f64)>) -> Cell {
    interval.map(|(low, _)| low).into()
}

fn high(interval: Option<(f64, f64)>) -> Cell {
    interval.map(|(_, high)| high).into()
}

use Unit::{BytesPerS, Fraction, Ns, Plain};

/// Columns of all outputs. The study is for people alone: exports begin with it
/// ([`crate::export`]).
pub(crate) const COLUMNS: [StageColumn; 28] = [
    column("", "study", Plain, |row| row.study.as_str().into()),
    column("device", "device", Plain, |row| row.device.as_str().into()),
    column("stage", "", Plain, |row| row.stage.as_str().into()),
    column("label", "stage", Plain, |row| row.label.as_str().into()),
    column("point", "point", Plain, |row| row.point.as_str().into()),
    column("n", "n", Plain, |row| (row.n as u64).into()),
    column("ops_per_sample", "", Plain, |row| row.ops_per_sample.into()),
    column("bytes_per_op", "", Plain, |row| row.bytes_per_op.into()),
    column("carried_bytes", "", Plain, |row| row.carried_bytes.map(|bytes| bytes as f64).into()),
    column("median_ns", "median", Ns, |row| row.median_ns.into()),
    column("ci_low_ns", "", Ns, |row| row.ci_ns.0.into()),
    column("ci_high_ns", "", Ns, |row| row.ci_ns.1.into()),
    column("spread", "spread [%]", Fraction, |row| row.spread.into()),
    column("p99_ns", "p99", Ns, |row| row.p99_ns.into()),
    column("outliers", "", Plain, |row| (row.outliers as u64).into()),
    column("rate_bytes_per_s", "MB/s", BytesPerS, |row| row.rate_bytes_per_s.into()),
    column("", "95 % MB/s", Plain, |row| shown_interval(row.rate_interval_bytes_per_s).into()),
    column("rate_low_bytes_per_s", "", BytesPerS, |row| low(row.rate_interval_bytes_per_s)),
    column("rate_high_bytes_per_s", "", BytesPerS, |row| high(row.rate_interval_bytes_per_s)),
    column("limit_bytes_per_s", "limit MB/s", BytesPerS, |row| row.limit_bytes_per_s.into()),
    column("limit_low_bytes_per_s", "", BytesPerS, |row| low(row.limit_interval_bytes_per_s)),
    column("limit_high_bytes_per_s", "", BytesPerS, |row| high(row.limit_interval_bytes_per_s)),
    column("fraction", "", Fraction, |row| row.fraction.into()),
    column("", "of limit", Plain, |row| shown_share(row.share()).into()),
    column("cpu_fraction", "CPU [%]", Fraction, |row| row.cpu_fraction.into()),
    column("doubt", "", Plain, |row| if row.is_above_limit { "above-limit" } else { "" }.into()),
    column("disturbed", "", Plain, |row| row.disturbed.as_str().into()),
    column("", "note", Plain, |row| note(row).into()),
];

impl StageColumn {
    fn shown(&self, row: &StageRow) -> String {
        match (self.unit, (self.value)(row)) {
            (_, Cell::Float(None)) => "-".to_owned(),
            (Ns, Cell::Float(Some(ns))) => show_ns(ns),
            (Fraction, Cell::Float(Some(fraction))) => significant(fraction * 100.0, 3),
            (BytesPerS, Cell::Float(Some(rate))) if rate > 0.0 => significant(rate / 1e6, 4),
            (BytesPerS, _) => "-".to_owned(),
            (_, cell) => cell.to_string(),
        }
    }
}

fn note(row: &StageRow) -> String {
    let undone = row.undone().map(|(how, _)| how.to_uppercase());
    let doubt = row.is_above_limit.then(|| "ABOVE ITS LIMIT".to_owned());
    let disturbed = (!row.disturbed.is_empty()).then(|| format!("UNSOUND: {}", row.disturbed));
    let emulated = row.emulated.then(|| "emulated".to_owned());
    let means = (row.ops_per_sample > 1).then(|| format!("means of {}", row.ops_per_sample));
    let outliers = (row.outliers > 0).then(|| plural(row.outliers as u64, "outlier"));
    let all = [undone, doubt, disturbed, emulated, means, outliers];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[derive(serde::Serialize)]
pub(crate) struct ShownTable {
    pub(crate) headings: Vec<&'static str>,
    /// Number of leading columns of text; the others but the last, the note, are numbers.
    pub(crate) names: usize,
    pub(crate) lines: Vec<Vec<String>>,
}

pub(crate) fn shown(rows: &[StageRow]) -> ShownTable {
    let studies = rows.windows(2).any(|pair| pair[0].study != pair[1].study);
    let points = rows.iter().any(|row| !row.point.is_empty());
    let is_shown = |column: &&StageColumn| match column.heading {
        "" => false,
        "study" => studies,
        "point" => points,
        _ => true,
    };
    let columns: Vec<&StageColumn> = COLUMNS.iter().filter(is_shown).collect();
    let line = |row| columns.iter().map(|column| column.shown(row)).collect();
    ShownTable {
        headings: columns.iter().map(|column| column.heading).collect(),
        names: columns.iter().take_while(|column| column.heading != "n").count(),
        lines: rows.iter().map(line).collect(),
    }
}
