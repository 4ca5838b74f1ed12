//! `daqmeter readout run`: a whole chain in this process, as one record.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_harness::StepPlan;
use daqmeter_readout::accounts;
use daqmeter_record::{Outcome, RunRecord};
use daqmeter_report::page;
use daqmeter_report::readout::{chains_text, details_text};

use super::Chosen;
use super::pins::{check_pins, cpus};
use super::verdict::{Found, Measure, OfRun};
use crate::arguments::{cpu_list, duration};
use crate::output::{FAILED, Failure, emit, tell, write_file};
use crate::run::{Common, CpuList, Runner};

/// Run emulated card, readers and receivers in this process.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Time for which triggers come
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    time: Duration,
    /// Receivers; one per reader without it
    #[arg(long, value_name = "N")]
    receivers: Option<u64>,
    /// CPUs of the receivers, in turn
    #[arg(long, value_name = "CPUS", value_parser = cpu_list, help_heading = "Placement")]
    receiver_pin: Option<CpuList>,
    /// Page to write
    #[arg(short, long, value_name = "FILE.html", help_heading = "Output")]
    output: Option<PathBuf>,
    #[command(flatten)]
    limits: OfRun,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut workload = arguments
        .chosen
        .workload()?
        .with("seconds", arguments.time.as_secs_f64());
    if let Some(receivers) = arguments.receivers {
        workload = workload.with("receivers", receivers);
    }
    if let Some(cpus) = cpus(arguments.receiver_pin.as_ref()) {
        workload = workload.with("receiver_cpus", cpus);
    }
    let mut runner = Runner::new(&arguments.common, 1)?;
    check_pins(arguments.receiver_pin.as_ref(), &runner)?;
    let pin = arguments
        .common
        .pin
        .as_ref()
        .map(|list| list.0.clone())
        .unwrap_or_default();
    let settings = runner.settings(StepPlan::ByStage(1), "readout/run", &pin);
    runner.point("readout", &workload, &settings, None)?;
    runner.finish();
    let records = &runner.recorder.records;
    let verdict = found(records).verdict(&arguments.limits.fail_on);
    if arguments.common.json {
        // Stdout is for records.
        tell(&verdict.to_string());
    } else {
        emit(&format!(
            "{}{} {verdict}\n",
            chains_text(records),
            details_text(records)
        ))?;
    }
    if let Some(path) = &arguments.output {
        write_file(path, &page(records).map_err(Failure::refused)?)?;
        tell(&format!("wrote {}", path.display()));
    }
    if !verdict.is_passed() && !runner.stop.is_set() {
        return Ok(ExitCode::from(FAILED));
    }
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

/// What the records say for a verdict.
fn found(records: &[RunRecord]) -> Found {
    let mut found = Found::default();
    for record in records {
        if let Outcome::Failed(why) = &record.outcome {
            found.fails(why);
        }
    }
    let ledgers = || records.iter().flat_map(|record| &record.ledgers);
    found.fault(
        ledgers().filter(|ledger| !ledger.closes()).count() as u64,
        "accounts that do not close",
    );
    let issued = ledgers().map(|ledger| ledger.issued).sum();
    found.value(
        Measure::Loss,
        ledgers().map(accounts::lost_on_the_way).sum(),
        issued,
    );
    let flagged = ledgers().filter_map(|ledger| ledger.losses.get(accounts::FLAGGED));
    found.value(Measure::Flags, flagged.sum(), issued);
    let dead = records
        .iter()
        .filter_map(|record| record.counter("dead-time"))
        .fold(0.0, f64::max);
    found.share(Measure::Dead, dead);
    found
}
