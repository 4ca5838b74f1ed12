//! Times of the parts that share a reader's thread, and work added to parts: an experiment that
//! shows how the rate of a path depends on each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use daqmeter_sys::clock::monotonic_ns;

use crate::transport::Sent;

/// Parts of a chain, in the order of an [`Experiment`].
#[derive(Clone, Copy)]
enum ChainPart {
    /// The emulated card, in the threads of its readers.
    Card,
    ToHost,
    Publisher,
    Receiver,
}

/// Function that does the work of a number of blocks.
pub type Added = Arc<dyn Fn(f64) + Send + Sync>;

/// Work that is added to the card, the reader, the publisher and the receiver.
pub type Experiment = [Option<Added>; 4];

/// Function that does the work of a page's bytes, once they were received.
pub(crate) type Slowed = Arc<dyn Fn(u32) + Send + Sync>;

/// Times and slows the parts of one reader; all of a chain share the counts of bytes.
#[derive(Clone, Default)]
pub(crate) struct SlowedReader {
    experiment: Experiment,
    block_bytes: f64,
    /// Bytes given back to the rings, and bytes of pages that were sent, of all readers.
    bytes: Arc<[AtomicU64; 2]>,
    /// Bytes of this ring that were given back since the card was last carried on.
    returned: Arc<AtomicU64>,
    times_ns: Arc<[AtomicU64; 2]>,
}

impl SlowedReader {
    pub(crate) fn new(experiment: &Experiment, block_bytes: usize) -> SlowedReader {
        let (experiment, block_bytes) = (experiment.clone(), block_bytes as f64);
        SlowedReader { experiment, block_bytes, ..SlowedReader::default() }
    }

    pub(crate) fn another(&self) -> SlowedReader {
        SlowedReader { returned: Arc::default(), times_ns: Arc::default(), ..self.clone() }
    }

    pub(crate) fn times_ns(&self) -> (u64, u64) {
        let [card, publisher] = &*self.times_ns;
        (card.load(Ordering::Relaxed), publisher.load(Ordering::Relaxed))
    }

    fn work(&self, part: ChainPart, blocks: impl FnOnce() -> f64) {
        if let Some(added) = &self.experiment[part as usize] {
            added(blocks());
        }
    }

    fn timed<T>(&self, at: usize, work: impl FnOnce() -> T) -> T {
        let begin_ns = monotonic_ns();
        let done = work();
        self.times_ns[at].fetch_add(monotonic_ns() - begin_ns, Ordering::Relaxed);
        done
    }

    /// Number of blocks in bytes of pages, bounded by the bytes of blocks: a chunk's head in a page
    /// exceeds its trailer in a block. Data read and not yet sent is missing: early in a run the
    /// count is too high.
    fn blocks_of_pages(&self, bytes: u32) -> f64 {
        let [read, sent] = [0, 1].map(|at| self.bytes[at].load(Ordering::Relaxed) as f64);
        f64::from(bytes) * (read / sent.max(1.0)).min(1.0) / self.block_bytes
    }

    /// Carries the card on. It refills the bytes that were given back.
    pub(crate) fn card(&self, advance: impl FnOnce()) {
        self.timed(0, || {
            advance();
            self.work(ChainPart::Card, || {
                self.returned.swap(0, Ordering::Relaxed) as f64 / self.block_bytes
            });
        });
    }

    pub(crate) fn read(&self, bytes: usize) {
        self.bytes[0].fetch_add(bytes as u64, Ordering::Relaxed);
        self.returned.fetch_add(bytes as u64, Ordering::Relaxed);
        self.work(ChainPart::ToHost, || bytes as f64 / self.block_bytes);
    }

    pub(crate) fn poll(&self, poll: impl FnOnce()) {
        self.timed(1, poll);
    }

    pub(crate) fn send(&self, body_bytes: u32, send: impl FnOnce() -> Sent) -> Sent {
        self.timed(1, || {
            // The bytes are counted before the receiver has the page, as it counts by them.
            self.bytes[1].fetch_add(body_bytes.into(), Ordering::Relaxed);
            let sent = send();
            if sent == Sent::Done {
                self.work(ChainPart::Publisher, || self.blocks_of_pages(body_bytes));
            } else {
                self.bytes[1].fetch_sub(body_bytes.into(), Ordering::Relaxed);
            }
            sent
        })
    }

    pub(crate) fn receiver(&self) -> Option<Slowed> {
        let own = self.clone();
        let added = own.experiment[ChainPart::Receiver as usize].clone()?;
        Some(Arc::new(move |bytes| added(own.blocks_of_pages(bytes))))
    }
}
