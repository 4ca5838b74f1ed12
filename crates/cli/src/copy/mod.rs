//! `daqmeter copy`: copies between user and kernel memory.

mod import;
mod pollution;
mod sweep;
mod trace;
mod verify;

use std::time::Duration;

use clap::{Args, ValueEnum};
use daqmeter_copy::{CopyPath, Direction};
use daqmeter_harness::{Request, Settings};
use daqmeter_record::RunRecord;
use daqmeter_record::units::plural;
use daqmeter_report::Frame;
use daqmeter_report::copy_classic::StudyFiles;

use crate::arguments::{budget, count};
use crate::deferred::{Deferred, verbs};
use crate::measure::{Bench, Common};
use crate::named::{OutputFolder, Replaced};
use crate::output::{Ended, Failure, tell, write_file};

verbs! {
    #[command(
        after_help = "Begin with: daqmeter copy latency",
        after_long_help = include_str!("../../help/copy.txt")
    )]
    pub(crate) enum Verb {
        /// Time single copies, by size
        #[command(after_long_help = include_str!("../../help/copy-latency.txt"))]
        Latency(sweep: Deferred<sweep::Sweep>) => sweep.run(&sweep::LATENCY),
        /// Measure the rate of all CPUs or channels together
        #[command(after_long_help = include_str!("../../help/copy-bandwidth.txt"))]
        Bandwidth(sweep: Deferred<sweep::Sweep>) => sweep.run(&sweep::BANDWIDTH),
        /// Measure how a copying neighbour slows down a program
        Pollution(arguments: Deferred<pollution::Arguments>) => pollution::run(arguments),
        /// Count the kernel's copies by size, caller and process
        Trace(arguments: Deferred<trace::Arguments>) => trace::run(arguments),
        /// Check each byte of each way to copy
        Verify(arguments: Deferred<verify::Arguments>) => verify::run(arguments),
        /// Read files of the original study as records
        Import(arguments: Deferred<import::Arguments>) => import::run(arguments),
    }
}

/// Options of every measured sweep.
#[derive(Debug, Clone, Args)]
struct Sampled {
    /// Repetitions of each point
    #[arg(long, value_name = "N", value_parser = repetitions, default_value = "300")]
    repeat: u64,
    /// Time for all points together
    ///
    /// If it is too short, each point has fewer repetitions.
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "50s")]
    time: Duration,
    /// Also write the files of the original study, into this directory
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    classic: Option<OutputFolder>,
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
        frame: fn(&[RunRecord]) -> Frame,
    ) -> Ended {
        let measured = bench.measure_all(requests, settings, self.time);
        let records = &bench.recorder.records;
        if records.is_empty() {
            measured?;
            if settings.stop.is_set() {
                tell("daqmeter: interrupted before a point was measured");
            }
            return bench.recorder.finish(frame);
        }
        if let Some(folder) = &self.classic {
            write_files(folder, &files(records))?;
        }
        let code = bench.recorder.finish(frame)?;
        measured.map(|()| code)
    }
}

fn write_files(OutputFolder(folder): &OutputFolder, files: &StudyFiles) -> Result<(), Failure> {
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
    const MAX_REPEAT: u64 = 65_536;
    match count(text)? {
        count @ 1..=MAX_REPEAT => Ok(count),
        count => Err(format!("is {count}; 1 to {MAX_REPEAT} is wanted")),
    }
}

fn usable(path: CopyPath) -> Result<CopyPath, Failure> {
    path.waiver().map_or(Ok(path), |reason| Err(reason.into()))
}
