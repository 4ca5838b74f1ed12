//! Stages `work` and `wait`: arithmetic or a wait for each block, in place of a stage or a device
//! that does not exist yet.

use std::ops::RangeInclusive;

use daqmeter_harness::Fault;
use daqmeter_record::units::show_ns;
use daqmeter_record::written::Nanos;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::sleep_until;
use serde::Deserialize;

use crate::added_work::spinning;
use crate::definition::flow::{Flow, Place, unless};
use crate::definition::kind::{Facts, StageElement};
use crate::element::Work;

/// Time for each block, in nanoseconds.
const STAND_IN_NS: RangeInclusive<u64> = 1..=1_000_000_000;

/// Works on each block for that time, or waits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StandIn<const WAITS: bool> {
    time: Nanos,
}

impl<const WAITS: bool> StageElement for StandIn<WAITS> {
    fn check(&mut self, _place: &Place, _flow: &mut Flow) -> Result<Facts, Fault> {
        let problem = "is out of range; 1 ns to 1 s for each block is wanted";
        unless(STAND_IN_NS.contains(&self.time.0), "time", problem)?;
        let name = if WAITS { "wait" } else { "work" };
        Ok(Facts::of(format!("{name} of {}", show_ns(self.time.0 as f64))))
    }

    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        let time_ns = self.time.0;
        if !WAITS {
            return Ok(spinning(time_ns as f64));
        }
        Ok(Work::Inspect(Box::new(move |_| {
            sleep_until(monotonic_ns() + time_ns);
            Ok(0)
        })))
    }
}
