//! Words next to the ring, in which card and reader publish their states and counts.

use std::sync::atomic::{Ordering, fence};

use daqmeter_record::border::MAX_WHOLE;
use daqmeter_sys::ring::{Consumer, Producer, WORDS};

use crate::accounts::{CardAccount, CardElink};
use crate::busy::{ChannelBusy, Dead};
use crate::scenario::{MAX_CHANNELS, MAX_ELINKS};

const STATE: usize = 0;
const GO: usize = 1;
/// Flag that the reader waits for an interrupt.
const ARMED: usize = 2;
const ELINKS: usize = 3;
const START_NS: usize = 4;
const FIFO_BYTES: usize = 5;
/// Counts of the card, in the order of [`CardView::counts`].
const COUNTS: usize = 8;
/// Each E-link's tag, and its counts in the order of [`CardElink::counts`].
const FIRST_ELINK: usize = 64;
const WORDS_PER_ELINK: usize = 8;

/// Each channel's BUSY: intervals, ns, 1 while it is asserted.
const FIRST_CHANNEL: usize = FIRST_ELINK + WORDS_PER_ELINK * MAX_ELINKS;
const WORDS_PER_CHANNEL: usize = 3;

const _: () = assert!(FIRST_CHANNEL + WORDS_PER_CHANNEL * MAX_CHANNELS <= WORDS);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardState {
    Idle,
    Running,
    Finished,
}

/// Message of a reader to its card; a new ring has neither.
#[derive(Clone, Copy)]
pub(crate) enum Wish {
    Go = 1,
    End = 2,
}

#[derive(Clone, Debug)]
pub struct CardView {
    pub state: CardState,
    pub account: CardAccount,
    /// Dead time: BUSY-by-DMA, BUSY-by-FIFO, all without overlap, BUSY from outside.
    pub dead: [Dead; 4],
    /// Channels of the card that asserted BUSY.
    pub asserted: Vec<ChannelBusy>,
    /// Time since the start up to which all counts hold.
    pub now_ns: u64,
    pub start_ns: u64,
}

impl CardView {
    fn counts(&mut self) -> impl Iterator<Item = &mut u64> {
        let CardView { account: CardAccount { issued, vetoed, .. }, dead, now_ns, .. } = self;
        let dead = dead.iter_mut().flat_map(|dead| {
            let Dead { ns, count, longest_ns, vetoed } = dead;
            [ns, count, longest_ns, vetoed]
        });
        [issued, now_ns].into_iter().chain(vetoed).chain(dead)
    }
}

fn set(ring: &Producer, at: usize, value: u64) {
    ring.word(at).store(value, Ordering::Relaxed);
}

fn get(ring: &Consumer, at: usize) -> u64 {
    ring.word(at).load(Ordering::Relaxed)
}

/// Count or time of the other process, limited to [`MAX_WHOLE`], which no run reaches.
fn count(ring: &Consumer, at: usize) -> u64 {
    get(ring, at).min(MAX_WHOLE)
}

/// Writes the card's counts, the state last: a reader that sees the end sees all counts.
pub(crate) fn publish(ring: &Producer, view: &mut CardView) {
    set(ring, START_NS, view.start_ns);
    set(ring, ELINKS, view.account.elinks.len() as u64);
    view.counts().zip(COUNTS..).for_each(|(count, at)| set(ring, at, *count));
    for (elink, at) in view.account.elinks.iter_mut().zip(elink_words()) {
        set(ring, at, elink.tag);
        elink.counts().into_iter().zip(at + 1..).for_each(|(count, at)| set(ring, at, *count));
    }
    for busy in &view.asserted {
        let values = [busy.intervals, busy.ns, u64::from(busy.is_live)];
        let words = FIRST_CHANNEL + values.len() * busy.channel..;
        values.into_iter().zip(words).for_each(|(value, at)| set(ring, at, value));
    }
    // Release: pairs with the acquire in `view`.
    ring.word(STATE).store(view.state as u64, Ordering::Release);
}

/// Reads the card's counts. While the card runs, they may be of different moments.
pub(crate) fn view(ring: &Consumer) -> CardView {
    let state = state(ring);
    let elinks = usize::try_from(get(ring, ELINKS)).map_or(0, |count| count.min(MAX_ELINKS));
    let elink = |word: usize| {
        let mut elink = CardElink { tag: get(ring, word), ..CardElink::default() };
        let counts = elink.counts().into_iter().zip(word + 1..);
        counts.for_each(|(one, at)| *one = count(ring, at));
        elink
    };
    let elinks = elink_words().take(elinks).map(elink).collect();
    let account = CardAccount { elinks, ..CardAccount::default() };
    let busy = |channel: usize| {
        let word = |at| count(ring, FIRST_CHANNEL + WORDS_PER_CHANNEL * channel + at);
        let [intervals, ns, is_live] = [word(0), word(1), word(2)];
        (intervals > 0).then_some(ChannelBusy { channel, ns, intervals, is_live: is_live == 1 })
    };
    let asserted = (0..MAX_CHANNELS).filter_map(busy).collect();
    let (dead, start_ns) = (Default::default(), start_ns(ring));
    let mut view = CardView { state, account, dead, asserted, now_ns: 0, start_ns };
    view.counts().zip(COUNTS..).for_each(|(one, at)| *one = count(ring, at));
    view
}

fn elink_words() -> impl Iterator<Item = usize> {
    (FIRST_ELINK..).step_by(WORDS_PER_ELINK)
}

pub(crate) fn state(ring: &Consumer) -> CardState {
    match ring.word(STATE).load(Ordering::Acquire) {
        0 => CardState::Idle,
        1 => CardState::Running,
        _ => CardState::Finished,
    }
}

pub(crate) fn start_ns(ring: &Consumer) -> u64 {
    get(ring, START_NS)
}

pub(crate) fn set_fifo_bytes(ring: &Producer, bytes: usize) {
    set(ring, FIFO_BYTES, bytes as u64);
}

pub(crate) fn fifo_bytes(ring: &Consumer) -> u64 {
    count(ring, FIFO_BYTES)
}

/// Lets the triggers come, or ends them, for this reader.
pub(crate) fn say(ring: &Consumer, wish: Wish) {
    ring.word(GO).store(wish as u64, Ordering::Release);
}

pub(crate) fn wishes(ring: &Producer, wish: Wish) -> bool {
    ring.word(GO).load(Ordering::Acquire) == wish as u64
}

pub(crate) fn arm(ring: &Consumer, on: bool) {
    // SeqCst on both sides: either the card sees the flag, or we see its data.
    ring.word(ARMED).store(u64::from(on), Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

pub(crate) fn is_armed(ring: &Producer) -> bool {
    fence(Ordering::SeqCst);
    ring.word(ARMED).load(Ordering::SeqCst) == 1
}
