//! `daqmeter path show` and `list`: what would run.

use std::process::ExitCode;

use clap::Args;
use daqmeter_path::{Path, SHIPPED};
use daqmeter_record::sanitise;
use daqmeter_report::table::plain;

use crate::output::{Failure, emit};

/// Draw a path as text, from its source to its sink; nothing is opened and nothing runs.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Path: one that ships, or a TOML file
    #[arg(value_name = "PATH")]
    path: String,
    /// Print the file instead, to begin one of your own
    #[arg(long)]
    toml: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let path = Path::load(&arguments.path).map_err(Failure::refused)?;
    if arguments.toml {
        return emit(&path.text);
    }
    let lines: Vec<String> = path
        .picture()
        .lines()
        .map(|line| sanitise::text(line).into_owned())
        .collect();
    emit(&format!("{}\n", lines.join("\n")))
}

pub(crate) fn list() -> Result<ExitCode, Failure> {
    let rows: Result<Vec<Vec<String>>, Failure> = SHIPPED
        .iter()
        .map(|(name, _)| {
            let path = Path::load(name).map_err(Failure::refused)?;
            Ok(vec![path.name, path.title])
        })
        .collect();
    emit(&plain(&["path", "what it is"], rows?))
}
