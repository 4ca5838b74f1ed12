//! `daqmeter copy latency` and `daqmeter copy bandwidth`: one sweep over contexts, operations and
//! block sizes. It uses one lane, or all CPUs or channels at once.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_copy::{CopyContext as Context, CopyPath, CopyRequest};
use daqmeter_harness::{Fault, Limits, Request as _, StepPlan, check_fits};
use daqmeter_record::{EngineInfo, RunRecord, Workload};
use daqmeter_report::copy::{bandwidth_text, latency_text};
use daqmeter_report::copy_classic::{self, StudyFiles};

use super::import::{Import, NOT_OF_FILES, UNKNOWN, folder};
use super::{Ending, LIMIT_TIME, Operation, Written, operation, repetitions, usable};
use crate::arguments::{bytes, count};
use crate::output::Failure;
use crate::runner::{Common, Runner};

#[derive(Debug, Clone, Args)]
pub(super) struct Sweep {
    /// Read the study's files instead (micro-benchmark_*.dat, measures_*.dat), or their folders
    #[arg(long, value_name = "FILE|DIR", num_args = 1.., conflicts_with_all = NOT_OF_FILES)]
    from: Vec<PathBuf>,
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
    path: Option<CopyPath>,
    /// Which engine the other contexts use
    #[arg(long, value_enum, default_value = "auto")]
    engine: EngineChoice,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    request: CopyRequest,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Clone, Args)]
pub(super) struct Bandwidth {
    #[command(flatten)]
    sweep: Sweep,
    /// CPUs or channels that copy at once; without, as many as CPUs are allowed
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "from")]
    lanes: Option<u64>,
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

impl EngineChoice {
    fn path(self) -> CopyPath {
        match self {
            EngineChoice::Auto => CopyPath::of_engine(),
            EngineChoice::Module => CopyPath::Module,
            EngineChoice::Thread => CopyPath::EngineThread,
            EngineChoice::Dsa => CopyPath::Dsa,
        }
    }
}

struct Verb {
    name: &'static str,
    study: &'static str,
    contexts: &'static [Context],
    operations: &'static [&'static str],
    smallest_bytes: u64,
    text: fn(&[RunRecord]) -> String,
    files: fn(&[RunRecord]) -> StudyFiles,
}

const LATENCY: Verb = Verb {
    name: "latency",
    study: "copy/latency",
    contexts: &[Context::Cpu, Context::Exclusive, Context::Shared],
    operations: &["from", "to", "from_nc", "to_nc"],
    smallest_bytes: 1,
    text: latency_text,
    files: copy_classic::latency,
};

const BANDWIDTH: Verb = Verb {
    name: "bandwidth",
    study: "copy/bandwidth",
    contexts: &[Context::Cpu, Context::Exclusive, Context::Shared, Context::Priority],
    operations: &["from", "to", "both"],
    smallest_bytes: 1024,
    text: bandwidth_text,
    files: copy_classic::bandwidth,
};

pub(super) fn latency(sweep: &Sweep) -> Result<ExitCode, Failure> {
    sweep.run(&LATENCY, |_| (1, sweep.common.pins()))
}

pub(super) fn bandwidth(arguments: &Bandwidth) -> Result<ExitCode, Failure> {
    let Bandwidth { sweep, lanes } = arguments;
    sweep.run(&BANDWIDTH, |cpus| {
        let lanes = lanes.map_or(cpus.len(), |lanes| usize::try_from(lanes).unwrap_or(usize::MAX));
        (lanes, sweep.common.pin.as_ref().map_or(cpus.to_vec(), |list| list.0.clone()))
    })
}

impl Sweep {
    /// Measures a sweep. `placement` gives lanes and CPUs to pin to, from the CPUs allowed.
    fn run(
        &self,
        verb: &Verb,
        placement: impl FnOnce(&[u32]) -> (usize, Vec<u32>),
    ) -> Result<ExitCode, Failure> {
        let (common, written) = (&self.common, &self.written);
        let ending = Ending { common, written, text: verb.text, files: verb.files };
        if !self.from.is_empty() {
            let import = Import { verb: verb.name, from: &self.from, common, written };
            return import.run(|file| self.about_file(file), verb.files, verb.text);
        }
        if verb.name == "latency" && written.is_classic() && self.request.depth > 1 {
            return Err(Failure::refused(
                "--depth: a line of the classic files is one copy, and a call of several blocks is timed as a whole: leave out --depth or --format classic",
            ));
        }
        let paths = self.paths(verb)?;
        let sizes = self.sizes(verb.smallest_bytes)?;
        let mut runner = Runner::new(common, 0)?;
        let (lanes, cpus) = placement(&runner.context.host.allowed_cpus);
        let points = self.points(verb, &paths, &sizes, lanes)?;
        runner.limits = Limits::shared(LIMIT_TIME);
        let settings = runner.settings(StepPlan::ByStage(self.reps), verb.study, &cpus);
        ending.measure(runner, "copy", points, &settings, self.seed)
    }

    fn paths(&self, verb: &Verb) -> Result<Vec<(Context, CopyPath)>, Failure> {
        let asked = if self.contexts.is_empty() { verb.contexts } else { &self.contexts };
        let path = |context: &Context| {
            usable(match context {
                Context::Cpu => self.path.unwrap_or_else(CopyPath::of_cpu),
                _ => self.engine.path(),
            })
            .map(|path| (*context, path))
        };
        asked.iter().map(path).collect()
    }

    fn sizes(&self, smallest: u64) -> Result<Vec<usize>, Failure> {
        let mut sizes = self.sizes.clone();
        if sizes.is_empty() {
            let largest = self.menu.map_or(self.up_to, |number| 1 << (20 + number));
            let powers = (0..40).map(|power| 1 << power);
            sizes = powers.filter(|size| (smallest..=largest).contains(size)).collect();
        }
        if sizes.is_empty() || sizes.contains(&0) {
            return Err(Failure::refused(
                "--sizes: at least one size of 1 B or more is wanted, e.g. --sizes 1,64,4KiB",
            ));
        }
        sizes.into_iter().map(|size| usize::try_from(size).map_err(Failure::refused)).collect()
    }

    /// Returns every context by every operation and size; refuses impossible ones before anything
    /// is measured.
    fn points(
        &self,
        verb: &Verb,
        paths: &[(Context, CopyPath)],
        sizes: &[usize],
        lanes: usize,
    ) -> Result<Vec<Workload>, Failure> {
        let operations = match &self.operations[..] {
            [] => verb.operations.iter().filter_map(|name| operation(name).ok()).collect(),
            asked => asked.to_vec(),
        };
        let mut points = Vec::new();
        for &(context, path) in paths {
            for &Operation { direction, cold } in &operations {
                for &block_bytes in sizes {
                    let asked = self.request.clone();
                    let request =
                        CopyRequest { path, context, direction, cold, block_bytes, lanes, ..asked };
                    let refused =
                        |fault: Fault| Failure::refused(fault.context("choose smaller --sizes"));
                    let workload = request.workload();
                    CopyRequest::of(&workload).map_err(Failure::refused)?;
                    check_fits(request.job()?.memory_bytes).map_err(refused)?;
                    points.push(workload);
                }
            }
        }
        Ok(points)
    }

    /// Returns the copier by the file's folder or by --contexts, with the way that --path or
    /// --engine gives.
    fn about_file(&self, file: &Path) -> Result<(EngineInfo, Workload), Failure> {
        let context = self.context_of(file)?;
        let path = match context {
            Context::Cpu => self.path,
            _ if self.engine == EngineChoice::Auto => None,
            _ => Some(self.engine.path()),
        };
        let request =
            CopyRequest { path: path.unwrap_or(CopyPath::Pread), context, ..self.request.clone() };
        let mut workload = request.workload();
        if path.is_none() {
            workload = workload.with("path", UNKNOWN);
        }
        let engine = EngineInfo {
            name: "copy".into(),
            target: file.display().to_string(),
            emulated: path == Some(CopyPath::EngineThread),
        };
        Ok((engine, workload))
    }

    fn context_of(&self, file: &Path) -> Result<Context, Failure> {
        let by_folder = folder(file).and_then(|name| Context::from_str(name, false).ok());
        let refused = |why: String| Failure::refused(format!("{}: {why}", file.display()));
        match (by_folder, &self.contexts[..]) {
            (Some(context), []) => Ok(context),
            (None, [context]) => Ok(*context),
            (Some(context), [said]) if context == *said => Ok(context),
            (Some(context), [said]) => {
                Err(refused(format!("lies in a folder {context}, and --contexts says {said}")))
            }
            (None, []) => Err(refused(
                "does not say who copied: add --contexts cpu, exclusive, shared or priority".into(),
            )),
            _ => Err(Failure::refused(
                "--contexts: the files of one context are read at a time; name one",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Options {
        #[command(flatten)]
        sweep: Sweep,
    }

    #[test]
    fn the_studys_menu_chooses_the_largest_block() {
        let largest = |arguments: &[&str]| {
            let options = Options::try_parse_from([&["copy"], arguments].concat());
            options.map(|options| *options.sweep.sizes(1).unwrap().last().unwrap())
        };
        for (arguments, bytes) in [
            (&["--menu", "1"][..], Some(2 << 20)),
            (&["--menu", "10"], Some(1024 << 20)),
            (&[], Some(32 << 20)),
            (&["--menu", "0"], None),
            (&["--menu", "11"], None),
            (&["--menu", "1", "--up-to", "1MiB"], None),
        ] {
            assert_eq!(largest(arguments).ok(), bytes, "{arguments:?}");
        }
    }
}
