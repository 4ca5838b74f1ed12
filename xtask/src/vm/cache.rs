//! Cache misses without counters: the pollution study under QEMU with the cache model of `xtask/qemu/cache.c`. What comes out are
//! records marked `simulated`, for `daqmeter copy figures` and `copy reproduce --from`; their times are those of an emulator.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use daqmeter_record::{Counter, RunRecord, jsonl};

use super::guest::{Boot, Machine};
use super::kernels::Kernel;
use super::{folder, programs, timed};
use crate::shell::run;

/// The engine's CPU, whose copies go past the modelled caches; the copying neighbour is on 0, the program on 1.
const ENGINE_CPU: u32 = 2;

fn plugin_file() -> PathBuf {
    folder().join("cache.so")
}

/// Builds the cache model.
pub(super) fn plugin() -> Result<()> {
    let file = plugin_file().display().to_string();
    run(
        "gcc-12",
        &[
            "-O2",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
            &file,
            "xtask/qemu/cache.c",
        ],
    )
}

/// Every program and pair of the study (`full`), or one program beside copies of a megabyte.
pub(crate) fn pollution(full: bool) -> Result<()> {
    let kernel = Kernel::fetch("6.1", "amd64")?;
    let modules = kernel.modules()?;
    let programs = programs()?;
    let plugin = plugin_file().display().to_string();
    let segments = folder().join("segments.txt");
    let options = format!("{plugin},engine={ENGINE_CPU},out={}", segments.display());
    let what = if full {
        "--reps 2"
    } else {
        "--reps 4 --tests qsort_small --copies from:1MiB"
    };
    let script = format!(
        "insmod /softdma.ko channels=1 cpu={ENGINE_CPU}\ninsmod /daqmeter_copy.ko region_mb=8\n\
         /daqmeter copy pollution {what} --path module --neighbours ideal,cpu,dma --pin 1,0 --simulated --out /tmp/records > /tmp/said 2>&1 \
         || echo GUEST failed \"$(tail -3 /tmp/said)\"\nsed 's/^/RECORD /' /tmp/records\n"
    );
    let boot = Boot {
        name: "cache",
        machine: Machine::X86 {
            cpus: 3,
            icount: false,
            plugin: Some(&options),
        },
        kernel: &kernel.image,
        script: &script,
        command_line: "",
        files: &programs.files(&[
            (&modules.copy, "daqmeter_copy.ko"),
            (&modules.softdma, "softdma.ko"),
        ]),
        limit_s: if full { 3600 } else { 300 },
    };
    let said = timed("pollution under the cache model", || boot.run())?;
    ensure!(
        !said.contains("GUEST failed"),
        "{}",
        said.lines().rev().take(8).collect::<Vec<_>>().join("\n")
    );
    let records = merged(&said, &fs::read_to_string(&segments)?)?;
    let place = write(&records)?;
    println!(
        "{} points, simulated, in {}",
        records.len(),
        place.display()
    );
    judge(&records)
}

/// One segment.
struct Segment {
    references: f64,
    misses: f64,
}

/// The segments, in the order in which they ran, belong to the records in the order in which they were written. The first of each
/// point meets what other programs left, and is not counted.
fn merged(said: &str, segments: &str) -> Result<Vec<RunRecord>> {
    let text: String = said
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
    let segment = |line: &str| {
        let numbers: Vec<f64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        Some(Segment {
            references: *numbers.get(2)?,
            misses: *numbers.get(3)?,
        })
    };
    let mut segments = segments
        .lines()
        .map(|line| segment(line).with_context(|| line.to_owned()));
    let mut records = contents.records;
    for record in &mut records {
        ensure!(
            record.outcome.is_ok(),
            "{}: {:?}",
            record.workload,
            record.outcome
        );
        let runs = record.counter("victim-runs").context("no runs")?;
        let (mut references, mut misses, mut counted) = (0.0, 0.0, 0.0);
        for run in 0..whole(runs) {
            let segment = segments.next().context("fewer segments than runs")??;
            if run > 0 {
                references += segment.references;
                misses += segment.misses;
                counted += 1.0;
            }
        }
        record.engine.emulated = true;
        // Sums over all runs, as a counter would have them: scaled from those that count.
        let scale = if counted > 0.0 { runs / counted } else { 0.0 };
        for (name, sum) in [
            ("victim-cache-references", references),
            ("victim-cache-misses", misses),
        ] {
            record.counters.push(Counter {
                name: name.to_owned(),
                value: sum * scale,
                unit: String::new(),
                share: 1.0,
            });
        }
        record.warnings.push(
            "SIMULATED: a cache model in an emulator counted (L1D 32 KiB, shared L2 4 MiB); the times are the emulator's and no result"
                .to_owned(),
        );
    }
    ensure!(segments.next().is_none(), "more segments than runs");
    Ok(records)
}

/// A count that a counter keeps as a number.
fn whole(count: f64) -> u64 {
    format!("{count:.0}").parse().unwrap_or(0)
}

fn write(records: &[RunRecord]) -> Result<PathBuf> {
    let place = folder().join("pollution.jsonl");
    fs::write(
        &place,
        records.iter().flat_map(jsonl::to_line).collect::<Vec<u8>>(),
    )?;
    Ok(place)
}

/// Beside copies that fill the cache, the CPU's cost misses and the engine's do not.
fn judge(records: &[RunRecord]) -> Result<()> {
    let percent = |neighbour: &str| -> Result<f64> {
        let of = records
            .iter()
            .filter(|record| record.workload.text("neighbour") == Ok(neighbour));
        let sums = of.fold((0.0, 0.0), |(references, misses), record| {
            let value = |name: &str| record.counter(name).unwrap_or(0.0);
            (
                references + value("victim-cache-references"),
                misses + value("victim-cache-misses"),
            )
        });
        ensure!(
            sums.0 > 1000.0,
            "{} references beside {neighbour}: the model saw nothing",
            sums.0
        );
        Ok(sums.1 / sums.0 * 100.0)
    };
    let (ideal, cpu, dma) = (percent("ideal")?, percent("cpu")?, percent("dma")?);
    println!(
        "misses, SIMULATED: alone {ideal:.2} %, beside copies by CPU {cpu:.2} %, by engine {dma:.2} %"
    );
    ensure!(
        cpu > ideal && cpu > dma,
        "copies by CPU should cost the most misses"
    );
    Ok(())
}
