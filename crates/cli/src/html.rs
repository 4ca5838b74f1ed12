//! One self-contained HTML page: no request leaves it, whatever opens it.

use daqmeter_record::conditions::Conditions;
use daqmeter_record::units::{plural, show_bytes, show_ns, significant};
use daqmeter_record::{Host, RunRecord, sanitise};
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Value, escape_formatter};
use serde::Serialize;

use crate::advice::advice;
use crate::answers::{Answer, answers};
use crate::chains::{Chain, chains};
use crate::columns::{ShownTable, shown};
use crate::families::{figures, pmu};
use crate::family::Advice;
use crate::faults::without_lanes;
use crate::figures::{Figure, commands};
use crate::predicted::{self, predictions};
use crate::rate::warnings;
use crate::rows::rows;
use crate::several;
use crate::studies::Shown;

const TEMPLATE: &str = include_str!("../assets/page.html");
const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");
const UPLOT_SCRIPT: &str = include_str!("../assets/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../assets/uPlot.min.css");

/// The page could not be made.
#[derive(Debug, thiserror::Error)]
#[error("the page could not be made: {0}")]
pub struct RenderError(#[from] minijinja::Error);

/// Content of a page besides that of its records.
#[derive(Default)]
pub struct PageOptions<'a> {
    /// Figures instead of those that the records fill by themselves.
    pub figures: Option<Vec<Figure>>,
    /// Published studies, row by row, instead of answers and advice.
    pub studies: &'a [Shown],
}

/// Values of the template.
#[derive(Serialize)]
struct PageView<'a> {
    style: &'static str,
    script: &'static str,
    uplot_script: &'static str,
    uplot_style: &'static str,
    host: Option<String>,
    time: &'a str,
    tool: Option<String>,
    records: usize,
    commands: &'a [&'a str],
    commands_left: usize,
    unsound: Option<String>,
    emulated: bool,
    answers: Vec<Answer>,
    chains: Vec<Chain>,
    predictions: Vec<predicted::Beside>,
    about_predictions: &'static str,
    advice: Vec<Advice>,
    studies: Vec<StudyView<'a>>,
    figures: Vec<FigureView>,
    meshes: Vec<MeshView<'a>>,
    points: ShownTable,
    /// Of each point: a fault, and its share of the limit in per cent.
    marks: Vec<(bool, String)>,
    rows_left: usize,
    facts: Vec<(&'static str, String)>,
    notes: Vec<String>,
    ledgers: Vec<String>,
}

#[derive(Serialize)]
struct StudyView<'a> {
    study: &'a Shown,
    summary: String,
}

/// A figure and its numbers as a table, for those who cannot see the chart or want to copy them.
#[derive(Serialize)]
struct FigureView {
    figure: Figure,
    headings: Vec<String>,
    lines: Vec<Vec<String>>,
}

/// A mesh with the rates of its nodes, for a picture that plays.
#[derive(Serialize)]
struct MeshView<'a> {
    id: String,
    title: String,
    event: String,
    command: &'a str,
    emulated: bool,
    svg: String,
    intervals: usize,
    data: MeshData,
}

/// Values for the script of a mesh.
#[derive(Serialize)]
struct MeshData {
    times_s: Vec<f64>,
    rates: Vec<Vec<Option<f64>>>,
    most: f64,
}

/// Maximum number of commands that the page names.
const MAX_COMMANDS: usize = 20;
/// Maximum number of records in the page's table: a browser lays out some thousand rows at once.
const MAX_ROWS: usize = 2000;
/// Maximum number of lines in its lists.
const MAX_LINES: usize = 300;
/// Maximum number of pictures of one mesh.
const MAX_FRAMES: usize = 3600;

/// Makes the page.
///
/// # Errors
/// When the template fails, which its test rules out.
pub fn page(records: &[RunRecord], options: PageOptions<'_>) -> Result<String, RenderError> {
    let conditions = Conditions::of(records);
    let first = records.first();
    let commands = commands(records);
    let in_table = &records[..records.len().min(MAX_ROWS)];
    let rows = rows(in_table);
    let is_fault = |row: &crate::StageRow| {
        row.undone().is_some() || row.doubt.is_some() || !row.disturbed.is_empty()
    };
    let width = |fraction: Option<f64>| fraction.unwrap_or(0.0).clamp(0.0, 1.0) * 100.0;
    let tool = |record: &RunRecord| {
        let tool = &record.tool;
        format!("{} {} ({}, {})", tool.name, tool.version, tool.git_revision, tool.profile)
    };
    let view = PageView {
        style: STYLE,
        script: SCRIPT,
        uplot_script: UPLOT_SCRIPT,
        uplot_style: UPLOT_STYLE,
        host: title(records),
        time: first.map_or("", |record| &record.time_utc),
        tool: first.map(tool),
        records: records.len(),
        commands: &commands[..commands.len().min(MAX_COMMANDS)],
        commands_left: commands.len().saturating_sub(MAX_COMMANDS),
        unsound: conditions.line().filter(|_| conditions.are_unsound()),
        emulated: records.iter().any(|record| record.engine.emulated),
        answers: answers(records),
        chains: chains(records),
        predictions: predictions(records),
        about_predictions: predicted::ABOUT,
        advice: advice(records),
        studies: options
            .studies
            .iter()
            .map(|study| StudyView { study, summary: study.summary() })
            .collect(),
        figures: options
            .figures
            .unwrap_or_else(|| figures(records))
            .into_iter()
            .map(FigureView::of)
            .collect(),
        meshes: meshes(records),
        marks: rows
            .iter()
            .map(|row| (is_fault(row), format!("{:.0}", width(row.fraction))))
            .collect(),
        points: shown(&rows),
        rows_left: records.len() - in_table.len(),
        facts: facts(first),
        notes: notes(records),
        ledgers: ledgers(records),
    };
    let mut environment = environment();
    environment.add_template("page.html", TEMPLATE)?;
    Ok(environment.get_template("page.html")?.render(Value::from(Serde(&view)))?)
}

/// Origin of the records on the page: the CPU of one host, the names of several.
fn title(records: &[RunRecord]) -> Option<String> {
    /// Limit above which the names would fill the screen.
    const MAX_NAMES: usize = 4;
    let hosts = several::hosts(records);
    match hosts.as_slice() {
        [] => None,
        [_] => {
            let host = &records.first()?.host;
            let name = host.name.as_str();
            let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
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

/// Text on the page is escaped as HTML, and what would turn its direction is shown.
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

/// The first of the lines, and the number of those that are left out.
fn first_lines(mut lines: Vec<String>, what: &str) -> Vec<String> {
    let left = lines.len().saturating_sub(MAX_LINES);
    if left > 0 {
        lines.truncate(MAX_LINES);
        lines.push(format!("and {left} more {what}: they are in the records"));
    }
    lines
}

fn ledgers(records: &[RunRecord]) -> Vec<String> {
    let of = |record: &RunRecord| -> Vec<String> {
        record.ledgers.iter().map(|ledger| format!("{}: {ledger}", record.study)).collect()
    };
    first_lines(records.iter().flat_map(of).collect(), "ledgers")
}

/// Every mesh whose nodes were counted, and those of records that only draw one.
fn meshes(records: &[RunRecord]) -> Vec<MeshView<'_>> {
    let mut views = Vec::new();
    for record in records {
        let Some(observed) = &record.observed else {
            continue;
        };
        let heats = pmu::frames(observed);
        for mesh in &observed.meshes {
            let heat = heats.iter().find(|heat| heat.mesh.name == mesh.name);
            let frames = heat.map_or(&[][..], |heat| &heat.frames);
            let frames = &frames[frames.len().saturating_sub(MAX_FRAMES)..];
            let (times_s, rates) = frames.iter().cloned().unzip();
            views.push(MeshView {
                id: format!("mesh-{}", views.len()),
                title: pmu::map::title(mesh),
                event: heat.map(|heat| heat.event.clone()).unwrap_or_default(),
                command: &record.command,
                emulated: record.engine.emulated,
                svg: pmu::map::svg(mesh, heat),
                intervals: frames.len(),
                data: MeshData { times_s, rates, most: heat.map_or(0.0, pmu::Heat::most) },
            });
        }
    }
    views
}

impl FigureView {
    fn of(figure: Figure) -> FigureView {
        /// Limit above which numbers are not read.
        const MAX_PLACES: usize = 60;
        let labels = figure.series.iter().map(|series| series.label.clone());
        let headings = std::iter::once(figure.x.label.to_owned()).chain(labels).collect();
        let place = |at: usize| match figure.categories.get(at) {
            Some(name) => name.clone(),
            None if figure.x.unit == "bytes" => show_bytes(figure.xs[at] as u64),
            None => significant(figure.xs[at], 4),
        };
        let line = |at: usize| -> Vec<String> {
            let value = |y: Option<f64>| y.map_or(String::new(), |y| significant(y, 4));
            let cells = figure.series.iter().map(|series| value(series.ys[at]));
            std::iter::once(place(at)).chain(cells).collect()
        };
        let places = if figure.xs.len() <= MAX_PLACES { figure.xs.len() } else { 0 };
        FigureView { headings, lines: (0..places).map(line).collect(), figure }
    }
}

fn facts(record: Option<&RunRecord>) -> Vec<(&'static str, String)> {
    let Some(record) = record else {
        return Vec::new();
    };
    let (host, clock, noise) = (&record.host, &record.clock, &record.noise);
    if !host.is_known() {
        return vec![("CPU", host.cpu_model.clone())];
    }
    let or = |value: &Option<String>, absent: &str| value.clone().unwrap_or(absent.to_owned());
    let percent = |share: f64| significant(share * 100.0, 2);
    let (cores, sockets) = (u64::from(host.cores), u64::from(host.sockets));
    let (cores, sockets) = (plural(cores, "core"), plural(sockets, "socket"));
    let (typical, worst) = (percent(noise.relative_mad), percent(noise.relative_worst));
    let mut all = vec![
        ("CPU", host.cpu_model.clone()),
        ("Cores", format!("{} logical, {cores}, {sockets}", host.logical_cpus)),
        ("Vector sets", host.isa.join(", ")),
        ("Caches", caches(host)),
        ("Memory", show_bytes(host.memory_bytes)),
        ("NUMA nodes", host.numa.len().to_string()),
        ("Huge pages", huge_pages(host)),
        ("Governor", or(&host.governor, "not reported")),
        ("Kernel", host.kernel.clone()),
        ("Hypervisor", or(&host.hypervisor, "none")),
        ("Mitigations", host.mitigations.join("; ")),
        ("TCP congestion control", host.congestion_control.clone()),
        ("Clock", format!("{}, {} per reading", clock.source, show_ns(clock.overhead_ns))),
        ("Noise floor", format!("{typical} % (worst {worst} %)")),
    ];
    all.retain(|(_, value)| !value.is_empty());
    all
}

fn caches(host: &Host) -> String {
    let caches = host.caches.iter().filter(|cache| cache.kind != "Instruction");
    let caches = caches.map(|cache| {
        let (level, bytes) = (cache.level, show_bytes(cache.bytes));
        let count = if cache.count > 1 { format!("{} x ", cache.count) } else { String::new() };
        format!("{count}L{level} {bytes} (shared by {})", cache.shared_by)
    });
    caches.collect::<Vec<_>>().join(" · ")
}

fn huge_pages(host: &Host) -> String {
    let pools = host.huge_pages.iter().map(|pool| {
        let (free, total) = (pool.free, pool.total);
        format!("{free} of {total} free: {}", show_bytes(pool.page_bytes))
    });
    let pools: Vec<String> = pools.collect();
    format!("transparent: {}; {}", host.transparent_huge_pages, pools.join(", "))
}

fn notes(records: &[RunRecord]) -> Vec<String> {
    let mut notes: Vec<String> = without_lanes(records)
        .map(|(record, how, why)| format!("{} {}: {how}: {why}", record.study, record.engine.name))
        .collect();
    for record in records {
        let lines = warnings(record).into_iter().chain(record.outcome.reason().map(str::to_owned));
        notes.extend(lines.map(|line| format!("{}: {line}", record.study)));
    }
    if let [_, others @ ..] = &several::hosts(records)[..]
        && !others.is_empty()
    {
        notes.push(format!(
            "records of several hosts are on this page, and the block below is of the first; the others: {}",
            others.join("; ")
        ));
    }
    notes.sort();
    notes.dedup();
    first_lines(notes, "notes")
}
