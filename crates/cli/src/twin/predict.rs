//! `daqmeter twin predict`: a path on a host that was calibrated, also with other threads, blocks or rates than its file says.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use daqmeter_campaign::predicted::{record_of, shape_of};
use daqmeter_campaign::whatif::sweep_values;
use daqmeter_harness::text_file_up_to;
use daqmeter_path::PathRequest;
use daqmeter_record::prediction::{CONFIDENCE, PartPrediction, Predicted, Prediction};
use daqmeter_record::shape::PathShape;
use daqmeter_record::units::{show_mb_per_s, show_ns, significant};
use daqmeter_record::{RunRecord, sanitise};
use daqmeter_report::page;
use daqmeter_report::table::{numbers_from, wrapped};
use daqmeter_twin::{Profile, predict};

use crate::arguments::{CpuList, cpu_list};
use crate::named::{Appended, Replaced};
use crate::output::{Failure, Recorder, emit, tell, write_file};
use crate::path::run::loaded;
use crate::runner::{context, tool};

/// Predict a path on a host that was calibrated: largest rate and what limits it, CPUs, queues, latency and loss. Nothing is measured.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Each number stands with an interval that holds the measured one with 90 %, for paths like those that the calibration held back,\n\
while the host is as it was then. What was not calibrated is refused: devices, programs, kinds of work and sizes that the profile\n\
does not have.\n\nExample:\n\n  $ daqmeter twin calibrate\n  $ daqmeter twin predict pattern --set stage.1.threads=2\n  $ daqmeter twin predict pattern --sweep rate=100MB/s..900MB/s/9\n\n\
Beside what is measured later:\n\n  $ daqmeter twin predict pattern --records both.jsonl\n  $ daqmeter path run pattern --records both.jsonl\n  $ daqmeter report both.jsonl"
)]
pub(crate) struct Arguments {
    /// Path: one that ships, or a TOML file
    #[arg(value_name = "PATH")]
    path: String,
    /// Profile of the host [default: that of this host in host-profile.json]
    #[arg(long, value_name = "FILE.json")]
    host: Option<PathBuf>,
    /// CPUs that the path may use, instead of those that the profile was measured on
    #[arg(long, value_name = "CPUS", value_parser = cpu_list)]
    cpus: Option<CpuList>,
    /// Set a field of the path's file: buffers=4, rate=500MB/s, stage.1.threads=2
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
    /// Predict for each of these values: block=4KiB,64KiB or rate=100MB/s..900MB/s/9
    #[arg(long, value_name = "FIELD=VALUES")]
    sweep: Option<String>,
    /// Seed of the simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print a JSON line for each prediction instead of tables
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Append a record of each prediction to this file (JSON lines): daqmeter report shows it beside runs of the same path
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Output")]
    records: Option<Appended>,
    /// Write a page with the predictions, too
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    html: Option<Replaced>,
}

/// Time of a run as asked in the record of a prediction, which it does not depend on: the usual one of `path run`.
const RUN_S: f64 = 3.0;

/// Longest profile: a thousand held-back runs are below a megabyte.
const MAX_PROFILE_BYTES: u64 = 16 << 20;

/// A path that is predicted.
struct Point {
    /// The value of the sweep.
    value: Option<String>,
    path: daqmeter_path::Path,
    request: PathRequest,
    shape: PathShape,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let usual = PathBuf::from(super::PROFILE);
    let profile = read_profile(arguments.host.as_ref().unwrap_or(&usual))?;
    let notes = host_notes(&profile, arguments.host.as_ref())?;
    let profile = match &arguments.cpus {
        Some(cpus) => profile.on(&cpus.0),
        None => profile,
    };
    let points = points(arguments)?;
    let predictions = predictions(&points, &profile, arguments.seed)?;
    write_records(arguments, &points, &predictions, &profile)?;
    let all = points.iter().zip(&predictions);
    if arguments.json {
        let lines: Vec<String> = all.map(|(point, found)| json(point, found)).collect();
        return emit(&lines.concat());
    }
    let mut text = match &arguments.sweep {
        None => all.map(|(point, found)| one(point, found)).collect(),
        Some(sweep) => table(sweep, &points, &predictions),
    };
    text.push_str(&foot(&profile, notes));
    emit(&text)
}

/// The records and the page that are asked for.
fn write_records(
    arguments: &Arguments,
    points: &[Point],
    predictions: &[Prediction],
    profile: &Profile,
) -> Result<(), Failure> {
    if arguments.records.is_none() && arguments.html.is_none() {
        return Ok(());
    }
    let context = context();
    let all = points.iter().zip(predictions);
    let records = all.map(|(point, found)| {
        record_of(&context, &point.path, &point.request, profile, found.clone())
    });
    let records: Vec<RunRecord> = records.collect();
    if let Some(file) = &arguments.html {
        write_file(file, &page(&records).map_err(Failure::tool)?)?;
        tell(&format!("daqmeter: wrote {}", file.display()));
    }
    let mut recorder = Recorder::new(arguments.records.as_ref(), false)?;
    records.into_iter().try_for_each(|record| recorder.take(record))
}

/// The profile from which runs are predicted: the one that is named, or that of this host where the folder has one; what is in the
/// way of the latter is printed, and costs only the predictions.
pub(crate) fn profile_for_runs(named: Option<&PathBuf>) -> Result<Option<Profile>, Failure> {
    let usual = Path::new(super::PROFILE);
    let found = match named {
        None if !usual.exists() => return Ok(None),
        None => read_profile(usual).and_then(|found| host_notes(&found, None).map(|_| found)),
        Some(file) => return read_profile(file).map(Some),
    };
    match found {
        Ok(profile) => Ok(Some(profile)),
        Err(failure) => {
            tell(&format!("daqmeter: nothing is predicted: {}", failure.line()));
            Ok(None)
        }
    }
}

/// The profile in that file.
pub(super) fn read_profile(file: &Path) -> Result<Profile, Failure> {
    let wrong =
        |problem: String| Failure::refused(format!("profile {}: {problem}", file.display()));
    let text = text_file_up_to(file, MAX_PROFILE_BYTES)
        .map_err(|error| wrong(format!("{error}; measure one with daqmeter twin calibrate")))?;
    Profile::parse(&text).map_err(|error| wrong(error.to_string()))
}

/// A profile of another host is used where it was named, and that is said.
pub(super) fn host_notes(
    profile: &Profile,
    named: Option<&PathBuf>,
) -> Result<Vec<String>, Failure> {
    let here = context().host;
    let there = &profile.host;
    let mut notes = Vec::new();
    let is_other = there.cpu_model != here.cpu_model || there.allowed_cpus != here.allowed_cpus;
    if is_other && named.is_none() {
        return Err(Failure::refused(format!(
            "profile {}: it is of another host ({}, {} CPUs): name it with --host if that is meant, or calibrate",
            super::PROFILE,
            there.cpu_model,
            there.allowed_cpus.len()
        )));
    }
    if is_other {
        let cpus = there.allowed_cpus.len();
        notes.push(format!("the profile is of another host: {}, {cpus} CPUs", there.cpu_model));
    } else if there.kernel != here.kernel {
        notes.push("the profile was measured under another kernel".to_owned());
    }
    if profile.tool.profile != tool().profile {
        let build = &profile.tool.profile;
        notes.push(format!(
            "the profile was measured by a program built as `{build}`, and is of its costs"
        ));
    }
    Ok(notes)
}

fn points(arguments: &Arguments) -> Result<Vec<Point>, Failure> {
    let (path, set) = (&arguments.path, &arguments.set);
    let Some(sweep) = &arguments.sweep else {
        return Ok(vec![point(path, set, None)?]);
    };
    let (field, values) = sweep.split_once('=').ok_or_else(|| {
        Failure::refused(format!("--sweep {sweep}: FIELD=VALUES is wanted, such as buffers=2,4,8"))
    })?;
    let values =
        sweep_values(values).map_err(|problem| Failure::refused(format!("--sweep {problem}")))?;
    let with = |value: String| {
        let mut set = set.clone();
        set.push(format!("{field}={value}"));
        point(path, &set, Some(value))
    };
    values.into_iter().map(with).collect()
}

fn point(name: &str, set: &[String], value: Option<String>) -> Result<Point, Failure> {
    let path = loaded(name, set)?;
    let request = PathRequest::new(&path, RUN_S);
    let shape = shape_of(&path, &request)
        .map_err(|why| Failure::refused(format!("{name} cannot be predicted: {why}")))?;
    Ok(Point { value, path, request, shape })
}

/// On all CPUs, in the order of the points.
fn predictions(points: &[Point], profile: &Profile, seed: u64) -> Result<Vec<Prediction>, Failure> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let each = points.len().div_ceil(threads).max(1);
    let part = |part: &[Point]| -> Vec<_> {
        part.iter().map(|point| predict(&point.shape, profile, seed)).collect()
    };
    let found = std::thread::scope(|scope| {
        let parts: Vec<_> = points.chunks(each).map(|own| scope.spawn(move || part(own))).collect();
        let done = parts.into_iter().map(|part| part.join().expect("it does not panic"));
        done.flatten().collect::<Result<Vec<_>, _>>()
    });
    found.map_err(|error| Failure::refused(format!("cannot be predicted: {error}")))
}

fn with_ends(found: Predicted, show: impl Fn(f64) -> String) -> String {
    format!("{} ({} to {})", show(found.value), show(found.low), show(found.high))
}

fn rate(shape: &PathShape, hz: Predicted) -> String {
    with_ends(hz, |hz| show_mb_per_s(hz * shape.block_bytes as f64))
}

fn percent(share: f64) -> String {
    significant(share * 100.0, 3)
}

fn one(point: &Point, found: &Prediction) -> String {
    let shape = &point.shape;
    let mut out = format!("{}\n", sanitise::text(&shape.line));
    let _ = writeln!(
        out,
        "largest rate: {} MB/s, {} blocks/s",
        rate(shape, found.largest_hz),
        significant(found.largest_hz.value, 4)
    );
    let _ =
        writeln!(out, "limit: {}, used {} % of the time", found.limit, percent(found.limit_used));
    let at = match found.offered_hz {
        Some(hz) => format!("at {} MB/s", show_mb_per_s(hz * shape.block_bytes as f64)),
        None => "at the largest rate".to_owned(),
    };
    let _ = writeln!(
        out,
        "latency {at}: median {}, p99 {}",
        with_ends(found.p50_ns, show_ns),
        with_ends(found.p99_ns, show_ns)
    );
    if found.offered_hz.is_some() {
        let what = if shape.lossless { "held back" } else { "lost" };
        let _ = writeln!(out, "{what}: {} %", with_ends(found.lost, percent));
    }
    let row = |row: &PartPrediction| {
        vec![
            row.name.clone(),
            row.threads.to_string(),
            show_ns(row.cost_ns),
            with_ends(row.cpu, percent),
            row.depth
                .map_or("-".to_owned(), |depth| with_ends(depth, |depth| significant(depth, 2))),
        ]
    };
    let headings =
        ["part", "threads", "CPU of a block", "CPU of each thread [%]", "queue before it [blocks]"];
    let _ = write!(out, "\n{}", numbers_from(1, &headings, found.parts.iter().map(row)));
    for note in &found.notes {
        let _ = writeln!(out, "{}", wrapped(&format!(" {note}"), 3));
    }
    out
}

fn table(sweep: &str, points: &[Point], predictions: &[Prediction]) -> String {
    let field = sweep.split('=').next().unwrap_or("");
    let row = |(point, found): (&Point, &Prediction)| {
        vec![
            point.value.clone().unwrap_or_default(),
            rate(&point.shape, found.largest_hz),
            found.limit.clone(),
            with_ends(found.p50_ns, show_ns),
            with_ends(found.p99_ns, show_ns),
            percent(found.lost.value),
        ]
    };
    let headings =
        [field, "largest rate [MB/s]", "limit", "latency, median", "p99", "lost or held back [%]"];
    let mut out = numbers_from(1, &headings, points.iter().zip(predictions).map(row));
    let mut notes: Vec<&String> = predictions.iter().flat_map(|found| &found.notes).collect();
    notes.sort();
    notes.dedup();
    for note in notes {
        let _ = writeln!(out, "{}", wrapped(&format!(" {note} (some of these points)"), 3));
    }
    out
}

fn foot(profile: &Profile, notes: Vec<String>) -> String {
    let first = format!(
        "in parentheses: the interval that holds the measured value with 90 %, from {} held-back runs of {}; nothing was measured now",
        profile.checks.len(),
        sanitise::text(&profile.time_utc)
    );
    let lines = std::iter::once(first).chain(notes);
    lines.map(|line| format!("{}\n", wrapped(&format!(" {line}"), 3))).collect()
}

fn json(point: &Point, found: &Prediction) -> String {
    let figure = |found: Predicted| serde_json::json!({ "value": found.value, "low": found.low, "high": found.high });
    let row = |row: &PartPrediction| {
        serde_json::json!({
            "part": row.name,
            "threads": row.threads,
            "cost_ns": row.cost_ns,
            "cpus_of_a_thread": figure(row.cpu),
            "queue_blocks": row.depth.map(figure),
        })
    };
    let line = serde_json::json!({
        "path": point.shape.line,
        "value": point.value,
        "block_bytes": point.shape.block_bytes,
        "largest_blocks_per_s": figure(found.largest_hz),
        "limit": found.limit,
        "limit_used": found.limit_used,
        "offered_blocks_per_s": found.offered_hz,
        "lost_or_held_back": figure(found.lost),
        "latency_p50_ns": figure(found.p50_ns),
        "latency_p99_ns": figure(found.p99_ns),
        "parts": found.parts.iter().map(row).collect::<Vec<_>>(),
        "notes": found.notes,
        "confidence": CONFIDENCE,
    });
    format!("{line}\n")
}
