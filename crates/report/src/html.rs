//! Self-contained HTML page without external requests.

use std::sync::Arc;

use daqmeter_record::conditions::Conditions;
use daqmeter_record::units::{plural, show_bytes, show_ns, significant};
use daqmeter_record::{Host, RunRecord, sanitise};
use minijinja::{AutoEscape, Environment, context, escape_formatter};
use serde::Serialize;

use crate::advice::advice;
use crate::answers::{PlainAnswer, answers};
use crate::chains::{Chain, chains};
use crate::columns::shown;
use crate::families::{figures, pmu};
use crate::family::Advice;
use crate::faults::without_lanes;
use crate::figures::{Figure, commands};
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
struct Fact {
    name: &'static str,
    value: String,
}

#[derive(Serialize)]
struct MeshView {
    id: String,
    title: String,
    event: String,
    command: String,
    emulated: bool,
    svg: String,
    intervals: usize,
    data: MeshData,
}

#[derive(Serialize)]
struct MeshData {
    times_s: Vec<f64>,
    rates: Vec<Vec<Option<f64>>>,
    most: f64,
}

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

#[derive(Serialize)]
struct StudyView<'a> {
    study: &'a ReproducedStudy,
    summary: String,
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
    let body = body(records, Texts::of(records), figures, studies)?;
    let mut environment = environment();
    environment.add_template("page.html", TEMPLATE)?;
    Ok(environment.get_template("page.html")?.render(context! {
        style => STYLE,
        script => SCRIPT,
        uplot_script => UPLOT_SCRIPT,
        uplot_style => UPLOT_STYLE,
        body => body,
    })?)
}

struct Texts<'a> {
    commands: Vec<&'a str>,
    unsound: Option<String>,
    answers: Vec<PlainAnswer>,
    chains: Vec<Chain>,
    predictions: Vec<predicted::PredictedPath>,
    advice: Vec<Advice>,
    notes: Vec<String>,
    ledgers: Vec<String>,
}

impl<'a> Texts<'a> {
    fn of(records: &'a [RunRecord]) -> Texts<'a> {
        let conditions = Conditions::of(records);
        Texts {
            commands: commands(records),
            unsound: conditions.line().filter(|_| conditions.are_unsound()),
            answers: answers(records),
            chains: chains(records),
            predictions: predictions(records),
            advice: advice(records),
            notes: notes(records),
            ledgers: ledgers(records),
        }
    }
}

fn body(
    records: &[RunRecord],
    texts: Texts<'_>,
    figures: Vec<Figure>,
    studies: &[ReproducedStudy],
) -> Result<String, PageError> {
    let views: Vec<StudyView<'_>> =
        studies.iter().map(|study| StudyView { study, summary: study.summary() }).collect();
    let figures: Vec<DataTable> = figures.into_iter().map(data_table).collect();
    let meshes = mesh_views(records);
    let first = records.first();
    let commands = &texts.commands;
    // A browser lays out a few thousand rows at once; `daqmeter report` has the others.
    let in_table = &records[..records.len().min(MAX_ROWS)];
    let (rows, rows_left) = (rows(in_table), records.len() - in_table.len());
    let mut environment = environment();
    environment.add_template("parts.html", PARTS)?;
    Ok(environment.get_template("parts.html")?.render(context! {
        host => title(records),
        time => first.map(|record| record.time_utc.clone()),
        tool => first.map(|record| format!("{} {} ({}, {})", record.tool.name, record.tool.version, record.tool.git_revision, record.tool.profile)),
        commands => serde(&&commands[..commands.len().min(MAX_COMMANDS)]),
        commands_left => commands.len().saturating_sub(MAX_COMMANDS),
        unsound => texts.unsound,
        emulated => records.iter().any(|record| record.engine.emulated),
        answers => serde(&texts.answers),
        chains => serde(&texts.chains),
        predictions => serde(&texts.predictions),
        about_predictions => predicted::ABOUT,
        advice => serde(&texts.advice),
        rows_left => rows_left,
        studies => serde(&views),
        figures => serde(&figures),
        meshes => serde(&meshes),
        points => serde(&shown(&rows)),
        marks => serde(&rows.iter().map(mark).collect::<Vec<_>>()),
        facts => serde(&facts(records)),
        notes => serde(&texts.notes),
        ledgers => texts.ledgers,
        records => records.len(),
    })?)
}

fn title(records: &[RunRecord]) -> Option<String> {
    /// Limit above which the names would fill the screen.
    const MAX_NAMES: usize = 4;
    let hosts = several::hosts(records);
    match hosts.as_slice() {
        [] => None,
        [_] => {
            let host = &records.first()?.host;
            let name = match host.name.as_str() {
                "" => String::new(),
                name => format!("{name}: "),
            };
            Some(name + &host.cpu_model)
        }
        many if many.len() > MAX_NAMES => Some(format!(
            "{} and {} other hosts",
            many[..MAX_NAMES].join(", "),
            many.len() - MAX_NAMES
        )),
        [most @ .., last] => Some(format!("{} and {last}", most.join(", "))),
    }
}

/// Escapes text as HTML, and shows marks of direction.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) if !value.is_safe() => {
            escape_formatter(out, state, &sanitise::lines(text).as_ref().into())
        }
        _ => escape_formatter(out, state, value),
    });
    environment
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
fn mesh_views(records: &[RunRecord]) -> Vec<MeshView> {
    let mut views = Vec::new();
    for record in records {
        let Some(observed) = &record.observed else {
            continue;
        };
        let heats = pmu::frames(observed);
        for mesh in &observed.meshes {
            let heat = heats.iter().find(|heat| heat.mesh.name == mesh.name);
            let frames = heat
                .map(|heat| &heat.frames[heat.frames.len().saturating_sub(MAX_FRAMES)..])
                .unwrap_or_default();
            let data = MeshData {
                times_s: frames.iter().map(|(end_s, _)| *end_s).collect(),
                rates: frames.iter().map(|(_, rates)| rates.clone()).collect(),
                most: heat.map_or(0.0, pmu::Heat::most),
            };
            views.push(MeshView {
                id: format!("mesh-{}", views.len()),
                title: pmu::map::title(mesh),
                event: heat.map(|heat| heat.event.clone()).unwrap_or_default(),
                command: record.command.to_string(),
                emulated: record.engine.emulated,
                svg: pmu::map::svg(mesh, heat),
                intervals: frames.len(),
                data,
            });
        }
    }
    views
}

fn serde<T: Serialize>(value: &T) -> minijinja::Value {
    minijinja::Value::from(minijinja::value::Serde(value))
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

fn facts(records: &[RunRecord]) -> Vec<Fact> {
    let Some(record) = records.first() else {
        return Vec::new();
    };
    if !record.host.is_known() {
        let value = record.host.cpu_model.clone();
        return vec![Fact { name: "CPU", value }];
    }
    let own = [
        (
            "Clock",
            format!("{}, {} per reading", record.clock.source, show_ns(record.clock.overhead_ns)),
        ),
        (
            "Noise floor",
            format!(
                "{} % (worst {} %)",
                significant(record.noise.relative_mad * 100.0, 2),
                significant(record.noise.relative_worst * 100.0, 2)
            ),
        ),
    ];
    let all = hardware(&record.host).into_iter().chain(software(&record.host)).chain(own);
    all.filter(|(_, value)| !value.is_empty()).map(|(name, value)| Fact { name, value }).collect()
}

fn hardware(host: &Host) -> [(&'static str, String); 6] {
    let cores = format!(
        "{} logical, {}, {}",
        host.logical_cpus,
        plural(u64::from(host.cores), "core"),
        plural(u64::from(host.sockets), "socket")
    );
    [
        ("CPU", host.cpu_model.clone()),
        ("Cores", cores),
        ("Vector sets", host.isa.join(", ")),
        ("Caches", caches(host)),
        ("Memory", show_bytes(host.memory_bytes)),
        ("NUMA nodes", host.numa.len().to_string()),
    ]
}

fn software(host: &Host) -> [(&'static str, String); 6] {
    let or = |value: &Option<String>, absent: &str| value.clone().unwrap_or(absent.to_owned());
    [
        ("Huge pages", huge_pages(host)),
        ("Governor", or(&host.governor, "not reported")),
        ("Kernel", host.kernel.clone()),
        ("Hypervisor", or(&host.hypervisor, "none")),
        ("Mitigations", host.mitigations.join("; ")),
        ("TCP congestion control", host.congestion_control.clone()),
    ]
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
    let mut hosts: Vec<String> = Vec::new();
    // Records of one run share their host.
    let one_after_the_other = records.chunk_by(|a, b| Arc::ptr_eq(&a.host, &b.host));
    for host in one_after_the_other.map(|records| &records[0].host) {
        let host = match host.is_known() {
            true => {
                format!("{}, {} CPUs, kernel {}", host.cpu_model, host.logical_cpus, host.kernel)
            }
            false => host.cpu_model.clone(),
        };
        if hosts.last() != Some(&host) && !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    if hosts.len() > 1 {
        let rest = hosts.split_off(1).join("; ");
        notes.push(format!(
            "records of several hosts are on this page, and the block below is of the first; the others: {rest}"
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
    use crate::examples::{above_its_limit, example};

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
    fn the_command_is_named_once_where_there_is_one() {
        let count = |page: &str, what: &str| page.matches(what).count();
        let one = page(&[example()]).unwrap();
        assert_eq!((count(&one, "Repeat: "), count(&one, "Measured by: ")), (1, 0));
        let mut other = example();
        other.command = "daqmeter survey".into();
        let two = page(&[example(), other]).unwrap();
        assert_eq!((count(&two, "Repeat: "), count(&two, "and: <code>daqmeter survey")), (1, 1));
        assert!(count(&two, "Measured by: ") >= 2);
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
    fn what_failed_and_what_cannot_be_is_marked() {
        let mut failed = example();
        failed.outcome = daqmeter_record::Outcome::Failed("bytes differ".into());
        let page = page(&[failed, above_its_limit()]).unwrap();
        assert_eq!(page.matches(">FAILED").count(), 4);
        assert_eq!(page.matches(">ABOVE ITS LIMIT").count(), 2);
        assert!(page.contains("func_readout is above its limit `link`"));
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
