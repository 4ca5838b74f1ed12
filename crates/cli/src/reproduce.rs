//! `daqmeter digitizer reproduce`: the source document's tables, row by row, beside model and measurement.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_digitizer::devices::emulated::Profile;
use daqmeter_digitizer::published::Published;
use daqmeter_digitizer::reproduce::{self, INCONSISTENCIES, Steps};
use daqmeter_harness::{Settings, StepPlan};
use daqmeter_report::table::comparisons;

use crate::digitizer::PROFILE_HZ;
use crate::output::{Failure, emit, read_records};
use crate::run::{Common, Runner};

/// Repeat the source document's study: published, our model, measured on emulated boards here, difference.
///
/// Read-out rows follow the document's crate, because the emulated boards are paced like it; conversion and CPU rows are
/// this host's own. Takes about a minute.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Compare records of an earlier run instead of measuring
    #[arg(long, value_name = "FILE.jsonl")]
    from: Option<std::path::PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let published = Published::default();
    if let Some(path) = &arguments.from {
        return emit(&text(&published, &read_records(std::slice::from_ref(path))?));
    }
    let pin = arguments.common.pin.as_ref().map(|list| list.0.clone()).unwrap_or_default();
    let mut runner = Runner::new(&arguments.common, 0)?;
    measure(&mut runner, &pin)?;
    runner.finish();
    if !arguments.common.json {
        emit(&text(&published, &runner.recorder.records))?;
    }
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

/// Measures the study's points.
pub(crate) fn measure(runner: &mut Runner, pin: &[u32]) -> Result<(), Failure> {
    let plan = reproduce::plan(&Published::default());
    runner.expect(plan.len());
    for point in plan {
        let steps = match point.steps {
            Steps::Reads(reads) => StepPlan::ByStage(reads),
            Steps::Passes(passes) => StepPlan::ByPass(passes),
            Steps::Timed => StepPlan::Timed(Duration::from_millis(300)),
        };
        let settings = runner.settings(steps, &point.study, pin);
        let settings = Settings { profile_hz: point.profile.then_some(PROFILE_HZ), ..settings };
        runner.point(point.engine, &point.workload, &settings, None)?;
    }
    Ok(())
}

fn text(published: &Published, records: &[daqmeter_record::RunRecord]) -> String {
    let profile = Profile::default();
    let mut out = String::new();
    let _ = writeln!(out, "Performance measurements with SIS8300 boards (ESS, 2017), repeated.");
    let _ = writeln!(
        out,
        "Read-out: emulated boards paced by profile {}. Conversion and CPU: this host's own.\n",
        profile.name
    );
    let lines = reproduce::tables(published, &profile, records);
    out.push_str(&comparisons(&lines));
    out.push('\n');
    out.push_str(&comparisons(&reproduce::cpu(published, &profile, records)));
    let _ = writeln!(out, "\nFindings of the document");
    for finding in reproduce::findings(published, &profile, records) {
        let _ = writeln!(out, " {:<9}  {}\n            {}", finding.verdict.name(), finding.claim, finding.evidence);
    }
    let _ = writeln!(out, "\nInconsistencies in the document (not targets)");
    for inconsistency in INCONSISTENCIES {
        let _ = writeln!(out, " - {inconsistency}");
    }
    out
}
