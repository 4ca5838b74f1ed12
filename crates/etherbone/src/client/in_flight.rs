//! Cycles on their way: tags, the window, deadlines and answers.

use std::collections::VecDeque;

use daqmeter_wire::etherbone::cycle::{Encoded, FIRST_TAG, TAGS};
use daqmeter_wire::etherbone::{Values, Width, status};

use crate::EbError;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    pub issued: u64,
    pub completed: u64,
    pub timed_out: u64,
    pub abandoned: u64,
    pub stray: u64,
    pub malformed: u64,
}

#[derive(Debug)]
pub struct CompletedCycle<'a> {
    pub token: u64,
    /// Result without errors on the bus: see [`CompletedCycle::failed`].
    pub result: Result<(), EbError>,
    /// Words that were read, in order, as on the bus; [`daqmeter_wire::etherbone::Lanes::take`]
    /// gives the value.
    pub words: &'a [u64],
    statuses: &'a [u64],
    bus_ops: usize,
    port: Width,
}

impl<'a> CompletedCycle<'a> {
    pub(super) fn plain(
        token: u64,
        result: Result<(), EbError>,
        words: &'a [u64],
    ) -> CompletedCycle<'a> {
        CompletedCycle { token, result, words, statuses: &[], bus_ops: 0, port: Width::W32 }
    }

    /// Counts the bus operations that a status read reports.
    fn covered(&self, chunk: usize) -> usize {
        let most = status::covered(self.port);
        most.min(self.bus_ops.saturating_sub(chunk * most))
    }

    /// Returns true if bus operation `index`, from 0, failed. Config operations do not count.
    /// Silent cycles always return false.
    pub fn failed(&self, index: usize) -> bool {
        let most = status::covered(self.port);
        let (chunk, of) = (index / most, self.covered(index / most));
        self.statuses.get(chunk).is_some_and(|status| status::failed(*status, index % most, of))
    }

    /// Returns true if the cycle was answered and no operation failed.
    pub fn is_clean(&self) -> bool {
        let mask = |chunk| match self.covered(chunk) {
            64.. => u64::MAX,
            of => (1 << of) - 1,
        };
        let mut statuses = self.statuses.iter().enumerate();
        self.result.is_ok() && statuses.all(|(chunk, status)| status & mask(chunk) == 0)
    }
}

/// Function that is called with each cycle that has ended.
pub(super) type OnDone<'a> = &'a mut dyn FnMut(CompletedCycle<'_>);

#[derive(Default)]
struct Pending {
    token: u64,
    tag: u16,
    sequence: u64,
    used: bool,
    expected: Encoded,
    port: Option<Width>,
    words: Vec<u64>,
    statuses: Vec<u64>,
}

pub(super) type CycleNumber = u16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Free,
    Cycle(CycleNumber),
    Late,
}

#[derive(Default)]
pub(super) struct InFlight {
    cycles: Vec<Pending>,
    free: Vec<CycleNumber>,
    tags: Vec<Tag>,
    next_tag: usize,
    /// Cycles in the order of sending, each with its sequence; it may include ended cycles.
    order: VecDeque<(CycleNumber, u64)>,
    /// Sequence and deadline of each sending. The deadline holds for all earlier cycles that no
    /// entry before it covers.
    sendings: VecDeque<(u64, u64)>,
    sequence: u64,
    count: usize,
    bytes: usize,
    window_cycles: usize,
    pub(super) window_bytes: usize,
    /// Late tags, with the time until which an answer is expected.
    late: VecDeque<(u64, u16)>,
    late_ns: u64,
    pub(super) counts: ClientCounts,
}

impl InFlight {
    pub(super) fn new(window_cycles: usize, window_bytes: usize, late_ns: u64) -> InFlight {
        let tags = vec![Tag::Free; TAGS];
        // At most half of the tags are in use, so that late ones can be waited for.
        let window_cycles = window_cycles.clamp(1, TAGS / 2);
        InFlight { tags, window_cycles, window_bytes, late_ns, ..InFlight::default() }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn has_room(&self) -> bool {
        self.count == 0 || self.count < self.window_cycles && self.bytes < self.window_bytes
    }

    fn cycle(&mut self, number: CycleNumber) -> &mut Pending {
        &mut self.cycles[usize::from(number)]
    }

    fn new_tag(&mut self, number: CycleNumber) -> u16 {
        for _ in 0..TAGS {
            let index = self.next_tag;
            self.next_tag = (self.next_tag + 1) % TAGS;
            if self.tags[index] == Tag::Free {
                self.tags[index] = Tag::Cycle(number);
                return FIRST_TAG + 2 * u16::try_from(index).expect("below 16384");
            }
        }
        let late = self.late.pop_front();
        let (_, tag) = late.expect("no free tag; cycles may use at most half of the tags");
        self.tags[index_of(tag)] = Tag::Cycle(number);
        tag
    }

    pub(super) fn begin(&mut self, token: u64) -> CycleNumber {
        let number = self.free.pop().unwrap_or_else(|| {
            self.cycles.push(Pending::default());
            CycleNumber::try_from(self.cycles.len() - 1).expect("at most one for each tag")
        });
        let (tag, sequence) = (self.new_tag(number), self.sequence);
        let cycle = self.cycle(number);
        (cycle.token, cycle.tag, cycle.used, cycle.sequence) = (token, tag, true, sequence);
        cycle.expected = Encoded::default();
        cycle.words.clear();
        cycle.statuses.clear();
        self.count += 1;
        self.counts.issued += 1;
        number
    }

    pub(super) fn tag(&self, number: CycleNumber) -> u16 {
        self.cycles[usize::from(number)].tag
    }

    pub(super) fn expect(&mut self, number: CycleNumber, expected: Encoded, port: Width) {
        let cycle = self.cycle(number);
        (cycle.expected, cycle.port) = (expected, Some(port));
        let sequence = cycle.sequence;
        self.bytes += expected.bytes;
        self.order.push_back((number, sequence));
        self.sequence += 1;
    }

    fn end(&mut self, number: CycleNumber, tag: Tag) -> (u64, u16) {
        let cycle = &mut self.cycles[usize::from(number)];
        self.tags[index_of(cycle.tag)] = tag;
        cycle.used = false;
        self.bytes -= cycle.expected.bytes;
        self.count -= 1;
        self.free.push(number);
        if self.count == 0 {
            self.order.clear();
            self.sendings.clear();
        }
        (cycle.token, cycle.tag)
    }

    pub(super) fn cancel(&mut self, number: CycleNumber) {
        self.end(number, Tag::Free);
        self.counts.abandoned += 1;
    }

    pub(super) fn complete_unanswered(&mut self, number: CycleNumber, on_done: OnDone<'_>) {
        let (token, _) = self.end(number, Tag::Free);
        self.counts.completed += 1;
        on_done(CompletedCycle::plain(token, Ok(()), &[]));
    }

    pub(super) fn sent(&mut self, deadline_ns: u64) {
        if self.count > 0 {
            self.sendings.push_back((self.sequence, deadline_ns));
        }
    }

    pub(super) fn next_deadline_ns(&mut self) -> Option<u64> {
        let (_, sequence) = self.oldest()?;
        while self.sendings.front().is_some_and(|(before, _)| *before <= sequence) {
            self.sendings.pop_front();
        }
        self.sendings.front().map(|(_, deadline_ns)| *deadline_ns)
    }

    fn oldest(&mut self) -> Option<(CycleNumber, u64)> {
        while let Some(&(number, sequence)) = self.order.front() {
            let cycle = &self.cycles[usize::from(number)];
            if cycle.used && cycle.sequence == sequence {
                return Some((number, sequence));
            }
            self.order.pop_front();
        }
        None
    }

    #[inline]
    pub(super) fn take(
        &mut self,
        tag: u16,
        is_status: bool,
        values: Values<'_>,
        on_done: OnDone<'_>,
    ) {
        let come = values.len();
        let Tag::Cycle(number) = self.tags[index_of(tag)] else {
            self.counts.stray += come as u64;
            return;
        };
        let cycle = &mut self.cycles[usize::from(number)];
        let (place, expected) = if is_status {
            (&mut cycle.statuses, cycle.expected.statuses)
        } else {
            (&mut cycle.words, cycle.expected.values)
        };
        if place.len() + come > expected {
            self.counts.stray += come as u64;
            return;
        }
        place.reserve(come);
        values.for_each(|value| place.push(value));
        if cycle.words.len() == cycle.expected.values
            && cycle.statuses.len() == cycle.expected.statuses
        {
            on_done(CompletedCycle {
                token: cycle.token,
                result: Ok(()),
                words: &cycle.words,
                statuses: &cycle.statuses,
                bus_ops: cycle.expected.bus_ops,
                port: cycle.port.unwrap_or(Width::W32),
            });
            self.counts.completed += 1;
            self.end(number, Tag::Free);
        }
    }

    /// Returns the oldest cycle, if its deadline has passed. Frees the tags of answers that are no
    /// longer expected.
    pub(super) fn expired(&mut self, now_ns: u64) -> Option<CycleNumber> {
        while let Some((_, tag)) = self.late.pop_front_if(|(until_ns, _)| *until_ns <= now_ns) {
            if self.tags[index_of(tag)] == Tag::Late {
                self.tags[index_of(tag)] = Tag::Free;
            }
        }
        if self.next_deadline_ns()? > now_ns {
            return None;
        }
        self.oldest().map(|(number, _)| number)
    }

    /// Ends a cycle whose answer may still come. Returns its token.
    fn end_late(&mut self, number: CycleNumber, now_ns: u64) -> u64 {
        let (token, tag) = self.end(number, Tag::Late);
        self.late.push_back((now_ns + self.late_ns, tag));
        token
    }

    pub(super) fn fail(
        &mut self,
        number: CycleNumber,
        error: EbError,
        now_ns: u64,
        on_done: OnDone<'_>,
    ) {
        let token = self.end_late(number, now_ns);
        self.counts.timed_out += 1;
        on_done(CompletedCycle::plain(token, Err(error), &[]));
    }

    pub(super) fn abandon(&mut self) {
        let now_ns = daqmeter_sys::clock::monotonic_ns();
        for number in (0..).take(self.cycles.len()) {
            if self.cycle(number).used {
                self.end_late(number, now_ns);
                self.counts.abandoned += 1;
            }
        }
    }
}

fn index_of(tag: u16) -> usize {
    usize::from((tag - FIRST_TAG) / 2)
}
