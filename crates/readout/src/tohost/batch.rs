//! Blocks out of the ring, chunks into pages, pages to subscribers.

use daqmeter_kernels::prefetch;
use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};
use daqmeter_wire::felix::decoder::parts;
use daqmeter_wire::felix::{BlockError, BlockFormat, Subchunk, subchunks};

use super::blocks::{Context, copy_chunks, copy_to_one, lend_block, only_one};
use super::dest::Dest;
use super::elink::ElinkState;
use super::reader::{Stats, ToHost};
use crate::scenario::{OnSlow, ReaderMode, ReaderSettings as Settings};

/// Bytes of blocks after which the ring gets its bytes back and pages are sent.
const BATCH_BYTES: usize = 64 << 10;

/// Blocks that are prefetched: they are walked from their ends, which no hardware foresees.
const PREFETCH_BLOCKS: usize = 2;

impl ToHost {
    /// Reads up to a batch of blocks and sends full pages; false when there is none, or a
    /// subscriber must be waited for.
    pub(super) fn read_batch(&mut self, now_ns: u64) -> bool {
        self.port.take(BATCH_BYTES);
        let (done, stalled) = self.read_blocks(now_ns);
        self.stats.bytes += done as u64;
        self.stats.stalls += u64::from(stalled);
        self.read += done as u64;
        if done > 0 {
            self.send_queued(now_ns);
        }
        done > 0
    }

    /// Reads blocks; returns their bytes, and true if a slow subscriber ended it.
    fn read_blocks(&mut self, now_ns: u64) -> (usize, bool) {
        let skip = usize::try_from(self.read - self.released).expect("within the ring");
        let start_ns = self.port.start_ns();
        let (consumer, sizes, block_bytes) =
            (self.port.consumer(), self.sizes, self.format.block_bytes);
        let [first, second] = consumer.spans(skip);
        let available = if first.is_empty() { second } else { first };
        let (elinks, outlet) = (&mut self.elinks, &mut self.outlet);
        let mut decoder = Decoder {
            format: self.format,
            settings: &self.settings,
            dests: &mut self.dests,
            room: &mut self.room,
            stats: &mut self.stats,
        };
        let mut done = 0;
        let mut ahead = available.chunks_exact(block_bytes).skip(PREFETCH_BLOCKS);
        let blocks = available.chunks_exact(block_bytes);
        for block in blocks.take((BATCH_BYTES / block_bytes).max(1)) {
            if let Some(ahead) = ahead.next() {
                prefetch(ahead);
            }
            let place = usize::from(self.places[usize::from(header(block).elink.number())]);
            let Some(elink) = elinks.get_mut(place) else {
                decoder.stats.unknown_blocks += 1;
                done += block_bytes;
                continue;
            };
            let wanted = sizes.pages_for(elink.partial.len());
            if decoder.must_wait(elink, wanted) {
                for dest in decoder.dests.iter_mut().flatten() {
                    dest.pump(outlet.as_mut(), &self.port, self.released, now_ns);
                }
                if decoder.must_wait(elink, wanted) {
                    return (done, true);
                }
            }
            let context = Context {
                at: place,
                now_ns,
                // Another process may give any number.
                birth_ns: start_ns.saturating_add(consumer.timestamp(skip + done)),
                position: self.read + done as u64,
                wanted,
                longest: sizes.page_bytes,
            };
            decoder.block(elink, block, &context);
            done += block_bytes;
        }
        (done, false)
    }

    fn send_queued(&mut self, now_ns: u64) {
        let outlet = self.outlet.as_mut();
        let dests = self.dests.iter_mut().flatten();
        for dest in dests.filter(|dest| !dest.queue.is_empty()) {
            dest.pump(outlet, &self.port, self.released, now_ns);
        }
    }

    pub(super) fn flush(&mut self, now_ns: u64, all: bool) {
        let timeout_ns = self.settings.timeout.0;
        for dest in self.dests.iter_mut().flatten() {
            let due = all || now_ns.saturating_sub(dest.page.opened_ns) >= timeout_ns;
            if due && !dest.page.is_empty() {
                dest.roll();
            }
        }
        self.send_queued(now_ns);
    }

    /// Bytes of the ring that were read and that no page needs any more.
    pub(super) fn unneeded_bytes(&self) -> usize {
        let dests = self.dests.iter().flatten();
        let needed = dests.filter_map(Dest::needs_from).min();
        let until = needed.unwrap_or(self.read).min(self.read);
        usize::try_from(until - self.released).expect("within the ring")
    }
}

#[inline]
fn header(block: &[u8]) -> FelixHeader {
    let head: [u8; HEADER_BYTES] = block[..HEADER_BYTES].try_into().expect("a block has a header");
    FelixHeader::parse(head)
}

struct Decoder<'a> {
    format: BlockFormat,
    settings: &'a Settings,
    dests: &'a mut [Option<Dest>],
    room: &'a mut [Subchunk],
    stats: &'a mut Stats,
}

impl Decoder<'_> {
    #[inline]
    fn must_wait(&self, elink: &ElinkState, wanted: usize) -> bool {
        self.settings.on_slow == OnSlow::Block && elink.is_full(self.dests, wanted)
    }

    #[inline]
    fn block(&mut self, elink: &mut ElinkState, block: &[u8], context: &Context) {
        self.stats.blocks += 1;
        let counts = &elink.reassembler.counts;
        let (missing, ended) = (counts.blocks_missing, counts.ended());
        let taken = match self.settings.mode {
            ReaderMode::Buffered => self.copy(elink, block, context),
            ReaderMode::ZeroCopy => self.lend(elink, block, context),
        };
        match taken {
            Ok(Taken::Chunks) => {
                self.stats.missing_blocks += elink.reassembler.counts.blocks_missing - missing;
                self.stats.chunks += elink.offer(self.dests, context.at, ended);
            }
            Ok(Taken::Nothing) => self.stats.duplicates += 1,
            Err(_) => {
                self.stats.bad_blocks += 1;
                elink.reassembler.bad_block();
            }
        }
    }

    #[inline]
    fn copy(
        &mut self,
        elink: &mut ElinkState,
        block: &[u8],
        context: &Context,
    ) -> Result<Taken, BlockError> {
        if let Some(dest) = only_one(elink, self.dests, context.wanted) {
            let (header, found) = parts(self.format, block, self.room)?;
            if elink.is_repeated(header, block) {
                return Ok(Taken::Nothing);
            }
            copy_to_one(elink, dest, header, &found, block, context);
            return Ok(Taken::Chunks);
        }
        let (header, found) = subchunks(self.format, block, self.room)?;
        if elink.is_repeated(header, block) {
            return Ok(Taken::Nothing);
        }
        copy_chunks(elink, self.dests, header, found, block, context);
        Ok(Taken::Chunks)
    }

    fn lend(
        &mut self,
        elink: &mut ElinkState,
        block: &[u8],
        context: &Context,
    ) -> Result<Taken, BlockError> {
        let (header, found) = subchunks(self.format, block, self.room)?;
        if elink.is_repeated(header, block) {
            return Ok(Taken::Nothing);
        }
        lend_block(elink, self.dests, header, found, block, context, self.settings);
        Ok(Taken::Chunks)
    }
}

enum Taken {
    Chunks,
    /// The block repeats the one before it.
    Nothing,
}
