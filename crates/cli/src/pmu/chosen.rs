//! Events and groups of the command line, resolved on the PMUs and meshes of this host.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use daqmeter_harness::{Observer, text_input_up_to};
use daqmeter_pmu::emulated::{catalogue, emulated};
use daqmeter_pmu::mesh::{self, nodes, topology};
use daqmeter_pmu::plan::{Driver, Rules};
use daqmeter_pmu::source::KernelOpener;
use daqmeter_pmu::{
    Count, EventResolver, MetricGroup, Pmu, PmuEvent, PmuObserver, Selection, discover,
};
use daqmeter_record::Mesh;
use daqmeter_report::pmu::tables::RateUnit;
use daqmeter_sys::host::Files;

use crate::arguments::duration;
use crate::output::{Failure, tell};

/// Events to count, and their mesh.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Wanted {
    /// Events, as for perf; several with commas, {a,b} are counted together
    #[arg(short, long = "event", value_name = "EVENTS", allow_hyphen_values = true)]
    pub(crate) events: Vec<String>,
    /// Groups: memory, pcie, slc, block, net, ... or a file.toml
    #[arg(short, long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    /// An event of each node of its kind by itself, for a heat map: hnf_mc_reqs
    #[arg(long, value_name = "EVENT")]
    pub(crate) heat: Option<String>,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Source of the map of the mesh.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Place {
    /// Map of the mesh: of pmu map --json, the driver's map, or a description (.toml)
    #[arg(long, value_name = "FILE", help_heading = "Mesh")]
    pub(crate) map: Vec<PathBuf>,
    /// A mesh that is not there, with counts of its own: n1sdp, cmn650, cmn700, s3
    #[arg(long, value_name = "MESH", help_heading = "Mesh", conflicts_with = "map")]
    pub(crate) emulated: Option<String>,
}

pub(crate) struct Setting {
    pub(crate) files: Files,
    pub(crate) pmus: Vec<Pmu>,
    pub(crate) meshes: Vec<Mesh>,
    pub(crate) is_emulated: bool,
    pub(crate) driver: Driver,
}

impl Setting {
    /// Adds the driver's PMU for each mesh without one here, so that its events can be planned.
    pub(crate) fn offline(mut self) -> Setting {
        for mesh in &self.meshes {
            if self.pmus.iter().all(|pmu| pmu.name != mesh.name) {
                self.pmus.push(catalogue(mesh));
            }
        }
        self
    }
}

/// Longest text of a map or of perf's output, in bytes: perf writes about 70 for each count.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Reads a file, or stdin for `-`.
pub(super) fn text_of(path: &PathBuf) -> Result<String, Failure> {
    let place = if path.as_os_str() == "-" { "/dev/stdin".as_ref() } else { path.as_path() };
    text_input_up_to(place, MAX_TEXT_BYTES)
        .map_err(|error| Failure::refused(format!("cannot read {}: {error}", path.display())))
}

impl Place {
    pub(crate) fn setting(&self) -> Result<Setting, Failure> {
        let files = Files::default();
        if let Some(name) = &self.emulated {
            let (mesh, pmu) = emulated(name).ok_or_else(|| {
                let names: Vec<&str> = topology::SHIPPED.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                Failure::refused(format!("there is no emulated mesh `{name}`; there are {names}"))
            })?;
            let driver = Driver::Mainline;
            let (pmus, meshes) = (vec![pmu], vec![mesh]);
            return Ok(Setting { files, pmus, meshes, is_emulated: true, driver });
        }
        let pmus = discover(&files);
        let cmns: Vec<&Pmu> = pmus.iter().filter(|pmu| pmu.family() == "arm_cmn").collect();
        let mut meshes = Vec::new();
        for (at, path) in self.map.iter().enumerate() {
            let text = text_of(path)?;
            let mut mesh =
                mesh::from_text(&text, &path.display().to_string()).map_err(Failure::refused)?;
            let by_address = cmns.iter().find(|pmu| pmu.base.is_some() && pmu.base == mesh.base);
            let pmu = by_address.or(cmns.get(at)).map(|pmu| pmu.name.clone());
            mesh.name = pmu.unwrap_or_else(|| format!("arm_cmn_{at}"));
            meshes.push(mesh);
        }
        if self.map.is_empty() {
            meshes = mesh::of_host(&files, &pmus);
        }
        let release = files.text("proc/sys/kernel/osrelease").filter(|_| !cmns.is_empty());
        let driver = release.map_or(Driver::Mainline, |release| Driver::of_kernel(&release));
        Ok(Setting { driver, files, pmus, meshes, is_emulated: false })
    }
}

impl Wanted {
    /// Resolves events and groups, and refuses impossible ones before anything is opened.
    pub(crate) fn choose(&self, setting: &Setting) -> Result<Selection, Failure> {
        let (mut texts, mut metrics, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for name in &self.groups {
            let group = MetricGroup::find(name).map_err(Failure::refused)?;
            let first = texts.len();
            let expanded = group.expand(&setting.pmus, &setting.meshes);
            let (events, found) = expanded.map_err(Failure::refused)?;
            texts.extend(events);
            metrics.extend(found.into_iter().map(|metric| metric.shifted(first)));
            names.push(group.name);
        }
        if let Some(event) = &self.heat {
            texts.extend(heat_events(event, setting)?);
            names.push(format!("heat of {event}"));
        }
        texts.extend(self.events.iter().cloned());
        names.extend(self.events.iter().cloned());
        if texts.is_empty() {
            return Err(Failure::refused(
                "what is to be counted? --event, --group or --heat (daqmeter pmu list --groups)",
            ));
        }
        let host = EventResolver { pmus: &setting.pmus, files: &setting.files };
        let set = host.resolve(&texts).map_err(Failure::refused)?;
        let used = |mesh: &&Mesh| set.events().any(|event| event.is_on(&mesh.name));
        let meshes = setting.meshes.iter().filter(used);
        let warnings = meshes.filter_map(|mesh| setting.driver.warning(mesh));
        for warning in set.warnings.iter().cloned().chain(warnings) {
            tell(&format!("daqmeter: warning: {warning}"));
        }
        set.groups.iter().try_for_each(|group| refuse_impossible(group, setting))?;
        Ok(Selection { what: names.join(", "), set, metrics, meshes: setting.meshes.clone() })
    }
}

/// Refuses a group that none of its meshes can count; the driver adds them up.
fn refuse_impossible(group: &Vec<PmuEvent>, setting: &Setting) -> Result<(), Failure> {
    let is_theirs = |mesh: &&Mesh| group.iter().all(|event| event.is_on(&mesh.name));
    let meshes = setting.meshes.iter().filter(is_theirs);
    let checked =
        meshes.map(|mesh| Rules::new(mesh, setting.driver).check(std::slice::from_ref(group)));
    let (fits, refused): (Vec<_>, Vec<_>) = checked.partition(Result::is_ok);
    match refused.into_iter().next() {
        Some(Err(error)) if fits.is_empty() => Err(Failure::refused(error)),
        _ => Ok(()),
    }
}

fn heat_events(event: &str, setting: &Setting) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    for mesh in &setting.meshes {
        let pmu = setting.pmus.iter().find(|pmu| pmu.name == mesh.name);
        let code = pmu.and_then(|pmu| pmu.event(event)?.term("type"));
        let code = code.and_then(|code| u16::try_from(code).ok()).ok_or_else(|| {
            let mesh = &mesh.name;
            Failure::refused(format!(
                "--heat: {mesh} has no event `{event}` (daqmeter pmu list --events)"
            ))
        })?;
        let xps = mesh.crosspoints.iter().map(|xp| (nodes::XP, xp.node_id));
        let others = mesh.nodes.iter().map(|node| (node.type_code, node.node_id));
        let counted = xps.chain(others).filter(|(kind, _)| nodes::counts_as(*kind, code));
        let text = |(_, id)| format!("{}/{event},bynodeid=1,nodeid={id:#x}/", mesh.name);
        texts.extend(counted.map(text));
    }
    if texts.is_empty() {
        return Err(Failure::refused(
            "--heat needs the map of a mesh: root and debugfs (mount -t debugfs none /sys/kernel/debug), --map FILE, or --emulated n1sdp",
        ));
    }
    Ok(texts)
}

pub(crate) struct Observed {
    selection: Selection,
    interval: Duration,
}

impl Observed {
    /// Reads `GROUP`, `EVENTS`, or either with `@TIME`.
    pub(crate) fn understand(text: &str) -> Result<Observed, Failure> {
        let (what, interval) = text.rsplit_once('@').unwrap_or((text, "100ms"));
        let interval = duration(interval)
            .map_err(|error| Failure::refused(format!("--observe {text}: {error}")))?;
        if interval < Duration::from_millis(1) {
            return Err(Failure::refused(format!(
                "--observe {text}: 1ms at least lie between two looks"
            )));
        }
        let is_group = !what.contains(['/', ':', '{', ',']) && MetricGroup::find(what).is_ok();
        let mut wanted = Wanted::default();
        let list = if is_group { &mut wanted.groups } else { &mut wanted.events };
        list.push(what.to_owned());
        let setting = wanted.place.setting()?;
        let selection = wanted.choose(&setting)?;
        // Reports an error before anything is measured.
        Count::open(&selection, &mut KernelOpener { files: setting.files })
            .map_err(Failure::refused)?;
        Ok(Observed { selection, interval })
    }

    pub(crate) fn observer(&self) -> Box<dyn Observer> {
        let kernel = KernelOpener { files: Files::default() };
        Box::new(PmuObserver::new(self.selection.clone(), self.interval, kernel))
    }
}

/// Parser of the unit of bytes.
pub(super) fn byte_unit() -> impl TypedValueParser<Value = RateUnit> {
    PossibleValuesParser::new(["mb", "mib", "both"]).map(|name| match name.as_str() {
        "mib" => RateUnit::Mib,
        "both" => RateUnit::Both,
        _ => RateUnit::Mb,
    })
}
