//! `daqmeter cmp`: two sets of records against each other.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::RunRecord;
use daqmeter_report::cmp::{Compared, Conclusion, Gate, cmp};

use crate::arguments::per_cent;
use crate::files::read_all;
use crate::interrupt;
use crate::output::{CANNOT_TELL, FAILED, Failure, emit, tell};

/// Compare two sets of records, point by point.
///
/// Points with the same study, engine, parameters and stage are held against each other. What
/// one invocation measured shares its minute: it counts as one run, however many repetitions it
/// has. So record both sides in turn, several times each, appending to two files; a single run a
/// side can show large differences only, unless --history says how much runs of this host differ.
/// One comparison in a hundred of an unchanged host may name a difference; `daqmeter ab` measures
/// both programs again, in turns.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ for i in 1 2 3 4 5 6 7 8 9 10; do\n  >   ./old run quick --pin 1 --records before.jsonl; ./new run quick --pin 1 --records after.jsonl; done\n  $ daqmeter cmp before.jsonl after.jsonl --fail-on 5%\n  $ daqmeter cmp before.jsonl after.jsonl --history bench/record    one run each, and what is known of the host\n  $ daqmeter cmp all.jsonl@1a2b3c4 all.jsonl@5d6e7f8      two revisions in one file; the others are history\n\nExit codes: 0 every point is the same; 1 something differs, or a point that was verified in A failed in B; 2 could not compare;\n3 cannot tell. With --fail-on: 0 no point is slower by that much; 1 one is; 3 it could have been missed."
)]
pub(crate) struct Arguments {
    /// Records to compare with, a file or a folder; A@TEXT takes those whose run, revision, time or
    /// CPU has TEXT in it
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Records to judge
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Other runs of this host, files or folders: they tell how much runs differ
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

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut history =
        if arguments.history.is_empty() { Vec::new() } else { read_all(&arguments.history)? };
    let mut side = |path: &Path| selected(path, arguments.study.as_deref(), &mut history);
    let (a, b) = (side(&arguments.a)?, side(&arguments.b)?);
    let found = cmp(&a, &b, &history, arguments.ignore);
    refuse_nothing(arguments, &found)?;
    if arguments.json {
        let text = serde_json::to_string(&found).map_err(Failure::refused)?;
        emit(&format!("{text}\n"))?;
    } else {
        emit(&format!(
            "{}\n{}",
            heading("A", &arguments.a, &a) + &heading("B", &arguments.b, &b),
            found.text(arguments.all)
        ))?;
    }
    Ok(interrupt::exit_code(match arguments.fail_on {
        Some(by) => gate(&found, by),
        None => match found.conclusion {
            Conclusion::Same => ExitCode::SUCCESS,
            Conclusion::Different => ExitCode::from(FAILED),
            Conclusion::CannotTell => ExitCode::from(CANNOT_TELL),
        },
    }))
}

fn refuse_nothing(arguments: &Arguments, found: &Compared) -> Result<(), Failure> {
    if !found.points.is_empty() || !found.broken.is_empty() {
        return Ok(());
    }
    let left_out = match found.left_out {
        (0, 0) => String::new(),
        (a, b) => format!(" ({a} and {b} records failed or were waived)"),
    };
    Err(Failure::refused(format!(
        "{} and {} have no point in common that was done{left_out}: nothing can be compared",
        arguments.a.display(),
        arguments.b.display()
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
                 both sides in turn, ten times each, or give --history",
                by * 100.0
            ));
            ExitCode::from(CANNOT_TELL)
        }
    }
}

/// Reads a file, or the selection behind `@` of it; the rest of that file is history.
fn selected(
    path: &Path,
    study: Option<&str>,
    history: &mut Vec<RunRecord>,
) -> Result<Vec<RunRecord>, Failure> {
    let text = path.to_string_lossy().into_owned();
    let (file, wanted) = match text.rsplit_once('@') {
        Some((file, wanted)) if !path.exists() => (PathBuf::from(file), Some(wanted)),
        _ => (path.to_owned(), None),
    };
    let records = read_all(std::slice::from_ref(&file))?;
    let matches = |record: &RunRecord| {
        let fields = [
            &*record.run_id,
            &*record.tool.git_revision,
            &*record.time_utc,
            &*record.host.cpu_model,
        ];
        wanted.is_none_or(|wanted| fields.iter().any(|field| field.contains(wanted)))
            && study.is_none_or(|study| record.study.contains(study))
    };
    let mut runs: Vec<String> = records.iter().map(|record| record.run_id.to_string()).collect();
    let (left, others): (Vec<RunRecord>, Vec<RunRecord>) = records.into_iter().partition(matches);
    history.extend(others);
    if left.is_empty() {
        runs.dedup();
        return Err(Failure::refused(format!(
            "{text}: nothing is left of {}; its runs: {}",
            file.display(),
            runs.join(", ")
        )));
    }
    Ok(left)
}

fn heading(name: &str, path: &Path, records: &[RunRecord]) -> String {
    let Some(RunRecord { time_utc, tool, host, .. }) = records.first() else {
        return String::new();
    };
    let mut runs: Vec<&str> = records.iter().map(|record| record.run_id.as_str()).collect();
    runs.sort_unstable();
    runs.dedup();
    format!(
        "{name}  {}: {} records of {} run(s) from {time_utc}, {} ({}), {}\n",
        path.display(),
        records.len(),
        runs.len(),
        tool.version,
        tool.git_revision,
        host.cpu_model
    )
}
