//! Blocks over Zenoh, between two sessions of this host: a publisher and a subscriber, connected
//! over TCP on loopback or through shared memory. Needs the cargo feature `zenoh`; begin with
//! `zenoh/blocks.rs`.

#[cfg(feature = "zenoh")]
mod blocks;
mod settings;

use daqmeter_harness::Fault;
use daqmeter_readout::transport;

use crate::cancel::Cuts;
use crate::element::Work;

pub(crate) use self::settings::{WhenFull, ZenohWay};

pub(crate) fn check() -> Result<(), String> {
    transport::named("zenoh").map(drop).map_err(|error| error.to_string())
}

#[cfg(feature = "zenoh")]
pub(crate) fn zenoh(way: ZenohWay, block_bytes: usize, cuts: &Cuts) -> Result<Work, Fault> {
    blocks::open(way, block_bytes, cuts)
}

#[cfg(not(feature = "zenoh"))]
pub(crate) fn zenoh(_way: ZenohWay, _block_bytes: usize, _cuts: &Cuts) -> Result<Work, Fault> {
    Err(Fault::new(check().err().unwrap_or_default()))
}
