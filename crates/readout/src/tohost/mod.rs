//! The reader: blocks out of the ring, chunks into pages, pages to subscribers, the host pointer
//! forward.
//!
//! One [`ToHost`] serves one DMA channel in one thread. [`ToHost::turn`] does all present work and
//! never waits; [`ToHost::run`] turns until the card has finished, and sleeps in between.

mod batch;
mod blocks;
mod conclude;
mod dest;
mod elink;
mod reader;
mod run;
mod subscribers;

pub(crate) use self::dest::subscriber_bytes;
pub use self::reader::{Stats, ToHost};
