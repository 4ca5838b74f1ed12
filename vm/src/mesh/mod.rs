//! The interconnect's PMU without silicon.
//! QEMU maps a file in place of the mesh's registers, Debian's unmodified kernel and driver program
//! it, and this program is the hardware. It stops the machine, injects occurrences in the mesh and
//! continues the machine. Our tool and Debian's perf must count them exactly.

mod cases;
mod count;
mod machine;
mod n1sdp;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::debian::{Kernel, unpack_all};
use crate::files::{below, folder, timed};
use crate::shell::{Line, line, rust_target, target};

const TARGET: &str = "aarch64-unknown-linux-musl";

/// Builds the static tool and the test program of the kernel modules for the guest's architecture,
/// with Rust's own linker instead of a cross compiler.
pub(crate) fn build() -> Result<()> {
    rust_target(TARGET)?;
    // Emulated CPUs are slow: a quick build matters more. The guest keeps the program in its 256
    // MiB, packed and unpacked. Debug assertions are off, as in the released program.
    line("cargo build --quiet -p daqmeter-cli -p daqmeter-sys --bins --example kmod_guest")
        .arg("--target")
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

/// Folder of the programs that were built.
pub(crate) fn built() -> PathBuf {
    target().join(TARGET).join("debug")
}

/// Fetches Debian's perf with all that it depends on; returns the program.
pub(crate) fn perf() -> Result<PathBuf> {
    let place = folder().join("perf");
    unpack_all("linux-perf", "arm64", &place)?;
    let programs = below(&place.join("usr/bin"))?;
    let is_perf = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("perf") && !name.contains("perl")
    };
    // A name without a version may be a script that looks for the program of the running kernel.
    let longest = programs.into_iter().filter(is_perf).max_by_key(|path| path.as_os_str().len());
    longest.context("linux-perf brings no perf")
}

/// Returns the command that lists the libraries of a program for Arm, which are beside it.
fn arm_ldd(program: &Path) -> Line {
    let place = folder().join("perf");
    let [lib, usr] = ["lib", "usr/lib"].map(|path| place.join(path).join("aarch64-linux-gnu"));
    line("qemu-aarch64-static")
        .arg(lib.join("ld-linux-aarch64.so.1"))
        .arg("--library-path")
        .arg(format!("{}:{}", lib.display(), usr.display()))
        .arg("--list")
        .arg(program)
}

/// Boots all machines, or those with `only` in their name, which begins with the kernel's series.
pub(crate) fn boot(only: &str) -> Result<()> {
    let (mut ran, cases) = (0, cases::all()?);
    for series in ["6.1", "6.12"] {
        let is_of = |case: &&cases::Case| case.series.iter().any(|of| of == series);
        for case in cases.iter().filter(is_of) {
            let name = format!("{series}, {}", case.name);
            if name.contains(only) {
                timed(&name, || case.run(&Kernel::fetch(series, "arm64")?))?;
                ran += 1;
            }
        }
    }
    ensure!(ran > 0, "no machine has `{only}` in its name");
    println!("{ran} machines, all cases passed");
    Ok(())
}
