//! Rows as text: aligned for people, Markdown for tickets, CSV for spreadsheets.

use std::collections::HashSet;
use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use daqmeter_record::RunRecord;
use daqmeter_record::units::{show_bytes, show_ns, significant};

use crate::rows::{Row, points, rows, tool_cost_ns, without_lanes};

/// The columns with numbers, and the one behind them.
const HEADINGS: [&str; 9] = ["n", "median", "spread [%]", "p99", "MB/s", "limit MB/s", "of limit", "CPU [%]", "note"];

/// Which columns of text there are: the study where there are several, the parameters where they differ.
struct Columns {
    study: bool,
    point: bool,
}

impl Columns {
    fn of(rows: &[Row]) -> Columns {
        let study = rows.windows(2).any(|pair| pair[0].study != pair[1].study);
        Columns { study, point: rows.iter().any(|row| !row.point.is_empty()) }
    }

    fn texts<T>(&self, study: T, device: T, stage: T, point: T) -> Vec<T> {
        let all = [(self.study, study), (true, device), (true, stage), (self.point, point)];
        all.into_iter().filter(|(there, _)| *there).map(|(_, text)| text).collect()
    }

    fn headings(&self) -> Vec<&'static str> {
        let mut headings = self.texts("study", "device", "stage", "point");
        headings.extend(HEADINGS);
        headings
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let percent = |fraction: f64| significant(fraction * 100.0, 3);
        let mb = |rate: f64| if rate > 0.0 { significant(rate / 1e6, 4) } else { "-".to_owned() };
        let mut cells = self.texts(row.study.clone(), row.device.clone(), row.label.clone(), row.point.clone());
        cells.extend([
            row.n.to_string(),
            show_ns(row.median_ns),
            percent(row.spread),
            show_ns(row.p99_ns),
            mb(row.rate_bytes_per_s),
            row.limit_bytes_per_s.map_or("-".to_owned(), mb),
            row.fraction.map_or("-".to_owned(), |fraction| format!("{fraction:.2}")),
            percent(row.cpu_fraction),
            note(row),
        ]);
        cells
    }
}

fn note(row: &Row) -> String {
    let mut notes = Vec::new();
    if row.emulated {
        notes.push("emulated".to_owned());
    }
    if row.outliers > 0 {
        notes.push(format!("{} outliers", row.outliers));
    }
    if row.fault.is_some() {
        notes.push("FAILED".to_owned());
    }
    notes.join(", ")
}

fn build(records: &[RunRecord]) -> String {
    let rows = rows(records);
    let columns = Columns::of(&rows);
    let headings = columns.headings();
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(headings.iter().copied());
    for row in &rows {
        table.add_row(columns.cells(row));
    }
    for column in headings.len() - HEADINGS.len()..headings.len() - 1 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    trimmed(&table.to_string())
}

/// Without trailing spaces, which mail and snapshots mangle.
fn trimmed(text: &str) -> String {
    text.lines().fold(String::new(), |mut out, line| {
        out.push_str(line.trim_end());
        out.push('\n');
        out
    })
}

/// The aligned table alone.
pub fn rows_only(records: &[RunRecord]) -> String {
    build(records)
}

/// The aligned table, and below it what must be known to believe it.
pub fn text(records: &[RunRecord]) -> String {
    // Records of counters alone have no stages.
    let has_stage = |record: &RunRecord| record.lanes.iter().any(|lane| !lane.stages.is_empty());
    let is_empty = !records.iter().any(has_stage) && records.iter().any(|record| record.engine.name == "pmu");
    let mut out = if is_empty { String::new() } else { build(records) };
    let mut absent: Vec<(String, usize)> = Vec::new();
    for (record, how, why) in without_lanes(records) {
        let line = format!("{} {}: {how}: {why}", record.study, record.engine.name);
        match absent.iter_mut().find(|(known, _)| *known == line) {
            Some((_, points)) => *points += 1,
            None => absent.push((line, 1)),
        }
    }
    for (line, points) in absent {
        let times = if points > 1 { format!(" ({points} points)") } else { String::new() };
        let _ = writeln!(out, " {line}{times}");
    }
    match records {
        [record] => out.push_str(&footnotes(record)),
        // Of many points only what went wrong: the rest would bury it.
        _ => {
            let told = records.iter().zip(points(records)).flat_map(|(record, point)| {
                let of = if point.is_empty() { record.study.clone() } else { format!("{}, {point}", record.study) };
                faults_and_ledgers(record).into_iter().map(move |line| format!(" {of}: {line}\n"))
            });
            let mut seen = HashSet::new();
            out.extend(told.filter(|line| seen.insert(line.clone())));
        }
    }
    if let (Some(cost_ns), Some(first)) = (tool_cost_ns(records), records.first()) {
        let clock_ns = significant(first.clock.overhead_ns, 2);
        let _ =
            writeln!(out, " the tool itself: {} ns per operation, {clock_ns} ns per sample", significant(cost_ns, 2));
    }
    out
}

/// What went wrong and what was lost, a line each: ledgers without losses are not told.
pub fn faults_and_ledgers(record: &RunRecord) -> Vec<String> {
    let faults =
        record.lanes.iter().filter_map(|lane| Some(format!("FAILED {}: {}", lane.device, lane.outcome.reason()?)));
    let ledgers = record.ledgers.iter().filter(|ledger| ledger.lost() > 0 || !ledger.closes());
    let ledgers = ledgers.map(|ledger| format!("ledger: {ledger} ({})", record.workload));
    let warnings = record.warnings.iter().map(|warning| format!("warning: {warning}"));
    faults.chain(ledgers).chain(warnings).collect()
}

/// Faults, ledgers, counters worth a line, warnings, memory.
pub fn footnotes(record: &RunRecord) -> String {
    let mut out = String::new();
    for lane in &record.lanes {
        if let Some(reason) = lane.outcome.reason() {
            let _ = writeln!(out, " FAILED {}: {reason}", lane.device);
        }
    }
    for ledger in &record.ledgers {
        let _ = writeln!(out, " ledger: {ledger}");
    }
    let counted = ["register-reads", "interrupts", "lost-interrupts"];
    let counts: Vec<String> =
        counted.iter().filter_map(|name| Some(format!("{name} {}", record.counter(name)?))).collect();
    if !counts.is_empty() {
        let _ = writeln!(out, " counted: {}", counts.join(", "));
    }
    if let Some(observed) = &record.observed {
        out.push_str(&crate::pmu::tables::footnote(observed));
    }
    if record.wall_ns > 0 {
        // The kernel books CPU time late and the observers take some: below a few milliseconds the share means nothing.
        let cpu = match record.wall_ns {
            0..5_000_000 => "too short to tell its CPU share".to_owned(),
            wall_ns => {
                let percent = record.process_cpu.total_ns() as f64 / wall_ns as f64 * 100.0;
                format!("CPU {}% of a core", significant(percent, 3))
            }
        };
        let _ = writeln!(
            out,
            " {cpu} over {}; peak memory {}, of which samples {}",
            show_ns(record.wall_ns as f64),
            show_bytes(record.memory.peak_rss_bytes),
            show_bytes(record.memory.sample_bytes)
        );
    }
    out.push_str(&host_cpu(record));
    for spot in record.hotspots.iter().take(8) {
        let _ = writeln!(out, " {:5.1} %  [{}] {}", spot.share * 100.0, spot.space, spot.symbol);
    }
    for warning in &record.warnings {
        let _ = writeln!(out, " note: {warning}");
    }
    out
}

/// What the whole host did meanwhile, in per cent of all its CPUs. Nothing where /proc/stat counted no tick.
fn host_cpu(record: &RunRecord) -> String {
    let cpu = &record.host_cpu;
    let kinds = [
        ("user", cpu.user_ns),
        ("system", cpu.system_ns),
        ("irq", cpu.irq_ns),
        ("softirq", cpu.softirq_ns),
        ("steal", cpu.steal_ns),
        ("iowait", cpu.iowait_ns),
        ("idle", cpu.idle_ns),
    ];
    let total: u64 = kinds.iter().map(|(_, ns)| ns).sum();
    if total == 0 {
        return String::new();
    }
    let shown = kinds.iter().filter(|(_, ns)| *ns > 0);
    let shares: Vec<String> =
        shown.map(|(kind, ns)| format!("{kind} {}%", significant(*ns as f64 / total as f64 * 100.0, 2))).collect();
    format!(" whole host: {}\n", shares.join(", "))
}

/// A Markdown table.
pub fn markdown(records: &[RunRecord]) -> String {
    let escaped = |cell: &String| cell.replace('|', "\\|");
    let rows = rows(records);
    let columns = Columns::of(&rows);
    let headings = columns.headings();
    let mut out = format!("| {} |\n|{}\n", headings.join(" | "), "---|".repeat(headings.len()));
    for row in &rows {
        let cells: Vec<String> = columns.cells(row).iter().map(escaped).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out
}

/// Comma-separated values with full precision and units in the heading (RFC 4180).
pub fn csv(records: &[RunRecord]) -> String {
    let mut out = String::from(
        "study,engine,device,stage,point,emulated,n,bytes_per_op,median_ns,spread,ci_low_ns,ci_high_ns,p99_ns,outliers,\
         rate_bytes_per_s,limit_bytes_per_s,fraction,cpu_fraction,fault\n",
    );
    for row in rows(records) {
        let optional = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let fields = [
            quoted(&row.study),
            quoted(&row.engine),
            quoted(&row.device),
            quoted(&row.stage),
            quoted(&row.point),
            row.emulated.to_string(),
            row.n.to_string(),
            row.bytes_per_op.to_string(),
            row.median_ns.to_string(),
            row.spread.to_string(),
            row.ci_ns.0.to_string(),
            row.ci_ns.1.to_string(),
            row.p99_ns.to_string(),
            row.outliers.to_string(),
            row.rate_bytes_per_s.to_string(),
            optional(row.limit_bytes_per_s),
            optional(row.fraction),
            row.cpu_fraction.to_string(),
            quoted(row.fault.as_deref().unwrap_or("")),
        ];
        let _ = writeln!(out, "{}", fields.join(","));
    }
    out
}

pub(crate) fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// A small aligned table of any text, for the verbs that list things.
pub fn plain(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    numbers_from(headings.len(), headings, rows)
}

/// An aligned table whose columns from that one on are numbers, at the right of their column.
pub fn numbers_from(first: usize, headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(headings.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in first..headings.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    trimmed(&table.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::example;

    #[test]
    fn the_table_for_people() {
        insta::assert_snapshot!(text(&[example()]));
    }

    #[test]
    fn the_table_for_tickets() {
        insta::assert_snapshot!(markdown(&[example()]));
    }

    #[test]
    fn the_table_for_spreadsheets() {
        insta::assert_snapshot!(csv(&[example()]));
    }

    #[test]
    fn points_that_are_absent_for_one_reason_are_one_line() {
        let mut waived = example();
        waived.lanes.clear();
        waived.outcome = daqmeter_record::Outcome::Waived("no card".into());
        let said = text(&[example(), waived.clone(), waived]);
        assert_eq!(said.matches("digitizer digitizer: waived: no card (2 points)\n").count(), 1, "{said}");
        assert_eq!(said.matches("no card").count(), 1, "{said}");
    }

    #[test]
    fn fields_with_commas_are_quoted() {
        assert_eq!(quoted("a,b\"c"), "\"a,b\"\"c\"");
    }
}
