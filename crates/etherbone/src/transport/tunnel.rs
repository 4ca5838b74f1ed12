//! UDP behind a proxy on TCP. The client sends "host[/port]" and a zero first. Each datagram
//! follows its length in 16 bits, both ways.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use daqmeter_sys::net;
use daqmeter_wire::etherbone::DATAGRAM_BYTES;

use super::{Arrived, EbTransport, Framing};
use crate::EbError;
use crate::address::{HostPort, IpFamily};

pub(crate) fn connect_tcp(
    host: &HostPort,
    family: IpFamily,
    timeout: Duration,
) -> Result<TcpStream, EbError> {
    let mut last = None;
    for to in host.resolve(family)? {
        match TcpStream::connect_timeout(&to, timeout) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(EbError::io("cannot set TCP_NODELAY"))?;
                return Ok(stream);
            }
            Err(error) => last = Some((to, error)),
        }
    }
    let (to, error) = last.expect("resolving gives at least one address");
    Err(EbError::io(format!("cannot connect to {to}"))(error))
}

pub(super) struct Tunnel {
    stream: TcpStream,
    pending: Vec<u8>,
    frames: Vec<u8>,
}

impl Tunnel {
    pub(super) fn connect(
        proxy: &HostPort,
        family: IpFamily,
        target: &str,
        timeout: Duration,
    ) -> Result<Tunnel, EbError> {
        let mut stream = connect_tcp(proxy, family, timeout)?;
        let hello: Vec<u8> = target.bytes().chain([0]).collect();
        stream.write_all(&hello).map_err(EbError::io("cannot talk to the tunnel"))?;
        Ok(Tunnel { stream, pending: Vec::new(), frames: Vec::new() })
    }

    fn take(&mut self, buffer: &mut [u8]) -> Option<Arrived> {
        let bytes = read_frame(&self.pending)?;
        let shown = bytes.min(buffer.len());
        buffer[..shown].copy_from_slice(&self.pending[2..2 + shown]);
        self.pending.drain(..2 + bytes);
        Some(Arrived { bytes: shown, segment_bytes: shown.max(1) })
    }
}

pub(crate) fn read_frame(pending: &[u8]) -> Option<usize> {
    let bytes = usize::from(u16::from_be_bytes([*pending.first()?, *pending.get(1)?]));
    (pending.len() >= 2 + bytes).then_some(bytes)
}

impl EbTransport for Tunnel {
    fn framing(&self) -> Framing {
        Framing::Datagram { max_bytes: DATAGRAM_BYTES }
    }

    fn window_bytes(&self) -> usize {
        // The proxy's UDP side sends one datagram after the other.
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
        self.stream.write_all(&self.frames).map_err(EbError::io("the tunnel broke"))
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<Arrived>, EbError> {
        if let Some(arrived) = self.take(buffer) {
            return Ok(Some(arrived));
        }
        let wanted = net::Readiness { read: true, write: false };
        if !net::wait_ready(self.stream.as_fd(), wanted, Some(wait))
            .map_err(EbError::io("cannot wait"))?
            .read
        {
            return Ok(None);
        }
        let mut part = [0; 16 * 1024];
        match self.stream.read(&mut part) {
            Ok(0) => Err(EbError::Closed),
            Ok(bytes) => {
                self.pending.extend_from_slice(&part[..bytes]);
                Ok(self.take(buffer))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(EbError::io("the tunnel broke")(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole_or_not_there() {
        assert_eq!(read_frame(&[]), None);
        assert_eq!(read_frame(&[0]), None);
        assert_eq!(read_frame(&[0, 2, 9]), None);
        assert_eq!(read_frame(&[0, 2, 9, 9, 0]), Some(2));
        assert_eq!(read_frame(&[0, 0]), Some(0));
    }
}
