//! UDP, in batches where the kernel takes them.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use daqmeter_sys::net;

use super::{Arrived, EbTransport, Framing, ReadTimeout};
use crate::address::HostPort;
use crate::{EbDialect, EbError};

/// A connected UDP socket: the kernel drops datagrams from elsewhere.
pub(super) struct Udp {
    socket: UdpSocket,
    timeout: ReadTimeout,
    batches: bool,
    to: SocketAddr,
}

impl Udp {
    pub(super) fn connect(host: &HostPort, dialect: EbDialect) -> Result<Udp, EbError> {
        host.first("send to", |to| {
            let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
            let bind = |port: u16| UdpSocket::bind((any, port));
            let socket = match dialect {
                // LiteEth answers to its own port.
                EbDialect::Litex => bind(to.port()).or_else(|_| bind(0))?,
                EbDialect::Gsi => bind(0)?,
            };
            socket.connect(to)?;
            net::enable_gro(socket.as_fd());
            Ok(Udp { socket, timeout: ReadTimeout::default(), batches: true, to })
        })
    }

    fn send_one(&self, bytes: &[u8]) -> io::Result<()> {
        // ICMP refused an earlier datagram: this one was not sent, so it is tried once more.
        match self.socket.send(bytes) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.socket.send(bytes).map(drop)
            }
            other => other.map(drop),
        }
    }

    fn send_batch(&mut self, bytes: &[u8], segment_bytes: usize) -> io::Result<()> {
        if self.batches && segment_bytes < bytes.len() {
            match net::send(self.socket.as_fd(), bytes, segment_bytes, None) {
                Ok(_) => return Ok(()),
                // EINVAL, EIO: this path (a tunnel, an old driver) takes no batches.
                Err(error) if matches!(error.raw_os_error(), Some(22 | 5)) => self.batches = false,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
        bytes.chunks(segment_bytes).try_for_each(|datagram| self.send_one(datagram))
    }
}

impl EbTransport for Udp {
    fn framing(&self) -> Framing {
        Framing::Datagram
    }

    fn send(&mut self, bytes: &[u8], lengths: &[usize]) -> Result<(), EbError> {
        let (mut rest, mut left) = (bytes, lengths);
        while let Some(&segment) = left.first() {
            let (count, batch_bytes) = batch(left);
            let (now, later) = rest.split_at(batch_bytes);
            self.send_batch(now, segment)
                .map_err(EbError::io(format!("cannot send to {}", self.to)))?;
            (rest, left) = (later, &left[count..]);
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<Arrived>, EbError> {
        let now = wait.is_zero();
        if !now {
            self.timeout.set(&self.socket, wait)?;
        }
        match net::receive(self.socket.as_fd(), buffer, !now) {
            Ok(received) => Ok(Some(Arrived {
                bytes: received.bytes,
                segment_bytes: received.segment_bytes.max(1),
            })),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Ok(None),
                io::ErrorKind::ConnectionRefused => {
                    let to = self.to;
                    Err(EbError::Other(format!("{to} refuses: nothing listens on that port")))
                }
                _ => Err(EbError::io(format!("cannot receive from {}", self.to))(error)),
            },
        }
    }
}

pub(crate) fn batch(lengths: &[usize]) -> (usize, usize) {
    let segment = lengths[0];
    let (mut count, mut bytes) = (0, 0);
    for &length in lengths.iter().take(net::MAX_SEGMENTS) {
        if length > segment || bytes + length > net::MAX_BATCH_BYTES {
            break;
        }
        count += 1;
        bytes += length;
        if length < segment {
            break;
        }
    }
    (count.max(1), bytes.max(segment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::IpFamily;

    #[test]
    fn equal_datagrams_make_a_batch_that_a_shorter_one_ends() {
        assert_eq!(batch(&[100, 100, 40, 100]), (3, 240));
        assert_eq!(batch(&[40, 100]), (1, 40));
        assert_eq!(batch(&[1472; 100]), (44, 44 * 1472));
        assert_eq!(batch(&[8; 100]), (64, 512));
    }

    fn connected(port: u16) -> Udp {
        let host = HostPort { family: IpFamily::Any, name: "127.0.0.1".to_owned(), port };
        Udp::connect(&host, EbDialect::Gsi).unwrap()
    }

    #[test]
    fn every_datagram_arrives_whatever_the_lengths() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut udp = connected(listener.local_addr().unwrap().port());
        let lengths = [300, 300, 20, 500, 10, 10, 10];
        udp.send(&vec![7; lengths.iter().sum()], &lengths).unwrap();
        let mut buffer = [0; 2000];
        let found: Vec<usize> =
            lengths.iter().map(|_| listener.recv(&mut buffer).unwrap()).collect();
        assert_eq!(found, lengths);
    }

    #[test]
    fn a_port_where_nothing_listens_refuses() {
        let unused = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut udp = connected(unused);
        udp.send(b"probe", &[5]).unwrap();
        let error = udp.receive(&mut [0; 64], Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("nothing listens"), "{error}");
    }
}
