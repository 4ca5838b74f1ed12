//! The ring between two threads: a fixed number of blocks that go round. The producer takes an
//! empty one, fills it and sends it; the consumer works on it and gives it back. A producer without
//! an empty block waits: thus a slow consumer holds back the source.
//!
//! Both directions are bounded channels of the standard library, which never hold more blocks than
//! there are. Dropping either end closes the ring; what was sent before is still received.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use daqmeter_harness::Fault;
use daqmeter_record::path::PathQueue;
use daqmeter_sys::memory::{Buffer, Pages};

use crate::account::{Account, Side};
use crate::element::{Block, Label};

#[derive(Debug)]
pub(crate) struct Producer<T> {
    full: SyncSender<T>,
    empty: Receiver<T>,
    /// Blocks that have not been round yet.
    fresh: Vec<T>,
    /// Written by this end alone.
    sent: Arc<AtomicU64>,
    count: u64,
}

#[derive(Debug)]
pub(crate) struct Consumer<T> {
    full: Receiver<T>,
    empty: SyncSender<T>,
    sent: Arc<AtomicU64>,
    taken: u64,
}

/// Makes a ring for `blocks` blocks, which [`Producer::put_in`] adds.
pub(crate) fn ring<T>(blocks: usize) -> (Producer<T>, Consumer<T>) {
    // One more place, so that neither end waits for a place while a block is on its way.
    let (full_in, full) = sync_channel(blocks + 1);
    let (empty_in, empty) = sync_channel(blocks + 1);
    let sent = Arc::new(AtomicU64::new(0));
    let producer = Producer {
        full: full_in,
        empty,
        fresh: Vec::with_capacity(blocks),
        sent: sent.clone(),
        count: 0,
    };
    let consumer = Consumer { full, empty: empty_in, sent, taken: 0 };
    (producer, consumer)
}

impl<T> Producer<T> {
    /// Adds an empty block, before the first is taken.
    pub(crate) fn put_in(&mut self, block: T) {
        self.fresh.push(block);
    }

    pub(crate) fn try_empty(&mut self) -> Result<T, TryRecvError> {
        self.fresh.pop().map_or_else(|| self.empty.try_recv(), Ok)
    }

    pub(crate) fn wait_empty(&self) -> Option<T> {
        self.empty.recv().ok()
    }

    /// Sends a block; false if the consumer is gone.
    pub(crate) fn send(&mut self, block: T) -> bool {
        self.count += 1;
        self.sent.store(self.count, Ordering::Relaxed);
        self.full.send(block).is_ok()
    }
}

impl<T> Consumer<T> {
    pub(crate) fn try_next(&mut self) -> Result<T, TryRecvError> {
        self.full.try_recv().inspect(|_| self.taken += 1)
    }

    pub(crate) fn wait_next(&mut self) -> Option<T> {
        self.full.recv().ok().inspect(|_| self.taken += 1)
    }

    /// Number of blocks that were sent and not taken yet. A hint: the producer may just be sending
    /// another.
    pub(crate) fn depth(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).saturating_sub(self.taken)
    }

    /// Gives a block back. It is dropped if the producer is gone.
    pub(crate) fn give_back(&mut self, block: T) {
        // The channel cannot be full: it has a place for each block.
        let _ = self.empty.send(block);
    }
}

/// Takes blocks from one ring after the other, which gives the order in which they were dealt out.
/// Rings that ended are left out.
pub(crate) struct Inlet {
    rings: Vec<InRing>,
    next: usize,
}

struct InRing {
    ring: Consumer<Block>,
    is_open: bool,
    /// Its ends, and the number of blocks in it when the next was wanted.
    queue: PathQueue,
}

impl Inlet {
    /// Next block and the ring to which it goes back; `None` at the end.
    pub(crate) fn next(&mut self, account: &mut Account) -> Option<(usize, Block)> {
        loop {
            let rings = self.rings.len();
            let mut order = (0..rings).map(|step| (self.next + step) % rings);
            let at = order.find(|&at| self.rings[at].is_open)?;
            if let Some(block) = self.rings[at].next(account) {
                self.next = (at + 1) % rings;
                return Some((at, block));
            }
            self.rings[at].is_open = false;
        }
    }

    pub(crate) fn give_back(&mut self, at: usize, block: Block) {
        self.rings[at].ring.give_back(block);
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = &PathQueue> {
        self.rings.iter().map(|one| &one.queue)
    }
}

impl InRing {
    fn next(&mut self, account: &mut Account) -> Option<Block> {
        let depth = usize::try_from(self.ring.depth()).unwrap_or(usize::MAX);
        let block = match self.ring.try_next() {
            Ok(block) => Some(block),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => account.wait(Side::Input, || self.ring.wait_next()),
        }?;
        let last = self.queue.seen.len() - 1;
        self.queue.seen[depth.min(last)] += 1;
        Some(block)
    }
}

/// Deals blocks out to one ring after the other.
pub(crate) struct Outlet {
    rings: Vec<Producer<Block>>,
    next: usize,
    /// Blocks of each ring.
    blocks: Blocks,
}

/// Blocks of a ring: their number, bytes and pages.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
    pub(crate) pages: Pages,
}

impl Outlet {
    pub(crate) fn prepare(&mut self) -> Result<(), Fault> {
        let Blocks { count, bytes, pages } = self.blocks;
        for ring in &mut self.rings {
            for buffer in Buffer::several(count, bytes, pages)? {
                if pages == Pages::HugeTlb && buffer.pages() != Pages::HugeTlb {
                    return Err(Fault::new(
                        "too few huge pages are reserved for the blocks: set vm.nr_hugepages, or leave out `pages`",
                    ));
                }
                ring.put_in(Block { buffer, label: Label::default() });
            }
        }
        Ok(())
    }

    pub(crate) fn try_empty(&mut self) -> Result<Block, TryRecvError> {
        self.rings[self.next].try_empty()
    }

    /// Waits for an empty block; `None` if all consumers are gone.
    pub(crate) fn empty(&mut self, account: &mut Account) -> Option<Block> {
        match self.try_empty() {
            Ok(block) => Some(block),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                let ring = &self.rings[self.next];
                account.wait(Side::Output, || ring.wait_empty())
            }
        }
    }

    /// Sends a block; false if its consumer is gone.
    pub(crate) fn send(&mut self, block: Block) -> bool {
        let at = self.next;
        self.next = (at + 1) % self.rings.len();
        self.rings[at].send(block)
    }
}

/// Links two rows of threads, given by their names: one to one if they are as many, else each of
/// one side with the single one of the other.
pub(crate) fn link(from: &[String], to: &[String], blocks: Blocks) -> (Vec<Outlet>, Vec<Inlet>) {
    let outlet = |_| Outlet { rings: Vec::new(), next: 0, blocks };
    let mut outlets: Vec<Outlet> = from.iter().map(outlet).collect();
    let mut inlets: Vec<Inlet> = to.iter().map(|_| Inlet { rings: Vec::new(), next: 0 }).collect();
    for at in 0..from.len().max(to.len()) {
        let (producer, ring) = ring(blocks.count);
        let (out, into) = (at % from.len(), at % to.len());
        outlets[out].rings.push(producer);
        let seen = vec![0; blocks.count + 1];
        let queue = PathQueue { from: from[out].clone(), to: to[into].clone(), seen };
        inlets[into].rings.push(InRing { ring, is_open: true, queue });
    }
    (outlets, inlets)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Actions at either end that do not wait.
    #[derive(Clone, Copy, Debug)]
    enum Act {
        Send,
        Take,
        GiveBack,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![Just(Act::Send), Just(Act::Take), Just(Act::GiveBack)];
        proptest::collection::vec(act, 0..200)
    }

    proptest! {
        /// Compares with plain queues: the same blocks in the same order, never more than there
        /// are.
        #[test]
        fn a_ring_is_two_queues_of_so_many_blocks(blocks in 1..5_usize, acts in acts()) {
            let (mut producer, mut consumer) = ring(blocks);
            (0..blocks).for_each(|_| producer.put_in(0));
            let (mut empty, mut full, mut held) = (blocks, VecDeque::new(), Vec::new());
            let mut next = 1;
            for act in acts {
                match act {
                    Act::Send => {
                        let found = producer.try_empty();
                        prop_assert_eq!(found.is_ok(), empty > 0);
                        if empty > 0 {
                            prop_assert!(producer.send(next));
                            full.push_back(next);
                            (empty, next) = (empty - 1, next + 1);
                        }
                    }
                    Act::Take => {
                        prop_assert_eq!(consumer.depth(), full.len() as u64);
                        let wanted = full.pop_front();
                        prop_assert_eq!(consumer.try_next().ok(), wanted);
                        held.extend(wanted);
                    }
                    Act::GiveBack => {
                        if let Some(block) = held.pop() {
                            consumer.give_back(block);
                            empty += 1;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_sent_before_the_producer_went_is_still_received() {
        let (mut producer, mut consumer) = ring(3);
        (0..3).for_each(|_| producer.put_in(0));
        assert!(producer.send(1) && producer.send(2));
        drop(producer);
        assert_eq!(consumer.wait_next(), Some(1));
        consumer.give_back(1);
        assert_eq!(consumer.try_next(), Ok(2));
        assert_eq!(consumer.wait_next(), None);
        assert_eq!(consumer.try_next(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn a_producer_learns_that_the_consumer_went() {
        let (mut producer, consumer) = ring(1);
        producer.put_in(0);
        drop(consumer);
        assert_eq!(producer.try_empty(), Ok(0));
        assert_eq!(producer.try_empty(), Err(TryRecvError::Disconnected));
        assert_eq!(producer.wait_empty(), None);
        assert!(!producer.send(1));
    }

    #[test]
    fn between_threads_nothing_is_lost_or_exchanged() {
        let (mut producer, mut consumer) = ring(4);
        (0..4).for_each(|_| producer.put_in(0));
        let sender = std::thread::spawn(move || {
            for n in 0..10_000_u64 {
                let empty = producer.try_empty().ok().or_else(|| producer.wait_empty());
                assert!(empty.is_some() && producer.send(n));
            }
        });
        for wanted in 0..10_000 {
            let block = consumer.wait_next().unwrap();
            assert_eq!(block, wanted);
            assert!(consumer.depth() <= 4);
            consumer.give_back(block);
        }
        assert_eq!(consumer.wait_next(), None);
        sender.join().unwrap();
    }
}
