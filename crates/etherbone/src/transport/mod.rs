//! Ways to a slave. A transport carries bytes and does not interpret them.

mod datagram;
pub(crate) mod emulated;
mod stream;
mod tunnel;

use std::os::fd::AsFd;
use std::time::Duration;

use daqmeter_harness::StopFlag;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_wire::etherbone::DATAGRAM_BYTES;
use socket2::SockRef;

use crate::address::Address;
use crate::{EbDialect, EbError};

pub(crate) use datagram::batch;
pub use emulated::{BRIDGES, Bridge, Emulated};
pub(crate) use stream::ByteStream;
pub(crate) use tunnel::frame_bytes;

pub(crate) const RECEIVE_BYTES: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Datagram,
    Stream,
    /// Bytes without borders, in which a message header begins each message (TCP of the C library
    /// of 2014). The other side takes one receive for one message, so only one may be on its way.
    Messages,
}

/// Longest message that the C library of 2014 receives at once on TCP.
pub(crate) const MESSAGE_BYTES: usize = 4000;

impl Framing {
    pub(crate) fn message_bytes(self) -> Option<usize> {
        match self {
            Framing::Datagram => Some(DATAGRAM_BYTES),
            Framing::Stream => None,
            Framing::Messages => Some(MESSAGE_BYTES),
        }
    }

    pub(crate) fn is_stream(self) -> bool {
        self != Framing::Datagram
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub bytes: usize,
    /// Bytes of each datagram except perhaps the last; on a stream equal to `bytes`.
    pub segment_bytes: usize,
}

/// A way to a slave, full duplex.
pub trait EbTransport: Send {
    fn framing(&self) -> Framing;

    fn window_bytes(&self) -> usize {
        64 * 1024
    }

    /// Sends the datagrams in `bytes`, of the given lengths; a stream ignores the lengths. A stream
    /// may take only part: the rest waits in the transport until the next call.
    fn send(&mut self, bytes: &[u8], lengths: &[usize]) -> Result<(), EbError>;

    /// Waits for bytes at most the given time; `None` as the result means that nothing came. A time
    /// of zero polls.
    fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> Result<Option<Arrived>, EbError>;
}

/// Waits for bytes as [`EbTransport::receive`] does, and ends within a tenth of a second after a
/// stop flag is set.
pub(crate) fn receive(
    way: &mut dyn EbTransport,
    buffer: &mut [u8],
    wait: Duration,
    stop: &StopFlag,
) -> Result<Option<Arrived>, EbError> {
    let mut left = wait;
    while !stop.is_set() {
        let part = left.min(Duration::from_millis(100));
        let arrived = way.receive(buffer, part)?;
        left -= part;
        if arrived.is_some() || left.is_zero() {
            return Ok(arrived);
        }
    }
    Err(EbError::Interrupted)
}

pub(crate) fn open(
    address: &Address,
    dialect: EbDialect,
    timeout: Duration,
) -> Result<Box<dyn EbTransport>, EbError> {
    Ok(match address {
        Address::Udp(host) => Box::new(datagram::Udp::connect(host, dialect)?),
        Address::Tcp(host) => Box::new(ByteStream::connect(host, timeout)?),
        Address::Dev(name) => Box::new(ByteStream::device(name)?.without_stale(name)?),
        Address::Tunnel { proxy, target } => {
            Box::new(tunnel::Tunnel::connect(proxy, target, timeout)?)
        }
        Address::Emulated(bridge) => Box::new(bridge.transport()?),
    })
}

/// The receive timeout of a socket. A change is a system call: the old one stays while it is near
/// enough.
#[derive(Default)]
struct ReadTimeout(Option<Duration>);

impl ReadTimeout {
    fn set(&mut self, socket: &impl AsFd, wait: Duration) -> Result<(), EbError> {
        if self.0.is_none_or(|set| set > wait || set < wait / 2) {
            let changed = SockRef::from(socket).set_read_timeout(Some(wait));
            changed.map_err(EbError::io("cannot set a timeout"))?;
            self.0 = Some(wait);
        }
        Ok(())
    }
}

/// Waits until a monotonic time. It sleeps first and then spins, because a sleep ends tens of
/// microseconds late.
pub(crate) fn wait_until(time_ns: u64) {
    const SPIN_NS: u64 = 150_000;
    loop {
        let left_ns = time_ns.saturating_sub(monotonic_ns());
        match left_ns {
            0 => return,
            1..=SPIN_NS => std::hint::spin_loop(),
            _ => std::thread::sleep(Duration::from_nanos(left_ns - SPIN_NS)),
        }
    }
}
