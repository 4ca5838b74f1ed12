//! Settings of a point's run: steps, placement, and the stop flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daqmeter_record::{Order, Role};
use daqmeter_stats::Random;

use crate::Limits;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepPlan {
    /// This number of operations of the first stage, then of the second, and so on: option `-N`.
    ByStage(u64),
    /// This number of passes, each one operation of every stage: option `-l`.
    ByPass(u64),
    /// Samples of each stage that fit into the time, at least three.
    Timed(Duration),
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub plan: StepPlan,
    /// Time of a stage after which a number of operations ends, with three or more of them.
    pub within: Option<Duration>,
    /// CPUs for the lanes, in this order; empty for free threads.
    pub pin: Vec<u32>,
    pub profile_hz: Option<u64>,
    pub study: String,
    pub role: Role,
    pub stop: StopFlag,
    pub limits: Limits,
    /// True if nothing may come between the samples of a stage, so that the time of all is from the
    /// clock before the first to the clock after the last.
    pub in_one: bool,
    /// True if a workload that this host lacks the means for is waived, else it is refused, as for
    /// an explicit request.
    pub waive: bool,
}

impl Settings {
    pub fn new(plan: StepPlan, study: impl Into<String>) -> Self {
        Settings {
            plan,
            within: None,
            pin: Vec::new(),
            profile_hz: None,
            study: study.into(),
            role: Role::default(),
            stop: StopFlag::default(),
            limits: Limits::new(Limits::USUAL_TIME),
            in_one: false,
            waive: false,
        }
    }
}

/// Shuffles points by the seed and numbers them, so that slow drift of the host does not look like
/// an effect of a parameter.
pub fn ordered<T>(mut points: Vec<T>, seed: u64) -> Vec<(Order, T)> {
    Random::new(seed).shuffle(&mut points);
    let of = points.len() as u64;
    let order = |position| Order { seed, position, of };
    (0..).map(order).zip(points).collect()
}

/// Writes CPUs as people do: `0,1`.
pub(crate) fn cpu_list(cpus: &[u32]) -> String {
    let numbers: Vec<String> = cpus.iter().map(u32::to_string).collect();
    numbers.join(",")
}

#[derive(Clone, Debug, Default)]
pub struct StopFlag(pub Arc<AtomicBool>);

impl StopFlag {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Reads the flag. It is a hint without memory ordering: lanes read it between samples.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
