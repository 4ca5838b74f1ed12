//! Sink `read`: each byte is read once.

use daqmeter_harness::Fault;
use serde::Deserialize;

use crate::cancel::Cuts;
use crate::definition::flow::{Flow, Place};
use crate::definition::kind::{Facts, SinkElement};
use crate::element::{Block, Sink};
use daqmeter_hostio::sum::sum;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadOnce {}

impl SinkElement for ReadOnce {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        Ok(Facts::of("read").beside_memory(flow.bytes, 1, 0))
    }

    fn sink(&self, _block_bytes: usize, _cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
        Ok(Box::new(ReadOnce {}))
    }
}

impl Sink for ReadOnce {
    fn take(&mut self, block: &mut Block, _expected: Option<u64>) -> Result<Option<u64>, Fault> {
        Ok(Some(sum(block.bytes())))
    }
}
