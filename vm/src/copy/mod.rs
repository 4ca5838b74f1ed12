//! Kernel modules under Debian's kernels in QEMU, on software and on an emulated engine of
//! mainline; a survey on machines of another topology than this host's.

mod modules;
mod patched;
mod pollution;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::boot::{Boot, device_tree, judge};
use crate::debian::{Kernel, arm_busybox};
use crate::files::{Initrd, folder, tail, timed};
use crate::mesh;
use crate::shell::{left_out, line, program, rust_target, target};

pub(crate) use modules::source;
pub(crate) use patched::static_policies;
pub(crate) use pollution::pollution;

/// A PC. qemu64 has neither ERMS nor FSRM: the string instruction is then not emulated byte by
/// byte.
const PC: &str = "qemu-system-x86_64 -machine q35 -cpu qemu64 -m 1536";

/// Architecture of the Arm machines; their programs are files without libraries.
const ARM_TARGET: &str = "aarch64-unknown-linux-gnu";

struct Machine {
    name: &'static str,
    series: &'static str,
    arch: &'static str,
    /// QEMU and its options, after those of [`PC`] on amd64.
    qemu: &'static str,
    options: &'static str,
    script: &'static str,
    cases: usize,
    /// Text that the machine must print.
    says: &'static str,
}

impl Machine {
    /// A PC with four CPUs that one host thread runs, one after the other.
    const PC: Machine = Machine {
        name: "",
        series: "6.12",
        arch: "amd64",
        qemu: "-smp 4 -accel tcg,thread=single",
        options: "",
        script: "",
        cases: 7,
        says: "",
    };
}

const MACHINES: &[Machine] = &[
    Machine {
        name: "cases-6.1",
        series: "6.1",
        options: "slub_debug=FZPU",
        script: include_str!("cases.sh"),
        cases: 27,
        ..Machine::PC
    },
    Machine {
        name: "cases-6.12",
        options: "slub_debug=FZPU",
        script: include_str!("cases.sh"),
        cases: 27,
        ..Machine::PC
    },
    // All mappings for engines are bounce buffers, and the memory of programs can be moved.
    Machine {
        name: "bounce",
        options: "swiotlb=force movablecore=512M",
        script: include_str!("bounce.sh"),
        ..Machine::PC
    },
    // One host thread for each CPU: they race. A CPU can meet the int3 of a kernel that patches its
    // own code (static keys). If the others have forgotten it, the kernel dies. So the other CPUs
    // start after the boot.
    Machine {
        name: "races",
        qemu: "-smp 4 -accel tcg,thread=multi",
        options: "maxcpus=1",
        script: include_str!("races.sh"),
        ..Machine::PC
    },
    // One CPU with a clock that counts instructions: it can keep the window.
    Machine {
        name: "window",
        series: "6.1",
        qemu: "-smp 1 -accel tcg,thread=single -icount shift=3,sleep=off",
        options: "daqmeter.icount=1 preempt=full",
        script: include_str!("window.sh"),
        cases: 2,
        ..Machine::PC
    },
    // AMD Versal; QEMU emulates its eight ADMA controllers, for which mainline has a driver.
    Machine {
        name: "versal",
        series: "6.1",
        arch: "arm64",
        qemu: "qemu-system-aarch64 -machine xlnx-versal-virt -m 2G -smp 4",
        script: include_str!("versal.sh"),
        cases: 3,
        ..Machine::PC
    },
];

/// Machines of two NUMA nodes, each a socket of two cores of two threads.
const TOPOLOGIES: &[Machine] = &[
    Machine {
        name: "fast-and-slow-cores",
        series: "6.1",
        arch: "arm64",
        qemu: "qemu-system-aarch64 -machine virt -cpu cortex-a72 -accel tcg,thread=multi -m 1536 \
            -smp 8,sockets=2,cores=2,threads=2 \
            -object memory-backend-ram,id=near,size=768M -numa node,nodeid=0,cpus=0-3,memdev=near \
            -object memory-backend-ram,id=far,size=768M -numa node,nodeid=1,cpus=4-7,memdev=far",
        // Debian's kernel complains of threads in two nodes of a device tree, and goes on.
        options: "loglevel=3 daqmeter.slower=0,1,6,7",
        script: include_str!("topology.sh"),
        cases: 3,
        says: r#""logical_cpus":8,"cores":4,"siblings":[[0,1],[2,3],[4,5],[6,7]],"slower_cpus":[0,1,6,7],"sockets":2,"numa":[{"node":0,"cpus":[0,1,2,3]},{"node":1,"cpus":[4,5,6,7]}]"#,
    },
    Machine {
        name: "two-sockets",
        qemu: "-accel tcg,thread=single -smp 8,sockets=2,cores=2,threads=2 \
            -object memory-backend-ram,id=near,size=768M -numa node,nodeid=0,cpus=0-3,memdev=near \
            -object memory-backend-ram,id=far,size=768M -numa node,nodeid=1,cpus=4-7,memdev=far",
        script: include_str!("topology.sh"),
        cases: 3,
        says: r#""logical_cpus":8,"cores":4,"siblings":[[0,1],[2,3],[4,5],[6,7]],"sockets":2,"numa":[{"node":0,"cpus":[0,1,2,3]},{"node":1,"cpus":[4,5,6,7]}],"caches":[{"level":1"#,
        ..Machine::PC
    },
];

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
    timed("the guest's programs", programs)?;
    for (series, arch) in [("6.1", "amd64"), ("6.12", "amd64"), ("6.1", "arm64")] {
        let kernel = Kernel::fetch(series, arch)?;
        timed(&format!("{series} {arch}: modules"), || modules::build(&kernel))?;
    }
    pollution::plugin()
}

/// Builds the tool and the guest's test program together: libraries of equal features are compiled
/// once.
fn programs() -> Result<()> {
    const GUEST: &str = "-p daqmeter-cli -p daqmeter-sys --example kmod_guest";
    line("cargo build --release --quiet").words(GUEST).arg("--bins").run()?;
    rust_target(ARM_TARGET)?;
    line("cargo build --release --quiet")
        .words(GUEST)
        .arg("--target")
        .arg(ARM_TARGET)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .run()
}

/// Boots every machine after [`prepare`], or those with `only` in their name.
pub(crate) fn boot(only: &str) -> Result<()> {
    for_pcs()?;
    let mut ran = all(MACHINES, only)?;
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
    all(TOPOLOGIES, "").map(drop)
}

fn all(machines: &[Machine], only: &str) -> Result<usize> {
    let chosen: Vec<_> = machines.iter().filter(|machine| machine.name.contains(only)).collect();
    chosen.iter().try_for_each(|machine| timed(machine.name, || machine.run()))?;
    Ok(chosen.len())
}

impl Machine {
    fn run(&self) -> Result<()> {
        let Machine { name, options, .. } = self;
        let kernel = Kernel::fetch(self.series, self.arch)?;
        let initrd = initrd(name, &kernel, self.script)?;
        let mut qemu = self.qemu.to_owned();
        if self.arch == "amd64" {
            qemu.insert_str(0, &format!("{PC} "));
        }
        if let Some((_, slower)) = options.split_once("daqmeter.slower=") {
            qemu += &format!(" -dtb {}", tree(&qemu, slower)?.display());
        }
        let boot = Boot { name, qemu: &qemu, kernel: &kernel.image, options, limit_s: LIMIT_S };
        let printed = boot.run(initrd)?;
        ensure!(printed.contains(self.says), "no {}; last lines:\n{}", self.says, tail(&printed));
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
        "amd64" => (PathBuf::from("/bin/busybox"), program(), target()),
        _ => (arm_busybox()?, mesh::daqmeter(), target().join(ARM_TARGET)),
    };
    let initrd = Initrd::new(name, &busybox, script)?;
    for program in [tool, built.join("release/examples/kmod_guest")] {
        initrd.take(&program.file_name().unwrap_or_default().to_string_lossy(), &program)?;
        if kernel.arch == "amd64" {
            initrd.take_libraries(line("ldd").arg(program), "/".as_ref())?;
        }
    }
    modules::install(kernel, &initrd)?;
    Ok(initrd)
}
