//! Packages for users: a static binary, a Debian package, a Python wheel; the first two are tried
//! in an otherwise empty system.
//! `cargo xtask dist` builds the static binary, which costs a whole release build. The step of CI
//! makes the package from the program that CI has built already, with its shared libraries.

#![allow(clippy::print_stdout, reason = "developers' tools talk to the terminal")]

mod licences;
mod package;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use daqmeter_vm::shell::{line, program, renew, root, rust_target, scratch, target};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Makes all packages into `target/dist`, with sums, and tries binary and package. The wheel is the
/// one of CI's step.
pub fn all() -> Result<()> {
    let folder = target().join("dist");
    renew(&folder)?;
    let binary = folder.join(format!("daqmeter-{VERSION}-{}-linux", std::env::consts::ARCH));
    let built = static_program()?;
    fs::copy(&built, &binary).with_context(|| built.display().to_string())?;
    fs::write(folder.join("LICENSES.txt"), licences::text()?)?;
    package::make(&binary, &folder)?;
    line("sh -c").arg("cp target/ci/wheels/*.whl \"$0\"").arg(&folder).run()?;
    sums(&folder)?;
    trial::binary(&binary).context("the binary does not work for its user")?;
    trial::package(&folder, &binary).context("the package does not work for its user")?;
    println!("all in {}", folder.display());
    Ok(())
}

/// Makes the Debian package of the release build, and tries it.
pub fn package() -> Result<()> {
    let folder = scratch("dist");
    renew(&folder)?;
    package::make(&program(), &folder)?;
    sums(&folder)?;
    trial::package(&folder, &program())
}

/// Builds the release for musl, which needs no library of the system.
fn static_program() -> Result<PathBuf> {
    let triple = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    rust_target(&triple)?;
    line("cargo build --profile dist --features parquet,fuse --quiet --package daqmeter-cli --target")
        .arg(&triple)
        // The program must run on other CPUs than this host's, too.
        .env("RUSTFLAGS", "")
        .run()?;
    Ok(target().join(triple).join("dist/daqmeter"))
}

/// Writes the sums of the files, and checks them with the README's command.
fn sums(folder: &Path) -> Result<()> {
    line("sh -c").arg("sha256sum -- * > SHA256SUMS.new").within(folder).run()?;
    fs::rename(folder.join("SHA256SUMS.new"), folder.join("SHA256SUMS"))?;
    line("sh -c").arg(of_readme("sha256sum")?).within(folder).run()
}

/// Returns the command of the README that begins with this word.
fn of_readme(word: &str) -> Result<String> {
    let readme = fs::read_to_string(root().join("README.md"))?;
    let command = readme.lines().find(|line| line.starts_with(word));
    Ok(command.with_context(|| format!("README.md has no command {word}"))?.to_owned())
}
