//! Pages between hosts. A publisher has an [`PageOutlet`], a receiver an [`PageInlet`] per
//! publisher; a [`PageTransport`] makes both.
//!
//! What subscribers may rely on:
//! - late: data from the subscription on; what came before is booked as not subscribed;
//! - slow: the publisher waits (and BUSY follows) or drops whole pages, as the scenario says;
//! - killed: what it has not acknowledged is booked to the network, and the publisher goes on;
//! - returning: it says which page it had last, so that the account of the old connection becomes
//!   exact.

pub mod bus;
pub mod tcp;
#[cfg(feature = "zenoh")]
pub mod zenoh;

use std::io::IoSlice;
use std::time::Duration;

use daqmeter_wire::felix::page::{FelixFrame, FrameError};
use serde::{Deserialize, Serialize};

use crate::scenario::Publish;

/// Why a transport cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The address is none, or taken, or nobody is there.
    #[error("{what} {address}: {source}")]
    Io {
        what: &'static str,
        /// With whom.
        address: String,
        source: std::io::Error,
    },
    /// The other side speaks something else.
    #[error("{address}: {source}")]
    Foreign { address: String, source: FrameError },
    /// The other side refused.
    #[error("{address} refuses: {why}")]
    Refused { address: String, why: String },
    /// Anything else, in one line.
    #[error("{0}")]
    Other(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublisherHello {
    /// Number of this publisher's life.
    pub stream: u64,
    /// Name of the scenario.
    pub scenario: String,
    /// Tags that it publishes.
    pub tags: Vec<u64>,
    /// Magic and size of its blocks, for pages of blocks.
    pub magic: u16,
    pub block_bytes: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// Number of this receiver's life.
    pub receiver: u64,
    /// Stream of the last page; a transport says nothing of the page to another one.
    #[serde(skip)]
    pub stream: u64,
    /// The last page received, 0 for none.
    pub last_page: u64,
    /// Tags; all that are offered where it is empty.
    pub tags: Vec<u64>,
}

impl Subscription {
    /// The subscription as it is sent to a stream.
    fn to(&self, stream: u64) -> Subscription {
        let last_page = if stream == self.stream { self.last_page } else { 0 };
        Subscription { last_page, ..self.clone() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutletEvent {
    /// A new destination.
    Subscribed { dest: usize, subscription: Subscription },
    /// Pages up to this number are done with.
    Acknowledged {
        /// Of this destination.
        dest: usize,
        /// Up to this page.
        sequence: u64,
    },
    /// It is no more.
    Gone {
        dest: usize,
        /// Why, for people.
        why: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Done,
    /// Not all: offer the same page again.
    Blocked,
    /// The destination is no more; an event follows.
    Gone,
}

/// The publishing end. It never waits.
pub trait PageOutlet: Send {
    fn address(&self) -> String;

    fn facts(&self) -> Vec<(String, String)>;

    /// Takes in what subscribers did.
    fn poll(&mut self, events: &mut Vec<OutletEvent>);

    /// Offers a frame to a destination.
    fn send(&mut self, dest: usize, frame: &FelixFrame, body: &[IoSlice<'_>]) -> Sent;

    /// Gives a destination up.
    fn close(&mut self, dest: usize);

    fn is_per_elink(&self) -> bool {
        false
    }
}

/// The receiving end of one publisher.
pub trait PageInlet: Send {
    fn hello(&self) -> &PublisherHello;

    /// The next frame with its body; `None` if none came in the time.
    ///
    /// # Errors
    /// When the connection is lost or the bytes are foreign; the inlet is of no use then.
    fn receive(&mut self, wait: Duration) -> Result<Option<(FelixFrame, &[u8])>, TransportError>;

    /// Says that pages up to this number are done with.
    ///
    /// # Errors
    /// When the connection is lost.
    fn acknowledge(&mut self, sequence: u64) -> Result<(), TransportError>;
}

/// A way between hosts.
pub trait PageTransport: Send + Sync {
    /// Makes the publishing end.
    ///
    /// # Errors
    /// When the address cannot be had.
    fn publish(
        &self,
        settings: &Publish,
        hello: &PublisherHello,
    ) -> Result<Box<dyn PageOutlet>, TransportError>;

    /// Connects to a publisher and subscribes. Ends within some seconds, and soon when `quit` says
    /// so.
    ///
    /// # Errors
    /// When nobody is there, or it is something else, or it refuses.
    fn subscribe(
        &self,
        settings: &Publish,
        subscription: &Subscription,
        quit: &dyn Fn() -> bool,
    ) -> Result<Box<dyn PageInlet>, TransportError>;
}

/// The transport of that name.
///
/// # Errors
/// When it was not built in.
pub fn named(name: &str) -> Result<Box<dyn PageTransport>, TransportError> {
    match name {
        "tcp" => Ok(Box::new(tcp::TcpTransport)),
        #[cfg(feature = "zenoh")]
        "zenoh" => Ok(Box::new(zenoh::ZenohTransport)),
        #[cfg(not(feature = "zenoh"))]
        "zenoh" => Err(TransportError::Other(
            "this daqmeter was built without zenoh: build it with --features zenoh".to_owned(),
        )),
        _ => Err(TransportError::Other(format!("there is no transport `{name}`; tcp or zenoh"))),
    }
}
