//! `daqmeter eb reproduce`: the study of 2018 beside its model and its emulated bridges.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_campaign::studies::{Wanted, study};

use crate::output::{Failure, read_records};
use crate::run::{Common, Runner};
use crate::studies::{self, show_one};

/// Set the study of 2018 (GSI) beside our model of its bridges and what emulating them gives here.
///
/// The emulated bridges take the time that their profiles say; the client's own costs come on top.
#[derive(Debug, Args)]
#[command(mut_arg("json", studies::json_help))]
pub(crate) struct Arguments {
    /// Compare records of an earlier run instead of measuring
    #[arg(long, value_name = "FILE.jsonl")]
    from: Option<PathBuf>,
    /// Page to write, with the study's four figures
    #[arg(short, long, value_name = "FILE.html", help_heading = "Output")]
    output: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (json, page) = (arguments.common.json, arguments.output.as_deref());
    if let Some(path) = &arguments.from {
        let records = read_records(std::slice::from_ref(path))?;
        show_one(studies::etherbone(&records), &records, json, page)?;
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
    show_one(studies::etherbone(records), records, json, page)?;
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

/// Measures the study's points.
pub(crate) fn measure(runner: &mut Runner, pin: &[u32]) -> Result<(), Failure> {
    let study = study("etherbone").expect("a study of the list");
    let points = study.points(&Wanted::default());
    runner.expect(points.len());
    for point in points {
        let settings = runner.settings(point.steps, &point.study, pin);
        runner.point(&point.engine, &point.workload, &settings, Some(point.place))?;
    }
    Ok(())
}
