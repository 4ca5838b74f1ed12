//! `daqmeter twin`: predictions: paths on a host that was calibrated, scenarios of stations and queues, the documents' machines.

mod calibrate;
mod documents;
mod farm;
mod links;
mod predict;
mod run;
mod validate;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use daqmeter_report::table::plain;
use daqmeter_twin::farm::{Farm, SHIPPED_FARMS};
use daqmeter_twin::{SHIPPED, Scenario};

use crate::output::{Failure, emit};

pub(crate) use calibrate::calibrate_to;
pub(crate) use predict::profile_for_runs;

/// Predict a path on a calibrated host, or how data flows through stations and queues, by simulation; `calibrate` and `links` measure.
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
  $ daqmeter twin validate --html page.html     how far predictions are off, against formulas, documents and this host
  $ daqmeter twin list
  $ daqmeter twin run felix-reader              rate, load and queue of each station, latency, losses
  $ daqmeter twin show felix-reader > my.toml   begin one of your own
  $ daqmeter twin farm felix-phase-2            servers behind switches: limits, what to add
  $ daqmeter twin documents                     published figures beside what the twin predicts";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure what predictions need on this host
    Calibrate(calibrate::Arguments),
    /// Predict a path on a host that was calibrated
    Predict(predict::Arguments),
    /// Hold the twin against formulas, documents and this host
    Validate(validate::Arguments),
    /// Simulate a scenario
    Run(run::Arguments),
    /// Set published figures beside formula and simulation
    Documents(documents::Arguments),
    /// Predict servers behind switches: limits, a slow receiver, what to add
    Farm(farm::Arguments),
    /// Find how many links this host carries, by a prediction and a few short probes
    Links(Box<links::Arguments>),
    /// Print the file of a scenario or farm that ships
    Show {
        /// Scenario or farm that ships
        #[arg(value_name = "SCENARIO", value_parser = shipped())]
        scenario: String,
    },
    /// List the scenarios and farms that ship
    List,
}

fn files() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    SHIPPED.iter().chain(SHIPPED_FARMS)
}

fn shipped() -> clap::builder::PossibleValuesParser {
    files().map(|(name, _)| *name).collect::<Vec<_>>().into()
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Calibrate(arguments) => calibrate::run(arguments),
        Verb::Predict(arguments) => predict::run(arguments),
        Verb::Validate(arguments) => validate::run(arguments),
        Verb::Run(arguments) => run::run(arguments),
        Verb::Documents(arguments) => documents::run(arguments),
        Verb::Farm(arguments) => farm::run(arguments),
        Verb::Links(arguments) => links::run(arguments),
        Verb::Show { scenario } => {
            let shown = files().find(|(name, _)| name == scenario);
            emit(shown.map_or("", |(_, text)| text))
        }
        Verb::List => list(),
    }
}

fn list() -> Result<ExitCode, Failure> {
    let row = |name: &str, verb: &str, title: String| vec![name.to_owned(), verb.to_owned(), title];
    let scenarios = SHIPPED.iter().map(|(name, _)| {
        let scenario = Scenario::load(name).map_err(Failure::refused)?;
        Ok(row(name, "run", scenario.title))
    });
    let farms = SHIPPED_FARMS.iter().map(|(name, _)| {
        let farm = Farm::load(name).map_err(Failure::refused)?;
        Ok(row(name, "farm", farm.title))
    });
    let rows: Result<Vec<Vec<String>>, Failure> = scenarios.chain(farms).collect();
    emit(&plain(&["name", "for", "what it is"], rows?))
}
