//! `daqmeter copy`: copies between user and kernel memory. One file for each of its verbs.

mod bandwidth;
mod figures;
mod latency;
pub(crate) mod limit;
mod pollution;
mod trace;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use daqmeter_copy::{
    Completion, Context, Direction, HEAVY, Request, Window, module_has_channels, module_waiver,
};
use daqmeter_harness::{Availability, StepPlan, ordered};
use daqmeter_record::Workload;
use daqmeter_report::copy_classic::Files;
use limit::PlainCopies;

use crate::arguments::{bytes, count, duration};
use crate::output::{Failure, emit, tell, write_file};
use crate::reproduce;
use crate::run::{Common, Runner};

/// Copy between user and kernel memory by CPU or DMA: latency, bandwidth, pollution, trace.
#[derive(Debug, Args)]
#[command(
    after_help = "Begin with: daqmeter copy latency",
    after_long_help = "Without the kernel module (kmod/), system calls that really copy stand for the kernel's functions, and a\nthread for the engine; every table says so. `daqmeter list copies` names the ways to copy.\n\nExample:\n\n  $ daqmeter copy latency --sizes 1,64,4KiB,1MiB --pin 1"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Time of one copy by size, one at a time
    Latency(latency::Arguments),
    /// Rate of all CPUs or channels at once
    Bandwidth(bandwidth::Arguments),
    /// What a copying neighbour does to a program on another CPU
    Pollution(pollution::Arguments),
    /// Count the kernel's copies by size, caller and process
    Trace(trace::Arguments),
    /// Check every byte of every way, policy and completion
    Verify(verify::Arguments),
    /// Draw the study's 50 figures from records
    Figures(figures::Arguments),
    /// Ask the study's questions of this host, with verdicts
    Reproduce(reproduce::Options),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Latency(arguments) => latency::run(arguments),
        Verb::Bandwidth(arguments) => bandwidth::run(arguments),
        Verb::Pollution(arguments) => pollution::run(arguments),
        Verb::Trace(arguments) => trace::run(arguments),
        Verb::Verify(arguments) => verify::run(arguments),
        Verb::Figures(arguments) => figures::run(arguments),
        Verb::Reproduce(options) => reproduce::one("copy", options),
    }
}

/// What latency and bandwidth share: by whom, which way, how much.
#[derive(Debug, Clone, Args)]
pub(super) struct Chosen {
    /// Who copies: cpu, exclusive, shared, priority (channels of an engine)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = context)]
    contexts: Vec<Context>,
    /// Which way: from, to, both; with _nc after caches were emptied
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = operation)]
    operations: Vec<Operation>,
    /// Block sizes; without, powers of two
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', value_parser = bytes)]
    sizes: Vec<u64>,
    /// Largest power of two
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "32MiB")]
    up_to: u64,
    /// Copies of each size
    #[arg(long, value_name = "N", value_parser = count, default_value = "300")]
    reps: u64,
    /// How the CPU copies: see `daqmeter list copies`
    #[arg(long, value_name = "NAME")]
    path: Option<String>,
    /// Which engine the other contexts use
    #[arg(long, value_enum, default_value = "auto")]
    engine: EngineChoice,
    /// Sleep until the engine's interrupt instead of looking
    #[arg(long)]
    interrupt: bool,
    /// Blocks with each call, where a way has calls for many
    #[arg(long, value_name = "N", value_parser = count, default_value = "1")]
    depth: u64,
    /// Beside the copies: nothing, or a thread on each CPU that works all the time
    #[arg(long, value_enum, default_value = "light")]
    load: Load,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Time of the high channels in each window (priority)
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30us", help_heading = "Priority policy")]
    quantum: Duration,
    /// The window
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "90us", help_heading = "Priority policy")]
    window: Duration,
    /// Channels that are high
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0",
        help_heading = "Priority policy"
    )]
    high: Vec<u32>,
}

/// The files of a run.
#[derive(Debug, Clone, Args)]
pub(super) struct Written {
    /// table, or classic: the original study's files, in --out-dir
    #[arg(
        long,
        value_enum,
        default_value = "table",
        help_heading = "Output",
        requires_if("classic", "out_dir")
    )]
    format: Format,
    /// Directory of the classic files
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out_dir: Option<PathBuf>,
    /// Page to write
    #[arg(short, long, value_name = "FILE.html", help_heading = "Output")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Classic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineChoice {
    /// The module's channels where there are any, else the emulated engine
    Auto,
    /// DMA channels of the kernel module
    Module,
    /// An emulated engine: a thread
    Thread,
    /// Intel DSA's user work queues
    Dsa,
    /// CUDA's copy engines, pinned host memory
    CudaPinned,
    /// The same with ordinary host memory
    CudaPageable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Load {
    Light,
    Heavy,
}

/// A direction, with or without caches emptied before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operation {
    direction: Direction,
    cold: bool,
}

fn operation(text: &str) -> Result<Operation, String> {
    let (name, cold) = text
        .strip_suffix("_nc")
        .map_or((text, false), |name| (name, true));
    let direction = Direction::from_name(name);
    let direction = direction
        .ok_or_else(|| format!("`{text}` is none of from, to, both, from_nc, to_nc, both_nc"))?;
    Ok(Operation { direction, cold })
}

fn context(text: &str) -> Result<Context, String> {
    Context::from_name(text)
        .ok_or_else(|| format!("`{text}` is none of cpu, exclusive, shared, priority"))
}

impl Chosen {
    fn sizes(&self, from: u64) -> Result<Vec<usize>, Failure> {
        let mut sizes = self.sizes.clone();
        if sizes.is_empty() {
            sizes = (0..40)
                .map(|power| 1 << power)
                .filter(|size| (from..=self.up_to).contains(size))
                .collect();
        }
        if sizes.is_empty() || sizes.contains(&0) {
            return Err(Failure::refused(
                "--sizes: at least one size of 1 B or more is wanted, e.g. --sizes 1,64,4KiB",
            ));
        }
        sizes
            .into_iter()
            .map(|size| usize::try_from(size).map_err(Failure::refused))
            .collect()
    }

    /// The contexts, each with the way to copy in it.
    fn who(&self, otherwise: &[Context]) -> Result<Vec<(Context, String)>, Failure> {
        let contexts = if self.contexts.is_empty() {
            otherwise
        } else {
            &self.contexts
        };
        contexts
            .iter()
            .map(|context| Ok((*context, self.path_of(*context)?)))
            .collect()
    }

    fn operations(&self, otherwise: &[&str]) -> Vec<Operation> {
        if !self.operations.is_empty() {
            return self.operations.clone();
        }
        otherwise
            .iter()
            .filter_map(|name| operation(name).ok())
            .collect()
    }

    fn window(&self) -> Window {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let high_channels = self
            .high
            .iter()
            .filter(|at| **at < 64)
            .fold(0, |mask, at| mask | 1 << at);
        Window {
            quantum_ns: ns(self.quantum),
            window_ns: ns(self.window),
            high_channels,
        }
    }

    /// The way to copy in a context.
    fn path_of(&self, context: Context) -> Result<String, Failure> {
        if let (Context::Cpu, Some(path)) = (context, &self.path) {
            known(path)?;
            return Ok(path.clone());
        }
        let waiver = module_waiver();
        Ok(match (context, self.engine) {
            (Context::Cpu, _) => {
                if waiver.is_none() {
                    "module"
                } else {
                    "pread"
                }
            }
            (_, EngineChoice::Thread) => "engine-thread",
            (_, EngineChoice::Dsa) => usable("dsa")?,
            (_, EngineChoice::CudaPinned) => usable("cuda-pinned")?,
            (_, EngineChoice::CudaPageable) => usable("cuda-pageable")?,
            (_, EngineChoice::Module) => match waiver {
                None => "module",
                Some(reason) => return Err(Failure::refused(reason)),
            },
            (_, EngineChoice::Auto) => {
                if module_has_channels() {
                    "module"
                } else {
                    "engine-thread"
                }
            }
        }
        .to_owned())
    }

    /// The request of one point.
    fn request(
        &self,
        path: &str,
        context: Context,
        operation: Operation,
        block_bytes: usize,
    ) -> Result<Request, Failure> {
        let mut request = Request::new(path, operation.direction, block_bytes);
        request.context = context;
        request.cold = operation.cold;
        request.window = self.window();
        request.completion = if self.interrupt {
            Completion::Interrupt
        } else {
            Completion::Polled
        };
        request.depth = u32::try_from(self.depth).map_err(Failure::refused)?;
        Ok(request)
    }

    fn workload(&self, request: &Request) -> Workload {
        let workload = request.workload();
        if self.load == Load::Heavy {
            workload.with("load", HEAVY)
        } else {
            workload
        }
    }
}

/// What a verb measures, once its options are understood: every context by every operation and size.
struct Study<'a> {
    chosen: &'a Chosen,
    name: &'static str,
    who: Vec<(Context, String)>,
    operations: Vec<Operation>,
    sizes: Vec<usize>,
    lanes: usize,
    pin: Vec<u32>,
}

impl Study<'_> {
    /// Measures all points in random order, each with its limit.
    fn run(&self, runner: &mut Runner) -> Result<(), Failure> {
        refuse_large(&self.sizes, self.lanes)?;
        let mut limits = PlainCopies::new(self.lanes, &self.pin);
        let points = self.points()?;
        runner.expect(points.len());
        let settings = runner.settings(
            StepPlan::ByStage(self.chosen.reps.clamp(1, MAX_REPS)),
            self.name,
            &self.pin,
        );
        for (order, workload) in ordered(points, self.chosen.seed) {
            limits.point(runner, "copy", &workload, &settings, order)?;
        }
        runner.finish();
        Ok(())
    }

    fn points(&self) -> Result<Vec<Workload>, Failure> {
        let mut points = Vec::new();
        for (context, path) in &self.who {
            for operation in &self.operations {
                for size in &self.sizes {
                    let mut request = self.chosen.request(path, *context, *operation, *size)?;
                    request.lanes = self.lanes;
                    points.push(self.chosen.workload(&request));
                }
            }
        }
        Ok(points)
    }
}

/// As many samples as a stage keeps one by one.
const MAX_REPS: u64 = 65_536;

fn usable(name: &'static str) -> Result<&'static str, Failure> {
    known(name).map(|()| name)
}

fn known(name: &str) -> Result<(), Failure> {
    match daqmeter_copy::path(name).map(daqmeter_copy::Path::probe) {
        Some(Availability::Ready) => Ok(()),
        Some(Availability::Waived(reason)) => Err(Failure::refused(format!("{name}: {reason}"))),
        None => {
            let names: Vec<&str> = daqmeter_copy::PATHS.iter().map(|path| path.name).collect();
            Err(Failure::refused(format!(
                "there is no way to copy called `{name}`; choose among {}",
                names.join(", ")
            )))
        }
    }
}

/// Writes the original's files.
fn write_classic(written: &Written, files: &Files) -> Result<(), Failure> {
    let Some(dir) = written
        .out_dir
        .as_ref()
        .filter(|_| written.format == Format::Classic)
    else {
        return Ok(());
    };
    for (name, text) in files {
        let path = dir.join(name);
        if let Some(parent) = path.parent() {
            let made = std::fs::create_dir_all(parent);
            made.map_err(|error| Failure::refused(format!("make {}: {error}", parent.display())))?;
        }
        write_file(&path, text)?;
    }
    tell(&format!(
        "wrote {} files below {}",
        files.len(),
        dir.display()
    ));
    Ok(())
}

/// What every study ends with: its table, the original's files, the page, the exit code.
fn finish(
    runner: &Runner,
    common: &Common,
    written: &Written,
    text: &str,
    files: &Files,
) -> Result<ExitCode, Failure> {
    if !common.json {
        emit(text)?;
    }
    write_classic(written, files)?;
    write_page(written.output.as_ref(), runner)?;
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

fn write_page(written: Option<&PathBuf>, runner: &Runner) -> Result<(), Failure> {
    if let Some(path) = written {
        write_file(
            path,
            &daqmeter_report::page(&runner.recorder.records).map_err(Failure::refused)?,
        )?;
        tell(&format!("wrote {}", path.display()));
    }
    Ok(())
}

/// Reports what a worker refused before anything was measured.
fn refuse_large(sizes: &[usize], lanes: usize) -> Result<(), Failure> {
    let largest = sizes.iter().max().copied().unwrap_or(0);
    let wanted = largest as u64 * 2 * lanes as u64;
    let available = daqmeter_sys::host::Files::default()
        .field("proc/meminfo", "MemAvailable")
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .map(|kib| kib * 1024);
    match available {
        Some(available) if wanted > available => Err(Failure::refused(format!(
            "blocks of {largest} bytes need {wanted} bytes for {lanes} lanes, {available} are available: choose smaller --sizes"
        ))),
        _ => Ok(()),
    }
}
