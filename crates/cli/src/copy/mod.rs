//! `daqmeter copy`: copies between user and kernel memory.

mod figures;
mod import;
mod pollution;
mod sweep;
mod trace;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use daqmeter_copy::{CopyPath, Direction};
use daqmeter_harness::{Availability, Settings, ordered};
use daqmeter_record::units::plural;
use daqmeter_record::{RunRecord, Workload};
use daqmeter_report::copy_classic::StudyFiles;

use crate::arguments::count;
use crate::interrupt;
use crate::named::Replaced;
use crate::output::{Failure, Recorder, tell, write_file};
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
    #[command(
        after_long_help = "Pinning and mapping of an engine's copy are outside its clock and reported separately. With several contexts the\nclassic files lie in a folder for each. Their CPU is n/a where the thread moved: name one by --pin.\n\nExample:\n\n  $ daqmeter copy latency --sizes 1,64,4KiB --contexts cpu --format classic --out-dir results"
    )]
    Latency(sweep::Sweep),
    /// Rate of all CPUs or channels at once
    #[command(
        after_long_help = "MB are of 2^20 bytes, as in the study; the total is the sum of the channels' rates, and beside it stands what\nall bytes over the time of all give. In the classic files (--format classic) a line holds channel or CPU, bytes of a copy,\ncopies (both ways at once are two), clock before, clock after, time spent in the copies, rate = bytes x copies / time.\n\nExample:\n\n  $ daqmeter copy bandwidth --contexts cpu,priority --sizes 64KiB,1MiB"
    )]
    Bandwidth(sweep::Bandwidth),
    /// What a copying neighbour does to a program on another CPU
    Pollution(pollution::Arguments),
    /// Count the kernel's copies by size, caller and process
    Trace(trace::Arguments),
    /// Check every byte of every way, policy and completion
    Verify(verify::Arguments),
    /// Draw the study's 50 figures from records
    Figures(figures::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::Latency(sweep) => sweep::latency(sweep),
        Verb::Bandwidth(arguments) => sweep::bandwidth(arguments),
        Verb::Pollution(arguments) => pollution::run(arguments),
        Verb::Trace(arguments) => trace::run(arguments),
        Verb::Verify(arguments) => verify::run(arguments),
        Verb::Figures(arguments) => figures::run(arguments),
    }
}

pub(crate) const LIMIT_TIME: Duration = Duration::from_millis(4);

/// The files of a run.
#[derive(Debug, Clone, Args)]
struct Written {
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

impl Written {
    fn is_classic(&self) -> bool {
        self.format == Format::Classic
    }

    fn write(&self, files: &StudyFiles) -> Result<(), Failure> {
        let Some(dir) = self.out_dir.as_ref().filter(|_| self.is_classic()) else {
            return Ok(());
        };
        for (name, text) in files {
            let path = Replaced::at(dir.join(name));
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).map_err(|error| {
                    Failure::refused(format!("make {}: {error}", parent.display()))
                })?;
            }
            write_file(&path, text)?;
        }
        tell(&format!("wrote {} below {}", plural(files.len() as u64, "file"), dir.display()));
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Operation {
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

/// Reads a number of samples: at most the number that a stage keeps one by one.
fn repetitions(text: &str) -> Result<u64, String> {
    const MAX_REPS: u64 = 65_536;
    match count(text)? {
        reps @ 1..=MAX_REPS => Ok(reps),
        reps => Err(format!("is {reps}; 1 to {MAX_REPS} is wanted")),
    }
}

fn usable(path: CopyPath) -> Result<CopyPath, Failure> {
    match path.probe() {
        Availability::Ready => Ok(path),
        Availability::Waived(reason) => Err(Failure::refused(reason)),
    }
}

struct Ending<'a, F> {
    common: &'a Common,
    written: &'a Written,
    text: fn(&[RunRecord]) -> String,
    files: F,
}

impl<F: Fn(&[RunRecord]) -> StudyFiles + Clone + Send + 'static> Ending<'_, F> {
    /// Measures all points in random order and writes the outputs. They have the finished points
    /// also when one cannot be measured, or does not end after a signal.
    fn measure(
        &self,
        mut runner: Runner,
        engine: &str,
        points: Vec<Workload>,
        settings: &Settings,
        seed: u64,
    ) -> Result<ExitCode, Failure> {
        let kept = self.keep_at_end();
        runner.expect(points.len());
        let measured = ordered(points, seed).into_iter().try_for_each(|(order, workload)| {
            runner.point(engine, &workload, settings, Some(order))?;
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let new = runner.recorder.records.get(kept.len()..).unwrap_or_default();
            kept.extend_from_slice(new);
            Ok(())
        });
        interrupt::ends_by_itself();
        runner.finish();
        if runner.recorder.records.is_empty() {
            measured?;
            return runner.conclude(self.written.output.as_ref(), self.text);
        }
        self.written.write(&(self.files)(&runner.recorder.records))?;
        let code = runner.conclude(self.written.output.as_ref(), self.text)?;
        measured.map(|()| code)
    }

    fn keep_at_end(&self) -> Arc<Mutex<Vec<RunRecord>>> {
        let (text, files, written) = (self.text, self.files.clone(), self.written.clone());
        let (json, quiet) = (self.common.json, self.common.quiet);
        let records = Arc::new(Mutex::new(Vec::new()));
        let finished = records.clone();
        interrupt::keep_at_end(move || {
            let mut finished = finished.lock().unwrap_or_else(PoisonError::into_inner);
            let mut recorder = Recorder::of(std::mem::take(&mut *finished), json, quiet);
            let done = written
                .write(&files(&recorder.records))
                .and_then(|()| recorder.finish(written.output.as_ref(), true, text));
            if let Err(failure) = done {
                failure.report();
            }
        });
        records
    }
}
