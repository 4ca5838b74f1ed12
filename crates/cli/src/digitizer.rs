//! `daqmeter digitizer`: everything that `sis8300drv_threads` did, with its letters, and more.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use daqmeter_digitizer::devices::board::EMULATED_PREFIX;
use daqmeter_digitizer::devices::sis8300::emulated::Profile;
use daqmeter_digitizer::request::boards;
use daqmeter_digitizer::{DigitizerRequest, TriggerCompletion};
use daqmeter_harness::{CpuList, MAX_LANES, Request, Resolved, Settings, StepPlan};
use daqmeter_path::{Keeping, Path, PathRequest};
use daqmeter_record::RunRecord;
use daqmeter_record::units::whole;
use daqmeter_report::{classic, paths, rate, table};

use crate::arguments::{budget, rate};
use crate::measure::{Bench, Common};
use crate::metrics::Metrics;
use crate::output::{Ended, Failure};
use crate::progress::Forecast;

/// Read digitizer boards in parallel and convert their samples.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    // -o is the offset of the decimation, as in sis8300drv_threads.
    mut_arg("output", |option| option.short(None)),
    mut_arg("pin", |option| option.help_heading(None)),
    after_help = "\
        -A: 0 read-out, 1 decimate+scale, 2 decimate, 3 scale, 4 cast, 5 unsigned f64, \
        6 signed f64, 7 unsigned f32, 8 signed f32, 99 all, 100 write a pattern",
    after_long_help = include_str!("../help/digitizer.txt")
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Read for this time, or each trigger of --rate in it
    #[arg(long, value_name = "TIME", value_parser = budget, conflicts_with_all = ["reads", "passes"])]
    time: Option<Duration>,
    #[command(flatten)]
    request: DigitizerRequest,
    #[command(flatten)]
    keeping: Keeping,
    /// Table to print
    #[arg(
        long,
        default_value = "table",
        hide_short_help = true,
        help_heading = "Output",
        conflicts_with = "keep"
    )]
    format: TableFormat,
    /// Profile the threads, and show what takes the time
    #[arg(long, hide_short_help = true, help_heading = "Output", conflicts_with = "keep")]
    what: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve emulated boards as files with the driver's ioctls
    Serve(ServeArguments),
}

/// Serve emulated boards as files with the driver's ioctls, for programs that use /dev/sis8300-*.
/// Several boards are one crate, with one trigger and one uplink.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Emulated boards, e.g. emu:l0 or emu:ku0 emu:l0..4
    #[arg(required = true)]
    boards: Vec<String>,
    /// File of the board, or folder of sis8300-0, sis8300-1 and so on; created, and removed at the
    /// end
    path: PathBuf,
    /// Trigger rate
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,
    /// Timing: a shipped name or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "ess-2017")]
    profile: Resolved<Profile>,
    /// As fast as memory
    #[arg(long)]
    unpaced: bool,
    #[command(flatten)]
    metrics: Metrics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TableFormat {
    /// Rates and their limits
    Table,
    /// The table of sis8300drv_threads
    Classic,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    match &arguments.verb {
        Some(Verb::Serve(arguments)) => serve_board(arguments),
        None => measure(arguments),
    }
}

fn measure(arguments: &Arguments) -> Ended {
    let mut request = arguments.request.clone();
    if request.reads == 0 {
        return Err(Failure::refused("-N 0 reads nothing: use 1 or more"));
    }
    let by_interrupt = request.completion == TriggerCompletion::Interrupt;
    if request.passes == 0 && (by_interrupt || request.trigger_rate_hz.is_some()) {
        let why = "--rate and -i are for triggers: say how many with -l, or --rate and --time";
        let due = arguments.time.zip(request.trigger_rate_hz);
        let due =
            due.map(|(time, hz)| time.as_secs_f64() * hz).ok_or_else(|| Failure::refused(why));
        request.passes = whole(due?).max(1);
    }
    let request = request.as_typed();
    if let Some(path) = Path::of_boards(&request, &arguments.keeping)? {
        return keep(arguments, &request, &path);
    }
    let mut bench = Bench::new(&arguments.common)?;
    let stages = request.function.stages().len() as f64;
    let plan = match arguments.time {
        Some(time) if request.passes == 0 => StepPlan::Timed(time.div_f64(stages)),
        _ => StepPlan::ByStage(request.reads),
    };
    let due_s = request.trigger_rate_hz.map(|hz| request.passes as f64 / hz);
    let due = due_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    bench.recorder.expect(Forecast::points(1, arguments.time.or(due)));
    let settings = Settings {
        profile_hz: arguments.what.then_some(PROFILE_HZ),
        ..bench.runner.settings(plan, "digitizer", &arguments.common.pins())
    };
    bench.measure(&request, &settings, None)?;
    match arguments.format {
        TableFormat::Table => bench.recorder.finish(table::stages),
        TableFormat::Classic => bench.recorder.end(|records| {
            records.iter().map(|record| classic::classic(record) + &faults(record)).collect()
        }),
    }
}

/// Reads boards out into files: the path from them to a folder.
fn keep(arguments: &Arguments, request: &DigitizerRequest, path: &Path) -> Ended {
    let reads = if request.passes > 0 { request.passes } else { request.reads };
    let seconds = arguments.time.map_or(MAX_KEEP_S, |time| time.as_secs_f64());
    let request = PathRequest {
        blocks: arguments.time.is_none().then_some(reads),
        cpus: CpuList(arguments.common.pins()),
        ..PathRequest::new(path, seconds)
    };
    request.check()?;
    let mut bench = Bench::new(&arguments.common)?;
    let settings = bench.runner.settings(StepPlan::ByStage(1), "digitizer/keep", &[]);
    bench.measure(&request, &settings, None)?;
    bench.recorder.finish(paths::runs)
}

/// Time after which a run of a number of reads ends in any case: a day.
const MAX_KEEP_S: f64 = 24.0 * 3600.0;

/// Prime, so that the samples do not coincide with other periods.
pub(crate) const PROFILE_HZ: u64 = 997;

/// Reports faults, for which the classic table has no room.
fn faults(record: &RunRecord) -> String {
    rate::undone(&record.outcome)
        .map_or(String::new(), |(how, why)| format!(" {} {why}\n", how.to_uppercase()))
}

fn serve_board(arguments: &ServeArguments) -> Ended {
    if let Some(board) = arguments.boards.iter().find(|name| !name.starts_with(EMULATED_PREFIX)) {
        return Err(format!("`{board}`: only emulated boards (emu:...) can be served").into());
    }
    let boards = boards(&arguments.boards, MAX_LANES).map_err(|why| format!("the board {why}"))?;
    let is_folder = boards.len() > 1 || arguments.path.is_dir();
    let file = |at: usize| match is_folder {
        true => arguments.path.join(format!("sis8300-{at}")),
        false => arguments.path.clone(),
    };
    let served: Vec<(String, PathBuf)> =
        boards.into_iter().enumerate().map(|(at, board)| (board, file(at))).collect();
    serve(arguments, &served)
}

#[cfg(not(feature = "fuse"))]
fn serve(_arguments: &ServeArguments, _boards: &[(String, PathBuf)]) -> Ended {
    Err("this daqmeter serves no boards: build it with --features fuse".into())
}

#[cfg(feature = "fuse")]
fn serve(arguments: &ServeArguments, boards: &[(String, PathBuf)]) -> Ended {
    use std::sync::atomic::{AtomicU64, Ordering};

    use daqmeter_digitizer::devices::sis8300::emulated::{EmulatedCrate, Profile};
    use daqmeter_digitizer::devices::sis8300::serve_emulated;

    use crate::interrupt;
    use crate::metrics::Page;
    use crate::output::tell;

    let crate_ = EmulatedCrate::new(Profile::clone(&arguments.profile), !arguments.unpaced);
    let stop = interrupt::flag();
    let made = boards.len() > 1 && std::fs::create_dir(&arguments.path).is_ok();
    let serve =
        |(board, path): &(String, PathBuf)| serve_emulated(board, path, &crate_, arguments.rate);
    let served: Result<Vec<_>, _> = boards.iter().map(serve).collect();
    let served = served.inspect_err(|_| {
        if made {
            let _ = std::fs::remove_dir(&arguments.path);
        }
    })?;
    let traffic: Vec<_> = served.iter().map(|one| one.traffic.clone()).collect();
    let sums = move || {
        let sum = |at: usize| {
            AtomicU64::new(traffic.iter().map(|one| one.counts[at].load(Ordering::Relaxed)).sum())
        };
        [0, 1, 2].map(sum)
    };
    let shown = sums.clone();
    let show = move |page: &Page| {
        page.server("digitizer serve", &["reads", "writes"], &["refused"], &shown());
    };
    arguments.metrics.served(show)?;
    for ((board, _), one) in boards.iter().zip(&served) {
        tell(&format!("daqmeter: {board} is served at {}; Ctrl-C ends it", one.path.display()));
    }
    interrupt::wait_for(&stop);
    drop(served);
    if made {
        let _ = std::fs::remove_dir(&arguments.path);
    }
    let refused = sums()[2].load(Ordering::Relaxed);
    if refused > 0 {
        tell(&format!(
            "daqmeter: {refused} reads and writes were refused, as a real board or driver refuses them"
        ));
    }
    Ok(std::process::ExitCode::SUCCESS)
}
