//! One point of a plan, with everything that its measurement needs.

use std::sync::Arc;
use std::time::Duration;

use daqmeter_harness::StepPlan;
use daqmeter_record::units::whole;
use daqmeter_record::{Order, Param, Workload};

#[derive(Clone, Debug, PartialEq)]
pub struct PlannedPoint {
    pub study: String,
    pub engine: String,
    pub workload: Workload,
    pub steps: StepPlan,
    pub takes: Option<Duration>,
    /// Parameter for the length of a point: it changes with the point's share of the budget.
    pub extent: Option<String>,
    /// CPUs for its threads; empty leaves them free.
    pub pin: Vec<u32>,
    /// Samples of the profile per second of CPU time.
    pub profile_hz: Option<u64>,
    pub place: Order,
    /// Origin for messages: file, line and number of its sweep.
    pub source: Arc<str>,
}

/// Least number of passes of a shortened point, unless the plan gives it fewer.
const MIN_PASSES: u64 = 4;
const STRETCH: (f64, f64) = (0.05, 10.0);
const MIN_TIME: Duration = Duration::from_millis(1);

impl PlannedPoint {
    pub(crate) fn nominal_s(&self) -> f64 {
        match (self.takes, self.steps) {
            (Some(takes), _) => takes.as_secs_f64(),
            (None, StepPlan::Timed(time)) => time.as_secs_f64(),
            (None, _) => 0.0,
        }
    }

    /// Returns the point with `times` times its length; its key stays.
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

fn count(number: u64, times: f64) -> u64 {
    whole(number as f64 * times).max(number.min(MIN_PASSES))
}
