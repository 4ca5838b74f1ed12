//! Emulated boards in a crate with a real crate's timing.

mod board;
pub(crate) mod profile;
mod trigger;
pub mod uplink;

pub(crate) use board::parse_name;
pub use board::{EmulatedBoard, EmulatedCrate};
pub use profile::{BoardRate, Profile};
