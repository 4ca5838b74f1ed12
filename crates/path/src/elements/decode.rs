//! Stage `decode`: subchunks found in blocks of a scenario.

use daqmeter_harness::{Fault, Resolved};
use daqmeter_readout::Scenario;
use daqmeter_readout::decode::decode;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::{BlockFormat, Subchunk};
use serde::Deserialize;

use crate::definition::flow::{FELIX, Flow, Place, unless, wrong};
use crate::definition::kind::{Facts, StageElement};
use crate::element::Work;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Decoded {
    scenario: Option<Resolved<Scenario>>,
    #[serde(skip)]
    format: Option<BlockFormat>,
}

impl StageElement for Decoded {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        flow.takes(FELIX)?;
        let Some(scenario) = self.scenario.as_ref().or(flow.scenario.as_ref()) else {
            let problem = "needs the scenario that its blocks are of, such as \"gbt\"";
            return wrong("scenario", problem);
        };
        let Some(format) = scenario.format() else {
            return wrong("scenario", "its card has no format of blocks");
        };
        let (bytes, whole) = (flow.bytes, format.block_bytes);
        let problem = format_args!("blocks of {bytes} bytes do not hold whole ones of {whole}");
        unless(bytes.is_multiple_of(whole), "kind", problem)?;
        self.format = Some(format);
        let digest = self.scenario.as_ref().map_or("", Resolved::digest).to_owned();
        Ok(Facts { digest, ..Facts::of("decode").beside_memory(bytes, 1, 0) })
    }

    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        let format = self.format.ok_or_else(|| Fault::new("blocks without a format"))?;
        let mut room = vec![Subchunk::default(); most_subchunks(format)];
        Ok(Work::Inspect(Box::new(move |bytes| decode(format, bytes, &mut room))))
    }
}
