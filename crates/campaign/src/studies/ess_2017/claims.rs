//! Every row of the document's tables beside the model of its crate and what was measured here.

use daqmeter_digitizer::devices::sis8300::emulated::Profile;
use daqmeter_record::study::{Comparison, Derived};

use super::here::{Board, Here, mean};
use super::{CpuRow, Kind, Row, Table, model};

pub(super) fn compare(here: &Here<'_>) -> Vec<Comparison> {
    let profile = Profile::default();
    let tables = here.published.table.iter();
    let mut lines: Vec<Comparison> = tables.flat_map(|table| rows(table, &profile, here)).collect();
    let cpu = || here.published.cpu.iter().enumerate();
    lines.extend(cpu().map(|(_, row)| cpu_model(row, &profile)));
    lines.extend(cpu().map(|(at, row)| cpu_measured(at, row, here)));
    lines
}

/// The rows of one table, their mean, and start, end and duration of each. Boards of one model are interchangeable, so rows are
/// compared in order of speed.
fn rows(table: &Table, profile: &Profile, here: &Here<'_>) -> Vec<Comparison> {
    let mut model = model::speeds_mb_per_s(table, profile);
    model.sort_by(|a, b| b.total_cmp(a));
    let measured = here.boards(table);
    let mut rows: Vec<&Row> = table.rows.iter().collect();
    rows.sort_by(|a, b| b.speed_mb_per_s.order(&a.speed_mb_per_s));
    let each = || rows.iter().enumerate();
    let speed = |(at, row): (usize, &&Row)| {
        let speed = row.speed_mb_per_s.within(&table.place);
        Comparison::new(&table.title, name(row), speed, "MB/s")
            .model(model.get(at).copied())
            .measured(measured.get(at).map(|board| board.speed))
    };
    let mut lines: Vec<Comparison> = each().map(speed).collect();
    lines.push(
        Comparison::new(&table.title, "mean", None, "MB/s")
            .derived(published_mean(table))
            .model(mean(&model))
            .measured(here.mean(&table.id)),
    );
    let times =
        each().flat_map(|(at, row)| times(table, row, measured.get(at), model.get(at).copied()));
    lines.extend(times);
    match table.kind {
        // The profile was fitted to all rows of read-out.
        Kind::Readout => lines.into_iter().map(Comparison::of_a_fit).collect(),
        Kind::Conversion => lines.into_iter().map(Comparison::of_this_host).collect(),
    }
}

fn name(row: &Row) -> String {
    format!("sis8300-{}", row.board)
}

/// Start, end and duration of one board's reads. When threads begin is of the host that they run on.
fn times(table: &Table, row: &Row, board: Option<&Board>, model: Option<f64>) -> [Comparison; 3] {
    let title = format!("{}: start, end, duration", table.title);
    let line = |column: &str, value: f64| {
        let published = row.speed_mb_per_s.in_column(column, value);
        let name = format!("{}, {column}", name(row));
        Comparison::new(&title, name, published.within(&table.place), "ms")
    };
    let read_mb = (table.samples * 2) as f64 / 1e6;
    let duration_ms = model.map(|mb_per_s| read_mb / mb_per_s * 1e3);
    [
        line("start", row.start_ms).measured(board.map(|board| board.start)).of_this_host(),
        line("end", row.end_ms).measured(board.map(|board| board.end)),
        line("dur", row.dur_ms).model(duration_ms).measured(board.map(|board| board.duration)),
    ]
}

pub(super) fn published_mean(table: &Table) -> Option<Derived> {
    let speeds = table.rows.iter().map(|row| &row.speed_mb_per_s);
    Derived::mean(speeds, "mean of the published rows above")
}

fn cpu_line(table: &str, row: &CpuRow) -> Comparison {
    let how = if row.polling { "poll" } else { "interrupt" };
    let name = format!("{}, {} board(s), {how}", row.title, row.boards);
    Comparison::new(table, name, row.percent.clone(), "% of a core")
}

/// A CPU figure beside the model of the document's host.
fn cpu_model(row: &CpuRow, profile: &Profile) -> Comparison {
    cpu_line("CPU at 14 Hz", row).model(model::cpu_percent(row, profile)).of_this_host().of_a_fit()
}

/// The same figure beside what it costs here, with emulated boards, whose waiting and copying is not the document's: the verdict
/// says how far this host is from it, not whether the document is right.
fn cpu_measured(at: usize, row: &CpuRow, here: &Here<'_>) -> Comparison {
    cpu_line("CPU at 14 Hz, on this host", row).measured(here.cpu_percent(at))
}
