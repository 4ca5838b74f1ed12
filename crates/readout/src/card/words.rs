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
/// 1 for the blocks of a recorded file.
const RECORDED: usize = 6;
const FIFO_BYTES: usize = 7;
/// Four times four words.
const DEAD: usize = 8;
const ELINKS: usize = 24;
const GO: usize = 25;
/// Flag that the reader waits for an interrupt.
const ARMED: usize = 26;
const VETOED_EXTERNAL: usize = 27;
const BUSY: usize = 28;
const FIRST_ELINK: usize = 64;
const WORDS_PER_ELINK: usize = 9;
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
    /// BUSY now: 1 by DMA, 2 by FIFO, 3 by both.
    pub busy: u64,
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
    let account = &view.account;
    for (at, value) in [
        (START_NS, view.start_ns),
        (ISSUED, account.issued),
        (VETOED, account.vetoed_dma),
        (VETOED + 1, account.vetoed_fifo),
        (VETOED_EXTERNAL, account.vetoed_external),
        (NOW_NS, view.now_ns),
        (RECORDED, u64::from(account.recorded)),
        (BUSY, view.busy),
        (FIFO_BYTES, view.fifo_bytes),
        (ELINKS, account.elinks.len() as u64),
    ] {
        ring.set(at, value);
    }
    let set = |from: usize, values: &[u64]| {
        values.iter().zip(from..).for_each(|(value, at)| ring.set(at, *value));
    };
    for (at, dead) in view.dead.iter().enumerate() {
        set(DEAD + 4 * at, &[dead.ns, dead.count, dead.longest_ns, dead.vetoed]);
    }
    for (at, elink) in account.elinks.iter().enumerate() {
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
        set(FIRST_ELINK + WORDS_PER_ELINK * at, &values);
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
        let [elink, deficit, sender_lost, fifo_lost, truncated, fault_lost, chunks, fault_flagged] =
            std::array::from_fn(|field| ring.count(word + 1 + field));
        let (tag, elink) = (ring.get(word), u16::try_from(elink).unwrap_or(u16::MAX));
        CardElink {
            tag,
            elink,
            deficit,
            sender_lost,
            fifo_lost,
            truncated,
            fault_lost,
            fault_flagged,
            chunks,
        }
    };
    let dead = std::array::from_fn(|at| {
        let [ns, count, longest_ns, vetoed] =
            std::array::from_fn(|field| ring.count(DEAD + 4 * at + field));
        Dead { ns, count, longest_ns, vetoed }
    });
    CardView {
        state,
        account: CardAccount {
            issued: ring.count(ISSUED),
            vetoed_dma: ring.count(VETOED),
            vetoed_fifo: ring.count(VETOED + 1),
            vetoed_external: ring.count(VETOED_EXTERNAL),
            recorded: ring.get(RECORDED) == 1,
            elinks: (0..count).map(elink).collect(),
        },
        dead,
        busy: ring.get(BUSY) & 3,
        fifo_bytes: ring.count(FIFO_BYTES),
        now_ns: ring.count(NOW_NS),
        start_ns: start_ns(ring),
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
