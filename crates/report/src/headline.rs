//! First sentence of a screen, and what disturbed it. A family gives its sentence beside its
//! columns, as [`Family::headline`].

use std::collections::BTreeMap;

use daqmeter_record::conditions::{Taken, pinned};
use daqmeter_record::units::{joined, percent, significant};
use daqmeter_record::{Ledger, RunRecord};

use crate::families::{FAMILIES, briefs};
use crate::family::Family;
use crate::groups::counted;
use crate::rate;

/// Says what disturbed records that were measured on this or another host; `None` without lanes,
/// since counters of other programs are not disturbed by them.
pub fn disturbed(records: &[RunRecord]) -> Option<String> {
    let of_host = |own: &[RunRecord]| {
        let timed = own.iter().filter(|record| !record.lanes.is_empty());
        let timed: Vec<RunRecord> = timed.cloned().collect();
        Taken::from(&timed, pinned(&timed).as_ref()).text()
    };
    joined(rate::of_hosts(records, of_host), "; ")
}

/// Answers the question of the verb in a sentence, with what was lost or failed.
pub fn headline(records: &[RunRecord]) -> Option<String> {
    // Numbers measured before an interruption are right.
    let is_whole = |record: &&RunRecord| {
        let how = rate::undone(&record.outcome).map(|(how, _)| how);
        rate::is_done(record) || how == Some("interrupted")
    };
    let done = &records.iter().filter(is_whole).cloned().collect::<Vec<_>>();
    let mut own = FAMILIES.iter().filter(|family| is_of(family, records));
    let said = match (own.next(), own.next()) {
        (Some(family), None) => (family.headline)(done),
        _ => None,
    };
    let briefs = || joined(briefs(records).0, "; ");
    // Runs of a search lose data on purpose.
    let points = records.iter().filter(|record| record.role.is_point()).cloned();
    let lost = lost(&points.collect::<Vec<_>>());
    let hottest = match records {
        [record] => record.hotspots.first(),
        _ => None,
    };
    let hottest =
        hottest.map(|hot| format!("{} % of the CPU time in {}", percent(hot.share, 2), hot.symbol));
    joined([said.or_else(briefs), hottest, lost].into_iter().flatten(), "; ")
}

/// Tests if a family has a record that is more than a limit or a cost of the tool.
fn is_of(family: &Family, records: &[RunRecord]) -> bool {
    let mut engines = family.engines.iter();
    engines.any(|(engine, _)| records.iter().any(|record| record.engine.name == *engine))
}

/// Writes the points that failed, and the losses by unit and cause; `nothing lost` only if a ledger
/// was kept. `None` without ledgers and faults.
fn lost(records: &[RunRecord]) -> Option<String> {
    let undone = records.iter().filter_map(|record| Some(rate::undone(&record.outcome)?.0));
    let undone = counted(undone.filter(|how| *how != "waived")).into_iter();
    let shown = |how: &str| if how == "failed" { "FAILED".to_owned() } else { how.to_owned() };
    let undone = undone.map(|(how, count)| match (shown(how), records.len()) {
        (how, 1) => how,
        (how, points) => format!("{count} of {points} points {how}"),
    });
    let mut units: BTreeMap<&str, Ledger> = BTreeMap::new();
    for ledger in records.iter().flat_map(|record| &record.ledgers) {
        // Each E-link has an account of its own.
        let unit = ledger.unit.split(" of ").next().unwrap_or_default();
        let all = units.entry(unit).or_insert_with(|| Ledger::new(unit));
        all.add(&Ledger { of: String::new(), unit: unit.to_owned(), ..ledger.clone() });
    }
    let open = units.values().filter(|ledger| !ledger.closes());
    let open = open.map(|ledger| format!("{} {} are not accounted for", ledger.gap(), ledger.unit));
    let losses = units.values().filter(|ledger| ledger.lost() > 0).map(|ledger| {
        let causes = ledger.losses.iter().filter(|(_, count)| **count > 0);
        let causes = joined(causes.map(|(cause, count)| format!("{count} {cause}")), ", ");
        let percent = significant(ledger.lost() as f64 / ledger.issued.max(1) as f64 * 100.0, 3);
        let (lost, unit) = (ledger.lost(), &ledger.unit);
        let what = if ledger.lost_on_the_way() > 0 { "lost" } else { "not delivered" };
        let (issued, causes) = (ledger.issued, causes.unwrap_or_default());
        format!("{what}: {lost} of {issued} {unit} ({percent} %): {causes}")
    });
    let nothing = || (!units.is_empty()).then(|| "nothing lost".to_owned());
    joined(undone.chain(open).chain(losses), "; ").or_else(nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::example;

    fn with_ledgers(ledgers: &[Ledger]) -> Vec<RunRecord> {
        let of_record = |ledger: &Ledger| {
            let mut record = example();
            record.ledgers = vec![ledger.clone()];
            record
        };
        ledgers.iter().map(of_record).collect()
    }

    #[test]
    fn nothing_lost_is_said_only_where_an_account_was_kept_and_closes() {
        let clean = Ledger { issued: 10, delivered: 10, ..Ledger::new("blocks") };
        let mut lossy = Ledger { delivered: 7, ..clean.clone() };
        lossy.lose("dropped", 3);
        let open = Ledger { delivered: 9, ..clean.clone() };
        let said = |ledgers: &[Ledger]| lost(&with_ledgers(ledgers));
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[clean.clone(), clean.clone()]).as_deref(), Some("nothing lost"));
        let wanted = "lost: 3 of 20 blocks (15 %): 3 dropped";
        assert_eq!(said(&[clean.clone(), lossy]).as_deref(), Some(wanted));
        assert_eq!(said(&[clean, open]).as_deref(), Some("1 blocks are not accounted for"));
    }

    #[test]
    fn a_screen_begins_with_the_number_and_its_losses() {
        let mut frame = crate::table::stages(&[example()]);
        frame.answer.extend(headline(&[example()]));
        let shown = frame.text(Some("disturbed: x".to_owned()));
        let mut lines = shown.lines();
        let first = lines.next().unwrap();
        assert!(first.contains("2 emulated boards together: 1.2 GB/s"), "{shown}");
        assert_eq!(lines.next(), Some("disturbed: x"));
    }
}
