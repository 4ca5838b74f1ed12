//! `daqmeter history`: points over time.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_record::RunRecord;
use daqmeter_record::units::plural;
use daqmeter_report::cmp::Gate;
use daqmeter_report::history::{Trend, figures, gate, text, trends};
use daqmeter_report::history_page;
use daqmeter_report::points::points_of;

use crate::ab::binary;
use crate::again::{Flagged, in_turns, refuse_other_hosts, stop_on_signal};
use crate::arguments::{budget, per_cent};
use crate::files::{read_all, shown};
use crate::interrupt;
use crate::named::Replaced;
use crate::output::{CANNOT_TELL, FAILED, Failure, emit, tell, write_file};

/// Show how points changed from run to run, and where they took a step.
///
/// Reads files and folders of records, such as bench/record/HOST/DATE.jsonl. Each run of a point counts as one
/// value: the mean time of what data takes on its way, the median of work of the CPU alone. Runs that failed do not
/// count; hosts are kept apart. Steps are sought over all runs of a point; a single wild run is none.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter run quick --records bench/record/lab7/2026-11-21.jsonl\n  $ daqmeter history bench/record/lab7\n  $ daqmeter history bench/record -o history.html\n  $ daqmeter history bench/record/lab7 --confirm --binary-before ./old --binary-after ./new\n  $ daqmeter history bench/record/lab7 --fail-on 10%        for a nightly run\n\nExit codes: 0 done; 2 could not run. With --fail-on: 0 no point is slower by that much than its fastest level before; 1 one is;\n3 the newest run of one is, and it is not known yet whether it stays so."
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
    /// Measure points with a step again, here and now: the binaries of before and after it in turns
    #[arg(long, requires = "binary_before")]
    confirm: bool,
    /// With --confirm: a binary of before the steps
    #[arg(long, value_name = "BINARY", requires = "confirm")]
    binary_before: Option<String>,
    /// With --confirm: one of after them [default: this one]
    #[arg(long, value_name = "BINARY", requires = "confirm")]
    binary_after: Option<String>,
    /// With --confirm: time for each point
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "10s")]
    budget: Duration,
    /// Write a page with every point over time
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<Replaced>,
    /// Print the trends as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut records = read_all(&arguments.paths)?;
    if let Some(wanted) = &arguments.study {
        records.retain(|record| record.study.contains(wanted));
    }
    let mut found = trends(&records, arguments.ignore);
    if found.is_empty() {
        return Err(Failure::refused(format!(
            "{}: {} record(s), no point was done twice on one host: there is no history yet",
            shown(&arguments.paths),
            records.len()
        )));
    }
    if arguments.confirm {
        confirm(arguments, &mut found, &records)?;
    }
    if let Some(path) = &arguments.output {
        let names: Vec<String> =
            arguments.paths.iter().map(|path| path.display().to_string()).collect();
        let figures = figures(&found, &format!("daqmeter history {}", names.join(" ")));
        let newest: Vec<RunRecord> =
            records.into_iter().max_by(|a, b| a.time_utc.cmp(&b.time_utc)).into_iter().collect();
        let page = history_page(&newest, figures, &found).map_err(Failure::refused)?;
        write_file(path, &page)?;
        tell(&format!("daqmeter: wrote {}", path.display()));
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

/// The exit code of a gate; where it had no power, a line says so.
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

/// Measures the points that have a step again.
fn confirm(
    arguments: &Arguments,
    found: &mut [Trend],
    records: &[RunRecord],
) -> Result<(), Failure> {
    let with_step = found.iter().enumerate();
    let with_step = with_step.filter(|(_, trend)| !trend.steps.is_empty());
    let flagged: Vec<Flagged> =
        with_step.filter_map(|(at, trend)| flagged(at, trend, records)).collect();
    let (Some(before), false) = (&arguments.binary_before, flagged.is_empty()) else {
        return Ok(());
    };
    refuse_other_hosts(flagged.iter().map(|point| &point.record))?;
    let after = match &arguments.binary_after {
        Some(after) => binary(after)?,
        None => std::env::current_exe().map_err(Failure::refused)?,
    };
    let (binaries, stop) = ([binary(before)?, after], stop_on_signal());
    let again = in_turns(&binaries, &flagged, arguments.ignore, arguments.budget, &stop);
    for (at, confirmation) in again {
        found[at].confirmation = Some(confirmation);
    }
    Ok(())
}

/// A point with its newest record on its host.
fn flagged(at: usize, trend: &Trend, records: &[RunRecord]) -> Option<Flagged> {
    let stage = |record: &RunRecord| {
        let is_of_it = record.outcome.is_ok() && trend.is_of(record);
        let mut points = points_of(record).filter(|_| is_of_it);
        let found = points.find(|(point, _)| point.to_string() == trend.point);
        found.map(|(point, _)| point.stage)
    };
    let of_it = records.iter().filter_map(|record| Some((record, stage(record)?)));
    let (record, stage) = of_it.max_by(|a, b| a.0.time_utc.cmp(&b.0.time_utc))?;
    Some(Flagged { at, stage, record: record.clone() })
}
