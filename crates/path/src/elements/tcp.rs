//! Stage `tcp`: sent over TCP on loopback and received, or behind `to-host` the transport of its
//! pages.

use daqmeter_harness::Fault;
use serde::Deserialize;

use crate::cancel::Cuts;
use crate::definition::flow::{
    BEHIND_CARD, Flow, PAGES, Place, SENT, by, known_congestion, unless,
};
use crate::definition::kind::{Facts, StageElement};
use crate::external::{self, Connected};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tcp {
    pub(crate) congestion: Option<String>,
}

impl StageElement for Tcp {
    fn check(&mut self, place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        if flow.live.is_some() {
            let is_of_card = self.congestion.is_none() && flow.unit == PAGES;
            unless(is_of_card, "kind", BEHIND_CARD)?;
            place.without_thread()?;
            (flow.unit, flow.bytes) = (SENT, 0);
            return Ok(Facts { is_on_loopback: true, ..Facts::of("published over tcp") });
        }
        known_congestion(self.congestion.as_ref())?;
        let text = format!("tcp on loopback{}", by(self.congestion.as_ref()));
        Ok(Facts { has_two_ends: true, is_on_loopback: true, ..Facts::of(text) })
    }

    fn connection(&self, cuts: &Cuts) -> Result<Connected, Fault> {
        external::tcp(self.congestion.as_deref(), cuts)
    }
}
