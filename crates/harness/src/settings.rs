//! Settings of a point's run: steps, placement, limits, and the stop flag.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daqmeter_record::{Order, Role};
use daqmeter_stats::{Random, Rate};

use crate::Fault;

type Measured = Result<Rate, String>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepPlan {
    /// This number of operations of the first stage, then of the second, and so on: option `-N`.
    ByStage(u64),
    /// This number of passes, each one operation of every stage in turn: option `-l`.
    ByPass(u64),
    /// Samples of each stage that fit into the time, at least three.
    Timed(Duration),
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub plan: StepPlan,
    /// CPUs for the lanes, in turn; empty for free threads.
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

#[derive(Clone, Debug)]
pub struct Limits {
    pub time: Duration,
    /// Limits of this invocation, which points of equal placement share: the best of the
    /// measurements, and their number.
    known: Arc<Mutex<BTreeMap<String, (Measured, u32)>>>,
}

impl Limits {
    /// Time of a limit's measurement outside of plans.
    pub const USUAL_TIME: Duration = Duration::from_millis(150);

    /// Measures each limit for `time` before and after its first run. Clones share the results.
    pub fn new(time: Duration) -> Self {
        Limits { time, known: Arc::default() }
    }

    /// Returns the best rate of a limit, with one more measurement if fewer than `most` were made.
    /// A failure is kept, too, and not tried again.
    pub(crate) fn rate(
        &self,
        key: String,
        most: u32,
        measure: impl FnOnce() -> Result<Measured, Fault>,
    ) -> Result<Measured, Fault> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().get(&key).cloned();
        let (rate, times) = match found {
            Some((rate, times)) if times >= most || rate.is_err() => return Ok(rate),
            Some((Ok(best), times)) => {
                let better = |rate: Rate| if rate.per_s > best.per_s { rate } else { best };
                (measure()?.map(better), times + 1)
            }
            _ => (measure()?, 1),
        };
        known().insert(key, (rate.clone(), times));
        Ok(rate)
    }
}

impl Settings {
    pub fn new(plan: StepPlan, study: impl Into<String>) -> Self {
        Settings {
            plan,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_limit_is_the_best_of_its_measurements_which_are_few() {
        let shared = Limits::new(Duration::from_millis(1));
        let wrong = || Err("bytes differ".to_owned());
        for (key, most, next, best) in [
            ("a on 0", 1, Ok(2.0), Ok(2.0)),
            ("a on 0", 1, Ok(9.0), Ok(2.0)),
            ("a on 0", 3, Ok(4.0), Ok(4.0)),
            ("a on 0", 3, Ok(3.0), Ok(4.0)),
            ("a on 0", 3, Ok(9.0), Ok(4.0)),
            ("a on 1", 1, Ok(1.0), Ok(1.0)),
            ("a on 1", 2, wrong(), wrong()),
            ("a on 1", 9, Ok(5.0), wrong()),
        ] {
            let found = shared.clone().rate(key.into(), most, || Ok(next.map(Rate::exactly)));
            assert_eq!(found, Ok(best.map(Rate::exactly)), "{key} {most}");
        }
    }
}
