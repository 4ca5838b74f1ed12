//! `daqmeter digitizer reproduce`: the source document's tables, row by row, beside model and measurement.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_digitizer::published::Document;
use daqmeter_digitizer::reproduce::{self, Steps};
use daqmeter_harness::{Settings, StepPlan};

use crate::digitizer::PROFILE_HZ;
use crate::output::{Failure, read_records};
use crate::runner::{Common, Runner};
use crate::studies::{self, show_one};

/// Repeat the source document's study: published and where, our model, measured on emulated boards here, difference.
///
/// Read-out rows follow the document's crate, because the emulated boards are paced like it; conversion and CPU rows are
/// this host's own. Takes about a minute.
#[derive(Debug, Args)]
#[command(mut_arg("json", studies::json_help))]
pub(crate) struct Arguments {
    /// Compare records of an earlier run instead of measuring
    #[arg(long, value_name = "FILE.jsonl")]
    from: Option<std::path::PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let json = arguments.common.json;
    if let Some(path) = &arguments.from {
        let records = read_records(std::slice::from_ref(path))?;
        show_one(studies::digitizer(&records), &records, json, None)?;
        return Ok(ExitCode::SUCCESS);
    }
    let pin = arguments
        .common
        .pin
        .as_ref()
        .map(|list| list.0.clone())
        .unwrap_or_default();
    let mut runner = studies::runner(&arguments.common)?;
    measure(&mut runner, &pin)?;
    runner.finish();
    let records = &runner.recorder.records;
    show_one(studies::digitizer(records), records, json, None)?;
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

/// Measures the study's points.
pub(crate) fn measure(runner: &mut Runner, pin: &[u32]) -> Result<(), Failure> {
    let plan = reproduce::plan(&Document::default());
    runner.expect(plan.len());
    for point in plan {
        let steps = match point.steps {
            Steps::Reads(reads) => StepPlan::ByStage(reads),
            Steps::Passes(passes) => StepPlan::ByPass(passes),
            Steps::Timed => StepPlan::Timed(Duration::from_millis(300)),
        };
        let settings = runner.settings(steps, &point.study, pin);
        let settings = Settings {
            profile_hz: point.profile.then_some(PROFILE_HZ),
            ..settings
        };
        runner.point(point.engine, &point.workload, &settings, None)?;
    }
    Ok(())
}
