//! Streams of bytes: TCP and character devices.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use daqmeter_sys::{net, tty};

use super::{Arrived, EbTransport, Framing, ReadTimeout};
use crate::EbError;
use crate::address::HostPort;

/// A stream whose writes never block: bytes that it does not take at once wait here.
pub(crate) struct ByteStream {
    pub(crate) file: File,
    pub(crate) is_socket: bool,
    pub(crate) backlog: Vec<u8>,
    timeout: ReadTimeout,
}

impl ByteStream {
    pub(crate) fn tcp(stream: TcpStream) -> Result<ByteStream, EbError> {
        let set = stream.set_nodelay(true).and_then(|()| net::keepalive(&stream));
        set.map_err(EbError::io("cannot set the options of a connection"))?;
        Ok(ByteStream::over(OwnedFd::from(stream).into(), true))
    }

    pub(crate) fn connect(host: &HostPort, timeout: Duration) -> Result<ByteStream, EbError> {
        let connect = |to| TcpStream::connect_timeout(&to, timeout);
        ByteStream::tcp(host.first("connect to", connect)?)
    }

    pub(crate) fn device(name: &str) -> Result<ByteStream, EbError> {
        let path = format!("/dev/{name}");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(EbError::io(format!("cannot open {path}")))?;
        tty::make_raw(file.as_fd())?;
        tty::set_nonblocking(file.as_fd())?;
        Ok(ByteStream::over(file, false))
    }

    pub(crate) fn over(file: File, is_socket: bool) -> ByteStream {
        ByteStream { file, is_socket, backlog: Vec::new(), timeout: ReadTimeout::default() }
    }

    /// Drops late answers to an earlier client, which this client would take for its own.
    pub(super) fn without_stale(mut self, name: &str) -> Result<ByteStream, EbError> {
        let (mut buffer, mut stale_bytes) = ([0; 4096], 0);
        while stale_bytes < MAX_STALE_BYTES {
            match self.receive(&mut buffer, QUIET)? {
                Some(arrived) => stale_bytes += arrived.bytes,
                None => return Ok(self),
            }
        }
        Err(EbError::Other(format!(
            "/dev/{name} sends without being asked: it is no Etherbone device"
        )))
    }

    /// Writes waiting bytes and then these, as far as the stream takes them.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), EbError> {
        let mut waiting = std::mem::take(&mut self.backlog);
        let whole = if waiting.is_empty() {
            bytes
        } else {
            waiting.extend_from_slice(bytes);
            &waiting
        };
        let mut taken = 0;
        while taken < whole.len() {
            let part = &whole[taken..];
            let written = match self.is_socket {
                true => net::send_now(self.file.as_fd(), part),
                false => (&self.file).write(part),
            };
            match written {
                Ok(0) => return Err(EbError::Closed),
                Ok(now) => taken += now,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
        self.backlog = whole[taken..].to_vec();
        Ok(())
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<Option<Arrived>, EbError> {
        match (&self.file).read(buffer) {
            Ok(0) => Err(EbError::Closed),
            Ok(bytes) => Ok(Some(Arrived { bytes, segment_bytes: bytes })),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(broken(error)),
            },
        }
    }
}

fn broken(error: io::Error) -> EbError {
    match error.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted => EbError::Closed,
        // Not a receive timeout, which is EAGAIN (socket(7)).
        io::ErrorKind::TimedOut => EbError::Other(format!(
            "the other side did not answer for {:?}: look at its host and the cable",
            net::PEER_SILENT
        )),
        // A pseudo-terminal with its other end closed gives EIO.
        _ if error.raw_os_error() == Some(5) => EbError::Closed,
        _ => EbError::io("the connection broke")(error),
    }
}

/// Silence after which a device owes nothing to the client before. The C library waits as long
/// (`eb_posix_stream_connect`: 10 ms).
const QUIET: Duration = Duration::from_millis(10);

const MAX_STALE_BYTES: usize = 1 << 20;

impl EbTransport for ByteStream {
    fn framing(&self) -> Framing {
        Framing::Stream
    }

    /// A pseudo-terminal holds 4096 bytes in each direction.
    fn window_bytes(&self) -> usize {
        if self.is_socket { 128 * 1024 } else { 2048 }
    }

    fn send(&mut self, bytes: &[u8], _lengths: &[usize]) -> Result<(), EbError> {
        self.push(bytes)
    }

    /// Writes waiting bytes, too, so that two full pipes do not wait for each other.
    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<Arrived>, EbError> {
        if self.is_socket && self.backlog.is_empty() && !wait.is_zero() {
            self.timeout.set(&self.file, wait)?;
            return self.read(buffer);
        }
        let wanted = net::Readiness { read: true, write: !self.backlog.is_empty() };
        let ready = net::wait_ready(self.file.as_fd(), wanted, Some(wait));
        let ready = ready.map_err(EbError::io("cannot wait"))?;
        if ready.write {
            self.push(&[])?;
        }
        if ready.read { self.read(buffer) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_the_client_before_are_discarded_and_a_device_that_never_stops_is_refused() {
        let opened = |name: &str| ByteStream::device(name).and_then(|it| it.without_stale(name));
        let pty = tty::open_pty().unwrap();
        (&pty.master).write_all(&[0x5a; 1000]).unwrap();
        let mut dev = opened(pty.path.trim_start_matches("/dev/")).unwrap();
        (&pty.master).write_all(b"fresh").unwrap();
        let mut buffer = [0; 4096];
        let arrived = dev.receive(&mut buffer, Duration::from_secs(5)).unwrap();
        assert_eq!(&buffer[..arrived.unwrap().bytes], b"fresh");
        let refused = opened("zero").err().unwrap().to_string();
        assert!(refused.contains("/dev/zero sends without"), "{refused}");
    }

    #[test]
    fn what_a_full_stream_does_not_take_waits_in_order() {
        let pty = tty::open_pty().unwrap();
        let mut dev = ByteStream::device(pty.path.trim_start_matches("/dev/")).unwrap();
        let sent: Vec<u8> = (0..=250).cycle().take(20_000).collect();
        sent.chunks(3000).for_each(|part| dev.push(part).unwrap());
        assert!(!dev.backlog.is_empty());
        let (mut found, mut buffer) = (Vec::new(), [0; 4096]);
        while found.len() < sent.len() {
            let read = (&pty.master).read(&mut buffer).unwrap_or(0);
            found.extend_from_slice(&buffer[..read]);
            dev.push(&[]).unwrap();
        }
        assert_eq!(found, sent);
    }
}
