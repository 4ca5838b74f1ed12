//! The `daqmeter` command: one file per verb. Verbs measure through the harness, and print what the report room makes of
//! the records; nothing here computes a number.

mod arguments;
mod digitizer;
mod doctor;
mod list;
mod output;
mod report;
mod reproduce;
mod run;
mod show;
mod survey;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::output::{Failure, emit};

/// Measures, exercises and predicts the path that data takes from an acquisition device to a program.
#[derive(Debug, Parser)]
#[command(name = "daqmeter", version, max_term_width = 110, disable_help_subcommand = true, after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const AFTER_HELP: &str = "Begin with: daqmeter survey";

const AFTER_LONG_HELP: &str = "\
Begin with `daqmeter survey`: in about a minute it measures what this host can do, prints a
summary and writes report.html and records.jsonl.

Exit codes: 0 done; 1 measured, but bytes, a ledger or a device failed; 2 could not run (the line
on stderr says why); 130 interrupted (what was measured is kept).";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure what this host can do, in about a minute
    Survey(survey::Arguments),
    /// Read digitizer boards in parallel and convert their samples
    Digitizer(Box<digitizer::Arguments>),
    /// Print the tables of recorded runs
    Show(show::Arguments),
    /// Make a page or a table from recorded runs
    Report(report::Arguments),
    /// List devices, engines, functions and kernels
    List(list::Arguments),
    /// Say what this host has, what is missing and how to get it
    Doctor(doctor::Arguments),
    /// Print shell completions
    #[command(hide = true)]
    Completions {
        /// Shell to complete for
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the command or of one verb
    #[command(hide = true)]
    Man {
        /// Verb
        verb: Option<String>,
    },
}

fn main() -> ExitCode {
    match run_verb(Cli::parse().verb) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn run_verb(verb: Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Survey(arguments) => survey::run(&arguments),
        Verb::Digitizer(arguments) => digitizer::run(&arguments),
        Verb::Show(arguments) => show::run(&arguments),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::List(arguments) => list::run(&arguments),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Completions { shell } => completions(shell),
        Verb::Man { verb } => man(verb.as_deref()),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "daqmeter", &mut text);
    emit(&String::from_utf8_lossy(&text))
}

fn man(verb: Option<&str>) -> Result<ExitCode, Failure> {
    let whole = Cli::command();
    let command = match verb {
        None => whole,
        Some(name) => match whole.find_subcommand(name) {
            Some(found) => found.clone().display_name(format!("daqmeter-{name}")),
            None => return Err(Failure::refused(format!("there is no verb `{name}`; see daqmeter -h"))),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(|error| Failure::refused(error.to_string()))?;
    emit(&String::from_utf8_lossy(&text))
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
        for name in ["survey", "digitizer", "show", "report", "list", "doctor"] {
            let mut cli = Cli::command();
            let verb = cli.find_subcommand_mut(name).unwrap();
            let lines = verb.render_help().to_string().lines().count();
            assert!(lines <= 48, "{name}: {lines} lines");
        }
        assert!(Cli::command().render_help().to_string().lines().count() <= 24);
    }
}
