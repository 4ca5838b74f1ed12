//! Witnesses: the counters of all streams, kept apart while data is read and judged together later.
//!
//! A stream is cut into segments, in which each counter goes on by one. A segment keeps where the
//! other streams were when it began and ended. No counter is judged while data comes: most of them
//! wrap (blocks after 32, events after 256), so a jump has many readings. `solve` picks the one on
//! which block numbers, event numbers, the trigger system and the other streams agree, and keeps
//! several where they leave several.

mod solve;

pub(crate) use solve::{Gap, GapKind, Judged, Witness, solve};

/// Blocks after which their numbers begin anew.
pub(crate) const BLOCK_WRAP: u64 = 32;
/// Segments of a stream that are kept. Later jumps are added up without a judgement.
const MAX_SEGMENTS: usize = 1024;
/// Blocks of a segment after which the other streams have caught up with it.
const SETTLED_BLOCKS: u64 = 4;
/// A step of the other streams between two blocks, in largest steps so far, that begins a segment:
/// a loss of whole turns of all counters is seen by nothing else.
const UNUSUAL_STEP: u64 = 3;

/// Number of an event that is not known.
const UNKNOWN: u64 = u64::MAX;

/// Position in the data, and what had come of all streams up to there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Byte and number of the block.
    pub(crate) place: u64,
    pub(crate) block: u64,
    /// Chunks of all streams but the trigger system's. Below level 3 of a check, blocks.
    pub(crate) chunks: u64,
    /// Triggers by the trigger system's counter; 0 without one.
    pub(crate) triggers: u64,
}

/// Run of blocks and events whose counters go on by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    begin: Moment,
    /// Moments soon after the begin, and at the last whole block, with the events up to them.
    settled: Option<(Moment, u64)>,
    end: (Moment, u64),
    /// Blocks up to that end.
    whole: u64,
    /// Number of its first block; `None` for streams without block numbers.
    sequence: Option<u32>,
    blocks: u64,
    /// Number of its first event; `None` if no event came.
    first: Option<u64>,
    events: u64,
    /// Events of a block that began before it.
    partial: u64,
    /// True if only the other streams say that something is missing before it.
    is_unusual: bool,
    /// Resets of the trigger counter up to its begin and its end.
    resets: [u8; 2],
}

/// The segments of one stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    /// Events after which their counter begins anew.
    wrap: u64,
    segments: Vec<Segment>,
    open: Segment,
    now: Moment,
    /// Number of the next event; `UNKNOWN` before the first.
    next: u64,
    /// Chunks since the last good event that are damaged, and others that may be in their place.
    odd: [u32; 2],
    /// Largest steps of the other streams between two blocks.
    usual: [u64; 2],
    /// Events that are missing, by the jumps that were not kept, and the number of these.
    pub(crate) unkept: [u64; 2],
}

impl Track {
    pub(crate) fn new(wrap: u64) -> Track {
        Track { wrap, next: UNKNOWN, ..Track::default() }
    }

    /// Counts from now on by another counter, whose last number this was.
    pub(crate) fn renumber(&mut self, wrap: u64, last: u64) {
        self.wrap = wrap;
        let first = last.wrapping_sub(self.open.events.saturating_sub(1)) & (wrap - 1);
        (self.open.first, self.next) = (Some(first), (last + 1) & (wrap - 1));
    }

    /// True if this is the number of the next event, and nothing odd came before it.
    #[inline]
    pub(crate) fn is_next(&self, number: u64) -> bool {
        self.next == number && self.odd == [0; 2]
    }

    /// True if this is the number of the last event, and that one did not begin a segment.
    pub(crate) fn is_last(&self, number: u64) -> bool {
        self.open.events > 1 && self.next == (number + 1) & (self.wrap - 1)
    }

    /// Takes events whose numbers go on.
    #[inline]
    pub(crate) fn advance(&mut self, count: u64) {
        self.open.events += count;
        self.next = (self.next + count) & (self.wrap - 1);
    }

    /// Takes the next block, which has the next number or none.
    #[inline]
    pub(crate) fn arrive(&mut self, moment: Moment) {
        let steps =
            [moment.triggers.saturating_sub(self.now.triggers), moment.chunks - self.now.chunks];
        if steps[0] > self.usual[0] || steps[1] > self.usual[1] {
            self.large_step(steps);
        }
        self.pass(moment);
    }

    #[cold]
    fn large_step(&mut self, steps: [u64; 2]) {
        let is_unusual = |at: usize| steps[at] > UNUSUAL_STEP * self.usual[at].max(1);
        if self.open.blocks > SETTLED_BLOCKS && (is_unusual(0) || is_unusual(1)) {
            self.cut(self.open.next_sequence(), true);
            let next = Some(self.next).filter(|next| *next != UNKNOWN);
            (self.open.first, self.open.is_unusual) = (next, true);
            // Pauses that come again are usual after some of them.
            self.usual = [0, 1].map(|at| self.usual[at].max(steps[at].min(2 * self.usual[at])));
        } else if self.open.blocks > 0 {
            self.usual = [0, 1].map(|at| self.usual[at].max(steps[at]));
        }
    }

    #[inline]
    fn pass(&mut self, moment: Moment) {
        let open = &mut self.open;
        (open.end, open.whole) = ((self.now, open.events), open.blocks);
        if open.blocks <= SETTLED_BLOCKS {
            open.settle(moment);
        }
        open.blocks += 1;
        if self.wrap == BLOCK_WRAP {
            open.first = open.sequence.map(u64::from);
            open.events += 1;
        }
        self.now = moment;
    }

    /// Takes a block that has not the next number.
    pub(crate) fn jump(&mut self, sequence: u32, moment: Moment) {
        self.close_damage();
        if self.open.blocks > 0 {
            self.cut(Some(sequence), true);
        }
        self.open.sequence = Some(sequence);
        self.next = UNKNOWN;
        self.pass(moment);
    }

    /// Takes an event with any number.
    pub(crate) fn event(&mut self, number: u64, resets: u8) {
        if self.next == UNKNOWN {
            return self.begin(number, resets);
        }
        let ahead = number.wrapping_sub(self.next) & (self.wrap - 1);
        let [damaged, foreign] = self.odd.map(u64::from);
        if ahead == 0 || [damaged, damaged + foreign].contains(&ahead) {
            self.odd = [0; 2];
            return self.advance(ahead + 1);
        }
        self.close_damage();
        match self.open.events <= u64::from(self.open.is_unusual) {
            // A chunk over the place of the loss is made of two, whatever its number is.
            true => (self.open.first, self.open.events) = (None, 0),
            false => self.cut(self.open.next_sequence(), false),
        }
        self.begin(number, resets);
    }

    fn begin(&mut self, number: u64, resets: u8) {
        if self.open.first.is_none() {
            // Damaged chunks before it hold their places.
            let damaged = self.odd[0].into();
            let first = number.wrapping_sub(damaged) & (self.wrap - 1);
            (self.open.first, self.open.resets) = (Some(first), [resets; 2]);
            self.open.events += damaged;
        }
        (self.next, self.odd) = (number, [0; 2]);
        self.advance(1);
    }

    /// Counts a reset of the trigger counter over which another counter goes on.
    pub(crate) fn reset(&mut self, resets: u8) {
        self.open.resets[1] = resets;
    }

    /// Counts a chunk without a number that can be used. It holds its place among the events.
    pub(crate) fn damaged(&mut self) {
        self.odd[0] = self.odd[0].saturating_add(1);
    }

    /// Takes back the last damaged chunk: its number was right.
    pub(crate) fn restored(&mut self) {
        self.odd[0] = self.odd[0].saturating_sub(1);
    }

    /// Counts a chunk whose number says nothing about its place.
    pub(crate) fn foreign(&mut self) {
        self.odd[1] = self.odd[1].saturating_add(1);
    }

    fn close_damage(&mut self) {
        if self.next != UNKNOWN {
            self.advance(self.odd[0].into());
        }
        self.odd = [0; 2];
    }

    /// Ends the segment at hand, with a block or within one. The next has a block of this number.
    fn cut(&mut self, sequence: Option<u32>, with_block: bool) {
        let resets = [self.open.resets[1]; 2];
        let (begin, end) = (self.now, (self.now, 0));
        let next = Segment { begin, end, sequence, resets, ..Segment::default() };
        let mut closed = std::mem::replace(&mut self.open, next);
        closed.close(self.now, with_block);
        if self.segments.len() < MAX_SEGMENTS {
            self.segments.push(closed);
            return;
        }
        let last = self.segments.last_mut().expect("there are some");
        let [blocks, missing] = last.to(&closed, self.wrap).map(|gap| gap.unwrap_or(0));
        last.blocks += blocks + closed.blocks;
        last.events += missing + closed.events;
        (last.end, last.resets[1]) = (closed.end, closed.resets[1]);
        self.unkept = [self.unkept[0] + missing, self.unkept[1] + 1];
    }

    /// Returns all segments up to now.
    fn all(&self) -> Vec<Segment> {
        let mut track = self.clone();
        track.close_damage();
        if track.open.blocks + track.open.events > 0 {
            track.open.close(track.now, false);
            track.segments.push(track.open);
        }
        track.segments
    }
}

impl Segment {
    /// Takes one of its first blocks.
    #[cold]
    fn settle(&mut self, moment: Moment) {
        match (self.blocks, self.events) {
            (0, 0) => (self.begin, self.end) = (moment, (moment, 0)),
            (0, events) => self.partial = events,
            (SETTLED_BLOCKS, _) => self.settled = Some(self.end),
            _ => {}
        }
    }

    fn close(&mut self, now: Moment, with_block: bool) {
        if with_block {
            (self.end, self.whole) = ((now, self.events), self.blocks);
        }
        self.settled.get_or_insert((now, self.events));
    }

    fn next_sequence(&self) -> Option<u32> {
        self.sequence.map(|first| first.wrapping_add(u32::from(self.blocks.to_le_bytes()[0])) % 32)
    }

    /// Blocks and events between this segment and another, less whole turns of their counters.
    fn to(&self, other: &Segment, wrap: u64) -> [Option<u64>; 2] {
        let blocks = self.next_sequence().zip(other.sequence);
        let events = self.first.zip(other.first);
        [
            blocks.map(|(from, to)| u64::from(to.wrapping_sub(from) % 32)),
            events.map(|(first, to)| to.wrapping_sub(first + self.events) & (wrap - 1)),
        ]
    }
}
