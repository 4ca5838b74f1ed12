//! One point of a plan, with everything that measuring it needs.

use std::sync::Arc;
use std::time::Duration;

use daqmeter_harness::StepPlan;
use daqmeter_record::{Order, Param, Workload};

/// One point, once.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedPoint {
    /// Study of its record.
    pub study: String,
    /// Name of the engine.
    pub engine: String,
    /// What is asked.
    pub workload: Workload,
    /// How often.
    pub steps: StepPlan,
    /// What it takes of a budget that is shared out, where its steps do not say it.
    pub takes: Option<Duration>,
    /// Parameter that says how long it lasts: it grows and shrinks with the point's share of the
    /// budget.
    pub extent: Option<String>,
    /// CPUs for its threads; empty leaves them free.
    pub pin: Vec<u32>,
    /// Samples of what takes the time, per second of CPU time.
    pub profile_hz: Option<u64>,
    /// Place in the order.
    pub place: Order,
    /// Where it comes from, for messages: file, line and number of its sweep.
    pub source: Arc<str>,
}

/// A point that lasts shorter has at least so many passes, or as many as the plan gives it.
const MIN_PASSES: u64 = 4;
/// The least and the most that an extent is stretched by.
const STRETCH: (f64, f64) = (0.05, 10.0);
/// No timed stage is shorter.
const MIN_TIME: Duration = Duration::from_millis(1);

impl PlannedPoint {
    /// What it takes of a budget that is shared out, before anything is known of its engine.
    pub(crate) fn nominal_s(&self) -> f64 {
        match (self.takes, self.steps) {
            (Some(takes), _) => takes.as_secs_f64(),
            (None, StepPlan::Timed(time)) => time.as_secs_f64(),
            (None, _) => 0.0,
        }
    }

    /// The same point, asked to last so many times as long; its key stays.
    pub(crate) fn stretched(&self, times: f64) -> PlannedPoint {
        let mut point = self.clone();
        let extent = times.clamp(STRETCH.0, STRETCH.1);
        let has_extent = self.extent.is_some();
        if has_extent {
            point.takes = self.takes.map(|takes| takes.mul_f64(extent));
        }
        point.steps = match self.steps {
            StepPlan::Timed(time) => StepPlan::Timed(time.mul_f64(times).max(MIN_TIME)),
            StepPlan::ByPass(passes) if has_extent => StepPlan::ByPass(count(passes, extent)),
            steps => steps,
        };
        let parameter = self.extent.as_deref();
        match parameter.and_then(|name| point.workload.params.get_mut(name)) {
            Some(Param::Int(number)) => *number = count(*number, extent),
            Some(Param::Float(number)) => *number *= extent,
            _ => {}
        }
        point
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of passes, at most ten times what a plan may say"
)]
fn count(number: u64, times: f64) -> u64 {
    ((number as f64 * times) as u64).max(number.min(MIN_PASSES))
}
