//! `daqmeter copy`: copies between user and kernel memory. One file for each of its verbs.

mod bandwidth;
mod figures;
mod import;
mod latency;
mod pollution;
mod trace;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use daqmeter_copy::{Context, CopyEngine, Direction, Path, Request};
use daqmeter_harness::{
    Availability, Fault, Limits, Request as _, StepPlan, TypedEngine as _, check_fits, ordered,
};
use daqmeter_record::units::plural;
use daqmeter_record::{RunRecord, Workload};
use daqmeter_report::copy_classic::Files;

use crate::arguments::{bytes, count};
use crate::interrupt;
use crate::named::Replaced;
use crate::output::{Failure, Recorder, tell, write_file};
use crate::reproduce;
use crate::runner::{Common, Runner};

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

/// What latency and bandwidth share: what is swept, and the request that is the same for every point.
#[derive(Debug, Clone, Args)]
pub(super) struct Chosen {
    /// Who copies: cpu, exclusive, shared, priority (channels of an engine)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true
    )]
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
    /// Largest by the study's menu: 1 is 2 MiB, 10 is 1024 MiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10), conflicts_with_all = ["up_to", "sizes"])]
    menu: Option<u32>,
    /// Copies of each size
    #[arg(long, value_name = "N", value_parser = repetitions, default_value = "300")]
    reps: u64,
    /// How the CPU copies: see `daqmeter list copies`
    #[arg(long, value_name = "NAME", value_enum, hide_possible_values = true)]
    path: Option<Path>,
    /// Which engine the other contexts use
    #[arg(long, value_enum, default_value = "auto")]
    engine: EngineChoice,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    request: Request,
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
    output: Option<Replaced>,
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
}

/// A direction, with or without caches emptied before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operation {
    direction: Direction,
    cold: bool,
}

fn operation(text: &str) -> Result<Operation, String> {
    let (name, cold) = text.strip_suffix("_nc").map_or((text, false), |name| (name, true));
    let direction = direction(name)
        .map_err(|_| format!("`{text}` is none of from, to, both, from_nc, to_nc, both_nc"))?;
    Ok(Operation { direction, cold })
}

fn direction(text: &str) -> Result<Direction, String> {
    Direction::from_str(text, false).map_err(|_| format!("`{text}` is none of from, to, both"))
}

/// A number of samples: as many as a stage keeps one by one.
fn repetitions(text: &str) -> Result<u64, String> {
    const MAX_REPS: u64 = 65_536;
    match count(text)? {
        reps @ 1..=MAX_REPS => Ok(reps),
        reps => Err(format!("is {reps}; 1 to {MAX_REPS} is wanted")),
    }
}

impl EngineChoice {
    fn path(self) -> Path {
        match self {
            EngineChoice::Auto => Path::of_engine(),
            EngineChoice::Module => Path::Module,
            EngineChoice::Thread => Path::EngineThread,
            EngineChoice::Dsa => Path::Dsa,
        }
    }
}

impl Chosen {
    fn sizes(&self, from: u64) -> Result<Vec<usize>, Failure> {
        let mut sizes = self.sizes.clone();
        let largest = self.menu.map_or(self.up_to, |number| 1 << (20 + number));
        if sizes.is_empty() {
            sizes = (0..40)
                .map(|power| 1 << power)
                .filter(|size| (from..=largest).contains(size))
                .collect();
        }
        if sizes.is_empty() || sizes.contains(&0) {
            return Err(Failure::refused(
                "--sizes: at least one size of 1 B or more is wanted, e.g. --sizes 1,64,4KiB",
            ));
        }
        sizes.into_iter().map(|size| usize::try_from(size).map_err(Failure::refused)).collect()
    }

    /// The contexts, each with the way to copy in it.
    fn who(&self, otherwise: &[Context]) -> Result<Vec<(Context, Path)>, Failure> {
        let contexts = if self.contexts.is_empty() { otherwise } else { &self.contexts };
        contexts
            .iter()
            .map(|context| {
                let path = match context {
                    Context::Cpu => self.path.unwrap_or_else(Path::of_cpu),
                    _ => self.engine.path(),
                };
                usable(path).map(|path| (*context, path))
            })
            .collect()
    }

    fn operations(&self, otherwise: &[&str]) -> Vec<Operation> {
        if !self.operations.is_empty() {
            return self.operations.clone();
        }
        otherwise.iter().filter_map(|name| operation(name).ok()).collect()
    }
}

/// What a verb measures, once its options are understood: every context by every operation and size.
struct Study<'a> {
    chosen: &'a Chosen,
    name: &'static str,
    who: Vec<(Context, Path)>,
    operations: Vec<Operation>,
    sizes: Vec<usize>,
    lanes: usize,
    pin: Vec<u32>,
}

/// Time of each stage of a limit.
pub(crate) const LIMIT_TIME: Duration = Duration::from_millis(4);

impl Study<'_> {
    /// Measures all points in random order, each with its limit; then writes table, page and files.
    fn run<F: ToFiles>(&self, mut runner: Runner, ending: &Ending<F>) -> Result<ExitCode, Failure> {
        let measured = self.measure(&mut runner, &ending.kept());
        ending.end(&mut runner, measured)
    }

    fn measure(&self, runner: &mut Runner, kept: &Kept) -> Result<(), Failure> {
        runner.limits = Limits::shared(LIMIT_TIME);
        let points = self.points();
        check(&points)?;
        runner.expect(points.len());
        let settings = runner.settings(StepPlan::ByStage(self.chosen.reps), self.name, &self.pin);
        for (order, workload) in ordered(points, self.chosen.seed) {
            runner.point("copy", &workload, &settings, Some(order))?;
            kept.add(&runner.recorder.records);
        }
        Ok(())
    }

    fn points(&self) -> Vec<Workload> {
        let mut points = Vec::new();
        for &(context, path) in &self.who {
            for &Operation { direction, cold } in &self.operations {
                for &block_bytes in &self.sizes {
                    let request = Request {
                        path,
                        context,
                        direction,
                        cold,
                        block_bytes,
                        lanes: self.lanes,
                        ..self.chosen.request.clone()
                    };
                    points.push(request.workload());
                }
            }
        }
        points
    }
}

/// Refuses what cannot be measured before anything is.
fn check(points: &[Workload]) -> Result<(), Failure> {
    let refused = |fault: Fault| Failure::refused(fault.context("choose smaller --sizes"));
    for point in points {
        let request = Request::of(point).map_err(Failure::refused)?;
        check_fits(CopyEngine.memory_bytes(&request)).map_err(refused)?;
    }
    Ok(())
}

/// The path, or why it cannot be used here.
fn usable(path: Path) -> Result<Path, Failure> {
    match path.probe() {
        Availability::Ready => Ok(path),
        Availability::Waived(reason) => Err(Failure::refused(reason)),
    }
}

/// Writes the original's files.
fn write_classic(written: &Written, files: &Files) -> Result<(), Failure> {
    let Some(dir) = written.out_dir.as_ref().filter(|_| written.format == Format::Classic) else {
        return Ok(());
    };
    for (name, text) in files {
        let path = Replaced::at(dir.join(name));
        if let Some(parent) = path.parent() {
            let made = std::fs::create_dir_all(parent);
            made.map_err(|error| Failure::refused(format!("make {}: {error}", parent.display())))?;
        }
        write_file(&path, text)?;
    }
    tell(&format!("wrote {} below {}", plural(files.len() as u64, "file"), dir.display()));
    Ok(())
}

/// The original's files of records.
trait ToFiles: Fn(&[RunRecord]) -> Files + Clone + Send + 'static {}

impl<F: Fn(&[RunRecord]) -> Files + Clone + Send + 'static> ToFiles for F {}

/// What every study ends with: the original's files, its table, the page, the exit code.
struct Ending<'a, F> {
    common: &'a Common,
    written: &'a Written,
    text: fn(&[RunRecord]) -> String,
    files: F,
}

/// Copies of the finished points, for the thread that ends the program when the point at hand does
/// not end.
struct Kept(Arc<Mutex<Vec<RunRecord>>>);

impl Kept {
    fn add(&self, all: &[RunRecord]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = all.get(kept.len()..).unwrap_or_default();
        kept.extend_from_slice(new);
    }
}

impl<F: ToFiles> Ending<'_, F> {
    /// Makes sure that finished points that are added from now on are written at the end, whatever
    /// point a signal interrupts.
    fn kept(&self) -> Kept {
        let (text, files, written) = (self.text, self.files.clone(), self.written.clone());
        let (json, quiet) = (self.common.json, self.common.quiet);
        let records = Arc::new(Mutex::new(Vec::new()));
        let finished = records.clone();
        interrupt::keep_at_end(move || {
            let mut finished = finished.lock().unwrap_or_else(PoisonError::into_inner);
            let mut recorder = Recorder::of(std::mem::take(&mut *finished), json, quiet);
            let done = write_classic(&written, &files(&recorder.records))
                .and_then(|()| recorder.finish(written.output.as_ref(), true, text));
            if let Err(failure) = done {
                failure.report();
            }
        });
        Kept(records)
    }

    /// Finishes the output of all points, or of those before one that could not be measured.
    fn end(&self, runner: &mut Runner, measured: Result<(), Failure>) -> Result<ExitCode, Failure> {
        interrupt::ends_by_itself();
        runner.finish();
        let records = &runner.recorder.records;
        if records.is_empty() {
            measured?;
            return runner.conclude(self.written.output.as_ref(), self.text);
        }
        write_classic(self.written, &(self.files)(records))?;
        let code = runner.conclude(self.written.output.as_ref(), self.text)?;
        measured.map(|()| code)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        chosen: Chosen,
    }

    #[test]
    fn the_studys_menu_chooses_the_largest_block() {
        let largest = |arguments: &[&str]| {
            let options = Options::try_parse_from([&["copy"], arguments].concat());
            options.map(|options| *options.chosen.sizes(1).unwrap().last().unwrap())
        };
        assert_eq!(largest(&["--menu", "1"]).unwrap(), 2 << 20);
        assert_eq!(largest(&["--menu", "10"]).unwrap(), 1024 << 20);
        assert_eq!(largest(&[]).unwrap(), 32 << 20);
        for wrong in [["--menu", "0"], ["--menu", "11"]] {
            assert!(largest(&wrong).is_err(), "{wrong:?}");
        }
        assert!(largest(&["--menu", "1", "--up-to", "1MiB"]).is_err());
    }
}
