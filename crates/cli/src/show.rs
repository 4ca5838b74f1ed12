//! `daqmeter show`: the tables of recorded runs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_report::{answers_text, table};

use crate::files::read_all;
use crate::output::{Failure, emit};

/// Print the answers and tables of recorded runs.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter survey --records today.jsonl\n  $ daqmeter show today.jsonl --study conversion"
)]
pub(crate) struct Arguments {
    /// Records (JSON lines), or folders of them; - is standard input
    #[arg(required = true, value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Only studies whose name contains this
    #[arg(long, value_name = "TEXT")]
    study: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut records = read_all(&arguments.files)?;
    if let Some(wanted) = &arguments.study {
        let all = std::mem::take(&mut records);
        let mut studies: Vec<String> = all.iter().map(|record| record.study.to_string()).collect();
        records = all.into_iter().filter(|record| record.study.contains(wanted)).collect();
        if records.is_empty() {
            studies.dedup();
            return Err(Failure::refused(format!(
                "no study contains `{wanted}`; there are: {}",
                studies.join(", ")
            )));
        }
    }
    let answers = answers_text(&records);
    let between = if answers.is_empty() { "" } else { "\n" };
    emit(&(answers + between + &table::text(&records) + &table::stamp(&records)))
}
