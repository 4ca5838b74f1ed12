//! A card in a process of its own: readers ask for a channel over a Unix socket and get its ring and its interrupt line.
//!
//! One line of JSON each way. The reader keeps the connection; when it ends, the channel is free for another, who goes on where the
//! host pointer is.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::ring::Consumer;
use daqmeter_sys::wait::{IrqLine, sleep_until, without_timer_slack};
use daqmeter_sys::{fds, ring};
use serde::{Deserialize, Serialize};

use crate::card::{Card, State, channel_ids};
use crate::port::SharedPort;
use crate::scenario::Scenario;

/// Why a card cannot be served or reached.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RemoteError(pub String);

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

/// The card looks at its clock so often while triggers come.
const STEP_NS: u64 = 20_000;

/// A card behind a socket.
pub struct Server {
    card: Card,
    scenario: Scenario,
    listener: UnixListener,
    lines: Vec<IrqLine>,
    readers: Vec<Option<UnixStream>>,
    path: std::path::PathBuf,
    asked_ns: u64,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Server {
    /// Listens at a path; a socket that nobody serves any more is taken over.
    ///
    /// # Errors
    /// When the path is taken or cannot be made.
    pub fn bind(card: Card, path: &Path) -> Result<Server, RemoteError> {
        let shown = path.display();
        if path.exists() {
            if UnixStream::connect(path).is_ok() {
                return Err(RemoteError(format!("{shown} is taken: another card is served there")));
            }
            std::fs::remove_file(path).map_err(|error| RemoteError(format!("{shown} is in the way: {error}")))?;
        }
        let listener =
            UnixListener::bind(path).map_err(|error| RemoteError(format!("cannot listen at {shown}: {error}")))?;
        listener.set_nonblocking(true).map_err(|error| RemoteError(error.to_string()))?;
        let scenario = card.scenario().clone();
        let channels = channel_ids(&scenario).len();
        let lines: Result<Vec<IrqLine>, _> = (0..channels).map(|_| IrqLine::event()).collect();
        let lines = lines.map_err(|error| RemoteError(error.to_string()))?;
        let readers = (0..channels).map(|_| None).collect();
        Ok(Server { card, scenario, listener, lines, readers, path: path.to_owned(), asked_ns: 0 })
    }

    /// The card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Serves until the card has finished and its readers are gone, or it is told to stop. `each` is called every 100 ms or so.
    pub fn run(&mut self, stop: &AtomicBool, mut each: impl FnMut(&Server)) {
        without_timer_slack();
        let mut told_ns = 0;
        loop {
            let now_ns = monotonic_ns();
            if now_ns >= self.asked_ns + 5_000_000 {
                self.asked_ns = now_ns;
                self.accept();
                self.notice_ends();
            }
            if self.card.state() == State::Idle && self.card.may_go() {
                self.card.start(now_ns);
            }
            self.card.advance(now_ns.saturating_sub(self.card.start_ns()));
            self.card.signal(&self.lines);
            if now_ns >= told_ns + 100_000_000 {
                told_ns = now_ns;
                each(self);
            }
            let over = self.card.state() == State::Finished && self.readers.iter().all(Option::is_none);
            if over || stop.load(Ordering::Relaxed) {
                break;
            }
            sleep_until(now_ns + if self.card.state() == State::Running { STEP_NS } else { 1_000_000 });
        }
        each(self);
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // A reader that says something else is answered or dropped; the others go on.
            if let Err(error) = self.hand_over(stream) {
                let _ = error;
            }
        }
    }

    fn hand_over(&mut self, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_millis(500)))?;
        let mut line = String::new();
        BufReader::new(stream.try_clone()?).read_line(&mut line)?;
        let refusal = match serde_json::from_str::<Request>(&line) {
            Ok(request) => match self.refusal(&request) {
                None => {
                    let answer = serde_json::to_vec(&Answer { error: None }).expect("plain data");
                    let memory = self.card.share(request.channel).map_err(io::Error::other)?;
                    fds::send(&stream, &answer, &[memory, self.lines[request.channel].share()])?;
                    stream.set_nonblocking(true)?;
                    self.readers[request.channel] = Some(stream);
                    return Ok(());
                }
                Some(refusal) => refusal,
            },
            Err(error) => format!("not a request: {error}"),
        };
        let answer = serde_json::to_vec(&Answer { error: Some(refusal) }).expect("plain data");
        (&stream).write_all(&answer)
    }

    fn refusal(&self, request: &Request) -> Option<String> {
        let ids = channel_ids(&self.scenario);
        let Some(id) = ids.get(request.channel) else {
            return Some(format!("no channel {}; the card has {}", request.channel, ids.len()));
        };
        let tags: Vec<u64> = self.scenario.elinks(id.device, id.channel).iter().map(|elink| elink.tag).collect();
        if tags != request.tags || self.scenario.card.block.0 != request.block_bytes {
            return Some("its scenario has other E-links or blocks than the reader's: give both the same".to_owned());
        }
        if self.readers[request.channel].is_some() {
            return Some(format!("channel {} has a reader already", request.channel));
        }
        None
    }

    fn notice_ends(&mut self) {
        for (channel, reader) in self.readers.iter_mut().enumerate() {
            let Some(stream) = reader else { continue };
            let mut byte = [0];
            match io::Read::read(stream, &mut byte) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => {
                    *reader = None;
                    self.card.forget_reader(channel);
                }
            }
        }
    }
}

/// Asks for a channel.
///
/// # Errors
/// When there is no card, or it refuses, or what it gives is no ring.
pub fn connect(path: &Path, scenario: &Scenario, channel: usize) -> Result<SharedPort, RemoteError> {
    let shown = path.display();
    let failed = |error: io::Error| RemoteError(format!("{shown}: {error}; is a card emulated there?"));
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    let Some(id) = channel_ids(scenario).get(channel).copied() else {
        return Err(RemoteError(format!("the scenario has no channel {channel}")));
    };
    let tags = scenario.elinks(id.device, id.channel).iter().map(|elink| elink.tag).collect();
    let request = Request { channel, tags, block_bytes: scenario.card.block.0 };
    let mut line = serde_json::to_vec(&request).expect("plain data");
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(failed)?;
    let mut room = [0; 4096];
    let (got, mut passed) = fds::receive(&stream, &mut room).map_err(failed)?;
    let answer: Answer =
        serde_json::from_slice(&room[..got]).map_err(|_| RemoteError(format!("{shown}: no card answers there")))?;
    if let Some(error) = answer.error {
        return Err(RemoteError(format!("{shown}: {error}")));
    }
    if passed.len() != 2 {
        return Err(RemoteError(format!("{shown}: the card passed {} descriptors instead of 2", passed.len())));
    }
    let (memory, line) = (passed.remove(0), passed.remove(0));
    let consumer: Consumer = ring::Consumer::open(memory).map_err(|error| RemoteError(format!("{shown}: {error}")))?;
    SharedPort::new(consumer, IrqLine::of_fd(line), stream).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Port;

    #[test]
    fn a_channel_has_one_reader_at_a_time_and_the_next_goes_on_where_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("card");
        let text = "[trigger]\nrate = \"50kHz\"\n[card]\nlinks = 1\nring = \"2MiB\"\n[busy]\ndma = false\n";
        let scenario = Scenario::parse(text, "test").unwrap();
        let (mut card, _) = Card::new(&scenario).unwrap();
        card.source().end_after(2000);
        let mut server = Server::bind(card, &path).unwrap();
        let (other, _) = Card::new(&scenario).unwrap();
        let taken = Server::bind(other, &path).err().unwrap().to_string();
        assert!(taken.contains("is taken"), "{taken}");
        let thread = std::thread::spawn(move || server.run(&AtomicBool::new(false), |_| {}));
        let mut port = connect(&path, &scenario, 0).unwrap();
        let error = |result: Result<SharedPort, RemoteError>| result.err().unwrap().to_string();
        assert!(error(connect(&path, &scenario, 0)).contains("has a reader already"));
        let wrong = Scenario::parse("[card]\nlinks = 2\n", "").unwrap();
        assert!(error(connect(&path, &wrong, 0)).contains("other E-links"));
        assert!(error(connect(&path, &scenario, 1)).contains("no channel 1"));
        port.go();
        while port.consumer().filled() < 4096 {
            port.wait(Duration::from_millis(100));
        }
        port.take(2048);
        port.release(2048);
        let at = port.consumer().host();
        drop(port);
        let mut second = loop {
            if let Ok(second) = connect(&path, &scenario, 0) {
                break second;
            }
            std::thread::yield_now();
        };
        assert_eq!(second.consumer().host(), at);
        let mut bytes = 2048;
        loop {
            let finished = second.state() == State::Finished;
            second.take(usize::MAX);
            let got = second.consumer().spans(0).map(<[u8]>::len).iter().sum::<usize>();
            second.release(got);
            bytes += got;
            if finished && got == 0 {
                break;
            }
            second.wait(Duration::from_millis(100));
        }
        let format = scenario.format().unwrap();
        assert_eq!(bytes as u64, 8 * 1024 * daqmeter_wire::felix::encoder::blocks_of(format, 24, 2000));
        drop(second);
        thread.join().unwrap();
        assert!(!path.exists());
        assert!(error(connect(&path, &scenario, 0)).contains("is a card emulated there?"));
    }

    #[test]
    fn a_card_whose_process_is_gone_has_finished() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("card");
        let scenario = Scenario::parse("[card]\nlinks = 1\nring = \"2MiB\"\n", "test").unwrap();
        let (card, _) = Card::new(&scenario).unwrap();
        let mut server = Server::bind(card, &path).unwrap();
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = std::thread::spawn(move || server.run(&asked, |_| {}));
        let mut port = connect(&path, &scenario, 0).unwrap();
        port.go();
        while port.state() != State::Running {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        while port.state() != State::Finished {
            port.refresh();
        }
    }
}
