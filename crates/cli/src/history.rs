//! `daqmeter history`: points over time.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::units::plural;
use daqmeter_report::cmp::Gate;
use daqmeter_report::history::{Trend, gate, text, trends};

use crate::arguments::per_cent;
use crate::files::{read_all, shown};
use crate::interrupt;
use crate::output::{CANNOT_TELL, FAILED, Failure, emit, tell};

/// Show how points changed from run to run, and where they took a step.
///
/// Reads files and folders of records, such as bench/record/HOST/DATE.jsonl. Each run of a point
/// counts as one value: the mean time of what data takes on its way, the median of work of the CPU
/// alone. Runs that failed do not count; hosts are kept apart. Steps are sought over all runs of a
/// point; a single wild run is none. `daqmeter ab` measures the programs of before and after a step
/// again, in turns.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter run quick --records bench/record/lab7/2026-11-21.jsonl\n  $ daqmeter history bench/record/lab7\n  $ daqmeter history bench/record\n  $ daqmeter history bench/record/lab7 --fail-on 10%        for a nightly run\n\nExit codes: 0 done; 2 could not run. With --fail-on: 0 no point is slower by that much than its fastest level before; 1 one is;\n3 the newest run of one is, and it is not known yet whether it stays so."
)]
pub(crate) struct Arguments {
    /// Records (JSON lines), or folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Only studies whose name contains this
    #[arg(long, value_name = "TEXT")]
    study: Option<String>,
    /// Steps that are of no interest
    #[arg(long, value_name = "PERCENT", value_parser = per_cent, default_value = "2%")]
    ignore: f64,
    /// Exit with 1 if a step made a point slower by this, with 3 if its newest run may be such a
    /// step
    #[arg(long, value_name = "PERCENT", value_parser = per_cent)]
    fail_on: Option<f64>,
    /// Print the trends as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut records = read_all(&arguments.paths)?;
    if let Some(wanted) = &arguments.study {
        records.retain(|record| record.study.contains(wanted));
    }
    let found = trends(&records, arguments.ignore);
    if found.is_empty() {
        return Err(Failure::refused(format!(
            "{}: {} record(s), no point was done twice on one host: there is no history yet",
            shown(&arguments.paths),
            records.len()
        )));
    }
    if arguments.json {
        let lines = found
            .iter()
            .map(serde_json::to_string)
            .collect::<Result<Vec<_>, _>>()
            .map_err(Failure::refused)?;
        emit(&(lines.join("\n") + "\n"))?;
    } else {
        emit(&text(&found))?;
    }
    let code = arguments.fail_on.map(|by| gated(&found, by));
    Ok(interrupt::exit_code(code.unwrap_or(ExitCode::SUCCESS)))
}

fn gated(found: &[Trend], by: f64) -> ExitCode {
    match gate(found, by) {
        Gate::Passed => ExitCode::SUCCESS,
        Gate::Failed => ExitCode::from(FAILED),
        Gate::NoPower(points) => {
            tell(&format!(
                "daqmeter: --fail-on cannot tell: the newest run of {} is slower by {} % or more, and too few runs say whether it is a \
                 step. Record again",
                plural(points as u64, "point"),
                by * 100.0
            ));
            ExitCode::from(CANNOT_TELL)
        }
    }
}
