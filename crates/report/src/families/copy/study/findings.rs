//! Findings of the study on copies, on programs beside copying neighbours, and on traces.

use std::collections::BTreeMap;

use daqmeter_record::study::{Grade, Measured};
use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_record::{RunRecord, together};
use daqmeter_stats::{Summary, mean_interval};
use serde::Deserialize;

use super::super::pollution::{PollutionRow, pollution_rows};
pub use super::super::rows::samples as operations_ns;
use super::super::rows::{self, CopyRow, copied};
use crate::copy::MIB;
use crate::family::of_engine;
use crate::rate;

/// Answer of records to a statement or a question.
pub struct Judgement {
    /// `None` for a question.
    pub grade: Option<Grade>,
    pub source: Measured,
    pub evidence: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyFinding {
    /// Compares times without cache with those with it.
    Cold,
    /// Compares mean and spread of the engine with the CPU's.
    Predictable,
    /// Size from which on an engine pays, in this direction.
    Crossover(String),
    /// Compares shared channels with exclusive ones.
    Shared,
    /// Compares the channel with the quantum with the others.
    Priority,
    /// Compares the sum of the rates with the bytes that moved while every channel copied.
    Total,
    /// Misses of programs beside neighbours.
    Misses,
    /// Times of programs beside neighbours.
    Times,
    /// Sizes that are copied most often.
    Sizes,
}

const COSTS: f64 = 0.05;
/// Smallest share of the time in which all lanes copy: the sum of rates of different times means
/// nothing.
const AT_ONCE: f64 = 0.9;
/// Relative distance of the sum from the moved bytes, reached by lanes at half their rate in the
/// rest of the time.
const SUM_WITHIN: f64 = 0.05;
/// Ways that do not pass the kernel.
const NO_COPIES: [&str; 6] = ["memcpy", "rep-movsb", "avx2", "avx512", "avx2-nt", "avx512-nt"];

fn source<'a>(records: impl Iterator<Item = &'a RunRecord>) -> Result<Measured, String> {
    Measured::over(records, 0.0).ok_or_else(|| "not measured here".to_owned())
}

/// Size of a copy, and its times in two ways.
type Pair = (u64, Summary, Summary);

/// Points that were done, in the order of measurement.
struct Copies<'a> {
    records: &'a [RunRecord],
    rows: Vec<CopyRow<'a>>,
}

impl Copies<'_> {
    fn source(&self, contexts: &[&str]) -> Result<Measured, String> {
        let of_contexts = self.rows.iter().filter(|row| contexts.contains(&row.context));
        source(of_contexts.map(|row| row.record))
    }

    /// Returns times by size: through the kernel, by one CPU or channel, without other load.
    fn times(&self, context: &str, direction: &str, cold: bool) -> BTreeMap<u64, Summary> {
        let is_of = |row: &&CopyRow<'_>| {
            (row.context, row.direction, row.cold) == (context, direction, cold)
                && row.load != "heavy"
                && row.lanes_bytes_per_s.len() == 1
                && !NO_COPIES.contains(&row.path)
        };
        // Of several records of a size the first counts.
        self.rows.iter().rev().filter(is_of).map(|row| (row.block_bytes, row.times)).collect()
    }

    fn pairs(&self, one: [&str; 2], other: [&str; 2], cold: [bool; 2]) -> Vec<Pair> {
        let others = self.times(other[0], other[1], cold[1]);
        let ones = self.times(one[0], one[1], cold[0]).into_iter();
        ones.filter_map(|(bytes, one)| Some((bytes, one, *others.get(&bytes)?))).collect()
    }
}

impl CopyFinding {
    /// Judges by the records.
    ///
    /// # Errors
    /// Says what was not measured.
    pub fn judged(&self, records: &[RunRecord]) -> Result<Judgement, String> {
        let records = &*rate::done(records);
        let rows = of_engine(records, rows::ENGINE).filter_map(rows::row).collect();
        let copies = Copies { records, rows };
        match self {
            CopyFinding::Cold => cold(&copies),
            CopyFinding::Predictable => predictable(&copies),
            CopyFinding::Crossover(direction) => crossover(&copies, direction),
            CopyFinding::Shared => shared(&copies),
            CopyFinding::Priority => priority(&copies),
            CopyFinding::Total => total(&copies),
            CopyFinding::Misses => misses(&copies),
            CopyFinding::Times => times(&copies),
            CopyFinding::Sizes => sizes(&copies),
        }
    }
}

fn answered(source: Measured, evidence: String) -> Result<Judgement, String> {
    Ok(Judgement { grade: None, source, evidence })
}

fn judged(holds: bool, source: Measured, evidence: String) -> Result<Judgement, String> {
    let grade = Some(if holds { Grade::Confirmed } else { Grade::Refuted });
    Ok(Judgement { grade, source, evidence })
}

fn cold(copies: &Copies<'_>) -> Result<Judgement, String> {
    let pairs = copies.pairs(["cpu", "from"], ["cpu", "from"], [false, true]);
    let ratio = |(bytes, warm, cold): &Pair| {
        let times = significant(cold.median / warm.median, 3);
        (cold.median / warm.median, format!("{times} (at {})", show_bytes(*bytes)))
    };
    let mut ratios: Vec<(f64, String)> = pairs.iter().map(ratio).collect();
    ratios.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (Some((_, low)), Some((_, high))) = (ratios.first(), ratios.last()) else {
        return Err("no size was measured with and without cache".to_owned());
    };
    let evidence = format!("times without cache are {low} to {high} of those with");
    answered(copies.source(&["cpu"])?, evidence)
}

fn predictable(copies: &Copies<'_>) -> Result<Judgement, String> {
    let pairs = copies.pairs(["cpu", "from"], ["exclusive", "from"], [false, false]);
    if pairs.is_empty() {
        return Err("no size was measured by the CPU and by the engine".to_owned());
    }
    let deviation = |times: &Summary| times.variance.sqrt() / times.mean;
    let count = |holds: &dyn Fn(&Summary, &Summary) -> bool| {
        pairs.iter().filter(|(_, cpu, engine)| holds(cpu, engine)).count()
    };
    let evidence = format!(
        "of {} sizes the engine's mean is higher at {}, its deviation over the mean lower at {}",
        pairs.len(),
        count(&|cpu, engine| engine.mean > cpu.mean),
        count(&|cpu, engine| deviation(engine) < deviation(cpu))
    );
    answered(copies.source(&["cpu", "exclusive"])?, evidence)
}

/// Finds the smallest size from which on the CPU takes longer at every larger one.
fn crossover(copies: &Copies<'_>, direction: &str) -> Result<Judgement, String> {
    let pairs = copies.pairs(["cpu", direction], ["exclusive", direction], [false, false]);
    if pairs.len() < 2 {
        return Err("too few sizes were measured by the CPU and by the engine".to_owned());
    }
    let is_slower = |(_, cpu, engine): &&Pair| engine.median < cpu.median;
    let from = match pairs.iter().rev().take_while(is_slower).last() {
        Some((bytes, ..)) => format!("from {}", show_bytes(*bytes)),
        None => "at no size measured".to_owned(),
    };
    let evidence = format!("pays {from}, of {} sizes", pairs.len());
    answered(copies.source(&["cpu", "exclusive"])?, evidence)
}

fn shared(copies: &Copies<'_>) -> Result<Judgement, String> {
    let pairs = copies.pairs(["exclusive", "from"], ["shared", "from"], [false, false]);
    let ratio = |(_, one, other): &Pair| other.median / one.median;
    let ratios: Vec<f64> = pairs.iter().map(ratio).collect();
    let mean = geometric_mean(&ratios).ok_or("no size was measured under both")?;
    let cost = match mean_interval(&ratios) {
        None => "one size is too few for an interval".to_owned(),
        Some((low, high)) => {
            let verdict = if low > 1.0 - COSTS && high < 1.0 + COSTS {
                "the policies cost the same within 5 %"
            } else if low > 1.0 + COSTS || high < 1.0 - COSTS {
                "the policies differ by more than 5 %"
            } else {
                "the data cannot tell whether they are within 5 %"
            };
            let (low, high) = (significant(low, 3), significant(high, 3));
            format!("{verdict} (95 % interval {low} to {high})")
        }
    };
    let evidence = format!(
        "times, shared over exclusive: {} (geometric mean of {} sizes); {cost}",
        significant(mean, 3),
        ratios.len()
    );
    answered(copies.source(&["exclusive", "shared"])?, evidence)
}

fn priority(copies: &Copies<'_>) -> Result<Judgement, String> {
    let is_of = |row: &&CopyRow<'_>| row.context == "priority" && row.lanes_bytes_per_s.len() > 1;
    let row = copies.rows.iter().filter(is_of).max_by_key(|row| row.block_bytes);
    let row = row.ok_or("the policy was not measured with several channels")?;
    let (high, others) = row.lanes_bytes_per_s.split_first().expect("several channels");
    let low = others.iter().copied().fold(0.0, f64::max);
    let gate = copies.records.iter().rev().find_map(|record| record.gate_ns());
    let gate = gate.map(|(high, all)| (show_ns(high), show_ns(all)));
    let gate = gate.map(|(high, all)| format!("; the quantum was {high} of {all}"));
    let evidence = format!(
        "at {}: high {} MB/s, best of the others {} MB/s{}",
        show_bytes(row.block_bytes),
        significant(high / MIB, 4),
        significant(low / MIB, 4),
        gate.unwrap_or_default()
    );
    judged(*high > low, copies.source(&["priority"])?, evidence)
}

/// Compares the sum of the rates with the bytes that all channels moved while every one copied
/// ("nello stesso intorno temporale").
fn total(copies: &Copies<'_>) -> Result<Judgement, String> {
    let lanes = |row: &CopyRow<'_>| together(&copied(row.record).collect::<Vec<_>>());
    let several: Vec<_> = copies.rows.iter().filter_map(|row| Some((row, lanes(row)?))).collect();
    let longest = several.iter().map(|(_, lanes)| lanes.share).reduce(f64::max);
    let longest = longest.ok_or("several CPUs or channels were not measured")?;
    let at_once = several.iter().filter(|(_, lanes)| lanes.share >= AT_ONCE);
    let at_once: Vec<(&CopyRow<'_>, f64)> = at_once
        .map(|(row, lanes)| (*row, lanes.sum_bytes_per_s / lanes.moved_bytes_per_s))
        .collect();
    let far = |ratio: f64| ratio.ln().abs();
    let furthest = at_once.iter().max_by(|one, other| far(one.1).total_cmp(&far(other.1))).copied();
    let (row, ratio) = furthest.ok_or_else(|| {
        format!(
            "the channels copied at the same time for at most {} % of the time, {} % are needed: repeat on a quiet host",
            significant(longest * 100.0, 3),
            AT_ONCE * 100.0
        )
    })?;
    let CopyRow { context, block_bytes, .. } = row;
    let evidence = format!(
        "the sum of the rates is at the furthest {} of what all moved while every one copied ({context}, {}; {} of {} points); 0.95 to 1.05 count",
        significant(ratio, 3),
        show_bytes(*block_bytes),
        at_once.len(),
        several.len()
    );
    judged(far(ratio) < SUM_WITHIN, copies.source(&[context])?, evidence)
}

fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logarithms = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>();
    (!ratios.is_empty()).then(|| (logarithms / ratios.len() as f64).exp())
}

fn beside<'a, 'b>(
    rows: &'b [PollutionRow<'a>],
    neighbour: &str,
) -> impl Iterator<Item = &'b PollutionRow<'a>> {
    rows.iter().filter(move |row| row.neighbour == neighbour)
}

fn misses(copies: &Copies<'_>) -> Result<Judgement, String> {
    let rows = pollution_rows(copies.records);
    let missed = |neighbour: &str| {
        let misses = beside(&rows, neighbour).filter_map(|row| row.miss_percent);
        Some(Summary::of(&misses.collect::<Vec<f64>>())?.mean)
    };
    let [Some(ideal), Some(cpu), Some(dma)] = ["ideal", "cpu", "dma"].map(missed) else {
        return Err("no cache counters here: a cache model counts under QEMU (cargo xtask copy-vm --pollution)".to_owned());
    };
    let is_simulated = rows.iter().any(PollutionRow::simulated);
    let simulated = if is_simulated { ", SIMULATED by a cache model" } else { "" };
    let [ideal, cpu, dma] = [ideal, cpu, dma].map(|percent| significant(percent, 3));
    let evidence = format!(
        "mean misses: alone {ideal} %, beside the CPU's copies {cpu} %, beside the engine's {dma} %{simulated}"
    );
    answered(source(rows.iter().map(|row| row.record))?, evidence)
}

fn times(copies: &Copies<'_>) -> Result<Judgement, String> {
    let rows = pollution_rows(copies.records);
    let over_alone = |row: &PollutionRow<'_>| Some(row.p10_ns()? / row.alone(&rows)?.p10_ns()?);
    let against = |neighbour: &str| {
        let real = beside(&rows, neighbour).filter(|row| !row.simulated());
        geometric_mean(&real.filter_map(over_alone).collect::<Vec<f64>>())
    };
    let [Some(cpu), Some(spin), Some(null)] = ["cpu", "spin", "null-call"].map(against) else {
        return Err("programs beside all of them were not measured".to_owned());
    };
    let [cpu, spin, null] = [cpu, spin, null].map(|ratio| significant(ratio, 4));
    let evidence = format!(
        "10th percentiles over alone, geometric mean: copies {cpu}, spin {spin}, null call {null}"
    );
    answered(source(rows.iter().map(|row| row.record))?, evidence)
}

fn sizes(copies: &Copies<'_>) -> Result<Judgement, String> {
    let mut traces = copies.records.iter().rev().filter(|record| record.engine.name == "trace");
    let record = traces.next();
    let record = record.ok_or("no trace: the tracer (kmod/daqmeter_trace.ko) is not loaded")?;
    let mut calls: BTreeMap<u64, f64> = BTreeMap::new();
    for (_, bytes, count) in record.calls() {
        *calls.entry(bytes).or_default() += count;
    }
    let all: f64 = calls.values().sum();
    let mut top: Vec<(u64, f64)> = calls.into_iter().collect();
    top.sort_by(|one, other| other.1.total_cmp(&one.1));
    top.truncate(5);
    let names: Vec<String> = top.iter().map(|(bytes, _)| show_bytes(*bytes)).collect();
    let evidence = format!("most often of {all} calls: {}", names.join(", "));
    let is_there = top.iter().any(|(bytes, _)| *bytes == 16);
    judged(is_there, source([record].into_iter())?, evidence)
}
