//! Cache misses without counters: the pollution study under QEMU with the cache model of
//! `vm/qemu/cache.c`.
//! The resulting records are marked `simulated`, for `daqmeter report --format copy-figures` and
//! `reproduce copy
//! --from`. Their times are those of an emulator.

use std::fs;
use std::path::PathBuf;

use crate::shell::{line, measured};
use anyhow::{Context, Result, ensure};
use daqmeter_record::{Counter, RunRecord, jsonl};

use super::boot::{Boot, Machine, Pc, Run};
use super::modules;
use super::programs;
use crate::debian::Kernel;
use crate::files::{GuestFile, folder, tail, timed};

/// CPU of the engine, with copies past the modelled caches; the copying neighbour is on 0, the
/// program on 1.
const ENGINE_CPU: u32 = 2;

pub(super) const RECORDS: &str = "pollution.jsonl";

fn plugin_file() -> PathBuf {
    folder().join("cache.so")
}

pub(super) fn plugin() -> Result<()> {
    line("gcc-12 -O2 -Wall -Werror -shared -fPIC vm/qemu/cache.c -o").arg(plugin_file()).run()
}

/// Runs every program and pair of the study (`full`), or one program beside copies of a megabyte.
/// Shares of misses are statistical: a machine with shares that contradict the study is booted
/// again. Other failures are final.
pub(crate) fn pollution(full: bool) -> Result<()> {
    measured(|| simulated(full), |records| judge(records))
}

fn simulated(full: bool) -> Result<Vec<RunRecord>> {
    let kernel = Kernel::fetch("6.1", "amd64")?;
    let modules = modules::built(&kernel)?;
    let segments = folder().join("segments.txt");
    let plugin =
        format!("{},engine={ENGINE_CPU},out={}", plugin_file().display(), segments.display());
    let boot = Boot {
        name: "cache",
        machine: Machine::Pc(Pc { cpus: 3, run: Run::Watched(&plugin) }),
        kernel: &kernel.image,
        script: &script(full),
        command_line: "",
        limit_s: if full { 3600 } else { 480 },
    };
    let mut files = programs::files()?;
    files.push(GuestFile::program("daqmeter_copy.ko", &modules.copy)?);
    files.push(GuestFile::program("softdma.ko", &modules.softdma)?);
    let printed = timed("pollution under the cache model", || boot.run(files))?;
    ensure!(!printed.contains("GUEST failed"), "last lines:\n{}", tail(&printed));
    let records = merged(&printed, &fs::read_to_string(&segments)?)?;
    keep(&records, RECORDS)?;
    Ok(records)
}

fn script(full: bool) -> String {
    let what = if full { "--reps 2" } else { "--reps 4 --tests qsort_small --copies from:1MiB" };
    format!(
        "insmod /softdma.ko channels=1 cpu={ENGINE_CPU}\ninsmod /daqmeter_copy.ko region_mb=8\n\
         /daqmeter copy pollution {what} --path module --neighbours ideal,cpu,dma --pin 1,0 --simulated --records /tmp/records > /tmp/said 2>&1 \
         || echo GUEST failed \"$(tail -3 /tmp/said)\"\nsed 's/^/RECORD /' /tmp/records\n"
    )
}

#[derive(Clone, Copy, Default)]
struct Segment {
    references: f64,
    misses: f64,
}

fn segment(line: &str) -> Result<Segment> {
    let number = |at: usize| line.split_whitespace().nth(at)?.parse::<f64>().ok();
    let segment = number(2).zip(number(3));
    let (references, misses) = segment.with_context(|| format!("not a segment: {line}"))?;
    Ok(Segment { references, misses })
}

/// Returns the records that a guest printed, behind `RECORD `.
pub(super) fn records_of(printed: &str) -> Result<Vec<RunRecord>> {
    let text: String = printed
        .lines()
        .filter_map(|line| line.strip_prefix("RECORD "))
        .map(|line| format!("{line}\n"))
        .collect();
    let contents = jsonl::read(text.as_bytes())?;
    ensure!(
        contents.errors.is_empty() && !contents.records.is_empty(),
        "records: {:?}",
        contents.errors
    );
    Ok(contents.records)
}

pub(super) fn keep(records: &[RunRecord], name: &str) -> Result<PathBuf> {
    let place = folder().join(name);
    let lines: Vec<u8> = records.iter().flat_map(jsonl::to_line).collect();
    fs::write(&place, lines)?;
    println!("{} points in {}", records.len(), place.display());
    Ok(place)
}

/// Joins segments and records by order: both follow the order of the runs.
fn merged(printed: &str, segments: &str) -> Result<Vec<RunRecord>> {
    let mut segments = segments.lines();
    let mut records = records_of(printed)?;
    for record in &mut records {
        ensure!(record.outcome.is_ok(), "{}: {:?}", record.workload, record.outcome);
        let runs = record.counter("victim-runs").context("no runs")?;
        let own: Vec<Segment> =
            segments.by_ref().take(whole(runs)).map(segment).collect::<Result<_>>()?;
        ensure!(own.len() == whole(runs), "fewer segments than runs");
        attach(record, &own);
    }
    ensure!(segments.next().is_none(), "more segments than runs");
    Ok(records)
}

fn whole(count: f64) -> usize {
    format!("{count:.0}").parse().unwrap_or(0)
}

fn attach(record: &mut RunRecord, runs: &[Segment]) {
    let counted = runs.get(1..).unwrap_or(&[]);
    // Sums over all runs, as a counter would have them: scaled from the counted runs.
    let scale = runs.len() as f64 / counted.len().max(1) as f64;
    let mut push = |name: &str, of: fn(&Segment) -> f64| {
        record.counters.push(Counter {
            name: name.into(),
            value: counted.iter().map(of).sum::<f64>() * scale,
            unit: "".into(),
            share: 1.0,
        });
    };
    push("victim-cache-references", |run| run.references);
    push("victim-cache-misses", |run| run.misses);
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
