//! Stage `work`: arithmetic for each block, a stage that does not exist yet.

use daqmeter_harness::Fault;
use daqmeter_record::units::show_ns;
use daqmeter_record::written::Nanos;
use serde::Deserialize;

use crate::added_work::spinning;
use crate::definition::flow::{Flow, Place, check_stand_in};
use crate::definition::kind::{Facts, StageElement, element_type};
use crate::element::Work;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Worked {
    time: Nanos,
}

element_type!(Worked, "work", StageElement);

impl StageElement for Worked {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        check_stand_in(self.time, flow)?;
        Ok(Facts::of(format!("work of {}", show_ns(self.time.0 as f64))))
    }

    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        Ok(spinning(self.time.0 as f64))
    }
}
