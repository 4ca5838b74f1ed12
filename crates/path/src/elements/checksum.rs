//! Stage `checksum`: each byte is read, for a sum.

use daqmeter_harness::Fault;
use serde::Deserialize;

use crate::definition::flow::{Flow, Place};
use crate::definition::kind::{Facts, StageElement};
use crate::element::Work;
use daqmeter_hostio::sum::sum;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Checksum {}

impl StageElement for Checksum {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        Ok(Facts::of("checksum").beside_memory(flow.bytes, 1, 0))
    }

    fn work(&self, _in_bytes: usize, _last_level_bytes: u64) -> Result<Work, Fault> {
        Ok(Work::Inspect(Box::new(|bytes| {
            std::hint::black_box(sum(bytes));
            Ok(0)
        })))
    }
}
