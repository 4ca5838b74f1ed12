//! The maxima that the document states, and what it says of placement, by this host's records.

use daqmeter_record::border::sum;
use daqmeter_record::study::{Finding, Holds, Measured, Statement};
use daqmeter_record::units::{show_bytes, significant};
use daqmeter_record::{Ledger, RunRecord};

use super::super::named;
use super::Document;

/// Every statement and question.
pub(super) fn findings(document: &Document, records: &[RunRecord]) -> Vec<Finding> {
    let statement = |name: &str| named(&document.statement, name);
    vec![
        Maximum::new("gbt", 800e3, 15, 0.0).judged(statement("gbt_800"), records),
        Maximum::new("gbt", 1e6, 16, 3600.0).judged(statement("gbt_1000"), records),
        Maximum::new("full", 1050e3, 16, 0.0).judged(statement("full_1050"), records),
        core_0(document, records),
        receivers(document, records),
        pinned(document, records),
    ]
}

/// A rate that the document's readers carried, how many they were, and for how long where it says so.
struct Maximum {
    scenario: &'static str,
    rate_hz: f64,
    instances: usize,
    seconds: f64,
}

/// Triggers come at random times: the rate of a second is known to a per mille at 1 MHz.
const RATE_WITHIN: f64 = 0.99;

impl Maximum {
    fn new(scenario: &'static str, rate_hz: f64, instances: usize, seconds: f64) -> Maximum {
        Maximum { scenario, rate_hz, instances, seconds }
    }

    /// The record of this rate that says most: of the most readers, then of the longest time.
    fn record<'a>(&self, records: &'a [RunRecord]) -> Option<&'a RunRecord> {
        let is_wanted = |record: &&RunRecord| {
            let workload = &record.workload;
            is_chain(record)
                && workload.text("scenario").is_ok_and(|name| name == self.scenario)
                && workload.float("rate_hz").is_ok_and(|hz| hz == self.rate_hz)
        };
        let weight = |record: &RunRecord| (record.lanes.len(), seconds(record));
        let of_rate = records.iter().filter(is_wanted);
        of_rate.max_by(|one, other| {
            let (one, other) = (weight(one), weight(other));
            one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
        })
    }

    /// Holds where as many readers carried it for as long; in part where those that there are did.
    fn judged(&self, statement: &Statement, records: &[RunRecord]) -> Finding {
        let Some(record) = self.record(records) else {
            return statement.cannot_tell("no chain was run at this rate");
        };
        let measured =
            ["dead-time", "trigger-rate"].map(|name| Measured::of(record, record.counter(name)?));
        statement.judged(measured, |[dead, rate_hz]| {
            let lost = lost(record);
            let is_carried = dead == 0.0 && lost == 0 && rate_hz >= RATE_WITHIN * self.rate_hz;
            let is_whole = record.lanes.len() >= self.instances && seconds(record) >= self.seconds;
            let holds = match (is_carried, is_whole) {
                (false, _) => Holds::No,
                (true, false) => Holds::InPart,
                (true, true) => Holds::Yes,
            };
            let evidence = format!(
                "{} of {} readers for {} s at {} kHz: BUSY {} % of the time, {lost} lost, {} % of a core for the first reader",
                record.lanes.len(),
                self.instances,
                significant(seconds(record), 4),
                significant(rate_hz / 1e3, 4),
                significant(dead * 100.0, 3),
                significant(record.counter("reader-cpu-ppm").unwrap_or(f64::NAN) * 1e-4, 3),
            );
            (holds, evidence)
        })
    }
}

fn is_chain(record: &RunRecord) -> bool {
    record.engine.name == "readout" && record.outcome.is_ok() && record.role.is_point()
}

fn seconds(record: &RunRecord) -> f64 {
    record.workload.float("seconds").unwrap_or(0.0)
}

/// Triggers x E-links that were lost on the way. Those that BUSY stopped are dead time.
fn lost(record: &RunRecord) -> u64 {
    sum(record.ledgers.iter().map(Ledger::lost_on_the_way))
}

fn cpu(record: &RunRecord) -> Option<u32> {
    record.lanes.first()?.requested_cpu
}

/// Dead time and the reader's CPU of a record, for people.
fn dead_and_cpu(record: &RunRecord) -> String {
    let of = |name: &str, factor: f64| {
        record.counter(name).map_or("-".to_owned(), |value| significant(value * factor, 3))
    };
    format!("BUSY {} %, reader {} % of a core", of("dead-time", 100.0), of("reader-cpu-ppm", 1e-4))
}

/// Two records of one workload, of which `is_one` holds for the first alone.
fn pair(
    records: &[RunRecord],
    is_one: impl Fn(&RunRecord) -> bool,
    is_other: impl Fn(&RunRecord, &RunRecord) -> bool,
) -> Option<(&RunRecord, &RunRecord)> {
    let chains = || records.iter().filter(|record| is_chain(record));
    chains().filter(|one| is_one(one)).find_map(|one| {
        let other = chains().find(|other| is_other(one, other))?;
        Some((one, other))
    })
}

fn core_0(document: &Document, records: &[RunRecord]) -> Finding {
    let question = named(&document.question, "core_0");
    let found = pair(
        records,
        |one| cpu(one) == Some(0),
        |one, other| cpu(other).is_some_and(|cpu| cpu != 0) && one.workload == other.workload,
    );
    let Some((zero, other)) = found else {
        return question
            .cannot_tell("no chain was run on CPU 0 and on another: daqmeter run felix-placement");
    };
    let dead = [zero, other].map(|record| Measured::of(record, record.counter("dead-time")?));
    question.answered(dead, |_| {
        format!(
            "on CPU 0: {}; on CPU {}: {}",
            dead_and_cpu(zero),
            cpu(other).unwrap_or_default(),
            dead_and_cpu(other)
        )
    })
}

/// Receivers that share a CPU, most and fewest, by the list of CPUs that they take in turn: the two CPUs stand for two hosts.
fn shares(record: &RunRecord) -> Option<(usize, usize)> {
    let count = usize::try_from(record.workload.int("receivers").ok()?).ok()?;
    let cpus = record.workload.text("peer_cpu").ok()?;
    let turns: Vec<&str> = cpus.split(',').collect();
    let of = |cpu: &str| (0..count).filter(|at| turns[at % turns.len()] == cpu).count();
    let mut each: Vec<usize> = turns.iter().map(|cpu| of(cpu)).collect();
    each.sort_unstable();
    each.dedup();
    Some((*each.last()?, *each.first()?))
}

fn receivers(document: &Document, records: &[RunRecord]) -> Finding {
    let question = named(&document.question, "receivers");
    let found =
        pair(records, |one| shares(one) == Some((8, 8)), |_, other| shares(other) == Some((12, 4)));
    let Some((even, uneven)) = found else {
        return question.cannot_tell("no chain was run with both: daqmeter run felix-placement");
    };
    let rates = [even, uneven].map(|record| Measured::of(record, record.counter("network")?));
    question.answered(rates, |rates| {
        let [even_rate, uneven_rate] = rates.map(|rate| significant(rate * 8e-9, 3));
        format!(
            "on two CPUs in place of hosts, 8 and 8: {even_rate} Gb/s, {}; 12 and 4: {uneven_rate} Gb/s, {}",
            dead_and_cpu(even),
            dead_and_cpu(uneven)
        )
    })
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of a ring")]
fn show(bytes: f64) -> String {
    show_bytes(bytes as u64)
}

/// The largest peak of a ring among chains of a placement.
fn peak<'a>(records: impl Iterator<Item = &'a RunRecord>) -> Option<Measured> {
    let peaks = records.filter_map(|record| Measured::of(record, record.counter("ring peak")?));
    peaks.max_by(|one, other| one.value().total_cmp(&other.value()))
}

fn pinned(document: &Document, records: &[RunRecord]) -> Finding {
    let question = named(&document.question, "pinned");
    let at_1_ms = |record: &&RunRecord| {
        is_chain(record) && record.workload.float("poll_us").is_ok_and(|us| us == 1000.0)
    };
    let of = |is_pinned: bool, cost: Option<u64>| {
        let is_wanted = |record: &&RunRecord| {
            at_1_ms(record)
                && cpu(record).is_some() == is_pinned
                && record.workload.int("migration_cost_ns").ok() == cost
                && record.workload.float("rate_hz").is_ok_and(|hz| hz == 1e6)
        };
        peak(records.iter().filter(is_wanted))
    };
    let (pinned, free, moved) = (of(true, None), of(false, None), of(false, Some(1000)));
    if pinned.is_none() || free.is_none() {
        return question
            .cannot_tell("no chain was run pinned and free: daqmeter run felix-placement");
    }
    let moved = moved.map_or("not set here (root)".to_owned(), |peak| show(peak.value()));
    question.answered([pinned, free], |[pinned, free]| {
        format!(
            "fullest ring: pinned {}, free {}, free with sched_migration_cost_ns = 1000: {moved}",
            show(pinned),
            show(free)
        )
    })
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{Counter, EngineInfo, Lane, Ledger, Workload};

    use super::*;

    fn chain(rate_hz: f64, seconds: f64, readers: usize, dead: f64) -> RunRecord {
        let workload = Workload::new("readout")
            .with("scenario", "gbt")
            .with("rate_hz", rate_hz)
            .with("poll_us", 1000.0)
            .with("seconds", seconds);
        let engine = EngineInfo { name: "readout".into(), emulated: true, ..EngineInfo::default() };
        let mut record = RunRecord::new(engine, workload);
        record.lanes = vec![Lane::default(); readers];
        let counter = |name: &str, value| Counter { value, ..Counter::count(name, 0) };
        record.counters = vec![
            counter("dead-time", dead),
            counter("trigger-rate", rate_hz * 0.9995),
            counter("reader-cpu-ppm", 5e5),
            counter("network", 1e9),
            counter("ring peak", 1e6),
        ];
        record
    }

    fn found(records: &[RunRecord], text: &str) -> Finding {
        let all = findings(&Document::default(), records);
        all.into_iter().find(|finding| finding.text.contains(text)).unwrap()
    }

    fn verdict(records: &[RunRecord], text: &str) -> String {
        found(records, text).verdict.to_string()
    }

    #[test]
    fn a_maximum_needs_the_documents_readers_and_its_time() {
        let hour = "1 MHz with 0 % BUSY-by-DMA during 1 hour";
        for (record, expected) in [
            (chain(1e6, 1.0, 1, 0.0), "in part (emulated)"),
            (chain(1e6, 3600.0, 1, 0.0), "in part (emulated)"),
            (chain(1e6, 3600.0, 16, 0.0), "confirmed (emulated)"),
            (chain(1e6, 3600.0, 16, 1e-9), "refuted (emulated)"),
            (chain(800e3, 3600.0, 16, 0.0), "cannot tell"),
        ] {
            assert_eq!(
                verdict(std::slice::from_ref(&record), hour),
                expected,
                "{:?}",
                record.workload
            );
        }
        assert_eq!(
            verdict(&[chain(800e3, 1.0, 15, 0.0)], "0 % dead time at 800 kHz"),
            "confirmed (emulated)"
        );
        let mut losing = chain(800e3, 1.0, 15, 0.0);
        let mut ledger = Ledger { issued: 1, ..Ledger::new("triggers x E-links") };
        ledger.lose("ring full", 1);
        losing.ledgers.push(ledger);
        assert_eq!(verdict(&[losing], "0 % dead time at 800 kHz"), "refuted (emulated)");
    }

    #[test]
    fn placements_are_answered_by_the_pairs_that_were_run() {
        let on = |cpu: Option<u32>, dead| {
            let mut record = chain(1e6, 2.0, 1, dead);
            record.lanes[0].requested_cpu = cpu;
            record
        };
        let both = [on(Some(0), 0.1), on(Some(1), 0.0)];
        let answer = found(&both, "core 0");
        assert_eq!(answer.verdict.to_string(), "this host (emulated)");
        assert!(answer.evidence.starts_with("on CPU 0: BUSY 10 %"), "{}", answer.evidence);
        assert_eq!(verdict(&both[..1], "core 0"), "cannot tell");
        let with = |cpus: &str| {
            let mut record = chain(1e4, 2.0, 16, 0.0);
            record.set_param("receivers", 16_u64);
            record.set_param("peer_cpu", cpus);
            record
        };
        let hosts = [with("0,1"), with("0,0,0,1")];
        assert_eq!(verdict(&hosts, "8 and 8"), "this host (emulated)");
        assert_eq!(verdict(&hosts[..1], "8 and 8"), "cannot tell");
        let mut free = on(None, 0.0);
        assert_eq!(verdict(&[on(Some(1), 0.0), free.clone()], "peaks"), "this host (emulated)");
        free.set_param("migration_cost_ns", 1000_u64);
        let all = [on(Some(1), 0.0), on(None, 0.0), free];
        assert!(
            found(&all, "peaks").evidence.ends_with("= 1000: 976.6 KiB"),
            "{}",
            found(&all, "peaks").evidence
        );
    }
}
