//! `daqmeter path`: a path of data as a file: drawn, run, and explained.

mod calibrate;
mod explain;
mod predict;
pub(crate) mod run;
mod serve;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::output::Failure;

pub(crate) use explain::prove;

/// Run a path of data that a file describes: source, stages and sink, a thread each.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLE: &str = "\
A path is a TOML file, or one that ships: see daqmeter list.

Example:

  $ daqmeter list felix-card                      what will run, before anything runs
  $ daqmeter path run felix-card --time 3s        rate, latency, where each thread's time went
  $ daqmeter path run felix-card --max            the largest rate without loss
  $ daqmeter path explain felix-card              what limits it, and what removing that gains
  $ daqmeter list felix-card --toml > my.toml
  $ daqmeter path calibrate                       what predictions need of this host, in a minute
  $ daqmeter path predict pattern                 largest rate, limit, latency, with intervals";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a path and record it
    Run(run::Arguments),
    /// Name the resource that limits a path, and confirm it by slowing each part
    Explain(explain::Arguments),
    /// Receive the blocks of paths that end on this host
    Serve(serve::Arguments),
    /// Measure what predictions need on this host
    Calibrate(calibrate::Arguments),
    /// Predict paths on a host that was calibrated
    Predict(predict::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Run(arguments) => run::run(arguments),
        Verb::Explain(arguments) => explain::run(arguments),
        Verb::Serve(arguments) => serve::run(arguments),
        Verb::Calibrate(arguments) => calibrate::run(arguments),
        Verb::Predict(arguments) => predict::run(arguments),
    }
}
