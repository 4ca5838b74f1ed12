//! What the study of copies says, asked of this host's records: one verdict each, with the numbers it rests on.

use daqmeter_record::RunRecord;
use daqmeter_record::units::{show_bytes, show_ns, significant};
use serde::Serialize;

use crate::copy::{CopyRow, PollutionRow, copy_rows, pollution_rows};

/// How a claim fares here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As the study says.
    Holds,
    /// Otherwise.
    Differs,
    /// Seen on an emulated engine only, which says nothing about hardware.
    Emulated,
    /// What is needed for it is not here.
    Untold,
}

/// One claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// What the study says, with its section.
    pub claim: &'static str,
    /// How it fares.
    pub verdict: Verdict,
    /// The numbers, or what is missing.
    pub here: String,
}

/// A model of an engine from stated figures: a fixed time for each copy, and a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineModel {
    /// Name and source.
    pub source: &'static str,
    /// Time of a copy without bytes.
    pub fixed_ns: f64,
    /// Bytes per nanosecond (GB/s).
    pub bytes_per_ns: f64,
}

/// Intel DSA, memory move, one call at a time: through the two outer points of the mean times per call in the sample histogram
/// of DTO's README (8 to 12 KiB in 1.19 us, about 1 MB in 28.42 us; the machine is not named there): 36 GB/s and 0.91 us.
pub const DSA: EngineModel =
    EngineModel { source: "Intel DSA by the figures in DTO's README", fixed_ns: 908.0, bytes_per_ns: 36.3 };

impl EngineModel {
    /// Time of one copy.
    pub fn ns(&self, bytes: u64) -> f64 {
        self.fixed_ns + bytes as f64 / self.bytes_per_ns
    }
}

/// Smallest size from which on every larger one of the rows takes the CPU longer than the other: where an engine begins to pay.
fn pays_from(cpu: &[(u64, f64)], other: impl Fn(u64) -> Option<f64>) -> Option<u64> {
    let mut from = None;
    for (bytes, cpu_ns) in cpu {
        match other(*bytes) {
            Some(ns) if ns < *cpu_ns => {
                from.get_or_insert(*bytes);
            }
            Some(_) => from = None,
            None => {}
        }
    }
    from
}

fn of<'a>(rows: &'a [CopyRow], context: &'a str, direction: &'a str, cold: bool) -> impl Iterator<Item = &'a CopyRow> {
    rows.iter().filter(move |row| {
        row.context == context
            && row.direction == direction
            && row.cold == cold
            && row.load == "light"
            && row.lanes_bytes_per_s.len() == 1
            && !["memcpy", "rep-movsb", "avx2", "avx512", "avx2-nt", "avx512-nt"].contains(&row.path.as_str())
    })
}

fn times(rows: &[CopyRow], context: &str, direction: &str, cold: bool) -> Vec<(u64, f64)> {
    of(rows, context, direction, cold).map(|row| (row.block_bytes, row.median_ns)).collect()
}

/// From which size an engine would pay here: the CPU's measured times against a model of an engine. None without CPU times.
pub fn modelled_crossover(
    records: &[RunRecord],
    model: EngineModel,
    direction: &str,
    cold: bool,
) -> Option<Option<u64>> {
    let cpu = times(&copy_rows(records), "cpu", direction, cold);
    (cpu.len() > 1).then(|| pays_from(&cpu, |bytes| Some(model.ns(bytes))))
}

/// All claims.
pub fn claims(records: &[RunRecord]) -> Vec<Claim> {
    let (rows, pollution) = (copy_rows(records), pollution_rows(records));
    vec![
        flat(&rows),
        no_cache(&rows),
        predictable(&rows),
        crossover(&rows, "from"),
        crossover(&rows, "to"),
        shared(&rows),
        priority(&rows, records),
        sums(&rows),
        polluted(&pollution),
        controls(&pollution),
        traced(records),
    ]
}

fn untold(claim: &'static str, missing: &str) -> Claim {
    Claim { claim, verdict: Verdict::Untold, here: missing.to_owned() }
}

fn judged(claim: &'static str, holds: bool, here: String) -> Claim {
    Claim { claim, verdict: if holds { Verdict::Holds } else { Verdict::Differs }, here }
}

/// A verdict about an engine, unless the engine was emulated.
fn of_engine(claim: &'static str, holds: bool, here: String, rows: &[CopyRow], context: &str) -> Claim {
    if rows.iter().any(|row| row.context == context && row.emulated) {
        let here = format!("on an EMULATED engine, which says nothing about hardware: {here}");
        return Claim { claim, verdict: Verdict::Emulated, here };
    }
    judged(claim, holds, here)
}

fn flat(rows: &[CopyRow]) -> Claim {
    const CLAIM: &str =
        "small copies cost the call, not the bytes (2.1: the sample has 96 ns for 1 B, 108 ns for 64 B)";
    let cpu = times(rows, "cpu", "to", false);
    let at = |bytes: u64| cpu.iter().find(|(size, _)| *size == bytes).map(|(_, ns)| *ns);
    match (at(1), at(64)) {
        (Some(one), Some(line)) => {
            judged(CLAIM, line < one * 1.25, format!("1 B {}, 64 B {}", show_ns(one), show_ns(line)))
        }
        _ => untold(CLAIM, "sizes 1 and 64 were not measured"),
    }
}

fn no_cache(rows: &[CopyRow]) -> Claim {
    const CLAIM: &str = "without cache the CPU's copies take longer (2.1.1, figures 2.3 and 2.4)";
    let (warm, cold) = (times(rows, "cpu", "from", false), times(rows, "cpu", "from", true));
    let ratios: Vec<(u64, f64)> = cold
        .iter()
        .filter_map(|(bytes, ns)| Some((*bytes, ns / warm.iter().find(|(size, _)| size == bytes)?.1)))
        .collect();
    let (Some(least), Some(most)) =
        (ratios.iter().min_by(|a, b| a.1.total_cmp(&b.1)), ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1)))
    else {
        return untold(CLAIM, "no size was measured both ways");
    };
    let here = format!(
        "times without cache are {} (at {}) to {} (at {}) of those with",
        significant(least.1, 3),
        show_bytes(least.0),
        significant(most.1, 3),
        show_bytes(most.0)
    );
    judged(CLAIM, ratios.iter().filter(|(_, ratio)| *ratio > 1.0).count() * 5 >= ratios.len() * 4, here)
}

/// Standard deviation over mean.
fn spread(row: &CopyRow) -> f64 {
    row.variance.sqrt() / row.mean_ns
}

fn predictable(rows: &[CopyRow]) -> Claim {
    const CLAIM: &str = "the engine's mean is higher and its spread lower than the CPU's (1.1.1: predictability)";
    let pairs: Vec<(&CopyRow, &CopyRow)> = of(rows, "cpu", "from", false)
        .filter_map(|cpu| {
            Some((cpu, of(rows, "exclusive", "from", false).find(|row| row.block_bytes == cpu.block_bytes)?))
        })
        .collect();
    if pairs.is_empty() {
        return untold(CLAIM, "no size was measured by both");
    }
    let higher = pairs.iter().filter(|(cpu, engine)| engine.mean_ns > cpu.mean_ns).count();
    let steadier = pairs.iter().filter(|(cpu, engine)| spread(engine) < spread(cpu)).count();
    let here = format!(
        "of {} sizes the engine's mean is higher at {higher}, its deviation over the mean lower at {steadier}",
        pairs.len()
    );
    of_engine(CLAIM, higher * 2 > pairs.len() && steadier * 2 > pairs.len(), here, rows, "exclusive")
}

fn crossover(rows: &[CopyRow], direction: &'static str) -> Claim {
    let claim = match direction {
        "from" => "copy_from_user by an engine pays from some size on (2.1, figures 2.1 and 2.3)",
        _ => "copy_to_user by an engine pays from some size on (2.1, figures 2.2 and 2.4)",
    };
    let cpu = times(rows, "cpu", direction, false);
    let engine = times(rows, "exclusive", direction, false);
    if cpu.len() < 2 || engine.len() < 2 {
        return untold(claim, "too few sizes were measured by both");
    }
    let at = |bytes: u64| engine.iter().find(|(size, _)| *size == bytes).map(|(_, ns)| *ns);
    let show =
        |size: Option<u64>| size.map_or("at no size measured".to_owned(), |size| format!("from {}", show_bytes(size)));
    let (measured, modelled) = (pays_from(&cpu, at), pays_from(&cpu, |bytes| Some(DSA.ns(bytes))));
    let here = format!("pays {}; MODELLED, {}: {}", show(measured), DSA.source, show(modelled));
    of_engine(claim, measured.is_some(), here, rows, "exclusive")
}

fn shared(rows: &[CopyRow]) -> Claim {
    const CLAIM: &str = "for one copy at a time shared channels are as fast as exclusive ones (2.1)";
    let ratios: Vec<f64> = of(rows, "exclusive", "from", false)
        .filter_map(|one| {
            let other = of(rows, "shared", "from", false).find(|row| row.block_bytes == one.block_bytes)?;
            Some(other.median_ns / one.median_ns)
        })
        .collect();
    if ratios.is_empty() {
        return untold(CLAIM, "no size was measured under both");
    }
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let here = format!("shared over exclusive: {} (geometric mean of {} sizes)", significant(mean, 3), ratios.len());
    of_engine(CLAIM, (0.8..1.25).contains(&mean), here, rows, "shared")
}

fn priority(rows: &[CopyRow], records: &[RunRecord]) -> Claim {
    const CLAIM: &str = "under the priority policy the high channel gets more than each other (2.3: 30 us of 90 us)";
    let largest = rows
        .iter()
        .filter(|row| row.context == "priority" && row.lanes_bytes_per_s.len() > 1)
        .max_by_key(|row| row.block_bytes);
    let Some(row) = largest else { return untold(CLAIM, "the policy was not measured with several channels") };
    let (high, low) = (row.lanes_bytes_per_s[0], row.lanes_bytes_per_s[1..].iter().copied().fold(0.0, f64::max));
    let gate = records.iter().rev().find_map(|record| {
        let windows = record.counter("gate-windows").filter(|windows| *windows > 0.0)?;
        let (high, low) = (record.counter("gate-high")? / windows, record.counter("gate-low")? / windows);
        Some(format!("; the quantum was {} of {}", show_ns(high), show_ns(high + low)))
    });
    let mib = |rate: f64| significant(rate / 1_048_576.0, 4);
    let here = format!(
        "at {}: high {} MB/s, best of the others {} MB/s{}",
        show_bytes(row.block_bytes),
        mib(high),
        mib(low),
        gate.unwrap_or_default()
    );
    of_engine(CLAIM, high > low, here, rows, "priority")
}

/// The study's own sample rows (section 3.4.1), recomputed: 300 copies of 1 KiB in 108,743 ns, and a total that is a sum.
fn sums(rows: &[CopyRow]) -> Claim {
    const CLAIM: &str = "the total bandwidth is the sum of the channels' rates, in MB of 2^20 bytes (3.4.1)";
    let sample: f64 = 300.0 * 1024.0 / 108_743e-9 / 1_048_576.0;
    let gap = rows
        .iter()
        .filter(|row| row.lanes_bytes_per_s.len() > 1 && row.union_bytes_per_s > 0.0)
        .map(|row| row.total_bytes_per_s() / row.union_bytes_per_s)
        .fold(1.0, f64::max);
    let here = format!(
        "the sample row gives {sample:.6}, the study prints 2694.138933; here the sum exceeds bytes over the time of all by up to {}",
        significant(gap, 3)
    );
    judged(CLAIM, (sample - 2_694.138_933).abs() < 1e-6, here)
}

fn against(rows: &[PollutionRow], neighbour: &str) -> Vec<f64> {
    let alone = |row: &PollutionRow| {
        rows.iter().find(|ideal| ideal.test == row.test && ideal.copies == row.copies && ideal.neighbour == "ideal")
    };
    let of = rows.iter().filter(|row| row.neighbour == neighbour && !row.simulated);
    of.filter_map(|row| Some(row.p10_ns? / alone(row)?.p10_ns?)).collect()
}

fn mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64).exp()
}

fn polluted(rows: &[PollutionRow]) -> Claim {
    const CLAIM: &str = "copies by CPU raise a neighbour's cache misses, copies by an engine do not (2.5.1)";
    let missed = |neighbour: &str| {
        let misses: Vec<f64> =
            rows.iter().filter(|row| row.neighbour == neighbour).filter_map(PollutionRow::miss_percent).collect();
        (!misses.is_empty()).then(|| misses.iter().sum::<f64>() / misses.len() as f64)
    };
    match (missed("ideal"), missed("cpu"), missed("dma")) {
        (Some(ideal), Some(cpu), Some(dma)) => {
            let simulated = if rows.iter().any(|row| row.simulated) { ", SIMULATED by a cache model" } else { "" };
            let here = format!(
                "mean misses: alone {} %, beside the CPU's copies {} %, beside the engine's {} %{simulated}",
                significant(ideal, 3),
                significant(cpu, 3),
                significant(dma, 3)
            );
            judged(CLAIM, cpu > ideal && dma < cpu, here)
        }
        _ => untold(CLAIM, "no cache counters here: a cache model counts under QEMU (cargo xtask copy-vm --pollution)"),
    }
}

fn controls(rows: &[PollutionRow]) -> Claim {
    const CLAIM: &str = "execution time grows beside the CPU's copies more than beside idle neighbours (2.5.2; spin and null call are our controls)";
    let (cpu, spin, null) = (against(rows, "cpu"), against(rows, "spin"), against(rows, "null-call"));
    if cpu.is_empty() || spin.is_empty() || null.is_empty() {
        return untold(CLAIM, "programs beside all of them were not measured");
    }
    let (cpu, spin, null) = (mean(&cpu), mean(&spin), mean(&null));
    let here = format!(
        "10th percentiles over alone, geometric mean: copies {}, spin {}, null call {}",
        significant(cpu, 4),
        significant(spin, 4),
        significant(null, 4)
    );
    judged(CLAIM, cpu > spin.max(null) * 1.02, here)
}

fn traced(records: &[RunRecord]) -> Claim {
    const CLAIM: &str = "16 B are among the sizes copied most often (2.5: the pairs most frequent in the traces)";
    let Some(record) = records.iter().rev().find(|record| record.engine.name == "trace") else {
        return untold(CLAIM, "no trace: the tracer (kmod/daqmeter_trace.ko) is not loaded");
    };
    let mut sizes: Vec<(u64, f64)> = Vec::new();
    for operation in crate::copy::TRACED {
        for (bytes, calls) in crate::copy::traced_sizes(record, operation) {
            match sizes.iter_mut().find(|(size, _)| *size == bytes) {
                Some(known) => known.1 += calls,
                None => sizes.push((bytes, calls)),
            }
        }
    }
    sizes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let top: Vec<String> = sizes.iter().take(5).map(|(bytes, _)| show_bytes(*bytes)).collect();
    judged(CLAIM, sizes.iter().take(5).any(|(bytes, _)| *bytes == 16), format!("most often: {}", top.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::tests::example;

    #[test]
    fn an_engine_pays_from_where_it_stays_faster() {
        let cpu = [(1, 10.0), (64, 10.0), (4096, 100.0), (65_536, 1000.0)];
        let engine =
            |times: [f64; 4]| move |bytes: u64| cpu.iter().position(|(size, _)| *size == bytes).map(|at| times[at]);
        assert_eq!(pays_from(&cpu, engine([50.0, 50.0, 60.0, 500.0])), Some(4096));
        assert_eq!(pays_from(&cpu, engine([5.0, 50.0, 60.0, 500.0])), Some(4096));
        assert_eq!(pays_from(&cpu, engine([50.0, 50.0, 60.0, 5000.0])), None);
    }

    #[test]
    fn the_model_gives_the_figures_it_was_made_from() {
        assert!((DSA.ns(10 << 10) / 1190.0 - 1.0).abs() < 0.01);
        assert!((DSA.ns(1_000_000) / 28_420.0 - 1.0).abs() < 0.01);
        // Between them the same source has about 100 KB in 3.76 us.
        assert!((DSA.ns(100_000) / 3760.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn claims_are_told_only_from_what_was_measured() {
        let none = claims(&[]);
        assert_eq!(none.iter().filter(|claim| claim.verdict == Verdict::Untold).count(), none.len() - 1);
        let records = [
            example("cpu", "from", 64, &[100, 200]),
            example("cpu", "from", 1 << 20, &[90_000, 91_000]),
            example("exclusive", "from", 64, &[900, 901]),
            example("exclusive", "from", 1 << 20, &[40_000, 40_001]),
        ];
        let crossover = claims(&records).into_iter().find(|claim| claim.claim.starts_with("copy_from_user")).unwrap();
        assert_eq!(crossover.verdict, Verdict::Emulated);
        assert!(
            crossover.here.contains("EMULATED") && crossover.here.contains("pays from 1 MiB; MODELLED"),
            "{}",
            crossover.here
        );
        let real = records.map(|mut record| {
            record.engine.emulated = false;
            record
        });
        let crossover = claims(&real).into_iter().find(|claim| claim.claim.starts_with("copy_from_user")).unwrap();
        assert_eq!(crossover.verdict, Verdict::Holds);
    }
}
