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
//! ports. A receiver waits for as long as its sender lives, whose source may wait for triggers.

pub mod protocol;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use daqmeter_harness::StopFlag;
use daqmeter_readout::transport::frames::FrameStream;
use daqmeter_record::border::from_peer;
use daqmeter_sys::net::{Epoll, Readiness, wait_ready};
use daqmeter_wire::felix::page::{FelixFrame, FrameKind};
use serde::Serialize;

use self::protocol::{BlockHead, MAX_BLOCK_BYTES, MAX_SENDERS, PATIENCE, PathHello, UdpEnd};
use crate::udp::{Arrivals, SOCKET_BUFFER_BYTES, granted_bytes};

pub use self::protocol::ReceiverReport;
pub use crate::udp::ReceivedDatagrams;

const LOOK: Duration = Duration::from_millis(100);

const READ: Readiness = Readiness { read: true, write: false };

/// Receives until it is stopped, each sender in a thread, and reports the results of each. Fails if
/// the listener does. Threads that cannot be started only mean fewer senders at once.
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
    let (each, turn) = (Mutex::new(each), Mutex::new(()));
    let next = || {
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        accepted(listener)
    };
    let serve = || -> std::io::Result<()> {
        while !stop.is_set() {
            // The others end, too, if the listener fails.
            let Some((stream, peer)) = next().inspect_err(|_| stop.set())? else { continue };
            let came = received(stream, peer, stop);
            each.lock().unwrap_or_else(PoisonError::into_inner)(peer, came);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others = (1..MAX_SENDERS).map_while(|_| thread().spawn_scoped(scope, serve).ok());
        let others = Vec::from_iter(others);
        let served = serve();
        let ended =
            others.into_iter().map(|other| other.join().unwrap_or_else(|why| resume_unwind(why)));
        ended.fold(served, Result::and)
    })
}

fn accepted(listener: &TcpListener) -> std::io::Result<Option<(TcpStream, SocketAddr)>> {
    use ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    match listener.accept() {
        Ok(accepted) => Ok(Some(accepted)),
        Err(error) if error.kind() == WouldBlock => {
            wait_ready(listener.as_fd(), READ, Some(LOOK)).map(|_| None)
        }
        Err(error) if matches!(error.kind(), ConnectionAborted | Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

fn received(
    stream: TcpStream,
    peer: SocketAddr,
    stop: &StopFlag,
) -> Result<ReceiverReport, String> {
    let frames = FrameStream::new(stream, MAX_BLOCK_BYTES + BlockHead::BYTES);
    let mut sender = Sender { frames: frames.map_err(|error| error.to_string())?, stop };
    let hello: PathHello = from_peer(sender.next(FrameKind::Hello)?, &[])
        .map_err(|why| format!("it is no path of this version of daqmeter: {why}"))?;
    let came = match hello.udp {
        None => sender.over_tcp()?,
        Some(end) => sender.over_udp(SocketAddr::new(peer.ip(), end.port), end)?,
    };
    sender.say(FrameKind::Account, &came)?;
    Ok(came)
}

/// Sender, which is awaited until the receiver is stopped: its source may wait for triggers.
struct Sender<'a> {
    frames: FrameStream,
    stop: &'a StopFlag,
}

impl Sender<'_> {
    fn say(&mut self, kind: FrameKind, message: &impl Serialize) -> Result<(), String> {
        self.frames.say(kind, message, PATIENCE).map_err(|error| error.to_string())
    }

    fn receive(&mut self, wait: Duration) -> Result<(FelixFrame, &[u8]), String> {
        let stop = self.stop;
        match self.frames.receive(wait, &|| stop.is_set()) {
            Ok(Some(received)) => Ok(received),
            Ok(None) if stop.is_set() => Err("interrupted".to_owned()),
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
                FrameKind::Blocks => came.receive(body)?,
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
        let (mut arrivals, mut ready) = (Arrivals::new(socket), Vec::new());
        while !matches!(ready[..], [(1, _)]) {
            if self.stop.is_set() {
                return Err("interrupted".to_owned());
            }
            arrivals.drain()?;
            waits.wait(Some(LOOK), &mut ready).map_err(wrong)?;
        }
        let (frame, _) = self.receive(PATIENCE)?;
        if frame.kind != FrameKind::Account {
            return Err(foreign(frame));
        }
        arrivals.rest(frame.sequence)?;
        Ok(arrivals.blocks.came().clone())
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
