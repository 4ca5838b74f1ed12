//! Starts `daqmeter-vm` (`vm/`), with virtual machines and hosts for tests beyond one host.

use anyhow::Result;
use shell::{Line, StepDone, line, ran, started, target};

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    line("cargo run --quiet -p daqmeter-vm --").args(arguments).run()
}

/// Builds with the tests' features, so that shared libraries are compiled once: with a benchmark,
/// the libraries of the tests take part.
fn build() -> Result<()> {
    line("cargo build --quiet --workspace --bin daqmeter-vm --bench promises").run()
}

pub(crate) fn program() -> Result<StepDone> {
    ran(build())
}

pub(crate) fn fetch(verb: &str) -> Result<StepDone> {
    unless_missing(verb, |program| program.arg("--fetch"))
}

pub(crate) fn prepare(verb: &str) -> Result<StepDone> {
    build()?;
    unless_missing(verb, |program| program.arg("--prepare"))
}

/// Step of CI that boots machines beside builds: those with that in their name. Cargo would wait
/// for the builds.
pub(crate) fn boot(verb: &str, only: &str) -> Result<StepDone> {
    unless_missing(verb, |program| program.arg("--boot").arg(only))
}

/// Step of CI that runs alone, so that cargo need not wait.
pub(crate) fn alone(verb: &str) -> Result<StepDone> {
    build()?;
    boot(verb, "")
}

fn unless_missing(verb: &str, arguments: impl FnOnce(Line) -> Line) -> Result<StepDone> {
    let program = || started(&target().join("debug/daqmeter-vm")).arg(verb);
    let why = program().arg("--missing").output()?;
    if !why.is_empty() {
        return Ok(StepDone::LeftOut(why.trim().to_owned()));
    }
    ran(arguments(program()).run())
}
