//! `daqmeter readout reproduce`: the published study beside arithmetic, model and this host.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_harness::StepPlan;
use daqmeter_readout::study::{self, Published, REMARKS, Row, STUDY};
use daqmeter_record::{Comparison, RunRecord};
use daqmeter_report::table::comparisons;

use super::run::{check_pins, cpus};
use crate::arguments::cpu_list;
use crate::output::{Failure, emit, read_records};
use crate::run::{Common, CpuList, Runner};

/// Set the published study (Nikhef) beside arithmetic, a model, and what this host does.
///
/// Ends with 1 when a computed or simulated row is outside its band.
#[derive(Debug, Args)]
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
    let published = Published::default();
    if let Some(path) = &arguments.from {
        return show(arguments, &published, &read_records(std::slice::from_ref(path))?);
    }
    if arguments.no_measurement {
        return show(arguments, &published, &[]);
    }
    let mut runner = Runner::new(&arguments.common, 0)?;
    check_pins(arguments.receiver_pin.as_ref(), &runner)?;
    let pin = arguments.common.pin.as_ref().map(|list| list.0.clone()).unwrap_or_default();
    measure(&mut runner, &pin, &cpus(arguments.receiver_pin.as_ref()).unwrap_or_default())?;
    runner.finish();
    show(arguments, &published, &runner.recorder.records)
}

/// Measures the study's points.
pub(crate) fn measure(runner: &mut Runner, pin: &[u32], receiver_cpus: &str) -> Result<(), Failure> {
    let plan = study::plan(&Published::default(), receiver_cpus);
    runner.expect(plan.len());
    for workload in &plan {
        let settings = runner.settings(StepPlan::ByStage(1), STUDY, pin);
        runner.point("readout", workload, &settings, None)?;
    }
    Ok(())
}

fn show(arguments: &Arguments, published: &Published, records: &[RunRecord]) -> Result<ExitCode, Failure> {
    let rows = study::rows(published, records);
    let outside: Vec<&Row> = rows.iter().filter(|row| row.is_within() == Some(false)).collect();
    if !arguments.common.json {
        emit(&text(&rows, &outside))?;
    }
    let failed = records.iter().any(|record| record.outcome.reason().is_some());
    Ok(if outside.is_empty() && !failed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn text(rows: &[Row], outside: &[&Row]) -> String {
    let lines: Vec<Comparison> = rows
        .iter()
        .map(|row| {
            let mut line = row.line.clone();
            line.row = format!("{} [{}]", line.row, row.kind.name());
            line
        })
        .collect();
    let mut out = "FELIX read-out at Nikhef, 16 readers on one server, receivers on two hosts.\n\n".to_owned();
    out.push_str(&comparisons(&lines));
    let banded = rows.iter().filter(|row| row.is_within().is_some()).count();
    out.push_str(&format!("\n{} of {banded} rows with a band are within it\n", banded - outside.len()));
    for row in outside {
        out.push_str(&format!(
            "  outside: {}: {}: {:?}, band {:?}\n",
            row.line.table, row.line.row, row.line.model, row.band
        ));
    }
    out.push_str("\nWhat to know\n");
    for remark in REMARKS {
        out.push_str(&format!(" - {remark}\n"));
    }
    out
}
