//! The LiteX dialect: one packet at a time, whole words of 32 bits, no status and no tags.

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_wire::etherbone::cycle::{Op, Space};
use daqmeter_wire::etherbone::{Lanes, Width, WireError, litex};

use super::{Client, as_ns, left};
use crate::EbError;
use crate::transport::{Framing, receive};

/// Words that the count of a record allows.
const MAX_WORDS: usize = 255;

impl Client {
    pub(super) fn litex_cycle(&mut self, ops: &[Op], words: &mut Vec<u64>) -> Result<(), EbError> {
        let whole = Lanes::full(Width::W32);
        if let Some(odd) = ops.iter().find(|op| op.lanes != whole || op.space == Space::Config) {
            return Err(EbError::Other(format!(
                "the LiteX dialect has whole 32-bit words of the bus only (address {:#x})",
                odd.address
            )));
        }
        let (mut rest, most) = (ops, self.options.litex_words.clamp(1, MAX_WORDS));
        while let Some(first) = rest.first() {
            let follows = |pair: &[Op]| {
                pair[1].write == first.write
                    && (!first.write || pair[1].address == pair[0].address.wrapping_add(4))
            };
            let run = (1 + rest.windows(2).take_while(|pair| follows(pair)).count()).min(most);
            let (now, later) = rest.split_at(run);
            if first.write {
                let values: Vec<u64> = now.iter().map(|op| op.value & 0xFFFF_FFFF).collect();
                self.litex_send(true, first.address, &values)?;
            } else {
                let addresses: Vec<u64> = now.iter().map(|op| op.address).collect();
                self.litex_counter = self.litex_counter.wrapping_add(1);
                self.litex_send(false, self.litex_counter.into(), &addresses)?;
                words.extend(self.litex_answer(addresses.len())?);
            }
            self.flights.counts.completed += 1;
            rest = later;
        }
        Ok(())
    }

    fn litex_send(&mut self, write: bool, base: u64, values: &[u64]) -> Result<(), EbError> {
        let mut packet = [0; litex::HEADER_BYTES + 4 + 4 * (MAX_WORDS + 1)];
        let bytes = litex::emit(write, base, values, &mut packet)?;
        self.flights.counts.issued += 1;
        self.transport.send(&packet[..bytes], &[bytes])
    }

    fn litex_answer(&mut self, count: usize) -> Result<Vec<u64>, EbError> {
        let deadline_ns = monotonic_ns() + as_ns(self.litex_timeout);
        while let Some(wait) = left(deadline_ns) {
            let arrived =
                receive(&mut *self.transport, &mut self.received, wait, &self.options.stop)?;
            let Some(arrived) = arrived else { continue };
            if self.framing == Framing::Datagram {
                self.partial.clear();
            }
            self.partial.extend_from_slice(&self.received[..arrived.bytes]);
            loop {
                let (record, after) = match litex::split(&self.partial) {
                    Err(WireError::Truncated { .. }) => break,
                    split => split?,
                };
                let block = record.write_block().map(|(base, values)| (base, values.collect()));
                let (base, values): (u64, Vec<u64>) = block.unwrap_or_default();
                let used = self.partial.len() - after.len();
                self.partial.drain(..used);
                // Some slaves answer to 0. Once an answer was late, it could be that one.
                let is_sure = self.flights.counts.timed_out == 0;
                let is_ours = base == u64::from(self.litex_counter) || base == 0 && is_sure;
                if values.len() == count && is_ours {
                    return Ok(values);
                }
                self.flights.counts.stray += values.len() as u64;
            }
        }
        self.flights.counts.timed_out += 1;
        Err(EbError::Timeout(self.litex_timeout))
    }
}
