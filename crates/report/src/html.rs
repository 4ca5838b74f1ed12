//! Self-contained HTML page without external requests.

use std::borrow::Cow;
use std::collections::BTreeSet;

use daqmeter_record::units::{joined, plural, show_bytes, show_ns, significant};
use daqmeter_record::{Host, Mesh, RunRecord};
use minijinja::{Value, context};

use crate::answers::answers;
use crate::columns::shown;
use crate::families::felix::maps;
use crate::families::path::chains;
use crate::families::{figures, pmu};
use crate::faults::absent;
use crate::figures::{Figure, commands};
use crate::headline::disturbed;
use crate::history::{self, Trend};
use crate::levels::host_line;
use crate::names::Names;
use crate::points::middle_runs;
use crate::rate::{above_limits, by_host, first_hosts, of_hosts, on_host};
use crate::rows::{StageRow, by_point, rows_among};
use crate::studies::ReproducedStudy;
use crate::template::{rendered, serde};
use crate::words::label;

const PAGE: &str = include_str!("../assets/page.html");
pub(crate) const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");
const UPLOT_SCRIPT: &str = include_str!("../assets/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../assets/uPlot.min.css");

/// Makes the index of pages, of which each has a number, a name and a size.
pub fn index_page(pages: &[[String; 3]]) -> String {
    rendered("index.html", include_str!("../assets/index.html"), context! { pages => serde(pages) })
}

pub fn page(records: &[RunRecord]) -> String {
    page_of(records, figures(records), &[])
}

/// Makes the page of records with these figures and studies.
pub fn page_of(records: &[RunRecord], figures: Vec<Figure>, studies: &[ReproducedStudy]) -> String {
    let summary =
        |study: &ReproducedStudy| context! { study => serde(study), summary => study.summary() };
    let (records, more) = &first_hosts(records);
    let (commands, hosts) = (commands(&**records), by_host(records));
    let tools = records.iter().map(|record| {
        let tool = &record.tool;
        format!("{} {} ({}, {})", tool.name, tool.version, tool.git_revision, tool.profile)
    });
    // A browser lays out a few thousand rows at once; `daqmeter report` has the others.
    let trends = history::trends(records, IGNORED);
    let trends: Vec<&Trend> = trends.iter().filter(|trend| trend.runs.len() >= MANY_RUNS).collect();
    let newest = if trends.is_empty() { Cow::Borrowed(&**records) } else { newest(records) };
    let in_table = &middle_runs(&newest)[..];
    let in_table = &in_table[..in_table.len().min(MAX_ROWS)];
    let (rows, names) = (by_point(rows_among(in_table, &newest)), Names::of(&**records));
    let values = context! {
        style => STYLE,
        script => SCRIPT,
        uplot_script => UPLOT_SCRIPT,
        uplot_style => UPLOT_STYLE,
        host => title(&hosts),
        more_hosts => more,
        time => records.first().map(|record| record.time_utc.clone()),
        tool => joined(tools.collect::<BTreeSet<_>>(), "; "),
        commands => serde(&commands[..commands.len().min(MAX_COMMANDS)]),
        commands_left => commands.len().saturating_sub(MAX_COMMANDS),
        conditions => of_hosts(records, host_line),
        emulated => records.iter().any(|record| record.engine.emulated),
        answers => serde(answers(records)),
        chains => serde(chains(records)),
        rows_left => newest.len() - in_table.len(),
        disturbed => disturbed(records),
        trends => trends.iter().take(MAX_ROWS).map(|trend| over_time(trend, hosts.len() > 1)).collect::<Vec<_>>(),
        studies => studies.iter().map(summary).collect::<Vec<_>>(),
        figures => figures.into_iter().map(data_table).collect::<Vec<_>>(),
        meshes => hosts.iter().flat_map(|(host, own)| mesh_views(host, own)).collect::<Vec<_>>(),
        missing => hosts.iter().flat_map(|(host, own)| maps(host, own)).collect::<Vec<_>>(),
        points => serde(shown(&rows)),
        marks => serde(rows.iter().map(mark).collect::<Vec<_>>()),
        hosts => hosts.iter().map(|(name, own)| context! { name, facts => serde(facts(own)) }).collect::<Vec<_>>(),
        notes => first_lines(of_hosts(records, |own| notes(own, &names)), "notes"),
        ledgers => first_lines(of_hosts(records, |own| ledgers(own, &names)), "ledgers"),
        records => records.len(),
    };
    rendered("page.html", PAGE, values)
}

/// Fewest runs of a point over time.
const MANY_RUNS: usize = 3;
/// Largest change that counts as none, as in `daqmeter history`.
const IGNORED: f64 = 0.02;

/// Returns the newest run of each host.
fn newest(records: &[RunRecord]) -> Cow<'_, [RunRecord]> {
    let time = |record: &RunRecord| (record.time_utc.clone(), record.run_id.clone());
    let newest = by_host(records).into_iter().flat_map(|(_, own)| {
        let last = own.iter().map(time).max().unwrap_or_default().1;
        own.into_owned().into_iter().filter(move |record| record.run_id == last)
    });
    newest.collect()
}

fn over_time(trend: &Trend, is_of_several: bool) -> Value {
    let [first_ns, last_ns] = trend.ends_ns();
    context! {
        point => on_host(if is_of_several { &trend.identity.host } else { "" }, &trend.point),
        svg => sparkline(trend),
        first => show_ns(first_ns),
        last => show_ns(last_ns),
        ratio => format!("{:.3}", last_ns / first_ns),
        bound => trend.shown_bound(),
    }
}

/// Draws the times of a trend, from the least to the largest, with a ring at sudden changes.
fn sparkline(trend: &Trend) -> String {
    const WIDTH: f64 = 180.0;
    const HEIGHT: f64 = 26.0;
    let times = || trend.runs.iter().map(|run| run.time_ns);
    let (low, high) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let place = |(at, ns): (usize, f64)| {
        let x = 4.0 + (WIDTH - 8.0) * at as f64 / (trend.runs.len() - 1) as f64;
        // A hundredth of the time fills the height at most.
        let y = (ns - low) / (high - low).max(low * 0.01);
        (x, HEIGHT - 4.0 - (HEIGHT - 8.0) * y)
    };
    let places: Vec<(f64, f64)> = times().enumerate().map(place).collect();
    let line: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let ring = |at: usize| {
        let (x, y) = places[at];
        format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>")
    };
    let rings: String = trend.changes.iter().map(|change| ring(change.at)).collect();
    format!(
        "<svg class=\"spark\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{} runs\"><path d=\"M{}\"/>{rings}</svg>",
        trend.runs.len(),
        line.join("L")
    )
}

fn title(hosts: &[(String, Cow<'_, [RunRecord]>)]) -> Option<String> {
    let host = &hosts.first()?.1.first()?.host;
    let names = joined(hosts.iter().map(|(name, _)| name.as_str()), ", ");
    let of_one = || on_host(&host.name, &host.cpu_model);
    Some(names.filter(|names| !names.is_empty()).unwrap_or_else(of_one))
}

/// Returns the accounts with a loss, and those that do not close.
fn ledgers(records: &[RunRecord], names: &Names) -> Vec<String> {
    let all = records.iter().flat_map(|record| {
        let lossy = record.ledgers.iter().filter(|ledger| ledger.lost() > 0 || !ledger.closes());
        lossy.map(|ledger| format!("{}: {ledger}", names.of_record(record)))
    });
    all.collect()
}

const MAX_COMMANDS: usize = 20;
const MAX_ROWS: usize = 2000;
const MAX_LINES: usize = 300;
/// Most places of a figure with a table.
const MAX_PLACES: usize = 60;

fn first_lines(mut lines: Vec<String>, what: &str) -> Vec<String> {
    let left = lines.len().saturating_sub(MAX_LINES);
    lines.truncate(MAX_LINES);
    if left > 0 {
        lines.push(format!("and {left} more {what}: they are in the records"));
    }
    lines
}

/// Returns every mesh of a host, with the mean rates of its counted nodes.
fn mesh_views(host: &str, records: &[RunRecord]) -> Vec<Value> {
    let observed =
        records.iter().filter_map(|record| Some((record, record.sections.observed.as_deref()?)));
    let views = observed.flat_map(|(record, observed)| {
        let heats = pmu::heats(observed, None);
        let view = |mesh: &Mesh| {
            let heat = heats.iter().find(|heat| heat.mesh.name == mesh.name);
            context! {
                title => on_host(host, &pmu::map::title(mesh)),
                event => heat.map(|heat| &heat.event),
                command => record.command.as_str(),
                emulated => record.engine.emulated,
                svg => pmu::map::svg(mesh, heat),
            }
        };
        observed.meshes.iter().map(view).collect::<Vec<_>>()
    });
    views.collect()
}

/// Returns a figure and its table.
fn data_table(figure: Figure) -> Value {
    let mut headings = vec![figure.x.label.to_owned()];
    headings.extend(figure.series.iter().map(|series| series.label.clone()));
    let first = |at: usize| match (figure.categories.get(at), figure.x.unit) {
        (Some(name), _) => name.clone(),
        (None, "bytes") => show_bytes(figure.xs[at] as u64),
        (None, _) => significant(figure.xs[at], 4),
    };
    let line = |at: usize| -> Vec<String> {
        let values = figure.series.iter().map(|series| series.ys[at]);
        let cells = values.map(|y| y.map_or(String::new(), |y| significant(y, 4)));
        std::iter::once(first(at)).chain(cells).collect()
    };
    let shown = if figure.xs.len() <= MAX_PLACES { figure.xs.len() } else { 0 };
    let lines: Vec<Vec<String>> = (0..shown).map(line).collect();
    context! { headings, lines, json => json(&figure), figure => serde(figure) }
}

/// Writes JSON that stands in an element of a page: none of its characters ends the element.
fn json(value: &impl serde::Serialize) -> Value {
    let text = serde_json::to_string(value).expect("plain data");
    let escapes = [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\'', "\\u0027")];
    let escaped = escapes.into_iter().fold(text, |text, (mark, escape)| text.replace(mark, escape));
    Value::from_safe_string(escaped)
}

/// Returns for each point a fault, and its share of the limit in per cent, for the width of a bar.
fn mark(row: &StageRow<'_>) -> (bool, String) {
    let is_fault = row.undone().is_some() || row.is_above_limit();
    let fraction = row.share.map_or(0.0, |share| share.fraction);
    (is_fault, format!("{:.0}", fraction.clamp(0.0, 1.0) * 100.0))
}

/// Returns names and values of the host of records.
fn facts(records: &[RunRecord]) -> Vec<(&'static str, String)> {
    let Some(RunRecord { host, clock, .. }) = records.first() else {
        return Vec::new();
    };
    if !host.is_known() {
        return vec![("CPU", host.cpu_model.clone())];
    }
    let cores = plural(u64::from(host.cores), "core");
    let sockets = plural(u64::from(host.sockets), "socket");
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
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn caches(host: &Host) -> String {
    let caches = host.caches.iter().filter(|cache| cache.kind != "Instruction");
    let caches = caches.map(|cache| {
        let count = if cache.count > 1 { format!("{} x ", cache.count) } else { String::new() };
        let bytes = show_bytes(cache.bytes);
        format!("{count}L{} {bytes} (shared by {})", cache.level, cache.shared_by)
    });
    caches.collect::<Vec<_>>().join(" · ")
}

fn huge_pages(host: &Host) -> String {
    let pools = host.huge_pages.iter().map(|pool| {
        format!("{} of {} free: {}", pool.free, pool.total, show_bytes(pool.page_bytes))
    });
    let pools = pools.collect::<Vec<_>>().join(", ");
    format!("transparent: {}; {pools}", host.transparent_huge_pages)
}

fn notes(records: &[RunRecord], names: &Names) -> Vec<String> {
    let mut notes: Vec<String> = absent(records).collect();
    for record in records {
        let reason = record.outcome.reason().map(str::to_owned);
        let all = record.warnings.iter().cloned().chain(reason);
        notes.extend(all.map(|note| format!("{}: {note}", names.of_record(record))));
    }
    notes.extend(above_limits(records, label));
    notes.sort();
    notes.dedup();
    notes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::examples::example;

    #[test]
    fn a_mesh_is_drawn_once_and_its_name_is_escaped() {
        let mut record = example();
        let mut observed = crate::families::pmu::heat::tests::example();
        observed.meshes[0].name = "arm_cmn_0".into();
        observed.events[0].pmu = "arm_cmn_0".into();
        observed.meshes[0].nodes[0].kind = "<script>alert(1)</script>".into();
        observed.meshes[0].crosspoints[0].ports[0] = "<script>alert(1)</script>".into();
        record.sections.observed = Some(Box::new(observed));
        let page = page(&[record]);
        assert_eq!(page.matches("class=\"mesh\"").count(), 1);
        assert!(page.contains("id=\"mesh-0\"") && !page.contains("<script>alert(1)"));
    }

    #[test]
    fn the_page_is_whole_and_asks_nobody() {
        let page = page(&[example()]);
        assert!(page.contains("default-src 'none'"));
        for outside in ["src=\"http", "href=\"http", "@import", "url(http"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("daqmeter digitizer emu:ku0 emu:l0 -S 3000000 -N 3 -A 4"));
    }

    #[test]
    fn the_page_without_its_libraries() {
        let page = page(&[example()]);
        let lean = page
            .replace(UPLOT_SCRIPT, "[uPlot]")
            .replace(UPLOT_STYLE, "[uPlot style]")
            .replace(SCRIPT, "[script]");
        insta::assert_snapshot!(lean.replace(STYLE, "[style]"));
    }

    #[test]
    fn every_section_has_a_name_of_its_own() {
        let mut observed = example();
        observed.sections.observed = Some(Box::new(crate::families::pmu::heat::tests::example()));
        let page = page(&[observed]);
        let sections = page.split("\n<section").skip(1);
        let ids = sections.map(|text| text.split('"').skip_while(|part| !part.ends_with("id=")));
        let ids: Vec<&str> = ids.map(|mut parts| parts.nth(1).unwrap()).collect();
        let distinct: BTreeSet<&&str> = ids.iter().collect();
        assert!(ids.len() > 5 && distinct.len() == ids.len(), "{ids:?}");
    }

    #[test]
    fn hosts_stand_side_by_side_and_each_figure_answer_row_and_fact_says_whose_it_is() {
        let of = |at: usize| {
            let mut record = example();
            Arc::make_mut(&mut record.host).name = format!("lab{at}");
            record
        };
        let both = [of(7), of(8)];
        let found = answers(&both);
        let hosts = found[0].1.iter().map(|own| own.answer.split(':').next());
        assert!(hosts.eq([Some("lab7"), Some("lab8")]), "{found:?}");
        let page = page(&both);
        for wanted in ["<h1>lab7, lab8</h1>", "<h3>lab7</h3>", "<h3>lab8</h3>", "<dd>lab8: "] {
            assert!(page.contains(wanted), "{wanted}");
        }
        let points = page.split("id=\"points\"").nth(1).unwrap();
        let rows = points.split("<tr>").skip(2).map(|row| row.split(['<', '>']).nth(2));
        let wanted = [Some("lab7"), Some("lab8")].into_iter().cycle().take(8);
        assert!(rows.eq(wanted), "{points}");
        let many: Vec<RunRecord> = (1..9).map(of).collect();
        let text = crate::formats::text(&many);
        for shown in [super::page(&many), text, crate::table::markdown(&many)] {
            assert!(shown.contains("2 more hosts: daqmeter hosts"), "{shown}");
            assert!(shown.contains("lab6") && !shown.contains("lab7"), "{shown}");
        }
    }

    #[test]
    fn no_records_still_make_a_page() {
        assert!(page(&[]).contains("No records"));
    }
}
