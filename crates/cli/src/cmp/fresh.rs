//! The new program in fresh invocations, for points that differ: a plan of them through its standard input, its records from its standard
//! output.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use daqmeter_campaign::ab::PATIENCE;
use daqmeter_harness::StopFlag;
use daqmeter_record::{Param, RunRecord, jsonl};
use daqmeter_report::cmp::{Afresh, Compared, Confirmation, How, confirm_afresh};
use daqmeter_stats::Asked;
use daqmeter_sys::process;

use crate::again::{Flagged, grouped};
use crate::output::tell;

/// Fresh invocations: what differs from one to the next is seen.
const RUNS: u64 = 5;
/// Time of a point in one invocation: at least, and at most.
const TIME_MS: (u64, u64) = (1, 10_000);
/// Repetitions in one invocation at most: it is one value, whatever their number.
const MAX_REPETITIONS: usize = 10;
/// An invocation that takes so many times as long as its timed steps hangs: preparation and limits are in it.
const SLOW: u32 = 20;
/// How often it is looked whether somebody asked to stop.
const LOOK: Duration = Duration::from_millis(20);
/// What an invocation may write at most.
const MAX_BYTES: u64 = 1 << 28;

/// What was compared.
#[derive(Clone, Copy)]
pub(super) struct Records<'a> {
    pub(super) a: &'a [RunRecord],
    pub(super) b: &'a [RunRecord],
    pub(super) history: &'a [RunRecord],
}

/// Measures the points that differ by themselves in fresh invocations of B's program.
pub(super) fn afresh(
    found: &Compared,
    program: &Path,
    flagged: &[Flagged],
    records: Records<'_>,
    asked: Asked,
    stop: &StopFlag,
) -> Vec<(usize, Confirmation)> {
    let differs = |point: &&Flagged| matches!(found.points[point.at].verdict, "slower" | "faster");
    let (own, others): (Vec<&Flagged>, Vec<&Flagged>) = flagged.iter().partition(differs);
    let together = |point: &&Flagged| {
        let why = "only all points together differ: give --old";
        (point.at, Confirmation::not_measured(How::FreshRuns, why))
    };
    let mut confirmations: Vec<(usize, Confirmation)> = others.iter().map(together).collect();
    if own.is_empty() {
        return confirmations;
    }
    let own: Vec<Flagged> = own.into_iter().cloned().collect();
    let places: Vec<usize> = own.iter().map(|point| point.at).collect();
    let Records { a, b, history } = records;
    match measured(program, &own, b, stop) {
        Ok(fresh) => {
            let fresh = &fresh;
            let records = Afresh { a, b, fresh, history };
            confirmations.extend(confirm_afresh(found, &places, records, asked));
        }
        Err(why) => confirmations.extend(
            places
                .into_iter()
                .map(|at| (at, Confirmation::not_measured(How::FreshRuns, why.clone()))),
        ),
    }
    confirmations
}

/// Records of all fresh invocations.
fn measured(
    program: &Path,
    flagged: &[Flagged],
    b: &[RunRecord],
    stop: &StopFlag,
) -> Result<Vec<RunRecord>, String> {
    let points = grouped(flagged);
    tell(&format!("daqmeter: measuring {} points again in {RUNS} fresh runs", points.len()));
    let (mut plan, mut time) = ("title = 'confirm'\n".to_owned(), Duration::ZERO);
    for point in points {
        let (repetitions, time_ms) = extent(point[0], b);
        plan.push_str(&sweep(point[0], repetitions, time_ms));
        let steps = repetitions as u64 * time_ms * stages(&point[0].record);
        time += Duration::from_millis(steps);
    }
    let patience = PATIENCE + time * SLOW;
    let mut records = Vec::new();
    for _ in 0..RUNS {
        records.extend(invocation(program, &plan, patience, stop)?);
    }
    Ok(records)
}

fn stages(record: &RunRecord) -> u64 {
    record.lanes.first().map_or(1, |lane| lane.stages.len()) as u64
}

/// Repetitions of a point in one invocation, and the time of each, as B has them.
fn extent(point: &Flagged, b: &[RunRecord]) -> (usize, u64) {
    let record = &point.record;
    let is_repetition = |other: &&RunRecord| {
        (&other.run_id, &other.study, &other.workload)
            == (&record.run_id, &record.study, &record.workload)
    };
    let repetitions = b.iter().filter(is_repetition).count();
    let stages = record.lanes.iter().flat_map(|lane| &lane.stages);
    let longest_ns = stages.map(|stage| stage.sample_ns.iter().sum::<u64>()).max();
    let time_ms = longest_ns.unwrap_or(0).div_ceil(1_000_000);
    (repetitions.clamp(1, MAX_REPETITIONS), time_ms.clamp(TIME_MS.0, TIME_MS.1))
}

/// A point as a sweep of a plan. Text of JSON is text of TOML.
fn sweep(point: &Flagged, repetitions: usize, time_ms: u64) -> String {
    let RunRecord { study, engine, workload, .. } = &point.record;
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let value = |value: &Param| match value {
        Param::Flag(flag) => flag.to_string(),
        Param::Int(whole) => whole.to_string(),
        Param::Float(number) => format!("{number:?}"),
        Param::Text(words) => text(words),
    };
    let mut out = format!(
        "[[sweep]]\nstudy = {}\nengine = {}\nrepetitions = {repetitions}\ntime = \"{time_ms}ms\"\n",
        text(study),
        text(&engine.name)
    );
    let cpus = point.cpus();
    if !cpus.is_empty() {
        let _ = writeln!(out, "pin = {cpus:?}");
    }
    out.push_str("[sweep.workload]\n");
    for (name, param) in &workload.params {
        let _ = writeln!(out, "{} = {}", text(name), value(param));
    }
    out
}

/// Ends a program and what it started, unless it has ended.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        process::kill_group(&self.0);
        // There is nothing to be done about one that cannot be waited for.
        let _ = self.0.wait();
    }
}

/// Runs the program once over this plan.
fn invocation(
    program: &Path,
    plan: &str,
    patience: Duration,
    stop: &StopFlag,
) -> Result<Vec<RunRecord>, String> {
    let wrong = |what: String| format!("{}: {what}", program.display());
    if stop.is_set() {
        return Err("interrupted".to_owned());
    }
    let began = Instant::now();
    let child = Command::new(program)
        .args(["run", "/dev/stdin", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = Ended(child.map_err(|error| wrong(format!("cannot be started: {error}")))?);
    if let Some(mut input) = child.0.stdin.take() {
        // One that reads nothing has nothing to say either, which is found below.
        let _ = input.write_all(plan.as_bytes());
    }
    let output = child.0.stdout.take().ok_or("no pipe")?;
    let output = std::thread::spawn(move || text_of(output));
    while !process::ends_within(&child.0, LOOK).map_err(|error| wrong(error.to_string()))? {
        if stop.is_set() {
            return Err("interrupted".to_owned());
        }
        if began.elapsed() > patience {
            return Err(wrong(format!(
                "did not end within {:.0} s and was ended",
                patience.as_secs_f64()
            )));
        }
    }
    let status = child.0.wait().map_err(|error| wrong(error.to_string()))?;
    let output = output.join().unwrap_or_default();
    let read =
        jsonl::read_printable(output.as_bytes()).map_err(|error| wrong(error.to_string()))?;
    match read.records.is_empty() {
        true => Err(wrong(format!("run measured nothing ({status})"))),
        false => Ok(read.records),
    }
}

fn text_of(output: ChildStdout) -> String {
    let mut bytes = Vec::new();
    // What was read until an error counts: records are checked line by line.
    let _ = output.take(MAX_BYTES).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use daqmeter_campaign::{Plan, Site};
    use daqmeter_record::{EngineInfo, Lane, Stage, Workload};

    use super::*;

    fn flagged(workload: Workload, cpu: Option<u32>) -> Flagged {
        let engine = EngineInfo { name: workload.kind.as_str().into(), ..EngineInfo::default() };
        let mut record = RunRecord::new(engine, workload);
        record.study = "a \"quoted\" \\ study".into();
        let stage = Stage { sample_ns: vec![1_500_000; 3], ..Stage::default() };
        record.lanes = vec![Lane { requested_cpu: cpu, stages: vec![stage], ..Lane::default() }];
        Flagged { at: 0, stage: "null".to_owned(), record }
    }

    /// The plan's own reader is the inverse.
    #[test]
    fn a_point_as_a_sweep_is_read_as_the_same_point() {
        let workload = Workload::new("memory")
            .with("read_bytes", 4096_u64)
            .with("read_lines", 1_u64)
            .with("write_lines", 1_u64);
        let point = flagged(workload.clone(), Some(0));
        let (repetitions, time_ms) = extent(&point, &vec![point.record.clone(); 3]);
        assert_eq!((repetitions, time_ms), (3, 5));
        let text = format!("title = 'confirm'\n{}", sweep(&point, repetitions, time_ms));
        let plan = Plan::parse_for(&text, "confirm", &Site::here()).unwrap();
        assert_eq!(plan.points.len(), 3);
        let read = &plan.points[0];
        assert_eq!(
            (&read.workload, read.study.as_str(), &read.pin),
            (&workload, point.record.study.as_str(), &vec![0])
        );
        let free = sweep(&flagged(Workload::new("null"), None), 1, 1);
        assert!(!free.contains("pin"), "{free}");
    }

    #[test]
    fn a_program_that_measures_nothing_is_named_and_none_is_started_after_a_signal() {
        let stop = StopFlag::default();
        let run = |program: &str, patience| {
            invocation(Path::new(program), "x", patience, &stop).unwrap_err()
        };
        let long = Duration::from_secs(60);
        assert!(run("true", long).contains("true: run measured nothing (exit status: 0)"));
        assert!(run("/nowhere/daqmeter", long).contains("cannot be started"));
        stop.set();
        assert_eq!(run("true", long), "interrupted");
    }
}
