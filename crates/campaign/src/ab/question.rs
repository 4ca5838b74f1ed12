//! What is compared, and for how long.

use std::path::PathBuf;
use std::time::Duration;

use super::protocol::Request;
use super::switch::Switch;

/// A side that shows no progress for so long hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What is compared, and for how long.
#[derive(Clone, Debug)]
pub struct Question {
    /// A and B.
    pub sides: [Side; 2],
    /// Ratios up to this are to be ignored: 0.01 is 1 %.
    pub ignore: f64,
    /// Chance that the answer for any stage is wrong.
    pub alpha: f64,
    /// Time in which the question is to be decided.
    pub budget: Duration,
    /// A side that shows no progress for so long hangs.
    pub patience: Duration,
    /// Seed of all orders.
    pub seed: u64,
    /// A setting of the host that is put to one value or the other before each turn.
    pub switch: Option<Switch>,
}

/// One side.
#[derive(Clone, Debug)]
pub enum Side {
    /// A process that prepares a point, and works slices of it ([`super::serve`]).
    Point {
        /// The program.
        program: PathBuf,
        /// Its arguments, with which it is a side.
        arguments: Vec<String>,
        /// What it is asked for.
        request: Request,
    },
    /// A command for the shell, of which the whole run is measured.
    Command {
        /// As it would be typed.
        line: String,
        /// CPU for it; none leaves it free.
        cpu: Option<u32>,
    },
}

/// How a side is called in messages.
pub(super) fn letter(side: usize) -> &'static str {
    ["A", "B"][side & 1]
}

impl Side {
    /// CPU of its thread, where that is known.
    pub(super) fn cpu(&self) -> Option<u32> {
        match self {
            Side::Point { request, .. } => request.cpu,
            Side::Command { cpu, .. } => *cpu,
        }
    }
}
