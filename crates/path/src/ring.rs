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

/// Takes blocks from one ring after the other, which gives the order in which they were dealt out.
/// Rings that ended are left out.
pub(crate) struct Inlet {
    rings: Vec<InRing>,
    next: usize,
}

struct InRing {
    full: Receiver<Block>,
    empty: SyncSender<Block>,
    sent: Arc<AtomicU64>,
    taken: u64,
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

    /// Gives a block back. It is dropped if the producer is gone.
    pub(crate) fn give_back(&mut self, at: usize, block: Block) {
        // The channel cannot be full: it has a place for each block.
        let _ = self.rings[at].empty.send(block);
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = &PathQueue> {
        self.rings.iter().map(|one| &one.queue)
    }
}

impl InRing {
    fn next(&mut self, account: &mut Account) -> Option<Block> {
        // A hint: the producer may just be sending another.
        let depth = self.sent.load(Ordering::Relaxed).saturating_sub(self.taken);
        let block = match self.full.try_recv() {
            Ok(block) => Some(block),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => account.wait(Side::Input, || self.full.recv().ok()),
        }?;
        self.taken += 1;
        let last = self.queue.seen.len() - 1;
        self.queue.seen[usize::try_from(depth).map_or(last, |depth| depth.min(last))] += 1;
        Some(block)
    }
}

/// Deals blocks out to one ring after the other.
pub(crate) struct Outlet {
    rings: Vec<OutRing>,
    next: usize,
    /// Blocks of each ring.
    blocks: Blocks,
}

struct OutRing {
    full: SyncSender<Block>,
    empty: Receiver<Block>,
    /// Blocks that have not been round yet.
    fresh: Vec<Block>,
    /// Written by this end alone.
    sent: Arc<AtomicU64>,
    count: u64,
}

/// Blocks of a ring: their number, bytes and pages.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
    pub(crate) pages: Pages,
}

impl Blocks {
    pub(crate) fn made(self) -> Result<Vec<Block>, Fault> {
        let Blocks { count, bytes, pages } = self;
        let made = Buffer::several(count, bytes, pages)?;
        if pages == Pages::HugeTlb && made.iter().any(|buffer| buffer.pages() != pages) {
            return Err(Fault::new(
                "too few huge pages are reserved for the blocks: set vm.nr_hugepages, or leave out `pages`",
            ));
        }
        let block = |buffer| Block { buffer, label: Label::default() };
        Ok(made.into_iter().map(block).collect())
    }
}

impl Outlet {
    pub(crate) fn prepare(&mut self) -> Result<(), Fault> {
        for ring in &mut self.rings {
            ring.fresh.extend(self.blocks.made()?);
        }
        Ok(())
    }

    pub(crate) fn try_empty(&mut self) -> Result<Block, TryRecvError> {
        let ring = &mut self.rings[self.next];
        ring.fresh.pop().map_or_else(|| ring.empty.try_recv(), Ok)
    }

    /// Waits for an empty block; `None` if all consumers are gone.
    pub(crate) fn empty(&mut self, account: &mut Account) -> Option<Block> {
        match self.try_empty() {
            Ok(block) => Some(block),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                let ring = &self.rings[self.next];
                account.wait(Side::Output, || ring.empty.recv().ok())
            }
        }
    }

    /// Sends a block; false if its consumer is gone.
    pub(crate) fn send(&mut self, block: Block) -> bool {
        let at = self.next;
        self.next = (at + 1) % self.rings.len();
        let ring = &mut self.rings[at];
        ring.count += 1;
        ring.sent.store(ring.count, Ordering::Relaxed);
        ring.full.send(block).is_ok()
    }
}

/// Links two rows of threads, given by their names: one to one if they are as many, else each of
/// one side with the single one of the other.
pub(crate) fn link(from: &[String], to: &[String], blocks: Blocks) -> (Vec<Outlet>, Vec<Inlet>) {
    let outlet = |_| Outlet { rings: Vec::new(), next: 0, blocks };
    let mut outlets: Vec<Outlet> = from.iter().map(outlet).collect();
    let mut inlets: Vec<Inlet> = to.iter().map(|_| Inlet { rings: Vec::new(), next: 0 }).collect();
    for at in 0..from.len().max(to.len()) {
        let (out, into) = (at % from.len(), at % to.len());
        // One more place, so that neither end waits for a place while a block is on its way.
        let (full_in, full) = sync_channel(blocks.count + 1);
        let (empty_in, empty) = sync_channel(blocks.count + 1);
        let sent = Arc::new(AtomicU64::new(0));
        let fresh = Vec::with_capacity(blocks.count);
        outlets[out].rings.push(OutRing {
            full: full_in,
            empty,
            fresh,
            sent: sent.clone(),
            count: 0,
        });
        let seen = vec![0; blocks.count + 1];
        let queue = PathQueue { from: from[out].clone(), to: to[into].clone(), seen };
        let is_open = true;
        inlets[into].rings.push(InRing { full, empty: empty_in, sent, taken: 0, is_open, queue });
    }
    (outlets, inlets)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use daqmeter_record::path::PathThread;
    use proptest::prelude::*;

    use super::*;

    fn ring(count: usize) -> (Outlet, Inlet, Account) {
        let names = [String::new()];
        let blocks = Blocks { count, bytes: 64, pages: Pages::Base };
        let (mut outlets, mut inlets) = link(&names, &names, blocks);
        let mut outlet = outlets.remove(0);
        outlet.prepare().unwrap();
        (outlet, inlets.remove(0), Account::begin(PathThread::default()))
    }

    fn numbered(mut block: Block, sequence: u64) -> Block {
        block.label.sequence = sequence;
        block
    }

    /// Actions at either end.
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
            let (mut outlet, mut inlet, mut account) = ring(blocks);
            let (mut empty, mut full, mut held) = (blocks, VecDeque::new(), Vec::new());
            let (mut next, mut seen) = (1, vec![0; blocks + 1]);
            for act in acts {
                match act {
                    Act::Send => {
                        let found = outlet.try_empty();
                        prop_assert_eq!(found.is_ok(), empty > 0);
                        if let Ok(block) = found {
                            prop_assert!(outlet.send(numbered(block, next)));
                            full.push_back(next);
                            (empty, next) = (empty - 1, next + 1);
                        }
                    }
                    Act::Take => if !full.is_empty() {
                        seen[full.len()] += 1;
                        let (_, block) = inlet.next(&mut account).unwrap();
                        prop_assert_eq!(Some(block.label.sequence), full.pop_front());
                        held.push(block);
                    }
                    Act::GiveBack => {
                        if let Some(block) = held.pop() {
                            inlet.give_back(0, block);
                            empty += 1;
                        }
                    }
                }
            }
            prop_assert_eq!(&inlet.queues().next().unwrap().seen, &seen);
        }
    }

    #[test]
    fn what_was_sent_before_the_producer_went_is_still_received() {
        let (mut outlet, mut inlet, mut account) = ring(3);
        for number in 1..=2 {
            let block = outlet.try_empty().unwrap();
            assert!(outlet.send(numbered(block, number)));
        }
        drop(outlet);
        for number in 1..=2 {
            let (_, block) = inlet.next(&mut account).unwrap();
            assert_eq!(block.label.sequence, number);
            inlet.give_back(0, block);
        }
        assert!(inlet.next(&mut account).is_none());
    }

    #[test]
    fn a_producer_learns_that_the_consumer_went() {
        let (mut outlet, inlet, mut account) = ring(1);
        drop(inlet);
        let block = outlet.try_empty().unwrap();
        assert_eq!(outlet.try_empty().unwrap_err(), TryRecvError::Disconnected);
        assert!(outlet.empty(&mut account).is_none() && !outlet.send(block));
    }

    #[test]
    fn between_threads_nothing_is_lost_or_exchanged() {
        let (mut outlet, mut inlet, mut account) = ring(4);
        let sender = std::thread::spawn(move || {
            let mut account = Account::begin(PathThread::default());
            for number in 0..10_000 {
                let block = outlet.empty(&mut account).unwrap();
                assert!(outlet.send(numbered(block, number)));
            }
        });
        for number in 0..10_000 {
            let (_, block) = inlet.next(&mut account).unwrap();
            assert_eq!(block.label.sequence, number);
            inlet.give_back(0, block);
        }
        assert!(inlet.next(&mut account).is_none());
        sender.join().unwrap();
    }
}
