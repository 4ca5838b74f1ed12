//! Stage `zenoh`: behind `to-host`, pages are published over Zenoh.

use daqmeter_harness::Fault;
use serde::Deserialize;

use crate::definition::flow::{Flow, OF_CARD, Place, publish, unless};
use crate::definition::kind::{Facts, StageElement, element_type};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Zenoh {}

element_type!(Zenoh, "zenoh", StageElement);

impl StageElement for Zenoh {
    fn check(&mut self, place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        unless(flow.live.is_some(), "kind", OF_CARD)?;
        publish("zenoh", place, flow)?;
        Ok(Facts { has_own_threads: true, ..Facts::of("published over zenoh") })
    }
}
