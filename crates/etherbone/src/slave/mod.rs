//! The slave without sockets and threads: requests and a time in, answers and a time out.
//! Datagrams are executed as far as they are whole, as in the C slave. On streams a cycle is
//! executed when all of it is there. So no other client gets between its operations, and half a
//! cycle cannot block the bus.

mod stream;

use std::sync::atomic::{AtomicU64, Ordering};

use daqmeter_wire::etherbone::cycle::Space;
use daqmeter_wire::etherbone::{
    EbHeader, EbLayout, EbProbe, EbRecord, Lanes, RecordFlags, RecordHeader, Widths, WireError,
    litex,
};

pub use self::stream::{MAX_CYCLE_BYTES, Stream};
use crate::EbError;
use crate::bus::{Access, Bus, BusSession};

pub struct Slave {
    pub bus: Bus,
    pub address: Widths,
    pub data: Widths,
    /// Keeps every access of the bus in `accesses`.
    pub log: bool,
    pub accesses: Vec<Access>,
    pub counts: SlaveCounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlaveCounts {
    pub probes: u64,
    pub cycles: u64,
    pub operations: u64,
    pub litex: u64,
    pub refused: u64,
}

/// Counts of this process's server for other threads, in the order of [`SlaveCounts`].
pub static COUNTS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

impl SlaveCounts {
    pub(crate) fn show(self) {
        let all = [self.probes, self.cycles, self.operations, self.litex, self.refused];
        COUNTS.iter().zip(all).for_each(|(shown, count)| shown.store(count, Ordering::Relaxed));
    }
}

impl Slave {
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

    /// Returns the widest common widths.
    fn layout_of(&self, EbHeader { address, data, .. }: EbHeader) -> Result<EbLayout, EbError> {
        match (self.address.and(address).widest(), self.data.and(data).widest()) {
            (Some(address), Some(data)) => Ok(EbLayout { address, data }),
            _ => Err(EbError::Other(format!(
                "no width in common: the client offers addresses {address}, data {data}"
            ))),
        }
    }

    pub fn datagram(&mut self, now_ns: u64, request: &[u8], answer: &mut Vec<u8>) -> u64 {
        let (begin, mut session) = (answer.len(), BusSession::default());
        if self.datagram_in(now_ns, request, answer, &mut session).is_err() {
            self.counts.refused += 1;
            answer.truncate(begin);
        }
        self.bus.ready_ns(now_ns, &session)
    }

    fn datagram_in(
        &mut self,
        now_ns: u64,
        request: &[u8],
        answer: &mut Vec<u8>,
        session: &mut BusSession,
    ) -> Result<(), EbError> {
        let header = EbHeader::parse(request)?;
        if header.probe_response {
            return Err(WireError::ProbeLength(request.len()).into());
        }
        if header.probe_request {
            return Ok(self.probe(request, answer)?);
        }
        if litex::recognise(request) == Some(true) {
            let (record, rest) = litex::split(request)?;
            let layout = EbLayout::L32;
            if !(rest.is_empty() && self.address.has(layout.address) && self.data.has(layout.data))
            {
                return Err(WireError::Overflow.into());
            }
            Execution::new(self, now_ns, layout, session, answer).litex(&record);
            return Ok(());
        }
        let layout = self.layout_of(header)?;
        let wanted = layout.header_bytes();
        let truncated = WireError::Truncated { wanted, found: request.len() };
        let records = request.get(wanted..).ok_or(truncated)?;
        Ok(Execution::new(self, now_ns, layout, session, answer).message(header, records)?)
    }

    fn probe(&mut self, request: &[u8], answer: &mut Vec<u8>) -> Result<(), WireError> {
        if let Some(bytes) = litex::answer_probe(request) {
            answer.extend(bytes);
        } else {
            let id = EbProbe::parse(request)?.id;
            let (address, data) = (self.address, self.data);
            answer.extend(EbProbe { response: true, address, data, id }.emit());
        }
        self.counts.probes += 1;
        Ok(())
    }

    #[inline]
    fn operation(
        &mut self,
        session: &mut BusSession,
        layout: EbLayout,
        space: Space,
        address: u64,
        lanes: Result<Lanes, WireError>,
        word: Option<u64>,
    ) -> u64 {
        let Ok(lanes) = lanes else {
            // Byte enables that are no aligned run: nothing is executed.
            if space == Space::Bus {
                session.errors.shift_in(true);
            }
            return 0;
        };
        let access = self.bus.execute(session, layout, space, address, lanes, word);
        if self.log && space == Space::Bus {
            self.accesses.push(access);
        }
        access.value
    }
}

struct Execution<'a> {
    slave: &'a mut Slave,
    now_ns: u64,
    layout: EbLayout,
    session: &'a mut BusSession,
    answer: &'a mut Vec<u8>,
    is_open: bool,
    is_answered: bool,
}

impl<'a> Execution<'a> {
    fn new(
        slave: &'a mut Slave,
        now_ns: u64,
        layout: EbLayout,
        session: &'a mut BusSession,
        answer: &'a mut Vec<u8>,
    ) -> Execution<'a> {
        Execution { slave, now_ns, layout, session, answer, is_open: false, is_answered: false }
    }

    fn message(&mut self, header: EbHeader, records: &[u8]) -> Result<(), WireError> {
        let begin = self.answer.len();
        put_header(header, self.layout, self.answer);
        let after_header = self.answer.len();
        let rest = self.records(records);
        if self.answer.len() == after_header || header.no_reads {
            self.answer.truncate(begin);
        }
        if rest.len() < records.len() || records.is_empty() {
            return Ok(());
        }
        Err(WireError::Truncated { wanted: 4, found: rest.len() })
    }

    fn records<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let mut rest = bytes;
        while let Ok((record, after)) = EbRecord::split(self.layout, rest) {
            self.record(&record);
            rest = after;
        }
        rest
    }

    #[inline(always)]
    fn record(&mut self, record: &EbRecord<'_>) {
        if !self.is_open {
            (self.is_open, self.is_answered) = (true, false);
            self.slave.bus.begin_cycle(self.now_ns);
            self.slave.counts.cycles += u64::from(!record.header.is_empty());
        }
        let answered = self.operations(record);
        self.is_answered |= answered;
        if record.header.flags.has(RecordFlags::CYC) {
            if !answered && self.is_answered {
                let end = RecordHeader { flags: RecordFlags::CYC, ..RecordHeader::default() };
                put_head(end.emit(), self.layout, self.answer);
            }
            self.is_open = false;
        }
    }

    fn litex(&mut self, record: &EbRecord<'_>) {
        self.slave.bus.begin_cycle(self.now_ns);
        self.slave.counts.cycles += 1;
        self.slave.counts.litex += 1;
        let begin = self.answer.len();
        self.answer.extend([0x4e, 0x6f, 0x10, 0x44, 0, 0, 0, 0]);
        if !self.operations(record) {
            self.answer.truncate(begin);
        }
    }

    #[inline(always)]
    fn operations(&mut self, record: &EbRecord<'_>) -> bool {
        let header = record.header;
        self.slave.counts.operations += u64::from(header.reads) + u64::from(header.writes);
        let lanes = Lanes::of_select(header.select, self.layout.data);
        self.writes(record, lanes);
        self.reads(record, lanes)
    }

    #[inline]
    fn writes(&mut self, record: &EbRecord<'_>, lanes: Result<Lanes, WireError>) {
        let Some((base, values)) = record.write_block() else {
            return;
        };
        let (flags, layout) = (record.header.flags, self.layout);
        let step = if flags.has(RecordFlags::WFF) { 0 } else { layout.data.bytes() as u64 };
        let space = space(flags, RecordFlags::WCA);
        let mut address = base & layout.address.mask();
        for value in values {
            self.slave.operation(self.session, layout, space, address, lanes, Some(value));
            address = address.wrapping_add(step) & layout.address.mask();
        }
    }

    #[inline]
    fn reads(&mut self, record: &EbRecord<'_>, lanes: Result<Lanes, WireError>) -> bool {
        let Some((back, addresses)) = record.read_block() else {
            return false;
        };
        let Execution { slave, layout, session, answer, .. } = self;
        let layout = *layout;
        put_head(answer_header(record.header).emit(), layout, answer);
        let (size, mask) = (layout.value_bytes(), layout.address.mask());
        put_value(answer, size, back);
        let space = space(record.header.flags, RecordFlags::RCA);
        let mut read = |address: u64, lanes, size| {
            let value = slave.operation(session, layout, space, address & mask, lanes, None);
            put_value(answer, size, value);
        };
        // The usual case has a loop of its own: whole words of 32 bits.
        match (lanes, size) {
            (Ok(lanes), 4) => addresses.for_each(|address| read(address, Ok(lanes), 4)),
            _ => addresses.for_each(|address| read(address, lanes, size)),
        }
        true
    }
}

fn space(flags: RecordFlags, config: RecordFlags) -> Space {
    if flags.has(config) { Space::Config } else { Space::Bus }
}

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

fn put_header(request: EbHeader, layout: EbLayout, out: &mut Vec<u8>) {
    let header =
        EbHeader { no_reads: true, probe_response: false, probe_request: false, ..request };
    put_head(header.emit(), layout, out);
}

fn put_head(head: [u8; 4], layout: EbLayout, out: &mut Vec<u8>) {
    out.extend(head);
    out.resize(out.len() + layout.header_bytes() - 4, 0);
}

#[inline(always)]
fn put_value(out: &mut Vec<u8>, size: usize, value: u64) {
    out.extend_from_slice(&value.to_be_bytes()[8 - size..]);
}

#[cfg(test)]
mod tests;
