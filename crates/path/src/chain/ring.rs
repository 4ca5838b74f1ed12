//! The ring between two threads: a fixed number of blocks that go round. The producer takes an
//! empty one, fills it and sends it; the consumer works on it and gives it back. A producer without
//! an empty block waits: thus a slow consumer holds back the source.
//!
//! Each direction is a bounded queue, which never holds more blocks than there are. Dropping either
//! end closes the ring; what was sent before is still received.
//!
//! A thread that waits polls for about as long as a wake-up costs, then it sleeps. Where the other
//! thread needs its CPU, it yields that once instead, which costs less than a wake-up.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};

use daqmeter_harness::{Fault, locked};
use daqmeter_record::path::PathQueue;
use daqmeter_sys::affinity::current_cpu;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::fence;
use daqmeter_sys::memory::{Buffer, Pages};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::chain::account::{Account, Side};
use crate::element::{Block, Label};

/// Longest wait that is not timed: about what reading the clocks for it takes.
const UNTIMED_NS: u64 = 2_000;
/// Longest time of polling before a sleep: a wake-up takes 2 to 25 us. Halved each time that
/// nothing came, down to the shortest.
const LONGEST_POLL_NS: u64 = 16_000;
const SHORTEST_POLL_NS: u64 = 1_000;
/// Polls between two looks at the clock.
const POLLS: usize = 16;

/// Takes blocks from one ring after the other, which gives the order in which they were dealt out.
/// Rings that ended are left out.
pub(crate) struct Inlet {
    rings: Vec<InRing>,
    next: usize,
}

struct InRing {
    full: Taker,
    empty: Giver,
    is_open: bool,
    /// Its ends, and the number of blocks in it when the next was wanted.
    queue: PathQueue,
}

impl Inlet {
    /// Next block and the ring to which it goes back; `None` at the end.
    pub(crate) fn next(&mut self, account: &mut Account) -> Option<(usize, Box<Block>)> {
        loop {
            let rings = self.rings.len();
            let at = (self.next..rings).chain(0..self.next).find(|&at| self.rings[at].is_open)?;
            let InRing { full, queue, is_open, .. } = &mut self.rings[at];
            // A hint: the producer may just be sending another.
            let depth = full.places.slots().min(queue.seen.len() - 1);
            if let Some(block) = full.take(Side::Input, account) {
                queue.seen[depth] += 1;
                self.next = if at + 1 == rings { 0 } else { at + 1 };
                return Some((at, block));
            }
            *is_open = false;
        }
    }

    /// Gives a block back. It is dropped if the producer is gone.
    pub(crate) fn give_back(&mut self, at: usize, block: Box<Block>) {
        self.rings[at].empty.give(block);
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = &PathQueue> {
        self.rings.iter().map(|one| &one.queue)
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
    full: Giver,
    empty: Taker,
    /// Blocks that have not been round yet.
    #[allow(clippy::vec_box, reason = "none is allocated in the time of a run")]
    fresh: Vec<Box<Block>>,
}

/// Blocks of a ring: their number, bytes and pages.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
    pub(crate) pages: Pages,
}

impl Blocks {
    #[allow(clippy::vec_box, reason = "none is allocated in the time of a run")]
    pub(crate) fn made(self) -> Result<Vec<Box<Block>>, Fault> {
        let Blocks { count, bytes, pages } = self;
        let made = Buffer::several(count, bytes, pages)?;
        if pages == Pages::HugeTlb && made.iter().any(|buffer| buffer.pages() != pages) {
            return Err(Fault::new(
                "too few huge pages are reserved for the blocks: set vm.nr_hugepages, or leave out `pages`",
            ));
        }
        let block = |buffer| Box::new(Block { buffer, label: Label::default() });
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

    pub(crate) fn try_empty(&mut self) -> Result<Box<Block>, TryRecvError> {
        let OutRing { fresh, empty, .. } = &mut self.rings[self.next];
        fresh.pop().map_or_else(|| empty.try_take(), Ok)
    }

    /// Waits for an empty block; `None` if all consumers are gone.
    pub(crate) fn empty(&mut self, account: &mut Account) -> Option<Box<Block>> {
        let OutRing { fresh, empty, .. } = &mut self.rings[self.next];
        fresh.pop().or_else(|| empty.take(Side::Output, account))
    }

    /// Sends a block; false if its consumer is gone.
    pub(crate) fn send(&mut self, block: Box<Block>) -> bool {
        let at = self.next;
        self.next = if at + 1 == self.rings.len() { 0 } else { at + 1 };
        self.rings[at].full.give(block)
    }
}

/// Giving end of one direction. Its places are dropped before the bell rings for the last time.
struct Giver {
    places: Producer<Box<Block>>,
    bell: Rope,
}

impl Giver {
    /// False if the taker is gone.
    fn give(&mut self, block: Box<Block>) -> bool {
        let is_given = self.places.push(block).is_ok() && !self.places.is_abandoned();
        self.bell.pull();
        is_given
    }
}

/// Taking end of one direction.
struct Taker {
    places: Consumer<Box<Block>>,
    bell: Arc<Bell>,
    /// Where the other thread waits for this one.
    other: Arc<Bell>,
    /// The last wait was over once the clocks had been read.
    is_short: bool,
    poll_ns: u64,
}

impl Taker {
    fn try_take(&mut self) -> Result<Box<Block>, TryRecvError> {
        if let Ok(block) = self.places.pop() {
            return Ok(block);
        }
        if !self.places.is_abandoned() {
            return Err(TryRecvError::Empty);
        }
        // The last ones may have come in between.
        self.places.pop().map_err(|_| TryRecvError::Disconnected)
    }

    /// Waits for the next one; `None` if the giver is gone.
    fn take(&mut self, side: Side, account: &mut Account) -> Option<Box<Block>> {
        match self.try_take() {
            Err(TryRecvError::Empty) => self.wait(side, account),
            taken => taken.ok(),
        }
    }

    #[cold]
    fn wait(&mut self, side: Side, account: &mut Account) -> Option<Box<Block>> {
        let found = if self.is_short { self.poll(UNTIMED_NS) } else { Err(TryRecvError::Empty) };
        if !is_empty(&found) {
            return found.ok();
        }
        let here = current_cpu().unwrap_or(u32::MAX);
        self.bell.cpu.store(here, Ordering::Relaxed);
        let may_poll = here != self.other.cpu.load(Ordering::Relaxed);
        account.wait(side, || {
            let mut found = self.try_take();
            self.is_short = may_poll && found.is_ok();
            if is_empty(&found) && may_poll {
                found = self.poll(self.poll_ns);
                let shorter_ns = SHORTEST_POLL_NS.max(self.poll_ns / 2);
                self.poll_ns = if is_empty(&found) { shorter_ns } else { LONGEST_POLL_NS };
            } else if is_empty(&found) {
                thread::yield_now();
                found = self.try_take();
            }
            if is_empty(&found) { self.sleep().ok() } else { found.ok() }
        })
    }

    fn poll(&mut self, most_ns: u64) -> Result<Box<Block>, TryRecvError> {
        let mut until_ns = None;
        loop {
            for _ in 0..POLLS {
                std::hint::spin_loop();
                let found = self.try_take();
                if !is_empty(&found) {
                    return found;
                }
            }
            let now_ns = monotonic_ns();
            if now_ns >= *until_ns.get_or_insert(now_ns + most_ns) {
                return Err(TryRecvError::Empty);
            }
        }
    }

    /// Either this thread sees what was given, or the giver sees this thread asleep: the fences,
    /// here and in [`Rope::pull`], order what each writes and then reads.
    fn sleep(&mut self) -> Result<Box<Block>, TryRecvError> {
        let Bell { is_asleep, sleeper, .. } = &*self.bell.clone();
        loop {
            *locked(sleeper) = Some(thread::current());
            is_asleep.store(true, Ordering::Relaxed);
            fence::rare();
            let found = self.try_take();
            if !is_empty(&found) {
                is_asleep.store(false, Ordering::Relaxed);
                return found;
            }
            thread::park();
        }
    }
}

fn is_empty<T>(found: &Result<T, TryRecvError>) -> bool {
    matches!(found, Err(TryRecvError::Empty))
}

/// Where the taker of one direction sleeps. Seldom written: it shares no lines with what is.
#[repr(align(128))]
struct Bell {
    /// CPU on which it last began to wait; `u32::MAX` before.
    cpu: AtomicU32,
    is_asleep: AtomicBool,
    sleeper: Mutex<Option<Thread>>,
}

impl Bell {
    fn hung() -> Arc<Bell> {
        let (is_asleep, sleeper) = (AtomicBool::new(false), Mutex::new(None));
        Arc::new(Bell { cpu: AtomicU32::new(u32::MAX), is_asleep, sleeper })
    }
}

/// The giver's end of a bell.
struct Rope(Arc<Bell>);

impl Rope {
    fn pull(&self) {
        fence::frequent();
        let Bell { is_asleep, sleeper, .. } = &*self.0;
        if is_asleep.load(Ordering::Relaxed) && is_asleep.swap(false, Ordering::Acquire) {
            let sleeper = locked(sleeper).take();
            sleeper.inspect(Thread::unpark);
        }
    }
}

impl Drop for Rope {
    fn drop(&mut self) {
        self.pull();
    }
}

/// Links two rows of threads, given by their names: one to one if they are as many, else each of
/// one side with the single one of the other.
pub(crate) fn link(from: &[String], to: &[String], blocks: Blocks) -> (Vec<Outlet>, Vec<Inlet>) {
    let outlet = |_| Outlet { rings: Vec::new(), next: 0, blocks };
    let mut outlets: Vec<Outlet> = from.iter().map(outlet).collect();
    let mut inlets: Vec<Inlet> = to.iter().map(|_| Inlet { rings: Vec::new(), next: 0 }).collect();
    let direction = |bell: &Arc<Bell>, other: &Arc<Bell>| {
        let (giver, taker) = RingBuffer::new(blocks.count);
        let (bell, other) = (bell.clone(), other.clone());
        let giver = Giver { places: giver, bell: Rope(bell.clone()) };
        (giver, Taker { places: taker, bell, other, is_short: false, poll_ns: LONGEST_POLL_NS })
    };
    for at in 0..from.len().max(to.len()) {
        let (out, into) = (at % from.len(), at % to.len());
        let (consumer, producer) = (Bell::hung(), Bell::hung());
        let (full_in, full) = direction(&consumer, &producer);
        let (empty_in, empty) = direction(&producer, &consumer);
        let fresh = Vec::with_capacity(blocks.count);
        outlets[out].rings.push(OutRing { full: full_in, empty, fresh });
        let seen = vec![0; blocks.count + 1];
        let queue = PathQueue { from: from[out].clone(), to: to[into].clone(), seen };
        inlets[into].rings.push(InRing { full, empty: empty_in, is_open: true, queue });
    }
    (outlets, inlets)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use daqmeter_record::path::PathThread;
    use daqmeter_sys::affinity::pin_to;
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

    fn numbered(mut block: Box<Block>, sequence: u64) -> Box<Block> {
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

    /// Both ends in threads of their own, on the given CPU if there is one.
    fn go_round(count: usize, blocks: u64, cpu: Option<u32>) {
        let (mut outlet, mut inlet, _) = ring(count);
        let begin = move || {
            cpu.map(|cpu| pin_to(cpu).unwrap());
            Account::begin(PathThread::default())
        };
        let (done, ended) = channel();
        let sent = done.clone();
        thread::spawn(move || {
            let mut account = begin();
            for number in 0..blocks {
                let block = outlet.empty(&mut account).unwrap();
                assert!(outlet.send(numbered(block, number)));
            }
            sent.send(()).unwrap();
        });
        thread::spawn(move || {
            let mut account = begin();
            for number in 0..blocks {
                let (at, block) = inlet.next(&mut account).unwrap();
                assert_eq!(block.label.sequence, number);
                inlet.give_back(at, block);
            }
            assert!(inlet.next(&mut account).is_none());
            done.send(()).unwrap();
        });
        (0..2).for_each(|_| ended.recv_timeout(Duration::from_secs(60)).unwrap());
    }

    #[test]
    fn no_wake_up_is_lost() {
        for count in [1, 2, 3, 8] {
            go_round(count, 20_000, current_cpu());
            go_round(count, 100_000, None);
        }
    }

    #[test]
    fn an_end_that_sleeps_learns_that_the_other_went() {
        let until_asleep = |bell: &Bell| {
            while !bell.is_asleep.load(Ordering::Relaxed) {
                thread::yield_now()
            }
        };
        let (outlet, mut inlet, _) = ring(1);
        let bell = inlet.rings[0].full.bell.clone();
        let begin = || Account::begin(PathThread::default());
        let waits = thread::spawn(move || inlet.next(&mut begin()).is_none());
        until_asleep(&bell);
        drop(outlet);
        assert!(waits.join().unwrap());
        let (mut outlet, inlet, _) = ring(1);
        let bell = outlet.rings[0].empty.bell.clone();
        let _block = outlet.try_empty().unwrap();
        let waits = thread::spawn(move || outlet.empty(&mut begin()).is_none());
        until_asleep(&bell);
        drop(inlet);
        assert!(waits.join().unwrap());
    }
}
