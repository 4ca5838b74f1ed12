//! `daqmeter copy`: copies between user and kernel memory.

mod import;
mod pollution;
mod sweep;
mod trace;
mod verify;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use daqmeter_copy::{CopyPath, Direction};
use daqmeter_harness::{Availability, Request, Settings, ordered};
use daqmeter_record::RunRecord;
use daqmeter_record::units::plural;
use daqmeter_report::copy_classic::StudyFiles;

use crate::arguments::count;
use crate::measure::{Bench, Common};
use crate::named::Replaced;
use crate::output::{Ended, Failure, tell, write_file};

#[derive(Debug, Subcommand)]
#[command(
    after_help = "Begin with: daqmeter copy latency",
    after_long_help = "Without the kernel module (kmod/), system calls that really copy stand for the kernel's functions, and a\nthread for the engine; every table says so. `daqmeter list copies` names the ways to copy.\n\nExample:\n\n  $ daqmeter copy latency --sizes 1,64,4KiB,1MiB --pin 1"
)]
pub(crate) enum Verb {
    /// Time of one copy by size, one at a time
    #[command(
        after_long_help = "Pinning and mapping of an engine's copy are outside its clock and reported separately. With several contexts the\nclassic files lie in a folder for each. Their CPU is n/a where the thread moved: name one by --pin.\n\nExample:\n\n  $ daqmeter copy latency --sizes 1,64,4KiB --contexts cpu --classic results"
    )]
    Latency(Box<sweep::Sweep>),
    /// Rate of all CPUs or channels at once
    #[command(
        after_long_help = "MB are of 2^20 bytes, as in the study; the total is the sum of the channels' rates; `together` is all bytes over\nthe time of all. In the classic files (--classic) a line holds channel or CPU, bytes of a copy,\ncopies (both ways at once are two), clock before, clock after, time spent in the copies, rate = bytes x copies / time.\n\nExample:\n\n  $ daqmeter copy bandwidth --contexts cpu,priority --sizes 64KiB,1MiB"
    )]
    Bandwidth(Box<sweep::Sweep>),
    /// Effect of a copying neighbour on a program on another CPU
    Pollution(pollution::Arguments),
    /// Count the kernel's copies by size, caller and process
    Trace(trace::Arguments),
    /// Check every byte of every way, policy and completion
    Verify(verify::Arguments),
    /// Read the original study's files as records
    Import(import::Arguments),
}

impl Verb {
    pub(crate) fn run(&self) -> Ended {
        match self {
            Verb::Latency(sweep) => sweep.run(&sweep::LATENCY),
            Verb::Bandwidth(sweep) => sweep.run(&sweep::BANDWIDTH),
            Verb::Pollution(arguments) => pollution::run(arguments),
            Verb::Trace(arguments) => trace::run(arguments),
            Verb::Verify(arguments) => verify::run(arguments),
            Verb::Import(arguments) => import::run(arguments),
        }
    }
}

/// Options of every measured sweep.
#[derive(Debug, Clone, Args)]
struct Sampled {
    /// Samples of each point
    #[arg(long, value_name = "N", value_parser = repetitions, default_value = "300")]
    reps: u64,
    /// Write the original study's files into this directory, too
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    classic: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

impl Sampled {
    /// Measures all points in random order. The outputs have the finished points also when one
    /// cannot be measured.
    fn measure<R: Request>(
        &self,
        mut bench: Bench,
        requests: Vec<R>,
        settings: &Settings,
        files: impl FnOnce(&[RunRecord]) -> StudyFiles,
        text: fn(&[RunRecord]) -> String,
    ) -> Ended {
        bench.recorder.expect(requests.len());
        let measured = ordered(requests, 1)
            .into_iter()
            .try_for_each(|(order, request)| bench.measure(&request, settings, Some(order)));
        let records = &bench.recorder.records;
        if records.is_empty() {
            measured?;
            return bench.recorder.finish(text);
        }
        if let Some(folder) = &self.classic {
            write_files(folder, &files(records))?;
        }
        let code = bench.recorder.finish(text)?;
        measured.map(|()| code)
    }
}

fn write_files(folder: &Path, files: &StudyFiles) -> Result<(), Failure> {
    for (name, text) in files {
        let path = Replaced::at(folder.join(name));
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent)
            .map_err(|error| format!("make {}: {error}", parent.display()))?;
        write_file(&path, text)?;
    }
    tell(&format!("wrote {} below {}", plural(files.len() as u64, "file"), folder.display()));
    Ok(())
}

fn or_all<'a, T>(chosen: &'a [T], all: &'a [T]) -> &'a [T] {
    if chosen.is_empty() { all } else { chosen }
}

fn direction(text: &str) -> Result<Direction, String> {
    Direction::from_str(text, false).map_err(|_| format!("`{text}` is none of from, to, both"))
}

/// Reads a number of samples: at most the number that a stage keeps one by one.
fn repetitions(text: &str) -> Result<u64, String> {
    const MAX_REPS: u64 = 65_536;
    match count(text).map_err(|error| error.to_string())? {
        reps @ 1..=MAX_REPS => Ok(reps),
        reps => Err(format!("is {reps}; 1 to {MAX_REPS} is wanted")),
    }
}

fn usable(path: CopyPath) -> Result<CopyPath, Failure> {
    match path.probe() {
        Availability::Ready => Ok(path),
        Availability::Waived(reason) => Err(reason.into()),
    }
}
