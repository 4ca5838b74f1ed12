//! Errors, with the status numbers of the C library.

use std::io;
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_wire::etherbone::{Widths, WireError};

use crate::slave::MAX_CYCLE_BYTES;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EbError {
    /// The address is invalid, does not resolve or refuses.
    #[error("{0}")]
    Address(String),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error(
        "no width in common: we offer addresses {our_address}, data {our_data}; the slave addresses {address}, data {data}"
    )]
    Width {
        /// Widths of this side.
        our_address: Widths,
        our_data: Widths,
        address: Widths,
        data: Widths,
    },
    #[error(
        "no answer to {probes} probes of {each:?} each; is an Etherbone slave listening at {address}?"
    )]
    NoAnswer { address: String, probes: u32, each: Duration },
    #[error(
        "the cycle of {operations} operations does not fit a datagram of {datagram_bytes} bytes; make it shorter or use a stream (tcp, dev)"
    )]
    Overflow {
        /// Operations asked for.
        operations: usize,
        datagram_bytes: usize,
    },
    #[error(
        "the cycle of {operations} operations takes {bytes} bytes or more; a stream carries at most {MAX_CYCLE_BYTES}: divide it"
    )]
    TooLong {
        /// Operations asked for.
        operations: usize,
        bytes: usize,
    },
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("{failed} of {of} operations failed on the bus (the first at {first:#x})")]
    Bus {
        failed: usize,
        of: usize,
        /// Address of the first failure.
        first: u64,
    },
    #[error("the connection was closed by the other side")]
    Closed,
    #[error("the answer is not Etherbone: {0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Unsupported(String),
    #[error(transparent)]
    Description(#[from] crate::bus::DescriptionError),
}

impl EbError {
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
