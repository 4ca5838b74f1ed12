//! Read-out and conversion, one after the other or fused block by block.

use std::collections::{BTreeMap, HashSet};

use daqmeter_record::units::{plural, show_bytes, significant};
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{Rate, mean_interval};

use super::records::all;
use crate::family::{Answer, Measured};
use crate::figures::{Axis, Curve, Figure, Texts, lines};
use crate::parameters::{Group, distinguished, grouped};
use crate::rate::{ratio, spoken_number};
use crate::samples::{mean_ns, times_ns};

/// Runs that differ in the block in which they are fused, and in nothing else.
struct Comparison<'a> {
    records: Vec<&'a RunRecord>,
    /// Block and rate, in the order of blocks; the newest run of each.
    fused: BTreeMap<u64, Rate>,
    /// Rate of one after the other.
    separate: Option<Rate>,
}

/// Bytes of the blocks in which a record is fused; 0 where it is not.
pub(super) fn block_bytes(record: &RunRecord) -> u64 {
    record.workload.int("block_bytes").unwrap_or(0)
}

/// Groups of records that differ in the block alone, with at least one that is fused.
fn groups(records: &[RunRecord]) -> Vec<Vec<&RunRecord>> {
    // Most records are of no fusion, and keys are long.
    if !all(records).any(|record| block_bytes(record) > 0) {
        return Vec::new();
    }
    let blocks = |group: &Group<'_>| -> Vec<u64> {
        let asked = group.asked.iter();
        asked.map(|record| block_bytes(record)).collect()
    };
    let is_comparison = |group: &Group<'_>| {
        let blocks = blocks(group);
        blocks.iter().any(|block| *block > 0) && blocks.iter().any(|block| *block != blocks[0])
    };
    let groups = grouped(all(records), |asked| asked.key_without(&["block_bytes"]));
    let compared = groups.into_iter().filter(is_comparison);
    compared.map(|group| group.records).collect()
}

/// The records that are compared here.
pub(super) fn records(records: &[RunRecord]) -> HashSet<*const RunRecord> {
    let compared = groups(records).into_iter().flatten();
    compared.map(std::ptr::from_ref).collect()
}

/// Bytes of one board over the time of all its stages. Their intervals add up: what disturbs one disturbs the others.
fn bytes_per_s(record: &RunRecord) -> Option<Rate> {
    let moving = |stage: &&Stage| stage.bytes_per_op > 0;
    let stages: Vec<&Stage> = record.lanes[0].stages.iter().filter(moving).collect();
    let ns: Option<f64> = stages.iter().map(|stage| mean_ns(stage)).sum();
    let ns = ns.filter(|&ns| ns > 0.0)?;
    let bytes = stages.first()?.bytes_per_op as f64;
    let intervals: Option<Vec<(f64, f64)>> =
        stages.iter().map(|stage| mean_interval(&times_ns(stage))).collect();
    let interval = intervals
        .map(|all| all.iter().fold((0.0, 0.0), |sum, ends| (sum.0 + ends.0, sum.1 + ends.1)));
    let per_s = |ns: f64| bytes / ns * 1e9;
    Some(Rate { per_s: per_s(ns), interval: interval.map(|(low, high)| (per_s(high), per_s(low))) })
}

impl<'a> Comparison<'a> {
    fn of(records: Vec<&'a RunRecord>) -> Comparison<'a> {
        let (mut fused, mut separate) = (BTreeMap::new(), None);
        for record in &records {
            match (bytes_per_s(record), block_bytes(record)) {
                (None, _) => {}
                (rate, 0) => separate = rate,
                (Some(rate), block) => drop(fused.insert(block, rate)),
            }
        }
        Comparison { records, fused, separate }
    }
}

fn comparisons(records: &[RunRecord]) -> Vec<Comparison<'_>> {
    groups(records).into_iter().map(Comparison::of).collect()
}

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let found = comparisons(records);
    let firsts: Vec<&RunRecord> = found.iter().map(|group| group.records[0]).collect();
    let names = vec!["fused".to_owned(); firsts.len()];
    let names = distinguished(&firsts, &names, &["block_bytes"]);
    let mut curves = Vec::new();
    for (group, name) in found.iter().zip(&names) {
        let mb = |(block, rate): (&u64, &Rate)| (*block as f64, rate.per_s / 1e6);
        let fused = group.fused.iter().map(mb).collect();
        curves.push(Curve::new(name.as_str(), fused));
        if let Some(rate) = group.separate {
            let level = group.fused.keys().map(|block| (*block as f64, rate.per_s / 1e6));
            let label = name.replacen("fused", "one after the other", 1);
            curves.push(Curve::new(label, level.collect()).into_limit());
        }
    }
    let texts = Texts {
        id: "fusion",
        title: "Read-out and conversion, fused",
        caption: "Read-out and conversion by one thread, over all the time. In blocks that stay in a near cache the converter finds its \
                  samples there; which block is best depends on the caches. Blocks of the driver's 4 MiB gain nothing.",
    };
    let y = Axis::linear("MB/s raw, read out and converted");
    let drawn = found.iter().flat_map(|group| group.records.iter().copied());
    let figure = lines(texts, Axis::log_bytes("block"), y, curves);
    (!figure.xs.is_empty()).then(|| figure.drawn_from(drawn))
}

pub(super) fn answer(measured: &Measured<'_>) -> Option<Answer> {
    let gain = |group: &Comparison<'_>| {
        let (block, rate) = group.fused.iter().max_by(|a, b| a.1.per_s.total_cmp(&b.1.per_s))?;
        Some((*block, ratio(*rate, group.separate?)))
    };
    let (block, gain) = comparisons(measured.usable).iter().find_map(gain)?;
    Some(Answer {
        question: "What does fusing read-out and conversion gain?",
        answer: format!("{} times, in blocks of {}", spoken_number(gain, 3), show_bytes(block)),
        figure: Some("fusion"),
    })
}

/// How many boards this host could read and convert, by CPU alone: the time that copy and cast of one board's data take.
pub(super) fn boards(measured: &Measured<'_>) -> Option<Answer> {
    const RATE_HZ: f64 = 14.0;
    const BYTES: f64 = 6e6;
    let groups = comparisons(measured.usable);
    let rates = groups.iter().flat_map(|group| {
        let fused = group.fused.values().copied();
        fused.chain(group.separate)
    });
    let ways = rates.clone().count();
    let best = rates.max_by(|a, b| a.per_s.total_cmp(&b.per_s))?;
    let seconds_per_byte = 1.0 / best.per_s;
    let percent = |rate: f64| BYTES * RATE_HZ * 100.0 / rate;
    let cost = Rate {
        per_s: percent(best.per_s),
        interval: best.interval.map(|(low, high)| (percent(high), percent(low))),
    };
    let cpus = measured.usable.first()?.host.allowed_cpus.len() as f64;
    let boards = |bytes: f64, rate_hz: f64| {
        let boards = cpus / (seconds_per_byte * bytes * rate_hz);
        if boards >= 1.0 { significant(boards.floor(), 3) } else { "none".to_owned() }
    };
    let of = |bytes: f64| [RATE_HZ, 100.0, 1000.0].map(|rate_hz| boards(bytes, rate_hz));
    let ([at_14, at_100, at_1000], [small_14, small_100, small_1000]) =
        (of(BYTES), of(BYTES / 10.0));
    let answer = format!(
        "copy and cast of 6 MB at {RATE_HZ} Hz take {} % of a core per board (the fastest of {}); by CPU the {cpus} CPUs would do for {at_14} boards of 6 MB at \
         14 Hz, {at_100} at 100 Hz, {at_1000} at 1 kHz; of 0.6 MB for {small_14}, {small_100} and {small_1000}; uplinks are full long before \
         (from memory rates; no PCIe was measured)",
        spoken_number(cost, 3),
        plural(ways as u64, "way"),
    );
    Some(Answer {
        question: "How many digitizers can this host serve?",
        answer,
        figure: Some("fusion"),
    })
}
