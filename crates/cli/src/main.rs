//! The `daqmeter` command: one file or folder for each verb. Verbs measure through `measure.rs`,
//! and print text that `report` makes of the records.

mod ab;
mod arguments;
mod beside;
mod command;
mod compare;
mod context;
mod copy;
mod deferred;
mod digitizer;
mod doctor;
mod eb;
mod eb_tools;
mod failure;
mod files;
mod help;
mod history;
mod hosts;
mod http;
mod interrupt;
mod kept;
mod launch;
mod list;
mod measure;
mod metrics;
mod named;
mod nightly;
mod output;
mod path;
mod pmu;
mod progress;
mod readout;
mod recorder;
mod report;
mod reproduce;
mod run;
mod serve;
mod start;
mod survey;
mod verdict;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
use clap::{CommandFactory, FromArgMatches, Parser};
use daqmeter_harness::guarded;
use daqmeter_harness::request::set_typed;

use crate::deferred::{Deferred, verbs};
use crate::output::{Ended, Failure};

/// Measures the path of data from an acquisition device to a program.
#[derive(Debug, Parser)]
#[command(name = "daqmeter", version, disable_help_subcommand = true, after_help = AFTER_HELP, after_long_help = include_str!("../help/daqmeter.txt"))]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// Longer lines of help are hard to read.
const MAX_HELP_COLUMNS: usize = 100;

const AFTER_HELP: &str = "Begin with: daqmeter survey; for a verb: daqmeter help VERB";

verbs! {
    enum Verb {
        /// Measure this host, in about a minute
        Survey(arguments: Deferred<survey::Arguments>) => survey::run(arguments),
        /// Read digitizer boards in parallel and convert their samples
        Digitizer(arguments: Deferred<digitizer::Arguments>) => digitizer::run(arguments),
        /// Read, write, serve and measure Wishbone registers over Etherbone
        #[command(subcommand, visible_alias = "etherbone")]
        Eb(verb: eb::Verb) => verb.run(),
        /// Read out an emulated FELIX card, and account for every trigger
        #[command(subcommand)]
        Readout(verb: readout::Verb) => verb.run(),
        /// Measure copies between user and kernel memory, by CPU or DMA
        #[command(subcommand)]
        Copy(verb: copy::Verb) => verb.run(),
        /// List, plan, measure and verify hardware and kernel counters
        #[command(subcommand)]
        Pmu(verb: pmu::Verb) => verb.run(),
        /// Find where a program that is already running loses its packets
        Watch(arguments: Deferred<watch::Arguments>) => watch::run(arguments),
        /// Run a data path from a file, and find its bottleneck
        #[command(subcommand)]
        Path(verb: path::Verb) => verb.run(),
        /// Check whether a kept run is complete and as it was written
        Check(arguments: Deferred<kept::Arguments>) => kept::run(arguments),
        /// Measure the points of a plan
        Run(arguments: Deferred<run::Arguments>) => run::run(arguments),
        /// Repeat the published studies, row by row
        Reproduce(arguments: Deferred<reproduce::Arguments>) => reproduce::run(arguments),
        /// Make a page, a table or data for other tools from records
        Report(arguments: Deferred<report::Arguments>) => report::run(arguments),
        /// Compare two sets of records, point by point
        Compare(arguments: Deferred<compare::Arguments>) => compare::run(arguments),
        /// Measure two sides alternately, and say whether they differ
        Ab(arguments: Deferred<ab::Arguments>) => ab::run(arguments),
        /// Find the hosts that differ from others of their kind
        Hosts(arguments: Deferred<hosts::Arguments>) => hosts::run(arguments),
        /// Show points over time, and their sudden changes
        History(arguments: Deferred<history::Arguments>) => history::run(arguments),
        /// Measure a plan, keep it, and compare it with the nights before
        Nightly(arguments: Deferred<nightly::Arguments>) => nightly::run(arguments),
        /// Show records in the browser
        Serve(arguments: Deferred<serve::Arguments>) => serve::run(arguments),
        /// List devices, engines, plans, paths and more
        List(arguments: Deferred<list::Arguments>) => list::run(arguments),
        /// Show what this host has, and how to get what is missing
        Doctor(arguments: Deferred<doctor::Arguments>) => doctor::run(arguments),
        /// Print help, manual pages, or completions for a shell
        Help(arguments: Deferred<help::Arguments>) => help::run(arguments, command()),
    }
}

fn command() -> clap::Command {
    Cli::command().term_width(output::window_columns().min(MAX_HELP_COLUMNS))
}

fn main() -> ExitCode {
    // A panic is not the result of a measurement.
    let done = guarded("the program", called).map_err(Failure::refused).flatten();
    let code = interrupt::exit_code(done.unwrap_or_else(Failure::report));
    // The C tools have one code for all failures.
    let is_tool = eb_tools::called().is_some() && code == ExitCode::from(2);
    if is_tool { ExitCode::FAILURE } else { code }
}

fn called() -> Ended {
    let Some(tool) = eb_tools::called() else { return run(std::env::args_os()) };
    match tool.command_line(std::env::args_os().skip(1)) {
        Some(line) => run(line),
        None => {
            output::tell_lines(&tool.usage());
            Ok(ExitCode::FAILURE)
        }
    }
}

fn run(line: impl IntoIterator<Item = OsString>) -> Ended {
    let mut command = command();
    let parsed = command.try_get_matches_from_mut(line);
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?.verb, matches)));
    let (verb, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return show_usage(&error),
    };
    daqmeter_report::table::set_window(output::window_columns());
    set_typed(arguments::typed(&command, &matches));
    named::check(&command, &matches)?;
    interrupt::take_over()?;
    let done = verb.run();
    if let Some(names) = daqmeter_report::table::unused_columns() {
        output::tell(&format!("daqmeter: --columns {names}: no table of stages was printed"));
    }
    done
}

/// Prints help, or an error of the command line in one line. Both are sanitised, since clap repeats
/// words of it, which may be names of files that others chose.
fn show_usage(error: &clap::Error) -> Ended {
    let mut text = error.render().to_string();
    if let Some(tool) = eb_tools::called() {
        let line = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
        output::tell(&format!("daqmeter: {}", line.trim_end()));
        output::tell_lines(&tool.usage());
        return Ok(ExitCode::FAILURE);
    }
    if error.use_stderr() && error.kind() != DisplayHelpOnMissingArgumentOrSubcommand {
        let said = text.split("\n\nUsage:").next().unwrap_or_default();
        let said = said.split("\n\nFor more").next().unwrap_or_default();
        let lines = said.replace("\n\n  tip: ", "; ");
        text = lines.lines().map(str::trim).collect::<Vec<_>>().join(" ") + "\n";
    }
    match error.use_stderr() {
        true => {
            output::tell_lines(&text);
            Ok(ExitCode::from(2))
        }
        false => output::emit(&text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
