//! Cost of a neighbour's copies to a program: points, table, figure.

use daqmeter_record::RunRecord;
use daqmeter_record::units::{show_ns, significant};
use daqmeter_stats as stats;

use super::rows::samples;
use super::tables::footnotes;
use crate::aligned::{TextColumn, table};
use crate::family::of_engine;
use crate::rate;

pub(super) const ENGINE: &str = "pollution";

#[derive(Clone, Debug, PartialEq)]
pub struct PollutionRow {
    /// Program, e.g. `susan[s]_small`.
    pub test: String,
    /// Neighbour: `ideal`, `cpu`, `dma`, `spin`, `null-call`.
    pub neighbour: String,
    /// Operation and block of the neighbour, e.g. `from 224`.
    pub copies: String,
    pub n: usize,
    pub mean_ns: f64,
    pub median_ns: f64,
    /// 10th percentile; `None` with too few runs for it.
    pub p10_ns: Option<f64>,
    pub max_ns: f64,
    /// Cache references of one run, if they were counted.
    pub references: Option<f64>,
    pub misses: Option<f64>,
    /// Misses in percent of references, as in the study: the mean over the runs of each one's
    /// percentage. With sums alone, the percentage of these.
    pub miss_percent: Option<f64>,
    /// True if a model counted, not a cache.
    pub simulated: bool,
    /// Bytes that the neighbour copied in each second, if they were counted.
    pub copied_bytes_per_s: Option<f64>,
}

impl PollutionRow {
    fn beside<'a>(&self, rows: &'a [PollutionRow], neighbour: &str) -> Option<&'a PollutionRow> {
        rows.iter().find(|other| {
            let is_alike = other.copies == self.copies && other.simulated == self.simulated;
            other.test == self.test && is_alike && other.neighbour == neighbour
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counted {
    pub(super) references: f64,
    pub(super) misses: f64,
}

/// Names of the series of the single runs, and of the counters of their sums.
pub(super) const REFERENCES: &str = "victim-cache-references";
pub(super) const MISSES: &str = "victim-cache-misses";

impl Counted {
    pub(super) fn miss_percent(self) -> Option<f64> {
        (self.references > 0.0).then(|| self.misses / self.references * 100.0)
    }
}

/// Returns the counts of each run of a record; empty if runs were not counted one by one.
pub(super) fn counted(record: &RunRecord) -> Vec<Option<Counted>> {
    let series = |name: &str| record.series.iter().find(|series| series.name == name);
    let (Some(references), Some(misses)) = (series(REFERENCES), series(MISSES)) else {
        return Vec::new();
    };
    let run = |(references, misses): (&Option<f64>, &Option<f64>)| {
        Some(Counted { references: (*references)?, misses: (*misses)? })
    };
    references.values.iter().zip(&misses.values).map(run).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

pub fn pollution_rows(records: &[RunRecord]) -> Vec<PollutionRow> {
    let records = &*rate::done(records);
    let mut rows: Vec<PollutionRow> =
        of_engine(records, ENGINE).filter_map(pollution_row).collect();
    rows.sort_by_key(|row| (row.copies.clone(), row.test.clone()));
    rows
}

fn pollution_row(record: &RunRecord) -> Option<PollutionRow> {
    let samples = samples(record);
    let sorted = stats::sorted(&samples);
    let runs = record.counter("victim-runs").filter(|runs| *runs > 0.0);
    let per_run = |name: &str| Some(record.counter(name)? / runs?);
    let (references, misses) = (per_run(REFERENCES), per_run(MISSES));
    let of_runs = mean(counted(record).into_iter().flatten().filter_map(Counted::miss_percent));
    let of_sums = || {
        let (references, misses) = references.zip(misses)?;
        Counted { references, misses }.miss_percent()
    };
    let text = |name: &str| record.workload.text(name).unwrap_or("").to_owned();
    let bytes = record.workload.int("block_bytes").unwrap_or(0);
    let copied = record.counter("neighbour-bytes");
    Some(PollutionRow {
        test: text("test"),
        neighbour: text("neighbour"),
        copies: format!("{} {bytes}", text("direction")),
        n: samples.len(),
        mean_ns: samples.iter().sum::<f64>() / samples.len().max(1) as f64,
        median_ns: stats::quantile(&sorted, 0.5),
        p10_ns: stats::supported_quantile(&sorted, 0.1),
        max_ns: *sorted.last()?,
        references,
        misses,
        miss_percent: of_runs.or_else(of_sums),
        simulated: record.workload.flag("simulated"),
        copied_bytes_per_s: copied.map(|bytes| bytes / (record.wall_ns.max(1) as f64) * 1e9),
    })
}

type BesideAlone<'a> = (&'a PollutionRow, Option<&'a PollutionRow>);

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| significant(value, 4))
}

fn columns<'a>() -> [TextColumn<BesideAlone<'a>>; 12] {
    [
        ("copies", |(row, _)| row.copies.clone()),
        ("test", |(row, _)| row.test.clone()),
        ("neighbour", |(row, _)| {
            let simulated = if row.simulated { " (simulated)" } else { "" };
            format!("{}{simulated}", row.neighbour)
        }),
        ("mean", |(row, _)| show_ns(row.mean_ns)),
        ("p10", |(row, _)| row.p10_ns.map_or("-".to_owned(), show_ns)),
        ("median", |(row, _)| show_ns(row.median_ns)),
        ("max", |(row, _)| show_ns(row.max_ns)),
        ("p10/alone", |(row, alone)| number(alone.and_then(|a| Some(row.p10_ns? / a.p10_ns?)))),
        ("median/alone", |(row, alone)| number(alone.map(|a| row.median_ns / a.median_ns))),
        ("references", |(row, _)| number(row.references)),
        ("miss %", |(row, _)| number(row.miss_percent)),
        ("copied MB/s", |(row, _)| {
            row.copied_bytes_per_s.map_or("-".to_owned(), |rate| significant(rate / 1e6, 3))
        }),
    ]
}

pub fn pollution_text(records: &[RunRecord]) -> String {
    let rows = pollution_rows(records);
    let beside: Vec<BesideAlone<'_>> =
        rows.iter().map(|row| (row, row.beside(&rows, "ideal"))).collect();
    let mut out = table(3, &columns(), &beside);
    if rows.iter().all(|row| row.references.is_none()) {
        out.push_str("no cache counters here (no PMU): times only. Time alone misleads: compare copies with the spin and null-call neighbours.\n");
    }
    out + &footnotes(records, &[])
}
