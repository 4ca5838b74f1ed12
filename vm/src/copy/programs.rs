//! What the machines run: the tool, and the guest's test program.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use shell::{Line, line, target};

use crate::files::GuestFile;

/// How the programs for the PC are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// As it ships.
    Release,
    /// As `cargo test` builds: quick to make, slower in the guest.
    Dev,
}

impl Profile {
    /// Its folder below the build folder or that of a target.
    pub(super) fn folder(self) -> &'static str {
        if self == Profile::Release { "release" } else { "debug" }
    }

    fn build(self) -> Line {
        let build = line("cargo build --quiet");
        if self == Profile::Release { build.arg("--release") } else { build }
    }
}

/// The guest's test program, with the tool beside it: its libraries then have the features that
/// they have in the tool, and are compiled once.
const GUEST: &str = "-p daqmeter-cli -p daqmeter-sys --example kmod_guest";

/// Builds the tool and the guest's test program.
pub(crate) fn build(profile: Profile) -> Result<()> {
    profile.build().words("-p daqmeter-cli").run()?;
    profile.build().words(GUEST).run()
}

/// Both programs with the libraries that they are linked with.
pub(crate) fn files(profile: Profile) -> Result<Vec<GuestFile>> {
    let daqmeter = target().join(profile.folder()).join("daqmeter");
    let guest = target().join(profile.folder()).join("examples/kmod_guest");
    let mut files =
        vec![GuestFile::program("daqmeter", &daqmeter)?, GuestFile::program("kmod_guest", &guest)?];
    let mut libraries = [libraries_of(&daqmeter)?, libraries_of(&guest)?].concat();
    libraries.sort();
    libraries.dedup();
    for library in libraries {
        let name = library.file_name().and_then(|name| name.to_str());
        let name = name.context("a library without a name")?;
        // The loader is named by its whole path in every program; the rest is searched for in /lib.
        let folder = if name.starts_with("ld-linux") { "lib64" } else { "lib" };
        files.push(GuestFile::program(&format!("{folder}/{name}"), &library)?);
    }
    Ok(files)
}

/// The files that the loader would map for a program of this host.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let text = line("ldd").arg(program).output()?;
    // `libc.so.6 => /lib/.../libc.so.6 (0x...)`, or the loader's path alone.
    let path =
        |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(text.lines().filter_map(path).collect())
}

/// The architecture of the Versal, which the guest's test program is built for in one file without
/// libraries.
pub(crate) const ARM_TARGET: &str = "aarch64-unknown-linux-gnu";

/// Builds the guest's test program for the Versal.
pub(crate) fn build_foreign_guest(profile: Profile) -> Result<()> {
    profile
        .build()
        .words(GUEST)
        .arg("--target")
        .arg(ARM_TARGET)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .run()
}

/// What [`build_foreign_guest`] built.
pub(crate) fn foreign_guest(profile: Profile) -> PathBuf {
    target().join(ARM_TARGET).join(profile.folder()).join("examples/kmod_guest")
}
