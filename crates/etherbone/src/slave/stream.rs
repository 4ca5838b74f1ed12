//! Parser of a connection's bytes: bare records after a probe, messages with headers, or LiteX.

use daqmeter_wire::etherbone::message::{MAGIC, PROBE_BYTES};
use daqmeter_wire::etherbone::{EbHeader, EbLayout, EbRecord, RecordFlags, WireError, litex};

use super::{Execution, Slave, put_header};
use crate::EbError;
use crate::bus::BusSession;

/// Longest cycle: the bytes of an unfinished cycle are kept in memory.
pub const MAX_CYCLE_BYTES: usize = 16 << 20;
const KEPT_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StreamFraming {
    #[default]
    Unknown,
    Bare(EbLayout),
    Framed(EbLayout, EbHeader),
}

#[derive(Debug, Default)]
pub struct Stream {
    buffer: Vec<u8>,
    /// Bytes of the first cycle's records that are already parsed.
    searched: usize,
    framing: StreamFraming,
    session: BusSession,
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
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(bytes);
        let (mut at, mut header_sent) = (0, false);
        let result = loop {
            match self.take(slave, now_ns, &buffer[at..], &mut header_sent, answer) {
                Ok(0) => break Ok(()),
                Ok(bytes) => at += bytes,
                Err(fault) => break Err(fault),
            }
        };
        buffer.drain(..at);
        if buffer.is_empty() {
            buffer.shrink_to(KEPT_BYTES);
        }
        self.buffer = buffer;
        slave.counts.refused += u64::from(result.is_err());
        let ready_ns = slave.bus.ready_ns(now_ns, &self.session);
        self.session.is_silent = false;
        result.map(|()| ready_ns)
    }

    /// Executes what these bytes begin with. Returns its length, or 0 if a part is missing.
    fn take(
        &mut self,
        slave: &mut Slave,
        now_ns: u64,
        rest: &[u8],
        header_sent: &mut bool,
        answer: &mut Vec<u8>,
    ) -> Result<usize, EbError> {
        if self.searched == 0 {
            if rest.len() < 4 {
                return Ok(0);
            }
            if rest[..2] == MAGIC.to_be_bytes() || self.framing == StreamFraming::Unknown {
                *header_sent = false;
                return self.take_header(slave, now_ns, rest, answer);
            }
        }
        let (StreamFraming::Bare(layout) | StreamFraming::Framed(layout, _)) = self.framing else {
            return Ok(0);
        };
        let Some(bytes) = self.cycle_bytes(layout, rest)? else { return Ok(0) };
        let before = answer.len();
        if let (StreamFraming::Framed(_, header), false) = (self.framing, *header_sent) {
            put_header(header, layout, answer);
        }
        let after_header = answer.len();
        Execution::new(slave, now_ns, layout, &mut self.session, answer).records(&rest[..bytes]);
        if answer.len() == after_header {
            answer.truncate(before);
        } else {
            *header_sent = true;
        }
        Ok(bytes)
    }

    /// Returns the bytes of the first cycle, once all of it is there.
    fn cycle_bytes(&mut self, layout: EbLayout, rest: &[u8]) -> Result<Option<usize>, EbError> {
        while let Ok((record, after)) = EbRecord::split(layout, &rest[self.searched..]) {
            self.searched = rest.len() - after.len();
            let is_padding = record.header.is_empty() && self.searched == layout.header_bytes();
            if record.header.flags.has(RecordFlags::CYC) || is_padding {
                return Ok(Some(std::mem::take(&mut self.searched)));
            }
        }
        if rest.len() <= MAX_CYCLE_BYTES {
            return Ok(None);
        }
        let why = format!("a cycle of more than {MAX_CYCLE_BYTES} bytes: divide it");
        Err(EbError::Other(why))
    }

    /// Answers a probe, executes a packet of LiteX, or takes the header of a message.
    fn take_header(
        &mut self,
        slave: &mut Slave,
        now_ns: u64,
        rest: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<usize, EbError> {
        let header = EbHeader::parse(rest)?;
        if header.probe_response {
            return Err(WireError::ProbeLength(rest.len()).into());
        }
        if header.probe_request {
            let Some(probe) = rest.get(..PROBE_BYTES) else { return Ok(0) };
            slave.probe(probe, answer)?;
            self.framing = StreamFraming::Bare(slave.layout_of(header)?);
            return Ok(PROBE_BYTES);
        }
        match litex::recognise(rest) {
            None => return Ok(0),
            Some(true) => {
                let (record, after) = match litex::split(rest) {
                    Err(WireError::Truncated { .. }) => return Ok(0),
                    split => split?,
                };
                let layout = EbLayout::L32;
                Execution::new(slave, now_ns, layout, &mut self.session, answer).litex(&record);
                self.framing = StreamFraming::Framed(layout, EbHeader::of(layout, false));
                return Ok(rest.len() - after.len());
            }
            Some(false) => {}
        }
        let layout = slave.layout_of(header)?;
        if rest.len() < layout.header_bytes() {
            return Ok(0);
        }
        self.framing = StreamFraming::Framed(layout, header);
        Ok(layout.header_bytes())
    }
}
