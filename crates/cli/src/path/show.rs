//! `daqmeter path show`: a path without a run.

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
    draw(&path)
}

pub(crate) fn draw(path: &Path) -> Result<ExitCode, Failure> {
    let picture = path.picture();
    let lines: Vec<_> = picture.lines().map(sanitise::text).collect();
    emit(&format!("{}\n", lines.join("\n")))
}

pub(crate) fn shipped() -> String {
    let row = |(name, text): &(&str, &str)| {
        let path = Path::parse(text, name).expect("ships with the binary and is tested");
        vec![path.name, path.title]
    };
    plain(&["path", "what it is"], SHIPPED.iter().map(row))
}
