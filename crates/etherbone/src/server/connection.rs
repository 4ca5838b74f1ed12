//! One stream client of the server.

use std::fs::File;
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, Interrupted, WouldBlock};
use std::io::{self, Read, Write};

use daqmeter_sys::net::Readiness;

use crate::slave::{Slave, Stream};

/// Unsent answers that stop the reading from a client.
const MAX_BACKLOG_BYTES: usize = 1 << 20;

/// Delayed answers that stop the reading from a client.
const MAX_DELAYED: usize = 64;

/// The reason why a connection ended; `None` if the client closed it.
pub(super) struct Ended(pub(super) Option<String>);

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Ended(Some(error.to_string()))
    }
}

pub(super) struct Connection {
    pub(super) io: File,
    pub(super) is_device: bool,
    pub(super) peer: String,
    stream: Stream,
    pub(super) counted_bytes: usize,
    backlog: Vec<u8>,
    pub(super) watched: Readiness,
    pub(super) banner_at_ns: Option<u64>,
    pub(super) owes_since_ns: Option<u64>,
    pub(super) delayed: usize,
    pub(super) last_due_ns: u64,
}

impl Connection {
    pub(super) fn new(io: File, peer: String, is_device: bool) -> Connection {
        Connection {
            io,
            is_device,
            peer,
            stream: Stream::default(),
            counted_bytes: 0,
            backlog: Vec::new(),
            watched: Readiness { read: true, write: false },
            banner_at_ns: None,
            owes_since_ns: None,
            delayed: 0,
            last_due_ns: 0,
        }
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.stream.waiting_bytes()
    }

    pub(super) fn reset(&mut self) {
        self.stream = Stream::default();
        self.owes_since_ns = None;
    }

    pub(super) fn wants_to_read(&self) -> bool {
        self.backlog.len() < MAX_BACKLOG_BYTES && self.delayed < MAX_DELAYED
    }

    pub(super) fn wanted(&self) -> Readiness {
        Readiness { read: self.wants_to_read(), write: !self.backlog.is_empty() }
    }

    pub(super) fn read(
        &mut self,
        slave: &mut Slave,
        now_ns: u64,
        buffer: &mut [u8],
        answer: &mut Vec<u8>,
    ) -> Result<u64, Ended> {
        let bytes = match self.io.read(buffer) {
            Ok(0) => return Err(Ended(None)),
            Ok(bytes) => bytes,
            Err(error) if [WouldBlock, Interrupted].contains(&error.kind()) => return Ok(now_ns),
            Err(error) if error.kind() == ConnectionReset => return Err(Ended(None)),
            Err(error) => return Err(error.into()),
        };
        self.banner_at_ns = None;
        let ready_ns = self.stream.feed(slave, now_ns, &buffer[..bytes], answer);
        let owes = self.stream.is_waiting();
        self.owes_since_ns = owes.then(|| self.owes_since_ns.unwrap_or(now_ns));
        match ready_ns {
            Ok(ready_ns) => Ok(ready_ns),
            Err(_) if self.is_device => {
                self.reset();
                Ok(now_ns)
            }
            Err(fault) => Err(Ended(Some(fault.to_string()))),
        }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let mut fresh = bytes;
        while self.backlog.is_empty() && !fresh.is_empty() {
            match self.io.write(fresh) {
                Ok(taken) => fresh = &fresh[taken..],
                Err(error) if error.kind() == WouldBlock => break,
                Err(error) if error.kind() == Interrupted => {}
                Err(error) if gone(&error) => return Err(Ended(None)),
                Err(error) => return Err(error.into()),
            }
        }
        self.backlog.extend_from_slice(fresh);
        Ok(())
    }

    /// Sends the waiting bytes, as far as the socket takes them.
    pub(super) fn flush(&mut self) -> Result<(), Ended> {
        let waiting = std::mem::take(&mut self.backlog);
        self.send(&waiting)
    }
}

fn gone(error: &io::Error) -> bool {
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}
