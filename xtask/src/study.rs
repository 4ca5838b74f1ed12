//! Studies on emulated devices, which must take the time of their model or document.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;

use anyhow::{Context, Result, bail, ensure};
use daqmeter_campaign::studies::studies;
use daqmeter_record::jsonl;
use daqmeter_record::study::StudyLine;
use daqmeter_vm::shell::{daqmeter, scratch};

/// Excess of a row's time over the wanted one, and the allowed excess either way, as shares.
struct Excess {
    found: Option<f64>,
    slower: f64,
    faster: f64,
}

/// Repeats a study until each judged row was right in one of the tries. Other programs on a shared
/// machine only add time; a row that is too fast fails at once.
pub(crate) fn repeat(name: &str) -> Result<()> {
    let (rule, rows): (fn(&StudyLine) -> Option<Excess>, usize) = match name {
        "digitizer" => (of_readout_tables, 8),
        "etherbone" => (of_cycles, 13),
        _ => bail!("no rule for the study {name}"),
    };
    let study = studies().into_iter().find(|study| study.name == name).context("no such study")?;
    let records = scratch(&format!("{name}.jsonl"));
    let mut left: Option<BTreeSet<String>> = None;
    for attempt in 1..=6 {
        let _ = std::fs::remove_file(&records);
        let reproduce = daqmeter("reproduce").arg(name).arg("--records").arg(&records);
        reproduce.arg("-o").arg(scratch(&format!("{name}.html"))).run()?;
        let contents = jsonl::read(BufReader::new(File::open(&records)?))?;
        let slow = slow_rows(&study.judge(&contents.records).0, rule, rows)?;
        let still = left.map_or(slow.clone(), |left| &left & &slow);
        if still.is_empty() {
            return Ok(());
        }
        println!("!!! try {attempt}, too slow so far: {still:?}");
        left = Some(still);
    }
    bail!("too slow in each try: {left:?}")
}

fn slow_rows(
    lines: &[StudyLine],
    rule: fn(&StudyLine) -> Option<Excess>,
    rows: usize,
) -> Result<BTreeSet<String>> {
    let mut slow = BTreeSet::new();
    let judged: Vec<_> = lines.iter().filter_map(|line| Some((line, rule(line)?))).collect();
    ensure!(judged.len() == rows, "{} rows are judged instead of {rows}", judged.len());
    for (line, excess) in judged {
        let name = format!("{} {}", line.table, line.row);
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

/// Compares a cycle's time with its model. Rates and gains come from these times. The client and
/// the emulation add their own work, 0.5 us on a virtual machine with two CPUs.
fn of_cycles(line: &StudyLine) -> Option<Excess> {
    let software_us = match &*line.unit {
        "us" => 1.0,
        // The emulation's own nanoseconds, which include no software.
        "ns" => 0.0,
        _ => return None,
    };
    let model = line.model?;
    let found = line.measured.as_ref().map(|measured| measured.value / model - 1.0);
    Some(Excess { found, slower: 0.05 + software_us / model, faster: 0.05 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_without_records_is_not_measured() {
        for (name, rule, rows) in [
            ("digitizer", of_readout_tables as fn(&StudyLine) -> _, 8),
            ("etherbone", of_cycles, 13),
        ] {
            let study = studies().into_iter().find(|study| study.name == name).unwrap();
            let error = slow_rows(&study.judge(&[]).0, rule, rows).unwrap_err().to_string();
            assert!(error.contains("not measured"), "{error}");
        }
    }
}
