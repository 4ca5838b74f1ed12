//! `daqmeter path run`: a path as one record, or the search for its largest rate without loss.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_harness::{Request, StepPlan};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::units::show_ns;
use daqmeter_report::{paths, predictions_text};

use super::max::{self, Searching};
use crate::arguments::{budget, duration};
use crate::measure::{Bench, Common};
use crate::output::{CANNOT_TELL, Failure, tell};

/// Run a path from its source to its sink and say where the time of each thread went.
#[derive(Debug, Args)]
#[command(
    after_long_help = "The rate is sustained: all bytes over all the time from release to end. `no input` and `no room` are waits for the\nneighbours, until the thread ran again; `preempted` is time on the run queue at other moments; `elsewhere` is waiting for a\ndevice, a system call, or the time of the next block.\n\nExample:\n\n  $ daqmeter path run digitizer-crate --time 3s --records run.jsonl"
)]
pub(crate) struct Arguments {
    /// Path: one that ships, or a TOML file
    #[arg(value_name = "PATH")]
    path: String,
    /// Time for which the source goes
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "3s")]
    time: Duration,
    /// Rate at which blocks are due from each stream: 14Hz, 500MB/s
    #[arg(long, value_name = "RATE", conflicts_with = "unpaced")]
    rate: Option<String>,
    /// As fast as it goes, whatever rate the file says
    #[arg(long)]
    unpaced: bool,
    /// Lose blocks that are due when there is no room
    #[arg(long)]
    lossy: bool,
    /// Search for the largest rate without loss; --time is that of a confirmation
    #[arg(long, conflicts_with_all = ["rate", "unpaced", "lossy"])]
    max: bool,
    /// Time for the search of --max
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "2m", requires = "max")]
    budget: Duration,
    /// Another value for a field of the file: block=128KiB, stage.1.threads=2
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let path = loaded(&arguments.path, &arguments.set)?;
    let mut request = request(&path, arguments.time, &arguments.common);
    request.unpaced = arguments.unpaced;
    request.lossy = arguments.lossy;
    if let Some(rate) = &arguments.rate {
        let hz = path.parse_rate(rate);
        request.rate_hz =
            Some(hz.map_err(|problem| Failure::refused(format!("--rate: {problem}")))?);
    }
    checked(&request)?;
    let mut bench = Bench::new(&arguments.common, 1)?;
    let mut searched = Searching::default();
    if arguments.max {
        if !arguments.common.recording.json && !arguments.common.recording.quiet {
            let budget = show_ns(arguments.budget.as_secs_f64() * 1e9);
            tell(&format!("searching for the largest rate, for {budget} at most (--budget)"));
        }
        searched = max::search(&mut bench, &path, &mut request, arguments.budget)?;
    }
    let settings = bench.runner.settings(StepPlan::ByStage(1), "path/run", &[]);
    if !arguments.max || request.rate_hz.is_some() {
        bench.measure(&request, &settings, None)?;
    }
    let code = bench.recorder.finish(|records| {
        searched.text + &paths::text(records) + &after_a_line(predictions_text(records))
    })?;
    Ok(match searched.cannot_tell && code == ExitCode::SUCCESS {
        true => ExitCode::from(CANNOT_TELL),
        false => code,
    })
}

fn after_a_line(text: String) -> String {
    match text.is_empty() {
        true => text,
        false => format!("\n{text}"),
    }
}

pub(crate) fn loaded(path: &str, with: &[String]) -> Result<Path, Failure> {
    Path::load_with(path, with).map_err(Failure::refused)
}

pub(super) fn request(path: &Path, time: Duration, common: &Common) -> PathRequest {
    PathRequest { cpus: common.pins(), ..PathRequest::new(path, time.as_secs_f64()) }
}

pub(super) fn checked(request: &PathRequest) -> Result<(), Failure> {
    let wrong = |problem: daqmeter_harness::Problem| {
        Failure::refused(format!("`{}` {}", problem.name, problem.text))
    };
    request.check().map_err(wrong)
}
