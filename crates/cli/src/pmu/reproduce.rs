//! `daqmeter pmu reproduce`: the document's numbers, computed again.

use std::process::ExitCode;

use clap::Args;

use crate::output::Failure;
use crate::studies::{self, show_one};

/// Compute the figures of the N1SDP document again: rates from its own counts, shares by the planner.
///
/// What is measured here stands beside nothing in the document: it needs that machine. `cargo xtask pmu-vm` repeats its
/// commands on emulated registers, to the count.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Print the study with its places and verdicts (JSON) instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    show_one(studies::of("pmu", &[]), &[], arguments.json, None)?;
    Ok(ExitCode::SUCCESS)
}
