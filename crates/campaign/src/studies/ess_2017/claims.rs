//! Every row of the document's tables beside the model of its crate and what was measured here.

use daqmeter_digitizer::devices::sis8300::emulated::Profile;
use daqmeter_record::study::{Comparison, Derived};

use super::here::{Here, mean};
use super::{CpuRow, Kind, Row, Table, model};

pub(super) fn compare(here: &Here<'_>) -> Vec<Comparison> {
    let profile = Profile::default();
    let tables = here.published.table.iter();
    let mut lines: Vec<Comparison> = tables
        .flat_map(|table| rows(table, &profile, here))
        .collect();
    let cpu = here.published.cpu.iter().enumerate();
    lines.extend(cpu.map(|(at, row)| cpu_line(at, row, &profile, here)));
    lines
}

/// The rows of one table, and their mean. Boards of one model are interchangeable, so rows are compared in order of speed.
fn rows(table: &Table, profile: &Profile, here: &Here<'_>) -> Vec<Comparison> {
    let mut model = model::speeds_mb_per_s(table, profile);
    model.sort_by(|a, b| b.total_cmp(a));
    let measured = here.speeds(table);
    let mut rows: Vec<&Row> = table.rows.iter().collect();
    rows.sort_by(|a, b| b.speed_mb_per_s.order(&a.speed_mb_per_s));
    let line = |(at, row): (usize, &Row)| {
        let speed = row.speed_mb_per_s.within(&table.place);
        let name = format!("sis8300-{}", row.board);
        Comparison::new(&table.title, name, speed, "MB/s")
            .model(model.get(at).copied())
            .measured(measured.get(at).copied())
    };
    let mut lines: Vec<Comparison> = rows.into_iter().enumerate().map(line).collect();
    lines.push(
        Comparison::new(&table.title, "mean", None, "MB/s")
            .derived(published_mean(table))
            .model(mean(&model))
            .measured(here.mean(&table.id)),
    );
    match table.kind {
        Kind::Readout => lines,
        Kind::Conversion => lines.into_iter().map(Comparison::of_this_host).collect(),
    }
}

pub(super) fn published_mean(table: &Table) -> Option<Derived> {
    let speeds = table.rows.iter().map(|row| &row.speed_mb_per_s);
    Derived::mean(speeds, "mean of the published rows above")
}

/// A CPU figure. Emulated boards do not cost what the document's do, so what is measured is this host's own.
fn cpu_line(at: usize, row: &CpuRow, profile: &Profile, here: &Here<'_>) -> Comparison {
    let how = if row.polling { "poll" } else { "interrupt" };
    let name = format!("{}, {} board(s), {how}", row.title, row.boards);
    Comparison::new("CPU at 14 Hz", name, row.percent.clone(), "% of a core")
        .model(model::cpu_percent(row, profile))
        .measured(here.cpu_percent(at))
        .of_this_host()
}
