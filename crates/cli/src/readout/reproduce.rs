//! `daqmeter readout reproduce`: the published study beside arithmetic, model and this host.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_harness::StepPlan;
use daqmeter_readout::study::{self, Document, STUDY};
use daqmeter_record::RunRecord;

use crate::arguments::CpuList;
use crate::arguments::cpu_list;
use crate::output::{FAILED, Failure, read_records};
use crate::runner::{Common, Runner};
use crate::studies::{self, show_one};

/// Set the published study (Nikhef) beside arithmetic, a model, and what this host does.
///
/// Ends with 1 when a row of the model differs from what is published by more than 20 %.
#[derive(Debug, Args)]
#[command(mut_arg("json", studies::json_help))]
pub(crate) struct Arguments {
    /// Compare records of an earlier run instead of measuring
    #[arg(long, value_name = "FILE.jsonl")]
    from: Option<PathBuf>,
    /// Only what is computed and simulated
    #[arg(long, conflicts_with = "from")]
    no_measurement: bool,
    /// CPUs of the receivers, in turn
    #[arg(long, value_name = "CPUS", value_parser = cpu_list, help_heading = "Placement")]
    receiver_pin: Option<CpuList>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(path) = &arguments.from {
        return show(arguments, &read_records(std::slice::from_ref(path))?);
    }
    if arguments.no_measurement {
        return show(arguments, &[]);
    }
    let mut runner = studies::runner(&arguments.common)?;
    let pin = arguments
        .common
        .pin
        .as_ref()
        .map(|list| list.0.clone())
        .unwrap_or_default();
    let receivers = arguments.receiver_pin.iter().flat_map(|list| &list.0);
    let receivers: Vec<String> = receivers.map(u32::to_string).collect();
    measure(&mut runner, &pin, &receivers.join(","))?;
    runner.finish();
    let shown = show(arguments, &runner.recorder.records)?;
    if runner.stop.is_set() {
        Ok(runner.recorder.exit_code(true))
    } else {
        Ok(shown)
    }
}

/// Measures the study's points.
pub(crate) fn measure(
    runner: &mut Runner,
    pin: &[u32],
    receiver_cpus: &str,
) -> Result<(), Failure> {
    let plan = study::plan(&Document::default(), receiver_cpus);
    runner.expect(plan.len());
    for workload in &plan {
        let settings = runner.settings(StepPlan::ByStage(1), STUDY, pin);
        runner.point("readout", workload, &settings, None)?;
    }
    Ok(())
}

fn show(arguments: &Arguments, records: &[RunRecord]) -> Result<ExitCode, Failure> {
    let study = studies::readout(records);
    let failed = study.has_contradiction()
        || records
            .iter()
            .any(|record| record.outcome.reason().is_some());
    show_one(study, records, arguments.common.json, None)?;
    Ok(if failed {
        ExitCode::from(FAILED)
    } else {
        ExitCode::SUCCESS
    })
}
