//! The slave without sockets and threads: requests and a time in, answers and a time out.
//! Datagrams are executed as far as they are whole, as in the C slave. On streams a cycle is
//! executed when all of it is there. So no other client gets between its operations, and half a
//! cycle cannot block the bus.

mod execute;
mod stream;
#[cfg(test)]
mod tests;

pub use self::execute::{Slave, SlaveCounts};
pub use self::stream::{MAX_CYCLE_BYTES, Stream, StreamFault};
