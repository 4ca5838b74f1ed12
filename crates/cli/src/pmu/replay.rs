//! `daqmeter pmu replay`: recorded intervals again.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_report::pmu::tables::RateUnit;

use super::chosen::byte_unit;
use super::stat::{interval_text, summary};
use crate::files::read_all;
use crate::output::{Failure, emit};

/// Show what was recorded by pmu stat --records or any verb with --observe.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter pmu replay lab7.jsonl")]
pub(crate) struct Arguments {
    /// Records; - is stdin
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// Unit of bytes
    #[arg(long, value_parser = byte_unit(), default_value = "mb")]
    bytes: RateUnit,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let records = read_all(&arguments.records)?;
    let mut texts = Vec::new();
    for record in &records {
        let Some(observed) = &record.observed else {
            continue;
        };
        texts.push(format!("{}: {}\n", record.time_utc, record.command));
        let intervals = 0..observed.end_ns.len();
        texts.extend(intervals.map(|at| interval_text(observed, at, arguments.bytes, true)));
        texts.push(format!("{}\n", summary(observed, arguments.bytes)));
    }
    if texts.is_empty() {
        return Err(Failure::refused(format!(
            "none of the {} records holds counters over time: record some with pmu stat --records, or --observe GROUP of any verb",
            records.len()
        )));
    }
    emit(&texts.concat())
}
