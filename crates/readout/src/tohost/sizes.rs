//! Sizes that decide the memory of a subscriber.

use daqmeter_wire::felix::BlockFormat;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::page::MAX_MESSAGE_OVERHEAD;

use super::dest::{Booked, ByStatus, MAX_PENDING, Pending, SPANS_BYTES};
use crate::scenario::{ElinkSpec, ReaderMode, ReaderSettings as Settings};
use crate::transport::PageOutlet;

#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) page_bytes: usize,
    longest: usize,
    messages_bytes: usize,
}

impl Sizes {
    pub(super) fn new(format: BlockFormat, settings: &Settings, longest: usize) -> Sizes {
        Sizes {
            // The longest chunk must fit, and short ones are copied with what follows them.
            page_bytes: settings.page.0.max(longest + MAX_MESSAGE_OVERHEAD) + 64,
            longest,
            // A header and a status for each chunk, and a tag.
            messages_bytes: format.block_bytes + 5 * most_subchunks(format) + MAX_MESSAGE_OVERHEAD,
        }
    }

    /// Pages that a block may need when `partial_bytes` of a chunk wait for their end. Two pages in
    /// a row hold more than one could.
    pub(super) fn pages_for(self, partial_bytes: usize) -> usize {
        2 + 2 * (partial_bytes.min(self.longest) + self.messages_bytes) / self.page_bytes
    }

    pub(super) fn max_pages(self) -> usize {
        self.pages_for(self.longest)
    }
}

/// Pages that may wait for a destination; one of a single E-link needs few.
pub(super) fn spare_pages(outlet: &dyn PageOutlet, settings: &Settings) -> usize {
    if outlet.is_per_elink() { settings.pages.min(4) } else { settings.pages }
}

/// Most bytes of a subscriber of all these E-links: pages, and records of pages on their way.
pub(crate) fn subscriber_bytes(
    format: BlockFormat,
    settings: &Settings,
    elinks: &[ElinkSpec],
) -> u64 {
    let longest = elinks.iter().map(|elink| elink.payload_bytes).max().unwrap_or(0);
    let sizes = Sizes::new(format, settings, longest);
    let booked = size_of::<Booked>() + elinks.len() * size_of::<ByStatus>();
    // Pages of blocks need no memory of their own.
    let body = if settings.mode == ReaderMode::Buffered { sizes.page_bytes } else { 0 };
    let pages = settings.pages.max(sizes.max_pages()) + 3;
    let pending = MAX_PENDING * (size_of::<Pending>() + booked);
    (pages * (body + SPANS_BYTES + booked) + pending) as u64
}
