//! The client: one-shot operations, blocking cycles and pipelined cycles.
//! It repeats nothing; who may ask again does so ([`crate::access`], the engine).

mod in_flight;
mod litex;
mod open;

use std::cell::Cell;
use std::time::Duration;

use daqmeter_harness::StopFlag;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_wire::etherbone::cycle::{Encoded, Op, Space, StatusCheck, encode, tag_of};
use daqmeter_wire::etherbone::message::MAGIC;
use daqmeter_wire::etherbone::{EbHeader, EbLayout, EbRecord, RecordFlags, Widths, WireError};

use crate::EbError;
use crate::slave::MAX_CYCLE_BYTES;
use crate::transport::{EbTransport, Framing, MESSAGE_BYTES, receive};
pub use in_flight::{ClientCounts, CompletedCycle};
use in_flight::{InFlight, OnDone};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EbDialect {
    /// The dialect of the OHWR library and cores.
    #[default]
    Gsi,
    Litex,
}

#[derive(Clone, Debug)]
pub struct ClientOptions {
    pub address: Widths,
    pub data: Widths,
    /// Probes before giving up. 0 skips the probe; it requires a single width each and datagrams.
    pub probes: u32,
    pub probe_timeout: Duration,
    /// Deadline of a cycle, counted from its sending.
    pub timeout: Duration,
    pub dialect: EbDialect,
    /// Most words of a packet of LiteX, 255 at most. Its core buffers 16 words of a packet.
    pub litex_words: usize,
    pub window_cycles: usize,
    /// Times that a range is asked for again on datagrams, all within the deadline of a cycle.
    pub retries: u32,
    /// Ends every wait with [`EbError::Interrupted`].
    pub stop: StopFlag,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            address: Widths::ALL,
            data: Widths::ALL,
            probes: 3,
            probe_timeout: Duration::from_secs(3),
            timeout: Duration::from_secs(5),
            dialect: EbDialect::Gsi,
            litex_words: 15,
            window_cycles: 8192,
            retries: 10,
            stop: StopFlag::default(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CycleOutcome {
    /// Value of each operation, out of its lanes; undefined for writes and failed reads.
    pub values: Vec<u64>,
    pub failed: Vec<usize>,
}

pub struct Client {
    transport: Box<dyn EbTransport>,
    framing: Framing,
    layout: EbLayout,
    options: ClientOptions,
    flights: InFlight,
    outgoing: Outgoing,
    received: Box<[u8]>,
    partial: Vec<u8>,
    outcome: CycleOutcome,
    now_ns: u64,
    /// Return address of the last LiteX packet, and the deadline of its answer.
    litex_counter: u32,
    pub(crate) litex_timeout: Duration,
}

#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    used: usize,
    lengths: Vec<usize>,
    begins: Option<usize>,
}

impl Outgoing {
    fn close(&mut self) {
        if let Some(begins) = self.begins.take() {
            self.lengths.push(self.used - begins);
        }
    }

    fn clear(&mut self) {
        self.used = 0;
        self.lengths.clear();
        self.begins = None;
    }

    fn put_header(&mut self, at: usize, header: EbHeader) {
        self.bytes[at..at + 4].copy_from_slice(&header.emit());
    }

    fn room(&mut self, end: usize) -> &mut [u8] {
        let end = end.min(self.bytes.len());
        &mut self.bytes[self.used..end]
    }

    fn reserve(&mut self, bytes: usize) {
        if self.bytes.len() < self.used + bytes {
            self.bytes.resize((self.used + bytes).next_power_of_two(), 0);
        }
    }
}

impl Client {
    pub fn layout(&self) -> EbLayout {
        self.layout
    }

    pub fn counts(&self) -> ClientCounts {
        self.flights.counts
    }

    pub(crate) fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// Returns the times that a range may be asked for again: streams lose nothing.
    pub(crate) fn retries(&self) -> u32 {
        if self.framing.is_stream() { 0 } else { self.options.retries }
    }

    pub(crate) fn is_settled(&self) -> bool {
        let counts = self.counts();
        counts.issued == counts.completed && self.partial.is_empty()
    }

    pub fn cycle(&mut self, ops: &[Op], check: StatusCheck) -> Result<&CycleOutcome, EbError> {
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.values.clear();
        outcome.failed.clear();
        let mut ended = Ok(());
        let mut pipeline = self.pipeline(|done| {
            if done.result.is_ok() {
                collect(ops, &done, &mut outcome);
            }
            ended = done.result;
        });
        let sent = pipeline.submit(ops, check, 0).and_then(|()| pipeline.finish());
        self.outcome = outcome;
        sent.and(ended).map(|()| &self.outcome)
    }

    /// Opens a pipeline, which sends cycles without waiting for earlier answers, as far as the
    /// window allows. The closure is called once for each cycle, in the order of the answers.
    pub fn pipeline<F: FnMut(CompletedCycle<'_>)>(&mut self, on_done: F) -> Pipeline<'_, F> {
        Pipeline { client: self, on_done }
    }

    /// Queues a cycle, sends when enough has gathered, and waits while the window is full.
    fn submit(
        &mut self,
        ops: &[Op],
        check: StatusCheck,
        token: u64,
        on_done: OnDone<'_>,
    ) -> Result<(), EbError> {
        self.make_room(ops, on_done)?;
        let one_at_a_time = self.framing == Framing::Messages;
        // With one message on its way at a time, each must be answered; a late answer is lost.
        let check = if one_at_a_time { StatusCheck::Status } else { check };
        let flight = self.flights.begin(token);
        match self.enqueue(ops, check, self.flights.tag(flight)) {
            Ok(encoded) if encoded.is_answered() => {
                self.flights.expect(flight, encoded, self.layout.data);
            }
            Ok(_) => self.flights.complete_unanswered(flight, on_done),
            Err(error) => {
                self.flights.cancel(flight);
                return Err(error);
            }
        }
        if self.outgoing.used >= self.flights.window_bytes / 2 {
            self.flush()?;
        }
        Ok(())
    }

    /// Waits until the window has room. With messages on a stream, one is on its way at a time.
    fn make_room(&mut self, ops: &[Op], on_done: OnDone<'_>) -> Result<(), EbError> {
        if self.framing == Framing::Messages {
            let is_full = self.outgoing.used + self.longest(ops) > MESSAGE_BYTES;
            if !self.flights.has_room() || is_full && self.outgoing.used > 0 {
                self.drain(None, on_done)?;
            }
            return Ok(());
        }
        while !self.flights.has_room() {
            self.flush()?;
            self.pump(u64::MAX, on_done)?;
        }
        Ok(())
    }

    /// Waits until all cycles are answered or their deadlines have passed; for a number of cycles
    /// that counts down also no longer than until no answer has come for a time.
    fn drain(
        &mut self,
        wanted: Option<(&Cell<usize>, Duration)>,
        on_done: OnDone<'_>,
    ) -> Result<(), EbError> {
        self.flush()?;
        let quiet_ns = wanted.map(|(_, quiet)| as_ns(quiet));
        let end = || quiet_ns.map_or(u64::MAX, |quiet_ns| monotonic_ns() + quiet_ns);
        let is_open = || wanted.is_none_or(|(left, _)| left.get() > 0);
        let (mut end_ns, mut answered) = (end(), self.flights.counts.completed);
        while self.flights.count() > 0 && self.now_ns < end_ns && is_open() {
            self.pump(end_ns, on_done)?;
            if answered != self.flights.counts.completed {
                (end_ns, answered) = (end(), self.flights.counts.completed);
            }
        }
        Ok(())
    }

    /// Bounds the bytes of a cycle: each operation has its own record, and a status read after it.
    fn longest(&self, ops: &[Op]) -> usize {
        (ops.len() + 1) * 2 * (self.layout.header_bytes() + 2 * self.layout.value_bytes())
    }

    /// Encodes a cycle. A stream appends it to the cycle before; else it goes into the open
    /// message, or into a new one when it does not fit.
    fn enqueue(&mut self, ops: &[Op], check: StatusCheck, tag: u16) -> Result<Encoded, EbError> {
        let layout = self.layout;
        let Some(max_bytes) = self.framing.message_bytes() else {
            let least_bytes = ops.len() * layout.value_bytes();
            let mut encoded = Encoded { bytes: least_bytes, ..Encoded::default() };
            if least_bytes <= MAX_CYCLE_BYTES {
                self.outgoing.reserve(self.longest(ops));
                encoded = encode(ops, layout, tag, check, self.outgoing.room(usize::MAX))?;
            }
            if encoded.bytes > MAX_CYCLE_BYTES {
                return Err(EbError::Other(format!(
                    "the cycle of {} operations takes {} bytes or more; a stream carries at most {MAX_CYCLE_BYTES}: divide it",
                    ops.len(),
                    encoded.bytes
                )));
            }
            self.outgoing.used += encoded.bytes;
            return Ok(encoded);
        };
        self.outgoing.reserve(2 * max_bytes);
        if let Some(begins) = self.outgoing.begins {
            let room = self.outgoing.room(begins + max_bytes);
            if let Ok(encoded) = encode(ops, layout, tag, check, room) {
                self.outgoing.used += encoded.bytes;
                if encoded.is_answered() {
                    self.outgoing.put_header(begins, EbHeader::of(layout, false));
                }
                return Ok(encoded);
            }
            self.outgoing.close();
        }
        let begins = self.outgoing.used;
        let records = begins + layout.header_bytes();
        let room = &mut self.outgoing.bytes[records..begins + max_bytes];
        let encoded = encode(ops, layout, tag, check, room)
            .map_err(|_| self.overflow(ops.len(), max_bytes))?;
        if encoded.bytes > 0 {
            self.outgoing.bytes[begins..records].fill(0);
            self.outgoing.put_header(begins, EbHeader::of(layout, !encoded.is_answered()));
            self.outgoing.begins = Some(begins);
            self.outgoing.used = records + encoded.bytes;
        }
        Ok(encoded)
    }

    fn overflow(&self, operations: usize, max_bytes: usize) -> EbError {
        EbError::Other(if self.framing.is_stream() {
            format!(
                "the cycle of {operations} operations is longer than the {max_bytes} bytes that this server can receive: make it shorter"
            )
        } else {
            format!(
                "the cycle of {operations} operations does not fit a datagram of {max_bytes} bytes; make it shorter or use a stream (tcp, dev)"
            )
        })
    }

    fn flush(&mut self) -> Result<(), EbError> {
        if self.outgoing.used == 0 {
            return Ok(());
        }
        self.outgoing.close();
        if self.framing == Framing::Stream {
            self.outgoing.lengths.clear();
            self.outgoing.lengths.push(self.outgoing.used);
        }
        self.now_ns = monotonic_ns();
        self.flights.sent(self.now_ns + as_ns(self.options.timeout));
        let sent =
            self.transport.send(&self.outgoing.bytes[..self.outgoing.used], &self.outgoing.lengths);
        self.outgoing.clear();
        sent
    }

    fn pump(&mut self, end_ns: u64, on_done: OnDone<'_>) -> Result<(), EbError> {
        let Some(deadline_ns) = self.flights.next_deadline_ns() else {
            return Ok(());
        };
        let wait_ns = deadline_ns.min(end_ns).saturating_sub(self.now_ns).max(1);
        let wait = Duration::from_nanos(wait_ns);
        let mut buffer = std::mem::take(&mut self.received);
        let arrived = receive(&mut *self.transport, &mut buffer, wait, &self.options.stop);
        let before = self.flights.count();
        let result = arrived.and_then(|arrived| match arrived {
            Some(arrived) => {
                self.accept(&buffer[..arrived.bytes], arrived.segment_bytes, on_done)?;
                // The clock is read only when nothing was completed, because then time may be
                // running out.
                Ok(self.flights.count() < before)
            }
            None => Ok(false),
        });
        self.received = buffer;
        if !result? {
            self.now_ns = monotonic_ns();
            while let Some(expired) = self.flights.expired(self.now_ns) {
                let error = EbError::Timeout(self.options.timeout);
                self.flights.fail(expired, error, self.now_ns, on_done);
            }
        }
        Ok(())
    }

    fn accept(
        &mut self,
        bytes: &[u8],
        segment_bytes: usize,
        on_done: OnDone<'_>,
    ) -> Result<(), EbError> {
        if self.framing == Framing::Datagram {
            for datagram in bytes.chunks(segment_bytes) {
                self.accept_datagram(datagram, on_done);
            }
            return Ok(());
        }
        if self.partial.is_empty() {
            let used = self.accept_records(bytes, on_done);
            self.partial.extend_from_slice(&bytes[used..]);
        } else {
            let mut partial = std::mem::take(&mut self.partial);
            partial.extend_from_slice(bytes);
            let used = self.accept_records(&partial, on_done);
            partial.drain(..used);
            self.partial = partial;
        }
        // A record has at most 255 values and 255 addresses: a longer rest is no part of one.
        if self.partial.len() > MAX_RECORD_BYTES {
            return Err(WireError::Overflow.into());
        }
        Ok(())
    }

    fn accept_datagram(&mut self, datagram: &[u8], on_done: OnDone<'_>) {
        let layout = self.layout;
        let is_answer = |header: &EbHeader| {
            !header.probe_request && !header.probe_response && header.layout() == Ok(layout)
        };
        let header_bytes = layout.header_bytes();
        if datagram.len() < header_bytes
            || !EbHeader::parse(datagram).is_ok_and(|header| is_answer(&header))
        {
            self.flights.counts.malformed += 1;
            return;
        }
        let records = &datagram[header_bytes..];
        if self.accept_records(records, on_done) != records.len() {
            self.flights.counts.malformed += 1;
        }
    }

    fn accept_records(&mut self, bytes: &[u8], on_done: OnDone<'_>) -> usize {
        let mut rest = bytes;
        loop {
            rest = self.after_header(rest);
            let Ok((record, after)) = EbRecord::split(self.layout, rest) else {
                break;
            };
            rest = after;
            // Records without operations are padding of the HDL slave, or end a cycle.
            let Some((base, values)) = record.write_block() else {
                continue;
            };
            let ours = record.header.flags.has(RecordFlags::WCA) && record.header.reads == 0;
            match tag_of(base).filter(|_| ours) {
                Some((tag, is_status)) => self.flights.take(tag, is_status, values, on_done),
                None => self.flights.counts.malformed += 1,
            }
        }
        bytes.len() - rest.len()
    }

    /// Skips a message header, if messages have one: no record begins with its magic.
    fn after_header<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let header_bytes = self.layout.header_bytes();
        let begins_message = self.framing == Framing::Messages
            && bytes.starts_with(&MAGIC.to_be_bytes())
            && bytes.len() >= header_bytes;
        if begins_message { &bytes[header_bytes..] } else { bytes }
    }
}

/// Derivation: a record header, two base addresses and twice 255 values of 8 bytes, and some room.
const MAX_RECORD_BYTES: usize = 8 + (2 + 2 * 255) * 8;

/// Returns the time until a monotonic time; `None` if it has passed.
fn left(deadline_ns: u64) -> Option<Duration> {
    let left_ns = deadline_ns.saturating_sub(monotonic_ns());
    (left_ns > 0).then_some(Duration::from_nanos(left_ns))
}

pub(crate) fn as_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

fn collect(ops: &[Op], done: &CompletedCycle<'_>, outcome: &mut CycleOutcome) {
    let mut words = done.words.iter();
    let mut bus_index = 0;
    for (index, op) in ops.iter().enumerate() {
        let word = if op.write { 0 } else { words.next().copied().unwrap_or(0) };
        outcome.values.push(if op.write { 0 } else { op.lanes.take(word) });
        if op.space == Space::Bus {
            if done.failed(bus_index) {
                outcome.failed.push(index);
            }
            bus_index += 1;
        }
    }
}

pub struct Pipeline<'a, F: FnMut(CompletedCycle<'_>)> {
    client: &'a mut Client,
    on_done: F,
}

impl<F: FnMut(CompletedCycle<'_>)> Pipeline<'_, F> {
    /// Sends a cycle, or keeps it to send it with others. Waits while the window is full.
    pub fn submit(&mut self, ops: &[Op], check: StatusCheck, token: u64) -> Result<(), EbError> {
        if self.client.options.dialect == EbDialect::Gsi {
            return self.client.submit(ops, check, token, &mut self.on_done);
        }
        let mut words = Vec::new();
        self.client.litex_cycle(ops, &mut words)?;
        (self.on_done)(CompletedCycle::plain(token, Ok(()), &words));
        Ok(())
    }

    pub fn finish(mut self) -> Result<(), EbError> {
        self.client.drain(None, &mut self.on_done)
    }

    /// Waits until the number has counted down to 0, or no answer has come for a time: cycles stay
    /// on their way.
    pub(crate) fn settle(&mut self, left: &Cell<usize>, quiet: Duration) -> Result<(), EbError> {
        self.client.drain(Some((left, quiet)), &mut self.on_done)
    }
}

impl<F: FnMut(CompletedCycle<'_>)> Drop for Pipeline<'_, F> {
    fn drop(&mut self) {
        if self.client.flights.count() > 0 {
            self.client.flights.abandon();
            self.client.outgoing.clear();
        }
    }
}
