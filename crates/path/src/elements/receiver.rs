//! Sink `receiver`: subscribes to the pages of a card and checks each chunk.

use daqmeter_harness::{Fault, Problem};
use daqmeter_readout::card::channel_ids;
use serde::Deserialize;

use crate::definition::flow::{BEHIND_CARD, Flow, OF_CARD, Place, SENT, unless, wrong};
use crate::definition::kind::{Facts, SinkElement};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CardReceiver {
    /// One for each DMA channel, unless there are fewer.
    pub(crate) threads: Option<usize>,
}

impl SinkElement for CardReceiver {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        let Some(scenario) = &flow.live else { return wrong("kind", OF_CARD) };
        unless(flow.unit == SENT, "kind", BEHIND_CARD)?;
        let channels = channel_ids(scenario).len();
        Problem::unless_within("threads", self.threads.unwrap_or(channels), 1..=channels)?;
        Ok(Facts { is_outside: true, receivers: self.threads, ..Facts::of("receiver") })
    }
}
