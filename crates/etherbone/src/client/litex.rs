//! Cycles in the dialect of LiteX: one packet on its way at a time, no errors from the bus, writes unanswered.

use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_wire::etherbone::cycle::{Op, Space};
use daqmeter_wire::etherbone::{EbBlock, Lanes, Width, WireError, litex};

use super::{Client, CycleOutcome, as_ns};
use crate::EbError;
use crate::transport::Framing;

/// Operations of one packet: a LiteEth board takes 15 by default (its record FIFO has 16 words, one for the base address).
const BURST: usize = 15;

impl Client {
    pub(super) fn litex_cycle(
        &mut self,
        ops: &[Op],
        outcome: &mut CycleOutcome,
    ) -> Result<(), EbError> {
        let whole = Lanes::full(Width::W32);
        if let Some(odd) = ops.iter().find(|op| op.lanes != whole || op.space == Space::Config) {
            let address = odd.address;
            return Err(EbError::Unsupported(format!(
                "the LiteX dialect has whole 32-bit words of the bus only (address {address:#x})"
            )));
        }
        let mut rest = ops;
        while let Some(first) = rest.first() {
            let follows = |pair: &[Op]| {
                pair[1].write == first.write
                    && (!first.write || pair[1].address == pair[0].address.wrapping_add(4))
            };
            let run = (1 + rest.windows(2).take_while(|pair| follows(pair)).count()).min(BURST);
            let (now, later) = rest.split_at(run);
            if first.write {
                self.litex_write(now)?;
                outcome.values.extend(now.iter().map(|_| 0));
            } else {
                self.litex_read(now, outcome)?;
            }
            rest = later;
        }
        Ok(())
    }

    fn litex_send(
        &mut self,
        write: Option<EbBlock<'_>>,
        read: Option<EbBlock<'_>>,
    ) -> Result<(), EbError> {
        let mut packet = [0; litex::HEADER_BYTES + 4 + 4 * (BURST + 1)];
        let bytes = litex::emit(0x0F, write, read, &mut packet)?;
        self.flights.counts.issued += 1;
        self.transport.send(&packet[..bytes], &[bytes])
    }

    fn litex_write(&mut self, ops: &[Op]) -> Result<(), EbError> {
        let values: Vec<u64> = ops.iter().map(|op| op.value & 0xFFFF_FFFF).collect();
        self.litex_send(Some(EbBlock { base: ops[0].address, values: &values }), None)?;
        self.flights.counts.completed += 1;
        Ok(())
    }

    fn litex_read(&mut self, ops: &[Op], outcome: &mut CycleOutcome) -> Result<(), EbError> {
        let addresses: Vec<u64> = ops.iter().map(|op| op.address).collect();
        for _ in 0..=self.options.read_retries {
            self.litex_counter = self.litex_counter.wrapping_add(1);
            self.litex_send(
                None,
                Some(EbBlock { base: self.litex_counter.into(), values: &addresses }),
            )?;
            if let Some(values) = self.litex_answer(ops.len())? {
                outcome.values.extend(values);
                self.flights.counts.completed += 1;
                return Ok(());
            }
            self.flights.counts.timed_out += 1;
        }
        Err(EbError::Timeout(self.options.timeout))
    }

    /// Waits for the answer to the last request. Its return address is ours, or 0 from those that do not keep it.
    fn litex_answer(&mut self, count: usize) -> Result<Option<Vec<u64>>, EbError> {
        let deadline_ns = monotonic_ns() + as_ns(self.options.timeout);
        loop {
            let left_ns = deadline_ns.saturating_sub(monotonic_ns());
            if left_ns == 0 {
                return Ok(None);
            }
            let received =
                self.transport.receive(&mut self.received, Duration::from_nanos(left_ns))?;
            let Some(arrived) = received else { continue };
            if let Framing::Datagram { .. } = self.framing {
                self.partial.clear();
            }
            self.partial.extend_from_slice(&self.received[..arrived.bytes]);
            loop {
                let (base, values, used) = match litex::split(&self.partial) {
                    Ok((record, after)) => {
                        let used = self.partial.len() - after.len();
                        let block = record
                            .write_block()
                            .map(|(base, values)| (base, values.collect::<Vec<u64>>()));
                        let (base, values) = block.unwrap_or_default();
                        (base, values, used)
                    }
                    Err(WireError::Truncated { .. }) => break,
                    Err(error) => return Err(error.into()),
                };
                self.partial.drain(..used);
                if values.len() == count && (base == u64::from(self.litex_counter) || base == 0) {
                    return Ok(Some(values));
                }
                self.flights.counts.stray += values.len() as u64;
            }
        }
    }
}
