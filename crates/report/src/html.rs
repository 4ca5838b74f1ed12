//! Self-contained HTML page without external requests.

use daqmeter_record::conditions::Conditions;
use daqmeter_record::units::{plural, show_bytes, show_ns, significant};
use daqmeter_record::{Host, RunRecord, sanitise};
use minijinja::{AutoEscape, Environment, Value, context, escape_formatter};
use serde::Serialize;

use crate::advice::advice;
use crate::answers::answers;
use crate::columns::shown;
use crate::families::{figures, pmu};
use crate::faults::without_lanes;
use crate::figures::{Figure, commands};
use crate::findings::chains;
use crate::predicted::{self, predictions};
use crate::rate::warnings;
use crate::rows::{StageRow, rows};
use crate::several;
use crate::studies::ReproducedStudy;

const TEMPLATE: &str = include_str!("../assets/page.html");
const PARTS: &str = include_str!("../assets/parts.html");
const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");
const UPLOT_SCRIPT: &str = include_str!("../assets/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../assets/uPlot.min.css");

#[derive(Debug, thiserror::Error)]
#[error("the page could not be made: {0}")]
pub struct PageError(#[from] minijinja::Error);

#[derive(Serialize)]
struct DataTable {
    figure: Figure,
    headings: Vec<String>,
    lines: Vec<Vec<String>>,
}

/// Makes the page of records.
///
/// # Errors
/// Fails if the template does, which its test rules out.
pub fn page(records: &[RunRecord]) -> Result<String, PageError> {
    page_of(records, figures(records), &[])
}

/// Makes the page of records with these figures and studies.
///
/// # Errors
/// As [`page`].
pub fn page_of(
    records: &[RunRecord],
    figures: Vec<Figure>,
    studies: &[ReproducedStudy],
) -> Result<String, PageError> {
    let body = body(records, figures, studies)?;
    let values = context! {
        style => STYLE,
        script => SCRIPT,
        uplot_script => UPLOT_SCRIPT,
        uplot_style => UPLOT_STYLE,
        body => body,
    };
    rendered("page.html", TEMPLATE, values)
}

/// Fills a template. Text is escaped, and marks of direction are shown.
pub(crate) fn rendered(name: &str, template: &str, values: Value) -> Result<String, PageError> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) if !value.is_safe() => {
            escape_formatter(out, state, &sanitise::lines(text).as_ref().into())
        }
        _ => escape_formatter(out, state, value),
    });
    Ok(environment.render_named_str(name, template, values)?)
}

pub(crate) fn serde<T: Serialize>(value: T) -> Value {
    Value::from(minijinja::value::Serde(value))
}

fn body(
    records: &[RunRecord],
    figures: Vec<Figure>,
    studies: &[ReproducedStudy],
) -> Result<String, PageError> {
    let conditions = Conditions::of(records);
    let summary =
        |study: &ReproducedStudy| context! { study => serde(study), summary => study.summary() };
    let commands = commands(records);
    let tool = records.first().map(|record| {
        let tool = &record.tool;
        format!("{} {} ({}, {})", tool.name, tool.version, tool.git_revision, tool.profile)
    });
    // A browser lays out a few thousand rows at once; `daqmeter report` has the others.
    let in_table = &records[..records.len().min(MAX_ROWS)];
    let rows = rows(in_table);
    let values = context! {
        host => title(records),
        time => records.first().map(|record| record.time_utc.clone()),
        tool => tool,
        commands => serde(&commands[..commands.len().min(MAX_COMMANDS)]),
        commands_left => commands.len().saturating_sub(MAX_COMMANDS),
        unsound => conditions.line().filter(|_| conditions.are_unsound()),
        emulated => records.iter().any(|record| record.engine.emulated),
        answers => serde(answers(records)),
        chains => serde(chains(records)),
        predictions => serde(predictions(records)),
        about_predictions => predicted::ABOUT,
        advice => serde(advice(records)),
        rows_left => records.len() - in_table.len(),
        studies => studies.iter().map(summary).collect::<Vec<_>>(),
        figures => serde(figures.into_iter().map(data_table).collect::<Vec<_>>()),
        meshes => mesh_views(records),
        points => serde(shown(&rows)),
        marks => serde(rows.iter().map(mark).collect::<Vec<_>>()),
        facts => serde(facts(records)),
        notes => notes(records),
        ledgers => ledgers(records),
        records => records.len(),
    };
    rendered("parts.html", PARTS, values)
}

fn title(records: &[RunRecord]) -> Option<String> {
    /// Limit above which the names would fill the screen.
    const MAX_NAMES: usize = 4;
    let host = &records.first()?.host;
    let hosts = several::hosts(records);
    Some(match hosts.len() {
        1 if host.name.is_empty() => host.cpu_model.clone(),
        1 => format!("{}: {}", host.name, host.cpu_model),
        2..=MAX_NAMES => hosts.join(" and "),
        count => format!("{} and {} other hosts", hosts[0], count - 1),
    })
}

fn ledgers(records: &[RunRecord]) -> Vec<String> {
    let all = records.iter().flat_map(|record| {
        let ledgers = record.ledgers.iter();
        ledgers.map(|ledger| (&*record.study, ledger))
    });
    let count = all.clone().count();
    let shown = all.map(|(study, ledger)| format!("{study}: {ledger}"));
    first_lines(shown, count, "ledgers")
}

const MAX_COMMANDS: usize = 20;
const MAX_ROWS: usize = 2000;
const MAX_LINES: usize = 300;

fn first_lines(lines: impl Iterator<Item = String>, count: usize, what: &str) -> Vec<String> {
    let mut lines: Vec<String> = lines.take(MAX_LINES).collect();
    let left = count - lines.len();
    if left > 0 {
        lines.push(format!("and {left} more {what}: they are in the records"));
    }
    lines
}

const MAX_FRAMES: usize = 3600;

/// Returns every mesh with counted nodes, and those of records that only draw one.
fn mesh_views(records: &[RunRecord]) -> Vec<Value> {
    let mut views = Vec::new();
    for record in records {
        let Some(observed) = &record.observed else { continue };
        let heats = pmu::frames(observed);
        for mesh in &observed.meshes {
            let heat = heats.iter().find(|heat| heat.mesh.name == mesh.name);
            let frames = heat.map_or(&[][..], |heat| &heat.frames);
            let frames = &frames[frames.len().saturating_sub(MAX_FRAMES)..];
            let (times_s, rates): (Vec<f64>, Vec<&Vec<Option<f64>>>) =
                frames.iter().map(|(end_s, rates)| (end_s, rates)).unzip();
            views.push(context! {
                id => format!("mesh-{}", views.len()),
                title => pmu::map::title(mesh),
                event => heat.map(|heat| heat.event.clone()),
                command => record.command.to_string(),
                emulated => record.engine.emulated,
                svg => pmu::map::svg(mesh, heat),
                intervals => frames.len(),
                data => context! {
                    times_s => times_s,
                    rates => serde(rates),
                    most => heat.map_or(0.0, pmu::Heat::most),
                },
            });
        }
    }
    views
}

fn data_table(figure: Figure) -> DataTable {
    let mut headings = vec![figure.x.label.to_owned()];
    headings.extend(figure.series.iter().map(|series| series.label.clone()));
    let first = |at: usize| match (figure.categories.get(at), figure.x.unit) {
        (Some(name), _) => name.clone(),
        (None, "bytes") => show_bytes(figure.xs[at] as u64),
        (None, _) => significant(figure.xs[at], 4),
    };
    let line = |at: usize| -> Vec<String> {
        let cells = figure
            .series
            .iter()
            .map(|series| series.ys[at].map_or(String::new(), |y| significant(y, 4)));
        std::iter::once(first(at)).chain(cells).collect()
    };
    let lines =
        if figure.xs.len() <= 60 { (0..figure.xs.len()).map(line).collect() } else { Vec::new() };
    DataTable { headings, lines, figure }
}

/// Returns for each point a fault, and its share of the limit in per cent, for the width of a bar.
fn mark(row: &StageRow) -> (bool, String) {
    let is_fault = row.undone().is_some() || row.is_above_limit || !row.disturbed.is_empty();
    (is_fault, format!("{:.0}", row.fraction.unwrap_or(0.0).clamp(0.0, 1.0) * 100.0))
}

/// Returns names and values of the first record's host.
fn facts(records: &[RunRecord]) -> Vec<(&'static str, String)> {
    let Some(RunRecord { host, clock, noise, .. }) = records.first() else {
        return Vec::new();
    };
    if !host.is_known() {
        return vec![("CPU", host.cpu_model.clone())];
    }
    let cores = plural(u64::from(host.cores), "core");
    let sockets = plural(u64::from(host.sockets), "socket");
    let percent = |share: f64| significant(share * 100.0, 2);
    let all = vec![
        ("CPU", host.cpu_model.clone()),
        ("Cores", format!("{} logical, {cores}, {sockets}", host.logical_cpus)),
        ("Vector sets", host.isa.join(", ")),
        ("Caches", caches(host)),
        ("Memory", show_bytes(host.memory_bytes)),
        ("NUMA nodes", host.numa.len().to_string()),
        ("Huge pages", huge_pages(host)),
        ("Governor", host.governor.clone().unwrap_or("not reported".to_owned())),
        ("Kernel", host.kernel.clone()),
        ("Hypervisor", host.hypervisor.clone().unwrap_or("none".to_owned())),
        ("Mitigations", host.mitigations.join("; ")),
        ("TCP congestion control", host.congestion_control.clone()),
        ("Clock", format!("{}, {} per reading", clock.source, show_ns(clock.overhead_ns))),
        (
            "Noise floor",
            format!(
                "{} % (worst {} %)",
                percent(noise.relative_mad),
                percent(noise.relative_worst)
            ),
        ),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn caches(host: &Host) -> String {
    let caches = host.caches.iter().filter(|cache| cache.kind != "Instruction");
    let caches = caches.map(|cache| {
        let (level, bytes) = (cache.level, show_bytes(cache.bytes));
        let count = match cache.count {
            0 | 1 => String::new(),
            count => format!("{count} x "),
        };
        format!("{count}L{level} {bytes} (shared by {})", cache.shared_by)
    });
    caches.collect::<Vec<_>>().join(" · ")
}

fn huge_pages(host: &Host) -> String {
    let pools = host.huge_pages.iter().map(|pool| {
        let (free, total) = (pool.free, pool.total);
        format!("{free} of {total} free: {}", show_bytes(pool.page_bytes))
    });
    format!(
        "transparent: {}; {}",
        host.transparent_huge_pages,
        pools.collect::<Vec<_>>().join(", ")
    )
}

fn notes(records: &[RunRecord]) -> Vec<String> {
    let mut notes: Vec<String> = without_lanes(records)
        .map(|(record, how, why)| format!("{} {}: {how}: {why}", record.study, record.engine.name))
        .collect();
    for record in records {
        notes.extend(
            warnings(record).into_iter().map(|warning| format!("{}: {warning}", record.study)),
        );
        notes.extend(record.outcome.reason().map(|reason| format!("{}: {reason}", record.study)));
    }
    let hosts = several::hosts(records);
    if hosts.len() > 1 {
        notes.push(format!(
            "records of several hosts are on this page, and the block below is of the first: {}",
            hosts.join("; ")
        ));
    }
    notes.sort();
    notes.dedup();
    let count = notes.len();
    first_lines(notes.into_iter(), count, "notes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::example;

    #[test]
    fn the_page_of_a_host_that_was_not_quiet_says_so_at_its_head_and_in_its_rows() {
        let quiet = page(&[example()]).unwrap();
        assert!(!quiet.contains("UNSOUND"));
        let page = page(&[crate::examples::disturbed()]).unwrap();
        let head = &page[..page.find("<main>").unwrap()];
        assert!(
            head.contains("UNSOUND: other programs took 90 % of the time of all CPUs"),
            "{head}"
        );
        assert!(page.matches("UNSOUND: foreign load").count() >= 4);
    }

    #[test]
    fn a_mesh_is_drawn_once_and_its_name_is_escaped() {
        let mut record = example();
        let mut observed = crate::families::pmu::heat::tests::example();
        observed.meshes[0].name = "arm_cmn_0".into();
        observed.events[0].pmu = "arm_cmn_0".into();
        observed.meshes[0].nodes[0].kind = "<script>alert(1)</script>".into();
        observed.meshes[0].crosspoints[0].ports[0] = "<script>alert(1)</script>".into();
        record.observed = Some(Box::new(observed));
        let page = page(&[record]).unwrap();
        assert_eq!(page.matches("class=\"mesh\"").count(), 1);
        assert!(page.contains("id=\"mesh-0\"") && !page.contains("<script>alert(1)"));
    }

    #[test]
    fn the_page_is_whole_and_asks_nobody() {
        let page = page(&[example()]).unwrap();
        assert!(page.contains("default-src 'none'"));
        for outside in ["src=\"http", "href=\"http", "@import", "url(http"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("daqmeter digitizer emu:ku0 emu:l0 -S 3000000 -N 3 -A 4"));
    }

    #[test]
    fn a_hostile_name_is_only_text() {
        let mut record = example();
        record.lanes[0].device = "</script><img src=x onerror=alert(1)>".into();
        record.host = std::sync::Arc::new(daqmeter_record::Host {
            cpu_model: "\u{202e}<b>".into(),
            ..Default::default()
        });
        let page = page(&[record]).unwrap();
        assert!(
            !page.contains('\u{202e}') && page.contains("\\u202e&lt;b&gt;"),
            "nor does it turn the text around"
        );
        assert!(!page.contains("<img src=x"), "no tag comes from a record");
        assert!(!page.contains("<script>alert"), "nor from the CPU model");
    }

    #[test]
    fn the_page_without_its_libraries() {
        let page = page(&[example()]).unwrap();
        let lean = page
            .replace(UPLOT_SCRIPT, "[uPlot]")
            .replace(UPLOT_STYLE, "[uPlot style]")
            .replace(SCRIPT, "[script]");
        insta::assert_snapshot!(lean.replace(STYLE, "[style]"));
    }

    #[test]
    fn every_section_is_a_part_with_a_name_of_its_own() {
        let mut observed = example();
        observed.observed = Some(Box::new(crate::families::pmu::heat::tests::example()));
        let page = page(&[observed]).unwrap();
        let keys: Vec<&str> = page
            .match_indices("\n<section")
            .map(|(at, _)| page[at..].split("data-part=\"").nth(1).unwrap())
            .map(|rest| rest.split('"').next().unwrap())
            .collect();
        let mut distinct = keys.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(keys.len() > 6 && distinct.len() == keys.len(), "{keys:?}");
    }

    #[test]
    fn no_records_still_make_a_page() {
        assert!(page(&[]).unwrap().contains("No records"));
    }
}
