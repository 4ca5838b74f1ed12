//! Stage `wait`: a wait for each block, a device that does not exist yet.

use daqmeter_harness::Fault;
use daqmeter_record::units::show_ns;
use daqmeter_record::written::Nanos;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::sleep_until;
use serde::Deserialize;

use crate::definition::flow::{Flow, Place, check_stand_in};
use crate::definition::kind::{Facts, StageElement, element_type};
use crate::element::Work;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Waited {
    time: Nanos,
}

element_type!(Waited, "wait", StageElement);

impl StageElement for Waited {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        check_stand_in(self.time, flow)?;
        Ok(Facts::of(format!("wait of {}", show_ns(self.time.0 as f64))))
    }

    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        let wait_ns = self.time.0;
        Ok(Work::Inspect(Box::new(move |_| {
            sleep_until(monotonic_ns() + wait_ns);
            Ok(0)
        })))
    }
}
