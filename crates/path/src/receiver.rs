//! A receiver on another host: a path's sink sends its blocks there, over TCP or UDP, and the
//! receiver reports the blocks that came.
//!
//! ```text
//! sender                                              receiver
//! Hello: UDP port, socket buffer
//!                                                     Hello: UDP port, socket buffer
//! Blocks: a head and its block, again and again       compares each block whose sum is in its head
//! Account: how many were sent
//!                                                     Account: what came, for all streams
//! ```
//!
//! All are frames over TCP; over UDP only blocks go, in datagrams (`udp.rs`) between the two
//! ports. A receiver waits for as long as its sender lives, whose source may wait for triggers; one
//! without a block yet gives its place to another if all are held. Else that one is refused.

pub mod protocol;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

use daqmeter_harness::frames::{FrameStream, MAX_CONTROL_BYTES};
use daqmeter_harness::{StopFlag, locked};
use daqmeter_record::border::from_peer;
use daqmeter_sys::net::{Epoll, Readiness, accept};
use daqmeter_wire::felix::page::{FelixFrame, FrameKind};
use serde::Serialize;

use self::protocol::{BlockHead, MAX_BLOCK_BYTES, MAX_SENDERS, PATIENCE, PathHello, UdpEnd};
use crate::udp::{Arrivals, SOCKET_BUFFER_BYTES, granted_bytes};

pub use self::protocol::ReceiverReport;
pub use crate::udp::ReceivedDatagrams;

const LOOK: Duration = Duration::from_millis(100);

const READ: Readiness = Readiness { read: true, write: false };

/// Receives until it is stopped, each sender in a thread, and reports the results of each by
/// `each`, which must not wait. Fails if the listener does. A sender whose thread cannot be started
/// is served before the next one is accepted.
pub fn serve(
    listener: &TcpListener,
    stop: &StopFlag,
    each: impl FnMut(SocketAddr, Result<ReceiverReport, String>) + Send,
) -> std::io::Result<()> {
    serve_in(Builder::new, listener, stop, each)
}

fn serve_in(
    thread: impl Fn() -> Builder,
    listener: &TcpListener,
    stop: &StopFlag,
    each: impl FnMut(SocketAddr, Result<ReceiverReport, String>) + Send,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let (each, most_bytes) = (Mutex::new(each), most_block_bytes());
    let serve = &|place: Arc<SenderPlace>| {
        let Some(stream) = locked(&place.stream).take() else { return };
        let (peer, came) = (place.peer, received(stream, &place, most_bytes));
        drop(place);
        locked(&each)(peer, came);
    };
    std::thread::scope(|scope| {
        let mut places: Vec<Arc<SenderPlace>> = Vec::new();
        let mut serve_all = || -> std::io::Result<()> {
            while !stop.is_set() {
                let Some((stream, peer)) = accept(listener, LOOK)? else { continue };
                while are_many(&mut places) && !stop.is_set() {
                    std::thread::sleep(REFUSE_WITHIN);
                }
                if let Err(why) = make_room(&places) {
                    refuse(stream, &why);
                    continue;
                }
                let place = Arc::new(SenderPlace::new(peer, stream, stop));
                places.push(place.clone());
                let own = place.clone();
                if thread().spawn_scoped(scope, move || serve(own)).is_err() {
                    serve(place);
                }
            }
            Ok(())
        };
        // The others end, too, if the listener fails.
        serve_all().inspect_err(|_| stop.set())
    })
}

/// Place of a sender, which it holds until it has been served.
struct SenderPlace {
    peer: SocketAddr,
    /// Its connection, until it is served.
    stream: Mutex<Option<TcpStream>>,
    stop: StopFlag,
    /// True once a block came: until then another sender may have the place.
    has_sent: AtomicBool,
    is_given_up: AtomicBool,
}

impl SenderPlace {
    fn new(peer: SocketAddr, stream: TcpStream, stop: &StopFlag) -> SenderPlace {
        let (has_sent, is_given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        SenderPlace {
            peer,
            stream: Mutex::new(Some(stream)),
            stop: stop.clone(),
            has_sent,
            is_given_up,
        }
    }

    /// Tests if the receiver is stopped, or another sender has the place.
    fn is_over(&self) -> bool {
        self.stop.is_set() || self.is_given_up.load(Ordering::Relaxed)
    }
}

/// Leaves out senders that were served. Tests if there are too many others: those that gave their
/// places up may not have ended yet.
fn are_many(places: &mut Vec<Arc<SenderPlace>>) -> bool {
    places.retain(|place| Arc::strong_count(place) > 1);
    places.len() >= 2 * MAX_SENDERS
}

/// Makes room for a sender: if all places are held, the oldest without a block loses its own. Fails
/// with those who hold the places.
fn make_room(places: &[Arc<SenderPlace>]) -> Result<(), String> {
    let held = || places.iter().filter(|place| !place.is_given_up.load(Ordering::Relaxed));
    if held().count() < MAX_SENDERS {
        return Ok(());
    }
    if let Some(idle) = held().find(|place| !place.has_sent.load(Ordering::Relaxed)) {
        idle.is_given_up.store(true, Ordering::Relaxed);
        return Ok(());
    }
    let peers = BTreeSet::from_iter(places.iter().map(|place| place.peer.ip()));
    let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
    Err(format!("busy with {MAX_SENDERS} senders of {}", peers.join(", ")))
}

/// Time for the frame of a refusal, which fits into an empty socket.
const REFUSE_WITHIN: Duration = Duration::from_millis(10);

/// Says to a peer why it is not served. It may be gone.
fn refuse(stream: TcpStream, why: &str) {
    if let Ok(mut frames) = FrameStream::new(stream, MAX_CONTROL_BYTES) {
        let _ = frames.say(FrameKind::Refused, &why, REFUSE_WITHIN);
        // A connection with unread bytes is reset.
        let _ = frames.receive(Duration::ZERO, &|| true);
    }
}

/// Returns the longest block of a sender: all senders together hold at most half of the memory that
/// is free at the start.
fn most_block_bytes() -> usize {
    let free = daqmeter_sys::available::memory_bytes().unwrap_or(u64::MAX);
    let each = free / 2 / MAX_SENDERS as u64;
    usize::try_from(each).unwrap_or(usize::MAX).min(MAX_BLOCK_BYTES)
}

fn received(
    stream: TcpStream,
    place: &SenderPlace,
    most_bytes: usize,
) -> Result<ReceiverReport, String> {
    let frames = FrameStream::new(stream, most_bytes + BlockHead::BYTES);
    let frames = frames.map_err(|error| error.to_string())?;
    let mut sender = Sender { frames, place, most_bytes };
    let came = sender.serve();
    if came.is_err() && place.is_given_up.load(Ordering::Relaxed) {
        let _ = sender.frames.say(FrameKind::Refused, &GIVEN_UP, REFUSE_WITHIN);
        return Err(GIVEN_UP.to_owned());
    }
    came
}

/// Sender, which is awaited until the receiver is stopped: its source may wait for triggers.
struct Sender<'a> {
    frames: FrameStream,
    place: &'a SenderPlace,
    most_bytes: usize,
}

const GIVEN_UP: &str = "its place was given to another sender, because no block of it had come";

impl Sender<'_> {
    fn serve(&mut self) -> Result<ReceiverReport, String> {
        let hello: PathHello = from_peer(self.next(FrameKind::Hello)?, &[])
            .map_err(|why| format!("it is no path of this version of daqmeter: {why}"))?;
        let came = match hello.udp {
            None => self.over_tcp()?,
            Some(end) => self.over_udp(SocketAddr::new(self.place.peer.ip(), end.port), end)?,
        };
        self.say(FrameKind::Account, &came)?;
        Ok(came)
    }

    fn say(&mut self, kind: FrameKind, message: &impl Serialize) -> Result<(), String> {
        self.frames.say(kind, message, PATIENCE).map_err(|error| error.to_string())
    }

    fn receive(&mut self, wait: Duration) -> Result<(FelixFrame, &[u8]), String> {
        let place = self.place;
        // Data that come without a pause leave no wait to end.
        if place.is_over() {
            return Err("interrupted".to_owned());
        }
        match self.frames.receive(wait, &|| place.is_over()) {
            Ok(Some(received)) => Ok(received),
            Ok(None) if place.is_over() => Err("interrupted".to_owned()),
            Ok(None) => Err("it said nothing".to_owned()),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err("it ended in the middle".to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Receives a message of this kind.
    fn next(&mut self, kind: FrameKind) -> Result<&[u8], String> {
        let (frame, body) = self.receive(PATIENCE)?;
        if frame.kind == kind { Ok(body) } else { Err(foreign(frame)) }
    }

    fn over_tcp(&mut self) -> Result<ReceiverReport, String> {
        self.say(FrameKind::Hello, &PathHello { udp: None })?;
        let mut came = ReceiverReport::default();
        loop {
            let (frame, body) = self.receive(Duration::MAX)?;
            match frame.kind {
                FrameKind::Blocks => {
                    came.receive(body)?;
                    self.place.has_sent.store(true, Ordering::Relaxed);
                }
                FrameKind::Account => return Ok(came),
                _ => return Err(foreign(frame)),
            }
        }
    }

    fn over_udp(&mut self, peer: SocketAddr, end: UdpEnd) -> Result<ReceiverReport, String> {
        let wrong = |error: std::io::Error| format!("udp: {error}");
        let here = self.frames.stream().local_addr().map_err(wrong)?.ip();
        let socket = UdpSocket::bind((here, 0)).map_err(wrong)?;
        socket.connect(peer).map_err(wrong)?;
        let (min, max) = SOCKET_BUFFER_BYTES.into_inner();
        let asked = usize::try_from(end.socket_buffer_bytes).unwrap_or(max).clamp(min, max);
        let socket_buffer_bytes = granted_bytes(&socket, asked).map_err(wrong)?;
        let port = socket.local_addr().map_err(wrong)?.port();
        let end = UdpEnd { port, socket_buffer_bytes };
        self.say(FrameKind::Hello, &PathHello { udp: Some(end) })?;
        let mut waits = Epoll::new().map_err(wrong)?;
        waits.add(&socket, 0, READ).map_err(wrong)?;
        waits.add(self.frames.stream(), 1, READ).map_err(wrong)?;
        let (mut arrivals, mut ready) = (Arrivals::new(socket, self.most_bytes), Vec::new());
        while !matches!(ready[..], [(1, _)]) {
            if self.place.is_over() {
                return Err("interrupted".to_owned());
            }
            arrivals.drain()?;
            let has_sent = arrivals.blocks.came.blocks() > 0;
            self.place.has_sent.store(has_sent, Ordering::Relaxed);
            waits.wait(Some(LOOK), &mut ready).map_err(wrong)?;
        }
        let (frame, _) = self.receive(PATIENCE)?;
        if frame.kind != FrameKind::Account {
            return Err(foreign(frame));
        }
        arrivals.rest(frame.sequence)?;
        Ok(arrivals.blocks.came)
    }
}

fn foreign(frame: FelixFrame) -> String {
    format!("a frame of kind {:?} is not expected here", frame.kind)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn reported(bytes: &[u8]) -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.write_all(bytes).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let (stop, mut reported) = (StopFlag::default(), String::new());
        serve(&listener, &stop, |_, came| {
            reported = came.err().unwrap_or_default();
            stop.set();
        })
        .unwrap();
        reported
    }

    /// A silent peer blocked the receiver for all others, for 10 s and more.
    #[test]
    fn a_peer_that_says_nothing_holds_up_no_other() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let silent = TcpStream::connect(to).unwrap();
        let mut other = TcpStream::connect(to).unwrap();
        other.write_all(&[b'G'; 40]).unwrap();
        let (stop, mut reported) = (StopFlag::default(), Vec::new());
        serve(&listener, &stop, |peer, came| {
            reported.push((peer, came.unwrap_err()));
            stop.set();
        })
        .unwrap();
        let [(first, why), (second, ended)] = &reported[..] else {
            panic!("{reported:?}");
        };
        assert_eq!(*first, other.local_addr().unwrap());
        assert!(why.contains("does not begin a frame of this version"), "{why}");
        assert_eq!((*second, ended.as_str()), (silent.local_addr().unwrap(), "interrupted"));
    }

    fn greeting() -> Vec<u8> {
        let hello = br#"{"udp":null}"#;
        let head = FelixFrame::control(FrameKind::Hello, u32::try_from(hello.len()).unwrap());
        [&head.emit()[..], hello].concat()
    }

    fn next_kind(frames: &mut FrameStream) -> (FrameKind, String) {
        let (frame, body) = frames.receive(PATIENCE, &|| false).unwrap().unwrap();
        (frame.kind, String::from_utf8_lossy(body).into_owned())
    }

    /// Regression: 16 senders that said hello and no more held all places while they lived.
    #[test]
    fn a_sender_without_a_block_gives_its_place_up_and_one_that_is_refused_learns_why() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (to, stop) = (listener.local_addr().unwrap(), StopFlag::default());
        let joined = |sends: bool| {
            let mut stream = TcpStream::connect(to).unwrap();
            stream.write_all(&greeting()).unwrap();
            let mut frames = FrameStream::new(stream, MAX_CONTROL_BYTES).unwrap();
            let (kind, why) = next_kind(&mut frames);
            if sends && kind == FrameKind::Hello {
                let head = BlockHead::default().emit();
                let frame = FelixFrame::control(FrameKind::Blocks, 32);
                frames.send(&frame, [&head, &[]], PATIENCE).unwrap();
            }
            (frames, kind, why)
        };
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve(&listener, &stop, |_, _| ()));
            let mut idle: Vec<_> = (0..MAX_SENDERS).map(|_| joined(false).0).collect();
            // The oldest without a block leaves, until all have sent one.
            let at_work: Vec<_> = idle
                .iter_mut()
                .map(|idle| {
                    let (frames, kind, _) = joined(true);
                    assert_eq!(kind, FrameKind::Hello);
                    assert_eq!(next_kind(idle), (FrameKind::Refused, format!("\"{GIVEN_UP}\"")));
                    frames
                })
                .collect();
            // The last blocks may be on their way.
            let mut others = at_work;
            let why = loop {
                match joined(true) {
                    (frames, FrameKind::Hello, _) => others.push(frames),
                    (_, kind, why) => break (kind, why),
                }
            };
            let busy = "\"busy with 16 senders of 127.0.0.1\"".to_owned();
            assert_eq!(why, (FrameKind::Refused, busy));
            stop.set();
            served.join().unwrap().unwrap();
        });
    }

    /// A thread that could not be started ended the receiver.
    #[test]
    fn without_further_threads_one_sender_after_the_other_is_served() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let peers = [(); 2].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        drop(peers);
        let (stop, mut reported) = (StopFlag::default(), 0);
        // No stack of this size can be had.
        let refused = || Builder::new().stack_size(1 << 60);
        serve_in(refused, &listener, &stop, |_, _| {
            reported += 1;
            if reported == 2 {
                stop.set();
            }
        })
        .unwrap();
        assert_eq!(reported, 2);
    }

    #[test]
    fn a_peer_that_is_no_path_or_sends_too_much_or_ends_early_is_refused_in_a_line() {
        let frame = |kind, bytes: usize, body: &[u8]| {
            let head = FelixFrame::control(kind, u32::try_from(bytes).unwrap());
            [&head.emit()[..], body].concat()
        };
        let hello = br#"{"udp":null}"#;
        let block = |bytes: usize, stream| {
            let head = BlockHead { stream, ..BlockHead::default() }.emit();
            [frame(FrameKind::Hello, hello.len(), hello), frame(FrameKind::Blocks, bytes, &head)]
                .concat()
        };
        for (bytes, wanted) in [
            (vec![b'G'; 40], "0x47474747 does not begin a frame of this version"),
            (frame(FrameKind::Hello, 7, br#"{"a":1}"#), "it is no path of this version"),
            (frame(FrameKind::Account, 2, b"{}"), "a frame of kind Account is not expected"),
            (block((256 << 20) + 33, 0), "a frame of kind Blocks with 268435489 bytes;"),
            (block(32, 64), "stream 64; there are 64 at most"),
            (block(36, 0), "it ended in the middle"),
            (Vec::new(), "it ended in the middle"),
        ] {
            let line = reported(&bytes);
            assert!(line.starts_with(wanted) && !line.contains('\n'), "{line}");
        }
    }
}
