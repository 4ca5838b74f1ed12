//! Cycles on their way: tags, deadlines, the window, and matching answers to them.

use std::collections::VecDeque;

use daqmeter_wire::etherbone::cycle::{Encoded, FIRST_TAG, Op, StatusCheck, TAGS};
use daqmeter_wire::etherbone::{Values, Width, status};

use crate::EbError;

/// What became of the cycles of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// Cycles begun.
    pub issued: u64,
    /// Cycles answered in whole, or that ask for no answer.
    pub completed: u64,
    /// Cycles whose deadline passed.
    pub timed_out: u64,
    /// Cycles that nobody waited for any more, or that could not be sent.
    pub abandoned: u64,
    /// Requests that were sent again.
    pub retried: u64,
    /// Values that came for nobody: duplicates, late answers.
    pub stray: u64,
    /// Messages or records that were not answers.
    pub malformed: u64,
}

/// A cycle that has ended.
#[derive(Debug)]
pub struct CompletedCycle<'a> {
    /// What it was submitted with.
    pub token: u64,
    /// Whether it was answered. Errors on the bus are not here: see [`CompletedCycle::failed`].
    pub result: Result<(), EbError>,
    /// The words that were read, in order, as they were on the bus: [`daqmeter_wire::etherbone::Lanes::take`] gives the value.
    pub words: &'a [u64],
    pub(super) statuses: &'a [u64],
    pub(super) bus_ops: usize,
    pub(super) port: Width,
}

impl CompletedCycle<'_> {
    /// Whether bus operation `index`, from 0, failed; config operations do not count. False in a silent cycle.
    pub fn failed(&self, index: usize) -> bool {
        let covered = status::covered(self.port);
        let of = covered.min(self.bus_ops - (index / covered * covered).min(self.bus_ops));
        self.statuses
            .get(index / covered)
            .is_some_and(|status| status::failed(*status, index % covered, of))
    }

    /// True when it was answered and no operation failed on the bus. Quicker than looking at each.
    pub fn is_clean(&self) -> bool {
        let covered = status::covered(self.port);
        let mask = |chunk: usize| {
            let of = covered.min(self.bus_ops.saturating_sub(chunk * covered));
            if of >= 64 { u64::MAX } else { (1 << of) - 1 }
        };
        self.result.is_ok()
            && self.statuses.iter().enumerate().all(|(chunk, status)| status & mask(chunk) == 0)
    }
}

/// A place for a cycle on its way; used again and again.
#[derive(Default)]
struct Flight {
    token: u64,
    tag: u16,
    sequence: u64,
    used: bool,
    expected: Encoded,
    port: Option<Width>,
    words: Vec<u64>,
    statuses: Vec<u64>,
    /// For cycles that may be asked again.
    retry: Option<Retry>,
}

struct Retry {
    ops: Vec<Op>,
    check: StatusCheck,
    left: u32,
}

/// Number of a flight's place.
pub(super) type FlightNumber = u16;

/// What a tag stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Free,
    Flight(FlightNumber),
    /// Its cycle ended without an answer, which may yet come.
    Late,
}

/// All cycles on their way.
pub(super) struct InFlight {
    flights: Vec<Flight>,
    free: Vec<FlightNumber>,
    tags: Vec<Tag>,
    next_tag: usize,
    /// Flights in the order of their sending, some of which may have landed.
    order: VecDeque<(FlightNumber, u64)>,
    /// Deadline of each sending: that of every flight up to the sequence number.
    sendings: VecDeque<(u64, u64)>,
    sequence: u64,
    in_flight: usize,
    bytes: usize,
    window_cycles: usize,
    window_bytes: usize,
    /// Late tags and the time at which they may be used again.
    late: VecDeque<(u64, u16)>,
    /// How long a late answer is expected at most.
    late_ns: u64,
    pub(super) counts: ClientCounts,
}

impl InFlight {
    pub(super) fn new(window_cycles: usize, window_bytes: usize, late_ns: u64) -> InFlight {
        // Half of the tags stay free for those that are late.
        let window_cycles = window_cycles.clamp(1, TAGS / 2);
        InFlight {
            flights: Vec::new(),
            free: Vec::new(),
            tags: vec![Tag::Free; TAGS],
            next_tag: 0,
            order: VecDeque::new(),
            sendings: VecDeque::new(),
            sequence: 0,
            in_flight: 0,
            bytes: 0,
            window_cycles,
            window_bytes,
            late: VecDeque::new(),
            late_ns,
            counts: ClientCounts::default(),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn window_bytes(&self) -> usize {
        self.window_bytes
    }

    /// Whether one more may be begun.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight == 0 || self.in_flight < self.window_cycles && self.bytes < self.window_bytes
    }

    fn new_tag(&mut self, flight: FlightNumber) -> u16 {
        // The window is at most half of the tags, so a free one comes, if late ones are let go in the worst case.
        for _ in 0..TAGS {
            let index = self.next_tag;
            self.next_tag = (self.next_tag + 1) % TAGS;
            if self.tags[index] == Tag::Free {
                self.tags[index] = Tag::Flight(flight);
                return tag_at(index);
            }
        }
        let (_, tag) =
            self.late.pop_front().expect("all tags are taken, at most half of them by flights");
        self.tags[index_of(tag)] = Tag::Flight(flight);
        tag
    }

    /// Begins a cycle.
    pub(super) fn begin(&mut self, token: u64) -> FlightNumber {
        let number = self.free.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            FlightNumber::try_from(self.flights.len() - 1).expect("at most as many as tags")
        });
        let tag = self.new_tag(number);
        let flight = &mut self.flights[usize::from(number)];
        flight.token = token;
        flight.tag = tag;
        flight.used = true;
        flight.sequence = self.sequence;
        flight.expected = Encoded::default();
        flight.words.clear();
        flight.statuses.clear();
        self.in_flight += 1;
        self.counts.issued += 1;
        number
    }

    pub(super) fn tag(&self, number: FlightNumber) -> u16 {
        self.flights[usize::from(number)].tag
    }

    /// Says what the answer will be, and puts the flight in order.
    pub(super) fn expect(&mut self, number: FlightNumber, expected: Encoded, port: Width) {
        let flight = &mut self.flights[usize::from(number)];
        flight.expected = expected;
        flight.port = Some(port);
        self.bytes += expected.bytes;
        self.order.push_back((number, flight.sequence));
        self.sequence += 1;
    }

    pub(super) fn keep_for_retry(
        &mut self,
        number: FlightNumber,
        ops: &[Op],
        check: StatusCheck,
        left: u32,
    ) {
        self.flights[usize::from(number)].retry = Some(Retry { ops: ops.to_vec(), check, left });
    }

    fn land(&mut self, number: FlightNumber, tag: Tag) {
        let flight = &mut self.flights[usize::from(number)];
        self.tags[index_of(flight.tag)] = tag;
        flight.used = false;
        flight.retry = None;
        self.bytes -= flight.expected.bytes;
        self.in_flight -= 1;
        self.free.push(number);
        if self.in_flight == 0 {
            self.order.clear();
            self.sendings.clear();
        }
    }

    /// The cycle could not be queued.
    pub(super) fn cancel(&mut self, number: FlightNumber) {
        self.land(number, Tag::Free);
        self.counts.abandoned += 1;
    }

    /// The cycle asks for no answer.
    pub(super) fn complete_unanswered(
        &mut self,
        number: FlightNumber,
        on_done: &mut dyn FnMut(CompletedCycle<'_>),
    ) {
        let token = self.flights[usize::from(number)].token;
        self.land(number, Tag::Free);
        self.counts.completed += 1;
        on_done(CompletedCycle {
            token,
            result: Ok(()),
            words: &[],
            statuses: &[],
            bus_ops: 0,
            port: Width::W32,
        });
    }

    /// Everything queued was sent and must be answered by then.
    pub(super) fn sent(&mut self, deadline_ns: u64) {
        if self.in_flight > 0 {
            self.sendings.push_back((self.sequence, deadline_ns));
        }
    }

    /// The earliest deadline of what is on its way.
    pub(super) fn next_deadline_ns(&mut self) -> Option<u64> {
        let (_, sequence) = self.oldest()?;
        while self.sendings.front().is_some_and(|(before, _)| *before <= sequence) {
            self.sendings.pop_front();
        }
        self.sendings.front().map(|(_, deadline_ns)| *deadline_ns)
    }

    /// The flight that was sent first and has not landed.
    fn oldest(&mut self) -> Option<(FlightNumber, u64)> {
        while let Some(&(number, sequence)) = self.order.front() {
            let flight = &self.flights[usize::from(number)];
            if flight.used && flight.sequence == sequence {
                return Some((number, sequence));
            }
            self.order.pop_front();
        }
        None
    }

    /// Values have come for a tag.
    #[inline]
    pub(super) fn take(
        &mut self,
        tag: u16,
        is_status: bool,
        values: Values<'_>,
        on_done: &mut dyn FnMut(CompletedCycle<'_>),
    ) {
        let Tag::Flight(number) = self.tags[index_of(tag)] else {
            self.counts.stray += values.count_left() as u64;
            return;
        };
        let flight = &mut self.flights[usize::from(number)];
        let (place, expected) = if is_status {
            (&mut flight.statuses, flight.expected.statuses)
        } else {
            (&mut flight.words, flight.expected.values)
        };
        let (had, come) = (place.len(), values.count_left());
        if had + come > expected {
            // More than was asked for: not the answer to this.
            self.counts.stray += come as u64;
            return;
        }
        place.resize(had + come, 0);
        values.copy_to(&mut place[had..]);
        if flight.words.len() == flight.expected.values
            && flight.statuses.len() == flight.expected.statuses
        {
            on_done(CompletedCycle {
                token: flight.token,
                result: Ok(()),
                words: &flight.words,
                statuses: &flight.statuses,
                bus_ops: flight.expected.bus_ops,
                port: flight.port.unwrap_or(Width::W32),
            });
            self.counts.completed += 1;
            self.land(number, Tag::Free);
        }
    }

    /// The next flight whose deadline has passed. Late tags are let go here too.
    pub(super) fn expired(&mut self, now_ns: u64) -> Option<FlightNumber> {
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

    fn make_late(&mut self, tag: u16, now_ns: u64) {
        self.tags[index_of(tag)] = Tag::Late;
        self.late.push_back((now_ns + self.late_ns, tag));
    }

    /// Takes a new tag for a cycle that may be asked again, and gives out its operations; [`InFlight::keep_again`] takes them
    /// back.
    pub(super) fn again(&mut self, number: FlightNumber) -> Option<(u16, Vec<Op>, StatusCheck)> {
        let retry =
            self.flights[usize::from(number)].retry.as_mut().filter(|retry| retry.left > 0)?;
        retry.left -= 1;
        let (ops, check) = (std::mem::take(&mut retry.ops), retry.check);
        let old = self.flights[usize::from(number)].tag;
        let tag = self.new_tag(number);
        // No deadline is known here: the time of the oldest sending is what has just passed.
        let now_ns = self.sendings.front().map_or(0, |(_, deadline_ns)| *deadline_ns);
        self.make_late(old, now_ns);
        let flight = &mut self.flights[usize::from(number)];
        flight.tag = tag;
        flight.words.clear();
        flight.statuses.clear();
        flight.sequence = self.sequence;
        self.order.push_back((number, self.sequence));
        self.sequence += 1;
        self.counts.retried += 1;
        Some((tag, ops, check))
    }

    pub(super) fn keep_again(&mut self, number: FlightNumber, ops: Vec<Op>) {
        if let Some(retry) = &mut self.flights[usize::from(number)].retry {
            retry.ops = ops;
        }
    }

    /// Ends a cycle without an answer.
    pub(super) fn fail(
        &mut self,
        number: FlightNumber,
        error: EbError,
        now_ns: u64,
        on_done: &mut dyn FnMut(CompletedCycle<'_>),
    ) {
        let (tag, token) =
            (self.flights[usize::from(number)].tag, self.flights[usize::from(number)].token);
        self.land(number, Tag::Late);
        self.make_late(tag, now_ns);
        self.counts.timed_out += 1;
        on_done(CompletedCycle {
            token,
            result: Err(error),
            words: &[],
            statuses: &[],
            bus_ops: 0,
            port: Width::W32,
        });
    }

    /// Nobody waits any more.
    pub(super) fn abandon(&mut self) {
        let now_ns = daqmeter_sys::clock::monotonic_ns();
        for number in 0..self.flights.len() {
            if self.flights[number].used {
                let tag = self.flights[number].tag;
                self.land(FlightNumber::try_from(number).expect("numbers of flights"), Tag::Late);
                self.make_late(tag, now_ns);
                self.counts.abandoned += 1;
            }
        }
    }
}

fn index_of(tag: u16) -> usize {
    usize::from((tag - FIRST_TAG) / 2)
}

fn tag_at(index: usize) -> u16 {
    FIRST_TAG + 2 * u16::try_from(index).expect("below 16384")
}
