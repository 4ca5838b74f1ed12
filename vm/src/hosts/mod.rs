//! Hosts that are network namespaces on one bridge.

pub(crate) mod namespaces;
pub(crate) mod paths;
pub(crate) mod peers;
pub(crate) mod readout;
