//! Packages for users: a static binary, a Debian package, a Python wheel. Each is tried in an
//! otherwise empty system.
//! `cargo xtask dist` builds the static binary, which costs a whole release build. The step of CI
//! makes the package from the program that CI has built already, with its shared libraries, and
//! tries that.

#![allow(clippy::print_stdout, reason = "developers' tools talk to the terminal")]

mod licences;
mod package;
mod trial;
mod wheel;

pub use wheel::{python_tools, venv, wheel};

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use daqmeter_vm::shell::{StepDone, line, program, root, target, there};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Makes all packages into `target/dist`, with sums, and tries each.
pub fn all() -> Result<()> {
    let folder = target().join("dist");
    renew(&folder)?;
    let binary = folder.join(format!("daqmeter-{VERSION}-{}-linux", std::env::consts::ARCH));
    let built = static_program()?;
    fs::copy(&built, &binary).with_context(|| built.display().to_string())?;
    fs::write(folder.join("LICENSES.txt"), licences::text()?)?;
    let package = package::make(&binary, &folder)?;
    let wheel = wheel::wheel_into(&folder)?;
    sums(&folder)?;
    let tried = [
        ("binary", trial::binary(&binary)),
        ("package", trial::package(&package, &binary)),
        ("wheel", trial::wheel(&wheel)),
    ];
    for (what, done) in tried {
        match done.with_context(|| format!("the {what} does not work for its user"))? {
            StepDone::Ran => println!("{what}: tried"),
            StepDone::LeftOut(why) => println!("!!! {what}: NOT TRIED: {why}"),
        }
    }
    println!("all in {}", folder.display());
    Ok(())
}

pub fn what_users_install() -> Result<StepDone> {
    let folder = root().join("target/ci/dist");
    renew(&folder)?;
    let package = package::make(&program(), &folder)?;
    sums(&folder)?;
    if let StepDone::LeftOut(why) = trial::package(&package, &program())? {
        return Ok(StepDone::LeftOut(why));
    }
    trial::wheel(&wheel::only_wheel(&wheel::wheels())?)
}

/// Builds the release for musl, which needs no library of the system.
fn static_program() -> Result<PathBuf> {
    let triple = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    if !has_target(&triple) {
        let added = there("rustup") && line("rustup target add").arg(&triple).run().is_ok();
        ensure!(
            added,
            "rustup cannot add the target {triple}, which the static binary is built for: install it by hand"
        );
    }
    line("cargo build --release --quiet --package daqmeter-cli --target")
        .arg(&triple)
        // The program must run on other CPUs than this host's, too.
        .env("RUSTFLAGS", "")
        .run()?;
    Ok(target().join(triple).join("release/daqmeter"))
}

fn has_target(triple: &str) -> bool {
    let folder = line("rustc --print target-libdir --target").arg(triple);
    folder.output().is_ok_and(|folder| Path::new(folder.trim()).is_dir())
}

fn sums(folder: &Path) -> Result<()> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name()));
    let mut names: Vec<_> = names.collect::<Result<_>>()?;
    names.sort();
    let text = line("sha256sum --").within(folder).args(names).output()?;
    fs::write(folder.join("SHA256SUMS"), text)?;
    line("sha256sum --check --quiet SHA256SUMS").within(folder).run()
}

fn renew(folder: &Path) -> Result<()> {
    let made = || {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)
    };
    made().with_context(|| folder.display().to_string())
}
