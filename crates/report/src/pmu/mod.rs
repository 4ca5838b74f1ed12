//! Counters and meshes as text and pictures.

pub mod heat;
pub mod map;
pub mod tables;

pub use heat::{Heat, frames};
