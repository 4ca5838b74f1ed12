//! The slave: requests in, answers out. No sockets and no threads: bytes and a time come in, bytes
//! and a time go out.
//!
//! Datagrams are executed as far as they are whole, as the C slave does. On streams a cycle is
//! executed when all of it is there, so that no other client gets between its operations and none
//! can block the bus with half a cycle.

mod execute;
mod stream;
#[cfg(test)]
mod tests;

pub use self::execute::{Slave, SlaveCounts};
pub use self::stream::{MAX_CYCLE_BYTES, Stream, StreamFault};
