//! `daqmeter run`: the points of a plan, one after the other; and the text of `daqmeter list PLAN`
//! about them.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use daqmeter_campaign::{Budget, Done, Plan, PlannedPoint, SHIPPED_PLANS, Site, engine};
use daqmeter_harness::StepPlan;
use daqmeter_record::groups::in_groups;
use daqmeter_record::units::plural;
use daqmeter_record::{RunRecord, sanitise};
use daqmeter_report::table;

use crate::arguments::budget;
use crate::measure::{Bench, Common};
use crate::output::{Ended, Failure, RowWriter, read_file, row_writer, tell};

/// Measure the points of a plan.
///
/// A plan is a TOML file or the name of a shipped plan (daqmeter list plans). Each record is
/// written at once. After an interruption, --resume measures the missing points.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/run.txt"))]
pub(crate) struct Arguments {
    /// Plan: a file, or the name of a shipped plan
    plan: String,
    /// Skip points that --records already holds, of this host and this build
    #[arg(long)]
    resume: bool,
    /// Time for all points, instead of the plan's: with fewer repetitions, or shorter ones
    #[arg(long, value_name = "TIME", value_parser = budget)]
    time: Option<Duration>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let common = &arguments.common;
    let site = Site { pin: common.pin.clone().map(|list| list.0), ..Site::here() };
    let plan = Plan::load_for(&arguments.plan, &site)?;
    let mut bench = Bench::new(common)?;
    // No other run writes the file from now on.
    let known = known(arguments)?;
    let budget = Budget { time: arguments.time.or(plan.budget.time), ..plan.budget };
    let done =
        bench.runner.run(plan.points, budget, &known, |event| bench.recorder.follow(event))?;
    let code = bench.recorder.finish(table::stages)?;
    if !done.is_complete() {
        tell(&unfinished(arguments, &done, bench.runner.stop.is_set()));
    }
    refuse_refused(&done)?;
    Ok(code)
}

fn known(arguments: &Arguments) -> Result<Vec<RunRecord>, Failure> {
    match (arguments.common.recording.file()?, arguments.resume) {
        (Some(out), true) if out.is_file() => read_file(&out),
        (None, true) => Err(Failure::refused(
            "--resume looks for measured points in a file: name it with --records",
        )),
        _ => Ok(Vec::new()),
    }
}

fn unfinished(arguments: &Arguments, done: &Done, is_stopped: bool) -> String {
    let Done { begun, different, left_out, .. } = *done;
    let points = plural(done.points as u64, "point");
    let which = match left_out {
        0 if is_stopped => String::new(),
        0 => format!(", each of the {different} different ones, with fewer repetitions"),
        _ => format!(", {left_out} of {different} different ones left out"),
    };
    let records = arguments.common.recording.file().ok().flatten();
    let records = records.as_deref().unwrap_or(Path::new("FILE.jsonl")).to_string_lossy();
    let [plan, records] = [arguments.plan.as_str(), &records].map(sanitise::shell_word);
    format!(
        "daqmeter: {begun} of {points} measured{which}; to continue: daqmeter run {plan} --records {records} --resume"
    )
}

pub(crate) fn refuse_refused(done: &Done) -> Result<(), Failure> {
    let (refused, points) = (done.refused, plural(done.points as u64, "point"));
    match refused {
        0 => Ok(()),
        _ => Err(Failure::refused(format!("{refused} of {points} could not be measured"))),
    }
}

/// Lists every point of the plan with its prospect. Engines say if they are available and
/// understand the workload; nothing is opened for use.
pub(crate) fn points(plan: &Plan, is_json: bool) -> String {
    let key =
        |point: &PlannedPoint| (point.study.clone(), point.engine.clone(), point.workload.key());
    let different = in_groups(plan.points.iter().map(|point| (key(point), point)));
    let mut rows = different.iter().map(|(_, same)| {
        let (point, times) = (same[0], same.len().to_string());
        let PlannedPoint { study, engine, workload, source, .. } = point;
        let whole = workload.to_string();
        let parameters = whole.strip_prefix(engine).unwrap_or(&whole).trim_start();
        let refused = |why: Failure| format!("refused: {source}: {}", why.line);
        let (steps, state) = (steps(point.steps), state(point).unwrap_or_else(refused));
        [study, engine, parameters, &steps, &times, &state].map(str::to_owned).to_vec()
    });
    let headings = ["study", "engine", "parameters", "steps", "times", "state"];
    let rows = row_writer(is_json)(&headings, &mut rows);
    if is_json {
        return rows;
    }
    format!(
        "{}{}\n{rows}\n{}, {} of them different{}\n",
        table::paragraphs(&sanitise::text(&plan.title)),
        table::paragraphs(&plan.about),
        plural(plan.points.len() as u64, "point"),
        different.len(),
        plan.budget.time.map_or(String::new(), |time| format!("; {} s for all", time.as_secs()))
    )
}

fn state(point: &PlannedPoint) -> Result<String, Failure> {
    let job = engine(&point.engine)?.parse(&point.workload)?;
    if job.waiver.is_none() {
        job.open()?;
    }
    Ok(prospect(job.waiver))
}

pub(crate) fn prospect(waiver: Option<String>) -> String {
    waiver.map_or_else(|| "ready".to_owned(), |reason| format!("waived: {reason}"))
}

fn steps(steps: StepPlan) -> String {
    match steps {
        StepPlan::Timed(time) => format!("{} ms", time.as_millis()),
        StepPlan::ByStage(count) => plural(count, "read"),
        StepPlan::ByPass(count) => plural(count, "pass"),
    }
}

pub(crate) fn shipped(write: RowWriter) -> String {
    let row = |name: &str| match Plan::load(name) {
        Ok(plan) => vec![name.to_owned(), plan.points.len().to_string(), plan.title],
        Err(why) => vec![name.to_owned(), "-".to_owned(), format!("refused: {why}")],
    };
    write(&["plan", "points", "title"], &mut SHIPPED_PLANS.names().into_iter().map(row))
}
