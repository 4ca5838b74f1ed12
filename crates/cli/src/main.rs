//! The `daqmeter` command: one file or folder for each verb. Verbs measure through `measure.rs`,
//! and print text that `report` makes of the records.

mod ab;
mod arguments;
mod cmp;
mod context;
mod copy;
mod digitizer;
mod doctor;
mod eb;
mod failure;
mod files;
mod help;
mod history;
mod http;
mod interrupt;
mod list;
mod measure;
mod metrics;
mod named;
mod output;
mod path;
mod pmu;
mod readout;
mod recorder;
mod report;
mod reproduce;
mod run;
mod serve;
mod survey;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::output::{Ended, Failure};

/// Measures, exercises and predicts the path that data takes from an acquisition device to a
/// program.
#[derive(Debug, Parser)]
#[command(name = "daqmeter", version, disable_help_subcommand = true, after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// Longer lines of help are hard to read.
const MAX_HELP_COLUMNS: usize = 100;

const AFTER_HELP: &str = "Begin with: daqmeter survey; daqmeter help VERB explains a verb";

const AFTER_LONG_HELP: &str = "\
Begin with `daqmeter survey`: in about a minute it measures this host, prints a summary and
writes report.html and records.jsonl.

Exit codes: 0 done; 1 measured, but bytes, a ledger or a device failed; 2 could not run (the line
on stderr says why); 3 measured, but undecided; 130 interrupted (measured points are kept);
141 standard output was closed before all was printed (`| head`); records in a file are kept.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure this host, in about a minute
    Survey(survey::Arguments),
    /// Read digitizer boards in parallel and convert their samples
    Digitizer(Box<digitizer::Arguments>),
    /// Access Wishbone registers over Etherbone, serve them, measure both
    #[command(subcommand, visible_alias = "etherbone")]
    Eb(eb::Verb),
    /// Read out an emulated FELIX card, with a ledger of every trigger
    Readout(Box<readout::Arguments>),
    /// Copy between user and kernel memory by CPU or DMA: latency, bandwidth, pollution, trace
    #[command(subcommand)]
    Copy(copy::Verb),
    /// List, plan, measure and verify counters: of a mesh, of every PMU, of the kernel
    #[command(subcommand)]
    Pmu(pmu::Verb),
    /// Run a path of data that a file describes: source, stages, sink; find its limit
    #[command(subcommand)]
    Path(path::Verb),
    /// Measure the points of a plan
    Run(run::Arguments),
    /// Repeat the published studies: every row beside model and measurement
    Reproduce(reproduce::Arguments),
    /// Make a page, a table or data for other tools from recorded runs
    Report(report::Arguments),
    /// Compare two sets of records, with the confidence of each difference
    Cmp(cmp::Arguments),
    /// Measure two sides in turns and say whether they differ
    Ab(ab::Arguments),
    /// Show points over time, and their sudden changes
    History(history::Arguments),
    /// Show records in the browser
    Serve(serve::Arguments),
    /// List devices, engines, plans, kernels and more, or the points of a plan
    List(list::Arguments),
    /// Report the facilities of this host, and how to get missing ones
    Doctor(doctor::Arguments),
    /// Print help, manual pages, or completions for a shell: help readout run
    Help(help::Arguments),
}

fn command() -> clap::Command {
    Cli::command().term_width(output::window_columns().min(MAX_HELP_COLUMNS))
}

fn main() -> ExitCode {
    let command = command();
    let parsed = command.clone().try_get_matches();
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?.verb, matches)));
    let (verb, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return show_usage(&error),
    };
    daqmeter_report::table::set_window(output::window_columns());
    let done = named::check(&command, &matches)
        .and_then(|()| interrupt::take_over())
        .and_then(|()| run_verb(verb));
    interrupt::exit_code(done.unwrap_or_else(Failure::report))
}

/// Prints help or an error of the command line. Both are sanitised, since clap repeats words of it,
/// which may be names of files that others chose.
fn show_usage(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    match error.use_stderr() {
        true => {
            output::tell_lines(&text);
            ExitCode::from(2)
        }
        false => output::emit(&text).unwrap_or_else(Failure::report),
    }
}

fn run_verb(verb: Verb) -> Ended {
    match verb {
        Verb::Survey(arguments) => survey::run(&arguments),
        Verb::Digitizer(arguments) => digitizer::run(&arguments),
        Verb::Eb(verb) => verb.run(),
        Verb::Readout(arguments) => readout::run(&arguments),
        Verb::Copy(verb) => verb.run(),
        Verb::Pmu(verb) => verb.run(),
        Verb::Path(verb) => verb.run(),
        Verb::Run(arguments) => run::run(&arguments),
        Verb::Reproduce(arguments) => reproduce::run(&arguments),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::Ab(arguments) => ab::run(&arguments),
        Verb::Cmp(arguments) => cmp::run(&arguments),
        Verb::History(arguments) => history::run(&arguments),
        Verb::Serve(arguments) => serve::run(&arguments),
        Verb::List(arguments) => list::run(&arguments),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Help(arguments) => help::run(&arguments, command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn short_help_fits_a_screen() {
        let mut cli = Cli::command();
        assert!(cli.render_help().to_string().lines().count() <= 32);
        for verb in cli.get_subcommands_mut() {
            let lines = verb.render_help().to_string().lines().count();
            assert!(lines <= 50, "{}: {lines} lines", verb.get_name());
        }
    }
}
