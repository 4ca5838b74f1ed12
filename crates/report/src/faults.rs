//! Faults and losses of a record, in lines for people.

use std::cell::LazyCell;
use std::collections::HashSet;

use daqmeter_record::{Ledger, RunRecord};

use crate::names::Names;
use crate::rate::undone;

pub(crate) fn faults(record: &RunRecord) -> Vec<String> {
    let failed = record.lanes.iter().filter_map(|lane| {
        let (how, why) = undone(&lane.outcome)?;
        let how = how.to_uppercase();
        Some(format!("{how} {}: {}", lane.device, why.strip_prefix("interrupted ").unwrap_or(why)))
    });
    let of_lanes: Vec<String> = failed.collect();
    // A record without lanes is listed as absent; a ledger that does not close has its own line.
    let has_line = record.lanes.is_empty()
        || !of_lanes.is_empty()
        || !record.ledgers.iter().all(Ledger::closes);
    match undone(&record.outcome).filter(|_| !has_line) {
        Some((how, why)) => vec![format!("{}: {why}", how.to_uppercase())],
        None => of_lanes,
    }
}

pub fn faults_and_ledgers(record: &RunRecord) -> Vec<String> {
    let ledgers = record.ledgers.iter().filter(|ledger| ledger.lost() > 0 || !ledger.closes());
    let ledgers = ledgers.map(|ledger| format!("ledger: {ledger}"));
    let warnings = record.warnings.iter().map(|warning| format!("warning: {warning}"));
    faults(record).into_iter().chain(ledgers).chain(warnings).collect()
}

/// Returns the lines of each record behind its name, each once; of one record without it.
pub(crate) fn labelled(
    records: &[RunRecord],
    lines: impl Fn(&RunRecord) -> Vec<String>,
) -> Vec<String> {
    if let [record] = records {
        return lines(record);
    }
    // Most records have no line, and names take time.
    let names = &LazyCell::new(|| Names::of(records));
    let all = records.iter().flat_map(|record| {
        lines(record).into_iter().map(move |line| format!("{}: {line}", names.of_record(record)))
    });
    let mut seen = HashSet::new();
    all.filter(|line| seen.insert(line.clone())).collect()
}

/// Returns a line for each record that was waived or failed before any lane ran.
pub(crate) fn absent(records: &[RunRecord]) -> impl Iterator<Item = String> {
    let absent = records.iter().filter(|record| record.lanes.is_empty());
    absent.filter_map(|record| {
        let (how, why) = undone(&record.outcome)?;
        Some(format!("{} {}: {how}: {why}", record.study, record.engine.name))
    })
}
