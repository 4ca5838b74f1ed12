//! Pages between hosts. A publisher has a [`PageOutlet`], a receiver a [`PageInlet`] per publisher.
//!
//! Guarantees to subscribers:
//! - late: data from the subscription on; what came before is booked as not subscribed;
//! - slow: the publisher waits (and BUSY follows) or drops whole pages, as the scenario says;
//! - gone: what it has not acknowledged is booked to the network, and the publisher goes on.

pub mod bus;
mod tcp;

pub use tcp::MAX_BODY_BYTES;

use std::time::Duration;

use daqmeter_wire::felix::page::FelixFrame;
use serde::{Deserialize, Serialize};

pub(crate) use self::tcp::{publish, subscribe};

#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The publisher refuses.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Other(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublisherHello {
    pub stream: u64,
    pub tags: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    pub receiver: u64,
    /// Tags; all that are offered if it is empty.
    pub tags: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutletEvent {
    /// A new destination.
    Subscribed { dest: usize, subscription: Subscription },
    /// Pages up to this number are done with.
    Acknowledged {
        /// Destination that acknowledges.
        dest: usize,
        sequence: u64,
    },
    /// The destination is gone.
    Gone {
        dest: usize,
        /// Reason, for the user.
        why: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Done,
    /// Not all was taken: offer the same page again.
    Blocked,
    Gone,
}

/// The publishing end. It never waits.
pub trait PageOutlet: Send {
    fn address(&self) -> String;

    /// Settings in force, for the user.
    fn facts(&self) -> String;

    fn poll(&mut self, events: &mut Vec<OutletEvent>);

    fn send(&mut self, dest: usize, frame: &FelixFrame, body: &[u8]) -> Sent;

    fn close(&mut self, dest: usize);
}

/// Publishing end that listens, or the reason why there is none.
type Published = Result<Box<dyn PageOutlet>, TransportError>;

/// Receiving end of a subscription, and the publisher's offer.
pub type Subscribed = (Box<dyn PageInlet>, PublisherHello);

pub trait PageInlet: Send {
    /// Receives the next frame with its body; `None` if none came in the time. After an error the
    /// inlet is of no use.
    fn receive(&mut self, wait: Duration) -> Result<Option<(FelixFrame, &[u8])>, TransportError>;

    fn acknowledge(&mut self, sequence: u64) -> Result<(), TransportError>;
}
