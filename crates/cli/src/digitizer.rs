//! `daqmeter digitizer`: everything that `sis8300drv_threads` did, with its letters, and more.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use daqmeter_digitizer::daq::check_trigger_rate;
use daqmeter_digitizer::devices::emulated::{EmulatedCrate, Profile};
use daqmeter_digitizer::devices::{self, EMULATED_PREFIX};
use daqmeter_digitizer::serve::{Dialect, serve};
use daqmeter_harness::{Settings, StepPlan};
use daqmeter_kernels::convert::oracle;
use daqmeter_record::{RunRecord, Workload};
use daqmeter_report::{classic, rate, table};

use crate::arguments::{bytes, count, duration, rate};
use crate::interrupt;
use crate::metrics::Metrics;
use crate::output::{Failure, emit, tell};
use crate::reproduce;
use crate::run::{Common, Runner};

/// Read digitizer boards in parallel and convert their samples.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "-A: 0 read-out, 1 decimate+scale, 2 decimate, 3 scale, 4 cast, 5 unsigned f64, 6 signed f64,\n    \
                  7 unsigned f32, 8 signed f32, 99 all, 100 write a pattern (overwrites card memory)",
    after_long_help = EXAMPLE
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Boards: /dev/sis8300-6, emu:l0, emu:l2-0, emu:ku0, or a range emu:l0..4
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<String>,
    /// Samples to read from each board (rounded up to 16)
    #[arg(short = 'S', long, value_name = "N", value_parser = count, default_value = "0x100000")]
    samples: u64,
    /// Reads
    #[arg(short = 'N', long, value_name = "N", value_parser = count, default_value = "1")]
    reads: u64,
    /// What to do with the samples, see below
    #[arg(short = 'A', long, value_name = "F", value_parser = count, default_value = "0")]
    function: u64,
    /// Access: 0 read(), 1 mmap() without a copy (at most 4 MiB)
    #[arg(short = 'B', long, value_name = "0|1", value_parser = count, default_value = "0")]
    access: u64,
    /// Decimation: first sample kept
    #[arg(short = 'o', long, value_name = "N", value_parser = count, default_value = "0", help_heading = "Conversion")]
    dec_offset: u64,
    /// Decimation: keep every N-th sample
    #[arg(short = 'f', long, value_name = "N", value_parser = count, default_value = "1", help_heading = "Conversion")]
    dec_factor: u64,
    /// Scaling: offset
    #[arg(
        short = 'O',
        long,
        value_name = "X",
        default_value = "0",
        allow_negative_numbers = true,
        help_heading = "Conversion"
    )]
    scale_offset: f64,
    /// Scaling: factor
    #[arg(
        short = 'F',
        long,
        value_name = "X",
        default_value = "1",
        allow_negative_numbers = true,
        help_heading = "Conversion"
    )]
    scale_factor: f64,
    /// Scale in single precision, and say by how much that differs
    #[arg(hide_short_help = true, long, help_heading = "Conversion")]
    fast: bool,
    /// Format of functions 5 and 7
    #[arg(
        hide_short_help = true,
        long,
        value_name = "M.N",
        default_value = "1.15",
        help_heading = "Conversion"
    )]
    unsigned_q: String,
    /// Format of functions 6 and 8
    #[arg(
        hide_short_help = true,
        long,
        value_name = "M.N",
        default_value = "3.13",
        help_heading = "Conversion"
    )]
    signed_q: String,
    /// Fuse read-out and conversion in blocks of this size
    #[arg(long, value_name = "SIZE", value_parser = bytes, help_heading = "Conversion")]
    block: Option<u64>,
    /// portable, avx2, avx512 or neon [default: the best here]
    #[arg(
        hide_short_help = true,
        long,
        value_name = "SET",
        help_heading = "Conversion"
    )]
    isa: Option<String>,
    /// cached or non-temporal [default: by footprint]
    #[arg(
        hide_short_help = true,
        long,
        value_name = "KIND",
        help_heading = "Conversion"
    )]
    store: Option<String>,
    /// Passes, one read per external trigger (instead of -N)
    #[arg(short = 'l', long = "loop", value_name = "N", value_parser = count, default_value = "0", help_heading = "Trigger")]
    passes: u64,
    /// Wait by interrupt instead of polling
    #[arg(short = 'i', long, help_heading = "Trigger")]
    interrupt: bool,
    /// Trigger rate: sets emulated boards, tells missed triggers of real ones
    #[arg(long, value_name = "RATE", value_parser = rate, help_heading = "Trigger")]
    rate: Option<f64>,
    /// Sleep between looks at the status register
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration, default_value = "1us", help_heading = "Trigger")]
    poll_interval: Duration,
    /// Timing of emulated boards: a shipped name or a TOML file
    #[arg(
        hide_short_help = true,
        long,
        value_name = "NAME|FILE",
        default_value = "ess-2017",
        help_heading = "Emulated boards"
    )]
    profile: String,
    /// Let emulated boards go as fast as memory
    #[arg(long, help_heading = "Emulated boards")]
    unpaced: bool,
    /// Table to print
    #[arg(long, value_enum, default_value = "table", help_heading = "Output")]
    format: Format,
    /// Sample our threads and say what takes the time
    #[arg(long, help_heading = "Output")]
    what: bool,
    #[command(flatten)]
    common: Common,
}

const EXAMPLE: &str = "\
-A functions: 0 read-out, 1 decimate+scale, 2 decimate, 3 scale, 4 cast, 5 unsigned f64,
6 signed f64, 7 unsigned f32, 8 signed f32, 99 all, 100 write a pattern (overwrites card memory;
-S is rounded up to 32, as 64 bytes are written at a time).

Example: five L boards and a KU share the uplink of the source document's crate
(shortened: its interval, CPU use and notes are left out).

  $ daqmeter digitizer emu:ku0 emu:l0..4 -S 3000000 -N 30
   device   stage      n    median  spread [%]  p99   MB/s  ...  limit MB/s  of limit
   emu:ku0  read-out  30  5.764 ms        3.32    -  897.2  ...        1278      0.70
   emu:l0   read-out  30  10.28 ms         0.5    -  489.2  ...       625.9      0.78
   ...
   ledger: 1080000000 bytes issued = 1080000000 delivered + 0 short read

MB/s is sustained: all bytes over all time. Each rate stands beside its limit: for read-out what
the board moves alone, for conversions what memory allows at the same footprint and ratio of reads
to writes, measured in the same run.
--format classic prints the table of sis8300drv_threads.

Faults can be asked of emulated boards: emu:l0:gone-after=5, emu:l0:short-read-at=3,\nemu:l0:write-error-at=2 (with -A 100).";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Repeat the source document's study and set every figure beside ours
    Reproduce(reproduce::Options),
    /// Serve an emulated board as a file that answers the driver's ioctls
    Serve(ServeArguments),
}

/// Serve an emulated board as a file that answers the driver's ioctls, for programs written for /dev/sis8300-*.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Emulated board, e.g. emu:l0
    board: String,
    /// Where; created, and removed at the end
    path: PathBuf,
    /// Trigger rate
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<f64>,
    /// Timing: a shipped name or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "ess-2017")]
    profile: String,
    /// As fast as memory
    #[arg(long)]
    unpaced: bool,
    #[command(flatten)]
    metrics: Metrics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Rates beside their limits
    Table,
    /// The table of sis8300drv_threads
    Classic,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Some(Verb::Reproduce(options)) => reproduce::one("digitizer", options),
        Some(Verb::Serve(arguments)) => serve_board(arguments),
        None => measure(arguments),
    }
}

fn measure(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.reads == 0 {
        return Err(Failure::refused("-N 0 reads nothing; 1 or more is wanted"));
    }
    let mut runner = Runner::new(&arguments.common, 1)?;
    let plan = if arguments.passes > 0 {
        StepPlan::ByPass(arguments.passes)
    } else {
        StepPlan::ByStage(arguments.reads)
    };
    let pin = arguments
        .common
        .pin
        .as_ref()
        .map(|list| list.0.clone())
        .unwrap_or_default();
    let settings = Settings {
        profile_hz: arguments.what.then_some(PROFILE_HZ),
        ..runner.settings(plan, "digitizer", &pin)
    };
    runner.point("digitizer", &workload(arguments), &settings, None)?;
    runner.finish();
    notes(arguments)
        .iter()
        .for_each(|note| tell(&format!("daqmeter: {note}")));
    if !arguments.common.json {
        emit(&printed(arguments.format, &runner.recorder.records))?;
    }
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

/// A prime, so that the sampling does not march in step with anything.
pub(crate) const PROFILE_HZ: u64 = 997;

fn printed(format: Format, records: &[RunRecord]) -> String {
    match format {
        Format::Table => table::text(records),
        Format::Classic => records
            .iter()
            .map(|record| classic::classic(record) + &faults(record))
            .collect(),
    }
}

/// The classic table has no room for what went wrong.
fn faults(record: &RunRecord) -> String {
    rate::undone(&record.outcome).map_or(String::new(), |(how, why)| {
        format!(" {} {why}\n", how.to_uppercase())
    })
}

/// What the user asked for that had no effect, and what --fast costs.
fn notes(arguments: &Arguments) -> Vec<String> {
    let scales = matches!(arguments.function, 1 | 3 | 99);
    let without_loop = arguments.passes == 0;
    let idle = [
        (
            arguments.interrupt && without_loop,
            "-i had no effect: it says how to wait for triggers, and without -l none are waited for",
        ),
        (
            arguments.rate.is_some() && without_loop,
            "--rate had no effect: without -l no triggers are waited for",
        ),
        (
            arguments.fast && !scales,
            "--fast had no effect: only functions 1, 3 and 99 scale",
        ),
        (
            arguments.block.is_some() && matches!(arguments.function, 0 | 100),
            "--block had no effect: there is no conversion to fuse with",
        ),
    ];
    let idle = idle
        .into_iter()
        .filter(|(is, _)| *is)
        .map(|(_, note)| note.to_owned());
    idle.chain((arguments.fast && scales).then(|| fast_warning(arguments)))
        .collect()
}

fn fast_warning(arguments: &Arguments) -> String {
    let error = oracle::fast_scale_error(arguments.scale_factor, arguments.scale_offset);
    format!(
        "--fast scales in single precision: {} of 65536 codes differ from the exact result, by at most {:.3e} ({} ulp)",
        error.codes, error.worst_absolute, error.worst_ulp
    )
}

fn workload(arguments: &Arguments) -> Workload {
    let completion = match (arguments.passes, arguments.interrupt) {
        (0, _) => "none",
        (_, true) => "interrupt",
        (_, false) => "poll",
    };
    let emulated = arguments
        .devices
        .iter()
        .any(|device| device.starts_with(EMULATED_PREFIX));
    let mut workload = Workload::new("digitizer")
        .with("devices", arguments.devices.join(" "))
        .with("samples", arguments.samples)
        .with("reads", arguments.reads)
        .with("function", arguments.function)
        .with("access", arguments.access)
        .with("dec_offset", arguments.dec_offset)
        .with("dec_factor", arguments.dec_factor)
        .with("scale_offset", arguments.scale_offset)
        .with("scale_factor", arguments.scale_factor)
        .with("fast", arguments.fast)
        .with("unsigned_q", arguments.unsigned_q.as_str())
        .with("signed_q", arguments.signed_q.as_str())
        .with("block_bytes", arguments.block.unwrap_or(0))
        .with("passes", arguments.passes)
        .with("completion", completion)
        .with(
            "poll_interval_us",
            arguments.poll_interval.as_secs_f64() * 1e6,
        )
        .with("profile", arguments.profile.as_str())
        .with("unpaced", arguments.unpaced);
    let default_rate = (emulated && arguments.passes > 0).then_some(14.0);
    if let Some(rate) = arguments.rate.or(default_rate) {
        workload = workload.with("trigger_rate_hz", rate);
    }
    if let Some(isa) = &arguments.isa {
        workload = workload.with("isa", isa.as_str());
    }
    if let Some(store) = &arguments.store {
        workload = workload.with("store", store.as_str());
    }
    workload
}

fn serve_board(arguments: &ServeArguments) -> Result<ExitCode, Failure> {
    let name = arguments.board.strip_prefix(EMULATED_PREFIX);
    let name = name.ok_or_else(|| {
        Failure::refused(format!(
            "`{}`: only emulated boards (emu:...) can be served",
            arguments.board
        ))
    })?;
    let profile = Profile::load(&arguments.profile).map_err(Failure::refused)?;
    let crate_ = EmulatedCrate::new(profile, !arguments.unpaced);
    let mut board: Box<dyn devices::Board> = Box::new(crate_.board(&arguments.board, name)?);
    if let Some(rate) = arguments.rate {
        check_trigger_rate(rate).map_err(|fault| fault.context("--rate"))?;
        board.set_trigger_rate(rate);
    }
    let (stopped, wait) = std::sync::mpsc::channel();
    interrupt::on_signal(move || {
        // Nobody waits any more when this cannot be sent.
        let _ = stopped.send(());
    });
    let served = serve(board, &arguments.path, Dialect::Ess)?;
    if let Some(page) = arguments.metrics.served()? {
        let (traffic, name) = (served.traffic.clone(), arguments.board.clone());
        page.ask(move |page| {
            let of = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
            page.set("daqmeter_triggers_total", &name, of(&traffic.triggers));
            page.set("daqmeter_bytes_total", &name, of(&traffic.read_bytes));
            page.set("daqmeter_operations_total", &name, of(&traffic.registers));
        });
    }
    tell(&format!(
        "daqmeter: {} stands at {}; Ctrl-C ends it",
        arguments.board,
        served.path.display()
    ));
    // An error here means that the handler is gone: then nobody can ask to stop any more.
    let _ = wait.recv();
    let refused = served.traffic.refused.load(Ordering::Relaxed);
    if refused > 0 {
        tell(&format!(
            "daqmeter: {refused} reads and writes were refused: no real board or driver could have done them"
        ));
    }
    Ok(ExitCode::SUCCESS)
}
