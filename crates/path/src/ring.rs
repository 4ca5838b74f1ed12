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
use daqmeter_sys::memory::{Buffer, Pages};

use crate::account::{Account, Side};
use crate::element::{Block, Label};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<T> {
    Block(T),
    Nothing,
    /// The end of the ring.
    Closed,
}

impl<T> Found<T> {
    fn of(tried: Result<T, TryRecvError>) -> Found<T> {
        match tried {
            Ok(block) => Found::Block(block),
            Err(TryRecvError::Empty) => Found::Nothing,
            Err(TryRecvError::Disconnected) => Found::Closed,
        }
    }
}

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

    pub(crate) fn try_empty(&mut self) -> Found<T> {
        match self.fresh.pop() {
            Some(block) => Found::Block(block),
            None => Found::of(self.empty.try_recv()),
        }
    }

    pub(crate) fn wait_empty(&mut self) -> Result<T, Closed> {
        self.empty.recv().map_err(|_| Closed)
    }

    pub(crate) fn send(&mut self, block: T) -> Result<(), Closed> {
        self.count += 1;
        self.sent.store(self.count, Ordering::Relaxed);
        self.full.send(block).map_err(|_| Closed)
    }
}

impl<T> Consumer<T> {
    pub(crate) fn try_next(&mut self) -> Found<T> {
        let found = Found::of(self.full.try_recv());
        self.taken += u64::from(matches!(found, Found::Block(_)));
        found
    }

    pub(crate) fn wait_next(&mut self) -> Result<T, Closed> {
        let next = self.full.recv().map_err(|_| Closed)?;
        self.taken += 1;
        Ok(next)
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
    rings: Vec<Consumer<Block>>,
    is_open: Vec<bool>,
    /// Number of blocks in each ring when the next was wanted.
    pub(crate) seen: Vec<Vec<u64>>,
    next: usize,
}

impl Inlet {
    pub(crate) fn new(rings: Vec<Consumer<Block>>, buffers: usize) -> Inlet {
        Inlet {
            is_open: vec![true; rings.len()],
            seen: vec![vec![0; buffers + 1]; rings.len()],
            rings,
            next: 0,
        }
    }

    /// Next block and the ring to which it goes back; `None` at the end.
    pub(crate) fn next(&mut self, account: &mut Account) -> Option<(usize, Block)> {
        loop {
            let rings = self.rings.len();
            let mut order = (0..rings).map(|step| (self.next + step) % rings);
            let at = order.find(|&at| self.is_open[at])?;
            if let Some(block) = self.of(at, account) {
                self.next = (at + 1) % rings;
                return Some((at, block));
            }
            self.is_open[at] = false;
        }
    }

    fn of(&mut self, at: usize, account: &mut Account) -> Option<Block> {
        let ring = &mut self.rings[at];
        let depth = usize::try_from(ring.depth()).unwrap_or(usize::MAX);
        let block = match ring.try_next() {
            Found::Block(block) => Some(block),
            Found::Closed => None,
            Found::Nothing => account.wait(Side::Input, || ring.wait_next()).ok(),
        }?;
        let last = self.seen[at].len() - 1;
        self.seen[at][depth.min(last)] += 1;
        Some(block)
    }

    pub(crate) fn give_back(&mut self, at: usize, block: Block) {
        self.rings[at].give_back(block);
    }
}

/// Deals blocks out to one ring after the other.
pub(crate) struct Outlet {
    rings: Vec<Producer<Block>>,
    next: usize,
    pages: Pages,
}

impl Outlet {
    pub(crate) fn new(rings: Vec<Producer<Block>>, pages: Pages) -> Outlet {
        Outlet { rings, next: 0, pages }
    }

    pub(crate) fn prepare(&mut self, blocks: usize, bytes: usize) -> Result<(), Fault> {
        for ring in &mut self.rings {
            for buffer in Buffer::several(blocks, bytes, self.pages)? {
                if self.pages == Pages::HugeTlb && buffer.pages() != Pages::HugeTlb {
                    return Err(Fault::new(
                        "too few huge pages are reserved for the blocks: set vm.nr_hugepages, or leave out `pages`",
                    ));
                }
                ring.put_in(Block { buffer, label: Label::default() });
            }
        }
        Ok(())
    }

    pub(crate) fn try_empty(&mut self) -> Found<Block> {
        self.rings[self.next].try_empty()
    }

    /// Waits for an empty block; `None` if all consumers are gone.
    pub(crate) fn empty(&mut self, account: &mut Account) -> Option<Block> {
        match self.try_empty() {
            Found::Block(block) => Some(block),
            Found::Closed => None,
            Found::Nothing => {
                let ring = &mut self.rings[self.next];
                account.wait(Side::Output, || ring.wait_empty()).ok()
            }
        }
    }

    pub(crate) fn send(&mut self, block: Block) -> Result<(), Closed> {
        let at = self.next;
        self.next = (at + 1) % self.rings.len();
        self.rings[at].send(block)
    }
}

/// Links two rows of threads: one to one if they are as many, else each of one side with the single
/// one of the other.
pub(crate) fn link(
    producers: usize,
    consumers: usize,
    buffers: usize,
    pages: Pages,
) -> (Vec<Outlet>, Vec<Inlet>) {
    let mut outlets: Vec<Vec<Producer<Block>>> = (0..producers).map(|_| Vec::new()).collect();
    let mut inlets: Vec<Vec<Consumer<Block>>> = (0..consumers).map(|_| Vec::new()).collect();
    for at in 0..producers.max(consumers) {
        let (producer, consumer) = ring(buffers);
        outlets[at % producers].push(producer);
        inlets[at % consumers].push(consumer);
    }
    let inlets = inlets.into_iter();
    (
        outlets.into_iter().map(|rings| Outlet::new(rings, pages)).collect(),
        inlets.map(|rings| Inlet::new(rings, buffers)).collect(),
    )
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
                        prop_assert_eq!(matches!(found, Found::Block(_)), empty > 0);
                        if empty > 0 {
                            producer.send(next).unwrap();
                            full.push_back(next);
                            (empty, next) = (empty - 1, next + 1);
                        }
                    }
                    Act::Take => {
                        prop_assert_eq!(consumer.depth(), full.len() as u64);
                        let wanted = full.pop_front();
                        let found = match consumer.try_next() {
                            Found::Block(block) => Some(block),
                            _ => None,
                        };
                        prop_assert_eq!(found, wanted);
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
        producer.send(1).unwrap();
        producer.send(2).unwrap();
        drop(producer);
        assert_eq!(consumer.wait_next(), Ok(1));
        consumer.give_back(1);
        assert_eq!(consumer.try_next(), Found::Block(2));
        assert_eq!(consumer.wait_next(), Err(Closed));
        assert_eq!(consumer.try_next(), Found::Closed);
    }

    #[test]
    fn a_producer_learns_that_the_consumer_went() {
        let (mut producer, consumer) = ring(1);
        producer.put_in(0);
        drop(consumer);
        assert_eq!(producer.try_empty(), Found::Block(0));
        assert_eq!(producer.try_empty(), Found::Closed);
        assert_eq!(producer.wait_empty(), Err(Closed));
        assert_eq!(producer.send(1), Err(Closed));
    }

    #[test]
    fn between_threads_nothing_is_lost_or_exchanged() {
        let (mut producer, mut consumer) = ring(4);
        (0..4).for_each(|_| producer.put_in(0));
        let sender = std::thread::spawn(move || {
            for n in 0..10_000_u64 {
                let empty = match producer.try_empty() {
                    Found::Block(block) => block,
                    _ => producer.wait_empty().unwrap(),
                };
                std::hint::black_box(empty);
                producer.send(n).unwrap();
            }
        });
        for wanted in 0..10_000 {
            let block = consumer.wait_next().unwrap();
            assert_eq!(block, wanted);
            assert!(consumer.depth() <= 4);
            consumer.give_back(block);
        }
        assert_eq!(consumer.wait_next(), Err(Closed));
        sender.join().unwrap();
    }
}
