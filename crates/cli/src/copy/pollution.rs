//! `daqmeter copy pollution`: programs beside neighbours.

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use daqmeter_copy::{CopyPath, Direction, Neighbour, PollutionRequest, STUDY_COPIES, TESTS};
use daqmeter_harness::StepPlan;
use daqmeter_report::copy::pollution;
use daqmeter_report::copy_classic;

use super::{Sampled, direction, or_all, usable};
use crate::arguments::bytes;
use crate::measure::Bench;
use crate::output::{Ended, Failure};

/// Measure how a copying neighbour slows down a program on another CPU: time, and cache misses if
/// the host counts them.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/copy-pollution.txt"))]
pub(crate) struct Arguments {
    /// Programs [default: all of the study]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = PossibleValuesParser::new(TESTS), hide_possible_values = true)]
    tests: Vec<String>,
    /// Work of the neighbour: ideal, cpu, dma, spin, null-call
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    neighbours: Vec<Neighbour>,
    /// Copies of the neighbour, as direction:size [default: the study's six]
    #[arg(long, value_name = "DIR:SIZE,..", value_delimiter = ',', value_parser = copies)]
    copies: Vec<(Direction, usize)>,
    #[command(flatten)]
    request: PollutionRequest,
    #[command(flatten)]
    sampled: Sampled,
}

pub(super) fn copies(text: &str) -> Result<(Direction, usize), String> {
    let (way, size) =
        text.split_once(':').ok_or_else(|| format!("`{text}` is not like from:224"))?;
    let size = usize::try_from(bytes(size)?).map_err(|error| error.to_string())?;
    if size == 0 {
        return Err(format!("`{text}`: copies of 1 B or more are wanted"));
    }
    Ok((direction(way)?, size))
}

fn placement(arguments: &Arguments, cpus: &[u32]) -> Result<(u32, u32), Failure> {
    let (program, neighbour) = match arguments.sampled.common.pins().as_slice() {
        [program, neighbour, ..] => (*program, *neighbour),
        [program] => (*program, cpus[0]),
        [] => (cpus[cpus.len() - 1], cpus[0]),
    };
    match program == neighbour && arguments.neighbours != [Neighbour::Ideal] {
        false => Ok((program, neighbour)),
        true => Err("program and neighbour need two CPUs; this process may use only one".into()),
    }
}

fn requests(arguments: &Arguments, neighbour_cpu: u32) -> Vec<PollutionRequest> {
    let all_tests = TESTS.map(str::to_owned);
    let tests = or_all(&arguments.tests, &all_tests);
    let neighbours = or_all(&arguments.neighbours, Neighbour::value_variants());
    let engine = CopyPath::of_engine();
    let mut requests = Vec::new();
    for &(direction, block_bytes) in or_all(&arguments.copies, &STUDY_COPIES) {
        for test in tests {
            for &neighbour in neighbours {
                let (test, mut request) = (test.clone(), arguments.request.clone());
                if neighbour == Neighbour::Dma {
                    request.path = engine;
                }
                let peer_cpu = Some(neighbour_cpu);
                let chosen = PollutionRequest { test, neighbour, direction, ..request };
                requests.push(PollutionRequest { block_bytes, peer_cpu, ..chosen });
            }
        }
    }
    requests
}

pub(super) fn run(arguments: &Arguments) -> Ended {
    usable(arguments.request.path)?;
    let sampled = &arguments.sampled;
    let bench = Bench::new(&sampled.common)?;
    let (program, neighbour) = placement(arguments, &bench.runner.context.host.allowed_cpus)?;
    let plan = StepPlan::ByStage(sampled.repeat);
    let settings = bench.runner.settings(plan, "copy/pollution", &[program]);
    let files = |records: &_| copy_classic::pollution(records, "daqmeter");
    sampled.measure(bench, requests(arguments, neighbour), &settings, files, pollution)
}
