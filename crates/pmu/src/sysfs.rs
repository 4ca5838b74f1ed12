//! Every PMU of the host, from `/sys/bus/event_source/devices` alone, because perf's listing omits
//! and renames some.

use std::cell::OnceCell;
use std::fs;
use std::path::PathBuf;

use daqmeter_sys::host::{Files, parse_cpu_list};

use crate::format::FormatField;

const DEVICES: &str = "sys/bus/event_source/devices";

#[derive(Clone, Debug)]
pub struct Pmu {
    /// Name of its directory, such as `arm_cmn_0`.
    pub name: String,
    /// Type number for `perf_event_open(2)`.
    pub kind: u32,
    /// CPUs on which its events are opened; empty for a PMU of every CPU.
    pub cpus: Vec<u32>,
    pub identifier: Option<String>,
    pub mux_interval_ms: Option<u64>,
    /// Physical address of the registers, if sysfs shows it (arm-cmn of Linux 6.12 and later).
    pub base: Option<u64>,
    files: Files,
    formats: OnceCell<Vec<FormatField>>,
    events: OnceCell<Vec<Alias>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Alias {
    pub name: String,
    pub terms: String,
    /// Unit of the value after scaling, empty for a plain count.
    pub unit: String,
    /// Factor from the count to the unit.
    pub scale: f64,
}

impl Alias {
    pub fn term(&self, name: &str) -> Option<u64> {
        let value = self
            .terms
            .split(',')
            .find_map(|term| term.trim().strip_prefix(name)?.strip_prefix('='))?;
        parse_number(value)
    }
}

pub(crate) fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns all PMUs, by name. Events and formats are read on demand.
pub fn discover(files: &Files) -> Vec<Pmu> {
    files.names(DEVICES).into_iter().filter_map(|name| Pmu::read(files, name)).collect()
}

impl Pmu {
    fn read(files: &Files, name: String) -> Option<Pmu> {
        let at = |file: &str| format!("{DEVICES}/{name}/{file}");
        let kind = files.text(&at("type"))?.parse().ok()?;
        let cpus = ["cpumask", "cpus"].into_iter().find_map(|file| files.text(&at(file)));
        // A PMU of the CPUs themselves lists them under `cpus`; `cpumask` names the CPUs that
        // represent all.
        let shared = files.text(&at("cpumask")).is_some();
        Some(Pmu {
            kind,
            cpus: if shared { parse_cpu_list(&cpus.unwrap_or_default()) } else { Vec::new() },
            identifier: files.text(&at("identifier")),
            mux_interval_ms: files
                .text(&at("perf_event_mux_interval_ms"))
                .and_then(|text| text.parse().ok()),
            base: base_of(&files.root().join(DEVICES).join(&name)),
            files: files.clone(),
            formats: OnceCell::new(),
            events: OnceCell::new(),
            name,
        })
    }

    /// Makes a PMU that is not in sysfs: for planning without the hardware, and for tests.
    pub(crate) fn assumed(name: &str, formats: Vec<FormatField>, events: Vec<Alias>) -> Pmu {
        Pmu {
            name: name.to_owned(),
            kind: 0,
            cpus: vec![0],
            identifier: None,
            mux_interval_ms: None,
            base: None,
            files: Files::below("/nonexistent"),
            formats: OnceCell::from(formats),
            events: OnceCell::from(events),
        }
    }

    /// Returns the name without the number of the instance: `arm_cmn` for `arm_cmn_0`.
    pub fn family(&self) -> &str {
        let bare = self.name.trim_end_matches(|c: char| c.is_ascii_digit());
        match bare.strip_suffix('_') {
            Some(family) if bare.len() < self.name.len() && !family.is_empty() => family,
            _ => &self.name,
        }
    }

    pub fn formats(&self) -> &[FormatField] {
        self.formats.get_or_init(|| {
            let directory = format!("{DEVICES}/{}/format", self.name);
            let read = |field: String| {
                let text = self.files.text(&format!("{directory}/{field}"))?;
                FormatField::parse(&field, &text).ok()
            };
            self.files.names(&directory).into_iter().filter_map(read).collect()
        })
    }

    pub fn format(&self, name: &str) -> Option<&FormatField> {
        self.formats().iter().find(|format| format.name == name)
    }

    pub fn events(&self) -> &[Alias] {
        self.events.get_or_init(|| {
            let directory = format!("{DEVICES}/{}/events", self.name);
            let names = self.files.names(&directory);
            let attribute = |name: &str| {
                ["unit", "scale", "per-pkg", "snapshot"]
                    .iter()
                    .any(|end| name.ends_with(&format!(".{end}")))
            };
            let read = |name: &String| {
                let text = |end: &str| self.files.text(&format!("{directory}/{name}{end}"));
                Some(Alias {
                    terms: text("")?,
                    unit: text(".unit").unwrap_or_default(),
                    scale: text(".scale").and_then(|scale| scale.parse().ok()).unwrap_or(1.0),
                    name: name.clone(),
                })
            };
            names.iter().filter(|name| !attribute(name)).filter_map(read).collect()
        })
    }

    pub fn event(&self, name: &str) -> Option<&Alias> {
        self.events().iter().find(|alias| alias.name == name)
    }
}

/// Reads the address before the first dot in the link's target, as in
/// `.../platform/50000000.pmu/arm_cmn_0`.
fn base_of(link: &std::path::Path) -> Option<u64> {
    let place: PathBuf = fs::canonicalize(link).ok()?;
    let parent = place.parent()?.file_name()?.to_str()?.split_once('.')?.0;
    (parent.len() >= 6).then(|| u64::from_str_radix(parent, 16).ok())?
}

/// Returns the number of the kernel's tracepoint `subsystem:event`.
pub fn tracepoint(files: &Files, subsystem: &str, event: &str) -> Option<u64> {
    let roots = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];
    roots
        .iter()
        .find_map(|root| files.text(&format!("{root}/events/{subsystem}/{event}/id"))?.parse().ok())
}

pub(crate) fn has_tracefs(files: &Files) -> bool {
    let roots = ["sys/kernel/tracing/events", "sys/kernel/debug/tracing/events"];
    roots.iter().any(|root| !files.names(root).is_empty())
}

/// Returns all tracepoints of the subsystems that data passes, as `subsystem:event`.
pub fn tracepoints(files: &Files) -> Vec<String> {
    let root = ["sys/kernel/tracing/events", "sys/kernel/debug/tracing/events"];
    let Some(root) = root.into_iter().find(|root| !files.names(root).is_empty()) else {
        return Vec::new();
    };
    let passed = [
        "block",
        "net",
        "irq",
        "napi",
        "iommu",
        "dma_fence",
        "kmem",
        "filemap",
        "swiotlb",
        "nvme",
        "sched",
    ];
    let events = |subsystem: &str| {
        let names = files.names(&format!("{root}/{subsystem}")).into_iter();
        let events = names.filter(|name| name != "enable" && name != "filter");
        events.map(|event| format!("{subsystem}:{event}")).collect::<Vec<_>>()
    };
    passed.into_iter().flat_map(events).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn tree(entries: &[(&str, &str)]) -> (tempfile::TempDir, Files) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in entries {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let files = Files::below(root.path());
        (root, files)
    }

    #[test]
    fn a_pmu_is_read_whole_from_sysfs() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/devices/platform/50000000.pmu/arm_cmn_0");
        fs::create_dir_all(device.join("events")).unwrap();
        fs::create_dir_all(device.join("format")).unwrap();
        for (name, text) in [
            ("type", "11\n"),
            ("cpumask", "0\n"),
            ("identifier", "43402\n"),
            ("perf_event_mux_interval_ms", "4\n"),
            ("events/hnf_mc_reqs", "type=0x5,eventid=0xd\n"),
            ("events/energy", "event=0x1\n"),
            ("events/energy.unit", "Joules\n"),
            ("events/energy.scale", "2.3283064365386962890625e-10\n"),
            ("format/type", "config:0-15\n"),
        ] {
            fs::write(device.join(name), text).unwrap();
        }
        fs::create_dir_all(root.path().join(DEVICES)).unwrap();
        std::os::unix::fs::symlink(&device, root.path().join(DEVICES).join("arm_cmn_0")).unwrap();
        let pmus = discover(&Files::below(root.path()));
        let pmu = &pmus[0];
        assert_eq!(
            (pmu.name.as_str(), pmu.family(), pmu.kind, pmu.cpus.as_slice()),
            ("arm_cmn_0", "arm_cmn", 11, &[0][..])
        );
        assert_eq!(
            (pmu.base, pmu.identifier.as_deref(), pmu.mux_interval_ms),
            (Some(0x5000_0000), Some("43402"), Some(4))
        );
        let names: Vec<_> = pmu.events().iter().map(|alias| alias.name.as_str()).collect();
        assert_eq!(names, ["energy", "hnf_mc_reqs"], "units and scales are not events");
        assert_eq!(
            pmu.event("energy").map(|alias| (alias.unit.as_str(), alias.scale)),
            Some(("Joules", 2.328_306_436_538_696_3e-10))
        );
        assert_eq!(pmu.event("hnf_mc_reqs").and_then(|alias| alias.term("eventid")), Some(0xd));
        assert_eq!(pmu.format("type").map(FormatField::bits), Some(16));
    }

    #[test]
    fn a_pmu_without_a_number_is_no_pmu_and_an_empty_host_has_none() {
        let (_root, files) = tree(&[("sys/bus/event_source/devices/odd/type", "x")]);
        assert!(discover(&files).is_empty());
        assert!(discover(&Files::below("/nonexistent")).is_empty());
    }

    #[test]
    fn families_lose_only_the_number_of_the_instance() {
        for (name, family) in [
            ("arm_cmn_12", "arm_cmn"),
            ("uncore_imc_0", "uncore_imc"),
            ("cpu", "cpu"),
            ("armv8_pmuv3_0", "armv8_pmuv3"),
            ("l3c", "l3c"),
        ] {
            assert_eq!(Pmu::assumed(name, vec![], vec![]).family(), family);
        }
    }
}
