//! Machines and hosts that exist only during their tests, and the running of other programs.

#![allow(clippy::print_stdout, reason = "developers' tools talk to the terminal")]

mod boot;
mod copy;
mod debian;
mod faults;
mod files;
mod hosts;
mod mesh;
pub mod shell;

use anyhow::{Result, bail};
use shell::line;

pub use files::{libraries, rows};

/// Fetches all kernels and programs of the machines.
pub fn fetch() -> Result<()> {
    debian::update()?;
    for (series, arch) in [("6.1", "amd64"), ("6.12", "amd64"), ("6.1", "arm64"), ("6.12", "arm64")]
    {
        debian::Kernel::fetch(series, arch)?;
    }
    copy::source()?;
    debian::arm_busybox()?;
    mesh::perf().map(drop)
}

/// Builds what the machines of that name run, from what was fetched.
pub fn prepare(name: &str) -> Result<()> {
    match name {
        "copy-vm" | "topology-vm" => copy::prepare(),
        "pmu-vm" => mesh::build(),
        _ => Ok(()),
    }
}

/// Runs the prepared machines with `only` in their name, or the hosts.
pub fn boot(name: &str, only: &str) -> Result<()> {
    match (name, only) {
        ("copy-vm", "--pollution") => copy::pollution(true),
        ("copy-vm", "--static") => copy::static_policies(),
        ("copy-vm", _) => copy::boot(only),
        ("pmu-vm", _) => mesh::boot(only),
        ("topology-vm", _) => copy::topologies(),
        ("faults-vm", _) => faults::boot(faults::FAULTS),
        ("losses-vm", _) => faults::boot(faults::LOSSES),
        ("peers", _) => hosts::peers(),
        ("readout", _) => hosts::readout(),
        ("launch", _) => hosts::launch(),
        ("paths", _) => hosts::paths(),
        _ => bail!("no machines are called {name}"),
    }
}

/// Builds the tool, prepares the machines or hosts, and runs them.
pub fn run(name: &str, only: &str) -> Result<()> {
    line("cargo build --release --quiet").run()?;
    if name.ends_with("-vm") {
        fetch()?;
    }
    prepare(name)?;
    boot(name, only)
}
