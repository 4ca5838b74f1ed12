//! Source `etherbone`: times of a timing receiver, read over Etherbone in cycles of `count`.

use daqmeter_etherbone::{EtherboneRequest, SlaveAddress, TIME_BYTES, Times};
use daqmeter_harness::{Fault, Request, usual};
use serde::Deserialize;

use crate::definition::flow::{Flow, Place, TIMES, unless};
use crate::definition::kind::{Facts, Named, SourceElement};
use crate::element::{Filled, Source};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Registers {
    address: SlaveAddress,
    /// Times of a cycle; by default the number in the study of 2018.
    #[serde(default = "usual::<8>")]
    count: u64,
}

impl SourceElement for Registers {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        let Registers { address, count } = &*self;
        Times::request(address, *count).check()?;
        let bytes = TIME_BYTES * usize::try_from(*count).unwrap_or(usize::MAX);
        let problem =
            format_args!("cycles of {count} times bring {bytes} bytes; `block` holds whole ones");
        unless(flow.bytes.is_multiple_of(bytes), "count", problem)?;
        flow.unit = TIMES;
        let is_emulated = address.is_emulated();
        let digest = address.digest().to_owned();
        let text = format!("etherbone {address}, {count} times a cycle");
        Ok(Facts { digest, is_emulated, is_outside: !is_emulated, ..Facts::of(text) })
    }

    fn sources(&self, name: &str, _block_bytes: usize) -> Result<Vec<Named>, Fault> {
        let request = Times::request(&self.address, self.count);
        Ok(vec![(name.to_owned(), Box::new(Clock(request, None)))])
    }
}

/// A timing receiver's clock, whose times are the events of its blocks. They are unknown
/// beforehand; their order is checked as they come.
struct Clock(EtherboneRequest, Option<Times>);

impl Source for Clock {
    fn prepare(&mut self) -> Result<(), Fault> {
        self.1 = Some(Times::open(&self.0)?);
        Ok(())
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<Filled, Fault> {
        let times = self.1.as_mut();
        let times = times.ok_or_else(|| Fault::new("the conversation is not open"))?;
        Ok(Filled { events: times.read(into)?, ..Filled::default() })
    }

    /// Each has a conversation of its own.
    fn divided(&self, workers: usize, _run: usize) -> Result<Option<Vec<Box<dyn Source>>>, Fault> {
        let part = |_| -> Box<dyn Source> { Box::new(Clock(self.0.clone(), None)) };
        Ok(Some((0..workers).map(part).collect()))
    }
}
