//! Memory of a read-out, estimated before any of it is taken.
//!
//! Over-reserved memory is killed at first touch, without a message: a read-out that does not fit
//! is refused here.

use daqmeter_record::units::show_bytes;
use daqmeter_sys::available;
use daqmeter_sys::host::Files;

use crate::card::channel_ids;
use crate::scenario::Scenario;
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
    /// Memory of a chain: each channel has a ring, a reader, a subscriber and its connection.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes_of(channel_ids(self).len(), true)
    }

    fn bytes_of(&self, channels: usize, with_readers: bool) -> u64 {
        let reader = if with_readers { self.reader_bytes() } else { 0 };
        BASE_BYTES
            .saturating_add(self.rings_bytes(channels))
            .saturating_add(times(channels, reader))
    }

    /// Compares the estimate with the memory that this process may still take.
    pub(crate) fn check_memory(&self, channels: usize, with_readers: bool) -> Result<(), String> {
        let Some(free) = available::memory_bytes() else {
            return Ok(());
        };
        let pool = if self.card.huge_pages { huge_pool_bytes(&Files::default()) } else { 0 };
        let rings = times(channels, self.card.ring.0 as u64);
        self.fits_in(channels, with_readers, free.saturating_add(pool.min(rings)))
    }

    fn fits_in(&self, channels: usize, with_readers: bool, free: u64) -> Result<(), String> {
        let needed = self.bytes_of(channels, with_readers);
        if needed <= free {
            return Ok(());
        }
        let (ring, page) = (self.card.ring.0 as u64, self.reader.page.0 as u64);
        let [ring, page, needed, free] = [ring, page, needed, free].map(show_bytes);
        let pages = self.reader.pages;
        Err(format!(
            "card.ring, reader.pages: {channels} channels with a ring of {ring} each, and their subscribers \
             with {pages} pages of {page} each, need about {needed} of memory, {free} are available"
        ))
    }

    /// Bytes of the channels' rings, FIFOs and emulators; one lap is made at a time.
    fn rings_bytes(&self, channels: usize) -> u64 {
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
        times(channels, channel).saturating_add(lap)
    }

    /// Bytes of the pages of a subscriber, and of its end of the connection.
    fn reader_bytes(&self) -> u64 {
        let elinks = self.elinks(0, 0);
        let pages = self.format().map_or(0, |one| subscriber_bytes(one, &self.reader, &elinks));
        pages + RECEPTION_BYTES + elinks.len() as u64 * ELINK_BYTES
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
        let live = scenario("[card]\nring = \"1GiB\"\nblocks = \"live\"\n").bytes_of(1, false);
        let replayed = scenario("[card]\nring = \"1GiB\"\n").bytes_of(1, false);
        assert!(live > GIB && live < GIB + GIB / 8, "{live}");
        assert_eq!(replayed - live, GIB, "a lap is made beside the ring");
        let pages = scenario("[reader]\npage = \"1MiB\"\npages = 1000\n");
        let subscribed = pages.bytes_of(3, true) - pages.bytes_of(3, false);
        assert!(subscribed > 3000 << 20 && subscribed < 3300 << 20, "{subscribed}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_sizes() {
        let rings = scenario("[card]\ndevices = 4\nchannels = 4\nlinks = 1\nring = \"2GiB\"\n");
        assert_eq!(rings.fits_in(16, true, 40 * GIB), Ok(()));
        let said = rings.fits_in(16, true, 24 * GIB).unwrap_err().to_string();
        assert!(said.contains("16 channels with a ring of 2 GiB each"), "{said}");
        assert!(said.ends_with("of memory, 24 GiB are available"), "{said}");
    }
}
