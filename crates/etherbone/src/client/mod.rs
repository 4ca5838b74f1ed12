//! The client: one-shot operations, blocking cycles and pipelined cycles.
//!
//! - [`Client::read`] and [`Client::write`]: one operation, one round trip;
//! - [`Client::cycle`]: many operations, one round trip;
//! - [`Client::pipeline`]: many cycles on their way at once, as many as the window lets; results come by a closure.
//!
//! Answers are matched by tag: one that nobody waits for any more is counted and dropped. Writes are never repeated; reads only
//! when [`ClientOptions::read_retries`] says so.

mod flights;
mod litex;
mod open;

use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_wire::etherbone::cycle::{Op, Space, StatusCheck, encode, tag_of};
use daqmeter_wire::etherbone::message::MAGIC;
use daqmeter_wire::etherbone::{
    EbHeader, EbLayout, EbRecord, Lanes, RecordFlags, Width, Widths, WireError,
};

use crate::EbError;
use crate::slave::MAX_CYCLE_BYTES;
use crate::transport::{EbTransport, Framing};
use flights::InFlight;
pub use flights::{ClientCounts, CompletedCycle};

/// Which format to speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EbDialect {
    /// That of the OHWR library and cores.
    #[default]
    Gsi,
    /// That of LiteX.
    Litex,
}

/// How to talk to a slave.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientOptions {
    /// Address widths that are acceptable.
    pub address: Widths,
    /// Data widths that are acceptable.
    pub data: Widths,
    /// Probes before giving up; 0 skips the probe, which needs one width each and a datagram transport.
    pub probes: u32,
    /// How long each probe is waited for.
    pub probe_timeout: Duration,
    /// Deadline of a cycle, from when it was sent.
    pub timeout: Duration,
    /// How often a cycle that only reads is asked again after its deadline.
    pub read_retries: u32,
    /// The format.
    pub dialect: EbDialect,
    /// Most cycles on their way at once.
    pub window_cycles: usize,
    /// Most bytes of requests on their way at once; none takes what suits the transport.
    pub window_bytes: Option<usize>,
}

/// What the C tools do: 3 probes of 3 s, 5 s for a cycle, no retries.
impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            address: Widths::ALL,
            data: Widths::ALL,
            probes: 3,
            probe_timeout: Duration::from_secs(3),
            timeout: Duration::from_secs(5),
            read_retries: 0,
            dialect: EbDialect::Gsi,
            window_cycles: 8192,
            window_bytes: None,
        }
    }
}

/// What a blocking cycle brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CycleOutcome {
    /// The value of each operation, out of its lanes; of writes, and of failed reads, whatever came.
    pub values: Vec<u64>,
    /// The operations that failed on the bus, by their place in the cycle.
    pub failed: Vec<usize>,
}

/// A conversation with a slave.
pub struct Client {
    transport: Box<dyn EbTransport>,
    framing: Framing,
    layout: EbLayout,
    options: ClientOptions,
    flights: InFlight,
    /// Requests that were not sent yet: whole datagrams, or the bytes of a stream.
    outgoing: Outgoing,
    received: Box<[u8]>,
    /// The end of what a stream brought: part of a record.
    partial: Vec<u8>,
    outcome: CycleOutcome,
    /// The monotonic time as it was last read.
    now_ns: u64,
    /// The return address of the last packet in the other dialect.
    litex_counter: u32,
}

/// Encoded requests and the borders between their datagrams.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    used: usize,
    /// Lengths of the closed datagrams.
    lengths: Vec<usize>,
    /// Where the datagram at hand begins, if there is one.
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

    /// Makes room for so many bytes beyond what is used.
    fn reserve(&mut self, bytes: usize) {
        if self.bytes.len() < self.used + bytes {
            self.bytes.resize((self.used + bytes).next_power_of_two(), 0);
        }
    }
}

impl Client {
    /// The widths that both sides settled on.
    pub fn layout(&self) -> EbLayout {
        self.layout
    }

    /// What became of the cycles so far.
    pub fn counts(&self) -> ClientCounts {
        self.flights.counts
    }

    /// True if every cycle so far was answered, and no partial answer is left.
    pub(crate) fn is_settled(&self) -> bool {
        let counts = self.counts();
        counts.issued == counts.completed && self.partial.is_empty()
    }

    /// Reads one word of the bus.
    ///
    /// # Errors
    /// When nothing answers in time, or the access fails on the bus.
    pub fn read(&mut self, address: u64) -> Result<u64, EbError> {
        self.one(Op::read(address, self.layout.data))
    }

    /// Writes one word of the bus.
    ///
    /// # Errors
    /// When nothing answers in time, or the access fails on the bus.
    pub fn write(&mut self, address: u64, value: u64) -> Result<(), EbError> {
        self.one(Op::write(address, value, self.layout.data)).map(drop)
    }

    fn one(&mut self, op: Op) -> Result<u64, EbError> {
        let outcome = self.cycle(&[op], StatusCheck::Status)?;
        match outcome.failed.first() {
            None => Ok(outcome.values[0]),
            Some(_) => Err(EbError::Bus { failed: 1, of: 1, first: op.address }),
        }
    }

    /// Runs one cycle and waits for its answer. Operations that fail on the bus are in the outcome.
    ///
    /// # Errors
    /// When nothing answers in time, the cycle does not fit, or the way is broken.
    pub fn cycle(&mut self, ops: &[Op], check: StatusCheck) -> Result<&CycleOutcome, EbError> {
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.values.clear();
        outcome.failed.clear();
        let result = if self.options.dialect == EbDialect::Litex {
            self.litex_cycle(ops, &mut outcome)
        } else {
            self.gsi_cycle(ops, check, &mut outcome)
        };
        self.outcome = outcome;
        result.map(|()| &self.outcome)
    }

    fn gsi_cycle(
        &mut self,
        ops: &[Op],
        check: StatusCheck,
        outcome: &mut CycleOutcome,
    ) -> Result<(), EbError> {
        let mut ended = None;
        let mut on_done = |done: CompletedCycle<'_>| {
            if done.result.is_ok() {
                collect(ops, &done, outcome);
            }
            ended = Some(done.result);
        };
        let result = self.submit_and_wait(ops, check, &mut on_done);
        if result.is_err() {
            self.flights.abandon();
            self.outgoing.clear();
        }
        result?;
        ended.unwrap_or(Ok(()))
    }

    fn submit_and_wait(
        &mut self,
        ops: &[Op],
        check: StatusCheck,
        on_done: &mut dyn FnMut(CompletedCycle<'_>),
    ) -> Result<(), EbError> {
        self.submit(ops, check, 0, on_done)?;
        self.flush()?;
        while self.flights.in_flight() > 0 {
            self.pump(on_done)?;
        }
        Ok(())
    }

    /// Opens a pipeline: cycles are sent without waiting for the answers to those before, as far as the window lets. The
    /// closure is called once for each cycle, in the order of the answers.
    pub fn pipeline<F: FnMut(CompletedCycle<'_>)>(&mut self, on_done: F) -> Pipeline<'_, F> {
        Pipeline { client: self, on_done }
    }

    /// Queues a cycle; sends when enough has gathered; waits while the window is full.
    fn submit(
        &mut self,
        ops: &[Op],
        check: StatusCheck,
        token: u64,
        on_done: &mut dyn FnMut(CompletedCycle<'_>),
    ) -> Result<(), EbError> {
        self.make_room(ops, on_done)?;
        let one_at_a_time = matches!(self.framing, Framing::Messages { .. });
        // Where one message is on its way at a time, each must be answered; and what is late is lost.
        let check = if one_at_a_time { StatusCheck::Status } else { check };
        let retry =
            self.options.read_retries > 0 && !one_at_a_time && ops.iter().all(|op| !op.write);
        let flight = self.flights.begin(token);
        match self.enqueue(ops, check, self.flights.tag(flight)) {
            Ok(encoded) if encoded.is_answered() => {
                self.flights.expect(flight, encoded, self.layout.data);
                if retry {
                    self.flights.keep_for_retry(flight, ops, check, self.options.read_retries);
                }
            }
            Ok(_) => self.flights.complete_unanswered(flight, on_done),
            Err(error) => {
                self.flights.cancel(flight);
                return Err(error);
            }
        }
        if self.outgoing.used >= self.flights.window_bytes() / 2 {
            self.flush()?;
        }
        Ok(())
    }

    /// Waits while the window is full; where one message is on its way at a time, until the one before was answered.
    fn make_room(
        &mut self,
        ops: &[Op],
        on_done: &mut dyn FnMut(CompletedCycle<'_>),
    ) -> Result<(), EbError> {
        if let Framing::Messages { max_bytes } = self.framing {
            let is_full = self.outgoing.used + self.longest(ops) > max_bytes;
            if !self.flights.has_room() || is_full && self.outgoing.used > 0 {
                self.flush()?;
                while self.flights.in_flight() > 0 {
                    self.pump(on_done)?;
                }
            }
            return Ok(());
        }
        while !self.flights.has_room() {
            self.flush()?;
            self.pump(on_done)?;
        }
        Ok(())
    }

    /// Bytes of a cycle at most: each operation with a record of its own and a status read after it.
    fn longest(&self, ops: &[Op]) -> usize {
        (ops.len() + 1) * 2 * (self.layout.header_bytes() + 2 * self.layout.value_bytes())
    }

    /// Encodes a cycle behind what is queued already.
    fn enqueue(
        &mut self,
        ops: &[Op],
        check: StatusCheck,
        tag: u16,
    ) -> Result<daqmeter_wire::etherbone::cycle::Encoded, EbError> {
        let Some(max_bytes) = self.framing.message_bytes() else {
            return self.enqueue_stream(ops, check, tag);
        };
        let layout = self.layout;
        self.outgoing.reserve(2 * max_bytes);
        if let Some(begins) = self.outgoing.begins {
            let out = &mut self.outgoing.bytes[self.outgoing.used..begins + max_bytes];
            if let Ok(encoded) = encode(ops, layout, tag, check, out) {
                self.outgoing.used += encoded.bytes;
                self.mark_answered(encoded.is_answered());
                return Ok(encoded);
            }
            self.outgoing.close();
        }
        let begins = self.outgoing.used;
        let records = begins + layout.header_bytes();
        let encoded =
            encode(ops, layout, tag, check, &mut self.outgoing.bytes[records..begins + max_bytes])
                .map_err(|_| self.overflow(ops.len(), max_bytes))?;
        if encoded.bytes > 0 {
            self.outgoing.bytes[begins..records].fill(0);
            self.outgoing.bytes[begins..begins + 4]
                .copy_from_slice(&EbHeader::of(layout, true).emit());
            self.outgoing.begins = Some(begins);
            self.outgoing.used = records + encoded.bytes;
            self.mark_answered(encoded.is_answered());
        }
        Ok(encoded)
    }

    /// A cycle does not fit.
    fn overflow(&self, operations: usize, max_bytes: usize) -> EbError {
        if self.framing.is_stream() {
            return EbError::Unsupported(format!(
                "the cycle of {operations} operations does not fit {max_bytes} bytes, which is what this server receives at once: make it shorter"
            ));
        }
        EbError::Overflow { operations, datagram_bytes: max_bytes }
    }

    /// A datagram in which something is answered must not say that it has no reads.
    fn mark_answered(&mut self, answered: bool) {
        if let (true, Some(begins)) = (answered, self.outgoing.begins) {
            self.outgoing.bytes[begins..begins + 4]
                .copy_from_slice(&EbHeader::of(self.layout, false).emit());
        }
    }

    fn enqueue_stream(
        &mut self,
        ops: &[Op],
        check: StatusCheck,
        tag: u16,
    ) -> Result<daqmeter_wire::etherbone::cycle::Encoded, EbError> {
        let too_long = |bytes| EbError::TooLong { operations: ops.len(), bytes };
        let least_bytes = ops.len() * self.layout.value_bytes();
        if least_bytes > MAX_CYCLE_BYTES {
            return Err(too_long(least_bytes));
        }
        self.outgoing.reserve(self.longest(ops));
        let encoded =
            encode(ops, self.layout, tag, check, &mut self.outgoing.bytes[self.outgoing.used..])?;
        if encoded.bytes > MAX_CYCLE_BYTES {
            return Err(too_long(encoded.bytes));
        }
        self.outgoing.used += encoded.bytes;
        Ok(encoded)
    }

    /// Sends what is queued; from now the deadlines run.
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

    /// Waits for what comes next, an answer or a deadline, and deals with it.
    fn pump(&mut self, on_done: &mut dyn FnMut(CompletedCycle<'_>)) -> Result<(), EbError> {
        let Some(deadline_ns) = self.flights.next_deadline_ns() else {
            return Ok(());
        };
        let wait = Duration::from_nanos(deadline_ns.saturating_sub(self.now_ns).max(1));
        let mut buffer = std::mem::take(&mut self.received);
        let arrived = self.transport.receive(&mut buffer, wait);
        let before = self.flights.in_flight();
        let result = arrived.and_then(|arrived| match arrived {
            Some(arrived) => {
                self.accept(&buffer[..arrived.bytes], arrived.segment_bytes, on_done)?;
                // The clock is read only when nothing was completed: then time may be running out.
                Ok(self.flights.in_flight() < before)
            }
            None => Ok(false),
        });
        self.received = buffer;
        if !result? {
            self.now_ns = monotonic_ns();
            self.expire(on_done)?;
        }
        Ok(())
    }

    fn accept(
        &mut self,
        bytes: &[u8],
        segment_bytes: usize,
        on_done: &mut dyn FnMut(CompletedCycle<'_>),
    ) -> Result<(), EbError> {
        if let Framing::Datagram { .. } = self.framing {
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
        // A record has at most 255 values and 255 addresses: more than that is not the end of one.
        if self.partial.len() > MAX_RECORD_BYTES {
            return Err(EbError::Wire(WireError::Overflow));
        }
        Ok(())
    }

    fn accept_datagram(&mut self, datagram: &[u8], on_done: &mut dyn FnMut(CompletedCycle<'_>)) {
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

    /// Takes whole records; returns how many bytes they were.
    fn accept_records(
        &mut self,
        bytes: &[u8],
        on_done: &mut dyn FnMut(CompletedCycle<'_>),
    ) -> usize {
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

    /// The bytes behind a message header, where messages have one: no record begins with its magic.
    fn after_header<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let header_bytes = self.layout.header_bytes();
        match self.framing {
            Framing::Messages { .. }
                if bytes.starts_with(&MAGIC.to_be_bytes()) && bytes.len() >= header_bytes =>
            {
                &bytes[header_bytes..]
            }
            _ => bytes,
        }
    }

    /// Ends the cycles whose deadline has passed, or asks again.
    fn expire(&mut self, on_done: &mut dyn FnMut(CompletedCycle<'_>)) -> Result<(), EbError> {
        let timeout = self.options.timeout;
        while let Some(expired) = self.flights.expired(self.now_ns) {
            match self.flights.again(expired) {
                Some((tag, ops, check)) => {
                    let queued = self.enqueue(&ops, check, tag);
                    self.flights.keep_again(expired, ops);
                    queued?;
                    self.flush()?;
                }
                None => self.flights.fail(expired, EbError::Timeout(timeout), self.now_ns, on_done),
            }
        }
        Ok(())
    }
}

/// A record header, two base addresses and twice 255 values of 8 bytes, and some room.
const MAX_RECORD_BYTES: usize = 8 + (2 + 2 * 255) * 8;

fn as_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

/// Values and errors of a cycle, operation by operation.
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

/// Many cycles on their way at once.
pub struct Pipeline<'a, F: FnMut(CompletedCycle<'_>)> {
    client: &'a mut Client,
    on_done: F,
}

impl<F: FnMut(CompletedCycle<'_>)> Pipeline<'_, F> {
    /// Queues a cycle. Returns when it is queued or sent; waits for answers only while the window is full.
    ///
    /// # Errors
    /// When the cycle does not fit a datagram, or the way is broken.
    pub fn submit(&mut self, ops: &[Op], check: StatusCheck, token: u64) -> Result<(), EbError> {
        if self.client.options.dialect == EbDialect::Litex {
            return self.submit_litex(ops, check, token);
        }
        self.client.submit(ops, check, token, &mut self.on_done)
    }

    /// The other dialect has one packet on its way at a time.
    fn submit_litex(&mut self, ops: &[Op], check: StatusCheck, token: u64) -> Result<(), EbError> {
        let outcome = self.client.cycle(ops, check)?;
        let words: Vec<u64> = ops
            .iter()
            .zip(&outcome.values)
            .filter(|(op, _)| !op.write)
            .map(|(_, value)| *value)
            .collect();
        (self.on_done)(CompletedCycle {
            token,
            result: Ok(()),
            words: &words,
            statuses: &[],
            bus_ops: 0,
            port: Width::W32,
        });
        Ok(())
    }

    /// Sends what is queued and waits until every cycle is answered or has failed.
    ///
    /// # Errors
    /// When the way is broken.
    pub fn finish(self) -> Result<(), EbError> {
        let mut this = self;
        this.drain()
    }

    fn drain(&mut self) -> Result<(), EbError> {
        self.client.flush()?;
        while self.client.flights.in_flight() > 0 {
            self.client.pump(&mut self.on_done)?;
        }
        Ok(())
    }
}

/// Cycles that nobody waits for any more: their answers are dropped when they come.
impl<F: FnMut(CompletedCycle<'_>)> Drop for Pipeline<'_, F> {
    fn drop(&mut self) {
        if self.client.flights.in_flight() > 0 {
            self.client.flights.abandon();
            self.client.outgoing.clear();
        }
    }
}

/// The lanes of an access, or why it cannot be one.
///
/// # Errors
/// When the size is wider than the port or the address is not a multiple of it.
pub(crate) fn lanes_of(
    address: u64,
    size: Width,
    port: Width,
    endian: daqmeter_wire::etherbone::Endian,
) -> Result<Lanes, EbError> {
    Lanes::at(address, size, port, endian).ok_or_else(|| {
        let bytes = size.bytes();
        EbError::Unsupported(if size > port {
            format!("{bytes} bytes are wider than the port of {} bits", port.bits())
        } else {
            format!("address {address:#x} is not a multiple of {bytes}")
        })
    })
}
