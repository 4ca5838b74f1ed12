//! `daqmeter pmu verify`: counters against loads whose bytes are known.

use std::time::Duration;

use clap::Args;
use daqmeter_campaign::Runner;
use daqmeter_pmu::verify::{CounterCheck, CounterVerdict, VerifyRequest, checked};
use daqmeter_record::units::significant;
use daqmeter_record::{Outcome, RunRecord};
use daqmeter_report::Frame;
use daqmeter_report::pmu::tables::grouped;
use daqmeter_report::table::numbers_from;

use super::chosen::Place;
use crate::context::context;
use crate::interrupt;
use crate::output::Ended;
use crate::progress::Forecast;
use crate::recorder::{Recorder, Recording};

/// Count while a known load runs, and compare bytes: PASS or FAIL, with the ratio.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/pmu-verify.txt"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    request: VerifyRequest,
    #[command(flatten)]
    recording: Recording,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let host = Place::default().host()?;
    let mut recorder = Recorder::new(&arguments.recording)?;
    let loads = u32::try_from(arguments.request.loads.len()).unwrap_or(u32::MAX);
    let time = (arguments.request.time + arguments.request.settle).saturating_mul(loads);
    recorder.expect(Forecast::points(0, Some(time)));
    let stop = interrupt::flag();
    let context = context(arguments.recording.label.as_deref());
    let checked = checked(&arguments.request, &host.resolver(), &context, &stop.0);
    let (checks, record) = checked?;
    recorder.take(record)?;
    recorder.finish(|_| frame(&checks))
}

/// Returns the checks of a survey as a record: short loads, a small file in the present directory.
pub(crate) fn survey(time: Duration, Runner { context, stop, .. }: &Runner) -> Option<RunRecord> {
    let (host, request) = (Place::default().host().ok()?, VerifyRequest::survey(time));
    let (_, mut record) = checked(&request, &host.resolver(), context, &stop.0).ok()?;
    record.study = "survey/counters".into();
    // A different counter is reported, and fails no survey, since others may use the disk.
    if let Outcome::Failed(reason) = std::mem::take(&mut record.outcome) {
        record.warnings.push(format!("FAILED: {reason} (daqmeter pmu verify)"));
    }
    Some(record)
}

fn frame(checks: &[CounterCheck]) -> Frame {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = checks.iter().map(|check| {
        let (verdict, note) = match &check.verdict {
            CounterVerdict::Pass => ("PASS", &check.how),
            CounterVerdict::Fail => ("FAIL", &check.how),
            CounterVerdict::Waived(reason) => ("waived", reason),
        };
        let payload = or_dash((check.payload > 0).then(|| grouped(check.payload as f64)));
        let counted = or_dash(check.counted.map(grouped));
        let ratio = or_dash(check.ratio().map(|ratio| significant(ratio, 7)));
        let texts = [check.load, &check.counter, note, &payload, &counted, &ratio, verdict];
        texts.map(str::to_owned).to_vec()
    });
    let headings = ["load", "counter", "how", "payload [B]", "counted [B]", "ratio", "verdict"];
    let tables = numbers_from(3, &headings, rows);
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let [right, wrong] = [CounterVerdict::Pass, CounterVerdict::Fail].map(count);
    let waived = checks.len() - right - wrong;
    let answer = format!("counters: {right} right, {wrong} wrong, {waived} not tested here");
    Frame { answer: vec![answer], tables, ..Frame::default() }
}
