//! `daqmeter copy verify`: every way, direction, policy and completion moves every byte, at any size and alignment.

use std::process::ExitCode;

use clap::Args;
use daqmeter_copy::verify::{Outcome, Plan, all};
use daqmeter_harness::StopFlag;
use daqmeter_report::table::numbers_from;

use super::known;
use crate::arguments::bytes;
use crate::interrupt;
use crate::output::{Failure, emit, tell};

/// Check every byte of every way, policy and completion; no times.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter copy verify --path module")]
pub(super) struct Arguments {
    /// Only this way to copy
    #[arg(long, value_name = "NAME")]
    path: Option<String>,
    /// Largest block
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "8MiB")]
    up_to: u64,
    /// Copies at each size
    #[arg(long, value_name = "N", default_value = "3")]
    times: u32,
    /// A line of JSON for each case
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(path) = &arguments.path {
        known(path)?;
    }
    let largest = usize::try_from(arguments.up_to).map_err(Failure::refused)?;
    let plan = Plan {
        only: arguments.path.clone(),
        largest_bytes: largest,
        times: arguments.times,
    };
    let stop = StopFlag::default();
    let asked = stop.clone();
    interrupt::on_signal(move || asked.set());
    let cases = all(&plan, &stop);
    let failed = cases
        .iter()
        .filter(|case| matches!(case.outcome, Outcome::Failed(_)))
        .count();
    if arguments.json {
        let lines: Result<Vec<String>, _> = cases.iter().map(serde_json::to_string).collect();
        emit(&format!(
            "{}\n",
            lines.map_err(Failure::refused)?.join("\n")
        ))?;
    } else {
        let rows = cases.iter().map(|case| {
            let (verdict, what) = match &case.outcome {
                Outcome::Verified { copies, bytes } => {
                    ("ok".to_owned(), format!("{copies} copies, {bytes} bytes"))
                }
                Outcome::Waived(reason) => ("-".to_owned(), reason.clone()),
                Outcome::Failed(reason) => ("FAILED".to_owned(), reason.clone()),
            };
            vec![
                verdict,
                case.path.clone(),
                case.context.clone(),
                case.completion.clone(),
                case.direction.clone(),
                what,
            ]
        });
        emit(&numbers_from(
            6,
            &["", "path", "context", "completion", "direction", "result"],
            rows,
        ))?;
    }
    if stop.is_set() {
        tell(&format!(
            "daqmeter: interrupted after {} cases",
            cases.len()
        ));
    }
    if failed > 0 {
        return Err(Failure::tool(format!(
            "{failed} of {} cases failed",
            cases.len()
        )));
    }
    Ok(ExitCode::SUCCESS)
}
