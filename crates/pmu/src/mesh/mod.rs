//! Meshes: the places of nodes, from the driver's map in debugfs or a file.

mod debugfs;
pub mod nodes;
pub mod topology;

use daqmeter_harness::{Fault, TomlText};
use daqmeter_record::Mesh;
use daqmeter_sys::host::Files;

use crate::sysfs::Pmu;

/// Returns the meshes that the kernel's driver shows in debugfs, one for each PMU. It is empty
/// without root, debugfs or arm-cmn.
pub fn of_host(files: &Files, pmus: &[Pmu]) -> Vec<Mesh> {
    let mesh = |pmu: &Pmu| {
        let number = pmu.name.rsplit('_').next().unwrap_or("0");
        let file = if number == "0" { "map".to_owned() } else { format!("map_{number}") };
        let text = files.text(&format!("sys/kernel/debug/arm-cmn/{file}"))?;
        let mut mesh = debugfs::parse(&text, &pmu.name).ok()?;
        mesh.base = pmu.base;
        if let Some((part, revision)) = pmu.identifier.as_deref().and_then(nodes::of_identifier) {
            (mesh.part, mesh.revision) = (part, revision);
        }
        topology::label_known(&mut mesh);
        Some(mesh)
    };
    pmus.iter().filter(|pmu| pmu.family() == "arm_cmn").filter_map(mesh).collect()
}

/// Reads a mesh from a file: what `pmu list --mesh --json` wrote, a copy of the driver's map, or a
/// description (TOML).
pub fn from_text(text: &str, file: &str) -> Result<Mesh, Fault> {
    match text.trim_start().chars().next() {
        Some('{') => topology::from_json(text, file),
        Some('X') => debugfs::parse(text, file),
        _ => topology::parse(&TomlText::new(file, text)),
    }
}
