//! The interconnect's PMU without silicon.
//! QEMU maps a file in place of the mesh's registers, Debian's unmodified kernel and driver program
//! it, and this program is the hardware. It stops the machine, injects occurrences in the mesh and
//! continues the machine. Our tool and Debian's perf must count them exactly.

mod bench;
mod cases;
mod machine;
mod n1sdp;
mod perf;
mod qmp;

use std::fs;
use std::path::PathBuf;

use crate::shell::{line, need, there};
use anyhow::{Result, bail, ensure};

use crate::debian::{self, Kernel, foreign_busybox};
use crate::files::{mesh_folder, timed};
use machine::Guest;

const TARGET: &str = "aarch64-unknown-linux-musl";

/// Series of Debian's kernels that are booted, each with the machines that its driver knows.
const SERIES: [&str; 2] = ["6.1", "6.12"];

/// Returns the reason why the machines cannot run here. Adds Rust's target for the guests.
pub(crate) fn missing() -> Option<String> {
    if !there("apt-get") {
        return Some("no apt-get: kernel and perf are Debian's packages".to_owned());
    }
    let added = line("rustup target add").arg(TARGET).output();
    added.is_err().then(|| format!("rustup cannot add the target {TARGET}"))
}

/// Builds the static tool for the guest's architecture, with Rust's own linker instead of a cross
/// compiler.
pub(crate) fn build() -> Result<()> {
    // Emulated CPUs are slow: a quick build matters more. The guest keeps the program in its 256
    // MiB, packed and unpacked. Debug assertions are off, as in the released program.
    line("cargo build --quiet -p daqmeter-cli --target")
        .arg(TARGET)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false")
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_DEV_STRIP", "symbols")
        // Macros and build scripts have the profile of the tests, which are compiled already.
        .env("CARGO_PROFILE_DEV_BUILD_OVERRIDE_DEBUG_ASSERTIONS", "true")
        .run()
}

pub(crate) fn daqmeter() -> PathBuf {
    crate::shell::target().join(TARGET).join("debug/daqmeter")
}

pub(crate) fn fetch() -> Result<()> {
    if let Some(why) = missing() {
        bail!(why);
    }
    ["qemu-system-aarch64", "fdtput", "readelf", "cpio", "xz"].into_iter().try_for_each(need)?;
    fs::create_dir_all(mesh_folder())?;
    debian::update()?;
    for series in SERIES {
        timed(&format!("Debian's {series} for arm64"), || Kernel::image_of(series, "arm64"))?;
    }
    timed("Debian's busybox and perf for arm64", || {
        foreign_busybox("arm64").and_then(|_| perf::fetch())
    })
    .map(drop)
}

pub(crate) fn prepare() -> Result<()> {
    fetch()?;
    timed("static aarch64 build of the tool", build)
}

/// Boots all machines and cases after [`prepare`], or those with `only` in their name, which begins
/// with the kernel's series. With `record`, the driver's events are written into the source instead
/// of compared with it.
pub(crate) fn boot(record: bool, only: &str) -> Result<()> {
    let guest =
        Guest { daqmeter: daqmeter(), busybox: foreign_busybox("arm64")?, perf: perf::fetch()? };
    let mut ran = 0;
    for series in SERIES {
        let named = |case: &cases::Case| format!("{series}, {}", case.name);
        let known = cases::CASES.iter().filter(|case| case.series.contains(&series));
        let chosen: Vec<_> = known.filter(|case| named(case).contains(only)).collect();
        let kernel = (!chosen.is_empty()).then(|| Kernel::image_of(series, "arm64")).transpose()?;
        for (case, kernel) in chosen.into_iter().zip(kernel.iter().cycle()) {
            timed(&named(case), || cases::run(case, kernel, &guest, record))?;
            ran += 1;
        }
    }
    ensure!(ran > 0, "no machine has `{only}` in its name");
    println!("{ran} machines, all cases passed");
    Ok(())
}
