//! Words beside the ring, by which card and reader tell each other their states and counts.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use daqmeter_record::border::MAX_WHOLE;
use daqmeter_sys::ring::{Consumer, Producer, WORDS};

use crate::accounts::{CardAccount, CardElink, Dead};

const STATE: usize = 0;
const START_NS: usize = 1;
const ISSUED: usize = 2;
const VETOED: usize = 3;
const NOW_NS: usize = 5;
const FLAGS: usize = 6;
const FIFO_BYTES: usize = 7;
/// Four times four words.
const DEAD: usize = 8;
const ELINKS: usize = 24;
const GO: usize = 25;
/// Flag that the reader waits for an interrupt.
const ARMED: usize = 26;
const VETOED_EXTERNAL: usize = 27;
const FIRST_ELINK: usize = 64;
const WORDS_PER_ELINK: usize = 9;
pub(crate) const RECORDED_BIT: u32 = 5;
pub(crate) const MAX_ELINKS: usize = (WORDS - FIRST_ELINK) / WORDS_PER_ELINK;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardState {
    Idle,
    Running,
    Finished,
}

#[derive(Clone, Debug)]
pub struct CardView {
    pub state: CardState,
    pub account: CardAccount,
    /// Dead time: BUSY-by-DMA, BUSY-by-FIFO, both without overlap; external BUSY.
    pub dead: [Dead; 4],
    /// BUSY flags: live DMA and FIFO (bits 0, 1), latched (bits 2, 3), blocks of a recorded
    /// file (bit 5), live external BUSY (bit 6).
    pub flags: u64,
    pub fifo_bytes: u64,
    /// Time since the start up to which all counts hold.
    pub now_ns: u64,
    pub start_ns: u64,
}

pub(crate) trait Words {
    fn word(&self, at: usize) -> &AtomicU64;

    fn set(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Relaxed);
    }

    fn get(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Count or time of the other process, limited to [`MAX_WHOLE`], which no run reaches.
    fn count(&self, at: usize) -> u64 {
        self.get(at).min(MAX_WHOLE)
    }
}

impl Words for Producer {
    fn word(&self, at: usize) -> &AtomicU64 {
        Producer::word(self, at)
    }
}

impl Words for Consumer {
    fn word(&self, at: usize) -> &AtomicU64 {
        Consumer::word(self, at)
    }
}

/// Writes the card's counts, the state last: a reader that sees the end sees all counts.
pub(crate) fn publish(ring: &impl Words, view: &CardView) {
    ring.set(START_NS, view.start_ns);
    ring.set(ISSUED, view.account.issued);
    ring.set(VETOED, view.account.vetoed_dma);
    ring.set(VETOED + 1, view.account.vetoed_fifo);
    ring.set(VETOED_EXTERNAL, view.account.vetoed_external);
    ring.set(NOW_NS, view.now_ns);
    ring.set(FLAGS, view.flags);
    ring.set(FIFO_BYTES, view.fifo_bytes);
    for (at, dead) in view.dead.iter().enumerate() {
        for (field, value) in
            [dead.ns, dead.count, dead.longest_ns, dead.vetoed].into_iter().enumerate()
        {
            ring.set(DEAD + 4 * at + field, value);
        }
    }
    ring.set(ELINKS, view.account.elinks.len() as u64);
    for (at, elink) in view.account.elinks.iter().enumerate() {
        let values = [
            elink.tag,
            u64::from(elink.elink),
            elink.deficit,
            elink.sender_lost,
            elink.fifo_lost,
            elink.truncated,
            elink.fault_lost,
            elink.chunks,
            elink.fault_flagged,
        ];
        for (field, value) in values.into_iter().enumerate() {
            ring.set(FIRST_ELINK + WORDS_PER_ELINK * at + field, value);
        }
    }
    // Release: pairs with the acquire in `view`.
    ring.word(STATE).store(view.state as u64, Ordering::Release);
}

/// Reads the card's counts. While the card runs, they may be of different moments.
pub(crate) fn view(ring: &impl Words) -> CardView {
    let state = state(ring);
    let count = usize::try_from(ring.get(ELINKS)).map_or(0, |count| count.min(MAX_ELINKS));
    let elink = |at: usize| {
        let word = FIRST_ELINK + WORDS_PER_ELINK * at;
        let field = |field: usize| ring.count(word + field);
        CardElink {
            tag: ring.get(word),
            elink: u16::try_from(field(1)).unwrap_or(u16::MAX),
            deficit: field(2),
            sender_lost: field(3),
            fifo_lost: field(4),
            truncated: field(5),
            fault_lost: field(6),
            chunks: field(7),
            fault_flagged: field(8),
        }
    };
    let dead = |at: usize| {
        let field = |field: usize| ring.count(DEAD + 4 * at + field);
        Dead { ns: field(0), count: field(1), longest_ns: field(2), vetoed: field(3) }
    };
    CardView {
        state,
        account: CardAccount {
            issued: ring.count(ISSUED),
            vetoed_dma: ring.count(VETOED),
            vetoed_fifo: ring.count(VETOED + 1),
            vetoed_external: ring.count(VETOED_EXTERNAL),
            recorded: ring.get(FLAGS) >> RECORDED_BIT & 1 == 1,
            elinks: (0..count).map(elink).collect(),
        },
        dead: [dead(0), dead(1), dead(2), dead(3)],
        flags: ring.get(FLAGS),
        fifo_bytes: ring.count(FIFO_BYTES),
        now_ns: ring.count(NOW_NS),
        start_ns: ring.count(START_NS),
    }
}

pub(crate) fn state(ring: &impl Words) -> CardState {
    match ring.word(STATE).load(Ordering::Acquire) {
        0 => CardState::Idle,
        1 => CardState::Running,
        _ => CardState::Finished,
    }
}

pub(crate) fn start_ns(ring: &impl Words) -> u64 {
    ring.get(START_NS)
}

pub(crate) fn say_go(ring: &impl Words) {
    ring.word(GO).store(1, Ordering::Release);
}

pub(crate) fn may_go(ring: &impl Words) -> bool {
    ring.word(GO).load(Ordering::Acquire) == 1
}

pub(crate) fn arm(ring: &impl Words, on: bool) {
    // SeqCst on both sides: either the card sees the flag, or we see its data.
    ring.word(ARMED).store(u64::from(on), Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

pub(crate) fn is_armed(ring: &impl Words) -> bool {
    fence(Ordering::SeqCst);
    ring.word(ARMED).load(Ordering::SeqCst) == 1
}
