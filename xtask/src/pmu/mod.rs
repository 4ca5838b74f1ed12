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

/// The tool itself, static, for the guest's architecture; Rust's own linker, so that no cross compiler is needed.
fn daqmeter() -> Result<PathBuf> {
    let environment = [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld"),
        // Emulated CPUs are slow anyway: quick to build counts.
        ("CARGO_PROFILE_DEV_DEBUG", "0"),
    ];
    let place = folder().join("build").display().to_string();
    run_with(
        "cargo",
        &["build", "--quiet", "-p", "daqmeter-cli", "--target", TARGET, "--target-dir", &place],
        &environment,
    )?;
    Ok(folder().join("build").join(TARGET).join("debug/daqmeter"))
}

/// All machines and cases, or those with `only` in their name; with `record`, the driver's events are written into the source instead of compared with it.
pub(crate) fn all(record: bool, only: &str) -> Result<()> {
    need("qemu-system-aarch64", &["qemu-system-arm"])?;
    need("fdtput", &["device-tree-compiler"])?;
    need("readelf", &["binutils"])?;
    need("cpio", &["cpio"])?;
    need("xz", &["xz-utils"])?;
    fs::create_dir_all(folder())?;
    fs::create_dir_all(crate::vm::folder())?;
    kernels::update()?;
    let guest = Guest {
        daqmeter: timed("static aarch64 build of the tool", daqmeter)?,
        busybox: kernels::foreign_busybox("arm64")?,
        perf: timed("Debian's perf for arm64", perf::fetch)?,
    };
    let mut ran = 0;
    for series in ["6.1", "6.12"] {
        let kernel = timed(&format!("Debian's {series} for arm64"), || kernels::Kernel::image_of(series, "arm64"))?;
        for case in cases::CASES.iter().filter(|case| case.series.contains(&series)) {
            let name = format!("{series}, {}", case.name);
            if !name.contains(only) {
                continue;
            }
            timed(&name, || tried(|| cases::run(case, &kernel, &guest, record)))?;
            ran += 1;
        }
    }
    ensure!(ran >= if only.is_empty() { 8 } else { 1 }, "{ran} machines only");
    println!("{ran} machines, all cases passed");
    Ok(())
}
