//! Cost of a neighbour's copies to a program: points, table, figure.

use daqmeter_record::RunRecord;
use daqmeter_record::copies::REFERENCES;
use daqmeter_record::units::{joined, show_ns, significant};
use daqmeter_stats::{Summary, sorted, supported_quantile};

use super::rows::samples;
use super::tables::notes;
use crate::aligned::{TextColumn, asks_all, fewer, number, numbers_from, table, time};
use crate::family::of_engine;
use crate::frame::Frame;
use crate::groups::in_groups;
use crate::rate;

pub(super) const ENGINE: &str = "pollution";

/// Runs of a program beside a neighbour.
#[derive(Clone, Debug)]
pub(crate) struct PollutionRow<'a> {
    pub(crate) record: &'a RunRecord,
    /// Program, e.g. `susan[s]_small`.
    pub(crate) test: &'a str,
    /// Neighbour: `ideal`, `cpu`, `dma`, `spin`, `null-call`.
    pub(crate) neighbour: &'a str,
    /// Direction and bytes of its copies.
    pub(crate) direction: &'a str,
    pub(crate) block_bytes: u64,
    /// Times of one run in nanoseconds.
    pub(crate) times: Summary,
    /// Cache references of one run, if they were counted.
    pub(super) references: Option<f64>,
    /// Misses in percent of references.
    pub(crate) miss_percent: Option<f64>,
}

impl<'a> PollutionRow<'a> {
    /// Returns the run of the program beside an idle neighbour.
    pub(super) fn alone<'b>(&self, rows: &'b [Self]) -> Option<&'b PollutionRow<'a>> {
        let point = |row: &Self| (row.copies(), row.test, row.simulated());
        rows.iter().find(|other| other.neighbour == "ideal" && point(other) == point(self))
    }

    /// Returns direction and bytes of the neighbour's copies: `from 224`.
    pub(super) fn copies(&self) -> String {
        format!("{} {}", self.direction, self.block_bytes)
    }

    /// Tests if a model counted, not a cache.
    pub(crate) fn simulated(&self) -> bool {
        self.record.workload.flag("simulated")
    }

    /// Returns the 10th percentile; `None` with too few runs for it.
    pub(super) fn p10_ns(&self) -> Option<f64> {
        supported_quantile(&sorted(&samples(self.record)), 0.1)
    }

    /// Returns the bytes that the neighbour copied in each second, if they were counted.
    pub(super) fn copied_bytes_per_s(&self) -> Option<f64> {
        Some(self.record.counter("neighbour-bytes")? / self.record.wall_ns.max(1) as f64 * 1e9)
    }
}

/// Returns the runs that were done and verified.
pub(crate) fn pollution_rows(records: &[RunRecord]) -> Vec<PollutionRow<'_>> {
    let done = of_engine(records, ENGINE).filter(|record| rate::is_done(record));
    let mut rows: Vec<PollutionRow<'_>> = done.filter_map(pollution_row).collect();
    rows.sort_by_key(|row| (row.copies(), row.test));
    rows
}

pub(super) fn pollution_row(record: &RunRecord) -> Option<PollutionRow<'_>> {
    let runs = record.counter("victim-runs").filter(|runs| *runs > 0.0);
    let references = record.counter(REFERENCES).zip(runs);
    let text = |name: &str| record.workload.text(name).unwrap_or("");
    Some(PollutionRow {
        record,
        test: text("test"),
        neighbour: text("neighbour"),
        direction: text("direction"),
        block_bytes: record.workload.int("block_bytes").unwrap_or(0),
        times: Summary::of(&samples(record))?,
        references: references.map(|(references, runs)| references / runs),
        miss_percent: record.miss_percent(),
    })
}

type BesideAlone<'a> = (&'a PollutionRow<'a>, Option<&'a PollutionRow<'a>>);

impl PollutionRow<'_> {
    /// Returns the median time as a multiple of that beside an idle neighbour.
    fn slowdown(&self, rows: &[Self]) -> Option<f64> {
        Some(self.times.median / self.alone(rows)?.times.median)
    }

    fn who(&self) -> String {
        let simulated = if self.simulated() { " (simulated)" } else { "" };
        format!("{}{simulated}", self.neighbour)
    }
}

/// Answers with the largest slowdown of each program by a copying neighbour.
pub(super) fn headline(records: &[RunRecord]) -> Option<String> {
    let rows = pollution_rows(records);
    let beside = |name: &str| {
        let own = rows.iter().filter(|row| row.neighbour == name);
        let times = own.filter_map(|row| Some((row.slowdown(&rows)?, row)));
        let (times, row) = times.max_by(|a, b| a.0.total_cmp(&b.0))?;
        let (test, copies, times) = (row.test, row.copies(), significant(times, 3));
        Some(format!(
            "{test} takes at most {times} times as long beside {name} copies ({copies} B)"
        ))
    };
    joined(["cpu", "dma"].iter().filter_map(|name| beside(name)), ", ")
}

/// Shows a row for each program and copy, with the slowdown by each neighbour; with `--all` also
/// each point.
pub fn pollution(records: &[RunRecord]) -> Frame {
    let rows = pollution_rows(records);
    let mut tables = overview(&rows);
    if asks_all() || rows.iter().any(|row| row.references.is_some()) {
        tables = tables + "\n" + &points(&rows);
    }
    let mut notes = notes(records, &[], None);
    if rows.iter().all(|row| row.references.is_none()) {
        notes.push("no cache counters on this host (no PMU), only times: compare the copies with the neighbours spin and null-call".to_owned());
    }
    Frame::of(tables, notes)
}

fn overview(rows: &[PollutionRow<'_>]) -> String {
    const ALONE: &str = "ideal";
    let mut neighbours: Vec<String> = rows.iter().map(PollutionRow::who).collect();
    neighbours.sort_unstable();
    neighbours.dedup();
    neighbours.retain(|name| !name.starts_with(ALONE));
    let headings = ["copies", "test", "alone"].into_iter();
    let headings: Vec<&str> = headings.chain(neighbours.iter().map(String::as_str)).collect();
    let groups = in_groups(rows.iter().map(|row| ((row.copies(), row.test), row)));
    let line = |((copies, test), own): ((String, &str), Vec<&PollutionRow<'_>>)| {
        let alone = own.iter().find(|row| row.neighbour == ALONE);
        let beside = neighbours.iter().map(|name| {
            let row = own.iter().find(|row| row.who() == *name);
            number(row.and_then(|row| row.slowdown(rows)), 3)
        });
        let first = [copies, test.to_owned(), time(alone.map(|row| row.times.median))];
        first.into_iter().chain(beside).collect()
    };
    let (lines, left_out) = fewer(groups.into_iter().map(line).collect());
    numbers_from(2, &headings, lines) + &left_out
}

fn points(rows: &[PollutionRow<'_>]) -> String {
    let beside: Vec<BesideAlone<'_>> = rows.iter().map(|row| (row, row.alone(rows))).collect();
    let columns: [TextColumn<BesideAlone<'_>>; 12] = [
        ("copies", |(row, _)| row.copies()),
        ("test", |(row, _)| row.test.to_owned()),
        ("neighbour", |(row, _)| row.who()),
        ("mean", |(row, _)| show_ns(row.times.mean)),
        ("p10", |(row, _)| time(row.p10_ns())),
        ("median", |(row, _)| show_ns(row.times.median)),
        ("max", |(row, _)| show_ns(row.times.max)),
        ("p10/alone", |(row, alone)| {
            number(alone.and_then(|alone| Some(row.p10_ns()? / alone.p10_ns()?)), 4)
        }),
        ("median/alone", |(row, alone)| {
            number(alone.map(|alone| row.times.median / alone.times.median), 4)
        }),
        ("references", |(row, _)| number(row.references, 4)),
        ("miss %", |(row, _)| number(row.miss_percent, 4)),
        ("copied MB/s", |(row, _)| number(row.copied_bytes_per_s().map(|rate| rate / 1e6), 3)),
    ];
    table(3, &columns, &beside)
}
