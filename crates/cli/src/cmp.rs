//! `daqmeter cmp`: two sets of records against each other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::RunRecord;
use daqmeter_report::cmp::{Compared, Conclusion, Gate, cmp};
use daqmeter_report::table::paragraphs;

use crate::arguments::per_cent;
use crate::files::{read_all, read_study};
use crate::output::{CANNOT_TELL, Ended, FAILED, Failure, emit, json_lines, tell};

/// Compare two sets of records, point by point.
///
/// Points with equal study, engine, parameters and stage are compared. Times are those of the work
/// itself, in cycles of the clock where that is steadier, without what neighbours took. One file a
/// side is enough where the repetitions of a point agree; more of them, or --history, show smaller
/// differences. One comparison in a hundred of an unchanged host may name a difference; `daqmeter
/// ab` measures both programs again, in turn.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ ./old run quick --pin 1 --records before.jsonl\n  $ ./new run quick --pin 1 --records after.jsonl\n  $ daqmeter cmp before.jsonl after.jsonl --fail-on 5%\n  $ daqmeter cmp before.jsonl after.jsonl --history bench/record    one run each, and earlier runs of the host\n\nExit codes: 0 every point is the same; 1 something differs, or a point that was verified in A failed in B; 2 could not compare;\n3 cannot tell. With --fail-on: 0 no point is slower by that much; 1 one is; 3 it could have been missed."
)]
pub(crate) struct Arguments {
    /// Records to compare with, a file or a folder
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Records to judge
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Other runs of this host, files or folders, for the differences between runs
    #[arg(long, value_name = "PATH")]
    history: Vec<PathBuf>,
    /// Exit with 1 if anything is slower by this, with 3 if that may be missed
    #[arg(long, value_name = "PERCENT", value_parser = per_cent)]
    fail_on: Option<f64>,
    /// Differences that are of no interest
    #[arg(long, value_name = "PERCENT", value_parser = per_cent, default_value = "2%")]
    ignore: f64,
    /// Only studies whose name contains this
    #[arg(long, value_name = "TEXT")]
    study: Option<String>,
    /// Print all points, not only those that differ
    #[arg(long)]
    all: bool,
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let paths = &arguments.history;
    let history = if paths.is_empty() { Vec::new() } else { read_all(paths)? };
    let side = |path| read_study(std::slice::from_ref(path), arguments.study.as_deref());
    let (a, b) = (side(&arguments.a)?, side(&arguments.b)?);
    let found = cmp(&a, &b, &history, arguments.ignore);
    refuse_nothing(arguments, &found)?;
    emit(&if arguments.json {
        json_lines(std::slice::from_ref(&found))?
    } else {
        let headings = heading("A", &arguments.a, &a) + &heading("B", &arguments.b, &b);
        format!("{}\n{}", paragraphs(&headings), found.text(arguments.all))
    })?;
    Ok(arguments.fail_on.map_or_else(|| code_of(found.conclusion), |by| gate(&found, by)))
}

pub(crate) fn code_of(conclusion: Conclusion) -> ExitCode {
    ExitCode::from(match conclusion {
        Conclusion::Same => 0,
        Conclusion::CannotTell => CANNOT_TELL,
        Conclusion::Different => FAILED,
    })
}

fn refuse_nothing(arguments: &Arguments, found: &Compared) -> Result<(), Failure> {
    if !found.points.is_empty() || !found.broken.is_empty() {
        return Ok(());
    }
    let left_out = match found.left_out {
        (0, 0) => String::new(),
        (a, b) => format!(" ({a} and {b} records failed or were waived)"),
    };
    let (a, b) = (arguments.a.display(), arguments.b.display());
    Err(Failure::refused(format!(
        "{a} and {b} have no point in common that was done{left_out}: nothing can be compared"
    )))
}

fn gate(found: &Compared, by: f64) -> ExitCode {
    match found.gate(by) {
        Gate::Passed => ExitCode::SUCCESS,
        Gate::Failed => ExitCode::from(FAILED),
        Gate::NoPower(points) => {
            let all = found.points.len();
            tell(&format!(
                "daqmeter: --fail-on had no power: at {points} of {all} points a slowdown of {} % could have been missed. Record \
                 both sides several times, or use daqmeter ab",
                by * 100.0
            ));
            ExitCode::from(CANNOT_TELL)
        }
    }
}

fn heading(name: &str, path: &Path, records: &[RunRecord]) -> String {
    let Some(RunRecord { time_utc, tool, host, .. }) = records.first() else {
        return String::new();
    };
    let runs: BTreeSet<&str> = records.iter().map(|record| record.run_id.as_str()).collect();
    let (path, records, runs) = (path.display(), records.len(), runs.len());
    let program = format!("{} ({}), {}", tool.version, tool.git_revision, host.cpu_model);
    format!("{name}  {path}: {records} records of {runs} run(s) from {time_utc}, {program}\n")
}
