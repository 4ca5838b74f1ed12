//! Errors: those that programs tell apart, and a line for all others.

use std::io;
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_wire::etherbone::WireError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EbError {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the connection was closed by the other side")]
    Closed,
    #[error("interrupted")]
    Interrupted,
    #[error("the bus reports {failed} error(s) while {doing}, the first at {first:#x}")]
    Refused { failed: usize, doing: &'static str, first: u64 },
    #[error("{0}")]
    Other(String),
}

impl EbError {
    pub(crate) fn other(line: impl Into<String>) -> EbError {
        EbError::Other(line.into())
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> EbError {
        let what = what.into();
        move |error| EbError::Other(format!("{what}: {error}"))
    }
}

impl From<String> for EbError {
    fn from(line: String) -> Self {
        EbError::Other(line)
    }
}

impl From<WireError> for EbError {
    fn from(error: WireError) -> Self {
        EbError::Other(format!("not Etherbone: {error}"))
    }
}

impl From<daqmeter_sys::SysError> for EbError {
    fn from(error: daqmeter_sys::SysError) -> Self {
        EbError::io(error.call)(error.source)
    }
}

impl From<EbError> for Fault {
    fn from(error: EbError) -> Self {
        match error {
            EbError::Interrupted => Fault::interrupted(),
            error => Fault::new(error.to_string()),
        }
    }
}
