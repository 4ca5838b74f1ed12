//! Reason for a point that did not begin.

use crate::Fault;

/// Refuses work before a measurement: bad parameters, or an unknown device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Refusal(fault.0)
    }
}
