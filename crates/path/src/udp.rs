//! Blocks over UDP: each is cut into numbered datagrams and put together again if all of them came.
//! Nothing is sent again: a block with a missing or misordered datagram is lost. Losses are
//! counted, never guessed.
//!
//! ```text
//! datagram: number of the block (u64), where its bytes begin in the block (u32),
//!           bytes of the block (u32), the bytes
//! ```
//!
//! All numbers are little-endian. Datagrams cross the kernel in batches if it can (`UDP_SEGMENT`,
//! `UDP_GRO`).

use std::net::{SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_sys::net::{
    MAX_BATCH_BYTES, MAX_SEGMENTS, Readiness, enable_gro, receive, route_mtu, send, wait_ready,
};
use socket2::SockRef;

use crate::receiver::protocol::{BlockHead, ReceiverReport, count};

pub(crate) const LOST: &str = "lost on the way over UDP";
pub(crate) const SOCKET_BUFFER_BYTES: RangeInclusive<usize> = 4096..=256 << 20;
const HEAD_BYTES: usize = 16;
/// Time without a datagram after the end from which on none comes any more.
const QUIET: Duration = Duration::from_millis(200);
/// Time in which the socket takes a datagram.
const SEND_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    number: u64,
    at: u32,
    of: u32,
}

impl Head {
    fn emit(self) -> [u8; HEAD_BYTES] {
        let [number, at, of]: [u128; 3] = [self.number.into(), self.at.into(), self.of.into()];
        (number | at << 64 | of << 96).to_le_bytes()
    }

    /// Head of a datagram and its bytes; `None` if it is too short.
    #[allow(clippy::cast_possible_truncation, reason = "each field has its bits of the word")]
    fn parse(datagram: &[u8]) -> Option<(Head, &[u8])> {
        let (head, bytes) = datagram.split_first_chunk()?;
        let word = u128::from_le_bytes(*head);
        let (number, at, of) = (word as u64, (word >> 64) as u32, (word >> 96) as u32);
        Some((Head { number, at, of }, bytes))
    }
}

pub(crate) struct Datagrams {
    datagram_bytes: usize,
    batch: Vec<u8>,
    /// Number of the next block.
    pub(crate) number: u64,
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

    /// Sends a block of two parts, one behind the other, to the socket's peer.
    pub(crate) fn send(&mut self, socket: &UdpSocket, parts: [&[u8]; 2]) -> std::io::Result<()> {
        let total = parts[0].len() + parts[1].len();
        let of = u32::try_from(total).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        let piece_bytes = self.datagram_bytes - HEAD_BYTES;
        let most = match self.takes_batches {
            true => (MAX_BATCH_BYTES / self.datagram_bytes).clamp(1, MAX_SEGMENTS),
            false => 1,
        };
        for batch in (0..total).step_by(most * piece_bytes) {
            self.batch.clear();
            let batch_end = (batch + most * piece_bytes).min(total);
            for begin in (batch..batch_end).step_by(piece_bytes) {
                let at = u32::try_from(begin).expect("below `of`");
                self.batch.extend_from_slice(&Head { number: self.number, at, of }.emit());
                append(&mut self.batch, parts, begin, (begin + piece_bytes).min(total));
            }
            self.send_batch(socket)?;
        }
        self.number += 1;
        Ok(())
    }

    fn send_batch(&mut self, socket: &UdpSocket) -> std::io::Result<()> {
        let (bytes, each) = (&self.batch[..], self.datagram_bytes);
        let send = |bytes: &[u8]| send(socket.as_fd(), bytes, each, None).map(drop);
        if self.takes_batches {
            let sent = send(bytes);
            // EINVAL, EIO: this route takes no batches.
            let refused = |error: &std::io::Error| matches!(error.raw_os_error(), Some(22 | 5));
            self.takes_batches = bytes.len() <= each || !sent.as_ref().is_err_and(refused);
            if self.takes_batches {
                return sent;
            }
        }
        bytes.chunks(each).try_for_each(send)
    }
}

/// Appends a range of two parts that lie one behind the other.
fn append(to: &mut Vec<u8>, [first, second]: [&[u8]; 2], from: usize, end: usize) {
    let border = first.len();
    to.extend_from_slice(&first[from.min(border)..end.min(border)]);
    to.extend_from_slice(&second[from.max(border) - border..end.max(border) - border]);
}

/// Blocks that are put together of datagrams, if all of them come in order.
#[derive(Default)]
pub struct ReceivedDatagrams {
    pub came: ReceiverReport,
    /// Number of the block that is put together, and the bytes that its first head promised.
    now: Option<(u64, usize)>,
    /// Number of the block after the last whole one.
    behind_whole: u64,
    /// Bytes of the block that came: memory follows them, whatever a head promises.
    block: Vec<u8>,
    /// Longest block that is taken.
    most_bytes: usize,
}

impl ReceivedDatagrams {
    pub fn of_at_most(most_bytes: usize) -> ReceivedDatagrams {
        ReceivedDatagrams { most_bytes, ..ReceivedDatagrams::default() }
    }

    /// Takes a datagram as it came; one without a head is left out. Fails for a block that is too
    /// long, or whose head is invalid.
    pub fn receive(&mut self, datagram: &[u8]) -> Result<(), String> {
        let Some((Head { number, at, of }, bytes)) = Head::parse(datagram) else {
            return Ok(());
        };
        let (at, of) = (at as usize, of as usize);
        if of > self.most_bytes + BlockHead::BYTES {
            return Err(format!("a block of {of} bytes; {} is the most", self.most_bytes));
        }
        // This is the first datagram of a block: missing ones before it are of lost blocks.
        if at == 0 && self.now.is_none_or(|(now, _)| number > now) {
            self.now = Some((number, of));
            self.block.clear();
        }
        let end = at.saturating_add(bytes.len());
        let is_next = self.now == Some((number, of)) && at == self.block.len() && end <= of;
        if !is_next || bytes.is_empty() {
            self.came.strays += 1;
            count(3, 1);
            return Ok(());
        }
        self.block.extend_from_slice(bytes);
        if end < of {
            return Ok(());
        }
        count(4, number.saturating_sub(self.behind_whole));
        self.behind_whole = number.saturating_add(1);
        self.came.receive(&self.block)
    }
}

/// Socket from which blocks are received.
pub(crate) struct Arrivals {
    pub(crate) socket: UdpSocket,
    buffer: Vec<u8>,
    pub(crate) blocks: ReceivedDatagrams,
}

impl Arrivals {
    pub(crate) fn new(socket: UdpSocket, most_bytes: usize) -> Arrivals {
        // Datagrams come one by one if the kernel has no batches.
        let _ = enable_gro(socket.as_fd());
        let blocks = ReceivedDatagrams::of_at_most(most_bytes);
        Arrivals { socket, buffer: vec![0; 1 << 16], blocks }
    }

    /// Takes all datagrams that came.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        use std::io::ErrorKind::{Interrupted, WouldBlock};
        loop {
            let received = match receive(self.socket.as_fd(), &mut self.buffer, false) {
                Ok(received) => received,
                Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => return Ok(()),
                Err(error) => return Err(format!("udp: {error}")),
            };
            let datagrams = self.buffer[..received.bytes].chunks(received.segment_bytes.max(1));
            for datagram in datagrams {
                self.blocks.receive(datagram)?;
            }
        }
    }

    /// Takes datagrams until the last of these blocks has come, or no more come.
    pub(crate) fn rest(&mut self, sent: u64) -> Result<(), String> {
        loop {
            self.drain()?;
            let lost = sent.saturating_sub(self.blocks.behind_whole);
            if lost == 0 {
                return Ok(());
            }
            let read = Readiness { read: true, write: false };
            let ready = wait_ready(self.socket.as_fd(), read, Some(QUIET));
            if !ready.map_err(|error| format!("udp: {error}"))?.read {
                count(4, lost);
                return Ok(());
            }
        }
    }
}

/// Asks for a receive buffer of a socket; returns the bytes that the kernel granted.
pub(crate) fn granted_bytes(socket: &UdpSocket, asked_bytes: usize) -> std::io::Result<u64> {
    let socket = SockRef::from(socket);
    socket.set_recv_buffer_size(asked_bytes)?;
    // The kernel doubles what it grants, for its own accounts: socket(7).
    Ok(socket.recv_buffer_size()? as u64 / 2)
}

/// Connects a socket to its peer and checks that datagrams go there in one piece.
pub(crate) fn connect(
    socket: &UdpSocket,
    to: SocketAddr,
    datagram_bytes: usize,
) -> Result<(), Fault> {
    let failed = |error: std::io::Error| Fault::new(format!("udp: {to}: {error}"));
    socket.connect(to).map_err(failed)?;
    socket.set_write_timeout(Some(SEND_WITHIN)).map_err(failed)?;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::receiver::protocol::MAX_BLOCK_BYTES;
    use daqmeter_hostio::sum::sum;

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
        assert_eq!(longest(1500, false), 1472);
        assert_eq!((longest(1500, true), longest(65_535, false)), (1452, 65_507));
        assert_eq!(longest(10, true), 0);
    }

    #[test]
    fn a_block_in_batches_and_one_by_one_comes_whole_and_is_compared() {
        for takes_batches in [true, false] {
            let (out, inward) = pair();
            let mut datagrams = Datagrams { takes_batches, ..Datagrams::new(1000) };
            let mut arrivals = Arrivals::new(inward, MAX_BLOCK_BYTES);
            let block: Vec<u8> = (0..=250).cycle().take(10_001).collect();
            let head = |sum| BlockHead { stream: 1, events: 2, sum: Some(sum) }.emit();
            for sum in [sum(&block), 0] {
                datagrams.send(&out, [&head(sum), &block]).unwrap();
            }
            arrivals.rest(2).unwrap();
            let came = &arrivals.blocks.came;
            assert_eq!((came.blocks(), came.verified, came.wrong), (2, 1, 1));
            assert_eq!((came.bytes, came.stream(1).events, came.strays), (20_002, 4, 0));
            assert_eq!(datagrams.number, 2);
        }
    }

    /// Regression: 17 bytes took 256 MiB, by the length in their head.
    #[test]
    fn memory_follows_the_bytes_that_came_and_not_a_head() {
        let datagram = |of| [&Head { number: 0, at: 0, of }.emit()[..], &[1]].concat();
        let mut received = ReceivedDatagrams::of_at_most(1 << 20);
        received.receive(&datagram(1 << 20)).unwrap();
        assert!((1..64).contains(&received.block.capacity()));
        let refused = received.receive(&datagram(2 << 20)).unwrap_err();
        assert_eq!(refused, "a block of 2097152 bytes; 1048576 is the most");
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
        /// After any trouble a block that is booked has the bytes that were sent, and one whose
        /// datagrams all came in order is booked.
        #[test]
        fn no_block_is_put_together_wrongly(troubles in troubles()) {
            let mut datagrams: Vec<Vec<u8>> = Vec::new();
            for number in 0..3 {
                let block = [u8::try_from(number).unwrap(); 161];
                let head = BlockHead { stream: number, events: 1, sum: Some(sum(&block)) };
                let block = [&head.emit()[..], &block].concat();
                for (at, piece) in (0..).zip(block.chunks(21)) {
                    let head = Head { number, at: at * 21, of: 193 }.emit();
                    datagrams.push([&head[..], piece].concat());
                }
            }
            let is_clean = troubles.is_empty();
            for trouble in troubles {
                let all = datagrams.len();
                match trouble {
                    Trouble::Drop(at) => drop(datagrams.remove(at % all)),
                    Trouble::Twice(at) => datagrams.insert(at % all, datagrams[at % all].clone()),
                    Trouble::Swap(a, b) => datagrams.swap(a % all, b % all),
                }
            }
            let mut received = ReceivedDatagrams::of_at_most(161);
            for datagram in datagrams {
                received.receive(&datagram).unwrap();
            }
            let came = received.came;
            prop_assert_eq!((came.wrong, came.verified), (0, came.blocks()));
            prop_assert!(!is_clean || came.blocks() == 3);
        }
    }
}
