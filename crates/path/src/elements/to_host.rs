//! Stage `to-host`: a card's rings are read, and their chunks put into pages.

use daqmeter_harness::Fault;
use serde::Deserialize;

use crate::definition::flow::{BEHIND_CARD, Flow, OF_CARD, PAGES, Place, RING, unless, wrong};
use crate::definition::kind::{Facts, StageElement};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToHostStage {}

impl StageElement for ToHostStage {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        let Some(scenario) = &flow.live else { return wrong("kind", OF_CARD) };
        unless(flow.unit == RING, "kind", BEHIND_CARD)?;
        (flow.unit, flow.bytes) = (PAGES, scenario.reader.page.0);
        Ok(Facts::of("to-host"))
    }
}
