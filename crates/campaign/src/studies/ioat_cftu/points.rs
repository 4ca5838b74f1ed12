//! What is measured. No plan file: copies by the module or by an emulated engine, how many lanes, and which CPU has a program's
//! neighbour depend on the host. `plans/copies.toml` measures the same questions by every path and is not tied to the document.

use daqmeter_copy::{Context, Direction, Request, TESTS, module_has_channels, module_waiver};
use daqmeter_harness::{StepPlan, ordered};
use daqmeter_record::Workload;

use crate::plan::PlannedPoint;
use crate::studies::Wanted;

/// Copies of each size.
const USUAL_REPS: u64 = 300;
/// Three hundred copies of 32 MiB, or runs of a program, would take longer than everything else.
const MAX_LONG_REPS: u64 = 30;
/// Blocks above this are long.
const LONG_BYTES: u64 = 4 << 20;
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
/// One image filter and one sort, of those whose data fill a cache.
const PROGRAMS: [&str; 2] = ["qsort_small", "susan[e]_large"];

pub(super) fn points(wanted: &Wanted<'_>) -> Vec<PlannedPoint> {
    let engine = if module_has_channels() {
        "module"
    } else {
        "engine-thread"
    };
    let mut workloads = latencies(engine);
    workloads.extend(bandwidths(engine, wanted.cpus.len().clamp(2, 4)));
    workloads.extend(programs(engine, wanted.cpus));
    let pin: Vec<u32> = wanted.cpus.iter().rev().copied().collect();
    let reps = wanted.reps.unwrap_or(USUAL_REPS);
    let points = ordered(workloads, 1).into_iter();
    points
        .map(|(place, workload)| PlannedPoint {
            study: "copy/reproduce".to_owned(),
            engine: workload.kind.clone(),
            steps: steps(&workload, reps),
            workload,
            pin: pin.clone(),
            profile_hz: None,
            place,
            source: "reproduce copy".into(),
        })
        .collect()
}

fn steps(workload: &Workload, reps: u64) -> StepPlan {
    let is_large = workload
        .int("block_bytes")
        .is_ok_and(|bytes| bytes > LONG_BYTES);
    let reps = if is_large || workload.kind == "pollution" {
        reps.min(MAX_LONG_REPS)
    } else {
        reps
    };
    StepPlan::ByStage(reps.max(2))
}

/// Every size, from and to the kernel, warm and cold, by the CPU and by the engine.
fn latencies(engine: &str) -> Vec<Workload> {
    let by_cpu = if module_waiver().is_none() {
        "module"
    } else {
        "pread"
    };
    let ways = [
        (Context::Cpu, by_cpu, false),
        (Context::Cpu, by_cpu, true),
        (Context::Exclusive, engine, false),
        (Context::Exclusive, engine, true),
        (Context::Shared, engine, false),
    ];
    let mut points = Vec::new();
    for size in SIZES {
        for (context, path, cold) in ways {
            for direction in [Direction::From, Direction::To] {
                let request = Request {
                    context,
                    cold,
                    ..Request::new(path, direction, size)
                };
                points.push(request.workload());
            }
        }
    }
    points
}

fn bandwidths(engine: &str, lanes: usize) -> Vec<Workload> {
    let request = |context, size| Request {
        context,
        lanes,
        ..Request::new(engine, Direction::From, size)
    };
    let contexts = [Context::Exclusive, Context::Shared, Context::Priority];
    contexts
        .into_iter()
        .flat_map(|context| LARGE.map(|size| request(context, size).workload()))
        .collect()
}

/// Programs beside every neighbour, which needs a CPU of its own.
fn programs(engine: &str, cpus: &[u32]) -> Vec<Workload> {
    let [neighbour_cpu, _, ..] = cpus else {
        return Vec::new();
    };
    let is_known = |name: &&str| TESTS.iter().any(|(known, _)| known == name);
    debug_assert!(PROGRAMS.iter().all(is_known));
    let point = |test: &str, neighbour: &str| {
        let path = if neighbour == "dma" { engine } else { "pread" };
        Workload::new("pollution")
            .with("test", test)
            .with("neighbour", neighbour)
            .with("direction", "from")
            .with("block_bytes", 16_064_u64)
            .with("path", path)
            .with("neighbour_cpu", *neighbour_cpu)
    };
    let neighbours = ["ideal", "cpu", "dma", "spin", "null-call"];
    PROGRAMS
        .into_iter()
        .flat_map(|test| neighbours.map(|neighbour| point(test, neighbour)))
        .collect()
}
