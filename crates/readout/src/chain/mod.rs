//! A whole chain in this process: card, readers, receivers, and what came of every trigger.
//!
//! [`Chain::open`] makes the parts. [`run()`] gives each a thread; the engine runs the readers in its lanes.

mod done;
mod parts;
mod run;

pub use self::done::{Done, Load, ReaderDone, joined};
pub use self::parts::{Chain, ChainError, Placement, Reader, Receiving, hello, pin, reader_of};
pub use self::run::run;
