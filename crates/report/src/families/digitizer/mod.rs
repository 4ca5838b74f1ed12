//! Digitizers: boards read in parallel, read-out fused with conversion, polling or interrupts,
//! every sample, the original's table.

pub mod classic;

use std::collections::BTreeSet;

use daqmeter_record::ledger::TRIGGERS;
use daqmeter_record::units::{joined, percent, plural, show_bytes, significant};
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::Rate;

use super::functions;
use super::sweeps::by_parameter;
use crate::family::{Brief, Family, WORTH_A_CHANGE, Work, of_engine, prefixed};
use crate::figures::{Mark, Plot};
use crate::groups::in_groups;
use crate::parameters::{grouped, pairs};
use crate::rate::{self, ratio, spoken_number};
use crate::samples::{mean_ns, samples};

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Threads)],
    plots: &[
        Plot { id: "readout", marks: readout },
        Plot { id: "fusion", marks: |records| by_parameter(records, ENGINE, "block_bytes") },
        Plot { id: "trace", marks: trace },
    ],
    questions: &[
        ("How fast is read-out?", Some("readout"), |records| rate_of_all(most_boards(records)?)),
        ("What does fusing read-out and conversion gain?", Some("fusion"), fusion_answer),
        ("Polling or interrupt?", None, completion_answer),
    ],
    briefs: &[interrupt, fuse],
    footnote: counted,
    headline,
};

pub(crate) const ENGINE: &str = "digitizer";

/// Tests for reads that wait for triggers, which then set the rate.
fn is_triggered(record: &RunRecord) -> bool {
    let rate_hz = record.workload.float("trigger_rate_hz").unwrap_or(0.0);
    rate_hz > 0.0 || record.workload.int("passes").unwrap_or(0) > 0
}

fn counted(record: &RunRecord) -> Option<String> {
    let names = ["register-reads", "interrupts", "lost-interrupts"];
    let counts = names.iter().filter_map(|name| Some(format!("{name} {}", record.counter(name)?)));
    Some(format!("counted: {}", joined(counts, ", ")?))
}

fn read_outs(record: &RunRecord) -> impl Iterator<Item = (&str, &Stage)> {
    record.lanes.iter().filter_map(|lane| {
        let stage = lane.stages.iter().find(|stage| stage.name == "func_readout")?;
        Some((lane.device.as_str(), stage))
    })
}

/// Returns the run with the most boards, without triggered runs, whose rate is that of the
/// triggers, and without runs whose time includes a conversion.
fn most_boards(records: &[RunRecord]) -> Option<&RunRecord> {
    let fusions = fusions(records);
    let is_fusion = |record: &RunRecord| {
        let mut all = fusions.iter().flatten();
        block_bytes(record) > 0 || all.any(|own| std::ptr::eq(*own, record))
    };
    let is_plain = |record: &&RunRecord| {
        !is_triggered(record) && !is_fusion(record) && read_outs(record).next().is_some()
    };
    of_engine(records, ENGINE).filter(is_plain).max_by_key(|record| record.lanes.len())
}

fn readout(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let runs = most_boards(records).into_iter();
    let boards = runs.flat_map(|record| read_outs(record).map(move |board| (record, board)));
    let marks = boards.flat_map(|(record, (device, stage))| {
        let mark = Mark::bar(record, "together", device, stage.rate_bytes_per_s() / 1e6);
        mark.with_limit(stage, "alone")
    });
    marks.collect()
}

fn boards(record: &RunRecord) -> String {
    let emulated = record.lanes.iter().filter(|lane| lane.is_emulated(record)).count();
    match (record.lanes.len(), emulated) {
        (count, 0) => plural(count as u64, "board"),
        (count, all) if all >= count => plural(count as u64, "emulated board"),
        (count, some) => format!("{count} boards ({some} emulated)"),
    }
}

/// Returns the rate of all boards, and the sum of their limits in bytes per second.
fn together(record: &RunRecord) -> Option<(Rate, f64)> {
    let stages: Vec<&Stage> = read_outs(record).map(|(_, stage)| stage).collect();
    let alone = stages.iter().filter_map(|stage| rate::limit_of(record, stage));
    Some((rate::together(&stages)?, alone.map(|limit| limit.rate_bytes_per_s).sum()))
}

/// Writes the rate of all boards, and its share of the rates of each board alone.
fn rate_of_all(record: &RunRecord) -> Option<String> {
    let (total, alone) = together(record)?;
    let (all, limit) = match record.lanes.len() {
        1 => ("", "its limit"),
        _ => (" together", "the rates of each alone"),
    };
    let of = match alone > 0.0 {
        true => format!(", {} of {limit}", significant(total.per_s / alone, 2)),
        false => String::new(),
    };
    Some(format!("{}{all}: {}{of}", boards(record), prefixed(total.per_s, "B/s")))
}

/// Answers with the triggers that were taken, or else with the rate of all boards.
fn headline(records: &[RunRecord]) -> Option<String> {
    let record = of_engine(records, ENGINE).last()?;
    let boards = boards(record);
    if is_triggered(record) {
        let own = record.ledgers.iter().filter(|own| TRIGGERS.contains(&own.unit.as_str()));
        let counts =
            own.fold([0, 0], |[taken, issued], own| [taken + own.delivered, issued + own.issued]);
        let rate_hz = record.workload.float("trigger_rate_hz").ok().filter(|hz| *hz > 0.0);
        let at = rate_hz.map_or(String::new(), |hz| format!(" at {} Hz", significant(hz, 4)));
        return Some(match counts {
            [_, 0] => format!("{boards}{at}: the number of triggers is not known"),
            [taken, issued] => format!("{boards}: {taken} of {issued} triggers taken{at}"),
        });
    }
    let of_all = of_engine(records, ENGINE).filter_map(together);
    let mut rates: Vec<f64> = of_all.map(|(rate, _)| rate.per_s).collect();
    rates.sort_by(f64::total_cmp);
    if let [slowest, .., fastest] = rates[..] {
        let [slowest, fastest] = [slowest, fastest].map(|per_s| prefixed(per_s, "B/s"));
        return Some(format!("{} runs: read-out at {slowest} to {fastest}", rates.len()));
    }
    joined(rate_of_all(record).into_iter().chain(conversions(record)), "; ")
}

/// Writes the rate of the conversion by all boards together, or of the slowest and the fastest.
fn conversions(record: &RunRecord) -> Option<String> {
    let stages = record.lanes.iter().flat_map(|lane| &lane.stages);
    let own = stages.filter(|stage| stage.bytes_per_op > 0 && stage.name != "func_readout");
    let own = in_groups(own.map(|stage| (stage.name.as_str(), stage)));
    let rates = own.into_iter();
    let rates = rates.filter_map(|(name, stages)| Some((rate::together(&stages)?.per_s, name)));
    let mut rates: Vec<(f64, &str)> = rates.collect();
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let said = |(per_s, name): &(f64, &str)| {
        format!("{} at {}", functions::short(name), prefixed(*per_s, "B/s"))
    };
    let (slowest, fastest) = (said(rates.first()?), said(rates.last()?));
    Some(if rates.len() == 1 { fastest } else { format!("{slowest} to {fastest}") })
}

/// Returns the bytes of the blocks of a fused record; 0 without fusion.
fn block_bytes(record: &RunRecord) -> u64 {
    record.workload.int("block_bytes").unwrap_or(0)
}

/// Returns bytes of one board over the time of all its stages.
fn fused_rate(record: &RunRecord) -> Option<Rate> {
    let stages = record.lanes[0].stages.iter().filter(|stage| stage.bytes_per_op > 0);
    let ns: Option<f64> = stages.clone().map(mean_ns).sum();
    // The widest interval of the stages, by ratio.
    let width = |rate: &Rate| rate.interval.map_or(0.0, |(low, high)| (high - low) / rate.per_s);
    let rates = stages.clone().filter_map(Stage::rate);
    let widest = rates.max_by(|a, b| width(a).total_cmp(&width(b)));
    let per_s = stages.clone().next()?.bytes_per_op as f64 / ns.filter(|&ns| ns > 0.0)? * 1e9;
    let interval = widest.and_then(|rate| rate.times(per_s / rate.per_s).interval);
    Some(Rate { per_s, interval })
}

/// Returns records that differ only in their blocks, by request.
fn fusions(records: &[RunRecord]) -> Vec<Vec<&RunRecord>> {
    // Most records have no fusion, and keys are long.
    if of_engine(records, ENGINE).all(|record| block_bytes(record) == 0) {
        return Vec::new();
    }
    let mut groups =
        grouped(of_engine(records, ENGINE), |asked| asked.key_without(&["block_bytes"]));
    groups.retain(|group| group.iter().any(|record| block_bytes(record) != block_bytes(group[0])));
    groups
}

/// Returns the block with the highest rate, and its gain over reading all first.
fn best_fusion(records: &[RunRecord]) -> Option<(u64, Rate)> {
    let gain = |group: Vec<&RunRecord>| {
        let separate = group.iter().rev().find(|record| block_bytes(record) == 0)?;
        let fused = group.iter().filter(|record| block_bytes(record) > 0);
        let fused = fused.filter_map(|record| Some((block_bytes(record), fused_rate(record)?)));
        let (block, rate) = fused.max_by(|a, b| a.1.per_s.total_cmp(&b.1.per_s))?;
        Some((block, ratio(rate, fused_rate(separate)?)))
    };
    fusions(records).into_iter().find_map(gain)
}

fn fusion_answer(records: &[RunRecord]) -> Option<String> {
    let (block, gain) = best_fusion(records)?;
    Some(format!(
        "In blocks of {}, read-out and conversion together run at {} times the rate of separate ones.",
        show_bytes(block),
        spoken_number(gain, 3)
    ))
}

fn fuse(records: &[RunRecord]) -> Option<Brief> {
    let (block, gain) = best_fusion(records)?;
    let pays = gain.interval.is_some_and(|(low, _)| low > WORTH_A_CHANGE);
    pays.then(|| Brief::Change {
        what: format!("convert while reading, in blocks of {}", show_bytes(block)),
        gain: format!("{}x", significant(gain.per_s, 3)),
    })
}

/// Returns the boards of the pair of runs with the fewest boards that differ in waiting alone, and
/// the share of a core that polling and the interrupt took.
fn completion(records: &[RunRecord]) -> Option<(usize, [f64; 2])> {
    let by =
        |way: &'static str| move |record: &RunRecord| record.workload.text("completion") == Ok(way);
    let waiting = ["completion", "poll_interval_us"];
    let pairs = pairs(of_engine(records, ENGINE), &waiting, [&by("poll"), &by("interrupt")]);
    let pair = pairs.into_iter().min_by_key(|pair| pair[0].lanes.len())?;
    let share =
        |record: &RunRecord| record.process_cpu.total_ns() as f64 / record.wall_ns.max(1) as f64;
    Some((pair[0].lanes.len(), pair.map(share)))
}

fn completion_answer(records: &[RunRecord]) -> Option<String> {
    let (boards, shares) = completion(records)?;
    let boards = plural(boards as u64, "board");
    let [polling, interrupt] = shares.map(|share| percent(share, 3));
    Some(format!(
        "With {boards}, polling took {polling} % of a CPU core and the interrupt {interrupt} %, in one run each."
    ))
}

fn interrupt(records: &[RunRecord]) -> Option<Brief> {
    let (_, [polling, interrupt]) = completion(records)?;
    (polling > interrupt * WORTH_A_CHANGE).then(|| Brief::Change {
        what: "wait for triggers by interrupt".to_owned(),
        gain: format!("{} % of a core -> {} %", percent(polling, 2), percent(interrupt, 2)),
    })
}

/// Points per curve that a browser draws at once; longer runs are thinned to the extremes of equal
/// parts.
const MAX_POINTS: usize = 2000;

fn trace(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let longest =
        of_engine(records, ENGINE).max_by_key(|record| (record.lanes.len(), samples(record)));
    let Some(record) = longest else { return Vec::new() };
    let mut marks = Vec::new();
    for lane in &record.lanes {
        let is_drawn = |stage: &&Stage| stage.bytes_per_op > 0 && stage.sample_ns.len() > 1;
        for stage in lane.stages.iter().filter(is_drawn) {
            let label = format!("{} {}", lane.device, functions::short(&stage.name));
            let points = thinned(stage).into_iter();
            marks.extend(points.map(|(at, ms)| Mark::at(record, label.as_str(), at, ms)));
        }
    }
    marks
}

fn thinned(stage: &Stage) -> Vec<(f64, f64)> {
    let part = stage.sample_ns.len().div_ceil(MAX_POINTS / 2).max(1);
    let samples: Vec<(usize, u64)> = stage.sample_ns.iter().copied().enumerate().collect();
    let extremes = samples.chunks(part).flat_map(|samples| {
        let by_time = |sample: &&(usize, u64)| sample.1;
        let pair = [samples.iter().min_by_key(by_time), samples.iter().max_by_key(by_time)];
        pair.into_iter().flatten().copied().collect::<BTreeSet<_>>()
    });
    let ms = |ns: u64| ns as f64 / stage.ops_per_sample.max(1) as f64 * 1e-6;
    extremes.map(|(at, ns)| (at as f64, ms(ns))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_extremes() {
        let mut sample_ns = vec![1_000_000; 50_000];
        sample_ns[31_234] = 9_000_000;
        let stage = Stage { sample_ns, ops_per_sample: 1, ..Stage::default() };
        let points = thinned(&stage);
        assert!(points.len() <= MAX_POINTS + 2);
        assert!(points.contains(&(31_234.0, 9.0)));
    }
}
