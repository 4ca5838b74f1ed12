//! Why a point was not begun.

use crate::Fault;

/// The work was not begun: bad parameters, a device that is not understood. Nothing was measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Refusal(fault.0)
    }
}
