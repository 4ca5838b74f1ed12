//! What is measured. No plan file: copies by the module or by an emulated engine, how many lanes, and which CPU has a program's
//! neighbour depend on the host. `plans/copies.toml` measures the same questions by every path and is not tied to the document.

use std::time::Duration;

use daqmeter_copy::{
    CopyContext, CopyPath, CopyRequest, Direction, Neighbour, PollutionRequest, TESTS,
    module_waiver,
};
use daqmeter_harness::{Request as _, StepPlan, ordered};
use daqmeter_record::Workload;

use crate::PlannedPoint;
use crate::studies::Wanted;

/// Copies of each size.
const USUAL_REPS: u64 = 300;
/// Three hundred copies of 32 MiB, or runs of a program, would take longer than everything else.
const MAX_LONG_REPS: u64 = 30;
/// Blocks above this are long.
const LONG_BYTES: u64 = 4 << 20;
/// Sizes: each third power of two up to the study's largest, and a cache line.
const SIZES: [usize; 9] = [1, 64, 512, 4096, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20];
/// Sizes of the bandwidth points.
const LARGE: [usize; 2] = [64 << 10, 1 << 20];
/// How long lanes copy at the same time. By a number of copies each, as in the study, a lane that waited for its CPU goes on alone
/// when the others are done, and the sum of the rates is of no time at all.
const AT_ONCE: Duration = Duration::from_millis(200);
/// One image filter and one sort, of those whose data fill a cache.
const PROGRAMS: [&str; 2] = ["qsort_small", "susan[e]_large"];

pub(super) fn points(wanted: &Wanted<'_>) -> Vec<PlannedPoint> {
    let engine = CopyPath::of_engine();
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
            takes: None,
            extent: None,
            profile_hz: None,
            place,
            source: "reproduce copy".into(),
        })
        .collect()
}

fn steps(workload: &Workload, reps: u64) -> StepPlan {
    if workload.int("lanes").is_ok_and(|lanes| lanes > 1) {
        return StepPlan::Timed(AT_ONCE);
    }
    let is_large = workload.int("block_bytes").is_ok_and(|bytes| bytes > LONG_BYTES);
    let reps =
        if is_large || workload.kind == "pollution" { reps.min(MAX_LONG_REPS) } else { reps };
    StepPlan::ByStage(reps.max(2))
}

/// Every size, from and to the kernel, warm and cold, by the CPU and by the engine.
fn latencies(engine: CopyPath) -> Vec<Workload> {
    let by_cpu = if module_waiver().is_none() { CopyPath::Module } else { CopyPath::Pread };
    let ways = [
        (CopyContext::Cpu, by_cpu, false),
        (CopyContext::Cpu, by_cpu, true),
        (CopyContext::Exclusive, engine, false),
        (CopyContext::Exclusive, engine, true),
        (CopyContext::Shared, engine, false),
    ];
    let mut points = Vec::new();
    for size in SIZES {
        for (context, path, cold) in ways {
            for direction in [Direction::From, Direction::To] {
                let request =
                    CopyRequest { context, cold, ..CopyRequest::new(path, direction, size) };
                points.push(request.workload());
            }
        }
    }
    points
}

fn bandwidths(engine: CopyPath, lanes: usize) -> Vec<Workload> {
    let request = |context, size| CopyRequest {
        context,
        lanes,
        ..CopyRequest::new(engine, Direction::From, size)
    };
    let contexts = [CopyContext::Exclusive, CopyContext::Shared, CopyContext::Priority];
    contexts
        .into_iter()
        .flat_map(|context| LARGE.map(|size| request(context, size).workload()))
        .collect()
}

/// Programs beside every neighbour, which needs a CPU of its own.
fn programs(engine: CopyPath, cpus: &[u32]) -> Vec<Workload> {
    let [neighbour_cpu, _, ..] = cpus else {
        return Vec::new();
    };
    let is_known = |name: &&str| TESTS.contains(name);
    debug_assert!(PROGRAMS.iter().all(is_known));
    let point = |test: &str, neighbour: Neighbour| {
        let path = match neighbour {
            Neighbour::Dma => engine,
            _ => CopyPath::Pread,
        };
        let request = PollutionRequest {
            test: test.to_owned(),
            neighbour,
            direction: Direction::From,
            block_bytes: 16_064,
            path,
            peer_cpu: Some(*neighbour_cpu),
            simulated: false,
        };
        request.workload()
    };
    let neighbours =
        [Neighbour::Ideal, Neighbour::Cpu, Neighbour::Dma, Neighbour::Spin, Neighbour::NullCall];
    PROGRAMS
        .into_iter()
        .flat_map(|test| neighbours.map(|neighbour| point(test, neighbour)))
        .collect()
}
