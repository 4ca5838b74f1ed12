//! Cycles out of a stream of bytes: each is executed when all of it is there.

use std::ops::Range;

use daqmeter_wire::etherbone::message::PROBE_BYTES;
use daqmeter_wire::etherbone::{
    EbHeader, EbLayout, EbProbe, EbRecord, RecordFlags, Widths, WireError, litex,
};

use super::execute::{Cycle, Slave, put_header};
use crate::bus::BusSession;

/// Most bytes of a cycle on a stream, which are kept until it ends: enough for 10^6 reads with their status, at any widths.
pub const MAX_CYCLE_BYTES: usize = 16 << 20;

/// Room that a connection keeps between cycles.
const KEPT_BYTES: usize = 64 << 10;

/// Why a stream was ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// What came is not Etherbone.
    #[error("not Etherbone: {0}")]
    Wire(WireError),
    /// A cycle that does not end.
    #[error("a cycle of more than {MAX_CYCLE_BYTES} bytes: divide it")]
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

/// How the other end of a stream frames what it sends; told at each record boundary, for `4E 6F` can open no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// Nothing came yet.
    Unknown,
    /// A probe came, then bare records for ever.
    Bare(EbLayout),
    /// A message header before every flush: the last one.
    Framed(EbLayout, EbHeader),
}

/// One stream connection: what came and was not executed yet.
#[derive(Debug)]
pub struct Stream {
    buffer: Vec<u8>,
    /// How far the buffer was searched for the end of a cycle.
    searched: usize,
    framing: Framing,
    session: BusSession,
}

impl Default for Stream {
    fn default() -> Self {
        Stream {
            buffer: Vec::new(),
            searched: 0,
            framing: Framing::Unknown,
            session: BusSession::default(),
        }
    }
}

/// What the bytes at a boundary are.
enum Next {
    /// Too few to tell, or the cycle has not ended.
    Incomplete,
    /// A probe.
    Probe,
    /// A message header, and the widths that it stands for.
    Header(EbLayout, EbHeader),
    /// A whole packet of the LiteX dialect, of that many bytes.
    Litex(usize),
    /// A whole cycle that ends there.
    Cycle(EbLayout, usize),
}

impl Stream {
    /// True when bytes wait for the rest of their cycle: the asker owes something.
    pub fn is_waiting(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Bytes that wait for the rest of their cycle.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.buffer.len()
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
        if self.buffer.is_empty() {
            // A long cycle is rare: its room is not kept.
            self.buffer.shrink_to(KEPT_BYTES);
        }
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
            Framing::Bare(layout) | Framing::Framed(layout, _) => layout,
            Framing::Unknown => return Ok(Next::Incomplete),
        };
        let mut end = self.searched.max(at);
        loop {
            match EbRecord::split(layout, &self.buffer[end..]) {
                Ok((record, after)) => {
                    end = self.buffer.len() - after.len();
                    self.searched = end;
                    // Padding between cycles is a cycle of its own: nothing to wait for.
                    if record.header.flags.has(RecordFlags::CYC)
                        || record.header.is_empty() && end - at == layout.header_bytes()
                    {
                        return Ok(Next::Cycle(layout, end - at));
                    }
                }
                Err(_) if self.buffer.len() - at > MAX_CYCLE_BYTES => {
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
            Next::Probe => self.probe(slave, at, answer),
            Next::Header(layout, header) => {
                self.framing = Framing::Framed(layout, header);
                *header_sent = false;
                Ok(layout.header_bytes())
            }
            Next::Litex(bytes) => {
                let (record, _) = litex::split(&self.buffer[at..at + bytes])?;
                slave.litex(now_ns, &record, answer, &mut self.session);
                self.framing = Framing::Framed(EbLayout::L32, EbHeader::of(EbLayout::L32, false));
                Ok(bytes)
            }
            Next::Cycle(layout, bytes) => {
                let before = answer.len();
                if let (Framing::Framed(_, header), false) = (self.framing, *header_sent) {
                    put_header(header, layout, answer);
                }
                let after_header = answer.len();
                self.cycle(slave, now_ns, layout, at..at + bytes, answer);
                if answer.len() == after_header {
                    answer.truncate(before);
                } else {
                    *header_sent = true;
                }
                Ok(bytes)
            }
        }
    }

    fn probe(
        &mut self,
        slave: &mut Slave,
        at: usize,
        answer: &mut Vec<u8>,
    ) -> Result<usize, StreamFault> {
        let bytes = &self.buffer[at..at + PROBE_BYTES];
        let probe = EbProbe::parse(bytes)?;
        let (address, data) =
            (slave.address.and(probe.address).widest(), slave.data.and(probe.data).widest());
        // Answered even without a common width, so that the asker can say so; then dropped.
        slave.probe(bytes, answer)?;
        let (Some(address), Some(data)) = (address, data) else {
            return Err(StreamFault::Width { address: probe.address, data: probe.data });
        };
        self.framing = Framing::Bare(EbLayout { address, data });
        Ok(PROBE_BYTES)
    }

    /// Executes the records of a whole cycle.
    fn cycle(
        &mut self,
        slave: &mut Slave,
        now_ns: u64,
        layout: EbLayout,
        bytes: Range<usize>,
        answer: &mut Vec<u8>,
    ) {
        let (mut cycle, mut rest) = (Cycle::default(), &self.buffer[bytes]);
        while let Ok((record, after)) = EbRecord::split(layout, rest) {
            let session = &mut self.session;
            slave.record(now_ns, layout, &record, &mut cycle, session, answer);
            rest = after;
        }
    }
}

/// What a message header on a stream announces.
fn header(slave: &Slave, rest: &[u8]) -> Result<Next, StreamFault> {
    let header = EbHeader::parse(rest)?;
    if header.probe_response {
        return Err(WireError::ProbeLength(rest.len()).into());
    }
    if header.probe_request {
        return Ok(if rest.len() < PROBE_BYTES { Next::Incomplete } else { Next::Probe });
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
    let layout = slave
        .layout_of(&header)
        .ok_or(StreamFault::Width { address: header.address, data: header.data })?;
    Ok(if rest.len() < layout.header_bytes() {
        Next::Incomplete
    } else {
        Next::Header(layout, header)
    })
}
