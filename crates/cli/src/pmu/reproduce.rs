//! `daqmeter pmu reproduce`: the document's numbers, computed again.

use std::process::ExitCode;

use clap::Args;
use daqmeter_report::table::comparisons;

use crate::output::{Failure, emit};

/// Compute the figures of the N1SDP document again: rates from its own counts, shares by the planner.
///
/// What is measured here stands beside nothing in the document: it needs that machine. `cargo xtask pmu-vm` repeats its
/// commands on emulated registers, to the count.
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_arguments: &Arguments) -> Result<ExitCode, Failure> {
    emit(&comparisons(&daqmeter_pmu::published::compare()))
}
