//! A path on one line of the survey's screen and in one row of the page's picture: rate, layout,
//! bottleneck, next step, and the use of each part.

use daqmeter_record::path::{LimitFound, PathLimit, PathRun};
use daqmeter_record::resources::{Resource, What, resources};
use daqmeter_record::units::{percent, plural, significant};
use daqmeter_record::{RunRecord, sanitise};
use serde::Serialize;

use super::facts::{
    Kept, Said, block_ns, has_each_cpu, kept, lines, measured_change, named, said, waits_in_calls,
};
use super::{Run, longest, paths};
use crate::aligned::{TextColumn, table, wrapped};
use crate::family::{all_cpus, prefixed};
use crate::rate;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Chain {
    pub(crate) row: PathRow,
    said: Vec<Said>,
}

pub(crate) fn chains(all: &[RunRecord]) -> Vec<Chain> {
    let found = rate::side_by_side(all, |host, own| {
        let usable = rate::usable(own);
        let chain = |(name, runs): (String, Vec<Run<'_>>)| {
            let (record, run) = longest(&runs)?;
            let limit = runs.iter().rev().find_map(|(_, run)| run.limit.clone());
            let run = PathRun { limit, ..run.clone() };
            let title = rate::on_host(host, &name);
            let row = PathRow::of(&title, &run, record, &resources(record));
            let said = said(&name, &run, record, runs.len());
            Some((name, Chain { said, row }))
        };
        paths(&usable).into_iter().filter_map(chain).collect()
    });
    found.into_iter().flat_map(|(_, own)| own).collect()
}

impl Chain {
    pub(crate) fn text(&self) -> String {
        wrapped(&sanitise::text(&self.row.name), 0) + "\n" + &lines(&self.said)
    }
}

/// Short facts of a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PathRow {
    pub(crate) name: String,
    layout: String,
    /// Rate with its unit.
    carries: String,
    pub(crate) is_emulated: bool,
    /// The bottleneck in two or three words.
    limited_by: String,
    next: String,
    uses: Vec<Use>,
}

/// Use of a part, or of all CPUs, in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Use {
    name: String,
    /// Share of the time of its threads, or of the CPUs.
    percent: f64,
    is_limit: bool,
}

/// Name of the use of all CPUs.
const CPUS: &str = "CPUs";

impl PathRow {
    pub(super) fn of(
        name: &str,
        run: &PathRun,
        record: &RunRecord,
        resources: &[Resource],
    ) -> PathRow {
        let parts = parts(run, resources);
        let cpus = cpus_used(run);
        let (limited_by, limit) = limited_by(run, &parts);
        let of_part = |(name, share): &(String, f64)| Use {
            name: name.clone(),
            percent: (share * 100.0).clamp(0.0, 100.0),
            is_limit: limit.as_ref() == Some(name),
        };
        let uses = parts.iter().cloned().chain([(CPUS.to_owned(), cpus)]);
        PathRow {
            name: name.to_owned(),
            layout: short(&run.layout),
            carries: carries(run),
            is_emulated: record.engine.emulated,
            next: next(run, record, &parts),
            limited_by,
            uses: uses.map(|part| of_part(&part)).collect(),
        }
    }
}

/// Writes a layout without the CPUs of its threads, groups of parts as their number.
fn short(layout: &str) -> String {
    match layout.matches('[').count() {
        0 => layout.split(" on CPU").next().unwrap_or_default().to_owned(),
        groups => plural(groups as u64, "thread"),
    }
}

/// Writes events per second where the path counts events, else bytes per second.
fn carries(run: &PathRun) -> String {
    match run.events {
        0 => prefixed(run.per_s(run.payload_bytes), "B/s"),
        events => prefixed(run.per_s(events), "events/s"),
    }
}

/// Returns each part of the path with its share of the time of its threads. Parts that work in one
/// thread share its time.
fn parts(run: &PathRun, resources: &[Resource]) -> Vec<(String, f64)> {
    let threads = resources.iter().filter(|one| matches!(one.what, What::Threads { .. }));
    let parts = threads.flat_map(|one| {
        one.uses.iter().filter_map(|(element, ns)| {
            let name = run.threads.iter().find_map(|thread| thread.part_of(*element))?;
            // The part of a thread with several elements is called by its first and its last one.
            let name = name.split(" to ").next().unwrap_or(name);
            Some((name.to_owned(), ns / one.capacity / block_ns(run)))
        })
    });
    parts.collect()
}

/// Returns the share of the CPUs' time that the path's threads used.
fn cpus_used(run: &PathRun) -> f64 {
    let used_ns: u64 = run.threads.iter().map(|thread| thread.cpu_ns).fold(0, u64::saturating_add);
    used_ns as f64 / (run.time_ns() as f64 * run.cpus.max(1.0))
}

fn largest(parts: &[(String, f64)]) -> Option<&(String, f64)> {
    parts.iter().max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Returns the bottleneck in words, and the use that it is.
fn limited_by(run: &PathRun, parts: &[(String, f64)]) -> (String, Option<String>) {
    let all = all_cpus(run.cpus);
    let Some(limit) = run.limit.as_ref().filter(|_| !keeps_its_rate(run)) else {
        let words = if run.is_paced { "its own rate" } else { "not searched" };
        return (words.to_owned(), None);
    };
    let name = match &limit.found {
        LimitFound::Limit(What::AllCpus) => return (all, Some(CPUS.to_owned())),
        found if has_each_cpu(run, found) => return (all, Some(CPUS.to_owned())),
        LimitFound::Limit(What::Threads { name, .. }) => name,
        found => return (named(found), None),
    };
    let waits = run.threads.iter().filter(|thread| thread.part == *name).any(waits_in_calls);
    let of_all = parts.iter().find(|(part, _)| part == name);
    match of_all.or_else(|| largest(parts)) {
        Some((part, _)) if waits => ("waiting".to_owned(), Some(part.clone())),
        Some((part, _)) => (part.clone(), Some(part.clone())),
        None => (name.clone(), None),
    }
}

/// Tests if the run had a rate that is not known to be more than the path carries.
fn keeps_its_rate(run: &PathRun) -> bool {
    let is_less = |limit: &PathLimit| {
        limit.rate_bytes_per_s.is_none_or(|own| own < limit.carries_bytes_per_s)
    };
    run.is_paced && run.limit.as_ref().is_none_or(is_less)
}

fn next(run: &PathRun, record: &RunRecord, parts: &[(String, f64)]) -> String {
    match kept(record, run) {
        None | Some(Kept::Yes) => {}
        Some(Kept::TooShort) => return "longer run".to_owned(),
        Some(_) => return "rate not kept".to_owned(),
    }
    let takes = largest(parts).map(|(part, share)| format!("{part} {} %", percent(*share, 2)));
    let limit = run.limit.as_ref().filter(|_| !keeps_its_rate(run));
    match (limit.and_then(measured_change), limit.map(|limit| &limit.found)) {
        (Some((what, gain)), _) => format!("{}: {}x", short(&what), significant(gain.mean, 2)),
        (None, Some(LimitFound::CannotTell)) => "path explain".to_owned(),
        (None, None) if run.is_paced => {
            format!("{} % of a core", percent(cpus_used(run) * run.cpus.max(1.0), 2))
        }
        _ => takes.unwrap_or_else(|| "-".to_owned()),
    }
}

/// Writes a line for each path.
pub(crate) fn rows_text(rows: &[&PathRow]) -> String {
    let columns: [TextColumn<&PathRow>; 5] = [
        ("path", |row| sanitise::text(&row.name).into_owned()),
        ("layout", |row| row.layout.clone()),
        ("carries", |row| format!("{}{}", row.carries, if row.is_emulated { " e" } else { "" })),
        ("limited by", |row| row.limited_by.clone()),
        ("next", |row| row.next.clone()),
    ];
    table(columns.len(), &columns, rows)
}
