//! `daqmeter copy reproduce`: the study's claims, asked of this host.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_copy::{Context, Direction, Neighbour, Path, PollutionRequest, Request};
use daqmeter_harness::{Limits, Request as _, StepPlan, ordered};
use daqmeter_record::Workload;

use super::LIMIT_TIME;
use crate::arguments::count;
use crate::output::{Failure, read_records};
use crate::runner::{Common, Runner};
use crate::studies::{self, show_one};

/// Set the study's figures beside this host, and ask its questions: crossover, spread, policies, pollution.
#[derive(Debug, Args)]
#[command(
    mut_arg("json", studies::json_help),
    after_long_help = "The study's machine is gone and its engine no longer supported (reference: ioatdma binds version 3 and later), so\nanswers are this host's own. What an emulated engine shows is said to be so.\n\nExample:\n\n  $ daqmeter copy reproduce --out claims.jsonl"
)]
pub(super) struct Arguments {
    /// Judge these records instead of measuring; traces and a cache model's misses may be among them
    #[arg(long, value_name = "FILE.jsonl")]
    from: Vec<PathBuf>,
    /// Copies of each size
    #[arg(long, value_name = "N", value_parser = count, default_value = "300")]
    reps: u64,
    /// Page to write
    #[arg(short, long, value_name = "FILE.html", help_heading = "Output")]
    output: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Sizes: each third power of two up to the study's largest, and a cache line.
const SIZES: [usize; 9] = [
    1,
    64,
    512,
    4096,
    32 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    32 << 20,
];
/// Sizes of the bandwidth points.
const LARGE: [usize; 2] = [64 << 10, 1 << 20];

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (json, page) = (arguments.common.json, arguments.output.as_deref());
    if !arguments.from.is_empty() {
        let records = read_records(&arguments.from)?;
        show_one(studies::copy(&records), &records, json, page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut runner = studies::runner(&arguments.common)?;
    let pin = arguments.common.pin.as_ref().map(|list| list.0.clone());
    measure(&mut runner, pin, arguments.reps)?;
    runner.finish();
    let records = &runner.recorder.records;
    show_one(studies::copy(records), records, json, page)?;
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

/// Measures the study's points, each so many times.
pub(crate) fn measure(
    runner: &mut Runner,
    pin: Option<Vec<u32>>,
    reps: u64,
) -> Result<(), Failure> {
    let cpus = runner.context.host.allowed_cpus.clone();
    let pin = pin.unwrap_or_else(|| cpus.iter().rev().copied().collect());
    runner.limits = Limits::shared(LIMIT_TIME);
    let (by_cpu, engine) = (Path::of_cpu(), Path::of_engine());
    let mut points = latencies(by_cpu, engine);
    points.extend(bandwidths(engine, cpus.len().clamp(2, 4)));
    points.extend(neighbours(engine, &cpus));
    runner.expect(points.len());
    for (order, (engine, workload)) in ordered(points, 1) {
        // Three hundred copies of 32 MiB would take longer than everything else.
        let large = workload
            .int("block_bytes")
            .is_ok_and(|bytes| bytes > 4 << 20);
        let times = if large || engine == "pollution" {
            reps.min(30)
        } else {
            reps
        };
        let settings = runner.settings(StepPlan::ByStage(times.max(2)), "copy/reproduce", &pin);
        runner.point(engine, &workload, &settings, Some(order))?;
    }
    Ok(())
}

type Point = (&'static str, Workload);

fn latencies(by_cpu: Path, engine: Path) -> Vec<Point> {
    let mut points = Vec::new();
    for size in SIZES {
        for (context, path) in [
            (Context::Cpu, by_cpu),
            (Context::Exclusive, engine),
            (Context::Shared, engine),
        ] {
            for direction in [Direction::From, Direction::To] {
                for cold in [false, true] {
                    if cold && context == Context::Shared {
                        continue;
                    }
                    let request = Request {
                        context,
                        cold,
                        ..Request::new(path, direction, size)
                    };
                    points.push(("copy", request.workload()));
                }
            }
        }
    }
    points
}

fn bandwidths(engine: Path, lanes: usize) -> Vec<Point> {
    let request = |context, size| Request {
        context,
        lanes,
        ..Request::new(engine, Direction::From, size)
    };
    let contexts = [Context::Exclusive, Context::Shared, Context::Priority];
    contexts
        .into_iter()
        .flat_map(|context| LARGE.map(|size| ("copy", request(context, size).workload())))
        .collect()
}

/// One image filter and one sort, of those whose data fill a cache, beside every neighbour.
fn neighbours(engine: Path, cpus: &[u32]) -> Vec<Point> {
    if cpus.len() < 2 {
        return Vec::new();
    }
    let point = |test: &str, neighbour| {
        let request = PollutionRequest {
            test: test.to_owned(),
            neighbour,
            direction: Direction::From,
            block_bytes: 16_064,
            path: match neighbour {
                Neighbour::Dma => engine,
                _ => Path::Pread,
            },
            peer_cpu: Some(cpus[0]),
            simulated: false,
        };
        ("pollution", request.workload())
    };
    let neighbours = Neighbour::value_variants();
    ["qsort_small", "susan[e]_large"]
        .into_iter()
        .flat_map(|test| {
            neighbours
                .iter()
                .map(move |neighbour| point(test, *neighbour))
        })
        .collect()
}
