//! TCP and character devices.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use daqmeter_sys::{net, tty};

use super::{Arrived, EbTransport, Framing, connect_tcp};
use crate::EbError;
use crate::address::{HostPort, IpFamily};

#[derive(Default)]
struct Backlog(Vec<u8>);

impl Backlog {
    fn push(
        &mut self,
        bytes: &[u8],
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut fresh = bytes;
        while !self.0.is_empty() || !fresh.is_empty() {
            let part = if self.0.is_empty() { fresh } else { &self.0 };
            match write(part) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
                Ok(taken) if self.0.is_empty() => fresh = &fresh[taken..],
                Ok(taken) => drop(self.0.drain(..taken)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.0.extend_from_slice(fresh);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn broken(error: io::Error) -> EbError {
    match error.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted => EbError::Closed,
        _ => EbError::io("the connection broke")(error),
    }
}

fn arrived(read: io::Result<usize>) -> Result<Option<Arrived>, EbError> {
    match read {
        Ok(0) => Err(EbError::Closed),
        Ok(bytes) => Ok(Some(Arrived { bytes, segment_bytes: bytes })),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
                Ok(None)
            }
            _ => Err(broken(error)),
        },
    }
}

/// Waits until a full stream can be written or read, writes waiting bytes, and returns true to
/// read. Serving both directions prevents that two full pipes wait for each other.
fn pump(
    fd: BorrowedFd<'_>,
    backlog: &mut Backlog,
    wait: Duration,
    write: impl FnMut(&[u8]) -> io::Result<usize>,
) -> Result<bool, EbError> {
    let wanted = net::Readiness { read: true, write: !backlog.0.is_empty() };
    let ready = net::wait_ready(fd, wanted, Some(wait)).map_err(EbError::io("cannot wait"))?;
    if ready.write {
        backlog.push(&[], write).map_err(broken)?;
    }
    Ok(ready.read)
}

pub(super) struct Tcp {
    stream: TcpStream,
    backlog: Backlog,
    wait: Option<Duration>,
}

const TCP_WINDOW_BYTES: usize = 128 * 1024;

impl Tcp {
    pub(super) fn connect(
        host: &HostPort,
        family: IpFamily,
        timeout: Duration,
    ) -> Result<Tcp, EbError> {
        let stream = connect_tcp(host, family, timeout)?;
        Ok(Tcp { stream, backlog: Backlog::default(), wait: None })
    }
}

impl EbTransport for Tcp {
    fn framing(&self) -> Framing {
        Framing::Stream
    }

    fn window_bytes(&self) -> usize {
        TCP_WINDOW_BYTES
    }

    fn send(&mut self, bytes: &[u8], _lengths: &[usize]) -> Result<(), EbError> {
        let stream = self.stream.as_fd();
        self.backlog.push(bytes, |part| net::send_now(stream, part)).map_err(broken)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<Arrived>, EbError> {
        let fd = self.stream.as_fd();
        if !self.backlog.0.is_empty() || wait.is_zero() {
            if !pump(fd, &mut self.backlog, wait, |part| net::send_now(fd, part))? {
                return Ok(None);
            }
        } else if self.wait.is_none_or(|set| set > wait || set < wait / 2) {
            self.stream
                .set_read_timeout(Some(wait))
                .map_err(EbError::io("cannot set a timeout"))?;
            self.wait = Some(wait);
        }
        arrived(self.stream.read(buffer))
    }
}

pub(super) struct Dev {
    file: File,
    backlog: Backlog,
}

/// Most bytes of requests on their way: a pseudo-terminal holds 4096 bytes in each direction.
const DEV_WINDOW_BYTES: usize = 2048;

impl Dev {
    pub(super) fn open(name: &str) -> Result<Dev, EbError> {
        let file = open_device(name)?;
        discard(&file, name)?;
        Ok(Dev { file, backlog: Backlog::default() })
    }
}

pub(crate) fn open_device(name: &str) -> Result<File, EbError> {
    let path = format!("/dev/{name}");
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = file.map_err(EbError::io(format!("cannot open {path}")))?;
    tty::make_raw(file.as_fd())?;
    tty::set_nonblocking(file.as_fd())?;
    Ok(file)
}

/// Silence after which a device owes nothing to the client before. The C library waits as long
/// (`eb_posix_stream_connect`: 10 ms).
const QUIET: Duration = Duration::from_millis(10);

const MAX_STALE_BYTES: usize = 1 << 20;

/// Drops late answers to an earlier client, which this client would take for its own.
fn discard(mut file: &File, name: &str) -> Result<(), EbError> {
    let wanted = net::Readiness { read: true, write: false };
    let mut buffer = [0; 4096];
    let mut stale_bytes = 0;
    while stale_bytes < MAX_STALE_BYTES {
        let ready = net::wait_ready(file.as_fd(), wanted, Some(QUIET));
        if !ready.map_err(EbError::io("cannot wait"))?.read {
            return Ok(());
        }
        match arrived(file.read(&mut buffer))? {
            Some(arrived) => stale_bytes += arrived.bytes,
            None => return Ok(()),
        }
    }
    Err(EbError::Unsupported(format!(
        "/dev/{name} sends without being asked: it is no Etherbone device"
    )))
}

impl EbTransport for Dev {
    fn framing(&self) -> Framing {
        Framing::Stream
    }

    fn window_bytes(&self) -> usize {
        DEV_WINDOW_BYTES
    }

    fn send(&mut self, bytes: &[u8], _lengths: &[usize]) -> Result<(), EbError> {
        let mut file = &self.file;
        self.backlog.push(bytes, |part| file.write(part)).map_err(broken)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<Arrived>, EbError> {
        let mut file = &self.file;
        if !pump(self.file.as_fd(), &mut self.backlog, wait, |part| file.write(part))? {
            return Ok(None);
        }
        // A pseudo-terminal with its other end closed gives EIO.
        match file.read(buffer) {
            Err(error) if error.raw_os_error() == Some(5) => Err(EbError::Closed),
            read => arrived(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(pty: &tty::Pty) -> Dev {
        Dev::open(pty.path.trim_start_matches("/dev/")).unwrap()
    }

    #[test]
    fn answers_to_the_client_before_are_discarded() {
        let pty = tty::open_pty().unwrap();
        (&pty.master).write_all(&[0x5a; 1000]).unwrap();
        let mut dev = opened(&pty);
        (&pty.master).write_all(b"fresh").unwrap();
        let mut buffer = [0; 4096];
        let arrived = dev.receive(&mut buffer, Duration::from_secs(5)).unwrap();
        assert_eq!(&buffer[..arrived.unwrap().bytes], b"fresh");
    }

    #[test]
    fn a_device_that_never_stops_is_refused() {
        let refused = Dev::open("zero").err().unwrap().to_string();
        assert!(refused.contains("/dev/zero sends without"), "{refused}");
    }

    #[test]
    fn what_a_full_stream_does_not_take_waits_in_order() {
        let mut backlog = Backlog::default();
        let mut taken = Vec::new();
        let mut room = 3;
        let mut write = |part: &[u8]| {
            let now = part.len().min(room);
            room -= now;
            taken.extend_from_slice(&part[..now]);
            if now == 0 { Err(io::Error::from(io::ErrorKind::WouldBlock)) } else { Ok(now) }
        };
        backlog.push(&[1, 2, 3, 4], &mut write).unwrap();
        backlog.push(&[5], &mut write).unwrap();
        assert_eq!(backlog.0, [4, 5]);
        let mut write = |part: &[u8]| {
            taken.extend_from_slice(part);
            Ok(part.len())
        };
        backlog.push(&[6], &mut write).unwrap();
        assert_eq!(taken, [1, 2, 3, 4, 5, 6]);
    }
}
