//! Every PMU of the host, from `/sys/bus/event_source/devices` alone, because perf's listing omits
//! and renames some.

use std::fs;
use std::path::PathBuf;

use daqmeter_sys::host::{Files, parse_cpu_list};
use serde::Serialize;

use crate::format::FormatField;

const DEVICES: &str = "sys/bus/event_source/devices";

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pmu {
    /// Name of its directory, such as `arm_cmn_0`.
    pub name: String,
    /// Type number for `perf_event_open(2)`.
    #[serde(rename = "type")]
    pub kind: u32,
    /// CPUs on which its events are opened; empty for a PMU of every CPU.
    pub cpus: Vec<u32>,
    pub identifier: Option<String>,
    pub mux_interval_ms: Option<u64>,
    /// Physical address of the registers, if sysfs shows it (arm-cmn of Linux 6.12 and later).
    pub base: Option<u64>,
    pub formats: Vec<FormatField>,
    pub events: Vec<Alias>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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

/// Returns all PMUs, by name.
pub fn discover(files: &Files) -> Vec<Pmu> {
    files.names(DEVICES).into_iter().filter_map(|name| Pmu::read(files, name)).collect()
}

impl Pmu {
    fn read(files: &Files, name: String) -> Option<Pmu> {
        let folder = format!("{DEVICES}/{name}");
        let text = |file: &str| files.text(&format!("{folder}/{file}"));
        let format = |field: String| FormatField::parse(&field, &text(&format!("format/{field}"))?);
        let is_attribute = |name: &String| {
            [".unit", ".scale", ".per-pkg", ".snapshot"].iter().any(|end| name.ends_with(end))
        };
        let event = |name: String| {
            let text = |end: &str| text(&format!("events/{name}{end}"));
            Some(Alias {
                terms: text("")?,
                unit: text(".unit").unwrap_or_default(),
                scale: text(".scale").and_then(|scale| scale.parse().ok()).unwrap_or(1.0),
                name,
            })
        };
        let names = |kind: &str| files.names(&format!("{folder}/{kind}")).into_iter();
        Some(Pmu {
            kind: text("type")?.parse().ok()?,
            // PMUs of some of the CPUs have `cpus` (cpu_core, armv8_cortex_a76).
            cpus: ["cpumask", "cpus"]
                .into_iter()
                .find_map(text)
                .map_or(Vec::new(), |cpus| parse_cpu_list(&cpus)),
            identifier: text("identifier"),
            mux_interval_ms: text("perf_event_mux_interval_ms").and_then(|ms| ms.parse().ok()),
            base: base_of(&files.root().join(&folder)),
            formats: names("format").filter_map(format).collect(),
            events: names("events").filter(|name| !is_attribute(name)).filter_map(event).collect(),
            name,
        })
    }

    pub fn family(&self) -> &str {
        family_of(&self.name)
    }

    pub fn format(&self, name: &str) -> Option<&FormatField> {
        self.formats.iter().find(|format| format.name == name)
    }

    pub fn event(&self, name: &str) -> Option<&Alias> {
        self.events.iter().find(|alias| alias.name == name)
    }
}

/// Returns a PMU's name without the number of the instance, which has more than two digits if it is
/// hexadecimal: `arm_cmn` for `arm_cmn_0`, `arm_dmc620` for `arm_dmc620_10008c000`. Source: Linux
/// tools/perf/util/pmu.c, `pmu_name_len_no_suffix`.
fn family_of(name: &str) -> &str {
    let is_number = |end: &str| {
        let is_hex = end.len() > 2 && end.bytes().all(|byte| byte.is_ascii_hexdigit());
        !end.is_empty() && (is_hex || end.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match name.rsplit_once('_') {
        Some((family, end)) if !family.is_empty() && is_number(end) => family,
        _ => name,
    }
}

/// Returns true if a PMU's name is the one that is wanted, is of this family, or has this
/// pattern as in perf: `hisi_sccl*_ddrc*`.
pub(crate) fn is_of(name: &str, wanted: &str) -> bool {
    let (first, parts) = wanted.split_once('*').unwrap_or((wanted, ""));
    let mut rest = name.strip_prefix(first);
    for part in parts.split('*') {
        rest = rest.and_then(|rest| Some(&rest[rest.find(part)? + part.len()..]));
    }
    let is_pattern = wanted.contains('*') && (wanted.ends_with('*') || rest == Some(""));
    name == wanted || family_of(name) == wanted || is_pattern && rest.is_some()
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
    files.text(&format!("{}/events/{subsystem}/{event}/id", files.tracefs()?))?.parse().ok()
}

/// Returns all tracepoints of the subsystems that data passes, as `subsystem:event`.
pub fn tracepoints(files: &Files) -> Vec<String> {
    const PASSED: [&str; 9] =
        ["block", "net", "irq", "napi", "iommu", "dma_fence", "filemap", "swiotlb", "nvme"];
    let Some(root) = files.tracefs() else {
        return Vec::new();
    };
    let events = |subsystem: &str| {
        let names = files.names(&format!("{root}/events/{subsystem}")).into_iter();
        let events = names.filter(|name| name != "enable" && name != "filter");
        events.map(|event| format!("{subsystem}:{event}")).collect::<Vec<_>>()
    };
    PASSED.into_iter().flat_map(events).collect()
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
        let names: Vec<_> = pmu.events.iter().map(|alias| alias.name.as_str()).collect();
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
            ("arm_dmc620_10008c000", "arm_dmc620"),
            ("cpum_cf", "cpum_cf"),
        ] {
            assert_eq!(Pmu { name: name.to_owned(), ..Pmu::default() }.family(), family);
        }
        for (wanted, is) in [
            ("hisi_sccl*_ddrc*", true),
            ("*ddrc0", true),
            ("hisi_sccl3_ddrc0", true),
            ("hisi_sccl*_ddrc", false),
            ("hisi_sccl*_l3c*", false),
            ("hisi", false),
        ] {
            assert_eq!(is_of("hisi_sccl3_ddrc0", wanted), is, "{wanted}");
        }
    }
}
