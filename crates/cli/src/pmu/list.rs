//! `daqmeter pmu list`.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use daqmeter_pmu::event::{EventResolver, HARDWARE, SOFTWARE};
use daqmeter_pmu::groups::Metric;
use daqmeter_pmu::sysfs::{Alias, tracepoints};
use daqmeter_pmu::system::SystemCounter;
use daqmeter_pmu::{MetricGroup, Pmu, discover};
use daqmeter_report::table::plain;
use daqmeter_sys::host::Files;

use super::chosen::{Place, Setting};
use crate::output::{Failure, emit};

/// List PMUs; with --events their events, with --groups the groups that ship.
///
/// Everything is read from sysfs, so that events are shown that perf's own listing leaves out or
/// calls by other names.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter pmu list --events arm_cmn_0/hnf")]
pub(crate) struct Arguments {
    /// Only what holds this text: a PMU, an event, arm_cmn_0/hnf
    filter: Option<String>,
    /// Events of PMUs, tracepoints, counters of the system
    #[arg(short, long)]
    events: bool,
    /// Groups, what they compute and whether this host has them
    #[arg(short, long)]
    groups: bool,
    /// Lines of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.groups {
        let setting = arguments.place.setting()?;
        // A map from a file is of some other machine.
        return emit(&groups(&if arguments.place.map.is_empty() {
            setting
        } else {
            setting.offline()
        }));
    }
    // A list does not need the meshes, so that debugfs is not read.
    let files = Files::default();
    let pmus = if arguments.place.emulated.is_some() {
        arguments.place.setting()?.pmus
    } else {
        discover(&files)
    };
    if arguments.json {
        return emit(&json(&pmus, arguments));
    }
    let text = if arguments.events {
        events(&files, &pmus, arguments.filter.as_deref())
    } else {
        overview(&files, &pmus, arguments)
    };
    if text.is_empty() {
        return Err(Failure::refused(format!(
            "nothing here holds `{}`",
            arguments.filter.as_deref().unwrap_or("")
        )));
    }
    emit(&text)
}

fn cpus(pmu: &Pmu) -> String {
    let text = |cpus: &[u32]| cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    if pmu.cpus.is_empty() { "each".to_owned() } else { text(&pmu.cpus) }
}

impl Arguments {
    fn wants(&self, name: &str) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|filter| name.contains(filter.as_str()))
    }
}

fn overview(files: &Files, pmus: &[Pmu], arguments: &Arguments) -> String {
    let wanted: Vec<&Pmu> = pmus.iter().filter(|pmu| arguments.wants(&pmu.name)).collect();
    if wanted.is_empty() && arguments.filter.is_some() {
        return events(files, pmus, arguments.filter.as_deref());
    }
    let mut out = table_of_pmus(&wanted);
    for pmu in wanted.iter().filter(|pmu| pmu.family() == "arm_cmn") {
        let types = by_node_type(pmu);
        let _ = writeln!(out, "{}, events by node type: {types}", pmu.name);
    }
    if arguments.place.emulated.is_none() && arguments.filter.is_none() {
        out.push_str(&of_system(files, pmus));
    }
    out
}

fn table_of_pmus(pmus: &[&Pmu]) -> String {
    if pmus.is_empty() {
        return "no PMU in sysfs\n".to_owned();
    }
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let row = |pmu: &&Pmu| {
        let fields = pmu.formats().iter().map(|format| format.name.as_str());
        vec![
            pmu.name.clone(),
            pmu.kind.to_string(),
            pmu.events().len().to_string(),
            cpus(pmu),
            or_dash(pmu.mux_interval_ms.map(|turn| turn.to_string())),
            or_dash(pmu.identifier.clone()),
            or_dash(pmu.base.map(|base| format!("{base:#x}"))),
            fields.collect::<Vec<_>>().join(" "),
        ]
    };
    plain(
        &["PMU", "type", "events", "CPUs", "turn [ms]", "identifier", "registers", "fields"],
        pmus.iter().map(row),
    )
}

fn of_system(files: &Files, pmus: &[Pmu]) -> String {
    let row = |(source, names): (&str, Vec<String>)| {
        let first = names.first().map_or("none here", String::as_str);
        vec![source.to_owned(), names.len().to_string(), first.to_owned()]
    };
    let sources = SystemCounter::all(files).into_iter().map(row);
    let mut out = format!(
        "\nthe system by itself\n{}\n{} tracepoints on the way of data; {} software events; events of all: --events; groups: --groups\n",
        plain(&["source", "counters", "such as"], sources),
        tracepoints(files).len(),
        SOFTWARE.len()
    );
    if let Some(line) = missing(pmus) {
        let _ = writeln!(out, "{line}");
    }
    out
}

/// Returns `hnf 35, mxp 112, ...`: prefixes of the names of a mesh's events, and their numbers.
fn by_node_type(pmu: &Pmu) -> String {
    let mut counts = std::collections::BTreeMap::new();
    for alias in pmu.events() {
        *counts.entry(alias.name.split('_').next().unwrap_or("")).or_insert(0_u32) += 1;
    }
    counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect::<Vec<_>>().join(", ")
}

fn missing(pmus: &[Pmu]) -> Option<String> {
    let interconnect = ["arm_cmn", "uncore_imc", "amd_df", "amd_umc"];
    let there =
        pmus.iter().any(|pmu| interconnect.iter().any(|family| pmu.name.starts_with(family)));
    (!there).then(|| {
        "no PMU of an interconnect or a memory controller: DRAM bandwidth cannot be counted here (usual in virtual machines); copies \
         measured by `daqmeter survey` are context, not a counter"
            .to_owned()
    })
}

fn events(files: &Files, pmus: &[Pmu], filter: Option<&str>) -> String {
    let mut sections: Vec<(&str, Vec<(String, String)>)> = Vec::new();
    for pmu in pmus {
        let line = |alias: &Alias| {
            let Alias { name, terms, unit, scale } = alias;
            let unit = if unit.is_empty() { String::new() } else { format!(" x {scale} {unit}") };
            (format!("{}/{name}/", pmu.name), format!("{terms}{unit}"))
        };
        sections.push((&pmu.name, pmu.events().iter().map(line).collect()));
    }
    if pmus.iter().all(|pmu| pmu.kind != 0) {
        let line = |name: &str, config: u64| (name.to_owned(), format!("config={config}"));
        let software = SOFTWARE.iter().map(|(name, config, _)| line(name, *config));
        sections.push(("software", software.collect()));
        let hardware = HARDWARE.iter().map(|(name, config)| line(name, *config));
        sections.push(("hardware, where a PMU of the CPUs is there", hardware.collect()));
        let counted = |name| (name, "counted, one by one".to_owned());
        sections.push(("tracepoints", tracepoints(files).into_iter().map(counted).collect()));
        for (source, names) in SystemCounter::all(files) {
            let lines = names.into_iter().map(|name| (name, String::new()));
            sections.push((source, lines.collect()));
        }
    }
    let shown = sections.into_iter().filter_map(|(title, lines)| {
        let is_wanted = |name: &str| filter.is_none_or(|filter| name.contains(filter));
        let lines = lines.into_iter().filter(|(name, _)| is_wanted(name));
        let rows: Vec<Vec<String>> = lines.map(|(name, terms)| vec![name, terms]).collect();
        (!rows.is_empty()).then(|| format!("{title}\n{}", plain(&["event", "is"], rows)))
    });
    shown.collect::<Vec<_>>().join("\n")
}

fn groups(setting: &Setting) -> String {
    let host = EventResolver { pmus: &setting.pmus, files: &setting.files };
    let mut out = String::new();
    for (folder, group) in MetricGroup::shipped() {
        let missing = group.missing(&host, &setting.meshes);
        let state = if missing.is_none() { "here" } else { "not here" };
        let _ = writeln!(out, "{} ({folder}, {state})\n  {}", group.name, group.about);
        if let Some(missing) = missing {
            let _ = writeln!(out, "  not here: {missing}");
        }
        for metric in &group.metric {
            let _ = writeln!(out, "    {}", formula(metric));
            if !metric.caveat.is_empty() {
                let _ = writeln!(out, "      {}", metric.caveat);
            }
        }
    }
    out
}

/// Returns `memory [B/s] = (mc_reqs) x 64`.
fn formula(metric: &Metric) -> String {
    let unit = if metric.unit.is_empty() { "ratio" } else { &metric.unit };
    let mut text = format!("{} [{unit}] = ({})", metric.name, metric.sum.join(" + "));
    if (metric.times - 1.0).abs() >= f64::EPSILON {
        let _ = write!(text, " x {}", metric.times);
    }
    if !metric.over.is_empty() {
        let _ = write!(text, " / ({})", metric.over.join(" + "));
    }
    text
}

fn json(pmus: &[Pmu], arguments: &Arguments) -> String {
    pmus.iter()
        .filter(|pmu| arguments.wants(&pmu.name))
        .map(|pmu| {
            let formats: serde_json::Map<String, serde_json::Value> = pmu
                .formats()
                .iter()
                .map(|format| (format.name.clone(), serde_json::json!({ "word": format.word, "bits": format.ranges })))
                .collect();
            let events: Vec<serde_json::Value> = pmu
                .events()
                .iter()
                .map(|alias| serde_json::json!({ "name": alias.name, "terms": alias.terms, "unit": alias.unit, "scale": alias.scale }))
                .collect();
            let line = serde_json::json!({
                "name": pmu.name, "type": pmu.kind, "cpus": pmu.cpus, "identifier": pmu.identifier,
                "mux_interval_ms": pmu.mux_interval_ms, "base": pmu.base, "formats": formats, "events": events,
            });
            format!("{line}\n")
        })
        .collect()
}

pub(crate) fn summary() -> (bool, String) {
    let pmus = discover(&Files::default());
    let names: Vec<&str> = pmus.iter().map(|pmu| pmu.name.as_str()).collect();
    (
        missing(&pmus).is_none(),
        if names.is_empty() { "none in sysfs".to_owned() } else { names.join(", ") },
    )
}
