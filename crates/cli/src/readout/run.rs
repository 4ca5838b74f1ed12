//! `daqmeter readout run`: a path from a card to receivers with its own defaults, as one record.

use std::process::ExitCode;

use clap::Args;
use daqmeter_harness::{Request, StepPlan};
use daqmeter_readout::{ReadoutRequest, accounts, live};
use daqmeter_record::{Ledger, Outcome, RunRecord};
use daqmeter_report::felix::{chains_text, details_text};
use daqmeter_report::paths;

use super::emulate::show_progress;
use super::options::{WrittenTriggers, completed};
use super::verdict::{Found, Judgement, Measure, OfRun};
use crate::named::Replaced;
use crate::output::{Failure, tell};
use crate::runner::{Common, Runner};

/// Run emulated card, readers and receivers in this process.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    request: ReadoutRequest,
    /// Page to write
    #[arg(short, long, value_name = "FILE.html", help_heading = "Output")]
    output: Option<Replaced>,
    #[command(flatten)]
    triggers: WrittenTriggers,
    #[command(flatten)]
    limits: OfRun,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let request = ReadoutRequest {
        chosen: completed(&arguments.request.chosen)?,
        ..arguments.request.clone()
    };
    let written = arguments.triggers.wanted(&request.chosen)?;
    let mut runner = Runner::new(&arguments.common, 1)?;
    if let Some(page) = runner.metrics() {
        page.ask(|page| {
            live::each_card(|name, card| show_progress(card, &format!("card {name}"), page))
        });
    }
    let pin = arguments.common.pin.as_ref().map(|list| list.0.clone()).unwrap_or_default();
    let settings = runner.settings(StepPlan::ByStage(1), "readout/run", &pin);
    runner.point("readout", &request.workload(), &settings, None)?;
    runner.finish();
    let verdict = found(&runner.recorder.records).verdict(&arguments.limits.fail_on);
    if arguments.common.json {
        // Stdout is for records.
        tell(&verdict.to_string());
    }
    let code = runner.conclude(arguments.output.as_ref(), |records| {
        let (chains, details) = (chains_text(records), details_text(records));
        let threads = paths::threads_text(records);
        format!("{chains}{details}{threads} {verdict}\n")
    })?;
    if let Some(scenario) = &written {
        let triggers = issued(&runner.recorder.records);
        arguments.triggers.write(scenario, triggers)?;
    }
    match verdict.judgement() {
        Judgement::Passed => Ok(code),
        _ if runner.stop.is_set() => Ok(code),
        judgement => Ok(judgement.exit(false)),
    }
}

/// Triggers of the run.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
fn issued(records: &[RunRecord]) -> u64 {
    let counted = records.iter().filter_map(|record| record.counter("triggers"));
    counted.fold(0.0, f64::max) as u64
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
    if issued > 0 && ledgers().all(|ledger| ledger.delivered == 0) {
        found.fails("no event was delivered");
    }
    found.value(Measure::Loss, ledgers().map(Ledger::lost_on_the_way).sum(), issued);
    let flagged = ledgers().filter_map(|ledger| ledger.losses.get(accounts::FLAGGED));
    found.value(Measure::Flags, flagged.sum(), issued);
    let dead = records.iter().filter_map(|record| record.counter("dead-time")).fold(0.0, f64::max);
    found.share(Measure::Dead, dead);
    found
}
