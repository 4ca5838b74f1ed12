//! Source `card`: an emulated card, which writes blocks into its rings as triggers come. It is read
//! out live by the stage `to-host`: see `readout/card.rs`.

use daqmeter_harness::Fault;
use daqmeter_readout::Chosen;
use serde::Deserialize;

use crate::definition::flow::{Flow, Place, unless, wrong};
use crate::definition::kind::{Facts, SourceElement};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Card {
    #[serde(flatten)]
    pub(crate) chosen: Chosen,
}

impl Card {
    pub(crate) fn facts(&self) -> Facts {
        let scenario = &self.chosen.scenario;
        Facts {
            digest: self.chosen.digests(),
            is_emulated: true,
            is_outside: true,
            ..Facts::of(format!("card {}", scenario.name()))
        }
    }
}

impl SourceElement for Card {
    fn check(&mut self, place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        let problem = "is the path's own field `rate`: say it there";
        unless(self.chosen.rate_hz.is_none(), "rate_hz", problem)?;
        let scenario = self.chosen.completed().or_else(|error| wrong("scenario", error))?;
        let card_bytes = scenario.card.block.0;
        let problem = format_args!("its blocks have {card_bytes} bytes, and so must `block`");
        unless(flow.bytes == card_bytes, "scenario", problem)?;
        place.without_thread()?;
        *flow = Flow::of_card(scenario);
        Ok(self.facts())
    }
}
