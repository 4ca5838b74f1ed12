//! Kernel modules under Debian's kernels in QEMU, on software and on an emulated engine of
//! mainline.

mod modules;
mod patched;
mod pollution;

use std::path::Path;

use anyhow::{Result, ensure};

use crate::boot::{Boot, judge};
use crate::debian::{Kernel, arm_busybox};
use crate::files::{Initrd, timed};
use crate::shell::{left_out, line, program, rust_target, target};

pub(crate) use modules::source;
pub(crate) use patched::static_policies;
pub(crate) use pollution::pollution;

/// A PC. qemu64 has neither ERMS nor FSRM: the string instruction is then not emulated byte by
/// byte.
const PC: &str = "qemu-system-x86_64 -machine q35 -cpu qemu64 -m 1536";

/// One host thread for all CPUs, one after the other.
const IN_TURN: &str = "-smp 4 -accel tcg,thread=single";

/// Architecture of the Versal; its test program is one file without libraries.
const ARM_TARGET: &str = "aarch64-unknown-linux-gnu";

struct Machine {
    name: &'static str,
    series: &'static str,
    qemu: &'static str,
    options: &'static str,
    script: &'static str,
    cases: usize,
}

const MACHINES: &[Machine] = &[
    Machine {
        name: "cases-6.1",
        series: "6.1",
        qemu: IN_TURN,
        options: "slub_debug=FZPU",
        script: include_str!("cases.sh"),
        cases: 27,
    },
    Machine {
        name: "cases-6.12",
        series: "6.12",
        qemu: IN_TURN,
        options: "slub_debug=FZPU",
        script: include_str!("cases.sh"),
        cases: 27,
    },
    // All mappings for engines are bounce buffers, and the memory of programs can be moved.
    Machine {
        name: "bounce",
        series: "6.12",
        qemu: IN_TURN,
        options: "swiotlb=force movablecore=512M",
        script: include_str!("bounce.sh"),
        cases: 7,
    },
    // One host thread for each CPU: they race. A CPU can meet the int3 of a kernel that patches its
    // own code (static keys). If the others have forgotten it, the kernel dies. So the other CPUs
    // start after the boot.
    Machine {
        name: "races",
        series: "6.12",
        qemu: "-smp 4 -accel tcg,thread=multi",
        options: "maxcpus=1",
        script: include_str!("races.sh"),
        cases: 7,
    },
    // One CPU with a clock that counts instructions: it can keep the window.
    Machine {
        name: "window",
        series: "6.1",
        qemu: "-smp 1 -accel tcg,thread=single -icount shift=3,sleep=off",
        options: "daqmeter.icount=1 preempt=full",
        script: include_str!("window.sh"),
        cases: 3,
    },
];

/// AMD Versal; QEMU emulates its eight ADMA controllers.
const VERSAL: Machine = Machine {
    name: "versal",
    series: "6.1",
    qemu: "qemu-system-aarch64 -machine xlnx-versal-virt -m 2G -smp 4",
    options: "",
    script: include_str!("versal.sh"),
    cases: 3,
};

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
    line("cargo build --release --quiet").words(GUEST).run()?;
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
    let mut ran = 0;
    for machine in MACHINES.iter().filter(|machine| machine.name.contains(only)) {
        let kernel = Kernel::fetch(machine.series, "amd64")?;
        let initrd = pc_initrd(machine.name, machine.script)?;
        modules::install(&kernel, &initrd)?;
        timed(machine.name, || machine.run(&kernel, &format!("{PC} {}", machine.qemu), initrd))?;
        ran += 1;
    }
    if VERSAL.name.contains(only) {
        timed(VERSAL.name, versal)?;
        ran += 1;
    }
    if "cache".contains(only) {
        pollution(false)?;
        ran += 1;
    }
    ensure!(ran > 0, "no machine has `{only}` in its name");
    Ok(())
}

impl Machine {
    fn run(&self, kernel: &Kernel, qemu: &str, initrd: Initrd) -> Result<()> {
        let Machine { name, options, .. } = self;
        let boot = Boot { name, qemu, kernel: &kernel.image, options, limit_s: LIMIT_S };
        judge(&boot.run(initrd)?, self.cases)
    }
}

/// Returns the initial file system of a PC with the programs.
fn pc_initrd(name: &str, script: &str) -> Result<Initrd> {
    let initrd = Initrd::new(name, Path::new("/bin/busybox"), script)?;
    let guest = target().join("release/examples/kmod_guest");
    for (name, program) in [("daqmeter", program()), ("kmod_guest", guest)] {
        initrd.take(name, &program)?;
        initrd.take_libraries(line("ldd").arg(program), Path::new("/"))?;
    }
    Ok(initrd)
}

/// Runs the client on a driver of mainline; QEMU emulates its hardware.
fn versal() -> Result<()> {
    let kernel = Kernel::fetch(VERSAL.series, "arm64")?;
    let initrd = Initrd::new(VERSAL.name, &arm_busybox()?, VERSAL.script)?;
    let guest = target().join(ARM_TARGET).join("release/examples/kmod_guest");
    initrd.take("kmod_guest", &guest)?;
    modules::install(&kernel, &initrd)?;
    VERSAL.run(&kernel, VERSAL.qemu, initrd)
}
