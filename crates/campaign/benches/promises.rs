//! What `daqmeter cmp` promises, held on this host with real work: the same host twice is no difference in at least 95 of 100
//! repetitions, and a slowdown of 5 % is found in at least 90 of 100, at one point and at all.
//!
//! `cargo bench -p daqmeter-campaign --bench promises [-- REPETITIONS]`; exits with 1 when a promise is broken on a host quiet enough to judge.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints what it found, and stops where it fails"
)]

use std::process::ExitCode;
use std::time::Duration;

use daqmeter_campaign::engines;
use daqmeter_copy::{Direction, Path, Request};
use daqmeter_harness::engine::DeviceTime;
use daqmeter_harness::{
    Availability, Context, Engine, Fault, Request as _, Session, Settings, StageSpec, StepPlan,
    Tally, measure, ordered,
};
use daqmeter_record::{RunRecord, Workload};
use daqmeter_report::cmp::{Compared, cmp};

/// Runs of each point on each side.
const RUNS: u64 = 10;
/// Time of each run.
const TIME: Duration = Duration::from_millis(10);
/// Typical half width of an interval, in per cent, from which on this host says nothing about `cmp`: a quiet one was at 0.3 to 0.6.
const NOISY: f64 = 0.8;
/// Differences that are ignored, as `daqmeter cmp` does unless told otherwise.
const IGNORE: f64 = 0.02;

/// An engine whose every so many operations one is done twice: every twentieth is 5 % slower, with real work. Both sides go through it:
/// one call more on one side only would shift the stack, which alone changes conversions of 270 ns by 4 % on some hosts.
struct Slowed<'a> {
    inner: &'a dyn Engine,
    every: u64,
}

struct SlowedSession {
    inner: Box<dyn Session>,
    every: u64,
    owed: u64,
}

/// Every twentieth, and none.
const SLOWED: u64 = 20;
const UNCHANGED: u64 = u64::MAX;

impl Engine for Slowed<'_> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn description(&self) -> &'static str {
        self.inner.description()
    }

    fn probe(&self) -> Availability {
        self.inner.probe()
    }

    fn target(&self, workload: &Workload) -> String {
        self.inner.target(workload)
    }

    fn example(&self) -> Workload {
        self.inner.example()
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let every = self.every;
        let slowed = |inner| -> Box<dyn Session> {
            Box::new(SlowedSession {
                inner,
                every,
                owed: 0,
            })
        };
        Ok(self.inner.open(workload)?.into_iter().map(slowed).collect())
    }
}

impl Session for SlowedSession {
    fn device(&self) -> String {
        self.inner.device()
    }

    fn stages(&self) -> Vec<StageSpec> {
        self.inner.stages()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.inner.prepare()
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        self.owed += operations;
        let more = self.owed / self.every;
        self.owed %= self.every;
        self.inner.step(stage, operations + more)
    }

    fn device_time(&self) -> DeviceTime {
        self.inner.device_time()
    }

    fn verify(&mut self) -> Result<(), Fault> {
        self.inner.verify()
    }

    fn tally(&mut self) -> Tally {
        self.inner.tally()
    }
}

/// Points whose operations are far shorter than a sample: the twentieth then falls into every sample.
fn points() -> Vec<Workload> {
    let convert = Workload::new("convert")
        .with("scale_factor", 0.123)
        .with("scale_offset", -45.6);
    let copy = Request::new(Path::Pread, Direction::To, 4096);
    vec![
        convert
            .clone()
            .with("samples", 2_000_u64)
            .with("function", 3_u64),
        convert.with("samples", 2_000_u64).with("function", 2_u64),
        copy.workload(),
    ]
}

/// Which points are slower.
type Slower = fn(usize) -> bool;

fn side(
    context: &Context,
    engines: &[Box<dyn Engine>],
    seed: u64,
    slower: Slower,
) -> Vec<RunRecord> {
    let mut records = Vec::new();
    for round in 0..RUNS {
        for (_, (at, workload)) in ordered(
            points().into_iter().enumerate().collect(),
            seed * 100 + round,
        ) {
            let engine = engines
                .iter()
                .find(|engine| engine.name() == workload.kind)
                .unwrap();
            let engine = &Slowed {
                inner: &**engine,
                every: if slower(at) { SLOWED } else { UNCHANGED },
            };
            let pin = context
                .host
                .allowed_cpus
                .last()
                .copied()
                .into_iter()
                .collect();
            let settings = Settings {
                pin,
                ..Settings::new(StepPlan::Timed(TIME), "promises")
            };
            let record = measure(engine, &workload, &settings, context, &[], &mut []).unwrap();
            assert!(record.outcome.is_ok(), "{:?}", record.outcome);
            records.push(record);
        }
    }
    records
}

fn main() -> ExitCode {
    let repetitions: u64 = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(100);
    let context = Context::gather(Default::default(), "cargo bench".to_owned(), Vec::new());
    let engines = engines(context.host.last_level_cache_bytes());
    let (mut same, mut one, mut all) = (0, 0, 0);
    let mut widths = Vec::new();
    for repetition in 0..repetitions {
        let measured =
            |which: u64, slower: Slower| side(&context, &engines, repetition * 4 + which, slower);
        let a = measured(0, |_| false);
        let b = measured(1, |_| false);
        let alike = cmp(&a, &b, IGNORE);
        same += u64::from(alike.is_same());
        widths.extend(
            alike
                .points
                .iter()
                .map(|point| (point.interval.1 / point.interval.0).sqrt() - 1.0),
        );
        if !alike.is_same() {
            println!(
                "false alarm in repetition {repetition}:\n{}",
                alike.text(false)
            );
        }
        // The first point: of those here the one whose own noise stays well below what is put in.
        let third = measured(2, |at| at == 0);
        let third = cmp(&a, &third, IGNORE);
        one += u64::from(found(&third) >= 1);
        if found(&third) == 0 {
            println!(
                "not found in repetition {repetition}:\n{}",
                third.text(true)
            );
        }
        let every = measured(3, |_| true);
        all += u64::from(found(&cmp(&a, &every, IGNORE)) >= 1);
    }
    let typical = daqmeter_stats::quantile(&daqmeter_stats::sorted(&widths), 0.5) * 100.0;
    println!(
        "{repetitions} repetitions, {} points, {RUNS} runs of {} ms a side, pinned",
        points().len(),
        TIME.as_millis()
    );
    println!(
        "no difference on the same host twice: {same} (95 of 100 promised); typical half width {typical:.2} %"
    );
    println!("5 % at one point found there: {one} (90 of 100 promised)");
    println!("5 % at all points found:      {all} (90 of 100 promised)");
    let kept = same * 100 >= repetitions * 95
        && one * 100 >= repetitions * 90
        && all * 100 >= repetitions * 90;
    if !kept && typical > NOISY {
        println!(
            "!!! NOT JUDGED: unchanged points could only be told to {typical:.1} %: too many runs were disturbed; `cargo test` holds the promises on simulated hosts"
        );
        return ExitCode::SUCCESS;
    }
    if kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Points that are found to be slower by about what was put in.
fn found(compared: &Compared) -> usize {
    compared
        .points
        .iter()
        .filter(|point| point.verdict == "slower" && (1.02..1.10).contains(&point.ratio))
        .count()
}
