//! The screen of a survey: a line for each path, what this host does, changes that pay. Everything
//! else is on the page and in the tables.

use daqmeter_record::units::{plural, significant};
use daqmeter_record::{Host, RunRecord};

use crate::aligned::wrapped;
use crate::families::FAMILIES;
use crate::families::path::chains;
use crate::families::path::overview::{PathRow, rows_text};
use crate::family::Brief;
use crate::rate;

/// Describes a host in one line: CPU, memory, kernel, virtual machine.
pub fn host_text(host: &Host) -> String {
    let release = host.kernel.split([' ', '-']).next().unwrap_or_default();
    let parts = [
        host.cpu_model.clone(),
        plural(u64::from(host.logical_cpus), "CPU"),
        format!("{} GiB", significant(host.memory_bytes as f64 / f64::from(1 << 30), 2)),
        format!("Linux {release}"),
        host.hypervisor.as_ref().map_or(String::new(), |_| "virtual machine".to_owned()),
    ];
    let known: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    wrapped(&known.join(", "), 2) + "\n"
}

/// Writes the screen of the records of a survey.
pub fn screen(records: &[RunRecord]) -> String {
    let chains = chains(records);
    let rows: Vec<&PathRow> = chains.iter().map(|chain| &chain.row).collect();
    let paths = if rows.is_empty() { String::new() } else { rows_text(&rows) };
    let emulated = "e: from an emulated device, says nothing about a real one";
    let emulated = rows.iter().any(|row| row.is_emulated).then(|| wrapped(emulated, 2) + "\n");
    let (host, changes) = briefs(records);
    let changes = changes
        .into_iter()
        .enumerate()
        .map(|(at, (what, gain))| wrapped(&format!("  {}  {what}: {gain}", at + 1), 5) + "\n");
    let sections = [
        ("", paths + &emulated.unwrap_or_default()),
        ("this host", host.iter().map(|line| wrapped(&format!("  {line}"), 4) + "\n").collect()),
        ("worth changing (measured here)", changes.collect()),
    ];
    let shown = sections.into_iter().filter(|(_, text)| !text.is_empty());
    let shown = shown.map(|(title, text)| match title {
        "" => text,
        title => format!("{title}\n{text}"),
    });
    shown.collect::<Vec<_>>().join("\n")
}

type Change = (String, String);

fn briefs(records: &[RunRecord]) -> (Vec<String>, Vec<Change>) {
    let of_host = rate::of_first_host(records);
    let usable = rate::usable(&of_host);
    let (mut host, mut changes) = (Vec::new(), Vec::new());
    let all = FAMILIES.iter().flat_map(|family| family.briefs);
    for brief in all.filter_map(|brief| brief(&usable)) {
        match brief {
            Brief::Host(line) => host.push(line),
            Brief::Change { what, gain } => changes.push((what, gain)),
        }
    }
    (host, changes)
}
