//! `daqmeter readout reproduce`: the published study beside arithmetic, model and this host.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_campaign::studies::{Wanted, study};
use daqmeter_record::RunRecord;

use super::run::{check_pins, cpus};
use crate::arguments::cpu_list;
use crate::output::{FAILED, Failure, read_records};
use crate::run::{Common, CpuList, Runner};
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
    check_pins(arguments.receiver_pin.as_ref(), &runner)?;
    let pin = arguments
        .common
        .pin
        .as_ref()
        .map(|list| list.0.clone())
        .unwrap_or_default();
    measure(
        &mut runner,
        &pin,
        &cpus(arguments.receiver_pin.as_ref()).unwrap_or_default(),
    )?;
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
    let study = study("readout").expect("a study of the list");
    let points = study.points(&Wanted {
        receiver_cpus: Some(receiver_cpus).filter(|cpus| !cpus.is_empty()),
        ..Wanted::default()
    });
    runner.expect(points.len());
    for point in points {
        let settings = runner.settings(point.steps, &point.study, pin);
        runner.point(&point.engine, &point.workload, &settings, Some(point.place))?;
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
