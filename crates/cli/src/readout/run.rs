//! `daqmeter readout run`: a path from a card to receivers with its own defaults, as one record.

use std::process::ExitCode;

use clap::Args;
use daqmeter_harness::{Fault, StepPlan};
use daqmeter_path::ReadoutRequest;
use daqmeter_record::units::whole;
use daqmeter_record::{Outcome, RunRecord};
use daqmeter_report::felix::{asserted_by, read_out};
use daqmeter_report::paths;

use super::options::completed;
use crate::measure::{Bench, Common};
use crate::output::{Ended, tell};
use crate::verdict::{Findings, Limits, Measure};

/// Run emulated card, readers and receivers in this process.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    request: ReadoutRequest,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let chosen = completed(&arguments.request.chosen)?;
    let request = ReadoutRequest { chosen, ..arguments.request.clone() };
    let mut bench = Bench::new(&arguments.common)?;
    let pins = arguments.common.pins();
    let settings = bench.runner.settings(StepPlan::ByStage(1), "readout/run", &pins);
    bench.measure(&request, &settings, None)?;
    let mut findings = findings(&bench.recorder.records);
    let is_idle = request.chosen.rate_hz == Some(0.0);
    if is_idle {
        findings.missing.clear();
    }
    let verdict = findings.verdict(&arguments.limits);
    if arguments.common.recording.json {
        // Stdout is for records.
        tell(&verdict.to_string());
    }
    let code = bench.recorder.finish(|records| {
        let mut frame = read_out(records);
        frame.answer.insert(0, verdict.to_string());
        frame.tables += &paths::threads_text(records);
        frame.answer.extend(
            is_idle.then(|| "no trigger was requested: the readers only polled".to_owned()),
        );
        frame
    })?;
    Ok(if code == ExitCode::SUCCESS { verdict.judgement().code() } else { code })
}

fn findings(records: &[RunRecord]) -> Findings {
    let ledgers = records.iter().flat_map(|record| &record.ledgers);
    let mut findings = Findings::of_ledgers(ledgers, 0);
    let interrupted = Fault::interrupted().0;
    let failed = records.iter().filter_map(|record| match &record.outcome {
        Outcome::Failed(why) => Some(why.clone()).filter(|why| !why.contains(&interrupted)),
        _ => None,
    });
    findings.faults.splice(0..0, failed);
    let dead = records.iter().filter_map(|record| record.counter("dead-time")).fold(0.0, f64::max);
    findings.dead_by = records.iter().map(|record| asserted_by(&record.counters)).collect();
    const ALL: u64 = 1_000_000_000;
    findings.values.push((Measure::Dead, whole((dead.clamp(0.0, 1.0) * ALL as f64).round()), ALL));
    findings
}
