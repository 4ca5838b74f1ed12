//! Question for a comparison: sides, tolerances and times.

use std::path::PathBuf;
use std::time::Duration;

use super::protocol::SideRequest;
use super::switch::Switch;

pub const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Question {
    pub sides: [AbSide; 2],
    /// Ratios up to this are ignored: 0.01 is 1 %.
    pub ignore: f64,
    pub alpha: f64,
    pub budget: Duration,
    pub patience: Duration,
    pub seed: u64,
    pub switch: Option<Switch>,
}

#[derive(Clone, Debug)]
pub enum AbSide {
    Point {
        program: PathBuf,
        /// Arguments that make the program a side.
        arguments: Vec<String>,
        request: SideRequest,
    },
    Command {
        line: String,
        cpu: Option<u32>,
    },
}

pub(super) fn letter(side: usize) -> &'static str {
    ["A", "B"][side & 1]
}

impl AbSide {
    pub(super) fn cpu(&self) -> Option<u32> {
        match self {
            AbSide::Point { request, .. } => request.cpu,
            AbSide::Command { cpu, .. } => *cpu,
        }
    }
}
