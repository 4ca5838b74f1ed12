//! Programs of the machines: the tool, and the guest's test program.

use std::path::{Path, PathBuf};

use crate::shell::{line, program, target};
use anyhow::{Context, Result};

use crate::files::GuestFile;

/// Packages of the guest's test program, with the tool beside it. Its libraries then have the
/// tool's features, and are compiled once.
const GUEST: &str = "-p daqmeter-cli -p daqmeter-sys --example kmod_guest";

pub(crate) fn build() -> Result<()> {
    line("cargo build --release --quiet -p daqmeter-cli").run()?;
    line("cargo build --release --quiet").words(GUEST).run()
}

pub(crate) fn files() -> Result<Vec<GuestFile>> {
    let daqmeter = program();
    let guest = target().join("release/examples/kmod_guest");
    let mut files =
        vec![GuestFile::program("daqmeter", &daqmeter)?, GuestFile::program("kmod_guest", &guest)?];
    let mut libraries = [libraries_of(&daqmeter)?, libraries_of(&guest)?].concat();
    libraries.sort();
    libraries.dedup();
    for library in libraries {
        let name = library.file_name().and_then(|name| name.to_str());
        let name = name.context("a library without a name")?;
        let folder = if name.starts_with("ld-linux") { "lib64" } else { "lib" };
        files.push(GuestFile::program(&format!("{folder}/{name}"), &library)?);
    }
    Ok(files)
}

fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let text = line("ldd").arg(program).output()?;
    // The lines are `libc.so.6 => /lib/.../libc.so.6 (0x...)`, or the loader's path alone.
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(text.lines().filter_map(path).collect())
}

/// Architecture of the Versal; its test program is one file without libraries.
pub(crate) const ARM_TARGET: &str = "aarch64-unknown-linux-gnu";

pub(crate) fn build_foreign_guest() -> Result<()> {
    line("cargo build --release --quiet")
        .words(GUEST)
        .arg("--target")
        .arg(ARM_TARGET)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .run()
}

pub(crate) fn foreign_guest() -> PathBuf {
    target().join(ARM_TARGET).join("release/examples/kmod_guest")
}
