//! Memory of a read-out, estimated before any of it is taken.
//!
//! Over-reserved memory is killed at first touch, without a message: a read-out that does not fit
//! is refused here.

use daqmeter_record::units::show_bytes;
use daqmeter_sys::available;
use daqmeter_sys::host::Files;

use crate::scenario::{PartCounts, Scenario, ScenarioError};
use crate::tohost::subscriber_bytes;

/// Program, stacks, and small buffers.
const BASE_BYTES: u64 = 16 << 20;
/// Beside the ring: words, and the rounding of the mapping to huge pages.
const RING_EXTRA_BYTES: u64 = 4 << 20;
/// Per block: time of birth in the ring, description in a replay.
const BLOCK_EXTRA_BYTES: u64 = 8 + 40;
/// Per block that the FIFO can hold: its description.
const WAITING_BYTES: u64 = 64;
/// Per E-link: state of emulator, reader and checks.
const ELINK_BYTES: u64 = 4096;
/// Buffers of a connection at the receiver's side: the longest frame, and what is read ahead.
const RECEPTION_BYTES: u64 = 5 << 20;

fn times(count: usize, bytes: u64) -> u64 {
    (count as u64).saturating_mul(bytes)
}

impl Scenario {
    pub fn memory_bytes(&self, parts: PartCounts) -> u64 {
        [
            BASE_BYTES,
            self.rings_bytes(parts),
            self.pages_bytes(parts),
            times(parts.receptions, self.reception_bytes()),
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// Compares the estimate with the memory that this process may still take.
    pub(crate) fn check_memory(&self, parts: PartCounts) -> Result<(), ScenarioError> {
        let Some(free) = available::memory_bytes() else {
            return Ok(());
        };
        let pool = if self.card.huge_pages { huge_pool_bytes(&Files::default()) } else { 0 };
        let rings = times(parts.channels, self.card.ring.0 as u64);
        self.fits_in(parts, free.saturating_add(pool.min(rings)))
    }

    fn fits_in(&self, parts: PartCounts, free: u64) -> Result<(), ScenarioError> {
        let needed = self.memory_bytes(parts);
        if needed <= free {
            return Ok(());
        }
        let (ring, page) = (self.card.ring.0 as u64, self.reader.page.0 as u64);
        let [ring, page, needed, free] = [ring, page, needed, free].map(show_bytes);
        let PartCounts { channels, subscribers, .. } = parts;
        let pages = self.reader.pages;
        Err(ScenarioError(format!(
            "card.ring, reader.pages: {channels} channels with a ring of {ring} each and {subscribers} subscribers with \
             {pages} pages of {page} each need about {needed} of memory, {free} are available"
        )))
    }

    /// Bytes of the channels' rings, FIFOs and emulators; one lap is made at a time.
    fn rings_bytes(&self, parts: PartCounts) -> u64 {
        if parts.channels == 0 {
            return 0;
        }
        let (ring, block) = (self.card.ring.0 as u64, self.card.block.0 as u64);
        let blocks_of = |bytes: u64| bytes / block.max(1);
        let elinks = self.elinks(0, 0);
        let emulators = elinks
            .iter()
            .map(|elink| 2 * (elink.payload_bytes as u64 + block) + ELINK_BYTES)
            .sum::<u64>();
        let fifo = (blocks_of(self.card.fifo.0 as u64) + 64) * (block + WAITING_BYTES);
        let channel =
            ring + blocks_of(ring) * BLOCK_EXTRA_BYTES + RING_EXTRA_BYTES + fifo + emulators;
        let lap = if self.replays() { ring } else { 0 };
        times(parts.channels, channel).saturating_add(lap)
    }

    fn pages_bytes(&self, parts: PartCounts) -> u64 {
        let Some(format) = self.format() else {
            return 0;
        };
        times(parts.subscribers, subscriber_bytes(format, &self.reader, &self.elinks(0, 0)))
    }

    fn reception_bytes(&self) -> u64 {
        RECEPTION_BYTES + self.elinks(0, 0).len() as u64 * ELINK_BYTES
    }
}

/// Huge pages that are reserved and free: they are not part of what the kernel calls available.
pub(crate) fn huge_pool_bytes(files: &Files) -> u64 {
    let number = |key: &str| {
        files.field("proc/meminfo", key)?.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (free, kib) = (number("HugePages_Free").unwrap_or(0), number("Hugepagesize").unwrap_or(0));
    free.saturating_mul(kib).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn scenario(text: &str) -> Scenario {
        Scenario::parse(text, "test").unwrap()
    }

    #[test]
    fn rings_pages_and_laps_are_counted() {
        let one = PartCounts { channels: 1, ..PartCounts::default() };
        let live = scenario("[card]\nring = \"1GiB\"\nblocks = \"live\"\n").memory_bytes(one);
        let replayed = scenario("[card]\nring = \"1GiB\"\n").memory_bytes(one);
        assert!(live > GIB && live < GIB + GIB / 8, "{live}");
        assert_eq!(replayed - live, GIB, "a lap is made beside the ring");
        let pages = scenario("[reader]\npage = \"1MiB\"\npages = 1000\n");
        let subscribed = pages.memory_bytes(PartCounts { subscribers: 3, ..PartCounts::default() });
        assert!(subscribed > 3000 << 20 && subscribed < 3300 << 20, "{subscribed}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_sizes() {
        let rings = scenario("[card]\ndevices = 4\nchannels = 4\nlinks = 1\nring = \"2GiB\"\n");
        let parts = PartCounts { channels: 16, subscribers: 16, receptions: 16 };
        assert_eq!(rings.fits_in(parts, 40 * GIB), Ok(()));
        let said = rings.fits_in(parts, 24 * GIB).unwrap_err().to_string();
        assert!(said.contains("16 channels with a ring of 2 GiB each"), "{said}");
        assert!(said.ends_with("of memory, 24 GiB are available"), "{said}");
    }

    #[test]
    fn no_valid_scenario_overflows_the_estimate() {
        let text = "[card]\ndevices = 64\nchannels = 8\nring = \"64GiB\"\nfifo = \"1GiB\"\npayload = \"1MiB\"\n\
                    [reader]\npage = \"2MiB\"\npages = 4096\n";
        let most = PartCounts { channels: 512, subscribers: 512 * 256, receptions: 512 };
        let bytes = scenario(text).memory_bytes(most);
        assert!(bytes > 512 * 64 * GIB && bytes < u64::MAX / 2, "{bytes}");
    }
}
