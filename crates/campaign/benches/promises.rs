//! What `daqmeter cmp` promises, held on this host with real work: the same host twice is no difference in at least 95 of 100
//! repetitions, and a slowdown of 5 % is found in at least 90 of 100, at one point and at all.
//!
//! `cargo bench -p daqmeter-campaign --bench promises [-- REPETITIONS]`; exits with 1 when a promise is broken on a host quiet enough to judge.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints what it found, and stops where it fails"
)]

use std::convert::Infallible;
use std::process::ExitCode;

use daqmeter_campaign::{Options, Plan, PlannedPoint, Runner, Site, Watch, engines};
use daqmeter_harness::{
    Availability, Context, DeviceTime, Engine, Fault, Refusal, Session, StageSpec, Tally,
};
use daqmeter_record::{Host, RunRecord, Workload};
use daqmeter_report::cmp::{Compared, cmp};

/// Typical half width of an interval, in per cent, from which on this host says nothing about `cmp`: a quiet one was at 0.3 to 0.6.
const NOISY: f64 = 0.8;
/// Differences that are ignored, as `daqmeter cmp` does by default.
const IGNORE: f64 = 0.02;

/// An engine whose every so many operations one is done twice: every twentieth is 5 % slower, with real work. Both sides go through it:
/// one call more on one side only would shift the stack, which alone changes conversions of 270 ns by 4 % on some hosts.
struct Slowed {
    inner: Box<dyn Engine>,
    slower: Slower,
}

struct SlowedSession {
    inner: Box<dyn Session>,
    every: u64,
    owed: u64,
}

/// Every twentieth, and none.
const SLOWED: u64 = 20;
const UNCHANGED: u64 = u64::MAX;

impl Engine for Slowed {
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
        let every = if (self.slower)(workload) {
            SLOWED
        } else {
            UNCHANGED
        };
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
const POINTS: &str = "
title = 'promises'
repetitions = 10
time = '10ms'
[[sweep]]
study = 'promises'
engine = 'convert'
workload = { scale_factor = 0.123, scale_offset = -45.6, samples = 2000 }
axes = { function = [3, 2] }
[[sweep]]
study = 'promises'
engine = 'copy'
workload = { path = 'pread', context = 'cpu', direction = 'to', block_bytes = '4KiB', lanes = 1 }
";

/// Which points are slower.
type Slower = fn(&Workload) -> bool;

/// Keeps the records.
struct Kept(Vec<RunRecord>);

impl Watch for Kept {
    type Error = Infallible;

    fn record(&mut self, record: RunRecord) -> Result<(), Infallible> {
        assert!(record.outcome.is_ok(), "{:?}", record.outcome);
        self.0.push(record);
        Ok(())
    }

    fn refused(&mut self, point: &PlannedPoint, refusal: Refusal) -> Result<(), Infallible> {
        panic!("{}: {refusal}", point.workload)
    }
}

/// All points on the last CPU, ten times, in an order of their own.
fn side(context: &Context, seed: u64, slower: Slower) -> Vec<RunRecord> {
    let pin = context.host.allowed_cpus.last().copied();
    let site = Site {
        host: Host::clone(&context.host),
        pin: Some(pin.into_iter().collect()),
        seed: Some(seed * 100),
    };
    let plan = Plan::parse_for(POINTS, "promises", &site).unwrap();
    let engines = engines(context.host.last_level_cache_bytes()).into_iter();
    let slowed = engines.map(|inner| Box::new(Slowed { inner, slower }) as Box<dyn Engine>);
    let mut runner = Runner::with_engines(context.clone(), slowed.collect());
    let mut kept = Kept(Vec::new());
    let Ok(_) = runner.run(plan.points, Options::default(), &mut kept);
    kept.0
}

fn main() -> ExitCode {
    let repetitions: u64 = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(100);
    let context = Context::gather(Default::default(), "cargo bench".to_owned(), Vec::new());
    let (mut same, mut one, mut all) = (0, 0, 0);
    let mut widths = Vec::new();
    for repetition in 0..repetitions {
        let measured = |which: u64, slower: Slower| side(&context, repetition * 4 + which, slower);
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
        let third = measured(2, |workload| workload.int("function") == Ok(3));
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
    println!("{repetitions} repetitions, 3 points, 10 runs of 10 ms a side, pinned");
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
