//! `daqmeter pmu list`.

use clap::Args;
use daqmeter_pmu::event::NUMBERED;
use daqmeter_pmu::groups::Metric;
use daqmeter_pmu::sysfs::{Alias, tracepoints};
use daqmeter_pmu::system::SystemCounter;
use daqmeter_pmu::{CountedHost, MetricGroup, Pmu, discover};
use daqmeter_record::Mesh;
use daqmeter_record::units::joined;
use daqmeter_report::pmu::map;
use daqmeter_report::table::{paragraphs, plain};
use daqmeter_sys::host::Files;

use super::chosen::Place;
use crate::output::{Ended, Failure, emit, json_lines};

/// List PMUs, their events, groups, meshes and counters of the system.
///
/// It reads sysfs, so it shows events that perf list omits or renames. It reads the mesh from the
/// driver's map in debugfs (as root), or from --map.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/pmu-list.txt"))]
pub(crate) struct Arguments {
    /// Show only names with this text: arm_cmn_0/hnf
    filter: Option<String>,
    /// List events of PMUs, tracepoints and counters of the system
    #[arg(short, long, conflicts_with_all = ["json", "groups"])]
    events: bool,
    /// List groups, their rates, and whether this host has them
    #[arg(short, long, conflicts_with_all = ["json", "filter"])]
    groups: bool,
    /// Draw each mesh; with --json print a line for --map
    #[arg(long, conflicts_with_all = ["events", "groups", "filter"])]
    mesh: bool,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    if !(arguments.mesh || arguments.groups || arguments.place.map.is_empty()) {
        return Err(Failure::refused("--map is for --mesh and --groups: give one of them"));
    }
    let host = arguments.place.host()?;
    let filter = arguments.filter.as_deref().unwrap_or("");
    let pmus: Vec<&Pmu> = host.pmus.iter().filter(|pmu| pmu.name.contains(filter)).collect();
    let text = if arguments.mesh {
        meshes(&host, arguments.json)?
    } else if arguments.groups {
        groups(&host.offline())
    } else if arguments.json {
        json_lines(&pmus)?
    } else if arguments.events || pmus.is_empty() && !filter.is_empty() {
        events(&host, filter)
    } else {
        overview(&host, &pmus, filter)
    };
    match text.as_str() {
        "" => Err(format!("no PMU or event matches `{filter}`").into()),
        text => emit(text),
    }
}

fn meshes(host: &CountedHost, is_json: bool) -> Result<String, Failure> {
    let text = |mesh: &Mesh| format!("{}\n{}", map::grid(mesh, None), map::node_table(mesh));
    match host.meshes.as_slice() {
        [] => Err(Failure::refused(
            "--mesh needs a map: run as root with debugfs mounted (mount -t debugfs none /sys/kernel/debug) on a host with arm_cmn, or give --map FILE or --emulated n1sdp",
        )),
        meshes if is_json => json_lines(meshes),
        meshes => Ok(meshes.iter().map(text).collect::<Vec<_>>().join("\n")),
    }
}

fn overview(host: &CountedHost, pmus: &[&Pmu], filter: &str) -> String {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let row = |pmu: &&Pmu| {
        let fields = joined(pmu.formats.iter().map(|format| format.name.as_str()), " ");
        let cpus = joined(pmu.cpus.iter().map(u32::to_string), ",").unwrap_or("each".to_owned());
        let counts = [pmu.kind.to_string(), pmu.events.len().to_string(), cpus];
        let turn = or_dash(pmu.mux_interval_ms.map(|turn| turn.to_string()));
        let base = or_dash(pmu.base.map(|base| format!("{base:#x}")));
        let rest = [turn, or_dash(pmu.identifier.clone()), base, fields.unwrap_or_default()];
        [&[pmu.name.clone()][..], &counts, &rest].concat()
    };
    let headings =
        ["PMU", "type", "events", "CPUs", "turn [ms]", "identifier", "registers", "fields"];
    let mut out = plain(&headings, pmus.iter().map(row));
    if !host.is_emulated && filter.is_empty() {
        let row = |(source, names): (&str, Vec<String>)| {
            let first = names.first().map_or("none here", String::as_str);
            vec![source.to_owned(), names.len().to_string(), first.to_owned()]
        };
        let sources = SystemCounter::all(&host.files).into_iter().map(row);
        out.push('\n');
        out.push_str(&plain(&["counters of the system", "number", "such as"], sources));
        out += "\n--events lists all events, --groups groups\n";
    }
    out
}

fn events(host: &CountedHost, filter: &str) -> String {
    let of_pmu = |pmu: &Pmu| {
        let row = |Alias { name, terms, unit, scale }: &Alias| {
            let unit = if unit.is_empty() { String::new() } else { format!(" x {scale} {unit}") };
            vec![format!("{}/{name}/", pmu.name), format!("{terms}{unit}")]
        };
        pmu.events.iter().map(row).collect()
    };
    let bare =
        |names: Vec<String>| names.into_iter().map(|name| vec![name, String::new()]).collect();
    let numbered = |pmu| bare(NUMBERED[pmu].iter().map(|(name, ..)| name.clone()).collect());
    let mut sections: Vec<(&str, Vec<Vec<String>>)> =
        host.pmus.iter().map(|pmu| (&*pmu.name, of_pmu(pmu))).collect();
    if !host.is_emulated {
        sections.push(("software", numbered("software")));
        sections.push(("hardware, where a PMU of the CPUs is there", numbered("cpu")));
        sections.push(("tracepoints", bare(tracepoints(&host.files))));
        let system = SystemCounter::all(&host.files).into_iter();
        sections.extend(system.map(|(source, names)| (source, bare(names))));
    }
    let shown = sections.into_iter().filter_map(|(title, mut rows)| {
        rows.retain(|row| row[0].contains(filter));
        (!rows.is_empty()).then(|| format!("{title}\n{}", plain(&["event", "is"], rows)))
    });
    joined(shown, "\n").unwrap_or_default()
}

fn groups(host: &CountedHost) -> String {
    let text = |group: MetricGroup| {
        let missing = group.missing(&host.resolver(), &host.meshes);
        let state = missing.map_or("here".to_owned(), |missing| format!("not here: {missing}"));
        let metrics: String = group.metric.iter().map(metric_lines).collect();
        format!("{} ({state})\n  {}\n{metrics}", group.name, group.about)
    };
    MetricGroup::shipped().map(|group| paragraphs(&text(group))).collect()
}

/// Returns `memory [B/s] = (mc_reqs) x 64`, and the caveat.
fn metric_lines(metric: &Metric) -> String {
    let Metric { name, unit, sum, times, over, caveat, .. } = metric;
    let unit = if unit.is_empty() { "ratio" } else { unit };
    let times = if *times == 1.0 { String::new() } else { format!(" x {times}") };
    let over = if over.is_empty() { String::new() } else { format!(" / ({})", over.join(" + ")) };
    let caveat = if caveat.is_empty() { String::new() } else { format!("      {caveat}\n") };
    format!("    {name} [{unit}] = ({}){times}{over}\n{caveat}", sum.join(" + "))
}

/// Returns true if there is an interconnect to count, and the names of all PMUs.
pub(crate) fn summary() -> (bool, String) {
    let pmus = discover(&Files::default());
    let is_here = |group: MetricGroup| group.is_of_interconnect() && group.is_there(&pmus);
    let names = joined(pmus.iter().map(|pmu| pmu.name.as_str()), ", ");
    match MetricGroup::shipped().any(is_here) {
        true => (true, names.unwrap_or_default()),
        false => (false, "none".to_owned()),
    }
}
