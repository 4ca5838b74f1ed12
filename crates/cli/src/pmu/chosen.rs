//! Events and groups of the command line, resolved on the PMUs and meshes of this host.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use daqmeter_harness::{Observer, text_input_up_to};
use daqmeter_pmu::emulated::catalogue;
use daqmeter_pmu::mesh::{self, nodes, topology};
use daqmeter_pmu::plan::{CountPlanError, Driver, Rules};
use daqmeter_pmu::source::KernelOpener;
use daqmeter_pmu::{Count, EventResolver, EventSet, MetricGroup, Pmu, PmuObserver, discover};
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
    /// Map of the mesh: a description (.toml), the driver's map, or a dump of registers
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
                let mut pmu = catalogue(mesh);
                pmu.name.clone_from(&mesh.name);
                self.pmus.push(pmu);
            }
        }
        self
    }
}

/// Returns this kernel's driver if there is a mesh, otherwise the latest one.
fn driver_of(files: &Files, pmus: &[Pmu]) -> Driver {
    let is_here = pmus.iter().any(|pmu| pmu.family() == "arm_cmn");
    match files.text("proc/sys/kernel/osrelease").filter(|_| is_here) {
        Some(release) => Driver::of_kernel(&release),
        None => Driver::Mainline,
    }
}

/// Longest map: a dump of registers has a line of 30 bytes for each register that is not 0, some MB
/// for the largest mesh.
const MAX_MAP_BYTES: u64 = 64 << 20;

impl Place {
    pub(crate) fn setting(&self) -> Result<Setting, Failure> {
        let files = Files::default();
        if let Some(name) = &self.emulated {
            let mut mesh = topology::shipped(name).ok_or_else(|| {
                let names: Vec<&str> = topology::SHIPPED.iter().map(|(name, _)| *name).collect();
                Failure::refused(format!(
                    "there is no emulated mesh `{name}`; there are {}",
                    names.join(", ")
                ))
            })?;
            mesh.name = "arm_cmn_0".to_owned();
            return Ok(Setting {
                files,
                pmus: vec![catalogue(&mesh)],
                meshes: vec![mesh],
                is_emulated: true,
                driver: Driver::Mainline,
            });
        }
        let pmus = discover(&files);
        let mut meshes = Vec::new();
        for path in &self.map {
            let name = path.display().to_string();
            let text = text_input_up_to(path, MAX_MAP_BYTES);
            let text =
                text.map_err(|error| Failure::refused(format!("cannot read {name}: {error}")))?;
            meshes.push(mesh::from_text(&text, &name).map_err(Failure::refused)?);
        }
        if self.map.is_empty() {
            meshes = mesh::of_host(&files, &pmus);
        } else {
            name_after(&mut meshes, &pmus);
        }
        Ok(Setting { driver: driver_of(&files, &pmus), files, pmus, meshes, is_emulated: false })
    }
}

fn name_after(meshes: &mut [Mesh], pmus: &[Pmu]) {
    let cmns: Vec<&Pmu> = pmus.iter().filter(|pmu| pmu.family() == "arm_cmn").collect();
    for (at, mesh) in meshes.iter_mut().enumerate() {
        let by_address = cmns.iter().find(|pmu| pmu.base.is_some() && pmu.base == mesh.base);
        let name = by_address
            .or(cmns.get(at))
            .map_or_else(|| format!("arm_cmn_{at}"), |pmu| pmu.name.clone());
        mesh.name = name;
    }
}

pub(crate) struct Chosen {
    pub(crate) what: String,
    pub(crate) set: EventSet,
    pub(crate) metrics: Vec<daqmeter_pmu::groups::Metric>,
}

impl Wanted {
    /// Resolves events and groups, and refuses impossible ones before anything is opened.
    pub(crate) fn choose(&self, setting: &Setting) -> Result<Chosen, Failure> {
        let (mut texts, mut metrics, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for name in &self.groups {
            let group = MetricGroup::find(name).map_err(Failure::refused)?;
            let first = texts.len();
            let (events, found) =
                group.expand(&setting.pmus, &setting.meshes).map_err(Failure::refused)?;
            refuse_unknown(setting, name, &events)?;
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
        for warning in &set.warnings {
            tell(&format!("daqmeter: warning: {warning}"));
        }
        let used = |mesh: &&Mesh| set.events().any(|event| event.is_on(&mesh.name));
        let driver = setting.driver;
        for warning in setting.meshes.iter().filter(used).filter_map(|mesh| driver.warning(mesh)) {
            tell(&format!("daqmeter: warning: {warning}"));
        }
        refuse_impossible(&set, &setting.meshes, driver)?;
        Ok(Chosen { what: names.join(", "), set, metrics })
    }
}

/// Refuses an unknown event of a group's file with the name of the file.
fn refuse_unknown(setting: &Setting, group: &str, events: &[String]) -> Result<(), Failure> {
    let host = EventResolver { pmus: &setting.pmus, files: &setting.files };
    match host.resolve(events) {
        Err(error) if group.ends_with(".toml") => {
            Err(Failure::refused(format!("{group}: {error}")))
        }
        _ => Ok(()),
    }
}

fn refuse_impossible(set: &EventSet, meshes: &[Mesh], driver: Driver) -> Result<(), Failure> {
    for group in &set.groups {
        let on_mesh = group.iter().all(|event| event.on_mesh.is_some());
        let Some(event_of_group) = group.first().filter(|_| on_mesh) else {
            continue;
        };
        let of_pmu = |mesh: &&Mesh| event_of_group.is_on(&mesh.name);
        let errors: Vec<CountPlanError> = meshes
            .iter()
            .filter(of_pmu)
            .filter_map(|mesh| Rules::new(mesh, driver).check(std::slice::from_ref(group)).err())
            .collect();
        // One of several meshes at least must have the events; the driver adds them up.
        if let (Some(error), true) =
            (errors.first(), errors.len() == meshes.iter().filter(of_pmu).count())
        {
            return Err(Failure::refused(error));
        }
    }
    Ok(())
}

fn heat_events(event: &str, setting: &Setting) -> Result<Vec<String>, Failure> {
    let bare = event.trim_end_matches('/');
    let (pmu, name) = bare.split_once('/').map_or((None, bare), |(pmu, name)| (Some(pmu), name));
    let mut texts = Vec::new();
    for mesh in &setting.meshes {
        if pmu.is_some_and(|pmu| pmu != mesh.name && !mesh.name.starts_with(&format!("{pmu}_"))) {
            continue;
        }
        let known = setting
            .pmus
            .iter()
            .find(|found| found.name == mesh.name)
            .and_then(|pmu| pmu.event(name));
        let code = known.and_then(|alias| alias.term("type")).ok_or_else(|| {
            Failure::refused(format!(
                "--heat: {} has no event `{name}` (daqmeter pmu list --events)",
                mesh.name
            ))
        })?;
        let code = u16::try_from(code).unwrap_or(u16::MAX);
        let mut ids: Vec<u16> = mesh
            .nodes
            .iter()
            .filter(|node| nodes::counts_as(node.type_code, code))
            .map(|node| node.node_id)
            .collect();
        if code == 0x6 {
            ids = mesh.crosspoints.iter().map(|xp| xp.node_id).collect();
        }
        texts.extend(
            ids.into_iter().map(|id| format!("{}/{name},bynodeid=1,nodeid={id:#x}/", mesh.name)),
        );
    }
    if texts.is_empty() {
        return Err(Failure::refused(
            "--heat needs the map of a mesh: root and debugfs (mount -t debugfs none /sys/kernel/debug), --map FILE, or --emulated n1sdp",
        ));
    }
    Ok(texts)
}

pub(crate) struct Observed {
    chosen: Chosen,
    meshes: Vec<Mesh>,
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
        if is_group {
            wanted.groups.push(what.to_owned())
        } else {
            wanted.events.push(what.to_owned())
        }
        let setting = wanted.place.setting()?;
        let chosen = wanted.choose(&setting)?;
        // Reports an error before anything is measured.
        Count::open(&chosen.set, &chosen.what, &mut KernelOpener { files: setting.files })
            .map_err(Failure::refused)?;
        Ok(Observed { chosen, meshes: setting.meshes, interval })
    }

    pub(crate) fn observer(&self) -> Box<dyn Observer> {
        let Chosen { what, set, metrics } = &self.chosen;
        let kernel = KernelOpener { files: Files::default() };
        Box::new(PmuObserver::new(
            what,
            set.clone(),
            metrics.clone(),
            self.meshes.clone(),
            self.interval,
            kernel,
        ))
    }
}

/// Units of bytes on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ByteUnit {
    /// Powers of 1000
    Mb,
    /// Powers of 1024
    Mib,
    /// Both
    Both,
}

impl From<ByteUnit> for RateUnit {
    fn from(unit: ByteUnit) -> RateUnit {
        match unit {
            ByteUnit::Mb => RateUnit::Mb,
            ByteUnit::Mib => RateUnit::Mib,
            ByteUnit::Both => RateUnit::Both,
        }
    }
}
