//! `daqmeter path`: a path of data as a file: drawn, run, and explained.

mod explain;
mod predict;
pub(crate) mod run;
mod serve;

use clap::Subcommand;

use crate::output::Ended;

pub(crate) use explain::Search;

const EXAMPLE: &str = "\
A path is a TOML file, or one that ships: see daqmeter list.

Example:

  $ daqmeter list felix-card                      a drawing, before anything runs
  $ daqmeter path run felix-card --time 3s        rate, latency, where each thread's time went
  $ daqmeter path run pattern --max               the largest rate that it keeps up with
  $ daqmeter path explain felix-card              its limit, and the gain of removing that
  $ daqmeter list felix-card --toml > my.toml
  $ daqmeter path predict --calibrate             profile of this host for predictions, in a minute
  $ daqmeter path predict pattern                 largest rate, limit, latency, with intervals";

#[derive(Debug, Subcommand)]
#[command(after_long_help = EXAMPLE)]
pub(crate) enum Verb {
    /// Run a path and record it
    Run(run::Arguments),
    /// Name the resource that limits a path, and confirm it by slowing each part
    Explain(explain::Arguments),
    /// Receive the blocks of paths that end on this host
    Serve(serve::Arguments),
    /// Predict paths on a calibrated host, or calibrate it
    Predict(predict::Arguments),
}

impl Verb {
    pub(crate) fn run(&self) -> Ended {
        match self {
            Verb::Run(arguments) => run::run(arguments),
            Verb::Explain(arguments) => explain::run(arguments),
            Verb::Serve(arguments) => serve::run(arguments),
            Verb::Predict(arguments) => predict::run(arguments),
        }
    }
}
