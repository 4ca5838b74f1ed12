//! UDP behind a proxy on TCP. The client sends "host[/port]" and a zero first. Each datagram
//! follows its length in 16 bits, both ways.

use std::time::Duration;

use super::{Arrived, ByteStream, EbTransport, Framing};
use crate::EbError;
use crate::address::HostPort;

pub(super) struct Tunnel {
    stream: ByteStream,
    pending: Vec<u8>,
    frames: Vec<u8>,
}

impl Tunnel {
    pub(super) fn connect(
        proxy: &HostPort,
        target: &str,
        timeout: Duration,
    ) -> Result<Tunnel, EbError> {
        let mut stream = ByteStream::connect(proxy, timeout)?;
        stream.push(&[target.as_bytes(), &[0]].concat())?;
        Ok(Tunnel { stream, pending: Vec::new(), frames: Vec::new() })
    }

    fn take(&mut self, buffer: &mut [u8]) -> Option<Arrived> {
        let bytes = frame_bytes(&self.pending)?;
        let shown = bytes.min(buffer.len());
        buffer[..shown].copy_from_slice(&self.pending[2..2 + shown]);
        self.pending.drain(..2 + bytes);
        Some(Arrived { bytes: shown, segment_bytes: shown.max(1) })
    }
}

/// Returns the length of the first frame, once all of it is there.
pub(crate) fn frame_bytes(pending: &[u8]) -> Option<usize> {
    let bytes = usize::from(u16::from_be_bytes(*pending.first_chunk()?));
    (pending.len() >= 2 + bytes).then_some(bytes)
}

impl EbTransport for Tunnel {
    fn framing(&self) -> Framing {
        Framing::Datagram
    }

    /// The proxy's UDP side sends one datagram after the other.
    fn window_bytes(&self) -> usize {
        32 * 1024
    }

    fn send(&mut self, bytes: &[u8], lengths: &[usize]) -> Result<(), EbError> {
        self.frames.clear();
        let mut rest = bytes;
        for &length in lengths {
            let (datagram, later) = rest.split_at(length);
            let prefix = u16::try_from(length).expect("datagrams are at most 1472 bytes");
            self.frames.extend(prefix.to_be_bytes());
            self.frames.extend_from_slice(datagram);
            rest = later;
        }
        self.stream.push(&self.frames)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<Arrived>, EbError> {
        let mut part = [0; 16 * 1024];
        if frame_bytes(&self.pending).is_none()
            && let Some(arrived) = self.stream.receive(&mut part, wait)?
        {
            self.pending.extend_from_slice(&part[..arrived.bytes]);
        }
        Ok(self.take(buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole_or_not_there() {
        for (pending, bytes) in [
            (&[][..], None),
            (&[0], None),
            (&[0, 2, 9], None),
            (&[0, 2, 9, 9, 0], Some(2)),
            (&[0, 0], Some(0)),
        ] {
            assert_eq!(frame_bytes(pending), bytes, "{pending:?}");
        }
    }
}
