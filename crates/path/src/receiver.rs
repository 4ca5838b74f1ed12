//! A receiver on another host: a path's sink sends its blocks there, over TCP or UDP, and the
//! receiver reports the blocks that came.
//!
//! ```text
//! sender                                              receiver
//! "daqpath1", transport, UDP port, socket buffer
//!                                                     "daqpath1", UDP port, socket buffer
//! a head and its block, again and again               compares each block whose sum is in its head
//! TCP: a head of no bytes; UDP: how many were sent
//!                                                     what came, for all streams
//! ```
//!
//! All numbers are little-endian, of 8 bytes. Over UDP blocks go in datagrams (`udp.rs`) between
//! the two ports, everything else over TCP. A receiver waits for as long as its sender lives, whose
//! source may wait for triggers.

pub mod blocks;
pub mod protocol;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use daqmeter_harness::StopFlag;
use daqmeter_sys::net::{Epoll, Readiness, wait_ready};
use socket2::{SockRef, TcpKeepalive};

use self::blocks::{ReceivedDatagrams, of_stream};
use self::protocol::{BlockTransport, MAGIC, MAX_SENDERS, PATIENCE, SenderHello, words};
use crate::udp::{Arriving, SOCKET_BUFFER_BYTES, SocketBuffer};

pub use self::protocol::ReceiverReport;

const ALIVE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);
/// Time without a datagram after the end from which on none comes any more.
const QUIET: Duration = Duration::from_millis(200);

const READ: Readiness = Readiness { read: true, write: false };

/// Receives until it is stopped, each sender in its own thread, and reports the results of each.
/// Fails if the listener does.
pub fn serve(
    listener: &TcpListener,
    stop: &StopFlag,
    mut each: impl FnMut(SocketAddr, Result<ReceiverReport, String>),
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let (done, ended) = channel();
    std::thread::scope(|scope| {
        let mut senders = 0;
        let served = loop {
            for (peer, came) in ended.try_iter() {
                senders -= 1;
                each(peer, came);
            }
            if stop.is_set() {
                break Ok(());
            }
            if senders == MAX_SENDERS {
                std::thread::sleep(LOOK);
                continue;
            }
            match accepted(listener) {
                Ok(Some((stream, peer))) => {
                    let done = done.clone();
                    let receives = move || {
                        // The other end of this channel is read until the last sender is done.
                        let _ = done.send((peer, received(stream, peer, stop)));
                    };
                    match std::thread::Builder::new().spawn_scoped(scope, receives) {
                        Ok(_) => senders += 1,
                        Err(error) => each(peer, Err(format!("no thread for it: {error}"))),
                    }
                }
                Ok(None) => {}
                Err(error) => break Err(error),
            }
        };
        stop.set();
        drop(done);
        ended.iter().for_each(|(peer, came)| each(peer, came));
        served
    })
}

fn accepted(listener: &TcpListener) -> std::io::Result<Option<(TcpStream, SocketAddr)>> {
    match listener.accept() {
        Ok(accepted) => Ok(Some(accepted)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            wait_ready(listener.as_fd(), READ, Some(LOOK)).map(|_| None)
        }
        Err(error)
            if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn received(
    stream: TcpStream,
    peer: SocketAddr,
    stop: &StopFlag,
) -> Result<ReceiverReport, String> {
    let mut sender = Sender { stream, stop };
    sender.set_up().map_err(|error| error.to_string())?;
    let mut hello = [0; SenderHello::BYTES];
    sender.read(&mut hello, Some(PATIENCE))?;
    let Some(hello) = SenderHello::parse(&hello) else {
        return Err("it is no path of this version of daqmeter".to_owned());
    };
    match hello.transport {
        BlockTransport::Tcp => {
            sender.write(&welcome(0, SocketBuffer::default()))?;
            sender.over_tcp()
        }
        BlockTransport::Udp => sender.over_udp(SocketAddr::new(peer.ip(), hello.udp_port), hello),
    }
}

fn welcome(udp_port: u16, buffer: SocketBuffer) -> Vec<u8> {
    words(&[u64::from_le_bytes(*MAGIC), udp_port.into(), buffer.granted_bytes])
}

/// Sender, which is awaited until the receiver is stopped: its source may wait for triggers.
struct Sender<'a> {
    stream: TcpStream,
    stop: &'a StopFlag,
}

impl Sender<'_> {
    fn set_up(&self) -> std::io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_nodelay(true)?;
        self.stream.set_read_timeout(Some(LOOK))?;
        self.stream.set_write_timeout(Some(PATIENCE))?;
        let alive = TcpKeepalive::new().with_time(ALIVE).with_interval(ALIVE);
        SockRef::from(&self.stream).set_tcp_keepalive(&alive)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).map_err(|error| error.to_string())
    }

    /// Reads these bytes, without a limit of time or within `patience`.
    fn read(&mut self, mut into: &mut [u8], patience: Option<Duration>) -> Result<(), String> {
        let began = Instant::now();
        while !into.is_empty() {
            match self.stream.read(into) {
                Ok(0) => return Err("it ended in the middle".to_owned()),
                Ok(count) => into = &mut into[count..],
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) =>
                {
                    if self.stop.is_set() {
                        return Err("interrupted".to_owned());
                    }
                    if patience.is_some_and(|patience| began.elapsed() > patience) {
                        return Err("it said nothing".to_owned());
                    }
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    fn over_tcp(&mut self) -> Result<ReceiverReport, String> {
        let came = of_stream(|into| self.read(into, None))?;
        self.write(&came.emit()).map(|()| came)
    }

    fn over_udp(&mut self, peer: SocketAddr, hello: SenderHello) -> Result<ReceiverReport, String> {
        let wrong = |error: std::io::Error| format!("udp: {error}");
        let here = self.stream.local_addr().map_err(wrong)?.ip();
        let socket = UdpSocket::bind((here, 0)).map_err(wrong)?;
        socket.connect(peer).map_err(wrong)?;
        let (min, max) = SOCKET_BUFFER_BYTES.into_inner();
        let asked = usize::try_from(hello.socket_buffer_bytes).unwrap_or(max).clamp(min, max);
        let buffer = SocketBuffer::ask(&socket, asked).map_err(wrong)?;
        let port = socket.local_addr().map_err(wrong)?.port();
        self.write(&welcome(port, buffer))?;
        let mut waits = Epoll::new().map_err(wrong)?;
        waits.add(&socket, 0, READ).map_err(wrong)?;
        waits.add(&self.stream, 1, READ).map_err(wrong)?;
        let mut arrivals = Arrivals::new(socket);
        let mut ready = Vec::new();
        let sent = loop {
            arrivals.drain()?;
            waits.wait(Some(LOOK), &mut ready).map_err(wrong)?;
            if self.stop.is_set() {
                return Err("interrupted".to_owned());
            }
            let is_quiet = !ready.iter().any(|(key, _)| *key == 0);
            if is_quiet && ready.iter().any(|(key, _)| *key == 1) {
                let mut sent = [0; 8];
                self.read(&mut sent, Some(PATIENCE))?;
                break u64::from_le_bytes(sent);
            }
        };
        arrivals.rest(sent)?;
        let came = arrivals.blocks.came();
        self.write(&came.emit())?;
        Ok(came.clone())
    }
}

struct Arrivals {
    arriving: Arriving,
    blocks: ReceivedDatagrams,
}

impl Arrivals {
    fn new(socket: UdpSocket) -> Arrivals {
        Arrivals { arriving: Arriving::new(socket), blocks: ReceivedDatagrams::default() }
    }

    fn drain(&mut self) -> Result<(), String> {
        loop {
            let next = self.arriving.next(false);
            let Some((head, bytes)) = next.map_err(|error| format!("udp: {error}"))? else {
                return Ok(());
            };
            self.blocks.take(head, bytes)?;
            self.arriving.take();
        }
    }

    fn rest(&mut self, sent: u64) -> Result<(), String> {
        loop {
            self.drain()?;
            if self.blocks.has_last_of(sent) {
                return Ok(());
            }
            let ready = wait_ready(self.arriving.socket.as_fd(), READ, Some(QUIET));
            if !ready.map_err(|error| format!("udp: {error}"))?.read {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::protocol::BlockHead;
    use super::*;
    use crate::sum::sum;

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
        assert!(why.starts_with("it is no path of this version"), "{why}");
        assert_eq!((*second, ended.as_str()), (silent.local_addr().unwrap(), "interrupted"));
    }

    #[test]
    fn a_peer_that_is_no_path_or_sends_too_much_or_ends_early_is_refused_in_a_line() {
        let hello =
            SenderHello { transport: BlockTransport::Tcp, udp_port: 0, socket_buffer_bytes: 0 }
                .emit();
        let head = |bytes, stream| BlockHead { bytes, stream, ..BlockHead::default() };
        let after_hello = |head: BlockHead| [&hello[..], &head.emit()].concat();
        for (bytes, wanted) in [
            (vec![b'G'; 40], "it is no path of this version"),
            (b"daqpath0".repeat(4), "it is no path of this version"),
            (after_hello(head(1 << 40, 0)), "a block of 1099511627776 bytes"),
            (after_hello(head(4, 64)), "stream 64; there are 64 at most"),
            (after_hello(head(4, 0)), "it ended in the middle"),
            (
                after_hello(BlockHead { events: u64::MAX, ..head(4, 0) }),
                "events of a block is 18446744073709551615; the largest number taken is",
            ),
            (Vec::new(), "it ended in the middle"),
        ] {
            let line = reported(&bytes);
            assert!(line.starts_with(wanted) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn over_udp_blocks_with_missing_datagrams_are_left_out_and_others_compared() {
        let bind = || UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let (out, inward) = (bind(), bind());
        out.connect(inward.local_addr().unwrap()).unwrap();
        inward.connect(out.local_addr().unwrap()).unwrap();
        let block = vec![9; 3000];
        let head = |bytes: &[u8]| BlockHead {
            bytes: block.len() as u64,
            stream: 1,
            events: 2,
            sum: Some(sum(bytes)),
        };
        // Their datagrams have numbers in their heads: one of each sender is left out.
        let mut datagrams = crate::udp::Datagrams::new(1000);
        let elsewhere = bind();
        let nowhere = bind();
        elsewhere.connect(nowhere.local_addr().unwrap()).unwrap();
        let right = head(&block).emit();
        datagrams.send(&out, [&right, &block]).unwrap();
        datagrams.send(&elsewhere, [&right, &block]).unwrap();
        datagrams.send(&out, [&head(b"other").emit(), &block]).unwrap();
        let mut arrivals = Arrivals::new(inward);
        arrivals.rest(3).unwrap();
        let came = arrivals.blocks.came();
        assert_eq!((came.blocks(), came.verified, came.wrong), (2, 1, 1));
        assert_eq!((came.streams[1].blocks, came.streams[1].events), (2, 4));
        assert_eq!((came.bytes, came.strays), (6000, 0));
    }
}
