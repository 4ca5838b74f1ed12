//! Records of cycles onto the bus, and the answers to them.

use daqmeter_wire::etherbone::cycle::Space;
use daqmeter_wire::etherbone::{
    EbHeader, EbLayout, EbMessage, EbProbe, EbRecord, Lanes, RecordFlags, RecordHeader, Widths,
    WireError, litex,
};

use crate::bus::{Access, Bus, BusSession};

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
    pub counts: SlaveCounts,
}

/// What a slave did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlaveCounts {
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

impl Slave {
    /// A slave that answers to every width.
    pub fn new(bus: Bus) -> Slave {
        Slave {
            bus,
            address: Widths::ALL,
            data: Widths::ALL,
            log: false,
            accesses: Vec::new(),
            counts: SlaveCounts::default(),
        }
    }

    fn speaks(&self, layout: EbLayout) -> bool {
        self.address.has(layout.address) && self.data.has(layout.data)
    }

    /// The widths of a message: the widest of those that its header names and this slave does, as the C slave takes them.
    /// None when they have none in common.
    pub(super) fn layout_of(&self, header: &EbHeader) -> Option<EbLayout> {
        Some(EbLayout {
            address: self.address.and(header.address).widest()?,
            data: self.data.and(header.data).widest()?,
        })
    }

    /// Handles a datagram; appends the answer, if there is one. Returns the time at which the answer is ready.
    pub fn datagram(&mut self, now_ns: u64, request: &[u8], answer: &mut Vec<u8>) -> u64 {
        let begin = answer.len();
        let mut session = BusSession::default();
        if self.datagram_in(now_ns, request, answer, &mut session).is_err() {
            self.counts.refused += 1;
            answer.truncate(begin);
        }
        self.ready_ns(now_ns, &session)
    }

    /// When the answer to what was just executed is ready.
    pub(super) fn ready_ns(&self, now_ns: u64, session: &BusSession) -> u64 {
        self.bus.busy_until_ns().max(now_ns) + session.timeouts * self.bus.timing().timeout_ns
    }

    fn datagram_in(
        &mut self,
        now_ns: u64,
        request: &[u8],
        answer: &mut Vec<u8>,
        session: &mut BusSession,
    ) -> Result<(), WireError> {
        let header = EbHeader::parse(request)?;
        if header.probe_response {
            // Nobody asked; an answer to an answer would never end.
            return Err(WireError::ProbeLength(request.len()));
        }
        if header.probe_request {
            return self.probe(request, answer);
        }
        if litex::recognise(request) == Some(true) {
            let (record, rest) = litex::split(request)?;
            if rest.is_empty() && self.speaks(EbLayout::L32) {
                self.litex(now_ns, &record, answer, session);
                return Ok(());
            }
            return Err(WireError::Overflow);
        }
        let layout =
            self.layout_of(&header).ok_or(WireError::NotOneWidth(header.address, header.data))?;
        let message = EbMessage::with_layout(request, layout)?;
        self.message(now_ns, message, answer, session)
    }

    pub(super) fn probe(&mut self, request: &[u8], answer: &mut Vec<u8>) -> Result<(), WireError> {
        if let Some(bytes) = litex::answer_probe(request) {
            answer.extend(bytes);
        } else {
            let probe = EbProbe::parse(request)?;
            answer.extend(
                EbProbe { response: true, address: self.address, data: self.data, id: probe.id }
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
        message: EbMessage<'_>,
        answer: &mut Vec<u8>,
        session: &mut BusSession,
    ) -> Result<(), WireError> {
        let begin = answer.len();
        let layout = message.layout;
        put_header(message.header, layout, answer);
        let after_header = answer.len();
        let mut cycle = Cycle::default();
        let mut rest = message.records;
        let mut executed = false;
        // What is left of a truncated record is dropped: it was never asked for in whole.
        while let Ok((record, after)) = EbRecord::split(layout, rest) {
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
            Err(WireError::Truncated { wanted: 4, found: rest.len() })
        }
    }

    /// Executes one record, and appends its part of the answer.
    #[inline(always)]
    pub(super) fn record(
        &mut self,
        now_ns: u64,
        layout: EbLayout,
        record: &EbRecord<'_>,
        cycle: &mut Cycle,
        session: &mut BusSession,
        answer: &mut Vec<u8>,
    ) {
        if !cycle.open {
            *cycle = Cycle { open: true, answered: false };
            self.bus.begin_cycle(now_ns);
            self.counts.cycles += u64::from(!record.header.is_empty());
        }
        let header = record.header;
        let flags = header.flags;
        let answered = self.operations(layout, record, session, answer);
        cycle.answered |= answered;
        if flags.has(RecordFlags::CYC) {
            if !answered && cycle.answered {
                // The cycle was answered, but not its last record: a lone header ends it.
                put_record_header(
                    RecordHeader { flags: RecordFlags::CYC, ..RecordHeader::default() },
                    layout,
                    answer,
                );
            }
            cycle.open = false;
        }
    }

    /// Writes, then reads. True when there was something to answer.
    #[inline(always)]
    fn operations(
        &mut self,
        layout: EbLayout,
        record: &EbRecord<'_>,
        session: &mut BusSession,
        answer: &mut Vec<u8>,
    ) -> bool {
        let header = record.header;
        self.counts.operations += u64::from(header.reads) + u64::from(header.writes);
        let lanes = Lanes::of_select(header.select, layout.data);
        self.writes(layout, record, lanes, session);
        self.reads(layout, record, lanes, session, answer)
    }

    #[inline]
    fn writes(
        &mut self,
        layout: EbLayout,
        record: &EbRecord<'_>,
        lanes: Result<Lanes, WireError>,
        session: &mut BusSession,
    ) {
        let Some((base, values)) = record.write_block() else {
            return;
        };
        let flags = record.header.flags;
        let step = match flags.has(RecordFlags::WFF) {
            true => 0,
            false => layout.data.bytes() as u64,
        };
        let op = (space(flags, RecordFlags::WCA), true);
        // Values are as wide as the wider of address and data: the slave looks at the bits of its address only. Unlike the C
        // slave, which counts on beyond them, addresses wrap.
        let mut address = base & layout.address.mask();
        for value in values {
            match lanes {
                Ok(lanes) => self.operation(session, layout, op, address, lanes, value),
                Err(_) => refuse(session, op.0),
            };
            address = address.wrapping_add(step) & layout.address.mask();
        }
    }

    /// True when there was something to read.
    #[inline]
    fn reads(
        &mut self,
        layout: EbLayout,
        record: &EbRecord<'_>,
        lanes: Result<Lanes, WireError>,
        session: &mut BusSession,
        answer: &mut Vec<u8>,
    ) -> bool {
        let Some((back, addresses)) = record.read_block() else {
            return false;
        };
        put_record_header(answer_header(record.header), layout, answer);
        let size = layout.value_bytes();
        put_value(answer, size, back);
        let op = (space(record.header.flags, RecordFlags::RCA), false);
        let mask = layout.address.mask();
        let addresses = addresses.map(|address| address & mask);
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
        session: &mut BusSession,
        layout: EbLayout,
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
    pub(super) fn litex(
        &mut self,
        now_ns: u64,
        record: &EbRecord<'_>,
        answer: &mut Vec<u8>,
        session: &mut BusSession,
    ) {
        self.bus.begin_cycle(now_ns);
        self.counts.cycles += 1;
        self.counts.litex += 1;
        let begin = answer.len();
        answer.extend([0x4e, 0x6f, 0x10, 0x44, 0, 0, 0, 0]);
        if !self.operations(EbLayout::L32, record, session, answer) {
            answer.truncate(begin);
        }
    }
}

fn space(flags: RecordFlags, config: RecordFlags) -> Space {
    if flags.has(config) { Space::Config } else { Space::Bus }
}

/// Of the record that answers the reads of another.
#[inline]
fn answer_header(asked: RecordHeader) -> RecordHeader {
    RecordHeader {
        flags: RecordFlags(asked.flags.0 & RecordFlags::CYC.0)
            .with_if(asked.flags.has(RecordFlags::BCA), RecordFlags::WCA)
            .with_if(asked.flags.has(RecordFlags::RFF), RecordFlags::WFF),
        select: asked.select,
        writes: asked.reads,
        reads: 0,
    }
}

/// An operation with impossible byte enables: nothing is executed, and the error is seen.
fn refuse(session: &mut BusSession, space: Space) -> u64 {
    if space == Space::Bus {
        session.errors.shift_in(true);
    }
    0
}

/// The header of an answer: that of the request, with its widths, and without reads.
pub(super) fn put_header(request: EbHeader, layout: EbLayout, out: &mut Vec<u8>) {
    let header =
        EbHeader { no_reads: true, probe_response: false, probe_request: false, ..request };
    out.extend(header.emit());
    out.resize(out.len() + layout.header_bytes() - 4, 0);
}

fn put_record_header(header: RecordHeader, layout: EbLayout, out: &mut Vec<u8>) {
    out.extend(header.emit());
    out.resize(out.len() + layout.header_bytes() - 4, 0);
}

fn put_value(out: &mut Vec<u8>, size: usize, value: u64) {
    out.extend_from_slice(&value.to_be_bytes()[8 - size..]);
}

/// Where a cycle stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cycle {
    open: bool,
    answered: bool,
}
