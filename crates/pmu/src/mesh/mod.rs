//! Meshes: which node is where. Found in registers (a dump, or an emulated configuration space), in the driver's map in
//! debugfs, or described in a file.

pub mod debugfs;
pub mod nodes;
pub mod registers;
pub mod topology;

use daqmeter_record::Mesh;
use daqmeter_sys::host::Files;

use crate::sysfs::Pmu;

/// Why there is no mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// A description or a map in a file is wrong.
    #[error("{file}: {problem}")]
    File {
        /// File or name.
        file: String,
        /// What is wrong, with the line where there is one.
        problem: String,
    },
    /// Registers make no sense.
    #[error("register {at:#x}: {problem}")]
    Registers {
        /// Offset or address.
        at: u64,
        /// What was found there and what was expected.
        problem: String,
    },
}

/// The meshes that the kernel's driver shows in debugfs, one for each PMU; empty without root, debugfs or arm-cmn.
pub fn of_host(files: &Files, pmus: &[Pmu]) -> Vec<Mesh> {
    let mut meshes = Vec::new();
    for pmu in pmus.iter().filter(|pmu| pmu.family() == "arm_cmn") {
        let number = pmu.name.rsplit('_').next().unwrap_or("0");
        let file = if number == "0" {
            "map".to_owned()
        } else {
            format!("map_{number}")
        };
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
        meshes.push(mesh);
    }
    meshes
}

/// A mesh from a file: a description (`.toml`), the driver's map, or a dump of registers (`R 0xADDRESS 0xVALUE` lines).
///
/// # Errors
/// When it is none of them.
pub fn from_text(text: &str, file: &str) -> Result<Mesh, MeshError> {
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .unwrap_or("");
    if first.starts_with("R ") || first.starts_with("r ") {
        return registers::Dump::parse(text, file)?.discover();
    }
    if first.starts_with('X') {
        return debugfs::parse(text, file);
    }
    topology::parse(text, file)
}
