//! `daqmeter path calibrate`: a profile of this host, from which paths are predicted.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_campaign::Runner;
use daqmeter_campaign::calibrate::calibrate;
use daqmeter_record::file::replace;
use daqmeter_record::units::significant;

use super::predict::PROFILE;
use crate::arguments::budget;
use crate::interrupt;
use crate::measure::context;
use crate::named::Replaced;
use crate::output::{Failure, emit, tell};

/// Measure what predictions need on this host, by running short paths, and write it to a file.
#[derive(Debug, Args)]
#[command(
    after_long_help = "The profile holds the CPU time of a block for each kind of work and size, four fitted numbers for\nhand-overs, waits and shared CPUs, and paths drawn at random that went into neither: the errors\nfor these are the intervals of path predict. Run it while the host does what it usually does.\n\nExample:\n\n  $ daqmeter path calibrate -o host.json"
)]
pub(crate) struct Arguments {
    /// File to write
    #[arg(short, long, value_name = "FILE.json", default_value = PROFILE)]
    output: Replaced,
    /// Time for all runs; costs, fit and 38 held-back runs are measured in any case
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "55s")]
    budget: Duration,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut runner = Runner::new(context());
    runner.stop = interrupt::stop_flag();
    let profile = calibrate(&runner, arguments.budget, &mut |step| tell(&format!("{step} ...")));
    if runner.stop.is_set() {
        return Err(Failure::interrupted());
    }
    let profile = profile.map_err(Failure::tool)?;
    let file = arguments.output.display();
    replace(&arguments.output, profile.text().as_bytes())
        .map_err(|error| Failure::refused(format!("write {file}: {error}")))?;
    let free = profile.held_back.iter().filter(|path| path.rate_hz.is_none());
    let off = free.map(|path| (path.rate.measured / path.rate.predicted).ln().abs() * 100.0);
    let off: Vec<f64> = off.collect();
    emit(&format!(
        "{} runs in {} s; largest rate of {} held-back paths: {} % off in the median, of the fitted ones {} %\n{file}\n",
        profile.runs,
        significant(profile.seconds, 3),
        off.len(),
        significant(daqmeter_stats::median(&off), 2),
        significant(profile.fit_error * 100.0, 2)
    ))
}
