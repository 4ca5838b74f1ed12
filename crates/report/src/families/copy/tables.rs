//! Tables of copies: latency by size, bandwidth by channel, and notes on their credibility.

use std::collections::BTreeSet;

use daqmeter_record::RunRecord;
use daqmeter_record::units::{joined, show_bytes, show_ns, significant};
use daqmeter_stats::median;

use super::MIB;
use super::rows::{CopyRow, copy_rows, function};
use crate::aligned::{TextColumn, table_without, time};
use crate::family::prefixed;
use crate::faults::faults_and_ledgers;
use crate::frame::Frame;
use crate::groups::in_groups;
use crate::rate::{self, shown_share};
use crate::words::label;

fn operation(row: &CopyRow<'_>) -> String {
    let name = function(row.direction);
    let cold = if row.cold { ", no cache" } else { "" };
    let load = match row.load {
        "light" => String::new(),
        load => format!(", {load} load"),
    };
    format!("{name}{cold}{load}")
}

/// Answers with the fastest way for the smallest and the largest block of one operation; of several
/// with the smallest, or with the largest if several lanes copy: its time, or the rate of all lanes
/// together.
pub(super) fn headline(records: &[RunRecord]) -> Option<String> {
    let mut rows = copy_rows(records);
    // An emulated engine says nothing about hardware.
    if rows.iter().any(|row| !row.record.engine.emulated) {
        rows.retain(|row| !row.record.engine.emulated);
    }
    let operations = in_groups(rows.iter().map(|row| (operation(row), row)));
    let is_one = operations.len() == 1;
    let of_operation = |(name, rows): &(String, Vec<&CopyRow<'_>>)| {
        let sizes = BTreeSet::from_iter(rows.iter().map(|row| row.block_bytes));
        let (first, last) = (*sizes.first()?, *sizes.last()?);
        let is_parallel = rows.iter().any(|row| row.lanes_bytes_per_s.len() > 1);
        let sizes = match (is_one, is_parallel) {
            (true, _) => BTreeSet::from([first, last]),
            (false, false) => BTreeSet::from([first]),
            (false, true) => BTreeSet::from([last]),
        };
        Some(format!(
            "{name}: {}",
            joined(sizes.into_iter().filter_map(|size| best(rows, size)), ", ")?
        ))
    };
    joined(operations.iter().filter_map(of_operation), "; ")
}

/// Writes the fastest row of these blocks. Channels of the priority policy have rates of their own.
fn best(rows: &[&CopyRow<'_>], bytes: u64) -> Option<String> {
    let of_size = rows.iter().filter(|row| row.block_bytes == bytes);
    let fastest = of_size.min_by(|a, b| a.times.median.total_cmp(&b.times.median))?;
    let (size, who) = (show_bytes(bytes), fastest.who());
    let lanes = &fastest.lanes_bytes_per_s;
    if lanes.len() == 1 {
        return Some(format!("{size} takes {} by {who}", show_ns(fastest.times.median)));
    }
    let rate = prefixed(fastest.union_bytes_per_s(), "B/s");
    let high = fastest.record.workload.int("high_channels").ok();
    let channels = high.filter(|_| fastest.context == "priority").map_or(String::new(), |high| {
        let numbered = || lanes.iter().enumerate();
        let is_high = move |at: usize| at < 64 && high >> at & 1 == 1;
        let of = |wanted: bool| numbered().filter(move |(at, _)| is_high(*at) == wanted);
        let mean = |wanted| {
            let rates = of(wanted).map(|(_, rate)| *rate);
            prefixed(rates.sum::<f64>() / of(wanted).count().max(1) as f64, "B/s")
        };
        format!(" (while it copies, a high channel {}, another {})", mean(true), mean(false))
    });
    Some(format!("{size} on {} CPUs runs at {rate} together by {who}{channels}", lanes.len()))
}

fn of_limit(row: &CopyRow<'_>) -> String {
    rate::undone_word(row.record).map_or_else(|| shown_share(row.share), str::to_uppercase)
}

/// Shows the time of one copy: one line for each point.
pub fn latency(records: &[RunRecord]) -> Frame {
    let columns: [TextColumn<CopyRow<'_>>; 9] = [
        ("operation", operation),
        ("context", CopyRow::who),
        ("block", |row| show_bytes(row.block_bytes)),
        ("n", |row| row.n.to_string()),
        ("copies", |row| row.ops_per_sample.to_string()),
        ("median", |row| show_ns(row.times.median)),
        ("p99", |row| time(row.p99_ns())),
        ("max", |row| show_ns(row.times.max)),
        ("of limit", of_limit),
    ];
    let rows = copy_rows(records);
    let means = rows.iter().any(|row| row.ops_per_sample > 1).then(|| {
        "each sample is a mean of several copies, so there is no p99 of one copy".to_owned()
    });
    let table = table_without(2, &columns, &["copies", "p99", "n"], &rows);
    Frame::of(table, notes(records, &rows, means))
}

fn mib(bytes_per_s: f64) -> String {
    significant(bytes_per_s / MIB, 4)
}

/// Shows bandwidth: one line for each point; MB are of 2^20 bytes, as in the document.
pub fn bandwidth(records: &[RunRecord]) -> Frame {
    let columns: [TextColumn<CopyRow<'_>>; 9] = [
        ("operation", operation),
        ("context", CopyRow::who),
        ("block", |row| show_bytes(row.block_bytes)),
        ("channels", |row| row.lanes_bytes_per_s.len().to_string()),
        ("slowest MiB/s", |row| {
            mib(row.lanes_bytes_per_s.iter().copied().fold(f64::INFINITY, f64::min))
        }),
        ("fastest MiB/s", |row| mib(row.lanes_bytes_per_s.iter().copied().fold(0.0, f64::max))),
        ("sum MiB/s", |row| mib(row.total_bytes_per_s())),
        ("together MiB/s", |row| mib(row.union_bytes_per_s())),
        ("of limit", of_limit),
    ];
    let rows = copy_rows(records);
    let about = "sum: the sum of the channel rates, as in the study; together: all bytes over the time from first to last copy";
    let spare = ["slowest MiB/s", "fastest MiB/s", "channels", "sum MiB/s"];
    let table = table_without(2, &columns, &spare, &rows);
    Frame::of(table, notes(records, &rows, Some(about.to_owned())))
}

/// Writes the windows of the priority policy: those that were counted in the run, and those that
/// were asked.
fn policies(records: &[RunRecord]) -> BTreeSet<String> {
    let lines = records.iter().filter_map(|record| {
        let time = |name| Some(show_ns(record.workload.int(name).ok()? as f64));
        let asked = format!("{} of each {}", time("quantum_ns")?, time("window_ns")?);
        let counted = record.gate_ns();
        let counted = counted.map(|(high, all)| format!("{} of {}", show_ns(high), show_ns(all)));
        let counted = counted.unwrap_or("an unknown time, no window was counted".to_owned());
        Some(format!("priority: high channels had the engine alone for {counted} (asked {asked})"))
    });
    lines.collect()
}

/// Returns notes on the credibility of copies, each once, the most important first.
pub(super) fn notes(
    records: &[RunRecord],
    rows: &[CopyRow<'_>],
    about: Option<String>,
) -> Vec<String> {
    let nulls: Vec<f64> = rows.iter().filter_map(|row| row.null_ns).collect();
    let null = median(&nulls).map(|null| {
        let null = show_ns(null);
        format!("the times include a system call, which takes {null} without work (median)")
    });
    let thread = rows.iter().any(|row| row.path == "engine-thread").then(|| {
        "engine-thread is emulated: a thread copies, so its times say nothing about DMA hardware".to_owned()
    });
    let compared = rows.iter().filter_map(CopyRow::compared);
    let compared = compared.min_by(|one, other| (one.0 / one.1).total_cmp(&(other.0 / other.1)));
    let compared = compared.map(|(compared, copies)| {
        format!("bytes were compared after {compared} of {copies} copies of a point, while none was timed")
    });
    let limit = (!rows.is_empty()).then(|| "the limit is the rate of memcpy".to_owned());
    let of_records = records.iter().flat_map(|record| {
        let warnings = record.warnings.iter().cloned();
        let warnings = warnings.filter(|warning| !warning.contains("third of the run"));
        warnings.chain(faults_and_ledgers(record).into_iter().filter(|_| !record.outcome.is_ok()))
    });
    let above = rate::above_limits(records, label);
    let all = of_records.chain(thread).chain(policies(records)).chain(above);
    let all = all.chain([null, about, compared, limit].into_iter().flatten());
    let mut seen = BTreeSet::new();
    all.filter(|line| seen.insert(line.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::copy::rows::tests::example;
    use crate::families::copy::study::classic;

    #[test]
    fn both_tables_hold_one_quantity_against_the_limit() {
        // Most copies of 100 B take 100 ns, one of ten 9,100 ns: 1 GB/s at the median, 0.1 GB/s
        // over all the time.
        let samples: Vec<u64> = (0..300).map(|at| if at % 10 == 9 { 9_100 } else { 100 }).collect();
        let mut record = example("cpu", "to", 100, &samples);
        let row = &copy_rows(std::slice::from_ref(&record))[0];
        assert!((row.share.unwrap().fraction - 0.1).abs() < 1e-9, "{row:?}");
        assert!(row.p99_ns().is_some_and(|p99| p99 > 9_000.0));
        for shown in [latency, bandwidth].map(|shown| shown(std::slice::from_ref(&record))) {
            assert!(shown.tables.contains("0.10"), "{shown:?}");
        }
        // Means of ten copies have no percentiles of one.
        record.lanes[0].stages[0].ops_per_sample = 10;
        assert_eq!(copy_rows(&[record])[0].p99_ns(), None);
    }

    #[test]
    fn a_copy_whose_bytes_differ_is_marked_and_used_for_nothing() {
        let mut failed = example("cpu", "to", 4096, &[100, 100]);
        failed.outcome = daqmeter_record::Outcome::Failed("byte 3 differs".into());
        assert!(classic::latency(std::slice::from_ref(&failed)).is_empty());
        for shown in [latency(std::slice::from_ref(&failed)), bandwidth(&[failed])] {
            let table = shown.text(None);
            assert!(table.contains("FAILED") && table.contains("byte 3 differs"), "{table}");
        }
    }

    /// Regression: the tables said what was asked.
    #[test]
    fn the_windows_of_a_policy_are_those_of_the_run() {
        let mut record = example("priority", "to", 64, &[9]);
        record.set_param("quantum_ns", 30_000_u64);
        record.set_param("window_ns", 90_000_u64);
        let counters = [("gate-windows", 2), ("gate-high", 174_000), ("gate-low", 214_000)];
        record.counters =
            counters.map(|(name, value)| daqmeter_record::Counter::count(name, value)).to_vec();
        let wanted = "alone for 87 us of 194 us (asked 30 us of each 90 us)";
        for shown in [latency, bandwidth] {
            let text = shown(std::slice::from_ref(&record)).text(None);
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn tables_read_well() {
        let records = [
            example("cpu", "to", 1, &[170, 171, 190]),
            example("cpu", "to", 4096, &[200, 210, 230]),
            example("shared", "to", 4096, &[900, 950, 2000]),
        ];
        insta::assert_snapshot!("copy_latency", latency(&records).text(None));
        insta::assert_snapshot!("copy_bandwidth", bandwidth(&records).text(None));
    }
}
