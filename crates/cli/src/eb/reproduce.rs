//! `daqmeter eb reproduce`: the study of 2018 beside its model and its emulated bridges.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_etherbone::reproduce::{self, Published, REMARKS, STUDY};
use daqmeter_harness::{StepPlan, ordered};
use daqmeter_record::RunRecord;
use daqmeter_report::page;
use daqmeter_report::table::comparisons;

use crate::output::{Failure, emit, read_records, tell, write_file};
use crate::run::{Common, Runner};

/// Set the study of 2018 (GSI) beside our model of its bridges and what emulating them gives here.
///
/// The emulated bridges take the time that their profiles say; the client's own costs come on top.
#[derive(Debug, Args)]
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
    let published = Published::default();
    if let Some(path) = &arguments.from {
        let records = read_records(std::slice::from_ref(path))?;
        write_page(arguments, &records)?;
        return emit(&text(&published, &records));
    }
    let pin = arguments.common.pin.as_ref().map(|list| list.0.clone()).unwrap_or_default();
    let mut runner = Runner::new(&arguments.common, 0)?;
    measure(&mut runner, &pin)?;
    runner.finish();
    let records = &runner.recorder.records;
    if !arguments.common.json {
        emit(&text(&published, records))?;
    }
    write_page(arguments, records)?;
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

/// Measures the study's points.
pub(crate) fn measure(runner: &mut Runner, pin: &[u32]) -> Result<(), Failure> {
    let plan = reproduce::plan(&Published::default());
    runner.expect(plan.len());
    for (order, point) in ordered(plan, 1) {
        let settings = runner.settings(StepPlan::ByStage(point.cycles), STUDY, pin);
        runner.point("etherbone", &point.workload, &settings, Some(order))?;
    }
    Ok(())
}

fn write_page(arguments: &Arguments, records: &[RunRecord]) -> Result<(), Failure> {
    if let Some(path) = &arguments.output {
        write_file(path, &page(records).map_err(Failure::refused)?)?;
        tell(&format!("wrote {}", path.display()));
    }
    Ok(())
}

fn text(published: &Published, records: &[RunRecord]) -> String {
    let mut out = "Etherbone Performance Measurements (GSI, 2018), repeated on emulated bridges.\n\n".to_owned();
    out.push_str(&comparisons(&reproduce::compare(published, records)));
    out.push_str("\nWhat to know\n");
    for remark in REMARKS {
        out.push_str(&format!(" - {remark}\n"));
    }
    out
}
