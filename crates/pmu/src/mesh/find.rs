use daqmeter_record::Mesh;
use daqmeter_sys::host::Files;

use super::error::MeshError;
use super::{debugfs, nodes, registers, topology};
use crate::sysfs::Pmu;

/// Returns the meshes that the kernel's driver shows in debugfs, one for each PMU. It is empty
/// without root, debugfs or arm-cmn.
pub fn of_host(files: &Files, pmus: &[Pmu]) -> Vec<Mesh> {
    let mut meshes = Vec::new();
    for pmu in pmus.iter().filter(|pmu| pmu.family() == "arm_cmn") {
        let number = pmu.name.rsplit('_').next().unwrap_or("0");
        let file = if number == "0" { "map".to_owned() } else { format!("map_{number}") };
        let Some(text) = files.text(&format!("sys/kernel/debug/arm-cmn/{file}")) else {
            continue;
        };
        let Ok(mut mesh) = debugfs::parse(&text, &pmu.name) else {
            continue;
        };
        mesh.base = pmu.base;
        if let Some((part, revision)) = pmu.identifier.as_deref().and_then(nodes::of_identifier) {
            mesh.part = part;
            mesh.revision = revision;
        }
        topology::label_known(&mut mesh);
        meshes.push(mesh);
    }
    meshes
}

/// Reads a mesh from a description (`.toml`), the driver's map, or a dump of registers (`R
/// 0xADDRESS 0xVALUE` lines).
pub fn from_text(text: &str, file: &str) -> Result<Mesh, MeshError> {
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .unwrap_or("");
    if first.starts_with("R ") || first.starts_with("r ") {
        let mut mesh = registers::Dump::parse(text, file)?.discover()?;
        topology::label_known(&mut mesh);
        return Ok(mesh);
    }
    if first.starts_with('X') {
        return debugfs::parse(text, file);
    }
    topology::parse(text, file)
}
