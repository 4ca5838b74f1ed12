//! A receiver on another host: the end of a path sends its blocks there, over TCP or UDP, and it says what came.
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
//! All numbers are little-endian, of 8 bytes. Over UDP blocks go in datagrams (`udp.rs`) between the two ports, everything else over TCP.
//! A receiver waits for as long as its sender lives, whose source may wait for triggers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use daqmeter_harness::StopFlag;
use daqmeter_record::units::show_bytes;
use daqmeter_sys::net::{Epoll, Readiness, wait_ready};
use socket2::{SockRef, TcpKeepalive};

use crate::sum::sum;
use crate::tcp::PATIENCE;
use crate::udp::{Arriving, Assembly, SOCKET_BUFFER_BYTES, SocketBuffer, Step};

pub(crate) const MAGIC: &[u8; 8] = b"daqpath1";
/// Longest block that a path may have, here of a peer that may be anybody.
const MAX_BLOCK_BYTES: usize = 256 << 20;
/// Most threads of a source, each of which is a stream.
const MAX_STREAMS: usize = 64;
/// How often a quiet sender is asked whether it lives.
const ALIVE: Duration = Duration::from_secs(10);
/// How often a receiver that waits looks whether it shall stop.
const LOOK: Duration = Duration::from_millis(100);
/// After the end no datagram comes any more when none came for so long.
const QUIET: Duration = Duration::from_millis(200);

const READ: Readiness = Readiness {
    read: true,
    write: false,
};

/// How blocks come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// What a sender asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) transport: Transport,
    pub(crate) udp_port: u16,
    pub(crate) socket_buffer_bytes: u64,
}

impl Hello {
    pub(crate) const BYTES: usize = 32;

    pub(crate) fn emit(self) -> Vec<u8> {
        let transport = match self.transport {
            Transport::Tcp => 0,
            Transport::Udp => 1,
        };
        let fields = [
            u64::from_le_bytes(*MAGIC),
            transport,
            self.udp_port.into(),
            self.socket_buffer_bytes,
        ];
        words(&fields)
    }

    fn parse(bytes: &[u8; Hello::BYTES]) -> Option<Hello> {
        let [magic, transport, port, socket_buffer_bytes] = numbers(bytes)?;
        let transport = match transport {
            0 => Transport::Tcp,
            1 => Transport::Udp,
            _ => return None,
        };
        let is_ours = magic == u64::from_le_bytes(*MAGIC);
        is_ours.then_some(Hello {
            transport,
            udp_port: u16::try_from(port).ok()?,
            socket_buffer_bytes,
        })
    }
}

/// What a receiver grants: its UDP port, which is zero for TCP, and the socket's buffer.
pub(crate) const WELCOME_BYTES: usize = 24;

/// What is known of a block beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockHead {
    /// Of the block; zero at the end.
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) events: u64,
    /// Its sum, where it is known beforehand.
    pub(crate) sum: Option<u64>,
}

impl BlockHead {
    pub(crate) const BYTES: usize = 40;

    pub(crate) fn emit(self) -> [u8; BlockHead::BYTES] {
        let mut out = [0; BlockHead::BYTES];
        let sum = self.sum;
        let fields = [
            self.bytes,
            self.stream,
            self.events,
            u64::from(sum.is_some()),
            sum.unwrap_or(0),
        ];
        for (place, field) in out.as_chunks_mut::<8>().0.iter_mut().zip(fields) {
            *place = field.to_le_bytes();
        }
        out
    }

    fn parse(bytes: &[u8]) -> Result<BlockHead, String> {
        let fields = numbers(bytes).ok_or("a block without its head")?;
        let [bytes, stream, events, is_known, sum] = fields;
        if bytes > MAX_BLOCK_BYTES as u64 {
            return Err(format!(
                "a block of {bytes} bytes; {MAX_BLOCK_BYTES} is the most"
            ));
        }
        if stream >= MAX_STREAMS as u64 {
            return Err(format!("stream {stream}; there are {MAX_STREAMS} at most"));
        }
        Ok(BlockHead {
            bytes,
            stream,
            events,
            sum: (is_known == 1).then_some(sum),
        })
    }
}

/// What came of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfStream {
    pub(crate) blocks: u64,
    pub(crate) events: u64,
}

/// What came of one sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Came {
    /// Bytes of all blocks.
    pub bytes: u64,
    /// Blocks whose bytes were known beforehand and were these.
    pub verified: u64,
    /// Blocks whose bytes were known beforehand and were others.
    pub wrong: u64,
    /// Datagrams that belonged to no block: twice there, or out of order.
    pub strays: u64,
    pub(crate) streams: [OfStream; MAX_STREAMS],
}

impl Default for Came {
    fn default() -> Came {
        Came {
            bytes: 0,
            verified: 0,
            wrong: 0,
            strays: 0,
            streams: [OfStream::default(); MAX_STREAMS],
        }
    }
}

impl Came {
    pub(crate) const BYTES: usize = 8 * (4 + 2 * MAX_STREAMS);

    /// Blocks of all streams.
    pub fn blocks(&self) -> u64 {
        self.streams.iter().map(|stream| stream.blocks).sum()
    }

    /// In words.
    pub fn text(&self) -> String {
        let wrong = match self.wrong {
            0 => String::new(),
            wrong => format!(", {wrong} with other bytes than were sent"),
        };
        format!(
            "{} blocks, {}, the bytes of {} compared{wrong}",
            self.blocks(),
            show_bytes(self.bytes),
            self.verified + self.wrong
        )
    }

    pub(crate) fn book(&mut self, head: &BlockHead, found: Option<u64>) {
        let stream = usize::try_from(head.stream).unwrap_or(usize::MAX);
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.blocks += 1;
            stream.events = stream.events.saturating_add(head.events);
        }
        self.bytes = self.bytes.saturating_add(head.bytes);
        if let Some((wanted, found)) = head.sum.zip(found) {
            self.verified += u64::from(wanted == found);
            self.wrong += u64::from(wanted != found);
        }
    }

    fn receive(&mut self, head: &BlockHead, block: &[u8]) {
        self.book(head, head.sum.map(|_| sum(block)));
    }

    fn emit(&self) -> Vec<u8> {
        let mut fields = vec![self.bytes, self.verified, self.wrong, self.strays];
        fields.extend(self.streams.iter().flat_map(|one| [one.blocks, one.events]));
        words(&fields)
    }

    pub(crate) fn parse(bytes: &[u8; Came::BYTES]) -> Came {
        let mut fields = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|field| u64::from_le_bytes(*field));
        let mut next = || fields.next().unwrap_or(0);
        Came {
            bytes: next(),
            verified: next(),
            wrong: next(),
            strays: next(),
            streams: std::array::from_fn(|_| OfStream {
                blocks: next(),
                events: next(),
            }),
        }
    }
}

fn words(fields: &[u64]) -> Vec<u8> {
    fields
        .iter()
        .flat_map(|field| field.to_le_bytes())
        .collect()
}

/// The first numbers of some bytes.
pub(crate) fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let fields = bytes.as_chunks::<8>().0.first_chunk::<N>()?;
    Some(fields.map(u64::from_le_bytes))
}

/// Receives from one sender after the other until it shall stop, and says of each what came.
///
/// # Errors
/// When the listener fails.
pub fn serve(
    listener: &TcpListener,
    stop: &StopFlag,
    mut each: impl FnMut(SocketAddr, Result<Came, String>),
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    while !stop.is_set() {
        match listener.accept() {
            Ok((stream, peer)) => each(peer, received(stream, peer, stop)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_ready(listener.as_fd(), READ, Some(LOOK))?;
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Everything of one sender.
fn received(stream: TcpStream, peer: SocketAddr, stop: &StopFlag) -> Result<Came, String> {
    let mut sender = Sender { stream, stop };
    sender.set_up().map_err(|error| error.to_string())?;
    let mut hello = [0; Hello::BYTES];
    sender.read(&mut hello, Some(PATIENCE))?;
    let Some(hello) = Hello::parse(&hello) else {
        return Err("it is no path of this version of daqmeter".to_owned());
    };
    match hello.transport {
        Transport::Tcp => {
            sender.write(&welcome(0, SocketBuffer::default()))?;
            sender.over_tcp()
        }
        Transport::Udp => sender.over_udp(SocketAddr::new(peer.ip(), hello.udp_port), hello),
    }
}

fn welcome(udp_port: u16, buffer: SocketBuffer) -> Vec<u8> {
    words(&[
        u64::from_le_bytes(*MAGIC),
        udp_port.into(),
        buffer.granted_bytes,
    ])
}

/// A sender, who is waited for until this shall stop: its source may wait for triggers.
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
        self.stream
            .write_all(bytes)
            .map_err(|error| error.to_string())
    }

    /// Waits for these bytes, for ever or so long.
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

    fn over_tcp(&mut self) -> Result<Came, String> {
        let (mut came, mut block) = (Came::default(), Vec::new());
        loop {
            let mut head = [0; BlockHead::BYTES];
            self.read(&mut head, None)?;
            let head = BlockHead::parse(&head)?;
            if head.bytes == 0 {
                return self.write(&came.emit()).map(|()| came);
            }
            let bytes = usize::try_from(head.bytes).map_err(|error| error.to_string())?;
            if block.len() < bytes {
                block.resize(bytes, 0);
            }
            self.read(&mut block[..bytes], None)?;
            came.receive(&head, &block[..bytes]);
        }
    }

    fn over_udp(&mut self, peer: SocketAddr, hello: Hello) -> Result<Came, String> {
        let wrong = |error: std::io::Error| format!("udp: {error}");
        let here = self.stream.local_addr().map_err(wrong)?.ip();
        let socket = UdpSocket::bind((here, 0)).map_err(wrong)?;
        socket.connect(peer).map_err(wrong)?;
        let (min, max) = SOCKET_BUFFER_BYTES.into_inner();
        let asked = hello.socket_buffer_bytes.clamp(min, max);
        let asked = usize::try_from(asked).map_err(|error| error.to_string())?;
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
        self.write(&arrivals.came.emit())?;
        Ok(arrivals.came)
    }
}

/// Blocks that come over UDP.
struct Arrivals {
    arriving: Arriving,
    came: Came,
    /// Of the block behind the one that is put together.
    next: u64,
    /// Of the block behind the last that is whole.
    behind_whole: u64,
    assembly: Assembly,
    block: Vec<u8>,
}

impl Arrivals {
    fn new(socket: UdpSocket) -> Arrivals {
        Arrivals {
            arriving: Arriving::new(socket),
            came: Came::default(),
            next: 0,
            behind_whole: 0,
            assembly: Assembly::new(0),
            block: Vec::new(),
        }
    }

    /// Takes all that is there.
    fn drain(&mut self) -> Result<(), String> {
        loop {
            let next = self.arriving.next(false);
            let Some((head, bytes)) = next.map_err(|error| format!("udp: {error}"))? else {
                return Ok(());
            };
            let of = head.of as usize;
            if of > MAX_BLOCK_BYTES + BlockHead::BYTES {
                return Err(format!(
                    "a block of {of} bytes; {MAX_BLOCK_BYTES} is the most"
                ));
            }
            // The first datagram of a block: those that are missing before it are of blocks that are lost.
            if head.at == 0 && head.number >= self.next {
                self.next = head.number.saturating_add(1);
                self.assembly = Assembly::new(head.number);
                self.block.resize(of, 0);
            }
            let step = self.assembly.add(head, bytes, &mut self.block);
            self.arriving.take();
            match step {
                Step::Part => {}
                Step::Whole => self.is_whole()?,
                // Of a block whose beginning is missing.
                Step::Later | Step::Stray => self.came.strays += 1,
            }
        }
    }

    fn is_whole(&mut self) -> Result<(), String> {
        self.behind_whole = self.next;
        let head = BlockHead::parse(&self.block)?;
        let block = &self.block[BlockHead::BYTES..];
        if block.len() as u64 != head.bytes {
            return Err("a block of another length than its head says".to_owned());
        }
        self.came.receive(&head, block);
        Ok(())
    }

    /// What is still on the way when all was sent.
    fn rest(&mut self, sent: u64) -> Result<(), String> {
        loop {
            self.drain()?;
            if self.behind_whole >= sent {
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
    use super::*;

    #[test]
    fn what_came_is_the_same_at_both_ends() {
        let mut came = Came::default();
        let head = BlockHead {
            bytes: 4096,
            stream: 3,
            events: 5,
            sum: Some(7),
        };
        came.book(&head, Some(7));
        came.book(&head, Some(8));
        let unknown = BlockHead { sum: None, ..head };
        came.book(&unknown, None);
        let bytes = came.emit();
        let back = Came::parse(bytes.first_chunk().unwrap());
        assert_eq!(bytes.len(), Came::BYTES);
        assert_eq!(back, came);
        assert_eq!((came.blocks(), came.verified, came.wrong), (3, 1, 1));
        assert_eq!((came.streams[3].events, came.bytes), (15, 3 * 4096));
        for head in [head, unknown] {
            assert_eq!(BlockHead::parse(&head.emit()), Ok(head));
        }
        let hello = Hello {
            transport: Transport::Udp,
            udp_port: 5010,
            socket_buffer_bytes: 1 << 20,
        };
        let bytes = hello.emit();
        assert_eq!(Hello::parse(bytes.first_chunk().unwrap()), Some(hello));
    }

    /// What a receiver says of a peer that sends these bytes and goes.
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

    #[test]
    fn a_peer_that_is_no_path_or_sends_too_much_or_ends_early_is_refused_in_a_line() {
        let hello = Hello {
            transport: Transport::Tcp,
            udp_port: 0,
            socket_buffer_bytes: 0,
        }
        .emit();
        let head = |bytes, stream| BlockHead {
            bytes,
            stream,
            ..BlockHead::default()
        };
        let after_hello = |head: BlockHead| [&hello[..], &head.emit()].concat();
        for (bytes, wanted) in [
            (vec![b'G'; 40], "it is no path of this version"),
            (b"daqpath0".repeat(4), "it is no path of this version"),
            (
                after_hello(head(1 << 40, 0)),
                "a block of 1099511627776 bytes",
            ),
            (after_hello(head(4, 64)), "stream 64; there are 64 at most"),
            (after_hello(head(4, 0)), "it ended in the middle"),
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
        datagrams
            .send(&out, [&head(b"other").emit(), &block])
            .unwrap();
        let mut arrivals = Arrivals::new(inward);
        arrivals.rest(3).unwrap();
        let came = arrivals.came;
        assert_eq!((came.blocks(), came.verified, came.wrong), (2, 1, 1));
        assert_eq!((came.streams[1].blocks, came.streams[1].events), (2, 4));
        assert_eq!((came.bytes, came.strays), (6000, 0));
    }
}
