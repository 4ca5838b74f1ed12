//! Findings on chains of the read-out: maxima that were carried, and placements.

use daqmeter_record::border::sum;
use daqmeter_record::study::{Grade, Measured};
use daqmeter_record::units::{show_bytes, significant};
use daqmeter_record::{Ledger, RunRecord};
use serde::Deserialize;

use super::judgement::{Judgement, weakest};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ChainFinding {
    /// Rate that the document's readers carried, their number, and the time where it is stated.
    Maximum { scenario: String, rate_hz: f64, instances: usize, seconds: f64 },
    /// Compares a reader on CPU 0 with one on another CPU.
    CoreZero,
    /// Compares receivers 8 and 8 with 12 and 4: two CPUs stand for the document's two hosts.
    Receivers,
    /// Compares peaks of rings with pinned and with free readers.
    Pinned,
}

/// Least share of a rate: the rate of a second of random triggers is known to a per mille at 1 MHz.
const RATE_WITHIN: f64 = 0.99;
const NO_PLACEMENT: &str = "daqmeter run felix-placement";

impl ChainFinding {
    pub(super) fn judged(&self, records: &[RunRecord]) -> Result<Judgement, String> {
        let is_chain = |record: &&RunRecord| {
            record.engine.name == "readout" && record.outcome.is_ok() && record.role.is_point()
        };
        let chains: Vec<&RunRecord> = records.iter().filter(is_chain).collect();
        match self {
            ChainFinding::Maximum { scenario, rate_hz, instances, seconds } => {
                let is_wanted = |record: &&&RunRecord| {
                    record.workload.text("scenario").is_ok_and(|name| name == scenario)
                        && record.workload.float("rate_hz").is_ok_and(|hz| hz == *rate_hz)
                };
                let weight = |record: &RunRecord| (record.lanes.len(), run_seconds(record));
                let of_rate = chains.iter().filter(is_wanted);
                let most = of_rate.max_by(|one, other| {
                    let (one, other) = (weight(one), weight(other));
                    one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
                });
                let record = most.ok_or("no chain was run at this rate")?;
                maximum(record, *rate_hz, *instances, *seconds)
            }
            ChainFinding::CoreZero => {
                let found = pair(
                    &chains,
                    |one| cpu(one) == Some(0),
                    |one, other| {
                        cpu(other).is_some_and(|cpu| cpu != 0) && one.workload == other.workload
                    },
                );
                let (zero, other) = found.ok_or_else(|| {
                    format!("no chain was run on CPU 0 and on another: {NO_PLACEMENT}")
                })?;
                let evidence = format!(
                    "on CPU 0: {}; on CPU {}: {}",
                    dead_and_cpu(zero),
                    cpu(other).unwrap_or_default(),
                    dead_and_cpu(other)
                );
                answered([zero, other].map(|record| counter(record, "dead-time")), evidence)
            }
            ChainFinding::Receivers => {
                let found = pair(
                    &chains,
                    |one| shares(one) == Some((8, 8)),
                    |_, other| shares(other) == Some((12, 4)),
                );
                let (even, uneven) =
                    found.ok_or_else(|| format!("no chain was run with both: {NO_PLACEMENT}"))?;
                let rate = |record| {
                    counter(record, "network")
                        .map_or(String::new(), |rate| significant(rate.value * 8e-9, 3))
                };
                let evidence = format!(
                    "on two CPUs in place of hosts, 8 and 8: {} Gb/s, {}; 12 and 4: {} Gb/s, {}",
                    rate(even),
                    dead_and_cpu(even),
                    rate(uneven),
                    dead_and_cpu(uneven)
                );
                answered([even, uneven].map(|record| counter(record, "network")), evidence)
            }
            ChainFinding::Pinned => pinned(&chains),
        }
    }
}

fn answered(
    measured: impl IntoIterator<Item = Option<Measured>>,
    evidence: String,
) -> Result<Judgement, String> {
    Ok(Judgement { grade: None, source: weakest(measured)?, evidence })
}

/// Holds if the document's number of readers carried the rate for its time, and in part for fewer
/// or shorter ones.
fn maximum(
    record: &RunRecord,
    rate_hz: f64,
    instances: usize,
    seconds: f64,
) -> Result<Judgement, String> {
    let of = |name| counter(record, name).ok_or_else(|| "not measured here".to_owned());
    let (dead, rate) = (of("dead-time")?, of("trigger-rate")?);
    // BUSY stops triggers: these are dead time, not losses.
    let lost = sum(record.ledgers.iter().map(Ledger::lost_on_the_way));
    let is_carried = dead.value == 0.0 && lost == 0 && rate.value >= RATE_WITHIN * rate_hz;
    let is_whole = record.lanes.len() >= instances && run_seconds(record) >= seconds;
    let grade = match (is_carried, is_whole) {
        (false, _) => Grade::Refuted,
        (true, false) => Grade::InPart,
        (true, true) => Grade::Confirmed,
    };
    let evidence = format!(
        "{} of {instances} readers for {} s at {} kHz: BUSY {} % of the time, {lost} lost, {} % of a core for the first reader",
        record.lanes.len(),
        significant(run_seconds(record), 4),
        significant(rate.value / 1e3, 4),
        significant(dead.value * 100.0, 3),
        significant(record.counter("reader-cpu-ppm").unwrap_or(f64::NAN) * 1e-4, 3),
    );
    Ok(Judgement { grade: Some(grade), source: weakest([Some(dead), Some(rate)])?, evidence })
}

fn pinned(chains: &[&RunRecord]) -> Result<Judgement, String> {
    let peak = |is_pinned: bool, cost: Option<u64>| {
        let is_wanted = |record: &&RunRecord| {
            let float = |name: &str| record.workload.float(name).ok();
            float("poll_us") == Some(1000.0)
                && float("rate_hz") == Some(1e6)
                && cpu(record).is_some() == is_pinned
                && record.workload.int("migration_cost_ns").ok() == cost
        };
        let of = chains.iter().copied().filter(is_wanted);
        let peaks = of.filter_map(|record| counter(record, "ring peak"));
        peaks.max_by(|one, other| one.value.total_cmp(&other.value))
    };
    let (Some(pinned), Some(free)) = (peak(true, None), peak(false, None)) else {
        return Err(format!("no chain was run pinned and free: {NO_PLACEMENT}"));
    };
    let moved = peak(false, Some(1000)).map_or("not set here (root)".to_owned(), show);
    let evidence = format!(
        "fullest ring: pinned {}, free {}, free with sched_migration_cost_ns = 1000: {moved}",
        show(pinned),
        show(free)
    );
    answered([Some(pinned), Some(free)], evidence)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of a ring")]
fn show(bytes: Measured) -> String {
    show_bytes(bytes.value as u64)
}

fn counter(record: &RunRecord, name: &str) -> Option<Measured> {
    Measured::over([record], record.counter(name)?)
}

fn run_seconds(record: &RunRecord) -> f64 {
    record.workload.float("seconds").unwrap_or(0.0)
}

fn cpu(record: &RunRecord) -> Option<u32> {
    record.lanes.first()?.requested_cpu
}

fn dead_and_cpu(record: &RunRecord) -> String {
    let of = |name: &str, factor: f64| {
        record.counter(name).map_or("-".to_owned(), |value| significant(value * factor, 3))
    };
    format!("BUSY {} %, reader {} % of a core", of("dead-time", 100.0), of("reader-cpu-ppm", 1e-4))
}

fn shares(record: &RunRecord) -> Option<(usize, usize)> {
    let count = usize::try_from(record.workload.int("receivers").ok()?).ok()?;
    let turns: Vec<&str> = record.workload.text("peer_cpu").ok()?.split(',').collect();
    let of = |cpu: &&str| (0..count).filter(|at| turns[at % turns.len()] == *cpu).count();
    Some((turns.iter().map(of).max()?, turns.iter().map(of).min()?))
}

fn pair<'a>(
    chains: &[&'a RunRecord],
    is_one: impl Fn(&RunRecord) -> bool,
    is_other: impl Fn(&RunRecord, &RunRecord) -> bool,
) -> Option<(&'a RunRecord, &'a RunRecord)> {
    chains.iter().filter(|one| is_one(one)).find_map(|one| {
        let other = chains.iter().find(|other| is_other(one, other))?;
        Some((*one, *other))
    })
}
