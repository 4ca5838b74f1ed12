//! Read-out and conversion, one after the other or fused block by block.

use std::collections::BTreeMap;

use daqmeter_record::units::{plural, show_bytes, significant};
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{Rate, mean_interval};

use super::all;
use crate::family::PlainAnswer;
use crate::figures::{Axis, Curve, Figure, Plot};
use crate::parameters::{distinguished, grouped};
use crate::rate::{ratio, spoken_number};
use crate::samples::{mean_ns, times_ns};

const FUSION: Plot = Plot {
    id: "fusion",
    title: "Read-out and conversion, fused",
    caption: "Read-out and conversion by one thread, over all the time. In blocks that stay in a near cache the converter finds its \
              samples there; which block is best depends on the caches. Blocks of the driver's 4 MiB gain nothing.",
    x: Axis::log_bytes("block"),
    y: Axis::linear("MB/s raw, read out and converted"),
};

struct Fusion<'a> {
    records: Vec<&'a RunRecord>,
    fused: BTreeMap<u64, Rate>,
    separate: Option<Rate>,
}

/// Returns the bytes of the blocks of a fused record; 0 without fusion.
fn block_bytes(record: &RunRecord) -> u64 {
    record.workload.int("block_bytes").unwrap_or(0)
}

/// Returns bytes of one board over the time of all its stages. Their intervals are added, because a
/// disturbance affects all stages.
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

fn fusions<'a>(records: &'a [RunRecord]) -> Vec<Fusion<'a>> {
    // Most records have no fusion, and keys are long.
    if !all(records).any(|record| block_bytes(record) > 0) {
        return Vec::new();
    }
    let mut groups = grouped(all(records), |asked| asked.key_without(&["block_bytes"]));
    groups.retain(|group| group.iter().any(|record| block_bytes(record) != block_bytes(group[0])));
    let fusion = |records: Vec<&'a RunRecord>| {
        let (mut fused, mut separate) = (BTreeMap::new(), None);
        for record in &records {
            match (bytes_per_s(record), block_bytes(record)) {
                (None, _) => {}
                (rate, 0) => separate = rate,
                (Some(rate), block) => drop(fused.insert(block, rate)),
            }
        }
        Fusion { records, fused, separate }
    };
    groups.into_iter().map(fusion).collect()
}

pub(super) fn records(records: &[RunRecord]) -> Vec<&RunRecord> {
    let fused = all(records).filter(|record| block_bytes(record) > 0);
    fused.chain(fusions(records).into_iter().flat_map(|fusion| fusion.records)).collect()
}

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let found = fusions(records);
    let firsts: Vec<&RunRecord> = found.iter().map(|fusion| fusion.records[0]).collect();
    let names = vec!["fused".to_owned(); firsts.len()];
    let names = distinguished(&firsts, &names, &["block_bytes"]);
    let mut curves = Vec::new();
    for (fusion, name) in found.iter().zip(&names) {
        let points = |rate: fn(Rate, Rate) -> Rate, separate: Rate| {
            let mb =
                |(block, own): (&u64, &Rate)| (*block as f64, rate(*own, separate).per_s / 1e6);
            fusion.fused.iter().map(mb).collect()
        };
        curves.push(Curve::new(name.as_str(), points(|own, _| own, Rate::default())));
        if let Some(separate) = fusion.separate {
            let label = name.replacen("fused", "one after the other", 1);
            curves.push(Curve::new(label, points(|_, separate| separate, separate)).into_limit());
        }
    }
    FUSION.curves(curves, found.iter().flat_map(|fusion| fusion.records.iter().copied()))
}

pub(super) fn answer(records: &[RunRecord]) -> Option<PlainAnswer> {
    let gain = |fusion: &Fusion<'_>| {
        let (block, rate) = fusion.fused.iter().max_by(|a, b| a.1.per_s.total_cmp(&b.1.per_s))?;
        Some((*block, ratio(*rate, fusion.separate?)))
    };
    let (block, gain) = fusions(records).iter().find_map(gain)?;
    Some(PlainAnswer {
        question: "What does fusing read-out and conversion gain?",
        answer: format!("{} times, in blocks of {}", spoken_number(gain, 3), show_bytes(block)),
        figure: Some("fusion"),
    })
}

/// Estimates the number of boards that this host could read and convert, by CPU alone: the time of
/// copy and cast of one board's data.
pub(super) fn boards(records: &[RunRecord]) -> Option<PlainAnswer> {
    const RATE_HZ: f64 = 14.0;
    const BYTES: f64 = 6e6;
    let fusions = fusions(records);
    let rates = fusions.iter().flat_map(|fusion| fusion.fused.values().chain(&fusion.separate));
    let ways = rates.clone().count();
    let best = rates.max_by(|a, b| a.per_s.total_cmp(&b.per_s))?;
    let percent = |rate: f64| BYTES * RATE_HZ * 100.0 / rate;
    let cost = Rate {
        per_s: percent(best.per_s),
        interval: best.interval.map(|(low, high)| (percent(high), percent(low))),
    };
    let cpus = records.first()?.host.allowed_cpus.len() as f64;
    let boards = |bytes: f64, rate_hz: f64| {
        let boards = cpus * best.per_s / (bytes * rate_hz);
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
    let question = "How many digitizers can this host serve?";
    Some(PlainAnswer { question, answer, figure: Some("fusion") })
}
