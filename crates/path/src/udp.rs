//! Blocks over UDP: each is cut into numbered datagrams and put together again if all of them came.
//! Nothing is sent again: a block with a missing or misordered datagram is lost. Losses are
//! counted, never guessed.
//!
//! ```text
//! datagram: number of the block (u64), where its bytes begin in the block (u32), bytes of the block (u32), the bytes
//! ```
//!
//! All numbers are little-endian. Datagrams cross the kernel in batches if it can (`UDP_SEGMENT`,
//! `UDP_GRO`).

use std::net::{SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_record::Counter;
use daqmeter_record::units::show_bytes;
use daqmeter_sys::net::{MAX_BATCH_BYTES, MAX_SEGMENTS, enable_gro, receive, route_mtu, send};
use socket2::SockRef;

use crate::cancel::Cuts;
use crate::element::{BlockReceiver, BlockSender, ConnectionStats, Work};
use crate::tcp::PATIENCE;

pub(crate) const LOST: &str = "lost on the way over UDP";
const HEAD_BYTES: usize = 16;
/// Bytes of a datagram, head included: some payload at least, and at most what IPv4 takes (RFC 768,
/// RFC 791).
pub(crate) const DATAGRAM_BYTES: RangeInclusive<u64> = 64..=65_507;
pub(crate) const USUAL_DATAGRAM_BYTES: usize = 1472;
pub(crate) const SOCKET_BUFFER_BYTES: RangeInclusive<u64> = 4096..=256 << 20;
pub(crate) const USUAL_SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Time without a datagram after which a receiver waits no more, once all was sent: on loopback
/// datagrams come at once.
const QUIET: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UdpWay {
    pub(crate) datagram_bytes: usize,
    /// Size of the socket's receive buffer that is asked of the kernel.
    pub(crate) socket_buffer_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) number: u64,
    pub(crate) at: u32,
    pub(crate) of: u32,
}

impl Head {
    fn emit(self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        out[..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..12].copy_from_slice(&self.at.to_le_bytes());
        out[12..].copy_from_slice(&self.of.to_le_bytes());
        out
    }

    /// Head of a datagram and its bytes; `None` if it is too short.
    pub(crate) fn parse(datagram: &[u8]) -> Option<(Head, &[u8])> {
        let (head, bytes) = datagram.split_first_chunk::<HEAD_BYTES>()?;
        let (number, rest) = head.split_first_chunk::<8>()?;
        let (at, of) = rest.split_first_chunk::<4>()?;
        let head = Head {
            number: u64::from_le_bytes(*number),
            at: u32::from_le_bytes(*at),
            of: u32::from_le_bytes(of.try_into().ok()?),
        };
        Some((head, bytes))
    }
}

pub(crate) struct Datagrams {
    datagram_bytes: usize,
    batch: Vec<u8>,
    number: u64,
    takes_batches: bool,
}

impl Datagrams {
    pub(crate) fn new(datagram_bytes: usize) -> Datagrams {
        Datagrams {
            datagram_bytes,
            batch: Vec::with_capacity(MAX_BATCH_BYTES),
            number: 0,
            takes_batches: true,
        }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.number
    }

    /// Sends a block of two parts, one behind the other, to the socket's peer.
    pub(crate) fn send(&mut self, socket: &UdpSocket, parts: [&[u8]; 2]) -> std::io::Result<()> {
        let total = parts[0].len() + parts[1].len();
        let of = u32::try_from(total).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        let piece_bytes = self.datagram_bytes - HEAD_BYTES;
        let most = match self.takes_batches {
            true => (MAX_BATCH_BYTES / self.datagram_bytes).clamp(1, MAX_SEGMENTS),
            false => 1,
        };
        let mut at = 0;
        while at < total {
            self.batch.clear();
            for _ in 0..most {
                if at == total {
                    break;
                }
                let end = (at + piece_bytes).min(total);
                let head =
                    Head { number: self.number, at: u32::try_from(at).expect("below `of`"), of };
                self.batch.extend_from_slice(&head.emit());
                append(&mut self.batch, parts, at, end);
                at = end;
            }
            self.send_batch(socket)?;
        }
        self.number += 1;
        Ok(())
    }

    fn send_batch(&mut self, socket: &UdpSocket) -> std::io::Result<()> {
        let (bytes, each) = (&self.batch[..], self.datagram_bytes);
        if self.takes_batches || bytes.len() <= each {
            match send(socket.as_fd(), bytes, each, None) {
                Ok(_) => return Ok(()),
                // This route takes no batches.
                Err(error) if bytes.len() > each && is_no_batch(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.takes_batches = false;
        for datagram in bytes.chunks(each) {
            send(socket.as_fd(), datagram, each, None)?;
        }
        Ok(())
    }
}

/// True for EINVAL and EIO: see [`send`].
fn is_no_batch(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(22 | 5))
}

/// Appends a range of two parts that lie one behind the other.
fn append(to: &mut Vec<u8>, [first, second]: [&[u8]; 2], from: usize, end: usize) {
    let border = first.len();
    to.extend_from_slice(&first[from.min(border)..end.min(border)]);
    to.extend_from_slice(&second[from.max(border) - border..end.max(border) - border]);
}

pub(crate) struct Arriving {
    pub(crate) socket: UdpSocket,
    buffer: Vec<u8>,
    left: (usize, usize),
    datagram_bytes: usize,
}

impl Arriving {
    pub(crate) fn new(socket: UdpSocket) -> Arriving {
        // Datagrams come one by one if the kernel has no batches.
        let _ = enable_gro(socket.as_fd());
        Arriving { socket, buffer: vec![0; 1 << 16], left: (0, 0), datagram_bytes: 0 }
    }

    /// Next datagram, again and again until it is [taken](Arriving::take). `None` after the
    /// socket's time, or at once if `waits` is false. A datagram without a head is left out.
    pub(crate) fn next(&mut self, waits: bool) -> std::io::Result<Option<(Head, &[u8])>> {
        loop {
            let (at, end) = self.left;
            if at >= end {
                let received = match receive(self.socket.as_fd(), &mut self.buffer, waits) {
                    Ok(received) => received,
                    Err(error) if is_quiet(&error) => return Ok(None),
                    Err(error) => return Err(error),
                };
                self.left = (0, received.bytes);
                self.datagram_bytes = received.segment_bytes;
                continue;
            }
            let datagram = at..end.min(at + self.datagram_bytes);
            if Head::parse(&self.buffer[datagram.clone()]).is_some() {
                return Ok(Head::parse(&self.buffer[datagram]));
            }
            self.take();
        }
    }

    pub(crate) fn take(&mut self) {
        self.left.0 += self.datagram_bytes.max(1);
    }
}

fn is_quiet(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Assembly {
    number: u64,
    have: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Part,
    Whole,
    /// Of a later block: the current one is closed.
    Later,
    /// Of an earlier block, a duplicate, out of order, or of another length.
    Stray,
}

impl Assembly {
    pub(crate) fn new(number: u64) -> Assembly {
        Assembly { number, have: 0 }
    }

    pub(crate) fn add(&mut self, head: Head, bytes: &[u8], into: &mut [u8]) -> Step {
        if head.number > self.number {
            return Step::Later;
        }
        let end = self.have.saturating_add(bytes.len());
        let fits = head.of as usize == into.len() && end <= into.len();
        let is_next = head.number == self.number && head.at as usize == self.have;
        if !fits || !is_next || bytes.is_empty() {
            return Step::Stray;
        }
        into[self.have..end].copy_from_slice(bytes);
        self.have = end;
        match end == into.len() {
            true => Step::Whole,
            false => Step::Part,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketBuffer {
    pub(crate) asked_bytes: u64,
    pub(crate) granted_bytes: u64,
}

impl SocketBuffer {
    pub(crate) fn ask(socket: &UdpSocket, bytes: usize) -> std::io::Result<SocketBuffer> {
        let socket = SockRef::from(socket);
        socket.set_recv_buffer_size(bytes)?;
        // The kernel doubles what it grants, for its own accounts: socket(7).
        Ok(SocketBuffer {
            asked_bytes: bytes as u64,
            granted_bytes: socket.recv_buffer_size()? as u64 / 2,
        })
    }

    pub(crate) fn remarks(self) -> ConnectionStats {
        let bytes = |name: &str, value| Counter { unit: "B".into(), ..Counter::count(name, value) };
        let (asked, granted) = (self.asked_bytes, self.granted_bytes);
        let note = format!(
            "udp: {} of socket buffer were asked for and {} granted: net.core.rmem_max allows no more",
            show_bytes(asked),
            show_bytes(granted)
        );
        ConnectionStats {
            counters: vec![bytes("udp-buffer-asked", asked), bytes("udp-buffer-granted", granted)],
            notes: (granted < asked).then_some(note).into_iter().collect(),
            ..ConnectionStats::default()
        }
    }
}

/// Connects a socket to its peer and checks that datagrams go there in one piece.
pub(crate) fn connect(
    socket: &UdpSocket,
    to: SocketAddr,
    datagram_bytes: usize,
) -> Result<(), Fault> {
    let failed = |error: std::io::Error| Fault::new(format!("udp: {to}: {error}"));
    socket.connect(to).map_err(failed)?;
    socket.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let mtu = route_mtu(socket.as_fd(), to.is_ipv6()).map_err(failed)?;
    let most = longest(mtu, to.is_ipv6());
    match datagram_bytes <= most {
        true => Ok(()),
        false => Err(Fault::new(format!(
            "udp: datagrams of {datagram_bytes} bytes do not go to {to} in one piece: its route takes packets of {mtu}; write datagram = \"{most}B\" or less"
        ))),
    }
}

/// The longest datagram in a packet of that many bytes: less the headers of IP and UDP (RFC 791,
/// RFC 8200, RFC 768).
fn longest(mtu: usize, is_ipv6: bool) -> usize {
    mtu.saturating_sub(if is_ipv6 { 40 } else { 20 } + 8)
}

#[derive(Default)]
struct Between {
    sent: AtomicU64,
    is_over: AtomicBool,
}

struct UdpOut {
    socket: UdpSocket,
    datagrams: Datagrams,
    between: Arc<Between>,
}

struct UdpIn {
    arriving: Arriving,
    number: u64,
    /// Blocks before this one that have not come are lost: nothing came for a while after they were
    /// sent.
    lost_before: u64,
    strays: u64,
    buffer: SocketBuffer,
    between: Arc<Between>,
}

pub(crate) fn udp(way: UdpWay, cuts: &Cuts) -> Result<Work, Fault> {
    let failed = |error: std::io::Error| Fault::new(format!("udp: loopback: {error}"));
    let bind = || UdpSocket::bind(("127.0.0.1", 0)).map_err(failed);
    let (out, inward) = (bind()?, bind()?);
    let address = |socket: &UdpSocket| socket.local_addr().map_err(failed);
    connect(&out, address(&inward)?, way.datagram_bytes)?;
    inward.connect(address(&out)?).map_err(failed)?;
    inward.set_read_timeout(Some(QUIET)).map_err(failed)?;
    let buffer = SocketBuffer::ask(&inward, way.socket_buffer_bytes).map_err(failed)?;
    let between = Arc::new(Between::default());
    let cut = between.clone();
    cuts.add(move || cut.is_over.store(true, Ordering::Release));
    let out = UdpOut {
        socket: out,
        datagrams: Datagrams::new(way.datagram_bytes),
        between: between.clone(),
    };
    let inward = UdpIn {
        arriving: Arriving::new(inward),
        number: 0,
        lost_before: 0,
        strays: 0,
        buffer,
        between,
    };
    Ok(Work::Away(Box::new(out), Box::new(inward)))
}

impl BlockSender for UdpOut {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let sent = self.datagrams.send(&self.socket, [&[], bytes]);
        sent.map_err(|error| Fault::new(format!("udp: send: {error}")))?;
        let blocks = self.datagrams.blocks();
        self.between.sent.store(blocks, Ordering::Release);
        Ok(())
    }

    fn end(&mut self) {
        self.between.is_over.store(true, Ordering::Release);
    }
}

impl Drop for UdpOut {
    fn drop(&mut self) {
        self.end();
    }
}

impl BlockReceiver for UdpIn {
    fn read(&mut self, into: &mut [u8]) -> Result<bool, Fault> {
        let mut assembly = Assembly::new(self.number);
        self.number += 1;
        loop {
            // The flag is read before the wait: blocks sent by then have come when it is over.
            let is_over = self.between.is_over.load(Ordering::Acquire);
            let sent = self.between.sent.load(Ordering::Acquire);
            let waits = self.number > self.lost_before;
            let next = self.arriving.next(waits);
            let next = next.map_err(|error| Fault::new(format!("udp: receive: {error}")))?;
            let step = match next {
                Some((head, bytes)) => assembly.add(head, bytes, into),
                None if sent >= self.number => {
                    self.lost_before = sent;
                    return Ok(false);
                }
                None if is_over => return Err(Fault::new("udp: its sender ended")),
                None => continue,
            };
            if step == Step::Later {
                return Ok(false);
            }
            self.arriving.take();
            self.strays += u64::from(step == Step::Stray);
            if step == Step::Whole {
                return Ok(true);
            }
        }
    }

    fn loses(&self) -> Option<&'static str> {
        Some(LOST)
    }

    fn remarks(&self) -> ConnectionStats {
        let mut remarks = self.buffer.remarks();
        let strays = Counter::count("udp-datagrams-without-a-block", self.strays);
        remarks.counters.push(strays);
        remarks
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair() -> (UdpSocket, UdpSocket) {
        let bind = || UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let (out, inward) = (bind(), bind());
        connect(&out, inward.local_addr().unwrap(), 1000).unwrap();
        inward.connect(out.local_addr().unwrap()).unwrap();
        (out, inward)
    }

    #[test]
    fn heads_are_their_own_inverse() {
        let head = Head { number: 7, at: 8, of: 9 };
        let datagram = [&head.emit()[..], b"xy"].concat();
        assert_eq!(Head::parse(&datagram), Some((head, &b"xy"[..])));
        assert_eq!(Head::parse(&datagram[..15]), None);
    }

    #[test]
    fn a_datagram_fits_into_the_packets_of_its_route() {
        assert_eq!(longest(1500, false), USUAL_DATAGRAM_BYTES);
        assert_eq!((longest(1500, true), longest(65_535, false)), (1452, 65_507));
        assert_eq!(longest(10, true), 0);
    }

    #[test]
    fn a_block_in_batches_and_one_by_one_comes_whole() {
        for takes_batches in [true, false] {
            let (out, inward) = pair();
            let mut datagrams = Datagrams { takes_batches, ..Datagrams::new(1000) };
            let mut arriving = Arriving::new(inward);
            let block: Vec<u8> = (0..=250).cycle().take(10_001).collect();
            for number in 0..3 {
                datagrams.send(&out, [&block[..7], &block[7..]]).unwrap();
                let (mut assembly, mut back) = (Assembly::new(number), vec![0; block.len()]);
                loop {
                    let (head, bytes) = arriving.next(true).unwrap().unwrap();
                    let step = assembly.add(head, bytes, &mut back);
                    arriving.take();
                    if step == Step::Whole {
                        break;
                    }
                    assert_eq!(step, Step::Part);
                }
                assert_eq!(back, block);
            }
            assert_eq!(datagrams.blocks(), 3);
            assert!(arriving.next(false).unwrap().is_none());
        }
    }

    #[test]
    fn a_receiver_that_went_is_an_error_and_no_loss() {
        let (out, inward) = pair();
        drop(inward);
        let mut datagrams = Datagrams::new(1000);
        let mut send = || datagrams.send(&out, [&[], &[1; 100]]);
        // The first send's error, that there is no listener, is reported by a later one.
        let failed = (0..10).find_map(|_| send().err()).unwrap();
        assert_eq!(failed.kind(), std::io::ErrorKind::ConnectionRefused);
    }

    #[derive(Clone, Debug)]
    enum Trouble {
        Drop(usize),
        Twice(usize),
        Swap(usize, usize),
    }

    fn troubles() -> impl Strategy<Value = Vec<Trouble>> {
        let trouble = prop_oneof![
            (0..30_usize).prop_map(Trouble::Drop),
            (0..30_usize).prop_map(Trouble::Twice),
            (0..30_usize, 0..30_usize).prop_map(|(a, b)| Trouble::Swap(a, b)),
        ];
        proptest::collection::vec(trouble, 0..6)
    }

    proptest! {
        /// After any trouble a whole block has the bytes that were sent, and one whose datagrams
        /// all came in order is whole.
        #[test]
        fn no_block_is_put_together_wrongly(troubles in troubles()) {
            let blocks: Vec<Vec<u8>> = (0..3).map(|n| (0..=200).map(|at: u8| at ^ n).collect()).collect();
            let mut sent: Vec<(Head, Vec<u8>)> = Vec::new();
            for (number, block) in (0..).zip(&blocks) {
                for (at, piece) in (0..).zip(block.chunks(21)) {
                    sent.push((Head { number, at: at * 21, of: 201 }, piece.to_vec()));
                }
            }
            let is_clean = troubles.is_empty();
            for trouble in troubles {
                let all = sent.len();
                match trouble {
                    Trouble::Drop(at) => drop(sent.remove(at % all)),
                    Trouble::Twice(at) => sent.insert(at % all, sent[at % all].clone()),
                    Trouble::Swap(a, b) => sent.swap(a % all, b % all),
                }
            }
            let mut arriving = sent.into_iter().peekable();
            let mut whole = 0;
            for (number, block) in (0..).zip(&blocks) {
                let (mut assembly, mut into) = (Assembly::new(number), vec![0; block.len()]);
                while let Some((head, bytes)) = arriving.peek() {
                    let step = assembly.add(*head, bytes, &mut into);
                    if step == Step::Later {
                        break;
                    }
                    arriving.next();
                    if step == Step::Whole {
                        prop_assert_eq!(&into, block);
                        whole += 1;
                        break;
                    }
                }
            }
            prop_assert!(!is_clean || whole == 3);
        }
    }
}
