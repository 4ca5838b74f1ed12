//! A card in a process of its own: readers ask for a channel over a Unix socket and get its ring
//! and its interrupt line.
//!
//! One message in JSON goes each way. The reader keeps the connection; a channel has one reader in
//! all.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::fds;
use daqmeter_sys::ring::Consumer;
use daqmeter_sys::wait::{IrqLine, sleep_until, without_timer_slack};
use serde::{Deserialize, Serialize};
use socket2::{SockAddr, Socket};

use crate::card::{Card, CardState, channel_ids};
use crate::peer::from_peer;
use crate::port::{Port, has_ended};
use crate::scenario::Scenario;

#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// No card answers; one may later.
    #[error("{0}")]
    Absent(String),
    #[error("{0}")]
    Other(String),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Request {
    channel: usize,
    tags: Vec<u64>,
    block_bytes: usize,
}

impl Request {
    /// Request for a channel of a scenario; `None` if there is no such channel.
    fn of(scenario: &Scenario, channel: usize) -> Option<Request> {
        let id = *channel_ids(scenario).get(channel)?;
        let tags = scenario.elinks(id.device, id.channel).iter().map(|elink| elink.tag).collect();
        Some(Request { channel, tags, block_bytes: scenario.card.block.0 })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    error: Option<String>,
}

/// Interval at which the card looks at its clock while triggers come.
const STEP_NS: u64 = 20_000;

const LISTEN_NS: u64 = 5_000_000;
/// Clients that have connected and not asked yet; for a further one the oldest is dropped.
const MAX_ASKING: usize = 32;
/// Time after which a client that has not asked is dropped.
const ASK_WITHIN_NS: u64 = 2_000_000_000;
/// Longest request: every E-link of a channel with 20 digits is below 20 KB.
const MAX_REQUEST_BYTES: usize = 32 << 10;
/// Time that readers have after a request to stop to empty their rings.
const STOP_WITHIN_NS: u64 = 1_000_000_000;

/// Client that has connected and not asked yet, and the time of that.
type Asking = (UnixStream, u64);

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Removes a socket that no process serves any more, and nothing else.
fn make_room(path: &Path) -> io::Result<()> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    let why = match is_socket(path).then(|| reach(path)) {
        None => "it exists and is not a socket: choose another path".to_owned(),
        Some(Ok(_)) => "another card is served there: choose another path".to_owned(),
        Some(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            return std::fs::remove_file(path);
        }
        Some(Err(error)) => {
            format!("it is a socket that cannot be tried: {error}; name another path")
        }
    };
    Err(io::Error::other(why))
}

/// Makes a socket that keeps the borders of messages.
fn socket() -> io::Result<Socket> {
    Socket::new(socket2::Domain::UNIX, socket2::Type::SEQPACKET, None)
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    make_room(path)?;
    let socket = socket()?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(128)?;
    socket.set_nonblocking(true)?;
    Ok(UnixListener::from(OwnedFd::from(socket)))
}

/// Connects within a second: a process that is stopped does not take connections.
fn reach(path: &Path) -> io::Result<UnixStream> {
    let socket = socket()?;
    socket.set_write_timeout(Some(Duration::from_secs(1)))?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

enum Reader {
    Awaited,
    Connected(UnixStream),
    Ended,
}

pub struct CardServer {
    pub card: Card,
    listener: UnixListener,
    lines: Vec<IrqLine>,
    readers: Vec<Reader>,
    asking: Vec<Asking>,
    path: PathBuf,
    listened_ns: u64,
}

impl Drop for CardServer {
    fn drop(&mut self) {
        // A file that another process has put there meanwhile is not removed.
        if is_socket(&self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl CardServer {
    /// Listens at a path. Takes over a socket that no process serves; fails if a file of another
    /// kind is there.
    pub fn bind(card: Card, path: &Path) -> Result<CardServer, RemoteError> {
        let listener = listen(path).map_err(|error| {
            RemoteError::Other(format!("cannot listen at {}: {error}", path.display()))
        })?;
        let channels = channel_ids(card.scenario()).len();
        let lines: Result<Vec<IrqLine>, _> = (0..channels).map(|_| IrqLine::event()).collect();
        let lines = lines.map_err(|error| RemoteError::Other(error.to_string()))?;
        let readers = (0..channels).map(|_| Reader::Awaited).collect();
        let (asking, path) = (Vec::new(), path.to_owned());
        Ok(CardServer { card, listener, lines, readers, asking, path, listened_ns: 0 })
    }

    /// Serves until the card has finished and its readers are gone. Told to stop, it ends the
    /// triggers and gives readers a moment to empty their rings. `each` is called every 5 ms or so.
    pub fn run(&mut self, stop: &AtomicBool, mut each: impl FnMut(&Card)) {
        without_timer_slack();
        let mut end_ns = None;
        loop {
            let now_ns = monotonic_ns();
            if now_ns >= self.listened_ns + LISTEN_NS {
                self.listened_ns = now_ns;
                self.notice_ends();
                self.accept(now_ns);
                self.listen(now_ns);
                each(&self.card);
            }
            if end_ns.is_none() && stop.load(Ordering::Relaxed) {
                let is_idle = self.card.state() == CardState::Idle;
                end_ns = Some(now_ns + if is_idle { 0 } else { STOP_WITHIN_NS });
                self.card.source.end_ns = self.card.now_ns();
            }
            self.card.carry(now_ns);
            self.card.signal(&self.lines);
            let over = self.card.state() == CardState::Finished
                && !self.readers.iter().any(|reader| matches!(reader, Reader::Connected(_)));
            if over || end_ns.is_some_and(|end_ns| now_ns >= end_ns) {
                break;
            }
            let is_running = self.card.state() == CardState::Running;
            sleep_until(now_ns + if is_running { STEP_NS } else { 1_000_000 });
        }
    }

    fn accept(&mut self, now_ns: u64) {
        for _ in 0..MAX_ASKING {
            let Ok((stream, _)) = self.listener.accept() else {
                break;
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.asking.len() == MAX_ASKING {
                self.asking.remove(0);
            }
            self.asking.push((stream, now_ns));
        }
    }

    fn listen(&mut self, now_ns: u64) {
        for (mut stream, since_ns) in std::mem::take(&mut self.asking) {
            let mut request = [0; MAX_REQUEST_BYTES];
            let is_late = now_ns > since_ns + ASK_WITHIN_NS;
            match stream.read(&mut request) {
                // A client that does not take its answer gets none; the others go on.
                Ok(got @ 1..) => drop(self.answer(stream, &request[..got])),
                Err(error) if error.kind() == ErrorKind::WouldBlock && !is_late => {
                    self.asking.push((stream, since_ns));
                }
                Ok(0) | Err(_) => {}
            }
        }
    }

    fn answer(&mut self, mut stream: UnixStream, line: &[u8]) -> io::Result<()> {
        let request = from_peer(line).map_err(|error| format!("not a request: {error}"));
        let granted = request.and_then(|request| self.granted(&request));
        let answer = Answer { error: granted.as_ref().err().cloned() };
        let answer = serde_json::to_vec(&answer).expect("plain data");
        let Ok(channel) = granted else { return stream.write_all(&answer) };
        let memory = self.card.share(channel).map_err(io::Error::other)?;
        fds::send(&stream, &answer, &[memory, self.lines[channel].share()])?;
        self.readers[channel] = Reader::Connected(stream);
        Ok(())
    }

    /// Returns the channel of a request, or the reason for which the request is refused.
    fn granted(&self, request: &Request) -> Result<usize, String> {
        let (channel, channels) = (request.channel, self.readers.len());
        let own = Request::of(self.card.scenario(), channel)
            .ok_or_else(|| format!("no channel {channel}; the card has {channels}"))?;
        if own != *request {
            return Err(
                "the card and the reader have different E-links or blocks: use one scenario for both"
                    .to_owned(),
            );
        }
        match self.readers[channel] {
            Reader::Awaited => Ok(channel),
            _ => Err(format!("channel {channel} already has a reader")),
        }
    }

    fn notice_ends(&mut self) {
        for (channel, reader) in self.readers.iter_mut().enumerate() {
            let Reader::Connected(stream) = reader else { continue };
            if has_ended(stream) {
                *reader = Reader::Ended;
                self.card.forget_reader(channel);
            }
        }
    }
}

/// Asks for a channel, within about two seconds. Fails if there is no card, or it refuses, or sends
/// no ring.
pub fn connect(path: &Path, scenario: &Scenario, channel: usize) -> Result<Port, RemoteError> {
    let shown = path.display();
    let absent = |error: io::Error| {
        RemoteError::Absent(format!("{shown}: {error}; is a card emulated there?"))
    };
    let other = |line: String| RemoteError::Other(format!("{shown}: {line}"));
    let request = Request::of(scenario, channel)
        .ok_or_else(|| RemoteError::Other(format!("the scenario has no channel {channel}")))?;
    let mut stream = reach(path).map_err(absent)?;
    let request = serde_json::to_vec(&request).expect("plain data");
    stream.write_all(&request).map_err(absent)?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).map_err(absent)?;
    let mut room = [0; 4096];
    let (got, passed) = fds::receive(&stream, &mut room).map_err(absent)?;
    let answer: Answer = from_peer(&room[..got])
        .map_err(|_| other("the program that answers there is not a card".to_owned()))?;
    if let Some(error) = answer.error {
        return Err(other(error));
    }
    let [memory, line] = <[OwnedFd; 2]>::try_from(passed).map_err(|passed| {
        other(format!("the card passed {} descriptors instead of 2", passed.len()))
    })?;
    let consumer = Consumer::open(memory).map_err(|error| other(error.to_string()))?;
    Port::elsewhere(consumer, IrqLine::of_fd(line), stream)
        .map_err(|error| other(error.to_string()))
}

#[cfg(test)]
mod tests;
