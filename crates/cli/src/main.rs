//! The `daqmeter` command: one file or folder per verb. Verbs measure through `runner.rs`, and
//! print text that `report` makes of the records.

mod ab;
mod arguments;
mod cmp;
mod completions;
mod copy;
mod digitizer;
mod doctor;
mod eb;
mod failure;
mod files;
mod history;
mod http;
mod interrupt;
mod lines;
mod list;
mod measure;
mod metrics;
mod named;
mod output;
mod path;
mod pmu;
mod quiet;
mod readout;
mod recorder;
mod report;
mod reproduce;
mod run;
mod serve;
mod survey;

use std::borrow::Cow;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use daqmeter_record::sanitise;

use crate::output::Failure;

/// Measures, exercises and predicts the path that data takes from an acquisition device to a
/// program.
#[derive(Debug, Parser)]
#[command(name = "daqmeter", version, max_term_width = 110, disable_help_subcommand = true, after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const AFTER_HELP: &str = "Begin with: daqmeter survey; daqmeter help VERB explains a verb";

const AFTER_LONG_HELP: &str = "\
Begin with `daqmeter survey`: in about a minute it measures what this host can do, prints a
summary and writes report.html and records.jsonl.

Exit codes: 0 done; 1 measured, but bytes, a ledger or a device failed; 2 could not run (the line
on stderr says why); 3 measured, but it cannot be told; 130 interrupted (what was measured is kept);
141 standard output was closed before all was printed (`| head`); records in a file are kept.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure what this host can do, in about a minute
    Survey(survey::Arguments),
    /// Read digitizer boards in parallel and convert their samples
    Digitizer(Box<digitizer::Arguments>),
    /// Access registers over Etherbone, serve them, measure both
    #[command(visible_alias = "etherbone")]
    Eb(Box<eb::Arguments>),
    /// Read out an emulated FELIX card, with a ledger of every trigger
    Readout(Box<readout::Arguments>),
    /// Copy between user and kernel by CPU or DMA: latency, bandwidth, pollution, trace
    Copy(Box<copy::Arguments>),
    /// Counters of the interconnect and the system: list, map, plan, stat, verify
    Pmu(Box<pmu::Arguments>),
    /// Run a path of data from a file: source, stages, sink; say what limits it
    Path(Box<path::Arguments>),
    /// Measure the points of a plan
    Run(run::Arguments),
    /// Repeat the published studies: every row beside model and measurement
    Reproduce(reproduce::Arguments),
    /// Make a page, a table or data for other tools from recorded runs
    Report(report::Arguments),
    /// Compare two sets of records: what became slower, with what confidence
    Cmp(cmp::Arguments),
    /// Measure two sides in turns and say whether they differ
    Ab(ab::Arguments),
    /// Be one side of ab
    #[command(hide = true, name = ab::SIDE)]
    AbSide,
    /// Show how points changed from run to run, and where they took a step
    History(history::Arguments),
    /// Show records in the browser
    Serve(serve::Arguments),
    /// List devices, engines, plans, kernels and more, or the points of a plan
    List(list::Arguments),
    /// Say what this host has, what is missing and how to get it
    Doctor(doctor::Arguments),
    /// Print completions for bash, zsh, fish and other shells
    Completions {
        /// Shell to complete for
        shell: clap_complete::Shell,
    },
    /// Print the help or the manual page of the command or of a verb: help readout run
    Help {
        /// Verb, and the verb below it
        #[arg(value_name = "VERB")]
        verbs: Vec<String>,
        /// Manual page for man(1)
        #[arg(long)]
        man: bool,
    },
}

fn main() -> ExitCode {
    let arguments = arguments();
    let command = Cli::command();
    let parsed = command.clone().try_get_matches_from(&arguments);
    let verb = match parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?.verb, matches)))
    {
        Ok((verb, matches)) => named::check(&command, &matches).map(|()| verb).map_err(|failure| {
            match output::tool_name() {
                Some(_) => Failure::tool(failure.line()),
                None => failure,
            }
        }),
        Err(error) => {
            show_usage(&error, &arguments);
            // The C tools have one exit code for everything but success, even for help.
            let is_version = error.kind() == clap::error::ErrorKind::DisplayVersion;
            let code = match (output::tool_name(), error.use_stderr()) {
                (Some(_), _) => u8::from(!is_version),
                (None, true) => 2,
                (None, false) => 0,
            };
            return ExitCode::from(code);
        }
    };
    output::window_columns().into_iter().for_each(daqmeter_report::table::set_window);
    let done = interrupt::take_over().and_then(|()| run_verb(verb?));
    interrupt::exit_code(done.unwrap_or_else(Failure::report))
}

/// Prints help or an error of the command line. clap repeats words of it, which may be names of
/// files that others chose.
fn show_usage(error: &clap::Error, arguments: &[std::ffi::OsString]) {
    let is_plain = |word: &std::ffi::OsString| {
        matches!(sanitise::text(&word.to_string_lossy()), Cow::Borrowed(_))
    };
    if let Some(tool) = output::tool_name() {
        let text = as_tool(&error.render().to_string(), &tool);
        match error.use_stderr() {
            true => output::tell_lines(&text),
            // A closed stdout takes no message.
            false => drop(output::emit(&text)),
        }
        return;
    }
    if arguments.iter().all(is_plain) {
        // Closed outputs take no message.
        let _ = error.print();
    } else {
        output::tell_lines(&error.render().to_string());
    }
}

/// Replaces names in usage and messages by the tool's: `eb-read` instead of `daqmeter eb read`.
fn as_tool(text: &str, tool: &str) -> String {
    let named = text
        .replace(&format!("daqmeter eb {tool}"), &format!("eb-{tool}"))
        .replace(&format!("daqmeter-eb-{tool}"), &format!("eb-{tool}"));
    match named.strip_prefix("error: ") {
        Some(message) => format!("eb-{tool}: {message}"),
        None => named,
    }
}

/// Returns the command line; the name of a C tool (`eb-read`) becomes a verb.
fn arguments() -> Vec<std::ffi::OsString> {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    if let Some(tool) = output::tool_name() {
        arguments.splice(0..1, ["daqmeter".into(), "eb".into(), tool.into()]);
    }
    arguments
}

fn run_verb(verb: Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Survey(arguments) => survey::run(&arguments),
        Verb::Digitizer(arguments) => digitizer::run(&arguments),
        Verb::Eb(arguments) => eb::run(&arguments),
        Verb::Readout(arguments) => readout::run(&arguments),
        Verb::Copy(arguments) => copy::run(&arguments),
        Verb::Pmu(arguments) => pmu::run(&arguments),
        Verb::Path(arguments) => path::run(&arguments),
        Verb::Run(arguments) => run::run(&arguments),
        Verb::Reproduce(arguments) => reproduce::run(&arguments),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::Ab(arguments) => ab::run(&arguments),
        Verb::AbSide => ab::side(),
        Verb::Cmp(arguments) => cmp::run(&arguments),
        Verb::History(arguments) => history::run(&arguments),
        Verb::Serve(arguments) => serve::run(&arguments),
        Verb::List(arguments) => list::run(&arguments),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Completions { shell } => completions::completions(shell, Cli::command()),
        Verb::Help { verbs, man } => completions::help(&verbs, man, Cli::command()),
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
