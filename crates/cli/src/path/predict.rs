//! `daqmeter path predict`: paths on a host that was calibrated, and the calibration.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use daqmeter_campaign::Runner;
use daqmeter_campaign::calibrate::calibrate;
use daqmeter_harness::{Context, Request, text_file_up_to};
use daqmeter_path::PathRequest;
use daqmeter_path::predict::{HostProfile, predict};
use daqmeter_record::units::significant;
use daqmeter_record::{EngineInfo, Role};
use daqmeter_report::predictions_text;

use crate::context::context;
use crate::interrupt;
use crate::named::Replaced;
use crate::output::{Ended, Failure, tell, write_file};
use crate::recorder::{Recorder, Recording};

const PROFILE: &str = "host-profile.json";
/// Largest profile; a thousand held-back runs are below a megabyte.
const MAX_PROFILE_BYTES: u64 = 16 << 20;
/// Time of all runs of a calibration: its intervals hardly become smaller after a minute.
const CALIBRATION: Duration = Duration::from_secs(55);
/// Seconds of a run in the record of a prediction, which does not depend on it: those of `path
/// run`.
const RUN_S: f64 = 3.0;

/// Predict paths on a host that was calibrated: largest rate, limit, CPUs, latency, loss.
#[derive(Debug, Args)]
#[command(after_long_help = "\
        Each number has a 90 % interval. It holds for paths like those of the calibration, if \
        the host is as busy as it was then. Devices, programs, kinds of work and sizes that were \
        not calibrated are refused. Calibrate while the host does its usual work.\n\n\
        A profile holds the CPU time of a block for each kind of work and size. It also holds \
        three fitted numbers: for hand-overs, waits and shared CPUs.\n\n\
        Example:\n\n  \
        $ daqmeter path predict --calibrate\n  \
        $ daqmeter path predict pattern --set block=128KiB --records both.jsonl\n  \
        $ daqmeter path run pattern --set block=128KiB --records both.jsonl\n  \
        $ daqmeter report both.jsonl")]
pub(crate) struct Arguments {
    /// Paths: those that ship, or TOML files
    #[arg(value_name = "PATH", required_unless_present = "calibrate")]
    paths: Vec<String>,
    /// Measure the profile of this host first, by short paths, in a minute, and write it
    #[arg(long)]
    calibrate: bool,
    /// Profile of the host [default: that of this host in host-profile.json]
    #[arg(long, value_name = "FILE.json")]
    host: Option<Replaced>,
    /// Another value for a field of the file: block=128KiB, stage.1.by=memcpy
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<daqmeter_path::Setting>,
    #[command(flatten)]
    recording: Recording,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let context = context();
    if arguments.calibrate {
        let file = arguments.host.clone().unwrap_or_else(|| Replaced::at(PROFILE));
        measure(&context, &file)?;
        if arguments.paths.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let profile = profile(&context, arguments.host.as_deref())?;
    let mut recorder = Recorder::new(&arguments.recording)?;
    for name in &arguments.paths {
        let path = daqmeter_path::Path::load_with(name, &arguments.set)?;
        let refused = |why: String| Failure::refused(format!("{name} cannot be predicted: {why}"));
        let shapes = path.shapes(&profile.host.allowed_cpus).map_err(refused)?;
        let found = predict(&shapes, &profile).map_err(refused)?;
        let (target, emulated) = (path.line(), path.is_emulated());
        let engine = EngineInfo { name: PathRequest::KIND.into(), target, emulated };
        let workload = PathRequest::new(&path, RUN_S).workload();
        let mut record = context.blank_record(engine, workload);
        (record.study, record.role) = ("path/predict".into(), Role::Prediction);
        record.host = Arc::new(profile.host.clone());
        record.prediction = Some(Box::new(found));
        recorder.take(record)?;
    }
    recorder.finish(|records| {
        let (runs, time) = (profile.held_back.len(), &profile.time_utc);
        format!("{}intervals from {runs} held-back runs of {time}\n", predictions_text(records))
    })
}

/// Measures the profile of this host, and writes it.
fn measure(context: &Context, file: &Replaced) -> Result<(), Failure> {
    let mut runner = Runner::new(context.clone());
    runner.stop = interrupt::flag();
    let profile = calibrate(&runner, CALIBRATION, &mut |step| tell(&format!("{step} ...")));
    if runner.stop.is_set() {
        return Err(Failure::tool("interrupted; a profile is written only as a whole: none was"));
    }
    let profile = profile.map_err(Failure::tool)?;
    write_file(file, &profile.text())?;
    let free = profile.held_back.iter().filter(|path| path.rate_hz.is_none());
    let off = free.map(|path| (path.rate.measured / path.rate.predicted).ln().abs() * 100.0);
    let off: Vec<f64> = off.collect();
    let (file, runs, paths) = (file.display(), profile.runs, off.len());
    let seconds = significant(profile.seconds, 3);
    let off = daqmeter_stats::median(&off).map_or("?".to_owned(), |off| significant(off, 2));
    let fitted = significant(profile.fit_error * 100.0, 2);
    tell(&format!(
        "{file}: {runs} runs in {seconds} s; largest rate of {paths} held-back paths: {off} % off in the median, of the fitted ones {fitted} %"
    ));
    Ok(())
}

/// Reads the named profile, or that of this host. Another host's profile is used only by name, with
/// a note.
fn profile(context: &Context, named: Option<&Path>) -> Result<HostProfile, Failure> {
    let file = named.unwrap_or(Path::new(PROFILE));
    let wrong =
        |problem: String| Failure::refused(format!("profile {}: {problem}", file.display()));
    let text = text_file_up_to(file, MAX_PROFILE_BYTES).map_err(|error| {
        wrong(format!("{error}; measure one with daqmeter path predict --calibrate"))
    })?;
    let profile = HostProfile::parse(&text).map_err(wrong)?;
    let (here, there) = (&context.host, &profile.host);
    let is_other = there.cpu_model != here.cpu_model || there.allowed_cpus != here.allowed_cpus;
    let other = format!("is of another host ({})", there.cpu_model);
    match named {
        None if is_other => {
            return Err(wrong(format!("{other}: name it with --host if that is meant")));
        }
        Some(file) if is_other => tell(&format!("daqmeter: {} {other}", file.display())),
        _ => {}
    }
    Ok(profile)
}
