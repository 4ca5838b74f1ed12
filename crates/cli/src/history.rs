//! `daqmeter history`: points over time.

use std::path::PathBuf;

use clap::Args;
use daqmeter_report::history::{text, trends};
use daqmeter_report::losses::{loss_text, loss_trends};

use crate::arguments::share;
use crate::files::{read_study, shown};
use crate::output::{Ended, Failure, emit, json_lines};

/// Show points over time, and their sudden changes.
///
/// Reads files and folders of records, such as bench/record/HOST/DATE.jsonl. Each run of a point
/// counts as one value. Points that carry data also have a sustained rate. Failed runs do not
/// count. Each host is judged alone. A single outlier is not a sudden change. To confirm a change,
/// measure the programs of before and after with `daqmeter ab`.
#[derive(Debug, Args)]
#[command(
    after_long_help = include_str!("../help/history.txt")
)]
pub(crate) struct Arguments {
    /// Records (JSON lines), or folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Only studies whose name contains this
    #[arg(long, value_name = "TEXT")]
    study: Option<String>,
    /// Smallest change that is shown
    #[arg(long, value_name = "PERCENT", value_parser = share, default_value = "2%")]
    ignore: f64,
    /// Print the trends as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let records = read_study(&arguments.paths, arguments.study.as_deref())?;
    let (found, losses) = (trends(&records, arguments.ignore), loss_trends(&records));
    if found.is_empty() && losses.is_empty() {
        let (paths, records) = (shown(&arguments.paths), records.len());
        return Err(Failure::refused(format!(
            "{paths}: {records} record(s), no point was measured twice on one host"
        )));
    }
    emit(&match arguments.json {
        true => json_lines(&found)? + &json_lines(&losses)?,
        false if found.is_empty() => loss_text(&losses),
        false => text(&found) + &loss_text(&losses),
    })
}
