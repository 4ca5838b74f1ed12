//! Errors, with the status numbers of the C library.

use std::io;
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_wire::etherbone::{Widths, WireError};

use crate::slave::MAX_CYCLE_BYTES;

/// An error of the client or the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EbError {
    /// The address is not one, does not resolve or refuses.
    #[error("{0}")]
    Address(String),
    /// Something on the way to the slave failed.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// No width in common.
    #[error(
        "no width in common: we offer addresses {our_address}, data {our_data}; the slave addresses {address}, data {data}"
    )]
    Width {
        /// Ours.
        our_address: Widths,
        /// Ours.
        our_data: Widths,
        /// The slave's.
        address: Widths,
        /// The slave's.
        data: Widths,
    },
    /// No answer to the probes.
    #[error(
        "no answer to {probes} probes of {each:?} each; is an Etherbone slave listening at {address}?"
    )]
    NoAnswer { address: String, probes: u32, each: Duration },
    /// A cycle that does not fit a datagram.
    #[error(
        "the cycle of {operations} operations does not fit a datagram of {datagram_bytes} bytes; make it shorter or use a stream (tcp, dev)"
    )]
    Overflow {
        /// Operations asked for.
        operations: usize,
        /// Room.
        datagram_bytes: usize,
    },
    /// A cycle longer than a stream carries.
    #[error(
        "the cycle of {operations} operations takes {bytes} bytes or more; a stream carries at most {MAX_CYCLE_BYTES}: divide it"
    )]
    TooLong {
        /// Operations asked for.
        operations: usize,
        bytes: usize,
    },
    /// The deadline of a cycle passed.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// Operations failed on the bus.
    #[error("{failed} of {of} operations failed on the bus (the first at {first:#x})")]
    Bus {
        failed: usize,
        of: usize,
        /// Address of the first.
        first: u64,
    },
    /// The other side closed the connection.
    #[error("the connection was closed by the other side")]
    Closed,
    /// The other side sent what is not Etherbone.
    #[error("the answer is not Etherbone: {0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Unsupported(String),
    /// A description of a bus or a bridge is wrong.
    #[error(transparent)]
    Description(#[from] crate::bus::DescriptionError),
}

impl EbError {
    /// An error of the system, with what was being done.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> EbError {
        let what = what.into();
        move |source| EbError::Io { what, source }
    }
}

impl From<daqmeter_sys::SysError> for EbError {
    fn from(error: daqmeter_sys::SysError) -> Self {
        EbError::Io { what: error.call, source: error.source }
    }
}

impl From<EbError> for Fault {
    fn from(error: EbError) -> Self {
        Fault::new(error.to_string())
    }
}
