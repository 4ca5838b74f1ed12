//! `daqmeter compare`: two sets of records against each other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::RunRecord;
use daqmeter_record::units::{joined, percent};
use daqmeter_report::cmp::{Compared, Conclusion, Gate, cmp};
use daqmeter_report::hosts::{FarmFile, FarmSide, HostVerdict, ranked};
use daqmeter_report::table::{ALL, ask_columns, paragraphs};

use crate::arguments::share;
use crate::files::{read_all, read_study};
use crate::output::{CANNOT_TELL, Ended, FAILED, Failure, emit, json_lines, tell};

/// Compare two sets of records, point by point.
///
/// Each point is slower, faster, or not slower by more than a bound. All bounds of a comparison
/// hold together with 99 %. What other programs and machines took is not a difference: it widens
/// the bound. One file per side is enough. More files, or --history, give smaller bounds. To
/// confirm a difference, use `daqmeter ab`.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/compare.txt"))]
pub(crate) struct Arguments {
    /// Records of before, a file or a folder
    a: PathBuf,
    /// Records of after, a file or a folder
    #[arg(required_unless_present = "population")]
    b: Option<PathBuf>,
    /// Compare A with these hosts of its kind, a folder: is it normal?
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["b", "history", "fail_on"])]
    population: Option<PathBuf>,
    /// Other runs of this host, to learn how runs differ
    #[arg(long, value_name = "PATH")]
    history: Vec<PathBuf>,
    /// Exit with 1 if a point is slower by this, with 3 if it may be
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    fail_on: Option<f64>,
    /// Largest difference that is not called one
    #[arg(long, value_name = "PERCENT", value_parser = share, default_value = "2%")]
    ignore: f64,
    /// Only studies whose name contains this
    #[arg(long, value_name = "TEXT")]
    study: Option<String>,
    /// Print a table of all points
    #[arg(long)]
    all: bool,
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let Some(b) = &arguments.b else { return among(arguments) };
    let paths = &arguments.history;
    let history = if paths.is_empty() { Vec::new() } else { read_all(paths)? };
    let side = |path| read_study(std::slice::from_ref(path), arguments.study.as_deref());
    let (of_a, of_b) = (side(&arguments.a)?, side(b)?);
    let found = cmp(&of_a, &of_b, &history, arguments.ignore);
    refuse_nothing([&arguments.a, b], &found)?;
    emit(&if arguments.json {
        json_lines(std::slice::from_ref(&found))?
    } else {
        let headings = heading("A", &arguments.a, &of_a) + &heading("B", b, &of_b);
        found.frame(arguments.all).text(None) + &paragraphs(&headings)
    })?;
    Ok(arguments.fail_on.map_or_else(|| code_of(found.conclusion), |by| gate(&found, by)))
}

/// Compares one host with others of its kind.
fn among(arguments: &Arguments) -> Ended {
    let (own, population) = (&arguments.a, arguments.population.iter().cloned());
    let mut farm = crate::hosts::read(&population.collect::<Vec<_>>())?;
    let records = read_study(std::slice::from_ref(own), arguments.study.as_deref())?;
    let hosts: BTreeSet<String> = records.iter().map(|record| record.host.label()).collect();
    let shown = own.display();
    if hosts.len() > 1 {
        let hosts = hosts.len();
        return Err(Failure::refused(format!("{shown} is of {hosts} hosts: use daqmeter hosts")));
    }
    let stem = own.file_stem().unwrap_or_default().to_string_lossy();
    farm.add_own(FarmFile::of(&shown.to_string(), &stem, FarmSide::Before, records, Vec::new()));
    let found = ranked(&farm, arguments.ignore);
    let found = found.ok_or_else(|| Failure::refused(format!("{shown}: no point was measured")))?;
    if arguments.all {
        ask_columns(&[ALL.to_owned()]);
    }
    emit(&match arguments.json {
        true => json_lines(std::slice::from_ref(&found))?,
        false => found.frame().text(None),
    })?;
    Ok(ExitCode::from(match found.verdict {
        _ if !found.is_seen() => CANNOT_TELL,
        HostVerdict::Different => FAILED,
        HostVerdict::Unconfirmed => CANNOT_TELL,
        _ => 0,
    }))
}

pub(crate) fn code_of(conclusion: Conclusion) -> ExitCode {
    ExitCode::from(match conclusion {
        Conclusion::NoDifference => 0,
        Conclusion::NotComparable => CANNOT_TELL,
        Conclusion::Different => FAILED,
    })
}

fn refuse_nothing([a, b]: [&PathBuf; 2], found: &Compared) -> Result<(), Failure> {
    if !found.points.is_empty() || !found.broken.is_empty() || !found.losses.is_empty() {
        return Ok(());
    }
    let left_out = match found.left_out {
        (0, 0) => String::new(),
        (a, b) => format!(" ({a} and {b} records failed or were waived)"),
    };
    let (a, b) = (a.display(), b.display());
    Err(Failure::refused(format!(
        "{a} and {b} have no measured point in common{left_out}: nothing to compare"
    )))
}

/// Points that are named where a gate stays open.
const NAMED: usize = 5;

pub(crate) fn gate(found: &Compared, by: f64) -> ExitCode {
    match found.gate(by) {
        Gate::Passed => ExitCode::SUCCESS,
        Gate::Failed => ExitCode::from(FAILED),
        Gate::Open(open) => {
            let named =
                open.iter().take(NAMED).map(|(name, runs)| format!("{name} ({runs} runs a side)"));
            let named = joined(named, "; ").unwrap_or_default();
            let (points, all) = (open.len(), found.points.len() + found.losses.len());
            tell(&format!(
                "daqmeter: --fail-on is undecided: {points} of {all} points may be slower by {} %: {named}",
                percent(by, 2)
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
