//! What the engine `memory` (crate `copy`) is asked. It stands here because limits of other stages are asked of it, see
//! [`crate::LimitSpec::memory`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::check_lanes;
use crate::request::{Problem, Request, is_one, one};

/// Memory read and written in a given ratio.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryRequest {
    /// Bytes read in one pass; whole steps are read, at least one
    pub read_bytes: u64,
    /// Cache lines read in each step, at least 1
    pub read_lines: u64,
    /// Cache lines written in each step
    pub write_lines: u64,
    /// Threads that stream at the same time
    #[serde(
        default = "one::<usize>",
        alias = "threads",
        skip_serializing_if = "is_one"
    )]
    pub lanes: usize,
}

/// Largest footprint; what a host lacks is refused when it is allocated.
const MAX_READ_BYTES: u64 = 1 << 44;

impl MemoryRequest {
    /// Lines read or written in a step, at most: 64 KiB. Conversions need 64.
    pub const MAX_LINES: u64 = 1024;

    /// One lane that reads so many bytes in all, in steps of so many lines read and written.
    pub fn new(read_bytes: u64, read_lines: u64, write_lines: u64) -> MemoryRequest {
        MemoryRequest {
            read_bytes,
            read_lines,
            write_lines,
            lanes: 1,
        }
    }
}

impl Request for MemoryRequest {
    const KIND: &'static str = "memory";

    fn check(&self) -> Result<(), Problem> {
        let max_lines = MemoryRequest::MAX_LINES;
        Problem::unless_within("read_lines", self.read_lines, 1..=max_lines)?;
        Problem::unless_within("write_lines", self.write_lines, 0..=max_lines)?;
        Problem::unless_within("read_bytes", self.read_bytes, 0..=MAX_READ_BYTES)?;
        check_lanes("lanes", self.lanes)
    }

    fn with_lanes(self, lanes: usize) -> Self {
        MemoryRequest { lanes, ..self }
    }
}
