//! Stage `zenoh`: behind `to-host`, pages are published over Zenoh.

use daqmeter_harness::Fault;
use serde::Deserialize;

use crate::definition::flow::{Flow, OF_CARD, Place, publish, unless};
use crate::definition::kind::{StageElement, element_type};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Zenoh {}

element_type!(Zenoh, "zenoh", StageElement);

impl StageElement for Zenoh {
    fn check(&mut self, place: &Place, flow: &mut Flow) -> Result<(), Fault> {
        unless(flow.live.is_some(), "kind", OF_CARD)?;
        publish("zenoh", place, flow)
    }

    fn text(&self) -> String {
        "zenoh".to_owned()
    }

    fn has_own_threads(&self) -> bool {
        true
    }
}
