//! `daqmeter copy pollution`: programs beside neighbours.

use std::path::{Path as File, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use daqmeter_copy::{CopyPath, Direction, Neighbour, PollutionRequest, STUDY_COPIES, TESTS};
use daqmeter_harness::{Request as _, StepPlan};
use daqmeter_record::{EngineInfo, RunRecord, Workload};
use daqmeter_report::copy::pollution_text;
use daqmeter_report::copy_classic;

use super::import::{Import, UNKNOWN, folder};
use super::{Ending, Written, direction, repetitions, usable};
use crate::arguments::bytes;
use crate::output::Failure;
use crate::runner::{Common, Runner};

/// What a copying neighbour does to a program on another CPU: time, and cache misses where they can
/// be counted.
#[derive(Debug, Args)]
#[command(
    after_long_help = "The program runs on the last CPU allowed, the neighbour on the first (--pin PROGRAM,NEIGHBOUR). `spin` and\n`null-call` touch no memory: what they cost, copying does not explain. Where the host counts no\ncache references and misses, the classic files hold n/a for them.\n\nExample:\n\n  $ daqmeter copy pollution --tests qsort_small,susan[e]_large --copies from:16064 --reps 100"
)]
pub(super) struct Arguments {
    /// Read the study's files instead (measure_X.dat), or the folders that hold them
    #[arg(long, value_name = "FILE|DIR", num_args = 1.., conflicts_with_all = ["tests", "reps", "path", "seed", "pin", "observe", "metrics"])]
    from: Vec<PathBuf>,
    /// Programs; without, all of the study
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = PossibleValuesParser::new(TESTS), hide_possible_values = true)]
    tests: Vec<String>,
    /// What the neighbour does: ideal, cpu, dma, spin, null-call
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true
    )]
    neighbours: Vec<Neighbour>,
    /// Its copies, as direction:size; without, the study's six
    #[arg(long, value_name = "DIR:SIZE,..", value_delimiter = ',', value_parser = copies)]
    copies: Vec<(Direction, usize)>,
    /// Runs of each program
    #[arg(long, value_name = "N", value_parser = repetitions, default_value = "300")]
    reps: u64,
    #[command(flatten)]
    request: PollutionRequest,
    /// Name of the classic result files
    #[arg(long, value_name = "NAME", default_value = "daqmeter", help_heading = "Output")]
    name: String,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    common: Common,
}

fn copies(text: &str) -> Result<(Direction, usize), String> {
    let (way, size) =
        text.split_once(':').ok_or_else(|| format!("`{text}` is not like from:224"))?;
    let size = usize::try_from(bytes(size)?).map_err(|error| error.to_string())?;
    if size == 0 {
        return Err(format!("`{text}`: copies of 1 B or more are wanted"));
    }
    Ok((direction(way)?, size))
}

fn placement(arguments: &Arguments, cpus: &[u32]) -> Result<(u32, u32), Failure> {
    let (program, neighbour) = match arguments.common.pin.as_ref().map(|list| list.0.as_slice()) {
        Some([program, neighbour, ..]) => (*program, *neighbour),
        Some([program]) => (*program, cpus[0]),
        _ => (cpus[cpus.len() - 1], cpus[0]),
    };
    let alone = arguments.neighbours == [Neighbour::Ideal];
    if program == neighbour && !alone {
        return Err(Failure::refused(
            "program and neighbour need a CPU each; here is only one allowed",
        ));
    }
    Ok((program, neighbour))
}

fn points(arguments: &Arguments, neighbour_cpu: u32) -> Vec<Workload> {
    let all_tests = TESTS.map(str::to_owned);
    let tests = or_all(&arguments.tests, &all_tests);
    let neighbours = or_all(&arguments.neighbours, Neighbour::value_variants());
    let engine = CopyPath::of_engine();
    let mut points = Vec::new();
    for &(direction, block_bytes) in or_all(&arguments.copies, &STUDY_COPIES) {
        for test in tests {
            for &neighbour in neighbours {
                let request = PollutionRequest {
                    test: test.clone(),
                    neighbour,
                    direction,
                    block_bytes,
                    path: if neighbour == Neighbour::Dma { engine } else { arguments.request.path },
                    peer_cpu: Some(neighbour_cpu),
                    ..arguments.request.clone()
                };
                points.push(request.workload());
            }
        }
    }
    points
}

fn or_all<'a, T>(chosen: &'a [T], all: &'a [T]) -> &'a [T] {
    if chosen.is_empty() { all } else { chosen }
}

/// Reads the neighbour's work from the folder name of our classic files: `cpu_from_224`.
fn of_folder(name: &str) -> Option<(Neighbour, (Direction, usize))> {
    let (rest, bytes) = name.rsplit_once('_')?;
    let (neighbour, way) = rest.rsplit_once('_')?;
    let neighbour = Neighbour::from_str(neighbour, false).ok()?;
    let bytes = bytes.parse().ok().filter(|bytes| *bytes > 0)?;
    Some((neighbour, (direction(way).ok()?, bytes)))
}

fn told(arguments: &Arguments, file: &File) -> Result<(EngineInfo, Workload), Failure> {
    let shown = file.display();
    let refused = |why: &str| Failure::refused(format!("{shown}: {why}"));
    let by_folder = folder(file).and_then(of_folder);
    let said = match (&arguments.neighbours[..], &arguments.copies[..]) {
        ([neighbour], [copies]) => Some((*neighbour, *copies)),
        _ => None,
    };
    let is_silent = arguments.neighbours.is_empty() && arguments.copies.is_empty();
    let (neighbour, (direction, block_bytes)) = match (by_folder, said) {
        (Some(found), said) if is_silent || Some(found) == said => found,
        (Some(_), _) => {
            return Err(refused(
                "its folder says what the neighbour did: leave out --neighbours and --copies",
            ));
        }
        (None, Some(said)) => said,
        (None, None) => {
            return Err(refused(
                "does not say what the neighbour did: add one of --neighbours and one of --copies, e.g. --neighbours cpu --copies from:224",
            ));
        }
    };
    let request =
        PollutionRequest { neighbour, direction, block_bytes, ..arguments.request.clone() };
    let engine =
        EngineInfo { name: "pollution".into(), target: shown.to_string(), emulated: false };
    Ok((engine, request.workload().with("path", UNKNOWN)))
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if !arguments.from.is_empty() {
        let import = Import {
            verb: "pollution",
            from: &arguments.from,
            common: &arguments.common,
            written: &arguments.written,
        };
        let classic = |records: &_| copy_classic::pollution(records, &arguments.name);
        return import.run(|file| told(arguments, file), classic, pollution_text);
    }
    usable(arguments.request.path)?;
    let runner = Runner::new(&arguments.common, 0)?;
    let (program, neighbour) = placement(arguments, &runner.context.host.allowed_cpus)?;
    let points = points(arguments, neighbour);
    let settings = runner.settings(StepPlan::ByStage(arguments.reps), "copy/pollution", &[program]);
    let name = arguments.name.clone();
    let ending = Ending {
        common: &arguments.common,
        written: &arguments.written,
        text: pollution_text,
        files: move |records: &[RunRecord]| copy_classic::pollution(records, &name),
    };
    ending.measure(runner, "pollution", points, &settings, arguments.seed)
}
