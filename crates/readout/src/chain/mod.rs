//! The parts of a chain in this process: card, readers, receivers, and what came of every trigger.
//!
//! [`Chain::open`] makes them. Who runs them gives each a thread; in the program that is a path.

mod counters;
mod done;
mod parts;
mod watched;

pub use self::counters::{
    check_bytes, check_ledgers, counters, counters_of_reader, filling, filling_of, latency,
    losses_by_elink, lost_or_stopped, notes_of_file, observation, observed, turns,
};
pub use self::done::{Load, ReaderDone, joined};
pub use self::parts::{Chain, ChainError, Reader, Receiving, hello, pin, reader_of};
pub use self::watched::{Added, Experiment, Part};
