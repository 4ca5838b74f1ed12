//! `daqmeter twin`: predictions: paths on a host that was calibrated, scenarios of stations and queues, the documents' machines.

mod calibrate;
mod documents;
mod predict;
mod run;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use daqmeter_report::table::plain;
use daqmeter_twin::{SHIPPED, Scenario};

use crate::output::{Failure, emit};

/// Predict a path on a calibrated host, or how data flows through stations and queues, by simulation.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

/// Where the profile of this host is, unless another is named.
const PROFILE: &str = "host-profile.json";

const EXAMPLE: &str = "\
A path or a scenario is a TOML file, or one that ships. The same seed gives the same numbers on every host.

Example:

  $ daqmeter twin calibrate                     what predictions need of this host, in a minute
  $ daqmeter twin predict pattern               largest rate, limit, CPUs, latency of a path, with intervals
  $ daqmeter twin list
  $ daqmeter twin run felix-reader              rate, load and queue of each station, latency, losses
  $ daqmeter twin show felix-reader > my.toml   begin one of your own
  $ daqmeter twin documents                     published figures beside what the twin predicts";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure what predictions need on this host
    Calibrate(calibrate::Arguments),
    /// Predict a path on a host that was calibrated
    Predict(predict::Arguments),
    /// Simulate a scenario
    Run(run::Arguments),
    /// Set published figures beside formula and simulation
    Documents(documents::Arguments),
    /// Print the file of a scenario that ships
    Show {
        /// Scenario that ships
        #[arg(value_name = "SCENARIO", value_parser = shipped())]
        scenario: String,
    },
    /// List the scenarios that ship
    List,
}

fn shipped() -> clap::builder::PossibleValuesParser {
    SHIPPED
        .iter()
        .map(|(name, _)| *name)
        .collect::<Vec<_>>()
        .into()
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Calibrate(arguments) => calibrate::run(arguments),
        Verb::Predict(arguments) => predict::run(arguments),
        Verb::Run(arguments) => run::run(arguments),
        Verb::Documents(arguments) => documents::run(arguments),
        Verb::Show { scenario } => {
            let shown = SHIPPED.iter().find(|(name, _)| name == scenario);
            emit(shown.map_or("", |(_, text)| text))
        }
        Verb::List => list(),
    }
}

fn list() -> Result<ExitCode, Failure> {
    let rows: Result<Vec<Vec<String>>, Failure> = SHIPPED
        .iter()
        .map(|(name, _)| {
            let scenario = Scenario::load(name).map_err(Failure::refused)?;
            Ok(vec![(*name).to_owned(), scenario.title])
        })
        .collect();
    emit(&plain(&["scenario", "what it is"], rows?))
}
