//! `cargo xtask pmu-vm`: the interconnect's PMU without silicon. QEMU maps a file where the mesh's registers would be, Debian's
//! unmodified kernel and driver program it, and we are the hardware: the machine is stopped, something happens in the mesh, the
//! machine goes on, and this program and Debian's perf must have counted it to the last one.

mod cases;
mod machine;
mod perf;

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::shell::{need, root, run, run_with, there, tried};
use crate::vm::{kernels, timed};

/// Everything of these machines lies here.
pub(crate) fn folder() -> PathBuf {
    root().join("target/pmu-vm")
}

/// Why they cannot be run here, or none.
pub(crate) fn missing() -> Option<String> {
    if !there("apt-get") {
        return Some("no apt-get: kernel and perf are Debian's packages".to_owned());
    }
    if !there("rustup") || run("rustup", &["target", "add", TARGET]).is_err() {
        return Some(format!("rustup cannot add the target {TARGET}"));
    }
    None
}

const TARGET: &str = "aarch64-unknown-linux-musl";

/// What the guests run.
pub(crate) struct Guest {
    pub(crate) daqmeter: PathBuf,
    pub(crate) busybox: PathBuf,
    pub(crate) perf: perf::Perf,
}

/// Builds the tool itself, static, for the guest's architecture; Rust's own linker, so that no cross compiler is needed.
fn build() -> Result<()> {
    // Emulated CPUs are slow anyway: quick to build counts.
    let environment = [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld"),
        ("CARGO_PROFILE_DEV_DEBUG", "0"),
        ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"),
        // The guest keeps the program in its 256 MiB of memory, packed and unpacked.
        ("CARGO_PROFILE_DEV_STRIP", "symbols"),
    ];
    run_with(
        "cargo",
        &["build", "--quiet", "-p", "daqmeter-cli", "--target", TARGET],
        &environment,
    )
}

fn daqmeter() -> PathBuf {
    root().join("target").join(TARGET).join("debug/daqmeter")
}

/// The series of Debian's kernels that are booted, each with the machines that its driver knows.
const SERIES: [&str; 2] = ["6.1", "6.12"];

/// Fetches kernels and perf, and builds the tool for the guest.
pub(crate) fn prepare() -> Result<()> {
    need("qemu-system-aarch64", &["qemu-system-arm"])?;
    need("fdtput", &["device-tree-compiler"])?;
    need("readelf", &["binutils"])?;
    need("cpio", &["cpio"])?;
    need("xz", &["xz-utils"])?;
    fs::create_dir_all(folder())?;
    fs::create_dir_all(crate::vm::folder())?;
    kernels::update()?;
    for series in SERIES {
        timed(&format!("Debian's {series} for arm64"), || {
            kernels::Kernel::image_of(series, "arm64")
        })?;
    }
    timed("Debian's busybox and perf for arm64", || {
        kernels::foreign_busybox("arm64").and_then(|_| perf::fetch())
    })?;
    timed("static aarch64 build of the tool", build)
}

/// All machines and cases, or those with `only` in their name; with `record`, the driver's events are written into the source
/// instead of compared with it.
pub(crate) fn all(record: bool, only: &str) -> Result<()> {
    prepare()?;
    let mut ran = 0;
    for series in SERIES {
        ran += run_machines(record, series, only)?;
    }
    ensure!(ran > 0, "no machine has `{only}` in its name");
    Ok(())
}

/// The machines of one series, after [`prepare`].
pub(crate) fn machines(record: bool, series: &str, only: &str) -> Result<()> {
    let ran = run_machines(record, series, only)?;
    ensure!(
        ran >= if only.is_empty() { 4 } else { 1 },
        "{ran} machines only"
    );
    Ok(())
}

fn run_machines(record: bool, series: &str, only: &str) -> Result<u32> {
    let guest = Guest {
        daqmeter: daqmeter(),
        busybox: kernels::foreign_busybox("arm64")?,
        perf: perf::fetch()?,
    };
    let kernel = kernels::Kernel::image_of(series, "arm64")?;
    let mut ran = 0;
    for case in cases::CASES
        .iter()
        .filter(|case| case.series.contains(&series))
    {
        let name = format!("{series}, {}", case.name);
        if !name.contains(only) {
            continue;
        }
        timed(&name, || {
            tried(|| cases::run(case, &kernel, &guest, record))
        })?;
        ran += 1;
    }
    println!("{ran} machines with {series}, all cases passed");
    Ok(ran)
}
