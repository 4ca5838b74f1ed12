//! A channel in memory, like a channel mapped to a card's memory: an offset always holds equal
//! samples.

use daqmeter_harness::Fault;

use crate::devices::board::{Board, Identity, pattern_sample};

/// Period of the pattern: 1 MiB of it is made once.
const PERIOD_SAMPLES: u64 = 1 << 19;

#[derive(Debug)]
pub(super) struct EmulatedChannel {
    identity: Identity,
    period: Vec<u8>,
}

impl EmulatedChannel {
    pub(super) fn open(device: &str, name: &str) -> Result<EmulatedChannel, Fault> {
        let number = name.strip_prefix("xdma");
        if number.is_none_or(|number| number.parse::<u32>().is_err()) {
            return Err(Fault::new(format!(
                "`{device}` is not an emulated channel; write emu:xdma0 (any number)"
            )));
        }
        let samples = (0..PERIOD_SAMPLES).flat_map(|index| pattern_sample(index).to_le_bytes());
        Ok(EmulatedChannel {
            identity: Identity {
                device: device.to_owned(),
                model: "XDMA channel",
                memory_bytes: None,
                emulated: true,
            },
            period: samples.collect(),
        })
    }
}

impl Board for EmulatedChannel {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, Fault> {
        let period = self.period.len() as u64;
        let mut done = 0;
        while done < into.len() {
            let at = usize::try_from((offset + done as u64) % period).expect("within the period");
            let bytes = (self.period.len() - at).min(into.len() - done);
            into[done..done + bytes].copy_from_slice(&self.period[at..at + bytes]);
            done += bytes;
        }
        Ok(done)
    }

    fn expected_sample(&self, index: u64) -> Option<u16> {
        Some(pattern_sample(index % PERIOD_SAMPLES))
    }
}
