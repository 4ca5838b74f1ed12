//! Blocks out of the ring, chunks into pages, pages to subscribers.

use std::time::Duration;

use daqmeter_kernels::prefetch;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_wire::felix::decoder::parts;
use daqmeter_wire::felix::{BlockFormat, FelixHeader, Subchunk};

use super::blocks::copy_chunks;
use super::dest::{Context, Dest};
use super::elink::ElinkState;
use super::reader::{Stats, ToHost};
use crate::scenario::OnSlow;

/// Bytes of blocks after which the ring gets its bytes back and pages are sent.
const BATCH_BYTES: usize = 64 << 10;

/// Blocks that are prefetched: they are walked from their ends, which no hardware foresees.
const PREFETCH_BLOCKS: usize = 2;

impl ToHost {
    /// Reads up to a batch of blocks, sends full pages, and gives the bytes back to the ring. False
    /// when there is none, or a subscriber must be waited for.
    pub(super) fn read_batch(&mut self, now_ns: u64) -> bool {
        self.port.take(BATCH_BYTES);
        let (done, stalled) = self.read_blocks(now_ns);
        self.stats.bytes += done as u64;
        self.stats.stalls += u64::from(stalled);
        if done > 0 {
            self.send_queued(now_ns);
            // The bytes that were held until now filled the ring until now.
            self.port.advance();
            self.port.release(done);
        }
        done > 0
    }

    /// Reads blocks; returns their bytes, and true if a slow subscriber ended it.
    fn read_blocks(&mut self, now_ns: u64) -> (usize, bool) {
        let start_ns = self.port.start_ns();
        let (consumer, sizes, block_bytes) =
            (self.port.consumer(), self.sizes, self.format.block_bytes);
        let [first, second] = consumer.spans(0);
        let available = if first.is_empty() { second } else { first };
        let (elinks, outlet) = (&mut self.elinks, &mut self.outlet);
        let read = self.stats.bytes;
        let mut decoder = Decoder {
            format: self.format,
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
            let place =
                usize::from(self.places[usize::from(FelixHeader::of_block(block).elink.number())]);
            let Some(elink) = elinks.get_mut(place) else {
                decoder.stats.unknown_blocks += 1;
                done += block_bytes;
                continue;
            };
            let must_wait = |elink: &ElinkState, dests: &[Option<Dest>]| {
                self.settings.on_slow == OnSlow::Block && elink.is_full(dests, sizes.block_pages)
            };
            if must_wait(elink, decoder.dests) {
                for dest in decoder.dests.iter_mut().flatten() {
                    dest.pump(outlet.as_mut(), &self.port, now_ns);
                }
                if must_wait(elink, decoder.dests) {
                    return (done, true);
                }
            }
            let context = Context {
                at: place,
                now_ns,
                // Another process may give any number.
                birth_ns: start_ns.saturating_add(consumer.timestamp(done)),
                position: read + done as u64,
                sizes,
            };
            decoder.block(elink, block, &context);
            done += block_bytes;
        }
        (done, false)
    }

    fn send_queued(&mut self, now_ns: u64) {
        loop {
            let outlet = self.outlet.as_mut();
            for dest in self.dests.iter_mut().flatten().filter(|dest| dest.has_queue()) {
                dest.pump(outlet, &self.port, now_ns);
            }
            // Pages that the receiver takes make room for more.
            if !self.receive() {
                break;
            }
        }
    }

    /// Gives the receiver in this thread its turn; returns true if it took a page.
    pub(super) fn receive(&mut self) -> bool {
        let Some((receiver, ns)) = &mut self.fused else { return false };
        let begin_ns = monotonic_ns();
        let worked = receiver.turn(Duration::ZERO);
        *ns += monotonic_ns() - begin_ns;
        worked
    }

    pub(super) fn flush(&mut self, now_ns: u64, all: bool) {
        let timeout_ns = self.settings.timeout.0;
        for dest in self.dests.iter_mut().flatten() {
            if all || now_ns.saturating_sub(dest.page.opened_ns) >= timeout_ns {
                dest.roll();
            }
        }
        self.send_queued(now_ns);
    }
}

struct Decoder<'a> {
    format: BlockFormat,
    dests: &'a mut [Option<Dest>],
    room: &'a mut [Subchunk],
    stats: &'a mut Stats,
}

impl Decoder<'_> {
    #[inline]
    fn block(&mut self, elink: &mut ElinkState, block: &[u8], context: &Context) {
        self.stats.blocks += 1;
        let counts = &elink.reassembler.counts;
        let (missing, ended) = (counts.blocks_missing, counts.ended());
        let Ok((header, found)) = parts(self.format, block, self.room) else {
            self.stats.bad_blocks += 1;
            return elink.reassembler.bad_block();
        };
        if elink.is_repeated(header, block) {
            self.stats.duplicates += 1;
            return;
        }
        copy_chunks(elink, self.dests, header, &found, block, context);
        self.stats.missing_blocks += elink.reassembler.counts.blocks_missing - missing;
        self.stats.chunks += elink.offer(self.dests, context.at, ended);
    }
}
