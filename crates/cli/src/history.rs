//! `daqmeter history`: points over time.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::RunRecord;
use daqmeter_report::history::{figures, text, trends};
use daqmeter_report::history_page;

use crate::cmp::per_cent;
use crate::files::{read_all, shown};
use crate::output::{Failure, emit, tell, write_file};

/// Show how points changed from run to run, and where they took a step.
///
/// Reads files and folders of records, such as bench/record/HOST/DATE.jsonl. Each run of a point counts as one
/// value: the mean time of what data takes on its way, the median of work of the CPU alone. Runs that failed do not
/// count; hosts are kept apart. Steps are sought over all runs of a point; a single wild run is none.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter run quick --records bench/record/lab7/2026-11-21.jsonl\n  $ daqmeter history bench/record/lab7\n  $ daqmeter history bench/record -o history.html"
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
    /// Write a page with every point over time
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
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
    if let Some(path) = &arguments.output {
        let names: Vec<String> = arguments
            .paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let figures = figures(&found, &format!("daqmeter history {}", names.join(" ")));
        let newest: Vec<RunRecord> = records
            .into_iter()
            .max_by(|a, b| a.time_utc.cmp(&b.time_utc))
            .into_iter()
            .collect();
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
        return emit(&(lines.join("\n") + "\n"));
    }
    emit(&text(&found))
}
