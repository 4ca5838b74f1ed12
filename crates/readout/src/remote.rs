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
use daqmeter_sys::ring::Consumer;
use daqmeter_sys::wait::{IrqLine, sleep_until, without_timer_slack};
use daqmeter_sys::{fds, ring};
use serde::{Deserialize, Serialize};
use socket2::{SockAddr, Socket};

use crate::card::{Card, CardState, channel_ids};
use crate::peer::from_peer;
use crate::port::Port;
use crate::scenario::Scenario;

#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// No card answers; one may later.
    #[error("{0}")]
    Absent(String),
    #[error("{0}")]
    Other(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    channel: usize,
    tags: Vec<u64>,
    block_bytes: usize,
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
        Ok(CardServer {
            card,
            listener,
            lines,
            readers,
            asking: Vec::new(),
            path: path.to_owned(),
            listened_ns: 0,
        })
    }

    /// Serves until the card has finished and its readers are gone. Told to stop, it ends the
    /// triggers and gives readers a moment to empty their rings.
    pub fn run(&mut self, stop: &AtomicBool) {
        without_timer_slack();
        let mut end_ns = None;
        loop {
            let now_ns = monotonic_ns();
            if now_ns >= self.listened_ns + LISTEN_NS {
                self.listened_ns = now_ns;
                self.notice_ends();
                self.accept(now_ns);
                self.listen(now_ns);
            }
            if end_ns.is_none() && stop.load(Ordering::Relaxed) {
                end_ns = Some(
                    now_ns + if self.card.state() == CardState::Idle { 0 } else { STOP_WITHIN_NS },
                );
                let last_ns = self.card.now_ns();
                self.card.source.end_ns = last_ns;
            }
            self.card.carry(now_ns);
            self.card.signal(&self.lines);
            let over = self.card.state() == CardState::Finished
                && !self.readers.iter().any(|reader| matches!(reader, Reader::Connected(_)));
            if over || end_ns.is_some_and(|end_ns| now_ns >= end_ns) {
                break;
            }
            sleep_until(
                now_ns + if self.card.state() == CardState::Running { STEP_NS } else { 1_000_000 },
            );
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
            match stream.read(&mut request) {
                Ok(got @ 1..) => {
                    // A client that does not take its answer gets none; the others go on.
                    let _ = self.answer(stream, &request[..got]);
                }
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock
                        && now_ns <= since_ns + ASK_WITHIN_NS =>
                {
                    self.asking.push((stream, since_ns));
                }
                Ok(0) | Err(_) => {}
            }
        }
    }

    fn answer(&mut self, stream: UnixStream, line: &[u8]) -> io::Result<()> {
        let request = match from_peer::<Request>(line) {
            Ok(request) => request,
            Err(error) => return refuse(&stream, format!("not a request: {error}")),
        };
        if let Some(refusal) = self.refusal(&request) {
            return refuse(&stream, refusal);
        }
        let answer = serde_json::to_vec(&Answer { error: None }).expect("plain data");
        let memory = self.card.share(request.channel).map_err(io::Error::other)?;
        fds::send(&stream, &answer, &[memory, self.lines[request.channel].share()])?;
        self.readers[request.channel] = Reader::Connected(stream);
        Ok(())
    }

    fn refusal(&self, request: &Request) -> Option<String> {
        let scenario = self.card.scenario();
        let ids = channel_ids(scenario);
        let Some(id) = ids.get(request.channel) else {
            return Some(format!("no channel {}; the card has {}", request.channel, ids.len()));
        };
        let tags: Vec<u64> =
            scenario.elinks(id.device, id.channel).iter().map(|elink| elink.tag).collect();
        if tags != request.tags || scenario.card.block.0 != request.block_bytes {
            return Some(
                "the card and the reader have different E-links or blocks: use one scenario for both"
                    .to_owned(),
            );
        }
        if !matches!(self.readers[request.channel], Reader::Awaited) {
            return Some(format!("channel {} already has a reader", request.channel));
        }
        None
    }

    fn notice_ends(&mut self) {
        for (channel, reader) in self.readers.iter_mut().enumerate() {
            let Reader::Connected(stream) = reader else { continue };
            let mut byte = [0];
            match stream.read(&mut byte) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => {
                    *reader = Reader::Ended;
                    self.card.forget_reader(channel);
                }
            }
        }
    }
}

fn refuse(mut stream: &UnixStream, why: String) -> io::Result<()> {
    let answer = serde_json::to_vec(&Answer { error: Some(why) }).expect("plain data");
    stream.write_all(&answer)
}

/// Asks for a channel, within about two seconds. Fails if there is no card, or it refuses, or sends
/// no ring.
pub fn connect(path: &Path, scenario: &Scenario, channel: usize) -> Result<Port, RemoteError> {
    let shown = path.display();
    let absent = |error: io::Error| {
        RemoteError::Absent(format!("{shown}: {error}; is a card emulated there?"))
    };
    let other = |line: String| RemoteError::Other(format!("{shown}: {line}"));
    let Some(id) = channel_ids(scenario).get(channel).copied() else {
        return Err(RemoteError::Other(format!("the scenario has no channel {channel}")));
    };
    let mut stream = reach(path).map_err(absent)?;
    let tags = scenario.elinks(id.device, id.channel).iter().map(|elink| elink.tag).collect();
    let request = Request { channel, tags, block_bytes: scenario.card.block.0 };
    let request = serde_json::to_vec(&request).expect("plain data");
    stream.write_all(&request).map_err(absent)?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).map_err(absent)?;
    let mut room = [0; 4096];
    let (got, mut passed) = fds::receive(&stream, &mut room).map_err(absent)?;
    let answer: Answer = from_peer(&room[..got])
        .map_err(|_| other("the program that answers there is not a card".to_owned()))?;
    if let Some(error) = answer.error {
        return Err(other(error));
    }
    if passed.len() != 2 {
        return Err(other(format!("the card passed {} descriptors instead of 2", passed.len())));
    }
    let (memory, line) = (passed.remove(0), passed.remove(0));
    let consumer: Consumer =
        ring::Consumer::open(memory).map_err(|error| other(error.to_string()))?;
    Port::elsewhere(consumer, IrqLine::of_fd(line), stream)
        .map_err(|error| other(error.to_string()))
}

#[cfg(test)]
mod tests;
