//! The slave: requests in, answers out. No sockets and no threads: bytes and a time come in, bytes and a time go out.
//!
//! Datagrams are executed as far as they are whole, as the C slave does. On streams a cycle is executed when all of it is
//! there, so that no other client gets between its operations and none can block the bus with half a cycle.

use daqmeter_wire::etherbone::cycle::Space;
use daqmeter_wire::etherbone::message::PROBE_BYTES;
use daqmeter_wire::etherbone::{
    Flags, Header, Lanes, Layout, Message, Probe, Record, RecordHeader, Widths, WireError, litex,
};

use crate::bus::{Access, Bus, Session};

/// Most bytes of a cycle on a stream that are kept until it ends.
pub const MOST_CYCLE_BYTES: usize = 1 << 20;

/// What a slave answers to, and with what.
pub struct Slave {
    /// The bus behind it.
    pub bus: Bus,
    /// Address widths that it answers to.
    pub address: Widths,
    /// Data widths that it answers to.
    pub data: Widths,
    /// Whether accesses are kept for a log.
    pub log: bool,
    /// The accesses since the log was last taken, if `log` is set.
    pub accesses: Vec<Access>,
    /// What it did.
    pub counts: Counts,
}

/// What a slave did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Probes answered.
    pub probes: u64,
    /// Cycles executed.
    pub cycles: u64,
    /// Operations executed.
    pub operations: u64,
    /// Packets of the LiteX dialect among the cycles.
    pub litex: u64,
    /// Datagrams dropped, or streams ended, because they were not Etherbone.
    pub refused: u64,
}

/// Why a stream was ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// What came is not Etherbone.
    #[error("not Etherbone: {0}")]
    Wire(WireError),
    /// A cycle that does not end.
    #[error("a cycle of more than {MOST_CYCLE_BYTES} bytes")]
    Endless,
    /// The asker and this slave have no width in common.
    #[error("no width in common: the client offers addresses {address}, data {data}")]
    Width {
        /// Address widths offered.
        address: Widths,
        /// Data widths offered.
        data: Widths,
    },
}

impl From<WireError> for StreamFault {
    fn from(error: WireError) -> Self {
        StreamFault::Wire(error)
    }
}

impl Slave {
    /// A slave that answers to every width.
    pub fn new(bus: Bus) -> Slave {
        Slave {
            bus,
            address: Widths::ALL,
            data: Widths::ALL,
            log: false,
            accesses: Vec::new(),
            counts: Counts::default(),
        }
    }

    fn speaks(&self, layout: Layout) -> bool {
        self.address.has(layout.address) && self.data.has(layout.data)
    }

    /// Handles a datagram; appends the answer, if there is one. Returns the time at which the answer is ready.
    pub fn datagram(&mut self, now_ns: u64, request: &[u8], answer: &mut Vec<u8>) -> u64 {
        let begin = answer.len();
        let mut session = Session::default();
        if self
            .datagram_in(now_ns, request, answer, &mut session)
            .is_err()
        {
            self.counts.refused += 1;
            answer.truncate(begin);
        }
        self.ready_ns(now_ns, &session)
    }

    /// When the answer to what was just executed is ready.
    fn ready_ns(&self, now_ns: u64, session: &Session) -> u64 {
        self.bus.busy_until_ns().max(now_ns) + session.timeouts * self.bus.timing().timeout_ns
    }

    fn datagram_in(
        &mut self,
        now_ns: u64,
        request: &[u8],
        answer: &mut Vec<u8>,
        session: &mut Session,
    ) -> Result<(), WireError> {
        let header = Header::parse(request)?;
        if header.probe_response {
            // Nobody asked; an answer to an answer would never end.
            return Err(WireError::ProbeLength(request.len()));
        }
        if header.probe_request {
            return self.probe(request, answer);
        }
        if litex::recognise(request) == Some(true) {
            let (record, rest) = litex::split(request)?;
            if rest.is_empty() && self.speaks(Layout::L32) {
                self.litex(now_ns, &record, answer, session);
                return Ok(());
            }
            return Err(WireError::Overflow);
        }
        let message = Message::parse(request)?;
        if !self.speaks(message.layout) {
            return Err(WireError::NotOneWidth(header.address, header.data));
        }
        self.message(now_ns, message, answer, session)
    }

    fn probe(&mut self, request: &[u8], answer: &mut Vec<u8>) -> Result<(), WireError> {
        if let Some(bytes) = litex::answer_probe(request) {
            answer.extend(bytes);
        } else {
            let probe = Probe::parse(request)?;
            answer.extend(
                Probe {
                    response: true,
                    address: self.address,
                    data: self.data,
                    id: probe.id,
                }
                .emit(),
            );
        }
        self.counts.probes += 1;
        Ok(())
    }

    /// Executes the whole records of a message; the answer begins with the header, which is taken back when nothing follows.
    fn message(
        &mut self,
        now_ns: u64,
        message: Message<'_>,
        answer: &mut Vec<u8>,
        session: &mut Session,
    ) -> Result<(), WireError> {
        let begin = answer.len();
        let layout = message.layout;
        put_header(Header::of(layout, true), layout, answer);
        let after_header = answer.len();
        let mut cycle = Cycle::default();
        let mut rest = message.records;
        let mut executed = false;
        // What is left of a truncated record is dropped: it was never asked for in whole.
        while let Ok((record, after)) = Record::split(layout, rest) {
            self.record(now_ns, layout, &record, &mut cycle, session, answer);
            executed = true;
            rest = after;
        }
        if answer.len() == after_header || message.header.no_reads {
            answer.truncate(begin);
        }
        if executed || message.records.is_empty() {
            Ok(())
        } else {
            Err(WireError::Truncated {
                wanted: 4,
                found: rest.len(),
            })
        }
    }

    /// Executes one record, and appends its part of the answer.
    #[inline]
    fn record(
        &mut self,
        now_ns: u64,
        layout: Layout,
        record: &Record<'_>,
        cycle: &mut Cycle,
        session: &mut Session,
        answer: &mut Vec<u8>,
    ) {
        if !cycle.open {
            *cycle = Cycle {
                open: true,
                answered: false,
            };
            self.bus.begin_cycle(now_ns);
            self.counts.cycles += u64::from(!record.header.is_empty());
        }
        let header = record.header;
        let flags = header.flags;
        let answered = self.operations(layout, record, session, answer);
        cycle.answered |= answered;
        if flags.has(Flags::CYC) {
            if !answered && cycle.answered {
                // The cycle was answered, but not its last record: a lone header ends it.
                put_record_header(
                    RecordHeader {
                        flags: Flags::CYC,
                        ..RecordHeader::default()
                    },
                    layout,
                    answer,
                );
            }
            cycle.open = false;
        }
    }

    /// Writes, then reads. True when there was something to answer.
    #[inline]
    fn operations(
        &mut self,
        layout: Layout,
        record: &Record<'_>,
        session: &mut Session,
        answer: &mut Vec<u8>,
    ) -> bool {
        let RecordHeader {
            flags,
            select,
            reads,
            writes,
        } = record.header;
        self.counts.operations += u64::from(reads) + u64::from(writes);
        let lanes = Lanes::of_select(select, layout.data);
        let space = |config: Flags| {
            if flags.has(config) {
                Space::Config
            } else {
                Space::Bus
            }
        };
        if let Some((base, values)) = record.write_block() {
            let step = if flags.has(Flags::WFF) {
                0
            } else {
                layout.data.bytes() as u64
            };
            let mut address = base;
            for value in values {
                match lanes {
                    Ok(lanes) => self.operation(
                        session,
                        layout,
                        (space(Flags::WCA), true),
                        address,
                        lanes,
                        value,
                    ),
                    Err(_) => refuse(session, space(Flags::WCA)),
                };
                address = address.wrapping_add(step) & layout.address.mask();
            }
        }
        let Some((back, addresses)) = record.read_block() else {
            return false;
        };
        let flags = Flags(flags.0 & Flags::CYC.0)
            .with_if(flags.has(Flags::BCA), Flags::WCA)
            .with_if(flags.has(Flags::RFF), Flags::WFF);
        put_record_header(
            RecordHeader {
                flags,
                select,
                writes: reads,
                reads: 0,
            },
            layout,
            answer,
        );
        let size = layout.value_bytes();
        put_value(answer, size, back);
        let op = (space_of(record.header.flags), false);
        match (lanes, size) {
            (Ok(lanes), 4) => addresses.for_each(|address| {
                let value = self.operation(session, layout, op, address, lanes, 0);
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "values of a port of 32 bits or less"
                )]
                answer.extend_from_slice(&(value as u32).to_be_bytes());
            }),
            (Ok(lanes), _) => addresses.for_each(|address| {
                let value = self.operation(session, layout, op, address, lanes, 0);
                put_value(answer, size, value);
            }),
            (Err(_), _) => addresses.for_each(|_| {
                refuse(session, op.0);
                put_value(answer, size, 0);
            }),
        }
        true
    }

    #[inline]
    fn operation(
        &mut self,
        session: &mut Session,
        layout: Layout,
        op: (Space, bool),
        address: u64,
        lanes: Lanes,
        word: u64,
    ) -> u64 {
        let access = self.bus.execute(session, layout, op, address, lanes, word);
        if self.log && op.0 == Space::Bus {
            self.accesses.push(access);
        }
        access.value
    }

    /// One packet of the LiteX dialect: all byte lanes, no errors, writes unanswered.
    fn litex(
        &mut self,
        now_ns: u64,
        record: &Record<'_>,
        answer: &mut Vec<u8>,
        session: &mut Session,
    ) {
        self.bus.begin_cycle(now_ns);
        self.counts.cycles += 1;
        self.counts.litex += 1;
        let begin = answer.len();
        answer.extend([0x4e, 0x6f, 0x10, 0x44, 0, 0, 0, 0]);
        if !self.operations(Layout::L32, record, session, answer) {
            answer.truncate(begin);
        }
    }
}

fn space_of(flags: Flags) -> Space {
    if flags.has(Flags::RCA) {
        Space::Config
    } else {
        Space::Bus
    }
}

/// An operation with impossible byte enables: nothing is executed, and the error is seen.
fn refuse(session: &mut Session, space: Space) -> u64 {
    if space == Space::Bus {
        session.errors.shift_in(true);
    }
    0
}

fn put_header(header: Header, layout: Layout, out: &mut Vec<u8>) {
    out.extend(header.emit());
    out.resize(out.len() + layout.header_bytes() - 4, 0);
}

fn put_record_header(header: RecordHeader, layout: Layout, out: &mut Vec<u8>) {
    out.extend(header.emit());
    out.resize(out.len() + layout.header_bytes() - 4, 0);
}

fn put_value(out: &mut Vec<u8>, size: usize, value: u64) {
    out.extend_from_slice(&value.to_be_bytes()[8 - size..]);
}

/// Where a cycle stands.
#[derive(Clone, Copy, Debug, Default)]
struct Cycle {
    open: bool,
    answered: bool,
}

/// How the other end of a stream frames what it sends; told at each record boundary, for `4E 6F` can open no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// Nothing came yet.
    Unknown,
    /// A probe came, then bare records for ever.
    Bare(Layout),
    /// A message header before every flush.
    Framed(Layout),
}

/// One stream connection: what came and was not executed yet.
#[derive(Debug)]
pub struct Stream {
    buffer: Vec<u8>,
    /// How far the buffer was searched for the end of a cycle.
    searched: usize,
    framing: Framing,
    session: Session,
}

impl Default for Stream {
    fn default() -> Self {
        Stream {
            buffer: Vec::new(),
            searched: 0,
            framing: Framing::Unknown,
            session: Session::default(),
        }
    }
}

/// What the bytes at a boundary are.
enum Next {
    /// Too few to tell, or the cycle has not ended.
    Incomplete,
    /// A probe.
    Probe,
    /// A message header of that many bytes.
    Header(Layout, usize),
    /// A whole packet of the LiteX dialect, of that many bytes.
    Litex(usize),
    /// A whole cycle that ends there.
    Cycle(Layout, usize),
}

impl Stream {
    /// True when bytes wait for the rest of their cycle: the asker owes something.
    pub fn is_waiting(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Takes bytes, executes every cycle that they complete, and appends the answers. Returns the time at which they are
    /// ready.
    ///
    /// # Errors
    /// When the stream must be ended; answers to what was whole before are in `answer`.
    pub fn feed(
        &mut self,
        slave: &mut Slave,
        now_ns: u64,
        bytes: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<u64, StreamFault> {
        self.buffer.extend_from_slice(bytes);
        let mut at = 0;
        // A framed answer has one header per flush.
        let mut header_sent = false;
        let result = loop {
            match self.next(slave, at) {
                Ok(Next::Incomplete) => break Ok(()),
                Ok(next) => match self.execute(slave, now_ns, next, at, &mut header_sent, answer) {
                    Ok(bytes) => at += bytes,
                    Err(fault) => break Err(fault),
                },
                Err(fault) => break Err(fault),
            }
            self.searched = at;
        };
        self.buffer.drain(..at);
        self.searched = self.searched.saturating_sub(at);
        slave.counts.refused += u64::from(result.is_err());
        let ready_ns = slave.ready_ns(now_ns, &self.session);
        self.session.timeouts = 0;
        result.map(|()| ready_ns)
    }

    fn next(&mut self, slave: &Slave, at: usize) -> Result<Next, StreamFault> {
        let rest = &self.buffer[at..];
        if self.searched <= at {
            if rest.len() < 4 {
                return Ok(Next::Incomplete);
            }
            if rest[..2] == [0x4e, 0x6f] || self.framing == Framing::Unknown {
                return header(slave, rest);
            }
        }
        let layout = match self.framing {
            Framing::Bare(layout) | Framing::Framed(layout) => layout,
            Framing::Unknown => return Ok(Next::Incomplete),
        };
        let mut end = self.searched.max(at);
        loop {
            match Record::split(layout, &self.buffer[end..]) {
                Ok((record, after)) => {
                    end = self.buffer.len() - after.len();
                    self.searched = end;
                    // Padding between cycles is a cycle of its own: nothing to wait for.
                    if record.header.flags.has(Flags::CYC)
                        || record.header.is_empty() && end - at == layout.header_bytes()
                    {
                        return Ok(Next::Cycle(layout, end - at));
                    }
                }
                Err(_) if self.buffer.len() - at > MOST_CYCLE_BYTES => {
                    return Err(StreamFault::Endless);
                }
                Err(_) => return Ok(Next::Incomplete),
            }
        }
    }

    /// Executes what is at `at` and returns its length.
    fn execute(
        &mut self,
        slave: &mut Slave,
        now_ns: u64,
        next: Next,
        at: usize,
        header_sent: &mut bool,
        answer: &mut Vec<u8>,
    ) -> Result<usize, StreamFault> {
        match next {
            Next::Incomplete => Ok(0),
            Next::Probe => {
                let probe = Probe::parse(&self.buffer[at..at + PROBE_BYTES])?;
                let (address, data) = (
                    slave.address.and(probe.address).widest(),
                    slave.data.and(probe.data).widest(),
                );
                // Answered even without a common width, so that the asker can say so; then dropped.
                slave.probe(&self.buffer[at..at + PROBE_BYTES], answer)?;
                let fault = StreamFault::Width {
                    address: probe.address,
                    data: probe.data,
                };
                let (Some(address), Some(data)) = (address, data) else {
                    return Err(fault);
                };
                self.framing = Framing::Bare(Layout { address, data });
                Ok(PROBE_BYTES)
            }
            Next::Header(layout, bytes) => {
                self.framing = Framing::Framed(layout);
                *header_sent = false;
                Ok(bytes)
            }
            Next::Litex(bytes) => {
                let (record, _) = litex::split(&self.buffer[at..at + bytes])?;
                slave.litex(now_ns, &record, answer, &mut self.session);
                self.framing = Framing::Framed(Layout::L32);
                Ok(bytes)
            }
            Next::Cycle(layout, bytes) => {
                let before = answer.len();
                let framed = matches!(self.framing, Framing::Framed(_));
                if framed && !*header_sent {
                    put_header(Header::of(layout, true), layout, answer);
                }
                let after_header = answer.len();
                let mut cycle = Cycle::default();
                let mut rest = &self.buffer[at..at + bytes];
                while let Ok((record, after)) = Record::split(layout, rest) {
                    slave.record(
                        now_ns,
                        layout,
                        &record,
                        &mut cycle,
                        &mut self.session,
                        answer,
                    );
                    rest = after;
                }
                if answer.len() == after_header {
                    answer.truncate(before);
                } else {
                    *header_sent = true;
                }
                Ok(bytes)
            }
        }
    }
}

/// What a message header on a stream announces.
fn header(slave: &Slave, rest: &[u8]) -> Result<Next, StreamFault> {
    let header = Header::parse(rest)?;
    if header.probe_response {
        return Err(WireError::ProbeLength(rest.len()).into());
    }
    if header.probe_request {
        return Ok(if rest.len() < PROBE_BYTES {
            Next::Incomplete
        } else {
            Next::Probe
        });
    }
    match litex::recognise(rest) {
        None => return Ok(Next::Incomplete),
        Some(true) => {
            return match litex::split(rest) {
                Ok((_, after)) => Ok(Next::Litex(rest.len() - after.len())),
                Err(WireError::Truncated { .. }) => Ok(Next::Incomplete),
                Err(error) => Err(error.into()),
            };
        }
        Some(false) => {}
    }
    let layout = header.layout()?;
    if !slave.speaks(layout) {
        return Err(StreamFault::Width {
            address: header.address,
            data: header.data,
        });
    }
    Ok(if rest.len() < layout.header_bytes() {
        Next::Incomplete
    } else {
        Next::Header(layout, layout.header_bytes())
    })
}

#[cfg(test)]
mod tests {
    use daqmeter_wire::etherbone::cycle::{Check, Op, encode};
    use daqmeter_wire::etherbone::{Block, Endian, Width};
    use proptest::prelude::*;

    use super::*;
    use crate::bus::{Description, Timing};

    fn slave() -> Slave {
        let description = Description::memory(0x10000, 0x1ffff, Widths::ALL, Endian::Big);
        Slave::new(description.build().unwrap())
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    fn answer_of(slave: &mut Slave, request: &str) -> Vec<u8> {
        let mut answer = Vec::new();
        slave.datagram(0, &hex(request), &mut answer);
        answer
    }

    #[test]
    fn golden_answers_of_the_c_slave() {
        let mut slave = slave();
        let mut check = |request: &str, wanted: &str| {
            assert_eq!(answer_of(&mut slave, request), hex(wanted), "{request}")
        };
        check("4e6f1144 00000086", "4e6f16ff 00000086");
        check("4e6f1444 a80f0100 00010000 dddddddd", "");
        check(
            "4e6f1044 a00f0001 00008000 00010000 e80f0001 00008001 00000004",
            "4e6f1444 060f0100 00008000 dddddddd 0e0f0100 00008001 00000000",
        );
        check(
            "4e6f1044 a80f0001 00008000 00010000",
            "4e6f1444 0e0f0100 00008000 dddddddd",
        );
        check(
            "4e6f1044 a00f0001 00008000 000a0000 e80f0001 00008001 00000004",
            "4e6f1444 060f0100 00008000 00000000 0e0f0100 00008001 00000001",
        );
        check(
            "4e6f1044 e80f0101 00010000 11223344 00008001 00000004",
            "4e6f1444 0e0f0100 00008001 00000000",
        );
        check(
            "4e6f1088 00000000 a0ff0001 00000000 0000000000008000 0000000000010000
             e8ff0001 00000000 0000000000008001 0000000000000000",
            "4e6f1488 00000000 06ff0100 00000000 0000000000008000 1122334400000000
             0eff0100 00000000 0000000000008001 0000000000000000",
        );
        check(
            "4e6f1042 a8030001 00008000 00010002",
            "4e6f1442 0e030100 00008000 00003344",
        );
    }

    #[test]
    fn a_byte_of_a_little_endian_memory_is_the_golden_one() {
        let description = Description::memory(0x10000, 0x1ffff, Widths::ALL, Endian::Little);
        let mut slave = Slave::new(description.build().unwrap());
        answer_of(&mut slave, "4e6f1444 a80f0100 00010000 11223344");
        let answer = answer_of(&mut slave, "4e6f1044 a8020001 00008000 00010001");
        assert_eq!(answer, hex("4e6f1444 0e020100 00008000 00003300"));
    }

    #[test]
    fn byte_enables_that_are_no_run_execute_nothing_and_are_an_error() {
        let mut slave = slave();
        let answer = answer_of(
            &mut slave,
            "4e6f1044 a0060101 00010000 ffffffff 00008000 00010000 e80f0001 00008001 00000004",
        );
        assert_eq!(
            answer,
            hex("4e6f1444 06060100 00008000 00000000 0e0f0100 00008001 00000003")
        );
        assert_eq!(
            answer_of(&mut slave, "4e6f1044 a80f0001 00008000 00010000")[12..],
            [0, 0, 0, 0]
        );
    }

    #[test]
    fn a_cycle_whose_last_record_only_writes_ends_with_a_lone_header() {
        let answer = answer_of(
            &mut slave(),
            "4e6f1044 a00f0001 00008000 00010000 a80f0100 00010000 00000005",
        );
        assert_eq!(answer, hex("4e6f1444 060f0100 00008000 00000000 08000000"));
    }

    #[test]
    fn padding_of_zero_words_is_skipped() {
        let answer = answer_of(&mut slave(), "4e6f1044 00000000 a80f0001 00008000 00010000");
        assert_eq!(answer, hex("4e6f1444 0e0f0100 00008000 00000000"));
    }

    #[test]
    fn what_must_not_be_answered_is_not() {
        let mut slave = slave();
        for request in [
            "",
            "4e6f11",
            "4e6f1144 000000",
            "4e6f1144 00000000 0000",
            "4e6f1644 00000086",
            "4e6f10ff a80f0001 00008000 00010000",
            "4e6f1044 a80f0001 00008000",
            "4e6f2044 a80f0001 00008000 00010000",
            "4e6f1444 a80f0001 00008000 00010000",
            "deadbeef",
        ] {
            assert_eq!(answer_of(&mut slave, request), [0; 0], "{request}");
        }
        // And the next valid one is served.
        assert_eq!(answer_of(&mut slave, "4e6f1144 00000001").len(), 8);
    }

    #[test]
    fn a_truncated_datagram_is_answered_as_far_as_it_was_whole() {
        let answer = answer_of(
            &mut slave(),
            "4e6f1044 a00f0001 00008000 00010000 e80f0001 00008001",
        );
        assert_eq!(answer, hex("4e6f1444 060f0100 00008000 00000000"));
    }

    #[test]
    fn the_litex_dialect_is_told_by_its_packets() {
        let mut slave = slave();
        assert_eq!(
            answer_of(
                &mut slave,
                "4e6f1044 00000000 000f0200 00010000 00000007 00000008"
            ),
            [0; 0]
        );
        let answer = answer_of(
            &mut slave,
            "4e6f1044 00000000 000f0002 000000aa 00010000 00010004",
        );
        assert_eq!(
            answer,
            hex("4e6f1044 00000000 000f0200 000000aa 00000007 00000008")
        );
        assert_eq!(
            answer_of(&mut slave, "4e6f1144 0000000000000000"),
            hex("4e6f1244 0000000000000000")
        );
        assert_eq!((slave.counts.litex, slave.counts.probes), (2, 1));
    }

    #[test]
    fn silent_registers_hold_the_answer_until_the_bus_timeout() {
        let mut slave = Slave::new(Description::timing_receiver().build().unwrap());
        slave.bus.set_timing(Timing {
            timeout_ns: 1_000_000,
            ..Timing::default()
        });
        let mut answer = Vec::new();
        let silent = hex("4e6f1044 a00f0001 00008000 00180110 e80f0001 00008001 00000004");
        assert_eq!(slave.datagram(500, &silent, &mut answer), 1_000_500);
        assert_eq!(answer[24..], hex("00000001"));
    }

    /// A master's stream after its probe.
    fn stream_bytes(cycles: &[Vec<Op>]) -> Vec<u8> {
        let mut bytes = hex("4e6f1144 00000001");
        for (index, ops) in cycles.iter().enumerate() {
            let mut out = vec![0; 1 << 16];
            let tag = 0x8000 + 2 * u16::try_from(index).unwrap();
            let encoded = encode(ops, Layout::L32, tag, Check::Status, &mut out).unwrap();
            bytes.extend(&out[..encoded.bytes]);
        }
        bytes
    }

    fn reads(count: u64) -> Vec<Op> {
        (0..count)
            .map(|index| Op::read(0x10000 + 4 * index, Width::W32))
            .collect()
    }

    #[test]
    fn a_stream_cut_anywhere_gives_the_same_answers() {
        let bytes = stream_bytes(&[
            reads(1),
            reads(40),
            vec![Op::write(0x10000, 5, Width::W32)],
            reads(3),
        ]);
        let mut whole = Vec::new();
        Stream::default()
            .feed(&mut slave(), 0, &bytes, &mut whole)
            .unwrap();
        assert!(whole.len() > 48 * 4);
        for step in [1, 2, 3, 5, 7, 64] {
            let (mut slave, mut stream, mut answer) = (slave(), Stream::default(), Vec::new());
            for part in bytes.chunks(step) {
                stream.feed(&mut slave, 0, part, &mut answer).unwrap();
            }
            assert_eq!(answer, whole, "in steps of {step}");
            assert!(!stream.is_waiting());
        }
    }

    #[test]
    fn nothing_of_a_cycle_is_executed_before_all_of_it_is_there() {
        let ops = vec![
            Op::write(0x10000, 5, Width::W32),
            Op::read(0x10000, Width::W32),
        ];
        let bytes = stream_bytes(&[ops]);
        let (mut slave, mut stream, mut answer) = (slave(), Stream::default(), Vec::new());
        stream
            .feed(&mut slave, 0, &bytes[..bytes.len() - 1], &mut answer)
            .unwrap();
        assert_eq!(slave.counts.operations, 0);
        assert!(stream.is_waiting());
        stream
            .feed(&mut slave, 0, &bytes[bytes.len() - 1..], &mut answer)
            .unwrap();
        assert_eq!(slave.counts.operations, 3);
    }

    #[test]
    fn both_framings_and_both_dialects_are_served_on_one_connection() {
        let (mut slave, mut stream) = (slave(), Stream::default());
        let mut exchange = |request: &str| {
            let mut answer = Vec::new();
            stream
                .feed(&mut slave, 0, &hex(request), &mut answer)
                .unwrap();
            answer
        };
        let framed = exchange("4e6f1044 a80f0001 00008000 00010000 a80f0001 00008002 00010004");
        assert_eq!(
            framed,
            hex("4e6f1444 0e0f0100 00008000 00000000 0e0f0100 00008002 00000000")
        );
        let litex = exchange("4e6f1044 00000000 000f0001 00000000 00010000");
        assert_eq!(litex, hex("4e6f1044 00000000 000f0100 00000000 00000000"));
        assert_eq!(exchange("4e6f1144 00000009"), hex("4e6f16ff 00000009"));
        assert_eq!(
            exchange("a80f0001 00008000 00010000"),
            hex("0e0f0100 00008000 00000000")
        );
    }

    #[test]
    fn a_stream_that_is_not_etherbone_is_ended() {
        let feed = |bytes: &[u8]| Stream::default().feed(&mut slave(), 0, bytes, &mut Vec::new());
        assert!(matches!(
            feed(b"GET / HTTP/1.1"),
            Err(StreamFault::Wire(WireError::Magic(_)))
        ));
        assert!(matches!(
            feed(&hex("4e6f10cc 00000000 00000000")),
            Err(StreamFault::Wire(WireError::NotOneWidth(..)))
        ));
        let mut narrow = slave();
        narrow.data = Widths::only(Width::W8);
        let mut answer = Vec::new();
        let fault = Stream::default().feed(&mut narrow, 0, &hex("4e6f1144 00000001"), &mut answer);
        assert!(matches!(fault, Err(StreamFault::Width { .. })));
        assert_eq!(answer, hex("4e6f16f1 00000001"));
    }

    #[test]
    fn a_cycle_that_never_ends_is_ended() {
        let (mut slave, mut stream) = (slave(), Stream::default());
        stream
            .feed(&mut slave, 0, &hex("4e6f1144 00000001"), &mut Vec::new())
            .unwrap();
        let mut record = vec![0; 4096];
        let values = [0; 255];
        let write = Some(Block {
            base: 0x10000,
            values: &values,
        });
        let repr = daqmeter_wire::etherbone::RecordRepr {
            select: 0x0F,
            write,
            ..Default::default()
        };
        let bytes = repr.emit(Layout::L32, &mut record).unwrap();
        let fault = (0..2000).find_map(|_| {
            stream
                .feed(&mut slave, 0, &record[..bytes], &mut Vec::new())
                .err()
        });
        assert_eq!(fault, Some(StreamFault::Endless));
    }

    proptest! {
        #[test]
        fn no_datagram_breaks_the_slave(head in 0..8_u8, mut bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if head > 0 && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&[0x4e, 0x6f, 0x10 | (head & 5), 0x44]);
            }
            let mut slave = slave();
            let mut answer = Vec::new();
            slave.datagram(0, &bytes, &mut answer);
            prop_assert!(answer.len() <= bytes.len().max(8) + 4, "{} to {}", bytes.len(), answer.len());
            prop_assert_eq!(answer_of(&mut slave, "4e6f1144 00000001").len(), 8);
        }

        #[test]
        fn no_stream_breaks_the_slave(bytes in prop::collection::vec(any::<u8>(), 0..600), cut in 1..64_usize) {
            let mut slave = slave();
            let mut stream = Stream::default();
            let mut answer = Vec::new();
            stream.feed(&mut slave, 0, &hex("4e6f1144 00000001"), &mut answer).unwrap();
            for part in bytes.chunks(cut) {
                if stream.feed(&mut slave, 0, part, &mut answer).is_err() { break }
            }
        }
    }
}
