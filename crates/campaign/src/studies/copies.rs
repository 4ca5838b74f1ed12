//! Findings on copies, on programs beside copying neighbours, and on traces.

use std::collections::BTreeMap;

use daqmeter_record::study::{Grade, Measured};
use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_record::{RunRecord, Stage, together};
use daqmeter_stats::{Summary, mean_interval, sorted, supported_quantile};
use serde::Deserialize;

/// Answer of records to a statement or a question.
pub(super) struct Judgement {
    /// `None` for a question.
    pub(super) grade: Option<Grade>,
    pub(super) source: Measured,
    pub(super) evidence: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CopyFinding {
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

const MIB: f64 = 1_048_576.0;
const COSTS: f64 = 0.05;
/// Smallest share of the time in which all lanes copy: the sum of rates of different times means
/// nothing.
const AT_ONCE: f64 = 0.9;
/// Relative distance of the sum from the moved bytes, reached by lanes at half their rate in the
/// rest of the time.
const SUM_WITHIN: f64 = 0.05;
/// Ways that do not pass the kernel.
const NO_COPIES: [&str; 6] = ["memcpy", "rep-movsb", "avx2", "avx512", "avx2-nt", "avx512-nt"];

fn first_stages(record: &RunRecord) -> impl Iterator<Item = &Stage> {
    record.lanes.iter().filter_map(|lane| lane.stages.first())
}

/// Returns the times of one operation of each lane's first stage.
pub(super) fn operations_ns(record: &RunRecord) -> Vec<f64> {
    let times = first_stages(record).flat_map(|stage| {
        let ops = stage.ops_per_sample.max(1) as f64;
        stage.sample_ns.iter().map(move |ns| *ns as f64 / ops)
    });
    times.collect()
}

fn source<'a>(records: impl Iterator<Item = &'a RunRecord>) -> Result<Measured, String> {
    Measured::over(records, 0.0).ok_or_else(|| "not measured here".to_owned())
}

/// Size of a copy, and its times in two ways.
type Pair = (u64, Summary, Summary);

struct Copies<'a>(Vec<&'a RunRecord>);

impl Copies<'_> {
    fn of_engine(&self, name: &str) -> impl DoubleEndedIterator<Item = &RunRecord> {
        self.0.iter().copied().filter(move |record| record.engine.name == name)
    }

    fn source(&self, contexts: &[&str]) -> Result<Measured, String> {
        let is_of = |record: &&RunRecord| {
            record.workload.text("context").is_ok_and(|context| contexts.contains(&context))
        };
        source(self.of_engine("copy").filter(is_of))
    }

    /// Returns times by size: through the kernel, by one CPU or channel, without other load.
    fn times(&self, context: &str, direction: &str, cold: bool) -> BTreeMap<u64, Summary> {
        let is_of = |record: &&RunRecord| {
            let workload = &record.workload;
            workload.text("context") == Ok(context)
                && workload.text("direction") == Ok(direction)
                && workload.flag("cold") == cold
                && workload.text("load") != Ok("heavy")
                && record.lanes.len() == 1
                && !workload.text("path").is_ok_and(|path| NO_COPIES.contains(&path))
        };
        let times = |record: &RunRecord| {
            let bytes = record.workload.int("block_bytes").ok()?;
            Some((bytes, Summary::of(&operations_ns(record))?))
        };
        let mut by_size = BTreeMap::new();
        for (bytes, times) in self.of_engine("copy").filter(is_of).filter_map(times) {
            by_size.entry(bytes).or_insert(times);
        }
        by_size
    }

    fn pairs(&self, one: [&str; 2], other: [&str; 2], cold: [bool; 2]) -> Vec<Pair> {
        let others = self.times(other[0], other[1], cold[1]);
        let ones = self.times(one[0], one[1], cold[0]).into_iter();
        ones.filter_map(|(bytes, one)| Some((bytes, one, *others.get(&bytes)?))).collect()
    }
}

impl CopyFinding {
    pub(super) fn judged(&self, records: &[RunRecord]) -> Result<Judgement, String> {
        let copies = Copies(records.iter().filter(|record| record.outcome.is_ok()).collect());
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
    let bytes = |record: &&RunRecord| record.workload.int("block_bytes").unwrap_or(0);
    let of_several = copies.of_engine("copy").filter(|record| {
        record.workload.text("context") == Ok("priority") && record.lanes.len() > 1
    });
    let record = of_several.max_by_key(bytes);
    let record = record.ok_or("the policy was not measured with several channels")?;
    let rates: Vec<f64> = first_stages(record).map(Stage::rate_bytes_per_s).collect();
    let high = rates.first().copied().unwrap_or(0.0);
    let low = rates.iter().skip(1).copied().fold(0.0, f64::max);
    let gate = copies.0.iter().rev().find_map(|record| record.gate_ns());
    let gate = gate.map(|(high, all)| (show_ns(high), show_ns(all)));
    let gate = gate.map(|(high, all)| format!("; the quantum was {high} of {all}"));
    let evidence = format!(
        "at {}: high {} MB/s, best of the others {} MB/s{}",
        show_bytes(bytes(&record)),
        significant(high / MIB, 4),
        significant(low / MIB, 4),
        gate.unwrap_or_default()
    );
    judged(high > low, copies.source(&["priority"])?, evidence)
}

/// Compares the sum of the rates with the bytes that all channels moved while every one copied
/// ("nello stesso intorno temporale").
fn total(copies: &Copies<'_>) -> Result<Judgement, String> {
    let several: Vec<_> = copies
        .of_engine("copy")
        .filter_map(|record| Some((record, together(&first_stages(record).collect::<Vec<_>>())?)))
        .collect();
    let longest = several.iter().map(|(_, lanes)| lanes.share).reduce(f64::max);
    let longest = longest.ok_or("several CPUs or channels were not measured")?;
    let at_once: Vec<(&RunRecord, f64)> = several
        .iter()
        .filter(|(_, lanes)| lanes.share >= AT_ONCE)
        .map(|(record, lanes)| (*record, lanes.sum_bytes_per_s / lanes.moved_bytes_per_s))
        .collect();
    let far = |ratio: f64| ratio.ln().abs();
    let furthest = at_once.iter().max_by(|one, other| far(one.1).total_cmp(&far(other.1))).copied();
    let (record, ratio) = furthest.ok_or_else(|| {
        format!(
            "the channels copied at the same time for at most {} % of the time, {} % are needed: repeat on a quiet host",
            significant(longest * 100.0, 3),
            AT_ONCE * 100.0
        )
    })?;
    let context = record.workload.text("context").unwrap_or("");
    let evidence = format!(
        "the sum of the rates is at the furthest {} of what all moved while every one copied ({context}, {}; {} of {} points); 0.95 to 1.05 count",
        significant(ratio, 3),
        show_bytes(record.workload.int("block_bytes").unwrap_or(0)),
        at_once.len(),
        several.len()
    );
    judged(far(ratio) < SUM_WITHIN, copies.source(&[context])?, evidence)
}

fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logarithms = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>();
    (!ratios.is_empty()).then(|| (logarithms / ratios.len() as f64).exp())
}

fn beside(record: &RunRecord, neighbour: &str) -> bool {
    record.workload.text("neighbour") == Ok(neighbour)
}

fn misses(copies: &Copies<'_>) -> Result<Judgement, String> {
    let missed = |neighbour: &str| {
        let programs = copies.of_engine("pollution").filter(|record| beside(record, neighbour));
        let misses: Vec<f64> = programs.filter_map(RunRecord::miss_percent).collect();
        (!misses.is_empty()).then(|| misses.iter().sum::<f64>() / misses.len() as f64)
    };
    let [Some(ideal), Some(cpu), Some(dma)] = ["ideal", "cpu", "dma"].map(missed) else {
        return Err("no cache counters here: a cache model counts under QEMU (cargo xtask copy-vm --pollution)".to_owned());
    };
    let is_simulated =
        copies.of_engine("pollution").any(|record| record.workload.flag("simulated"));
    let simulated = if is_simulated { ", SIMULATED by a cache model" } else { "" };
    let [ideal, cpu, dma] = [ideal, cpu, dma].map(|percent| significant(percent, 3));
    let evidence = format!(
        "mean misses: alone {ideal} %, beside the CPU's copies {cpu} %, beside the engine's {dma} %{simulated}"
    );
    answered(source(copies.of_engine("pollution"))?, evidence)
}

fn times(copies: &Copies<'_>) -> Result<Judgement, String> {
    let p10_ns = |record: &RunRecord| supported_quantile(&sorted(&operations_ns(record)), 0.1);
    let key = |record: &RunRecord| {
        ["test", "direction", "block_bytes"].map(|name| record.workload.params.get(name).cloned())
    };
    let over_alone = |record: &RunRecord| {
        let mut programs = copies.of_engine("pollution");
        let alone = programs.find(|one| beside(one, "ideal") && key(one) == key(record))?;
        Some(p10_ns(record)? / p10_ns(alone)?)
    };
    let against = |neighbour: &str| {
        let programs = copies.of_engine("pollution").filter(|record| beside(record, neighbour));
        let real = programs.filter(|record| !record.workload.flag("simulated"));
        geometric_mean(&real.filter_map(over_alone).collect::<Vec<f64>>())
    };
    let [Some(cpu), Some(spin), Some(null)] = ["cpu", "spin", "null-call"].map(against) else {
        return Err("programs beside all of them were not measured".to_owned());
    };
    let [cpu, spin, null] = [cpu, spin, null].map(|ratio| significant(ratio, 4));
    let evidence = format!(
        "10th percentiles over alone, geometric mean: copies {cpu}, spin {spin}, null call {null}"
    );
    answered(source(copies.of_engine("pollution"))?, evidence)
}

fn sizes(copies: &Copies<'_>) -> Result<Judgement, String> {
    let record = copies.of_engine("trace").next_back();
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
