//! Cache misses without counters: the pollution study under QEMU with the cache model of
//! `vm/qemu/cache.c`.
//! The resulting records are marked `simulated`, for `daqmeter report --format copy-figures` and
//! `reproduce copy --from`. Their times are those of an emulator.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use daqmeter_record::{Counter, RunRecord, jsonl};

use super::{LIMIT_S, PC, initrd};
use crate::boot::Boot;
use crate::debian::Kernel;
use crate::files::{folder, timed};
use crate::shell::{line, tried};

/// CPU of the engine, with copies past the modelled caches; the copying neighbour is on 0, the
/// program on 1.
const ENGINE_CPU: u32 = 2;

fn plugin_file() -> PathBuf {
    folder().join("cache.so")
}

pub(super) fn plugin() -> Result<()> {
    line("gcc-12 -O2 -Wall -Werror -shared -fPIC vm/qemu/cache.c -o").arg(plugin_file()).run()
}

/// Runs every program and pair of the study (`full`), or one program beside copies of a megabyte.
/// Shares of misses are statistical, so there are several tries.
pub(crate) fn pollution(full: bool) -> Result<()> {
    tried(|| judge(&timed("pollution under the cache model", || simulated(full))?))
}

fn simulated(full: bool) -> Result<Vec<RunRecord>> {
    let kernel = Kernel::fetch("6.1", "amd64")?;
    let segments = folder().join("segments.txt");
    let (plugin, out) = (plugin_file(), segments.display());
    let watched = format!("-plugin {},engine={ENGINE_CPU},out={out}", plugin.display());
    let boot = Boot {
        name: "cache",
        qemu: &format!("{PC} -smp 3 -accel tcg,thread=single {watched}"),
        kernel: &kernel.image,
        options: "",
        limit_s: if full { 3600 } else { LIMIT_S },
    };
    let printed = boot.run(initrd("cache", &kernel, &script(full))?)?;
    let records = merged(&printed, &fs::read_to_string(&segments)?)?;
    let place = folder().join("pollution.jsonl");
    fs::write(&place, records.iter().flat_map(jsonl::to_line).collect::<Vec<u8>>())?;
    println!("{} points in {}", records.len(), place.display());
    Ok(records)
}

fn script(full: bool) -> String {
    let what =
        if full { "--repeat 2" } else { "--repeat 4 --tests qsort_small --copies from:1MiB" };
    format!(
        "insmod /softdma.ko channels=1 cpu={ENGINE_CPU}\ninsmod /daqmeter_copy.ko region_mb=8\n\
         /daqmeter copy pollution {what} --path module --neighbours ideal,cpu,dma --pin 1,0 --simulated --records /tmp/records > /tmp/said 2>&1 \
         || echo GUEST failed \"$(tail -3 /tmp/said)\"\nsed 's/^/RECORD /' /tmp/records\n"
    )
}

#[allow(clippy::cast_possible_truncation, reason = "runs are counted in tens")]
/// Joins the plugin's segments and the guest's records by order: both follow the order of the runs.
fn merged(printed: &str, segments: &str) -> Result<Vec<RunRecord>> {
    let records = printed.lines().filter_map(|line| line.strip_prefix("RECORD "));
    let mut records: Vec<RunRecord> =
        records.map(serde_json::from_str).collect::<Result<_, _>>()?;
    let mut segments = segments.lines();
    for record in &mut records {
        ensure!(record.outcome.is_ok(), "{}: {:?}", record.workload, record.outcome);
        let runs = record.counter("victim-runs").context("no runs")?;
        let own: Vec<[f64; 2]> =
            segments.by_ref().take(runs as usize).map(segment).collect::<Result<_>>()?;
        ensure!(own.len() == runs as usize, "fewer segments than runs");
        attach(record, &own);
    }
    ensure!(segments.next().is_none(), "more segments than runs");
    Ok(records)
}

/// Reads references and misses from a line of the plugin.
fn segment(line: &str) -> Result<[f64; 2]> {
    let numbers: Option<Vec<f64>> = line.split(' ').map(|word| word.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[_, _, references, misses]) => Ok([references, misses]),
        _ => anyhow::bail!("not a segment: {line}"),
    }
}

/// Adds the counts of the runs after the first, scaled to all runs as a counter would have them.
fn attach(record: &mut RunRecord, runs: &[[f64; 2]]) {
    let counted = runs.get(1..).unwrap_or(&[]);
    let scale = runs.len() as f64 / counted.len().max(1) as f64;
    for (at, name) in ["victim-cache-references", "victim-cache-misses"].into_iter().enumerate() {
        let sum: f64 = counted.iter().map(|run| run[at]).sum();
        record.counters.push(Counter::measured(name, sum * scale, ""));
    }
    record.engine.emulated = true;
    record.warnings.push(
        "SIMULATED: a cache model in an emulator counted (L1D 32 KiB, shared L2 4 MiB); the times are the emulator's and no result"
            .to_owned(),
    );
}

fn percent(records: &[RunRecord], neighbour: &str) -> Result<f64> {
    let sum = |name: &str| -> f64 {
        let beside = records.iter().filter(|one| one.workload.text("neighbour") == Ok(neighbour));
        beside.filter_map(|record| record.counter(name)).sum()
    };
    let (references, misses) = (sum("victim-cache-references"), sum("victim-cache-misses"));
    ensure!(
        references > 1000.0,
        "{references} references beside {neighbour}: nothing was modelled"
    );
    Ok(misses / references * 100.0)
}

/// Checks the shares beside copies that fill the cache: the CPU's copies cost misses, the engine's
/// do not.
fn judge(records: &[RunRecord]) -> Result<()> {
    let [ideal, cpu, dma] = ["ideal", "cpu", "dma"].map(|neighbour| percent(records, neighbour));
    let (ideal, cpu, dma) = (ideal?, cpu?, dma?);
    println!(
        "misses, SIMULATED: alone {ideal:.2} %, beside copies by CPU {cpu:.2} %, by engine {dma:.2} %"
    );
    ensure!(cpu > ideal && cpu > dma, "copies by CPU should cost the most misses");
    Ok(())
}
