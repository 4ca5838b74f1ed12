//! A chain in a record: counters, the filling of its rings, and the checks of its accounts and
//! bytes.

use daqmeter_harness::search::Observation;
use daqmeter_record::units::{show_ns, whole};
use daqmeter_record::{Counter, Ledger, RunRecord, TimeSeries};
use daqmeter_stats::LogHistogram;
use daqmeter_sys::memory::Pages;

use super::{ReaderDone, joined};
use crate::accounts::own_losses;
use crate::card::{CardView, channel_ids};
use crate::receive::{Report, elink_name};
use crate::scenario::{ReaderCompletion, Scenario};

pub fn check_ledgers(readers: &[ReaderDone], received: &[Report]) -> Result<(), String> {
    let subscriptions = readers.iter().flat_map(|reader| reader.account.subscription_ledgers());
    let mut all = joined(readers, received).into_iter().chain(subscriptions);
    match all.find(|(_, ledger)| !ledger.closes()) {
        Some((tag, ledger)) => Err(format!("E-link {tag:#x}: {ledger}")),
        None => Ok(()),
    }
}

pub fn check_bytes(received: &[Report]) -> Result<(), String> {
    let payload: u64 = received.iter().map(|report| report.faults().payload).sum();
    let bad_pages: u64 = received.iter().map(|report| report.bad_pages).sum();
    match payload + bad_pages {
        0 => Ok(()),
        _ => Err(format!("{payload} fragments with wrong bytes, {bad_pages} invalid pages")),
    }
}

/// Latency from the oldest trigger of a page to its receipt, once per page, of all receivers.
pub fn latency(received: &[Report]) -> LogHistogram {
    let mut latency = LogHistogram::default();
    for report in received {
        latency.merge(&report.latency_ns);
    }
    latency
}

/// Says how often a reader looked, if that is less than half as often as it was asked to.
pub fn looked(scenario: &Scenario, reader: &ReaderDone) -> Option<String> {
    let asked_ns = scenario.reader.poll.0;
    let is_asked = scenario.reader.completion == ReaderCompletion::Poll && asked_ns > 0;
    let [asked, obtained] =
        [asked_ns, reader.view.now_ns / reader.stats.polls.max(1)].map(|ns| ns as f64);
    let is_rare = is_asked && obtained > 2.0 * asked;
    is_rare.then(|| {
        let [asked, obtained] = [asked, obtained].map(show_ns);
        format!("poll: asked for a look every {asked}, obtained one every {obtained}")
    })
}

pub fn counters_of_reader(reader: &ReaderDone) -> Vec<Counter> {
    let stats = &reader.stats;
    [
        ("chunks", stats.chunks),
        ("blocks", stats.blocks),
        ("polls", stats.polls),
        ("busy-polls", stats.busy_polls),
        ("stalls", stats.stalls),
        ("reader-cpu-ppm", whole(reader.cpu * 1e6)),
    ]
    .map(|(name, value)| Counter::count(name, value))
    .to_vec()
}

/// Counters of a whole chain: triggers, dead time by its cause, the fullest ring, the receivers; of
/// each ring its most bytes.
pub fn counters(
    scenario: &Scenario,
    readers: &[&ReaderDone],
    received: &[Report],
    peak_bytes: &[usize],
) -> Vec<Counter> {
    let Some(first) = readers.first() else {
        return Vec::new();
    };
    let [dma, fifo, any, outside] = first.view.dead;
    let [card_ns, triggers_ns] = [first.view.now_ns, first.triggers_ns].map(|ns| ns.max(1) as f64);
    let latency = latency(received);
    let bytes: u64 = received.iter().map(|report| report.bytes).sum();
    let found: u64 = readers.iter().map(|one| one.stats.found_bytes).sum();
    let polls: u64 = readers.iter().map(|one| one.stats.busy_polls).sum();
    let issued = first.account.card.issued;
    let (assert, _) = scenario.dma_thresholds();
    let mark = scenario.card.ring.0.saturating_sub(assert);
    let mut counters = vec![
        Counter::measured("triggers", issued as f64, ""),
        Counter::measured("trigger-rate", issued as f64 / triggers_ns * 1e9, "Hz"),
        Counter::measured("stopped-triggers", any.vetoed as f64, ""),
        Counter::measured("dead-time", any.ns as f64 / card_ns, "of the time"),
        Counter::measured("dead-time BUSY-by-DMA", dma.ns as f64 / card_ns, "of the time"),
        Counter::measured("dead-time BUSY-by-FIFO", fifo.ns as f64 / card_ns, "of the time"),
        Counter::measured("BUSY intervals", any.count as f64, ""),
        Counter::measured("longest BUSY", any.longest_ns as f64, "ns"),
        Counter::measured("ring", first.ring_bytes as f64, "B"),
        Counter::measured("ring peak", peak_bytes.iter().copied().max().unwrap_or(0) as f64, "B"),
        Counter::measured("ring found", found as f64 / polls.max(1) as f64, "B"),
        Counter::measured("network", bytes as f64 / card_ns * 1e9, "B/s"),
        Counter::measured("receiver-cpu", received.iter().map(|one| one.cpu).sum(), "of a core"),
        Counter::measured("latency p50", latency.quantile(0.5) as f64, "ns"),
        Counter::measured("latency max", latency.max() as f64, "ns"),
    ];
    let p99 = latency.supported_quantile(0.99);
    counters.extend(p99.map(|ns| Counter::measured("latency p99", ns as f64, "ns")));
    counters.push(Counter::measured("BUSY mark", mark as f64, "B"));
    counters.extend(busy_by_channel(&first.view));
    let share = outside.ns as f64 / card_ns;
    let outside = Counter::measured("dead-time BUSY from outside", share, "of the time");
    counters.extend(scenario.busy.outside.as_ref().map(|_| outside));
    let pages = readers.iter().filter_map(|reader| reader.ring_pages);
    let base = pages.filter(|pages| *pages != Pages::HugeTlb).count() as u64;
    let is_missed = scenario.card.huge_pages && base > 0;
    counters.extend(is_missed.then(|| Counter::count("rings without huge pages", base)));
    counters
}

const MAX_BUSY_CHANNELS: usize = 32;

/// BUSY of the channels that asserted it, the longest time first: intervals, share of the time, and
/// if it still is.
pub fn busy_by_channel(view: &CardView) -> Vec<Counter> {
    let mut asserted = view.asserted.clone();
    asserted.sort_by_key(|busy| std::cmp::Reverse(busy.ns));
    let each = asserted.iter().take(MAX_BUSY_CHANNELS).flat_map(|busy| {
        let (name, share) = (format!("BUSY by channel {}", busy.channel), busy.ns as f64);
        let share = share / view.now_ns.max(1) as f64;
        let live = busy.is_live.then(|| Counter::count(format!("live {name}"), 1));
        let time = Counter::measured(format!("dead-time {name}"), share, "of the time");
        [Counter::count(name, busy.intervals), time].into_iter().chain(live)
    });
    each.collect()
}

const FILLING: &str = "ring filling";
/// Name of the series of bytes that no subscriber has acknowledged; a search reads it back.
const BACKLOG: &str = "backlog";
const FILLING_SAMPLES: usize = 32;

/// Series of the reader with the most bytes in its ring at the end, and of that with the largest
/// backlog.
pub fn filling(readers: &[&ReaderDone]) -> Vec<TimeSeries> {
    let largest = |(at, name): (usize, &str)| {
        let last = |reader: &&&ReaderDone| reader.filling.last().map_or(0, |last| last.1[at]);
        Some(series(name.to_owned(), &readers.iter().max_by_key(last)?.filling, at))
    };
    [FILLING, BACKLOG].into_iter().enumerate().filter_map(largest).collect()
}

fn series(name: String, filling: &[(u64, [u64; 2])], at: usize) -> TimeSeries {
    let samples = FILLING_SAMPLES.min(filling.len());
    let thinned = (0..samples).map(|sample| filling[sample * filling.len() / samples]);
    let (times_ns, values) = thinned.map(|(ns, bytes)| (ns, Some(bytes[at] as f64))).unzip();
    TimeSeries { name, unit: "B".into(), times_ns, values }
}

pub fn filling_of(scenario: &Scenario, channel: usize, reader: &ReaderDone) -> TimeSeries {
    let id = channel_ids(scenario)[channel];
    let name = format!("{FILLING}, device {}, channel {}", id.device, id.channel);
    series(name, &reader.filling, 0)
}

/// Triggers x E-links that were lost on the way or that BUSY stopped, but for those that the source
/// did not give.
fn lost_or_stopped(ledger: &Ledger) -> u64 {
    ledger.lost() - ledger.not_given()
}

/// Observation for a search from a record with a chain's counters and ledgers, given bytes per
/// trigger and ring.
pub fn observed(record: &RunRecord, event_bytes: f64) -> Observation {
    let value = |name: &str| record.counter(name).unwrap_or(0.0);
    let lost = record.ledgers.iter().map(lost_or_stopped).sum();
    let due: u64 = record.ledgers.iter().map(|ledger| ledger.issued - ledger.not_given()).sum();
    Observation {
        lost,
        lost_share: lost as f64 / due.max(1) as f64,
        dead_share: value("dead-time"),
        backlog: record.series(BACKLOG).map_or_else(Vec::new, |series| series.points_s().collect()),
        busy_at_bytes: value("BUSY mark"),
        input_bytes_per_s: event_bytes * value("trigger-rate"),
    }
}

const MAX_LOSING_ELINKS: usize = 32;

/// Kinds of the counters of fragments that came, and of their triggers.
const FRAGMENTS: [&str; 2] = ["fragments", "triggers"];

/// Losses of each E-link with losses of its own, the largest first, and the fragments that came of
/// it: `E-link 0x009: emulator deficit`.
pub fn losses_by_elink(ledgers: &[(u64, Ledger)]) -> Vec<Counter> {
    let sum = |ledger: &Ledger| own_losses(ledger).map(|(_, count)| count).sum::<u64>();
    let mut losing: Vec<_> = ledgers.iter().filter(|(_, ledger)| sum(ledger) > 0).collect();
    losing.sort_by_key(|(tag, ledger)| (std::cmp::Reverse(sum(ledger)), *tag));
    let (named, rest) = losing.split_at(losing.len().min(MAX_LOSING_ELINKS));
    let own = named.iter().flat_map(|(tag, ledger)| {
        let elink = elink_name(*tag);
        let came = [(FRAGMENTS[0], ledger.delivered), (FRAGMENTS[1], ledger.issued)];
        own_losses(ledger)
            .chain(came)
            .map(move |(kind, count)| Counter::count(format!("E-link {elink}: {kind}"), count))
    });
    let rest: u64 = rest.iter().map(|(_, ledger)| sum(ledger)).sum();
    own.chain((rest > 0).then(|| Counter::count("E-links beyond: lost", rest))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_harness::search::Stability;

    /// A limit in the network: the ring was empty, and 42 kHz were confirmed where 29.6 kHz pass.
    #[test]
    fn what_pages_and_network_hold_makes_a_rate_unstable() {
        let verdict = |backlog_grows: bool| {
            let backlog = |at: u64| if backlog_grows { at * 100_000 } else { 65_536 };
            let sample = |at: u64| (at * 12_500_000, [65_536, backlog(at)]);
            let samples: Vec<_> = (0..32).map(sample).collect();
            let mut record = RunRecord::default();
            let both = [FILLING, BACKLOG].into_iter().enumerate();
            record.series = both.map(|(at, name)| series(name.into(), &samples, at)).collect();
            for (name, value) in [("BUSY mark", 52e6), ("trigger-rate", 38e3)] {
                let counter = Counter::count(name, 0);
                record.counters.push(Counter { value, ..counter });
            }
            observed(&record, 960.0).verdict()
        };
        assert_eq!([verdict(false), verdict(true)], [Stability::Stable, Stability::Growing]);
    }

    #[test]
    fn losses_are_told_by_elink_the_largest_first_and_those_of_all_are_not() {
        let ledger = |deficit: u64, vetoed: u64| {
            let mut ledger =
                Ledger { issued: 90, delivered: 90 - deficit, ..Ledger::new("triggers") };
            ledger.lose("emulator deficit", deficit);
            ledger.lose("stopped by BUSY-by-DMA", vetoed);
            ledger
        };
        let tag = |elink: u16| {
            let elink = daqmeter_wire::felix::Elink::new(elink);
            daqmeter_wire::felix::payload::Fid::of_elink(0, 0, elink).to_u64()
        };
        let few = [(tag(8), ledger(2, 100)), (tag(9), ledger(0, 100)), (tag(0x10), ledger(5, 100))];
        let told = |ledgers: &[(u64, Ledger)]| -> Vec<(String, f64)> {
            let counters = losses_by_elink(ledgers).into_iter();
            counters.map(|counter| (counter.name.to_string(), counter.value)).collect()
        };
        assert_eq!(
            told(&few),
            [
                ("E-link 0x010: emulator deficit".to_owned(), 5.0),
                ("E-link 0x010: fragments".to_owned(), 85.0),
                ("E-link 0x010: triggers".to_owned(), 90.0),
                ("E-link 0x008: emulator deficit".to_owned(), 2.0),
                ("E-link 0x008: fragments".to_owned(), 88.0),
                ("E-link 0x008: triggers".to_owned(), 90.0),
            ]
        );
        let many: Vec<_> = (0..40).map(|at| (tag(at), ledger(1, 0))).collect();
        let counters = told(&many);
        assert_eq!(counters.len(), 3 * MAX_LOSING_ELINKS + 1);
        assert_eq!(counters.last().unwrap(), &("E-links beyond: lost".to_owned(), 8.0));
    }
}
