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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Worked {
    time: Nanos,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Waited {
    time: Nanos,
}

fn checked(name: &str, time: Nanos, flow: &Flow) -> Result<Facts, Fault> {
    flow.without_card()?;
    let problem = "is out of range; 1 ns to 1 s for each block is wanted";
    unless(STAND_IN_NS.contains(&time.0), "time", problem)?;
    Ok(Facts::of(format!("{name} of {}", show_ns(time.0 as f64))))
}

impl StageElement for Worked {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        checked("work", self.time, flow)
    }

    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        Ok(spinning(self.time.0 as f64))
    }
}

impl StageElement for Waited {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        checked("wait", self.time, flow)
    }

    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        let wait_ns = self.time.0;
        Ok(Work::Inspect(Box::new(move |_| {
            sleep_until(monotonic_ns() + wait_ns);
            Ok(0)
        })))
    }
}
