//! Interface of board families.

use std::sync::Arc;

use daqmeter_harness::{CardFamily, Fault};

use super::board::Board;
use super::sis8300::emulated::EmulatedCrate;

/// Opens a device of a family, an emulated one in this crate. Fails if it is missing or unknown.
pub(super) type OpenBoard = fn(&str, &Arc<EmulatedCrate>) -> Result<Box<dyn Board>, Fault>;

/// A family of boards: one folder, real and emulated members.
pub struct BoardFamily {
    pub name: &'static str,
    pub cards: CardFamily,
    pub remedy: &'static str,
    /// True for its own devices, by path or emulated name (`emu:...`).
    pub(super) claims: fn(&str) -> bool,
    pub(super) open: OpenBoard,
    /// Returns the driver of a node, and what is known about it.
    pub describe: fn(&str) -> (String, String),
    /// Returns names of emulated boards, each with a description.
    pub emulated: fn() -> Vec<(String, String)>,
}
