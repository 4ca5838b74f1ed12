//! Kernel modules under Debian's kernels in QEMU, on software and on an emulated engine of
//! mainline; a survey on machines of another topology than this host's.

mod modules;
mod patched;
mod pollution;

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::boot::{Boot, device_tree, judge};
use crate::debian::{Kernel, arm_busybox};
use crate::files::{Initrd, folder, rows, tail, timed};
use crate::mesh;
use crate::shell::{left_out, line, program, root, target};

pub(crate) use modules::source;
pub(crate) use patched::static_policies;
pub(crate) use pollution::pollution;

/// A PC. qemu64 has neither ERMS nor FSRM: the string instruction is then not emulated byte by
/// byte.
const PC: &str = "qemu-system-x86_64 -machine q35 -cpu qemu64 -m 1536";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CopyMachine {
    name: String,
    series: String,
    arch: String,
    /// QEMU and its options, after those of [`PC`] on amd64.
    qemu: String,
    #[serde(default)]
    options: String,
    /// Name of the script in this folder.
    script: String,
    /// Number of cases that must pass.
    cases: usize,
    /// Text that the machine must print.
    #[serde(default)]
    says: String,
}

/// Machines of a kind, `copies` or `topologies`.
fn machines(kind: &str) -> Result<Vec<CopyMachine>> {
    rows(include_str!("machines.toml"), kind)
}

const LIMIT_S: u32 = 480;

fn for_pcs() -> Result<()> {
    let is_pc = cfg!(target_arch = "x86_64");
    if is_pc { Ok(()) } else { left_out("the virtual machines are built for x86-64 hosts") }
}

/// Checks layout and style of the C sources, builds modules and programs.
pub(crate) fn prepare() -> Result<()> {
    for_pcs()?;
    timed("layout of the border, C against Rust", modules::layout)?;
    timed("checkpatch", modules::style)?;
    timed("the guest's program", programs)?;
    for (series, arch) in [("6.1", "amd64"), ("6.12", "amd64"), ("6.1", "arm64")] {
        let kernel = Kernel::fetch(series, arch)?;
        timed(&format!("{series} {arch}: modules"), || modules::build(&kernel))?;
    }
    pollution::plugin()
}

/// Builds the guest's test program with the packages and features of the tests, which have it.
fn programs() -> Result<()> {
    line("cargo build --quiet --workspace --example kmod_guest").run()
}

/// Boots every machine after [`prepare`], or those with `only` in their name.
pub(crate) fn boot(only: &str) -> Result<()> {
    for_pcs()?;
    let mut ran = all("copies", only)?;
    if "cache".contains(only) {
        pollution(false)?;
        ran += 1;
    }
    ensure!(ran > 0, "no machine has `{only}` in its name");
    Ok(())
}

/// Boots the machines of other topologies after [`prepare`].
pub(crate) fn topologies() -> Result<()> {
    for_pcs()?;
    all("topologies", "").map(drop)
}

fn all(kind: &str, only: &str) -> Result<usize> {
    let mut chosen = machines(kind)?;
    chosen.retain(|machine| machine.name.contains(only));
    chosen.iter().try_for_each(|machine| timed(&machine.name, || machine.run()))?;
    Ok(chosen.len())
}

impl CopyMachine {
    fn run(&self) -> Result<()> {
        let CopyMachine { name, options, script, .. } = self;
        let kernel = Kernel::fetch(&self.series, &self.arch)?;
        let script = fs::read_to_string(root().join("vm/src/copy").join(script))?;
        let initrd = initrd(name, &kernel, &script)?;
        let mut qemu = self.qemu.clone();
        if self.arch == "amd64" {
            qemu.insert_str(0, &format!("{PC} "));
        }
        if let Some((_, slower)) = options.split_once("daqmeter.slower=") {
            qemu += &format!(" -dtb {}", tree(&qemu, slower)?.display());
        }
        let boot = Boot { name, qemu: &qemu, kernel: &kernel.image, options, limit_s: LIMIT_S };
        let printed = boot.run(initrd)?;
        ensure!(printed.contains(&self.says), "no {}; last lines:\n{}", self.says, tail(&printed));
        judge(&printed, self.cases)
    }
}

/// Makes QEMU's device tree of the machine, with the capacity of each CPU (`capacity-dmips-mhz`,
/// the kernel's `Documentation/devicetree/bindings/cpu/cpu-capacity.txt`).
fn tree(qemu: &str, slower: &str) -> Result<PathBuf> {
    let path = folder().join("topology.dtb");
    device_tree(qemu, &path)?;
    for cpu in ["0", "1", "2", "3", "4", "5", "6", "7"] {
        let capacity = if slower.contains(cpu) { "400" } else { "1024" };
        let put = line("fdtput -t i").arg(&path).arg(format!("/cpus/cpu@{cpu}"));
        put.arg("capacity-dmips-mhz").arg(capacity).run()?;
    }
    Ok(path)
}

/// Returns the initial file system of a machine with the programs and the modules.
fn initrd(name: &str, kernel: &Kernel, script: &str) -> Result<Initrd> {
    let (busybox, tool, built) = match &*kernel.arch {
        "amd64" => (PathBuf::from("/bin/busybox"), program(), target().join("debug")),
        _ => (arm_busybox()?, mesh::built().join("daqmeter"), mesh::built()),
    };
    let initrd = Initrd::new(name, &busybox, script)?;
    for program in [tool, built.join("examples/kmod_guest")] {
        initrd.take(&program.file_name().unwrap_or_default().to_string_lossy(), &program)?;
        if kernel.arch == "amd64" {
            initrd.take_libraries(line("ldd").arg(program), "/".as_ref())?;
        }
    }
    modules::install(kernel, &initrd)?;
    Ok(initrd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_its_script() {
        for (kind, count) in [("copies", 6), ("topologies", 2)] {
            let machines = machines(kind).unwrap();
            assert_eq!(machines.len(), count);
            for CopyMachine { name, script, cases, .. } in machines {
                let path = root().join("vm/src/copy").join(script);
                assert!(path.exists() && cases > 0, "{name}: {}", path.display());
            }
        }
    }
}
