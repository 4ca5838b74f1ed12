//! Rows as text: aligned for people, Markdown for tickets.

use std::fmt::Write;

use daqmeter_record::units::{plural, show_bytes, show_ns, significant};
use daqmeter_record::{Hotspot, Ledger, RunRecord, sanitise};

pub use crate::aligned::{
    ALL, ask_columns, numbers_from, paragraphs, plain, set_window, unused_columns, wrapped,
};
use crate::aligned::{fewer, fitted};
pub use crate::columns::known_columns;
use crate::columns::{ShownTable, chosen, shown, with_totals};
use crate::families::{self, pmu, tool};
pub use crate::faults::faults_and_ledgers;
use crate::faults::{absent, faults, labelled};
use crate::frame::Frame;
use crate::groups::counted;
use crate::levels::host_line;
use crate::points::middle_runs;
use crate::rate::{above_limits, by_host, first_hosts, of_hosts, on_host};
use crate::rows::rows_among;
use crate::words::label;

pub(crate) fn rows_only(records: &[RunRecord]) -> String {
    let middle = middle_runs(records);
    let rows = rows_among(&middle, records);
    if rows.is_empty() {
        return String::new();
    }
    let ShownTable { headings, numbers, lines, .. } = with_totals(&rows, chosen(&rows));
    // The note is the last column; a reader misses those first that other columns or lines tell.
    let spare = ["study", "CPU [%]", "of limit", "note"];
    let (lines, left_out) = fewer(lines);
    fitted(&headings, numbers, &spare, lines) + &left_out
}

/// Shows the rows of stages; behind them faults, ledgers, warnings and conditions.
pub fn stages(records: &[RunRecord]) -> Frame {
    let mut table = rows_only(records);
    for (host, own) in by_host(records) {
        let hot = own.iter().flat_map(|record| record.hotspots.iter().take(8));
        hot.for_each(|Hotspot { share, space, symbol }| {
            let line = on_host(&host, &format!(" {:5.1} %  [{space}] {symbol}", share * 100.0));
            let _ = writeln!(table, "{}", sanitise::text(&line));
        });
    }
    Frame::of(table, of_hosts(records, notes))
}

/// Returns the notes on the records of a host.
fn notes(records: &[RunRecord]) -> Vec<String> {
    let mut notes = absent_lines(records);
    match records {
        [record] => notes.extend(footnotes(record)),
        // For many points, only failures and counts are shown, because other lines would hide them.
        _ => {
            notes.extend(labelled(records, faults_and_ledgers));
            notes.extend(labelled(records, pmu::tables::counted));
        }
    }
    notes.extend(above_limits(records, label));
    notes.extend(host_line(records));
    if let (Some(cost_ns), Some(first)) = (tool::cost_ns(records), records.first()) {
        let clock_ns = significant(first.clock.overhead_ns, 2);
        let cost = significant(cost_ns, 2);
        notes.push(format!(
            "measurement overhead: {cost} ns per operation, {clock_ns} ns per sample"
        ));
    }
    notes
}

/// Returns a line for each reason of waived points and early failures, with the number of its
/// points.
fn absent_lines(records: &[RunRecord]) -> Vec<String> {
    let shown = counted(absent(records)).into_iter().map(|(line, points)| match points {
        1 => line,
        points => format!("{line} ({})", plural(points as u64, "point")),
    });
    shown.collect()
}

/// Returns the notes on one record, a line each: faults, ledgers, counters worth a line, CPU,
/// memory, warnings.
fn footnotes(record: &RunRecord) -> Vec<String> {
    let mut lines = faults(record);
    let (lossy, clean): (Vec<_>, Vec<_>) =
        record.ledgers.iter().partition(|ledger| ledger.lost() > 0 || !ledger.closes());
    let shown = |ledger: &Ledger| format!("ledger: {ledger}");
    lines.extend(lossy.into_iter().map(shown));
    lines.extend(record.warnings.iter().cloned());
    lines.extend(families::footnotes(record));
    lines.extend(process(record));
    lines.extend(clean.into_iter().map(shown));
    lines
}

fn process(record: &RunRecord) -> Option<String> {
    // The kernel books CPU time late and the observers take some: below a few milliseconds the
    // share is meaningless.
    let cpu = match record.wall_ns {
        0 => return None,
        1..5_000_000 => "CPU use unknown (run too short)".to_owned(),
        wall_ns => {
            let percent = record.process_cpu.total_ns() as f64 / wall_ns as f64 * 100.0;
            format!("CPU {}% of a core", significant(percent, 3))
        }
    };
    Some(format!(
        "{cpu} in {}; peak memory {} (samples {})",
        show_ns(record.wall_ns as f64),
        match record.memory.peak_rss_bytes {
            0 => "unknown".to_owned(),
            bytes => show_bytes(bytes),
        },
        show_bytes(record.memory.sample_bytes)
    ))
}

pub fn markdown(records: &[RunRecord]) -> String {
    let (records, more) = &first_hosts(records);
    let middle = middle_runs(records);
    let rows = rows_among(&middle, records);
    let ShownTable { headings, lines, .. } = with_totals(&rows, shown(&rows));
    let mut out = format!("| {} |\n|{}\n", headings.join(" | "), "---|".repeat(headings.len()));
    for line in &lines {
        let cells: Vec<String> = line.iter().map(|cell| sanitise::markdown(cell)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    let below = of_hosts(records, |own| {
        let [host, above] = [host_line(own), above_limits(own, label)].map(Vec::from_iter);
        [host, absent_lines(own), labelled(own, faults_and_ledgers), above].concat()
    });
    for (at, line) in below.iter().chain(more).enumerate() {
        let _ = writeln!(out, "{}- {}", if at == 0 { "\n" } else { "" }, sanitise::markdown(line));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{above_its_limit, example, waived};

    #[test]
    fn the_table_for_people() {
        insta::assert_snapshot!(stages(&[example()]).text(None));
    }

    #[test]
    fn the_table_for_tickets() {
        insta::assert_snapshot!(markdown(&[example()]));
    }

    #[test]
    fn the_table_for_spreadsheets() {
        insta::assert_snapshot!(crate::export::stages(&[example()]).csv(true));
    }

    #[test]
    fn points_that_are_absent_for_one_reason_are_one_line() {
        let shown = stages(&[example(), waived(), waived()]).text(None);
        let line = "digitizer digitizer: waived: no \"card\", here (2 points)\n";
        assert!(shown.contains(line) && shown.matches("waived").count() == 1, "{shown}");
    }

    fn troubled() -> [RunRecord; 3] {
        let mut failed = example();
        failed.outcome =
            daqmeter_record::Outcome::Failed("verification after the run: byte 3 differs".into());
        [failed, waived(), above_its_limit()]
    }

    #[test]
    fn what_failed_was_waived_or_cannot_be_is_seen_in_every_table() {
        let records = troubled();
        let [screen, ticket] = [stages(&records).text(None), markdown(&records)];
        for table in [screen, ticket] {
            assert_eq!(table.matches("FAILED").count(), 5, "four rows and the reason: {table}");
            assert!(
                table.contains("FAILED: verification after the run: byte 3 differs"),
                "{table}"
            );
            assert!(table.contains("digitizer digitizer: waived: no "), "{table}");
            assert!(table.contains("3.00!") && table.contains("ABOVE ITS LIMIT"), "{table}");
            assert!(table.contains("above their limits, "), "{table}");
        }
        assert!(
            stages(&records[..1])
                .text(None)
                .contains(" FAILED: verification after the run: byte 3 differs\n")
        );
        let csv = crate::export::stages(&records).csv(true);
        let wanted =
            [",failed,verification", ",waived,\"no \"\"card\"\", here\",", ",above-limit,"];
        assert_eq!(wanted.map(|what| csv.matches(what).count()), [4, 1, 2], "{csv}");
    }
}
