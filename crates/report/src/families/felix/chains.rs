//! Read-out chains: rate, dead time, ring, CPU, network, latency.

use std::fmt::Write;

use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_record::{Role, RunRecord};
use serde::Serialize;

use super::host::host_text;
use crate::aligned::numbers_from;
use crate::faults::faults_and_ledgers;
use crate::rate::{self, Doubt, shown_share};
use crate::samples::first_stage;

/// Engine of these records.
pub(super) const ENGINE: &str = "readout";

/// Records of chains, also of those that ended before their readers began.
pub(super) fn chains(records: &[RunRecord]) -> impl Iterator<Item = &RunRecord> {
    records.iter().filter(|record| record.engine.name == ENGINE)
}

/// One run of a chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ChainRow {
    /// Scenario, and what the workload says instead of parts of it.
    pub chain: String,
    /// Scenario alone.
    pub scenario: String,
    /// Triggers that were issued.
    pub triggers: f64,
    /// Polling interval; none when the reader slept until the interrupt.
    pub poll_us: Option<f64>,
    /// Triggers per second as issued.
    pub rate_hz: f64,
    /// Maximum rate, for the run by which a search confirmed it.
    pub maximum_hz: Option<f64>,
    /// Time for which they came.
    pub seconds: f64,
    /// A probe of a search for the maximum rate.
    pub is_probe: bool,
    /// Share of the time with BUSY.
    pub dead_share: f64,
    /// Triggers x E-links that BUSY stopped.
    pub stopped: u64,
    /// Triggers x E-links that were lost on the way.
    pub lost: u64,
    /// Highest filling of a ring in bytes.
    pub ring_peak_bytes: f64,
    /// What a look at the ring found, on average, when it found something.
    pub ring_found_bytes: f64,
    /// Bytes of the ring.
    pub ring_bytes: f64,
    /// CPU of the readers, in cores.
    pub reader_cpu: f64,
    /// CPU of the receivers, in cores.
    pub receiver_cpu: f64,
    /// CPU time of the readers per chunk; none when there were next to none.
    pub reader_ns_per_chunk: Option<f64>,
    /// Million chunks per second.
    pub mchunks_per_s: f64,
    /// Network, in Gb/s.
    pub gbit_per_s: f64,
    /// From the oldest trigger of a page to its receipt; none where too few pages came.
    pub latency_p99_ns: Option<f64>,
    /// Share of what reading the ring's memory allows, where that was measured.
    pub fraction: Option<f64>,
    /// Why the share cannot be.
    pub doubt: Option<Doubt>,
    /// How it ended, where it was not done: `failed`.
    pub undone: Option<&'static str>,
    /// Whether every account closed.
    pub closes: bool,
}

/// Chains among the records that were done and whose accounts close, in the order of chain, polling and rate.
pub(crate) fn chain_rows(records: &[RunRecord]) -> Vec<ChainRow> {
    all_rows(&rate::done(records))
}

/// The same with those that failed.
fn all_rows(records: &[RunRecord]) -> Vec<ChainRow> {
    let mut rows: Vec<ChainRow> = chains(records).filter_map(row).collect();
    rows.sort_by(|a, b| {
        let key = |row: &ChainRow| (row.poll_us.unwrap_or(0.0), row.rate_hz);
        a.chain.cmp(&b.chain).then(key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal))
    });
    rows
}

pub(super) fn scenario(record: &RunRecord) -> &str {
    record.workload.text("scenario").unwrap_or("?")
}

/// The chain's name: scenario and what differs from it.
fn name(record: &RunRecord) -> String {
    let mut name = scenario(record).to_owned();
    let parameters = [
        ("payload_bytes", " B"),
        ("channels", " channels"),
        ("mode", ""),
        ("placement", ""),
        ("transport", ""),
    ];
    for (parameter, unit) in parameters {
        if let Some(value) = record.workload.params.get(parameter) {
            let _ = write!(name, ", {value}{unit}");
        }
    }
    name
}

fn row(record: &RunRecord) -> Option<ChainRow> {
    let value = |name: &str| record.counter(name).unwrap_or(0.0);
    let rate_hz = record.counter("trigger-rate")?;
    let seconds = value("triggers") / rate_hz.max(1e-9);
    let ledger = record.ledgers.first()?;
    let reader_cpu = value("reader-cpu-ppm") * 1e-6;
    let chunks = value("chunks");
    let stage = first_stage(record);
    let undone = (!rate::is_done(record))
        .then(|| rate::undone(&record.outcome).map_or("failed", |(how, _)| how));
    let held = stage.and_then(|stage| rate::held(record, stage));
    let share = held.map(|held| held.share).filter(|_| undone.is_none());
    let interrupt =
        record.workload.text("completion").is_ok_and(|completion| completion == "interrupt");
    Some(ChainRow {
        chain: name(record),
        scenario: scenario(record).to_owned(),
        triggers: value("triggers"),
        poll_us: record.workload.float("poll_us").ok().filter(|_| !interrupt),
        rate_hz,
        maximum_hz: record.counter(super::MAXIMUM_RATE),
        seconds,
        is_probe: record.role == Role::Probe,
        dead_share: value("dead-time"),
        stopped: ledger.stopped(),
        lost: ledger.lost_on_the_way(),
        ring_peak_bytes: value("ring peak"),
        ring_found_bytes: value("ring found"),
        ring_bytes: value("ring"),
        reader_cpu,
        receiver_cpu: value("receiver-cpu"),
        reader_ns_per_chunk: (chunks > 1e4).then(|| reader_cpu * seconds * 1e9 / chunks),
        mchunks_per_s: chunks / seconds.max(1e-9) / 1e6,
        gbit_per_s: value("network") * 8e-9,
        latency_p99_ns: record.counter("latency p99"),
        fraction: share.map(|share| share.fraction),
        doubt: share.and_then(Doubt::of),
        undone,
        closes: record.ledgers.iter().all(daqmeter_record::Ledger::closes),
    })
}

const HEADINGS: [&str; 16] = [
    "chain",
    "poll us",
    "kHz",
    "dead %",
    "stopped",
    "lost",
    "in ring",
    "ring peak",
    "Mchunk/s",
    "reader CPU %",
    "ns/chunk",
    "receiver CPU %",
    "Gb/s",
    "p99 us",
    "of limit",
    "ledger",
];

/// The chains as a table; nothing when there are none.
pub fn chains_text(records: &[RunRecord]) -> String {
    let rows = all_rows(records);
    if rows.is_empty() {
        return String::new();
    }
    numbers_from(1, &HEADINGS, rows.into_iter().map(cells))
}

fn cells(row: ChainRow) -> Vec<String> {
    let percent = |share: f64| significant(share * 100.0, 3);
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| significant(value, 3));
    let poll = row.poll_us.map(|us| significant(us, 4));
    let ledger = match (row.closes, row.undone) {
        (false, _) => "DOES NOT CLOSE".to_owned(),
        (true, Some(how)) => how.to_uppercase(),
        (true, None) => "closes".to_owned(),
    };
    vec![
        row.chain,
        poll.unwrap_or("interrupt".to_owned()),
        significant(row.rate_hz / 1e3, 4),
        percent(row.dead_share),
        row.stopped.to_string(),
        row.lost.to_string(),
        show_bytes(row.ring_found_bytes as u64),
        show_bytes(row.ring_peak_bytes as u64),
        significant(row.mchunks_per_s, 3),
        percent(row.reader_cpu),
        or_dash(row.reader_ns_per_chunk),
        percent(row.receiver_cpu),
        significant(row.gbit_per_s, 3),
        or_dash(row.latency_p99_ns.map(|ns| ns / 1e3)),
        shown_share(row.fraction, row.doubt),
        ledger,
    ]
}

/// The time with BUSY by its cause, a line.
pub(crate) fn dead_time(record: &RunRecord) -> String {
    let value = |name: &str| record.counter(name).unwrap_or(0.0);
    format!(
        "dead time: {} % by DMA, {} % by FIFO; {} intervals, longest {}; {} triggers stopped\n",
        significant(value("dead-time BUSY-by-DMA") * 100.0, 3),
        significant(value("dead-time BUSY-by-FIFO") * 100.0, 3),
        value("BUSY intervals"),
        show_ns(value("longest BUSY")),
        value("stopped-triggers"),
    )
}

/// What does not fit a row: BUSY by cause, the ledger, trouble, and what else the host did.
pub fn details_text(records: &[RunRecord]) -> String {
    let mut out = String::new();
    for record in chains(records) {
        let value = |name: &str| record.counter(name).unwrap_or(0.0);
        let _ = write!(out, " {}", dead_time(record));
        if value("external BUSY intervals") > 0.0 {
            let _ = writeln!(
                out,
                " external BUSY, not in the dead time: {} % of the time; {} intervals; {} triggers stopped",
                significant(value("dead-time external BUSY") * 100.0, 3),
                value("external BUSY intervals"),
                value("stopped by external BUSY"),
            );
        }
        let at = |name: &str| record.counter(name).map_or("-".to_owned(), show_ns);
        let _ = writeln!(
            out,
            " oldest trigger of a page to its receipt: p50 {}, p99 {}, max {}; looks at the ring {}, of which found something {}; \
             waits for a slow subscriber {}",
            at("latency p50"),
            at("latency p99"),
            at("latency max"),
            value("polls"),
            value("busy-polls"),
            value("stalls"),
        );
        for line in faults_and_ledgers(record) {
            let _ = writeln!(out, " {line}");
        }
        out.push_str(&losses_of_elinks(record));
        out.push_str(&host_text(record));
    }
    out
}

/// What single E-links lost, a line each: the sum in the ledger does not say where.
fn losses_of_elinks(record: &RunRecord) -> String {
    let of_elink = |counter: &&daqmeter_record::Counter| counter.name.starts_with("E-link");
    let mut out = String::new();
    for counter in record.counters.iter().filter(of_elink) {
        let _ = writeln!(out, "  {} {}", counter.name, counter.value);
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use daqmeter_record::{Counter, EngineInfo, Ledger, Workload};

    use super::*;

    pub(crate) fn example(poll_us: f64, rate_hz: f64, dead: f64) -> RunRecord {
        let workload = Workload::new("readout")
            .with("scenario", "gbt")
            .with("rate_hz", rate_hz)
            .with("poll_us", poll_us);
        let engine =
            EngineInfo { name: "readout".into(), target: "gbt over tcp".into(), emulated: true };
        let mut record = RunRecord::new(engine, workload);
        record.study = "readout/sweep".into();
        let lost = (dead * rate_hz * 24.0).round() as u64;
        let issued = (rate_hz * 24.0) as u64;
        let mut ledger =
            Ledger { issued, delivered: issued - lost, ..Ledger::new("triggers x E-links") };
        ledger.lose("stopped by BUSY-by-DMA", lost);
        record.ledgers = vec![ledger];
        let counters = [
            ("triggers", rate_hz),
            ("trigger-rate", rate_hz),
            ("dead-time", dead),
            ("dead-time BUSY-by-DMA", dead),
            ("chunks", (issued - lost) as f64),
            ("reader-cpu-ppm", 5e5 * rate_hz / 1e6 + 1e5 * 100.0 / poll_us),
            ("receiver-cpu", 0.3 * rate_hz / 1e6),
            ("ring", 64e6),
            ("ring peak", 1e6 + 50e6 * dead),
            ("ring found", 7e4),
            ("network", 670.0 * rate_hz),
            ("latency p50", 4e5),
            ("latency p99", 8e5),
            ("latency max", 2e6),
        ];
        record.counters = counters
            .into_iter()
            .map(|(name, value)| Counter { value, ..Counter::count(name, 0) })
            .collect();
        record
    }

    #[test]
    fn a_chain_that_failed_is_marked_and_no_point_of_a_figure() {
        let mut failed = example(100.0, 1e6, 0.0);
        failed.outcome = daqmeter_record::Outcome::Failed("interrupted after 0 samples".into());
        failed.counters.retain(|counter| counter.name != "latency p99");
        assert!(chain_rows(std::slice::from_ref(&failed)).is_empty());
        let table = chains_text(&[failed]);
        assert!(table.contains("FAILED") && !table.contains("closes"), "{table}");
    }

    #[test]
    fn the_share_of_the_limit_is_of_what_was_carried() {
        let fraction = |carried| chain_rows(&[crate::examples::chain(carried)])[0].fraction;
        assert_eq!((fraction(250_000), fraction(1_000_000)), (Some(0.25), Some(1.0)));
    }

    #[test]
    fn the_table_of_chains() {
        insta::assert_snapshot!(chains_text(&[example(100.0, 1e6, 0.0), example(10.0, 2e6, 0.25)]));
    }

    #[test]
    fn what_does_not_fit_a_row() {
        insta::assert_snapshot!(details_text(&[example(100.0, 2e6, 0.25)]));
    }
}
