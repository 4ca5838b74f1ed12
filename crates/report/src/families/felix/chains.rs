//! Read-out chains: rate, dead time, ring, CPU, network, latency.

use std::fmt::Write;

use daqmeter_record::units::{joined, percent, plural, show_bytes, show_ns, significant};
use daqmeter_record::{Counter, Ledger, Role, RunRecord};

use super::host;
use crate::aligned::{TextColumn, asks_all, number, paragraphs, table_without, time};
use crate::families::pmu::tables::counted;
use crate::faults::{faults_and_ledgers, labelled};
use crate::frame::Frame;
use crate::groups::in_groups;
use crate::rate;
use crate::samples::first_stage;

pub(super) const ENGINE: &str = "readout";

/// Returns records of chains, also of those that ended before their readers began.
fn chains(records: &[RunRecord]) -> impl Iterator<Item = &RunRecord> {
    records.iter().filter(|record| record.engine.name == ENGINE)
}

pub(super) struct ChainRun<'a> {
    pub(super) record: &'a RunRecord,
    pub(super) chain: String,
    pub(super) rate_hz: f64,
    /// Polling interval; `None` if the reader slept until the interrupt.
    pub(super) poll_us: Option<f64>,
    ledger: &'a Ledger,
}

/// Returns completed points with closed accounts, in the order of chain, polling and rate. Probes
/// of searches are too short to draw.
pub(super) fn swept(records: &[RunRecord]) -> Vec<ChainRun<'_>> {
    let mut runs = all_runs(records);
    runs.retain(|run| rate::is_done(run.record) && run.record.role != Role::Probe);
    runs
}

fn all_runs(records: &[RunRecord]) -> Vec<ChainRun<'_>> {
    let mut runs: Vec<ChainRun<'_>> = chains(records).filter_map(ChainRun::of).collect();
    let poll_us = |run: &ChainRun<'_>| run.poll_us.unwrap_or(0.0);
    runs.sort_by(|a, b| a.rate_hz.total_cmp(&b.rate_hz));
    runs.sort_by(|a, b| a.chain.cmp(&b.chain).then(poll_us(a).total_cmp(&poll_us(b))));
    runs
}

fn name(record: &RunRecord) -> String {
    let scenario = record.workload.text("scenario").unwrap_or("?");
    // Behind the name of a file is its digest.
    let scenario = scenario.rsplit_once('#').map_or(scenario, |(name, _)| name);
    let parameters = [("payload_bytes", " B"), ("channels", " channels"), ("mode", "")];
    let parts = parameters.iter().filter_map(|(parameter, unit)| {
        Some(format!(", {}{unit}", record.workload.params.get(*parameter)?))
    });
    scenario.to_owned() + &parts.collect::<String>()
}

impl ChainRun<'_> {
    fn of(record: &RunRecord) -> Option<ChainRun<'_>> {
        let is_interrupt = record.workload.text("completion") == Ok("interrupt");
        Some(ChainRun {
            record,
            chain: name(record),
            rate_hz: record.counter("trigger-rate")?,
            poll_us: record.workload.float("poll_us").ok().filter(|_| !is_interrupt),
            ledger: record.ledgers.first()?,
        })
    }

    pub(super) fn value(&self, name: &str) -> f64 {
        self.record.counter(name).unwrap_or(0.0)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.value("triggers") / self.rate_hz.max(1e-9)
    }

    /// Returns the CPU of the readers, in cores.
    pub(super) fn reader_cpu(&self) -> f64 {
        self.value("reader-cpu-ppm") * 1e-6
    }

    /// Returns the CPU time of the readers per chunk; `None` for almost no chunks.
    pub(super) fn reader_ns_per_chunk(&self) -> Option<f64> {
        let chunks = self.value("chunks");
        (chunks > 1e4).then(|| self.reader_cpu() * self.seconds() * 1e9 / chunks)
    }

    pub(super) fn mchunks_per_s(&self) -> f64 {
        self.value("chunks") / self.seconds().max(1e-9) / 1e6
    }

    fn closes(&self) -> bool {
        self.record.ledgers.iter().all(Ledger::closes)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.ledger.lost_on_the_way() == 0
            && self.ledger.stopped() == 0
            && self.value("dead-time") == 0.0
            && self.closes()
    }

    fn ledger_state(&self) -> String {
        match self.closes() {
            true => rate::undone_word(self.record).map_or("closes".to_owned(), str::to_uppercase),
            false => "DOES NOT CLOSE".to_owned(),
        }
    }

    fn of_limit(&self) -> String {
        let stage = first_stage(self.record).filter(|_| rate::is_done(self.record));
        stage.map_or("-".to_owned(), |stage| rate::shown_share_of(self.record, stage))
    }
}

/// Columns that a narrow table leaves out, the least important first.
const SPARE: [&str; 9] = [
    "ring peak",
    "in ring",
    "ns/chunk",
    "Mchunk/s",
    "poll us",
    "receiver CPU %",
    "Gb/s",
    "reader CPU %",
    "p99 us",
];

pub fn chains_text(records: &[RunRecord]) -> String {
    let runs = all_runs(records);
    let columns: [TextColumn<ChainRun<'_>>; 16] = [
        ("chain", |run| run.chain.clone()),
        ("poll us", |run| run.poll_us.map_or("interrupt".to_owned(), |us| significant(us, 4))),
        ("kHz", |run| significant(run.rate_hz / 1e3, 4)),
        ("dead %", |run| percent(run.value("dead-time"), 3)),
        ("stopped", |run| run.ledger.stopped().to_string()),
        ("lost", |run| run.ledger.lost_on_the_way().to_string()),
        ("in ring", |run| show_bytes(run.value("ring found") as u64)),
        ("ring peak", |run| show_bytes(run.value("ring peak") as u64)),
        ("Mchunk/s", |run| significant(run.mchunks_per_s(), 3)),
        ("reader CPU %", |run| percent(run.reader_cpu(), 3)),
        ("ns/chunk", |run| number(run.reader_ns_per_chunk(), 3)),
        ("receiver CPU %", |run| percent(run.value("receiver-cpu"), 3)),
        ("Gb/s", |run| significant(run.value("network") * 8e-9, 3)),
        ("p99 us", |run| number(run.record.counter("latency p99").map(|ns| ns / 1e3), 3)),
        ("of limit", ChainRun::of_limit),
        ("ledger", ChainRun::ledger_state),
    ];
    table_without(1, &columns, &SPARE, &runs)
}

/// Most channels, or losses of E-links, that are named.
const MAX_NAMED: usize = 4;
/// Most E-links that are named for one loss.
const MAX_ELINKS: usize = 8;

/// Names the channels that asserted BUSY; empty if none did.
pub fn asserted_by(counters: &[Counter]) -> String {
    let value = |name: String| counters.iter().find(|one| one.name == name).map(|one| one.value);
    let named = counters.iter().filter_map(|Counter { name, value: times, .. }| {
        let channel = name.strip_prefix("BUSY by ")?;
        let share = percent(value(format!("dead-time {name}"))?, 3);
        let still = value(format!("live {name}")).map_or("", |_| ", still asserted");
        let times = plural(*times as u64, "interval");
        Some(format!("{channel} ({times}, {share} % of the time{still})"))
    });
    let mut named: Vec<String> = named.collect();
    if let more @ 1.. = named.len().saturating_sub(MAX_NAMED) {
        named.splice(MAX_NAMED.., [format!("{more} more")]);
    }
    joined(named, ", ").map_or(String::new(), |named| format!(", asserted only by {named}"))
}

/// Shows chains, with their dead time and latency; with `--all` also the processes of the
/// host.
pub fn read_out(records: &[RunRecord]) -> Frame {
    let own = || chains(records);
    let mut tables = chains_text(records);
    own().for_each(|record| tables.push_str(&paragraphs(&details(record))));
    if asks_all() {
        own().for_each(|record| tables.push_str(&host::processes(record)));
    }
    let mut notes = labelled(records, faults_and_ledgers);
    notes.extend(labelled(records, counted));
    notes.extend(own().map(host::load).chain(own().flat_map(host::occupancy)));
    Frame::of(tables, notes)
}

/// Writes dead time, latency and polls, and the losses of single E-links, of which the ledger has
/// only the sum.
fn details(record: &RunRecord) -> String {
    let value = |name: &str| record.counter(name).unwrap_or(0.0);
    let at = |name: &str| time(record.counter(name));
    let outside = record.counter("dead-time BUSY from outside");
    let mut out = format!(
        " dead time: {} % by DMA, {} % by FIFO{}; {} intervals, longest {}{}; {} triggers stopped\n",
        percent(value("dead-time BUSY-by-DMA"), 3),
        percent(value("dead-time BUSY-by-FIFO"), 3),
        outside.map_or(String::new(), |share| format!(", {} % from outside", percent(share, 3))),
        value("BUSY intervals"),
        show_ns(value("longest BUSY")),
        asserted_by(&record.counters),
        value("stopped-triggers"),
    );
    let _ = writeln!(
        out,
        " latency, from the oldest trigger of a page to its receipt: p50 {}, p99 {}, max {}",
        at("latency p50"),
        at("latency p99"),
        at("latency max"),
    );
    let _ = writeln!(
        out,
        " ring polled {} times, with data {} times; waits for a slow subscriber: {}",
        value("polls"),
        value("busy-polls"),
        value("stalls"),
    );
    let of_elinks = || {
        record.counters.iter().filter_map(|Counter { name, value, .. }| {
            let (elink, cause) = name.strip_prefix("E-link ")?.split_once(": ")?;
            Some(((cause, value.to_bits()), elink))
        })
    };
    let groups = in_groups(of_elinks().filter(|((cause, _), _)| !FRAGMENTS.contains(cause)));
    let shown = if asks_all() { groups.len() } else { MAX_NAMED.min(groups.len()) };
    for ((cause, count), elinks) in &groups[..shown] {
        let each = if elinks.len() > 1 { " each" } else { "" };
        let named = if asks_all() { elinks.len() } else { MAX_ELINKS.min(elinks.len()) };
        let more = match elinks.len() - named {
            0 => String::new(),
            more => format!(", {more} more"),
        };
        let (count, named) = (f64::from_bits(*count), elinks[..named].join(", "));
        let _ = writeln!(out, "  {cause}: {count}{each} on E-links {named}{more}");
    }
    if let more @ 1.. = groups.len() - shown {
        let _ = writeln!(out, "  {}: --all", plural(more as u64, "more loss"));
    }
    // Cards have E-links of one number: their counts are added up.
    let came = of_elinks().filter(|((cause, _), _)| *cause == FRAGMENTS[0]);
    let came = came.map(|((_, count), elink)| {
        let triggers = value(&format!("E-link {elink}: {}", FRAGMENTS[1]));
        (elink.to_owned(), f64::from_bits(count) as u64, triggers as u64)
    });
    out + &against_triggers(came)
}

/// Kinds of the counters of an E-link's fragments that came, and of their triggers.
const FRAGMENTS: [&str; 2] = ["fragments", "triggers"];
/// E-links with fewer fragments than triggers that are listed.
const MAX_SHORT: usize = 8;

/// Lists fragments against triggers of the E-links on which they differ.
pub fn against_triggers(short: impl Iterator<Item = (String, u64, u64)>) -> String {
    let (mut out, mut more) = (String::new(), 0);
    for (at, (elink, came, triggers)) in short.enumerate() {
        if at >= MAX_SHORT && !asks_all() {
            more += 1;
            continue;
        }
        let share = percent(came as f64 / triggers.max(1) as f64, 4);
        let _ = writeln!(out, "  E-link {elink}: {came} of {triggers} triggers, {share} %");
    }
    if more > 0 {
        let _ = writeln!(out, "  and {more} other E-links with fewer");
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
        assert!(swept(std::slice::from_ref(&failed)).is_empty());
        let table = chains_text(&[failed]);
        assert!(table.contains("INTERRUPTED") && !table.contains("closes"), "{table}");
    }

    #[test]
    fn the_channels_that_asserted_busy_are_named_four_at_most() {
        let busy = |channel: usize| {
            let name = format!("BUSY by channel {channel}");
            [Counter::count(format!("dead-time {name}"), 1), Counter::count(name, 3)]
        };
        let mut counters = busy(7).to_vec();
        assert_eq!(asserted_by(&[]), "");
        let one = ", asserted only by channel 7 (3 intervals, 100 % of the time)";
        assert_eq!(asserted_by(&counters), one);
        counters.push(Counter::count("live BUSY by channel 7", 1));
        let live = one.replace(')', ", still asserted)");
        assert_eq!(asserted_by(&counters), live);
        counters.extend((8..13).flat_map(busy));
        let many = asserted_by(&counters);
        assert!(many.starts_with(&live) && many.ends_with(" % of the time), 2 more"), "{many}");
    }

    #[test]
    fn the_table_of_chains() {
        insta::assert_snapshot!(chains_text(&[example(100.0, 1e6, 0.0), example(10.0, 2e6, 0.25)]));
    }

    #[test]
    fn what_does_not_fit_a_row() {
        insta::assert_snapshot!(read_out(&[example(100.0, 2e6, 0.25)]).text(None));
    }
}
