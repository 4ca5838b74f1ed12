//! How a point is run: steps, placement, how its limits are found, and when to stop.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daqmeter_record::Role;
use daqmeter_stats::Rate;

use crate::progress::Progress;
use crate::refusal::Refusal;
use crate::unfinished::Unfinished;

/// A limit as it was measured, or why its measurement failed.
type Measured = Result<Rate, String>;

/// How many steps, and in which order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepPlan {
    /// Exactly this many operations of the first stage, then of the second, and so on: what `-N`
    /// means.
    ByStage(u64),
    /// Exactly this many passes, each one operation of every stage in turn: what `-l` means.
    ByPass(u64),
    /// For each stage, as many samples as fit into the time, and at least five.
    Timed(Duration),
}

/// How to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Steps.
    pub plan: StepPlan,
    /// CPUs for the lanes, in turn; empty leaves the threads free.
    pub pin: Vec<u32>,
    /// Samples per second of CPU time, to answer "what takes the time"; none does not ask.
    pub profile_hz: Option<u64>,
    /// Goes into the record.
    pub study: String,
    /// Goes into the record.
    pub role: Role,
    /// Set by Ctrl-C: lanes stop after the sample at hand.
    pub stop: StopFlag,
    /// How the limits of the stages are measured.
    pub limits: Limits,
    /// Whether stages that have a control sample it in turn with their own samples. A limit does
    /// without.
    pub controls: bool,
    /// Gets reports of how far a long point is.
    pub progress: Progress,
    /// Receiver of the samples of a long point before it ends.
    pub unfinished: Unfinished,
    /// Whether a workload that needs what this host lacks is waived; else it is refused, as one who
    /// asked for it by name expects.
    pub waive: bool,
}

/// How limits are measured, and those that were.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Time for each stage of the engine that measures the limit.
    pub time: Duration,
    /// Limits of this invocation that points of the same placement share; none measures each anew.
    known: Option<Arc<Mutex<BTreeMap<String, Measured>>>>,
}

impl Default for Limits {
    /// Each anew, right before its point.
    fn default() -> Self {
        Limits { time: Duration::from_millis(150), known: None }
    }
}

impl Limits {
    /// Each once in this invocation, for the points that have it in common: clones of this share
    /// what was measured.
    pub fn shared(time: Duration) -> Self {
        Limits { time, known: Some(Arc::default()) }
    }

    /// The rate that is known, or that which `measure` finds; a failure is kept, too: what failed
    /// once is not tried again.
    pub(crate) fn rate(
        &self,
        key: String,
        measure: impl FnOnce() -> Result<Measured, Refusal>,
    ) -> Result<Measured, Refusal> {
        let Some(known) = &self.known else {
            return measure();
        };
        let found = known.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(rate) = found {
            return Ok(rate);
        }
        let rate = measure()?;
        known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, rate.clone());
        Ok(rate)
    }
}

impl Settings {
    /// Free threads, no profile.
    pub fn new(plan: StepPlan, study: impl Into<String>) -> Self {
        Settings {
            plan,
            pin: Vec::new(),
            profile_hz: None,
            study: study.into(),
            role: Role::default(),
            stop: StopFlag::default(),
            limits: Limits::default(),
            controls: true,
            progress: Progress::default(),
            unfinished: Unfinished::default(),
            waive: false,
        }
    }
}

/// CPUs as people write them: `0,1`.
pub(crate) fn cpu_list(cpus: &[u32]) -> String {
    let numbers: Vec<String> = cpus.iter().map(u32::to_string).collect();
    numbers.join(",")
}

/// Asks running lanes to stop.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Asks.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked. A hint, ordered with nothing: lanes look at it between samples.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_limit_is_measured_once_for_each_workload_and_placement() {
        let measured = std::cell::Cell::new(0);
        let measure = || {
            measured.set(measured.get() + 1);
            Ok(Ok(Rate::exactly(f64::from(measured.get()))))
        };
        let shared = Limits::shared(Duration::from_millis(1));
        let again = shared.clone();
        let is = |rate: f64| Ok(Ok(Rate::exactly(rate)));
        assert_eq!(shared.rate("a on 0".into(), measure), is(1.0));
        assert_eq!(again.rate("a on 0".into(), measure), is(1.0));
        assert_eq!(again.rate("a on 1".into(), measure), is(2.0));
        let each = Limits::default();
        assert_eq!(
            (each.rate("a".into(), measure), each.rate("a".into(), measure)),
            (is(3.0), is(4.0))
        );
        let failed = || Ok(Err("bytes differ".to_owned()));
        assert_eq!(shared.rate("b".into(), failed), Ok(Err("bytes differ".to_owned())));
        assert_eq!(again.rate("b".into(), measure), Ok(Err("bytes differ".to_owned())));
    }
}
