//! `daqmeter nightly`: a plan measured, kept, and compared with the nights before.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use daqmeter_campaign::{Plan, Site};
use daqmeter_record::RunRecord;
use daqmeter_report::cmp::{Compared, cmp};
use daqmeter_report::nightly::{junit, markdown};

use crate::arguments::share;
use crate::compare::{code_of, gate};
use crate::files::{files_of, read_all};
use crate::measure::{Bench, Common};
use crate::named::{Appended, OutputFolder, Replaced};
use crate::output::{Ended, Failure, emit, write_file};
use crate::recorder::Recording;
use crate::run::refuse_refused;

/// Measure a plan, keep it in a folder, and compare it with the last nights there.
///
/// Each night is a file of its own. The summary is printed, and written beside the records as
/// summary.md and junit.xml. With --fail-on, points whose nights differ by more than that are
/// named, and are judged only by a proven slowdown.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/nightly.txt"))]
pub(crate) struct Arguments {
    /// Folder of the nights; it is made if it is not there
    folder: OutputFolder,
    /// Plan: a file, or the name of a shipped plan
    #[arg(long, value_name = "PLAN", default_value = "quick")]
    plan: String,
    /// Exit with 1 if a point is slower by this, with 3 if it may be
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    fail_on: Option<f64>,
    /// Largest difference that is not called one
    #[arg(long, value_name = "PERCENT", value_parser = share, default_value = "2%")]
    ignore: f64,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
}

/// Nights that one is compared with.
const NIGHTS: usize = 10;

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let folder = &arguments.folder.0;
    let plan = Plan::load_for(&arguments.plan, &Site::here())?;
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let nights = files_of(std::slice::from_ref(folder))?;
    let records = new_file(folder);
    let file = records.to_path_buf();
    let quiet = arguments.quiet;
    let recording = Recording { records: Some(records), quiet, ..Recording::default() };
    let mut bench = Bench::new(&Common { recording, ..Common::default() })?;
    let (runner, recorder) = (&mut bench.runner, &mut bench.recorder);
    let done = runner.run(plan.points, plan.budget, &[], |event| recorder.follow(event))?;
    let code = recorder.end(|_| String::new())?;
    refuse_refused(&done)?;
    if code != ExitCode::SUCCESS || !done.is_complete() {
        let file = file.display();
        return Err(Failure::refused(format!(
            "not all points were measured: {file} is not judged; daqmeter report {file} says why"
        )));
    }
    let disturbed = bench.recorder.disturbed();
    judged(arguments, &nights, &bench.recorder.records, disturbed)
}

/// Returns a new file with the time in its name, so that the order of names is that of nights.
fn new_file(folder: &Path) -> Appended {
    let time = daqmeter_harness::facts::utc_now().replace(':', "");
    Appended::at(folder.join(format!("{}.jsonl", time.trim_end_matches('Z'))))
}

fn judged(
    arguments: &Arguments,
    nights: &[PathBuf],
    tonight: &[RunRecord],
    disturbed: Option<String>,
) -> Ended {
    let host = tonight.first().map(|record| record.host.label());
    let of = |nights: &[PathBuf]| -> Result<Vec<RunRecord>, Failure> {
        let mut records = if nights.is_empty() { Vec::new() } else { read_all(nights)? };
        records.retain(|record| Some(record.host.label()) == host);
        Ok(records)
    };
    let last = &nights[nights.len().saturating_sub(NIGHTS)..];
    let before = of(last)?;
    if before.is_empty() {
        let first =
            "the first night of this host in this folder: there is nothing to compare with\n";
        return if arguments.quiet { Ok(ExitCode::SUCCESS) } else { emit(first) };
    }
    let found = cmp(&before, tonight, &[], arguments.ignore);
    // Points whose last night could have been slower by as much tell nothing tonight either; the
    // second night is its own measure.
    let usual = last.split_last().filter(|(_, others)| !others.is_empty());
    let usual = usual.map(|(one, others)| {
        Ok::<Compared, Failure>(cmp(&of(others)?, &of(std::slice::from_ref(one))?, &[], 0.0))
    });
    let usual = usual.transpose()?.unwrap_or_else(|| found.clone());
    let found = match arguments.fail_on {
        Some(by) => found.gated_by(&usual, by),
        None => found,
    };
    let frame = found.frame(false);
    for (name, text) in
        [("summary.md", markdown(&found)), ("junit.xml", junit(&found, arguments.fail_on))]
    {
        write_file(&Replaced::at(arguments.folder.0.join(name)), &text)?;
    }
    if !arguments.quiet {
        emit(&frame.text(disturbed))?;
    }
    Ok(arguments.fail_on.map_or_else(|| code_of(found.conclusion), |by| gate(&found, by)))
}
