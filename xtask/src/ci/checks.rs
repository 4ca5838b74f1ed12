//! Steps of CI that run the tool, and their expected results.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use daqmeter_campaign::studies::studies;
use daqmeter_dist::venv;
use daqmeter_record::study::StudyLine;
use daqmeter_record::{RunRecord, jsonl};
use daqmeter_vm::shell::{StepDone, daqmeter, line, need, ran, started, target, tried};

use super::builds::{FUSE_TESTS, NEON_TESTS, PROMISES, built_tests};
use super::page::page;
use super::step::{PUBLISHED, scratch};
use crate::book::python_tests;

pub(super) fn fuse() -> Result<StepDone> {
    if !Path::new("/dev/fuse").exists() {
        return Ok(StepDone::LeftOut("no /dev/fuse here (modprobe fuse)".to_owned()));
    }
    if line("id -u").output()?.trim() != "0" {
        need("fusermount3")?;
    }
    for program in built_tests(FUSE_TESTS)? {
        started(program.as_ref()).words("--ignored").run()?;
    }
    Ok(StepDone::Ran)
}

pub(super) fn neon() -> Result<StepDone> {
    let Ok(programs) = built_tests(NEON_TESTS) else {
        let why = "the tests for AArch64 could not be built here";
        return Ok(StepDone::LeftOut(why.to_owned()));
    };
    for program in programs {
        let emulator = line("qemu-aarch64-static -L /usr/aarch64-linux-gnu").arg(program);
        emulator.env("PROPTEST_CASES", "32").run()?;
    }
    Ok(StepDone::Ran)
}

pub(super) fn promises(part: &str) -> Result<()> {
    for program in built_tests(PROMISES)? {
        started(program.as_ref()).words(part).run()?;
    }
    Ok(())
}

/// Reads the records of a file; all must be valid.
fn records(path: &str) -> Result<Vec<RunRecord>> {
    let contents = jsonl::read(std::io::BufReader::new(fs::File::open(path)?))?;
    ensure!(contents.errors.is_empty(), "{path}: {:?}", contents.errors);
    Ok(contents.records)
}

/// Checks that every point was measured, or waived because the host lacks something.
fn none_failed(records: &[RunRecord], fails: fn(&RunRecord) -> bool) -> Result<()> {
    let failed = records.iter().filter(|record| fails(record));
    let failed: Vec<String> = failed
        .map(|record| format!("{} {}: {:?}", record.study, record.workload, record.outcome))
        .collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

pub(super) fn survey() -> Result<()> {
    let (out, html) = (scratch("survey.jsonl")?, scratch("survey.html")?);
    daqmeter("survey --budget 20s --records").arg(&out).arg("-o").arg(&html).run()?;
    exported(&out)?;
    let records = records(&out)?;
    none_failed(&records, |record| matches!(record.outcome, daqmeter_record::Outcome::Failed(_)))?;
    ensure!(records.len() > 50, "{} points only", records.len());
    page(html.as_ref())
}

fn exported(records: &str) -> Result<()> {
    for name in ["export.parquet", "export.csv"] {
        daqmeter("report").arg(records).arg("-o").arg(scratch(name)?).run()?;
    }
    Ok(())
}

/// Runs the tests of the wheel, which read the exported tables, too.
pub(super) fn python() -> Result<StepDone> {
    exported(PUBLISHED)?;
    python_tests()
}

/// Checks that emulated bridges take the time of their model, and that the page has the study's
/// four figures.
/// Other programs on a shared machine only add time, so a row has several tries. In each it may
/// exceed its model by the time of a bridge without delay, which is the client's and the
/// emulation's own work. A row that is faster than its model fails at once.
pub(super) fn etherbone() -> Result<()> {
    let html = scratch("etherbone.html")?;
    each_row_once(6, || {
        let out = scratch("etherbone.jsonl")?;
        let software_us = cycle_without_delay_us()?;
        daqmeter("reproduce etherbone --records").arg(&out).arg("-o").arg(&html).run()?;
        let lines = compared("etherbone", &records(&out)?)?;
        ensure!(lines.len() > 25, "{} lines only", lines.len());
        rows_off_the_model(&lines, software_us)
    })?;
    page(html.as_ref())
}

/// Repeats until each row was right in one of the tries, which return the rows that are too slow.
fn each_row_once(
    tries: u32,
    mut slow_rows: impl FnMut() -> Result<BTreeSet<String>>,
) -> Result<()> {
    let mut left: Option<BTreeSet<String>> = None;
    for attempt in 1..=tries {
        let slow = slow_rows()?;
        let still = match &left {
            Some(before) => before.intersection(&slow).cloned().collect(),
            None => slow,
        };
        if still.is_empty() {
            return Ok(());
        }
        println!("!!! try {attempt} of {tries}, too slow so far: {still:?}");
        left = Some(still);
    }
    bail!("too slow in each of {tries} tries: {left:?}")
}

fn compared(study: &str, records: &[RunRecord]) -> Result<Vec<StudyLine>> {
    let found = studies().into_iter().find(|one| one.name == study);
    Ok(found.with_context(|| format!("no study is named {study}"))?.judge(records).0)
}

/// Measures the mean time of a blocking cycle over an emulated bridge that adds no delay.
fn cycle_without_delay_us() -> Result<f64> {
    const BRIDGE: &str = "about = 'adds no delay'\nstream = true\n\
        request = { latency_ns = 0, bytes_per_s = 1e15 }\nreply = { latency_ns = 0, bytes_per_s = 1e15 }\n\
        timing = { read_ns = 0, write_ns = 0 }\n";
    let (file, out) = (scratch("no-delay.toml")?, scratch("no-delay.jsonl")?);
    fs::write(&file, BRIDGE)?;
    daqmeter("eb perf")
        .arg(format!("emu/{file}"))
        .words("--payload tlu --method blocking -m 1 --records")
        .arg(&out)
        .output()?;
    let records = records(&out)?;
    let stage = records.first().and_then(|record| record.lanes.first()?.stages.first());
    let stage = stage.context("no samples")?;
    let mean_ns = stage.sample_ns.iter().sum::<u64>() as f64 / stage.sample_ns.len() as f64;
    let cycle_us = mean_ns / stage.ops_per_sample as f64 / 1e3;
    let plausible = cycle_us > 0.0 && cycle_us < 50.0;
    ensure!(plausible, "a cycle without any delay took {cycle_us} us");
    Ok(cycle_us)
}

/// Returns rows that exceed their model and that software time by more than 5 %. A row that is
/// faster by that much is an error.
fn rows_off_the_model(lines: &[StudyLine], software_us: f64) -> Result<BTreeSet<String>> {
    let mut slow = BTreeSet::new();
    for line in lines {
        let name = format!("{} {} [{}]", line.table, line.row, line.unit);
        let (Some(model), Some(measured)) = (line.model, line.measured) else {
            bail!("{name}: no model or not measured: {line:?}");
        };
        let off = measured.value / model - 1.0;
        // Time of the row's cycle or timestamp, and its excess over the model's.
        let (model_us, longer) = match &*line.unit {
            "us" => (model, off),
            "kHz" => (1e3 / model, 1.0 / (1.0 + off) - 1.0),
            "Mbit/s" => (64.0 / model, 1.0 / (1.0 + off) - 1.0),
            // The emulation's own nanoseconds, which include no software.
            "ns" => (f64::INFINITY, off),
            // A gain is a small difference of two times, both of which may be longer. It must be
            // within five of its percents, either way.
            "%" => (f64::INFINITY, off.abs() * model / 100.0),
            unit => bail!("{name}: no rule for {unit}"),
        };
        ensure!(longer >= -0.05, "{name}: faster than the model allows: {line:?}");
        if longer > 0.05 + software_us / model_us {
            slow.insert(name);
        }
    }
    Ok(slow)
}

pub(super) fn python_rate() -> Result<StepDone> {
    told(
        "this host's rates are too far apart for a rate through Python, in each of three tries",
        || started(&venv("python")).arg("python/tests/rate.py").code(),
    )
}

/// Repeats a measurement that ends with 0 (kept), 1 (missed) or 3 (cannot tell), at most three
/// times. The first 0 and the second 1 decide.
fn told(cannot_tell: &str, mut once: impl FnMut() -> Result<Option<i32>>) -> Result<StepDone> {
    let mut missed = 0;
    for attempt in 1..=3 {
        let code = once()?;
        println!("try {attempt}: ended with {code:?}");
        match code {
            Some(0) => return Ok(StepDone::Ran),
            Some(3) => {}
            Some(1) => missed += 1,
            _ => bail!("ended with {code:?}"),
        }
        ensure!(missed < 2, "missed twice");
    }
    Ok(StepDone::LeftOut(cannot_tell.to_owned()))
}

/// Checks that paced boards give the document's read-out tables, mean per table, within 3 %, and
/// that none exceeds the uplink.
/// A busy host only makes read-out slower, so a table has several tries. A faster one fails at
/// once.
pub(super) fn digitizers() -> Result<()> {
    each_row_once(4, || {
        let out = scratch("reproduce.jsonl")?;
        daqmeter("reproduce digitizer --records").arg(&out).run()?;
        let records = records(&out)?;
        records
            .iter()
            .filter(|record| record.engine.name == "digitizer")
            .try_for_each(below_the_uplink)?;
        tables_off_the_document(&compared("digitizer", &records)?)
    })
}

/// Returns read-out tables that are slower than the document's by more than 3 %. A table that is
/// faster by that much is an error.
fn tables_off_the_document(lines: &[StudyLine]) -> Result<BTreeSet<String>> {
    const BAND: f64 = 0.03;
    let means: Vec<&StudyLine> = lines.iter().filter(|line| line.row == "mean").collect();
    ensure!(means.len() == 15, "{} tables instead of 15", means.len());
    // Conversions depend on this host.
    let readouts = means.into_iter().filter(|line| !line.is_of_host);
    let readouts: Vec<(&StudyLine, f64)> = readouts
        .map(|line| Some((line, line.difference()?)))
        .collect::<Option<_>>()
        .context("a table was not measured")?;
    ensure!(readouts.len() == 8, "{} read-out tables instead of 8", readouts.len());
    if let Some((line, off)) = readouts.iter().find(|(_, off)| *off > BAND) {
        bail!("{}: {:+.1} % from the document", line.table, off * 100.0);
    }
    let slow = readouts.iter().filter(|(_, off)| *off < -BAND);
    Ok(slow
        .map(|(line, off)| {
            println!("{}: {:+.1} % from the document", line.table, off * 100.0);
            line.table.clone()
        })
        .collect())
}

/// Checks that all boards of a record deliver at most the capacity of the crate's uplink.
fn below_the_uplink(record: &RunRecord) -> Result<()> {
    const UPLINK_BYTES_PER_S: f64 = 3295.7e6;
    let ledger = record.ledgers.iter().find(|ledger| ledger.unit == "bytes");
    let readouts = record.lanes.iter().filter_map(|lane| lane.stages.first());
    let end_ns = readouts.map(|stage| stage.end_ns).max().unwrap_or(1);
    let rate = ledger.map_or(0, |ledger| ledger.delivered) as f64 / end_ns as f64 * 1e9;
    ensure!(rate <= UPLINK_BYTES_PER_S, "{}: {rate:.0} B/s exceed the uplink", record.study);
    Ok(())
}

/// Checks that the sweep finds a rate and draws its figures, and that no row of the study's model
/// contradicts the document.
pub(super) fn read_out() -> Result<()> {
    let (out, html) = (scratch("sweep.jsonl")?, scratch("sweep.html")?);
    daqmeter("readout sweep gbt --probe 200ms --resolution 0.05 --records")
        .arg(&out)
        .arg("-o")
        .arg(&html)
        .run()?;
    page(html.as_ref())?;
    let records = records(&out)?;
    none_failed(&records, |record| !record.outcome.is_ok())?;
    let points = records.iter().filter(|record| record.study == "readout/sweep").count();
    ensure!(points == 8, "{points} of {} points", records.len());
    daqmeter("reproduce readout").run()
}

/// Checks that latency, bandwidth and pollution at a few sizes fill figures that a browser draws;
/// every claim gets a verdict.
pub(super) fn copies() -> Result<()> {
    let (out, html) = (scratch("copies.jsonl")?, scratch("copies.html")?);
    let sizes = "--sizes 1,64,4KiB,64KiB,1MiB";
    for measurement in [
        format!("latency --reps 20 {sizes}"),
        format!("latency --reps 20 --load heavy --contexts cpu {sizes}"),
        "bandwidth --reps 20 --sizes 4KiB,64KiB".to_owned(),
        "pollution --reps 20 --tests qsort_small,susan[e]_small --copies from:16064".to_owned(),
        "trace --time 1s".to_owned(),
    ] {
        daqmeter("copy").words(&measurement).arg("--records").arg(&out).run()?;
    }
    let simulated = target().join("copy-vm/pollution.jsonl");
    let simulated = simulated.exists().then_some(simulated);
    daqmeter("report --format copy-figures")
        .arg(&out)
        .args(simulated)
        .arg("-o")
        .arg(&html)
        .run()?;
    page(html.as_ref())?;
    none_failed(&records(&out)?, |record| !record.outcome.is_ok())?;
    daqmeter("copy verify").run()?;
    daqmeter("reproduce copy --reps 30").run()
}

/// Counts an emulated mesh, draws it in a browser, and verifies known loads on this host.
pub(super) fn mesh_page() -> Result<StepDone> {
    let html = scratch("mesh.html")?;
    daqmeter("pmu stat --emulated cmn700 --heat hnf_mc_reqs -I 20ms --count 30 -o")
        .arg(&html)
        .output()?;
    page(html.as_ref())?;
    // Other programs may use the disk meanwhile.
    ran(tried(|| daqmeter("pmu verify --time 500ms").run()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_must_be_right_once_in_all_tries() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let mut tries = [set(&["a", "b"]), set(&["b", "c"]), set(&["c"])].into_iter();
        each_row_once(3, || Ok(tries.next().unwrap())).unwrap();
        assert!(each_row_once(3, || Ok(set(&["a"]))).is_err());
        let mut wrong = 0;
        let fails = || {
            wrong += 1;
            bail!("faster than the model")
        };
        assert!(each_row_once(3, fails).is_err() && wrong == 1);
    }
}
