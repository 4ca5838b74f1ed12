//! Emulated boards in a crate with a real crate's timing.

mod board;
mod chassis;
mod profile;
mod trigger;
pub mod uplink;

pub(crate) use board::parse_name;
pub use board::{BoardFaults, EmulatedBoard};
pub use chassis::EmulatedCrate;
pub use profile::{BoardRate, Profile, ProfileError};
