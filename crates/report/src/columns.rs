//! Columns of a stage's row: one table for the terminal, the page, Markdown, CSV and Parquet.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use daqmeter_record::ledger::TRIGGERS;
use daqmeter_record::units::{plural, show_ns, significant};
use daqmeter_record::{Ledger, RunRecord, Stage};

use crate::aligned::{ALL, asked_columns};
use crate::families::digitizer;
use crate::groups::in_groups;
use crate::rate::{self, shown_share};
use crate::rows::StageRow;
use crate::samples::cpu_fraction;
use crate::words::label;

/// Value of a table, in the order of width: a later variant can show all values of an earlier one.
/// A missing number has its type, so that the type of a column does not depend on the records.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
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
                let since = Duration::from_millis(u64::try_from(*ms).unwrap_or(0));
                humantime::format_rfc3339_millis(UNIX_EPOCH + since).fmt(f)
            }
            Cell::Text(text) => text.fmt(f),
        }
    }
}

macro_rules! cell_from {
    ($($value:ident: $from:ty => $cell:expr),* $(,)?) => {$(
        impl From<$from> for Cell {
            fn from($value: $from) -> Cell { $cell }
        }
    )*};
}
cell_from! {
    text: &str => Cell::Text(text.into()),
    text: String => Cell::Text(text.into()),
    number: u64 => Cell::Int(i64::try_from(number).unwrap_or(i64::MAX)),
    number: Option<f64> => Cell::Float(number),
    number: f64 => Cell::Float(Some(number)),
}

#[derive(Clone, Copy, PartialEq)]
enum Unit {
    /// Column of the record or the lane, which rows without a stage have, too.
    About,
    Count,
    Number,
    Ns,
    Fraction,
    BytesPerS,
}

pub(crate) struct StageColumn {
    /// Name in exports; empty for columns for people alone.
    pub(crate) name: &'static str,
    /// Heading for people; empty for columns of exports alone.
    heading: &'static str,
    unit: Unit,
    value: fn(&StageRow<'_>) -> Cell,
}

const fn column(
    name: &'static str,
    heading: &'static str,
    unit: Unit,
    value: fn(&StageRow<'_>) -> Cell,
) -> StageColumn {
    StageColumn { name, heading, unit, value }
}

fn of_stage(row: &StageRow<'_>, value: impl Fn(&Stage) -> Cell) -> Cell {
    row.stage.map_or(Cell::None, value)
}

/// Returns the account of the triggers of the row's device, if it has one of its own.
fn triggers<'a>(row: &StageRow<'a>) -> Option<&'a Ledger> {
    let is_own =
        |ledger: &&Ledger| ledger.of == row.device && TRIGGERS.contains(&ledger.unit.as_str());
    row.record.ledgers.iter().find(is_own)
}

/// Returns the interval of the limit.
fn limit(row: &StageRow<'_>) -> Option<(f64, f64)> {
    row.limit?.interval
}

use Unit::{About, BytesPerS, Count, Fraction, Ns, Number};

/// Number of the first columns, which all tables for other tools begin with.
pub(crate) const CONTEXT: usize = 10;

/// Columns of all outputs.
pub(crate) const COLUMNS: [StageColumn; 45] = [
    column("run_id", "", About, |row| row.record.run_id.as_str().into()),
    column("time_utc", "", About, |row| Cell::Time(time_ms(row.record))),
    column("study", "study", About, |row| row.record.study.as_str().into()),
    column("engine", "", About, |row| row.record.engine.name.as_str().into()),
    column("target", "", About, |row| row.record.engine.target.as_str().into()),
    column("workload", "", About, |row| row.record.workload.to_string().into()),
    column("outcome", "", About, |row| row.undone().map_or("ok", |(how, _)| how).into()),
    column("reason", "", About, |row| row.undone().map_or("", |(_, why)| why).into()),
    column("host", "", About, |row| host(row.record).into()),
    column("emulated", "", About, |row| Cell::Flag(row.emulated)),
    column("cpu_model", "", About, |row| row.record.host.cpu_model.as_str().into()),
    column("logical_cpus", "", About, |row| u64::from(row.record.host.logical_cpus).into()),
    column("kernel", "", About, |row| row.record.host.kernel.as_str().into()),
    column("tool_version", "", About, |row| row.record.tool.version.as_str().into()),
    column("git_revision", "", About, |row| row.record.tool.git_revision.as_str().into()),
    column("", "host", About, |row| row.record.host.label().into()),
    column("device", "", About, |row| row.device.into()),
    column("stage", "", About, |row| of_stage(row, |stage| stage.name.as_str().into())),
    column("label", "", About, |row| {
        of_stage(row, |stage| label(&row.record.workload, &stage.name).into())
    }),
    column("name", "point", About, |row| row.name.as_str().into()),
    column("level_ns", "time", Ns, |row| row.level.map(|level| level.ns).into()),
    column("level_low_ns", "", Ns, |row| row.level.map(|level| level.interval.0).into()),
    column("level_high_ns", "", Ns, |row| row.level.map(|level| level.interval.1).into()),
    column("n", "", Count, |row| (row.summary.n as u64).into()),
    column("ops_per_sample", "", Count, |row| row.ops_per_sample().into()),
    column("bytes_per_op", "", Count, |row| of_stage(row, |stage| stage.bytes_per_op.into())),
    column("carried_bytes", "", Number, |row| {
        of_stage(row, |stage| stage.carried_bytes.map(|bytes| bytes as f64).into())
    }),
    column("median_ns", "", Ns, |row| row.summary.median.into()),
    column("ci_low_ns", "", Ns, |row| row.summary.median_ci.0.into()),
    column("ci_high_ns", "", Ns, |row| row.summary.median_ci.1.into()),
    column("spread", "", Fraction, |row| row.summary.relative_spread().into()),
    // A mean of several operations has no percentile of one.
    column("p99_ns", "", Ns, |row| row.summary.p99.filter(|_| row.ops_per_sample() <= 1).into()),
    column("rate_bytes_per_s", "MB/s", BytesPerS, |row| row.rate.per_s.into()),
    column("rate_low_bytes_per_s", "", BytesPerS, |row| row.rate.interval.unzip().0.into()),
    column("rate_high_bytes_per_s", "", BytesPerS, |row| row.rate.interval.unzip().1.into()),
    column("limit_bytes_per_s", "", BytesPerS, |row| row.limit.map(|limit| limit.per_s).into()),
    column("limit_low_bytes_per_s", "", BytesPerS, |row| limit(row).unzip().0.into()),
    column("limit_high_bytes_per_s", "", BytesPerS, |row| limit(row).unzip().1.into()),
    column("fraction", "", Fraction, |row| row.share.map(|share| share.fraction).into()),
    column("", "of limit", Number, |row| shown_share(row.share).into()),
    column("cpu_fraction", "CPU [%]", Fraction, |row| {
        of_stage(row, |stage| cpu_fraction(stage).into())
    }),
    column("triggers", "", Number, |row| triggers(row).map(|own| own.issued as f64).into()),
    column("lost_triggers", "lost", Number, |row| {
        triggers(row).map(|own| own.lost() as f64).into()
    }),
    column("doubt", "", About, |row| if row.is_above_limit() { "above-limit" } else { "" }.into()),
    column("", "note", About, |row| note(row).into()),
];

fn time_ms(record: &RunRecord) -> Option<i64> {
    let time = humantime::parse_rfc3339(&record.time_utc).ok()?;
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
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

impl StageColumn {
    /// Returns a cell of the type of the column in a table without numbers.
    pub(crate) fn least(&self) -> Cell {
        match self.unit {
            About => Cell::None,
            Count => Cell::Int(0),
            Number | Ns | Fraction | BytesPerS => Cell::Float(None),
        }
    }

    pub(crate) fn cell(&self, row: &StageRow<'_>) -> Cell {
        match row.stage {
            None if self.unit != About => Cell::None,
            _ => (self.value)(row),
        }
    }

    fn shown(&self, row: &StageRow<'_>) -> String {
        match (self.unit, self.cell(row)) {
            (_, Cell::Float(Some(value))) if self.heading.is_empty() => significant(value, 4),
            (_, Cell::None | Cell::Float(None)) => "-".to_owned(),
            (Ns, Cell::Float(Some(ns))) => {
                let agrees = row.level.is_none_or(|level| level.agrees());
                format!("{}{}", if agrees { "" } else { "~" }, show_ns(ns))
            }
            (Fraction, Cell::Float(Some(fraction))) => significant(fraction * 100.0, 3),
            (BytesPerS, Cell::Float(Some(rate))) if rate > 0.0 => significant(rate / 1e6, 4),
            (BytesPerS, _) => "-".to_owned(),
            (_, cell) => cell.to_string(),
        }
    }
}

fn note(row: &StageRow<'_>) -> String {
    let all = [
        row.undone().map(|(how, _)| how.to_uppercase()),
        row.is_above_limit().then(|| "ABOVE ITS LIMIT".to_owned()),
        row.emulated.then(|| "emulated".to_owned()),
        row.level.filter(|level| !level.agrees()).map(|level| {
            let (low, high) = level.interval;
            format!("~ {} to {}", show_ns(low), show_ns(high))
        }),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[derive(serde::Serialize)]
pub(crate) struct ShownTable {
    pub(crate) headings: Vec<&'static str>,
    /// Number of leading columns of text.
    pub(crate) names: usize,
    /// Columns of numbers. Below them is at most text: the note.
    #[serde(skip)]
    pub(crate) numbers: Range<usize>,
    pub(crate) lines: Vec<Vec<String>>,
    #[serde(skip)]
    columns: Vec<&'static StageColumn>,
}

/// Returns the usual table of rows.
pub(crate) fn shown(rows: &[StageRow<'_>]) -> ShownTable {
    let studies = rows.windows(2).any(|pair| pair[0].record.study != pair[1].record.study);
    let hosts =
        rows.windows(2).any(|pair| pair[0].record.host.label() != pair[1].record.host.label());
    shown_of(rows, |column| match column.heading {
        "" => false,
        "study" => studies,
        "host" => hosts,
        "lost" => rows.iter().any(|row| triggers(row).is_some()),
        _ => true,
    })
}

/// Returns the table of rows with the columns that the user asked for, or else the usual ones.
pub(crate) fn chosen(rows: &[StageRow<'_>]) -> ShownTable {
    let is_asked = |column: &StageColumn, names: &[String]| {
        let of_column = |name: &String| name == column.name || name == column.heading;
        names.iter().any(of_column)
    };
    asked_columns()
        .map_or_else(|| shown(rows), |names| shown_of(rows, |column| is_asked(column, names)))
}

fn shown_of(rows: &[StageRow<'_>], is_shown: impl Fn(&StageColumn) -> bool) -> ShownTable {
    let columns: Vec<&StageColumn> = COLUMNS.iter().filter(|column| is_shown(column)).collect();
    let line = |row| columns.iter().map(|column| column.shown(row)).collect();
    // A column of exports alone is headed by its name, which has its unit.
    let headings = columns.iter().map(|column| [column.heading, column.name]);
    let is_number = |column: &StageColumn| column.unit != About;
    let names = columns.iter().position(|column| is_number(column)).unwrap_or(columns.len());
    let end = columns.iter().rposition(|column| is_number(column)).map_or(names, |at| at + 1);
    ShownTable {
        headings: headings.map(|[own, name]| if own.is_empty() { name } else { own }).collect(),
        names,
        numbers: names..end,
        lines: rows.iter().map(line).collect(),
        columns,
    }
}

/// Returns the names that a user may ask columns by: headings, names in exports, and `all`.
pub fn known_columns() -> Vec<&'static str> {
    let names = COLUMNS.iter().flat_map(|column| [column.heading, column.name]);
    let mut names: Vec<&str> = names.filter(|name| !name.is_empty()).chain([ALL]).collect();
    names.dedup();
    names
}

/// Adds a line for each stage that several lanes of a record ran: the rate of all, see
/// [`rate::together`]. Lines of one point stand together.
pub(crate) fn with_totals(rows: &[StageRow<'_>], mut table: ShownTable) -> ShownTable {
    let mut lines = std::mem::take(&mut table.lines).into_iter();
    let mut by_point = Vec::new();
    for of_record in rows.chunk_by(|a, b| std::ptr::eq(a.record, b.record)) {
        by_point.extend(of_record.iter().map(|row| row.name.clone()).zip(lines.by_ref()));
        let stages = of_record.iter().filter_map(|row| Some((&row.stage?.name, row)));
        for (_, rows) in in_groups(stages) {
            let stages: Vec<&Stage> = rows.iter().filter_map(|row| row.stage).collect();
            let all =
                if rows[0].record.engine.name == digitizer::ENGINE { "boards" } else { "lanes" };
            let is_done = rows.iter().all(|row| row.outcome.is_ok());
            let rate = rate::together(&stages).filter(|_| rows.len() > 1 && is_done);
            by_point.extend(rate.map(|rate| {
                // A point of several lanes ends with its lane.
                let point = rows[0].name.rsplit_once(", ").map_or("", |(point, _)| point);
                let name = format!("{point}, all {all}");
                let row = StageRow { rate, ..StageRow::new(rows[0].record, None, None, &name) };
                let cell = |column: &&StageColumn| match column.name {
                    "device" => format!("all {all}"),
                    "label" | "stage" => column.shown(rows[0]),
                    "rate_bytes_per_s" => significant(row.rate.per_s / 1e6, 4),
                    _ if column.unit != About => "-".to_owned(),
                    _ => column.shown(&row),
                };
                let cells = table.columns.iter().map(cell).collect();
                (name, cells)
            }));
        }
    }
    table.lines = in_groups(by_point.into_iter()).into_iter().flat_map(|(_, own)| own).collect();
    table
}
