//! Boards that do not exist, in a crate that does not exist, with the timing of one that did.

mod board;
mod chassis;
mod profile;
mod trigger;
pub mod uplink;

pub(crate) use board::parse_name;
pub use board::{BoardFaults, EmulatedBoard};
pub use chassis::EmulatedCrate;
pub use profile::{BoardRate, Profile, ProfileError};
