//! `daqmeter path predict`: paths on a host that was calibrated; nothing is measured.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use daqmeter_harness::facts::utc_now;
use daqmeter_harness::{Request, text_file_up_to};
use daqmeter_path::PathRequest;
use daqmeter_path::predict::{HostProfile, predict};
use daqmeter_record::prediction::{PartPrediction, Predicted, Prediction};
use daqmeter_record::units::{show_mb_per_s, show_ns, significant};
use daqmeter_record::{EngineInfo, Role, RunRecord, sanitise};
use daqmeter_report::table::{numbers_from, wrapped};

use super::run::loaded;
use crate::measure::context;
use crate::named::Appended;
use crate::output::{Failure, emit};
use crate::recorder::{Recorder, Recording};

pub(super) const PROFILE: &str = "host-profile.json";
/// Largest profile; a thousand held-back runs are below a megabyte.
const MAX_PROFILE_BYTES: u64 = 16 << 20;
/// Seconds of a run in the record of a prediction, which does not depend on it: those of `path
/// run`.
const RUN_S: f64 = 3.0;

/// Predict paths on a host that was calibrated: largest rate, limit, CPUs, latency, loss.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Each number has an interval that holds the measured one with 90 %, for paths like those that the\ncalibration held back, while the host is as it was then. What was not calibrated is refused: devices,\nprograms, kinds of work and sizes that the profile does not have.\n\nExample:\n\n  $ daqmeter path calibrate\n  $ daqmeter path predict pattern --set stage.1.threads=2 --records both.jsonl\n  $ daqmeter path run pattern --set stage.1.threads=2 --records both.jsonl\n  $ daqmeter report both.jsonl"
)]
pub(crate) struct Arguments {
    /// Paths: those that ship, or TOML files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Profile of the host [default: that of this host in host-profile.json]
    #[arg(long, value_name = "FILE.json")]
    host: Option<PathBuf>,
    /// Another value for a field of the file: block=128KiB, stage.1.threads=2
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
    /// Print a JSON line for each prediction instead of tables
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Append a record of each prediction, which daqmeter report shows beside runs of the same path
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Output")]
    records: Option<Appended>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (profile, note) = profile(arguments.host.as_deref())?;
    let context = context();
    let mut recorder =
        Recorder::new(&Recording { records: arguments.records.clone(), ..Recording::default() })?;
    let mut out = String::new();
    for name in &arguments.paths {
        let path = loaded(name, &arguments.set)?;
        let refused = |why: String| Failure::refused(format!("{name} cannot be predicted: {why}"));
        let shape = path.shape().map_err(refused)?;
        let found = predict(&shape, &profile).map_err(|error| refused(error.to_string()))?;
        let text = match arguments.json {
            true => serde_json::to_string(&found).expect("a prediction is plain JSON") + "\n",
            false => text(&found),
        };
        out.push_str(&text);
        let engine = EngineInfo {
            name: PathRequest::KIND.into(),
            target: path.line(),
            emulated: path.is_emulated(),
        };
        let mut record = RunRecord::new(engine, PathRequest::new(&path, RUN_S).workload());
        record.tool = context.tool.clone();
        record.time_utc = utc_now();
        record.run_id = (&context.run_id).into();
        record.study = "path/predict".into();
        record.role = Role::Prediction;
        record.command = (&context.command).into();
        record.clock = context.clock.clone();
        record.host = Arc::new(profile.host.clone());
        record.prediction = Some(Box::new(found));
        if arguments.records.is_some() {
            recorder.take(record)?;
        }
    }
    if !arguments.json {
        let foot = format!(
            "in parentheses: the interval that holds the measured value with 90 %, from {} held-back runs of {}{note}",
            profile.held_back.len(),
            sanitise::text(&profile.time_utc)
        );
        let _ = writeln!(out, "{}", wrapped(&format!(" {foot}"), 3));
    }
    emit(&out)
}

/// Reads the named profile, or that of this host. Another host's profile is used only by name, with
/// a note.
fn profile(named: Option<&Path>) -> Result<(HostProfile, String), Failure> {
    let file = named.unwrap_or(Path::new(PROFILE));
    let wrong =
        |problem: String| Failure::refused(format!("profile {}: {problem}", file.display()));
    let text = text_file_up_to(file, MAX_PROFILE_BYTES)
        .map_err(|error| wrong(format!("{error}; measure one with daqmeter path calibrate")))?;
    let profile = HostProfile::parse(&text).map_err(|error| wrong(error.to_string()))?;
    let (here, there) = (context().host, &profile.host);
    let cpus = there.allowed_cpus.len();
    let other = format!("{}, {cpus} CPUs", there.cpu_model);
    let is_other = there.cpu_model != here.cpu_model || there.allowed_cpus != here.allowed_cpus;
    match (is_other, named) {
        (true, None) => Err(wrong(format!(
            "is of another host ({other}): name it with --host if that is meant, or calibrate"
        ))),
        (true, Some(_)) => Ok((profile, format!("; the profile is of another host: {other}"))),
        (false, _) => Ok((profile, String::new())),
    }
}

fn text(found: &Prediction) -> String {
    let ends = |found: Predicted, show: &dyn Fn(f64) -> String| {
        format!("{} ({} to {})", show(found.value), show(found.low), show(found.high))
    };
    let percent = |share: f64| significant(share * 100.0, 3);
    let mb_per_s = |hz: f64| show_mb_per_s(hz * found.block_bytes as f64);
    let at = found.offered_hz.map_or("the largest rate".to_owned(), |hz| mb_per_s(hz) + " MB/s");
    let mut out = format!(
        "{}\nlargest rate: {} MB/s\nlimit: {}, used {} % of the time\nlatency at {at}: median {}, p99 {}\n",
        sanitise::text(&found.line),
        ends(found.largest_hz, &mb_per_s),
        found.limit,
        percent(found.limit_used),
        ends(found.p50_ns, &show_ns),
        ends(found.p99_ns, &show_ns)
    );
    if found.offered_hz.is_some() {
        let _ = writeln!(out, "lost or held back: {} %", ends(found.lost, &percent));
    }
    let row = |part: &PartPrediction| {
        let (threads, cost) = (part.threads.to_string(), show_ns(part.cost_ns));
        vec![part.name.clone(), threads, cost, ends(part.cpu, &percent)]
    };
    let headings = ["part", "threads", "CPU of a block", "CPU of each thread [%]"];
    let _ = writeln!(out, "\n{}", numbers_from(1, &headings, found.parts.iter().map(row)));
    for note in &found.notes {
        let _ = writeln!(out, "{}", wrapped(&format!(" {note}"), 3));
    }
    out
}
