//! Machines and hosts that exist only during their tests, and the running of other programs.

#![allow(clippy::print_stdout, reason = "developers' tools talk to the terminal")]

mod copy;
mod debian;
mod files;
mod hosts;
mod mesh;
pub mod shell;
mod topology;

use anyhow::{Context, Result, bail};
use hosts::{namespaces, paths, peers, readout};
use shell::{StepDone, line, ran};

/// A kind of machines or hosts; each function takes a part of a machine's name.
struct Machines {
    name: &'static str,
    /// Returns the reason why they cannot run here.
    missing: fn() -> Option<String>,
    fetch: fn(&str) -> Result<()>,
    /// Fetches and builds.
    prepare: fn(&str) -> Result<()>,
    /// Runs what was prepared.
    boot: fn(&str) -> Result<()>,
}

const MACHINES: [Machines; 6] = [
    Machines {
        name: "copy-vm",
        missing: copy::missing,
        fetch: copy::fetch,
        prepare: copy::prepare,
        boot: copy::boot,
    },
    Machines {
        name: "pmu-vm",
        missing: mesh::missing,
        fetch: |_| mesh::fetch(),
        prepare: |_| mesh::prepare(),
        boot: |only| mesh::boot(false, only),
    },
    Machines {
        name: "topology-vm",
        missing: mesh::missing,
        fetch: |_| topology::fetch(),
        prepare: |_| topology::prepare(),
        boot: topology::boot,
    },
    between_hosts("peers", |_| peers::prepare(), |_| peers::all()),
    between_hosts("readout", |_| Ok(()), |_| readout::all()),
    between_hosts("paths", |_| Ok(()), |_| paths::all()),
];

/// Runs between network namespaces, on the release build of the tool.
const fn between_hosts(
    name: &'static str,
    prepare: fn(&str) -> Result<()>,
    boot: fn(&str) -> Result<()>,
) -> Machines {
    Machines { name, missing: namespaces::missing, fetch: prepare, prepare, boot }
}

fn step(name: &str, run: impl FnOnce(&Machines) -> Result<()>) -> Result<StepDone> {
    let machines = MACHINES.iter().find(|machines| machines.name == name);
    let machines = machines.with_context(|| format!("no machines are called {name}"))?;
    match (machines.missing)() {
        Some(why) => Ok(StepDone::LeftOut(why)),
        None => ran(run(machines)),
    }
}

pub fn fetch(name: &str) -> Result<StepDone> {
    step(name, |machines| (machines.fetch)(""))
}

pub fn prepare(name: &str) -> Result<StepDone> {
    step(name, |machines| (machines.prepare)(""))
}

/// Runs the prepared machines with `only` in their name.
pub fn boot(name: &str, only: &str) -> Result<StepDone> {
    step(name, |machines| (machines.boot)(only))
}

/// Builds the tool, prepares the machines named by the first argument, or those with the second in
/// their name, and runs them.
pub fn run(arguments: &[&str]) -> Result<()> {
    line("cargo build --release --quiet").run()?;
    match *arguments {
        ["copy-vm", "--pollution"] => copy::prepare("cache").and_then(|()| copy::pollution(true)),
        ["copy-vm", "--figures"] => copy::prepare("cache").and_then(|()| copy::figures()),
        ["copy-vm", "--static"] => copy::static_policies(),
        ["pmu-vm", "--record"] => mesh::prepare().and_then(|()| mesh::boot(true, "")),
        [name, ref only @ ..] => {
            let only = only.first().copied().unwrap_or("");
            let done = step(name, |machines| {
                (machines.prepare)(only).and_then(|()| (machines.boot)(only))
            })?;
            match done {
                StepDone::Ran => Ok(()),
                StepDone::LeftOut(why) => bail!(why),
            }
        }
        [] => Ok(()),
    }
}
