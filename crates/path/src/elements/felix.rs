//! Source `felix`: blocks of an emulated card, made beforehand.

use daqmeter_harness::{Fault, Resolved};
use daqmeter_readout::Scenario;
use daqmeter_readout::decode::blocks_of_card;
use daqmeter_record::written::ByteSize;
use serde::Deserialize;

use crate::definition::flow::{FELIX, Flow, Place, bytes, unless};
use crate::definition::kind::{Facts, Named, SourceElement};
use crate::elements::memory::Bank;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Felix {
    scenario: Resolved<Scenario>,
    #[serde(default = "bytes::<{ 16 << 20 }>")]
    span: ByteSize,
}

impl SourceElement for Felix {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        let card_bytes = self.scenario.card.block.0;
        let is_whole = card_bytes > 0 && flow.bytes.is_multiple_of(card_bytes);
        let problem = format_args!("its blocks have {card_bytes} bytes; `block` holds whole ones");
        unless(is_whole, "scenario", problem)?;
        flow.whole_blocks(&mut self.span)?;
        flow.scenario = Some(self.scenario.clone());
        flow.unit = FELIX;
        let facts = Facts::of(format!("felix {}", self.scenario.name()));
        Ok(Facts {
            digest: self.scenario.digest().to_owned(),
            is_emulated: true,
            span_bytes: self.span.0,
            ..facts.beside_memory(self.span.0, 1, 0)
        })
    }

    fn sources(&self, name: &str, block_bytes: usize) -> Result<Vec<Named>, Fault> {
        let fill = |into: &mut [u8]| blocks_of_card(&self.scenario, into);
        let bank = Bank::of(&format!("{self:?}"), self.span.0, block_bytes, fill)?;
        Ok(vec![(name.to_owned(), Box::new(bank))])
    }
}
