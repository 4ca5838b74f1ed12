//! Studies on emulated devices, which must take the time of their model or document.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;

use anyhow::{Context, Result, bail, ensure};
use daqmeter_campaign::studies::studies;
use daqmeter_record::study::{Basis, Grade, StudyFinding, StudyLine, StudyVerdict};
use daqmeter_record::{RunRecord, jsonl};
use daqmeter_vm::shell::{daqmeter, scratch};

/// Limit of the document's crate (`crates/digitizer/profiles/`).
const UPLINK_BYTES_PER_S: f64 = 3295.7e6;

/// Excess of a row's time over the wanted one, and the allowed excess either way, as shares.
struct Excess {
    found: Option<f64>,
    slower: f64,
    faster: f64,
}

/// Excess of the rows of a study, and the number of rows that have one.
type Rule = (fn(&StudyLine) -> Option<Excess>, usize);

fn rule(name: &str) -> Result<Rule> {
    Ok(match name {
        "digitizer" => (of_readout_tables, 8),
        "etherbone" => (of_cycles, 27),
        _ => bail!("no rule for the study {name}"),
    })
}

/// Repeats a study until each judged row was right in one of the tries, and each finding on an
/// emulated device held. Other programs on a shared machine only add time; a row that is too fast
/// fails at once.
pub(crate) fn repeat(name: &str) -> Result<()> {
    let rule = rule(name)?;
    let study = studies().into_iter().find(|study| study.name == name).context("no such study")?;
    let records = scratch(&format!("{name}.jsonl"));
    let mut left: Option<BTreeSet<String>> = None;
    for attempt in 1..=6 {
        let _ = std::fs::remove_file(&records);
        let reproduce =
            daqmeter("reproduce").args([name, "--time", "5m", "--records"]).arg(&records);
        reproduce.arg("-o").arg(scratch(&format!("{name}.html"))).run()?;
        let records = jsonl::read(BufReader::new(File::open(&records)?))?.records;
        records.iter().try_for_each(below_the_uplink)?;
        let (lines, findings) = study.judge(&records);
        let mut wrong = slow_rows(&lines, rule)?;
        wrong.extend(findings.into_iter().filter(is_refuted).map(|finding| finding.text));
        let still = left.map_or(wrong.clone(), |left| &left & &wrong);
        if still.is_empty() {
            return Ok(());
        }
        println!("!!! try {attempt}, wrong so far: {still:?}");
        left = Some(still);
    }
    bail!("wrong in each try: {left:?}")
}

/// The CPU that polling takes depends on this host as much as on the emulated boards: 30 % and 22 %
/// of a core for the two sizes on an EPYC.
const OF_THIS_HOST: &str = "No difference in CPU utilization";

fn is_refuted(finding: &StudyFinding) -> bool {
    finding.verdict == StudyVerdict::Judged(Grade::Refuted, Basis::Emulated)
        && !finding.text.starts_with(OF_THIS_HOST)
}

/// Checks that all boards of a record together delivered no more than their crate's uplink carries.
fn below_the_uplink(record: &RunRecord) -> Result<()> {
    if record.engine.name != "digitizer" {
        return Ok(());
    }
    let ledger = record.ledgers.iter().find(|ledger| ledger.unit == "bytes");
    let readouts = record.lanes.iter().filter_map(|lane| lane.stages.first());
    let end_ns = readouts.map(|stage| stage.end_ns).max().context("no read-out")?;
    let rate = ledger.context("no ledger")?.delivered as f64 / end_ns as f64 * 1e9;
    ensure!(rate <= UPLINK_BYTES_PER_S, "{}: {rate:.0} B/s exceed the uplink", record.study);
    Ok(())
}

fn slow_rows(lines: &[StudyLine], (excess, rows): Rule) -> Result<BTreeSet<String>> {
    let mut slow = BTreeSet::new();
    let judged: Vec<_> = lines.iter().filter_map(|line| Some((line, excess(line)?))).collect();
    ensure!(judged.len() == rows, "{} rows are judged instead of {rows}", judged.len());
    for (line, excess) in judged {
        let name = format!("{} {} [{}]", line.table, line.row, line.unit);
        let found = excess.found.with_context(|| format!("{name}: not measured"))?;
        ensure!(found >= -excess.faster, "{name}: faster than it may be by {found:.3}");
        if found > excess.slower {
            slow.insert(name);
        }
    }
    Ok(slow)
}

/// Compares the mean read-out rate of a table with the document's. Conversions depend on this host.
fn of_readout_tables(line: &StudyLine) -> Option<Excess> {
    let found = line.difference().map(|faster| -faster);
    let is_judged = line.row == "mean" && !line.is_of_host;
    is_judged.then_some(Excess { found, slower: 0.03, faster: 0.03 })
}

/// Compares a cycle's time with its model. The client and the emulation add their own work, 0.5 us
/// on a virtual machine with two CPUs.
fn of_cycles(line: &StudyLine) -> Option<Excess> {
    let model = line.model?;
    let ratio = line.measured.map(|measured| measured.value / model);
    // Time of the row's cycle or timestamp in the model, and the measured excess.
    let (model_us, found) = match &*line.unit {
        "us" => (model, ratio.map(|slower| slower - 1.0)),
        "kHz" => (1e3 / model, ratio.map(|faster| 1.0 / faster - 1.0)),
        "Mbit/s" => (64.0 / model, ratio.map(|faster| 1.0 / faster - 1.0)),
        // The emulation's own nanoseconds, which include no software.
        "ns" => (f64::INFINITY, ratio.map(|slower| slower - 1.0)),
        // A gain is a small difference of two times, both of which may be longer.
        "%" => (f64::INFINITY, ratio.map(|gain| (gain - 1.0).abs() * model / 100.0)),
        _ => return None,
    };
    Some(Excess { found, slower: 0.05 + 0.5 / model_us, faster: 0.05 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_without_records_is_not_measured() {
        for name in ["digitizer", "etherbone"] {
            let study = studies().into_iter().find(|study| study.name == name).unwrap();
            let error = slow_rows(&study.judge(&[]).0, rule(name).unwrap()).unwrap_err();
            assert!(error.to_string().contains("not measured"), "{error}");
        }
    }
}
