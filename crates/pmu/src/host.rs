//! Host whose events are counted, real or emulated: its PMUs, its meshes, the rules of its driver.

use daqmeter_harness::Fault;
use daqmeter_record::Mesh;
use daqmeter_sys::host::Files;

use crate::count::Selection;
use crate::emulated::catalogue;
use crate::event::{EventResolver, PmuEvent};
use crate::groups::MetricGroup;
use crate::mesh::{self, nodes, topology};
use crate::plan::{Driver, Rules};
use crate::sysfs::{Pmu, discover};

#[derive(Debug)]
pub struct CountedHost {
    pub files: Files,
    pub pmus: Vec<Pmu>,
    pub meshes: Vec<Mesh>,
    pub is_emulated: bool,
    pub driver: Driver,
}

impl CountedHost {
    /// Returns this host. Meshes of files take the place of the driver's own.
    pub fn new(files: Files, maps: Vec<Mesh>) -> CountedHost {
        let pmus = discover(&files);
        let cmns: Vec<&Pmu> = pmus.iter().filter(|pmu| pmu.family() == "arm_cmn").collect();
        let named = |(at, mesh): (usize, Mesh)| {
            let by_address = cmns.iter().find(|pmu| pmu.base.is_some() && pmu.base == mesh.base);
            let pmu = by_address.or(cmns.get(at)).map(|pmu| pmu.name.clone());
            Mesh { name: pmu.unwrap_or_else(|| format!("arm_cmn_{at}")), ..mesh }
        };
        let meshes: Vec<Mesh> = maps.into_iter().enumerate().map(named).collect();
        let meshes = if meshes.is_empty() { mesh::of_host(&files, &pmus) } else { meshes };
        let release = files.text("proc/sys/kernel/osrelease").filter(|_| !cmns.is_empty());
        let driver = release.map_or(Driver::Mainline, |release| Driver::of_kernel(&release));
        CountedHost { driver, files, pmus, meshes, is_emulated: false }
    }

    /// Returns a host with the shipped mesh of that name, as `arm_cmn_0`, and its PMU.
    pub fn emulated(name: &str) -> Option<CountedHost> {
        let mesh = Mesh { name: "arm_cmn_0".to_owned(), ..topology::shipped(name)? };
        Some(CountedHost {
            files: Files::default(),
            pmus: vec![catalogue(&mesh)],
            meshes: vec![mesh],
            is_emulated: true,
            driver: Driver::Mainline,
        })
    }

    /// Adds the driver's PMU for each mesh without one here, so that its events can be planned.
    #[must_use]
    pub fn offline(mut self) -> CountedHost {
        for mesh in &self.meshes {
            if self.pmus.iter().all(|pmu| pmu.name != mesh.name) {
                self.pmus.push(catalogue(mesh));
            }
        }
        self
    }

    pub fn resolver(&self) -> EventResolver<'_> {
        EventResolver { pmus: &self.pmus, files: &self.files }
    }

    /// Resolves groups, an event of each node of its kind by itself, and events.
    ///
    /// # Errors
    /// Refuses unknown and impossible events, in one line with what to write instead.
    pub fn choose(
        &self,
        groups: &[String],
        heat: Option<&str>,
        events: &[String],
    ) -> Result<Selection, Fault> {
        let (mut texts, mut metrics, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for name in groups {
            let group = MetricGroup::find(name)?;
            let (events, found) = group.expand(&self.pmus, &self.meshes)?;
            metrics.extend(found.into_iter().map(|metric| metric.shifted(texts.len())));
            texts.extend(events);
            names.push(group.name);
        }
        if let Some(event) = heat {
            texts.extend(self.by_node(event)?);
            names.push(format!("heat of {event}"));
        }
        texts.extend(events.iter().cloned());
        names.extend(events.iter().cloned());
        if texts.is_empty() {
            return Err(Fault::new(
                "nothing to count: give --event, --group or --heat (daqmeter pmu list --groups)",
            ));
        }
        // A map of the driver does not tell the part, and so not its events.
        let no_part = self.meshes.iter().find(|mesh| mesh.part.is_empty()).map(|mesh| &mesh.name);
        let mut set = self.resolver().resolve(&texts).map_err(|unknown| match no_part {
            Some(mesh) => Fault::new(format!(
                "{unknown}; the map of {mesh} does not tell its part: --part CMN-700"
            )),
            None => unknown,
        })?;
        if self.driver == Driver::N1sdp {
            // This driver takes a node without bynodeid.
            set.warnings.clear();
        }
        let used = |mesh: &&Mesh| set.events().any(|event| event.is_on(&mesh.name));
        let used = self.meshes.iter().filter(used);
        let warnings: Vec<String> = used.filter_map(|mesh| self.driver.warning(mesh)).collect();
        set.warnings.extend(warnings);
        set.groups.iter().try_for_each(|group| self.check(group))?;
        Ok(Selection { what: names.join(", "), set, metrics, meshes: self.meshes.clone() })
    }

    /// Refuses a group that none of its meshes can count; the driver adds them up.
    fn check(&self, group: &Vec<PmuEvent>) -> Result<(), Fault> {
        let is_theirs = |mesh: &&Mesh| group.iter().all(|event| event.is_on(&mesh.name));
        let check = |mesh: &Mesh| Rules::new(mesh, self.driver).check(std::slice::from_ref(group));
        let checked: Vec<_> = self.meshes.iter().filter(is_theirs).map(check).collect();
        let fits = checked.iter().any(Result::is_ok);
        checked.into_iter().find(Result::is_err).filter(|_| !fits).unwrap_or(Ok(()))
    }

    fn by_node(&self, event: &str) -> Result<Vec<String>, Fault> {
        let mut texts = Vec::new();
        for mesh in &self.meshes {
            let pmu = self.pmus.iter().find(|pmu| pmu.name == mesh.name);
            let code = pmu.and_then(|pmu| pmu.event(event)?.term("type"));
            let Some(code) = code.and_then(|code| u16::try_from(code).ok()) else {
                let mesh = &mesh.name;
                return Err(Fault::new(format!(
                    "{mesh} has no event `{event}` (daqmeter pmu list --events)"
                )));
            };
            let text = |id| format!("{}/{event},bynodeid=1,nodeid={id:#x}/", mesh.name);
            texts.extend(nodes::counting(mesh, code).map(text));
        }
        if texts.is_empty() {
            return Err(Fault::new(
                "--heat needs the map of a mesh: root and debugfs (mount -t debugfs none /sys/kernel/debug), --map FILE, or --emulated n1sdp",
            ));
        }
        Ok(texts)
    }
}
