//! A whole chain in this process: card, readers, receivers, and what came of every trigger.
//!
//! [`Chain::open`] makes the parts. [`run()`] gives each a thread; the engine runs the readers in its lanes.

mod counters;
mod done;
mod parts;

mod run;

pub(crate) use self::counters::{FILLING, series};
pub use self::counters::{
    check_bytes, check_ledgers, counters, counters_of_reader, filling, latency, losses_by_elink,
    observed,
};
pub use self::done::{Done, Load, ReaderDone, joined};
pub use self::parts::{Chain, ChainError, Placement, Reader, Receiving, hello, pin, reader_of};
pub use self::run::run;
