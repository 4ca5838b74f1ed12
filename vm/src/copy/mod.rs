//! Kernel modules under Debian's kernels in QEMU, on software and on an emulated engine of
//! mainline.
//! Everything is emulated: no time from here is a performance result.

pub(crate) mod boot;
mod figures;
mod modules;
mod patched;
mod pollution;
pub(crate) mod programs;

use std::fs;
use std::path::Path;

use crate::shell::{line, need, there};
use anyhow::{Result, bail, ensure};

use crate::debian::{self, Kernel, foreign_busybox};
use crate::files::{GuestFile, folder, timed};
use boot::{Boot, Machine, Pc, Run};
use programs::ARM_TARGET;

pub(crate) use figures::figures;
pub(crate) use patched::static_policies;
pub(crate) use pollution::pollution;

const SERIES: [&str; 2] = ["6.1", "6.12"];

struct Bench {
    name: &'static str,
    series: &'static str,
    pc: Pc<'static>,
    command_line: &'static str,
    script: &'static str,
    cases: usize,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "cases-6.1",
        series: "6.1",
        pc: Pc::IN_TURN,
        command_line: "slub_debug=FZPU",
        script: include_str!("cases.sh"),
        cases: 27,
    },
    Bench {
        name: "cases-6.12",
        series: "6.12",
        pc: Pc::IN_TURN,
        command_line: "slub_debug=FZPU",
        script: include_str!("cases.sh"),
        cases: 27,
    },
    // All mappings for engines are bounce buffers, and the memory of programs can be moved.
    Bench {
        name: "bounce",
        series: "6.12",
        pc: Pc::IN_TURN,
        command_line: "swiotlb=force movablecore=512M",
        script: include_str!("bounce.sh"),
        cases: 7,
    },
    Bench {
        name: "races",
        series: "6.12",
        pc: Pc { cpus: 4, run: Run::AtOnce },
        command_line: "maxcpus=1",
        script: include_str!("races.sh"),
        cases: 7,
    },
    // One CPU with a clock that counts instructions: it can keep the window.
    Bench {
        name: "window",
        series: "6.1",
        pc: Pc { cpus: 1, run: Run::Counted },
        command_line: "daqmeter.icount=1 preempt=full",
        script: include_str!("window.sh"),
        cases: 3,
    },
];

/// Names of the other machines: the emulated engine of mainline, the cache model.
const VERSAL: &str = "versal";
const CACHE: &str = "cache";

pub(crate) fn missing() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the virtual machines are built for x86-64 hosts".to_owned());
    }
    if !there("apt-get") {
        return Some("no apt-get: kernels and headers are Debian's packages".to_owned());
    }
    None
}

fn tools() -> Result<()> {
    ["qemu-system-x86_64", "cpio", "make", "gcc-12", "xz", "sparse"]
        .into_iter()
        .try_for_each(need)?;
    if Path::new("/bin/busybox").exists() { Ok(()) } else { need("busybox") }
}

/// Fetches kernels, headers and sources for the machines with `only` in their name.
pub(crate) fn fetch(only: &str) -> Result<()> {
    if let Some(why) = missing() {
        bail!(why);
    }
    tools()?;
    fs::create_dir_all(folder())?;
    debian::update()?;
    timed("files of Debian's linux-source", modules::source)?;
    for series in series_of(only) {
        timed(&format!("Debian's {series}: packages"), || Kernel::fetch(series, "amd64"))?;
    }
    if needs_arm(only) {
        timed("Debian's 6.1 for arm64: packages", || {
            Kernel::fetch("6.1", "arm64").and_then(|_| foreign_busybox("arm64"))
        })?;
    }
    Ok(())
}

/// Returns the series that machines with `only` in their name boot. The cache model's machine boots
/// the first.
fn series_of(only: &str) -> impl Iterator<Item = &'static str> {
    let chosen = BENCHES.iter().filter(move |bench| bench.name.contains(only));
    let chosen: Vec<&str> = chosen.map(|bench| bench.series).collect();
    SERIES.into_iter().filter(move |series| *series == SERIES[0] || chosen.contains(series))
}

fn needs_arm(only: &str) -> bool {
    VERSAL.contains(only) && without_arm().is_none()
}

/// Prepares the machines with `only` in their name: fetches, checks layout and style of the C
/// sources, builds modules and programs.
pub(crate) fn prepare(only: &str) -> Result<()> {
    fetch(only)?;
    let source = modules::source()?;
    timed("layout of the border, C against Rust", modules::layout)?;
    timed("the guest's programs", programs::build)?;
    timed("checkpatch", || modules::style(&source))?;
    for series in series_of(only) {
        let kernel = Kernel::fetch(series, "amd64")?;
        timed(&format!("{series}: modules, with sparse"), || modules::build(&kernel, &source))?;
    }
    pollution::plugin()?;
    if needs_arm(only) {
        timed("6.1 arm64: modules, program", || prepare_versal(&source))?;
    }
    Ok(())
}

/// Boots every machine after [`prepare`], or those with `only` in their name.
pub(crate) fn boot(only: &str) -> Result<()> {
    let names = BENCHES.iter().map(|bench| bench.name).chain([VERSAL, CACHE]);
    let names: Vec<&str> = names.collect();
    let chosen: Vec<&&str> = names.iter().filter(|name| name.contains(only)).collect();
    ensure!(!chosen.is_empty(), "no machine has `{only}` in its name: {}", names.join(" "));
    for name in chosen {
        timed(name, || match BENCHES.iter().find(|bench| bench.name == *name) {
            Some(bench) => bench.run(),
            None if *name == VERSAL => versal(),
            None => pollution(false),
        })?;
    }
    Ok(())
}

impl Bench {
    fn run(&self) -> Result<()> {
        let kernel = Kernel::fetch(self.series, "amd64")?;
        let boot = Boot {
            name: self.name,
            machine: Machine::Pc(self.pc),
            kernel: &kernel.image,
            script: self.script,
            command_line: self.command_line,
            limit_s: 480,
        };
        let mut files = programs::files()?;
        files.extend(modules::files(&modules::built(&kernel)?)?);
        let client = kernel.module("async_tx")?;
        files.extend(client.map(|bytes| GuestFile::data("async_tx.ko", bytes)));
        boot::judge(&boot.run(files)?, self.cases)
    }
}

fn without_arm() -> Option<String> {
    let mut tools = ["qemu-system-aarch64", "aarch64-linux-gnu-gcc"].into_iter();
    let ready = tools.try_for_each(need);
    if let Err(error) = ready {
        return Some(format!("{error:#}"));
    }
    let added = line("rustup target add").arg(ARM_TARGET).output();
    added.is_err().then(|| format!("rustup cannot add the target {ARM_TARGET}"))
}

fn prepare_versal(source: &modules::Source) -> Result<()> {
    modules::build(&Kernel::fetch("6.1", "arm64")?, source)?;
    programs::build_foreign_guest()
}

/// Runs the client on a driver of mainline; QEMU emulates its hardware.
fn versal() -> Result<()> {
    if let Some(why) = without_arm() {
        println!("!!! NOT RUN: the emulated engine of mainline: {why}");
        return Ok(());
    }
    let kernel = Kernel::fetch("6.1", "arm64")?;
    let modules = modules::built(&kernel)?;
    let busybox = foreign_busybox("arm64")?;
    let boot = Boot {
        name: VERSAL,
        machine: Machine::Versal { busybox: &busybox },
        kernel: &kernel.image,
        script: include_str!("versal.sh"),
        command_line: "",
        limit_s: 480,
    };
    let files = vec![
        GuestFile::program("kmod_guest", &programs::foreign_guest())?,
        GuestFile::program("daqmeter_copy.ko", &modules.copy)?,
        GuestFile::program("zynqmp_dma.ko", &modules.zynqmp)?,
        GuestFile::program("dmatest.ko", &modules.dmatest)?,
    ];
    boot::judge(&boot.run(files)?, 3)
}
