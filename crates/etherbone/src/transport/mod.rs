//! Ways to a slave. A transport carries bytes and does not interpret them.

mod datagram;
mod emulated;
mod faulty;
mod stream;
mod tunnel;

use std::time::Duration;

use crate::address::Address;
use crate::{EbDialect, EbError};

pub(crate) use datagram::batch;
pub use emulated::{Bridge, Emulated, bridges};
pub use faulty::Faulty;
pub(crate) use stream::open_device;
pub(crate) use tunnel::{connect_tcp, read_frame};

pub const RECEIVE_BYTES: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Datagram {
        max_bytes: usize,
    },
    Stream,
    /// Bytes without borders, in which a message header begins each message (TCP of the C library
    /// of 2014). The other side takes one receive for one message, so only one may be on its way.
    Messages {
        max_bytes: usize,
    },
}

impl Framing {
    pub(crate) fn message_bytes(self) -> Option<usize> {
        match self {
            Framing::Datagram { max_bytes } | Framing::Messages { max_bytes } => Some(max_bytes),
            Framing::Stream => None,
        }
    }

    pub(crate) fn is_stream(self) -> bool {
        !matches!(self, Framing::Datagram { .. })
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

pub fn open(
    address: &Address,
    dialect: EbDialect,
    timeout: Duration,
) -> Result<Box<dyn EbTransport>, EbError> {
    Ok(match address {
        Address::Udp(family, host) => Box::new(datagram::Udp::connect(host, *family, dialect)?),
        Address::Tcp(family, host) => Box::new(stream::Tcp::connect(host, *family, timeout)?),
        Address::Dev(name) => Box::new(stream::Dev::open(name)?),
        Address::Tunnel { family, proxy, target } => {
            Box::new(tunnel::Tunnel::connect(proxy, *family, target, timeout)?)
        }
        Address::Emulated(bridge) => Bridge::named(bridge)?.transport()?,
    })
}
