//! Parser of a connection's bytes: bare records after a probe, messages with headers, or LiteX.

use daqmeter_wire::etherbone::message::PROBE_BYTES;
use daqmeter_wire::etherbone::{
    EbHeader, EbLayout, EbProbe, EbRecord, RecordFlags, Widths, WireError, litex,
};

use super::{Execution, Slave, put_header};
use crate::EbError;
use crate::bus::BusSession;

/// Longest cycle: the bytes of an unfinished cycle are kept in memory.
pub const MAX_CYCLE_BYTES: usize = 16 << 20;
const KEPT_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Framing {
    #[default]
    Unknown,
    Bare(EbLayout),
    Framed(EbLayout, EbHeader),
}

#[derive(Debug, Default)]
pub struct Stream {
    buffer: Vec<u8>,
    /// End of the records of the first cycle that are already parsed.
    searched: usize,
    framing: Framing,
    session: BusSession,
}

enum Next {
    Incomplete,
    Probe,
    Header(EbLayout, EbHeader),
    Litex(usize),
    Cycle(EbLayout, usize),
}

impl Stream {
    /// Bytes of a cycle that has not ended.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Executes the cycles that these bytes complete. Returns the time at which the answers are
    /// ready.
    ///
    /// # Errors
    /// When the bytes are no Etherbone, when a cycle never ends, or when no width is common: the
    /// stream must be ended.
    pub fn feed(
        &mut self,
        slave: &mut Slave,
        now_ns: u64,
        bytes: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<u64, EbError> {
        self.buffer.extend_from_slice(bytes);
        let (mut at, mut header_sent) = (0, false);
        let result = loop {
            let next = self.next(slave, at);
            match next
                .and_then(|next| self.execute(slave, now_ns, next, at, &mut header_sent, answer))
            {
                Ok(0) => break Ok(()),
                Ok(bytes) => at += bytes,
                Err(fault) => break Err(fault),
            }
            self.searched = at;
        };
        self.buffer.drain(..at);
        if self.buffer.is_empty() {
            self.buffer.shrink_to(KEPT_BYTES);
        }
        self.searched = self.searched.saturating_sub(at);
        slave.counts.refused += u64::from(result.is_err());
        let ready_ns = slave.bus.ready_ns(now_ns, &self.session);
        self.session.is_silent = false;
        result.map(|()| ready_ns)
    }

    fn next(&mut self, slave: &Slave, at: usize) -> Result<Next, EbError> {
        let rest = &self.buffer[at..];
        if self.searched <= at {
            if rest.len() < 4 {
                return Ok(Next::Incomplete);
            }
            if rest[..2] == [0x4e, 0x6f] || self.framing == Framing::Unknown {
                return header(slave, rest);
            }
        }
        let (Framing::Bare(layout) | Framing::Framed(layout, _)) = self.framing else {
            return Ok(Next::Incomplete);
        };
        let mut end = self.searched.max(at);
        loop {
            let Ok((record, after)) = EbRecord::split(layout, &self.buffer[end..]) else {
                let is_endless = self.buffer.len() - at > MAX_CYCLE_BYTES;
                return if is_endless { Err(endless()) } else { Ok(Next::Incomplete) };
            };
            end = self.buffer.len() - after.len();
            self.searched = end;
            let is_padding = record.header.is_empty() && end - at == layout.header_bytes();
            if record.header.flags.has(RecordFlags::CYC) || is_padding {
                return Ok(Next::Cycle(layout, end - at));
            }
        }
    }

    fn execute(
        &mut self,
        slave: &mut Slave,
        now_ns: u64,
        next: Next,
        at: usize,
        header_sent: &mut bool,
        answer: &mut Vec<u8>,
    ) -> Result<usize, EbError> {
        match next {
            Next::Incomplete => Ok(0),
            Next::Probe => {
                let bytes = &self.buffer[at..at + PROBE_BYTES];
                let EbProbe { address, data, .. } = EbProbe::parse(bytes)?;
                slave.probe(bytes, answer)?;
                let layout = slave.layout_of(address, data);
                self.framing = Framing::Bare(layout.ok_or_else(|| no_width(address, data))?);
                Ok(PROBE_BYTES)
            }
            Next::Header(layout, header) => {
                self.framing = Framing::Framed(layout, header);
                *header_sent = false;
                Ok(layout.header_bytes())
            }
            Next::Litex(bytes) => {
                let (record, _) = litex::split(&self.buffer[at..at + bytes])?;
                let layout = EbLayout::L32;
                Execution::new(slave, now_ns, layout, &mut self.session, answer).litex(&record);
                self.framing = Framing::Framed(layout, EbHeader::of(layout, false));
                Ok(bytes)
            }
            Next::Cycle(layout, bytes) => {
                let before = answer.len();
                if let (Framing::Framed(_, header), false) = (self.framing, *header_sent) {
                    put_header(header, layout, answer);
                }
                let after_header = answer.len();
                Execution::new(slave, now_ns, layout, &mut self.session, answer)
                    .records(&self.buffer[at..at + bytes]);
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

fn header(slave: &Slave, rest: &[u8]) -> Result<Next, EbError> {
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
    let (address, data) = (header.address, header.data);
    let layout = slave.layout_of(address, data).ok_or_else(|| no_width(address, data))?;
    let is_whole = rest.len() >= layout.header_bytes();
    Ok(if is_whole { Next::Header(layout, header) } else { Next::Incomplete })
}

fn no_width(address: Widths, data: Widths) -> EbError {
    EbError::Other(format!(
        "no width in common: the client offers addresses {address}, data {data}"
    ))
}

fn endless() -> EbError {
    EbError::Other(format!("a cycle of more than {MAX_CYCLE_BYTES} bytes: divide it"))
}
