//! `daqmeter cmp`: two sets of records against each other.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::RunRecord;
use daqmeter_report::cmp::cmp;

use crate::output::{Failure, emit, read_records};

/// Compare two sets of records, point by point.
///
/// Points with the same study, engine, parameters and stage are held against each other. Several runs of a point on a side (a plan
/// with repetitions, or files appended to) make small differences visible; with single runs, what differs between runs of one host is
/// estimated from the comparison itself. All intervals hold together with 95 %: on an unchanged host one comparison in twenty
/// may name a difference.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter run memory --out before.jsonl\n  $ daqmeter run memory --out after.jsonl\n  $ daqmeter cmp before.jsonl after.jsonl --fail-on 5%\n  $ daqmeter cmp all.jsonl@1a2b3c4 all.jsonl@5d6e7f8      two revisions in one file\n\nExit codes: 0 compared; 1 --fail-on was reached, or a point that was verified in A failed in B; 2 could not compare."
)]
pub(crate) struct Arguments {
    /// Records to compare with; FILE@TEXT takes those whose run, revision, time or CPU has TEXT in it
    #[arg(value_name = "A.jsonl")]
    a: PathBuf,
    /// Records to judge
    #[arg(value_name = "B.jsonl")]
    b: PathBuf,
    /// Exit with 1 when something is slower by this or more, beyond doubt
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

/// `5%` or `5` as a fraction.
pub(crate) fn per_cent(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .trim_end_matches('%')
        .trim()
        .parse()
        .map_err(|_| "a percentage such as 5% is wanted".to_owned())?;
    if (0.0..=1000.0).contains(&number) {
        Ok(number / 100.0)
    } else {
        Err("0% to 1000% is wanted".to_owned())
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let side = |path: &Path| selected(path, arguments.study.as_deref());
    let (a, b) = (side(&arguments.a)?, side(&arguments.b)?);
    let found = cmp(&a, &b, arguments.ignore);
    if found.points.is_empty() && found.broken.is_empty() {
        let left_out = match found.left_out {
            (0, 0) => String::new(),
            (a, b) => format!(" ({a} and {b} records failed or were waived)"),
        };
        return Err(Failure::refused(format!(
            "{} and {} have no point in common that was done{left_out}: nothing can be compared",
            arguments.a.display(),
            arguments.b.display()
        )));
    }
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
    let failed = match arguments.fail_on {
        Some(by) => found.regressed(by),
        None => !found.broken.is_empty(),
    };
    Ok(if failed {
        ExitCode::from(crate::output::FAILED)
    } else {
        ExitCode::SUCCESS
    })
}

/// Reads a file, or what a selection behind `@` leaves of it.
fn selected(path: &Path, study: Option<&str>) -> Result<Vec<RunRecord>, Failure> {
    let text = path.to_string_lossy().into_owned();
    let (file, wanted) = match text.rsplit_once('@') {
        Some((file, wanted)) if !path.exists() => (PathBuf::from(file), Some(wanted)),
        _ => (path.to_owned(), None),
    };
    let records = read_records(std::slice::from_ref(&file))?;
    let matches = |record: &RunRecord| {
        let fields = [
            &record.run_id,
            &record.tool.git_revision,
            &record.time_utc,
            &record.host.cpu_model,
        ];
        wanted.is_none_or(|wanted| fields.iter().any(|field| field.contains(wanted)))
            && study.is_none_or(|study| record.study.contains(study))
    };
    let mut runs: Vec<String> = records.iter().map(|record| record.run_id.clone()).collect();
    let left: Vec<RunRecord> = records.into_iter().filter(matches).collect();
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
    let Some(first) = records.first() else {
        return String::new();
    };
    let mut runs: Vec<&str> = records
        .iter()
        .map(|record| record.run_id.as_str())
        .collect();
    runs.sort_unstable();
    runs.dedup();
    let time = first.time_utc.get(..16).unwrap_or(&first.time_utc);
    format!(
        "{name}  {}: {} records of {} run(s) from {time}, {} {} ({}), {}\n",
        path.display(),
        records.len(),
        runs.len(),
        first.tool.name,
        first.tool.version,
        first.tool.git_revision,
        first.host.cpu_model
    )
}
