//! `daqmeter run`: the points of a plan, one after the other; and what `daqmeter list PLAN` says of them beforehand.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_campaign::{Plan, PlannedPoint, engines, left_to_measure};
use daqmeter_harness::{Availability, Limits, Refusal, Settings, StepPlan};
use daqmeter_record::{RunRecord, sanitise};
use daqmeter_report::points::middle_runs;
use daqmeter_report::table;

use crate::arguments::duration;
use crate::output::{Failure, emit, read_file, tell};
use crate::run::{Common, Runner};

/// Time for each way to reach a limit.
const LIMIT_TIME: Duration = Duration::from_millis(40);

/// Measure the points of a plan.
///
/// A plan is a TOML file, or the name of one that ships with daqmeter (daqmeter list plans). Every record is written as it is
/// measured; after an interruption --resume goes on with what is missing.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter list plans\n  $ daqmeter list my-sweep.toml                  what would be measured, and what waived\n  $ daqmeter run my-sweep.toml --out lab7.jsonl\n  $ daqmeter run my-sweep.toml --out lab7.jsonl --resume\n  $ daqmeter report lab7.jsonl"
)]
pub(crate) struct Arguments {
    /// Plan: a file, or a shipped plan's name
    #[arg(value_name = "PLAN")]
    plan: String,
    /// Pass over points that --out holds already, measured here by this build
    #[arg(long)]
    resume: bool,
    /// Begin no further point after this time, whatever the plan says
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget: Option<Duration>,
    /// Print the points and what would be waived; measure nothing
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let began = Instant::now();
    let plan = Plan::load(&arguments.plan).map_err(Failure::refused)?;
    if arguments.list {
        return emit(&points(&plan));
    }
    let mut runner = Runner::new(&arguments.common, plan.points.len())?;
    // Repetitions and points of one footprint have a limit in common; it is measured once.
    runner.limits = Limits::shared(LIMIT_TIME);
    let known = match (&arguments.common.out, arguments.resume) {
        (Some(out), true) if out.is_file() => read_file(out)?.records,
        (None, true) => {
            return Err(Failure::refused(
                "--resume looks for measured points in a file: name it with --out",
            ));
        }
        _ => Vec::new(),
    };
    let all = plan.points.len();
    let points = left_to_measure(
        plan.points,
        &known,
        &runner.context.host,
        &runner.context.tool,
    );
    if points.len() < all {
        tell(&format!(
            "daqmeter: {} of {all} points are in the file already",
            all - points.len()
        ));
    }
    runner.expect(points.len());
    let budget = arguments.budget.or(plan.budget);
    let (of, mut done, mut refused) = (points.len(), 0, 0);
    for point in points {
        if runner.stop.is_set() || budget.is_some_and(|budget| began.elapsed() > budget) {
            break;
        }
        done += 1;
        let name = format!("{}: {}", point.source, point.workload);
        match measured(&mut runner, point, &arguments.common) {
            Ok(record) => runner.keep(record)?,
            // The other points are worth having all the same.
            Err(refusal) => {
                refused += 1;
                tell(&format!("daqmeter: {name}: {refusal}"));
            }
        }
    }
    runner.finish();
    if !arguments.common.json {
        let (shown, runs) = middle_runs(&runner.recorder.records);
        emit(&table::text(&shown))?;
        if runs > 1 {
            emit(&format!(
                " of {runs} runs of a point the middle one stands here; daqmeter cmp and history look at all\n"
            ))?;
        }
    }
    if done < of {
        let go_on = match &arguments.common.out {
            Some(out) => format!(
                "daqmeter run {} --out {} --resume goes on",
                arguments.plan,
                out.display()
            ),
            None => "with --out FILE it could be gone on with".to_owned(),
        };
        tell(&format!(
            "daqmeter: {done} of {of} points were measured; {go_on}"
        ));
    }
    if refused > 0 {
        return Err(Failure::refused(format!(
            "{refused} of {of} points could not be measured"
        )));
    }
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

fn measured(
    runner: &mut Runner,
    point: PlannedPoint,
    common: &Common,
) -> Result<RunRecord, Refusal> {
    let pin = common.pin.as_ref().map_or(point.pin, |list| list.0.clone());
    let settings = Settings {
        profile_hz: point.profile_hz,
        waive: true,
        ..runner.settings(point.steps, &point.study, &pin)
    };
    runner.measured(&point.engine, &point.workload, &settings, Some(point.place))
}

/// Every point of the plan with what would become of it. Engines are asked whether they are there and whether they understand the
/// workload; nothing is opened for use.
pub(crate) fn points(plan: &Plan) -> String {
    let engines = engines(0);
    let mut out = format!("{}\n{}\n\n", sanitise::text(&plan.title), plan.about);
    let mut seen: Vec<(&PlannedPoint, u64)> = Vec::new();
    let mut places: HashMap<(&str, &str, String), usize> = HashMap::new();
    for point in &plan.points {
        let place = *places
            .entry((&point.study, &point.engine, point.workload.key()))
            .or_insert(seen.len());
        match seen.get_mut(place) {
            Some((_, times)) => *times += 1,
            None => seen.push((point, 1)),
        }
    }
    let mut time = Duration::ZERO;
    let rows: Vec<Vec<String>> = seen
        .iter()
        .map(|(point, times)| {
            if let StepPlan::Timed(each) = point.steps {
                time += each * u32::try_from(*times).unwrap_or(u32::MAX);
            }
            let engine = engines.iter().find(|engine| engine.name() == point.engine);
            let state = match engine.map(|engine| (engine.probe_for(&point.workload), engine)) {
                Some((Availability::Waived(why), _)) => format!("waived: {why}"),
                Some((Availability::Ready, engine)) => match engine.open(&point.workload) {
                    Ok(_) => "ready".to_owned(),
                    Err(fault) => format!("refused: {}: {fault}", point.source),
                },
                None => "no such engine".to_owned(),
            };
            let parameters = point.workload.to_string();
            let parameters = parameters
                .strip_prefix(&point.engine)
                .unwrap_or(&parameters)
                .trim_start()
                .to_owned();
            vec![
                point.study.clone(),
                point.engine.clone(),
                parameters,
                steps(point.steps),
                times.to_string(),
                state,
            ]
        })
        .collect();
    let count = rows.len();
    out.push_str(&table::plain(
        &["study", "engine", "parameters", "steps", "times", "state"],
        rows,
    ));
    let budget = plan.budget.map_or(String::new(), |budget| {
        format!("; none is begun after {} s", budget.as_secs())
    });
    out.push_str(&format!(
        "\n{} points, {count} of them different; timed points take {:.1} s in all, without limits and verification{budget}\n",
        plan.points.len(),
        time.as_secs_f64()
    ));
    out
}

fn steps(steps: StepPlan) -> String {
    match steps {
        StepPlan::Timed(time) => format!("{} ms", time.as_millis()),
        StepPlan::ByStage(count) => format!("{count} reads"),
        StepPlan::ByPass(count) => format!("{count} passes"),
    }
}

/// The shipped plans.
pub(crate) fn shipped() -> String {
    let row = |(name, _): &(&str, &str)| {
        let plan = Plan::load(name).expect("shipped plans are tested");
        vec![
            (*name).to_owned(),
            plan.points.len().to_string(),
            plan.title,
        ]
    };
    table::plain(
        &["plan", "points", "what it is"],
        daqmeter_campaign::SHIPPED.iter().map(row),
    )
}

/// Whether that is how a plan is named, and not a word of `list`.
pub(crate) fn is_named(text: &str) -> bool {
    daqmeter_campaign::SHIPPED
        .iter()
        .any(|(name, _)| *name == text)
        || text.contains('.')
        || PathBuf::from(text).is_file()
}
