//! Limits that other engines measure, and what the engine `memory` (crate `copy`) is asked for most of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::LimitSpec;
use crate::request::{Problem, Request, check_lanes, is_one, one};

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
    #[serde(default = "one::<usize>", alias = "threads", skip_serializing_if = "is_one")]
    pub lanes: usize,
}

/// Largest footprint; what a host lacks is refused when it is allocated.
const MAX_READ_BYTES: u64 = 1 << 44;

impl MemoryRequest {
    /// Lines read or written in a step, at most: 64 KiB. Conversions need 64.
    pub const MAX_LINES: u64 = 1024;

    /// One lane that reads so many bytes in all, in steps of so many lines read and written.
    pub fn new(read_bytes: u64, read_lines: u64, write_lines: u64) -> MemoryRequest {
        MemoryRequest { read_bytes, read_lines, write_lines, lanes: 1 }
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

impl LimitSpec {
    /// A limit that the engine of that request measures.
    pub fn measured<R: Request>(
        name: impl Into<String>,
        how: impl Into<String>,
        request: &R,
    ) -> LimitSpec {
        LimitSpec::Measured {
            name: name.into(),
            how: how.into(),
            workload: request.workload(),
            scale: 1.0,
        }
    }

    /// Memory, streamed in the stage's own ratio: of `counted_bytes` in all, the stage touches every line that holds one of
    /// the samples it keeps, each `stride_bytes` after the one before, and writes `out_bytes` for each.
    pub fn memory(counted_bytes: u64, stride_bytes: u64, out_bytes: u64) -> LimitSpec {
        const LINE_BYTES: u64 = 64;
        // Samples further apart than a line leave lines untouched.
        let per_read = stride_bytes.clamp(1, LINE_BYTES);
        let scale = stride_bytes.max(1) as f64 / per_read as f64;
        let divisor = gcd(per_read, out_bytes);
        let (reads, writes) = (per_read / divisor, out_bytes / divisor);
        let what = if reads == writes {
            "copy".to_owned()
        } else {
            format!("{reads} lines read : {writes} written")
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of a byte count"
        )]
        let read_bytes = (counted_bytes as f64 / scale) as u64;
        LimitSpec::Measured {
            name: format!(
                "memory {reads}:{writes} at {counted_bytes} B{}",
                if scale > 1.0 { ", sparse" } else { "" }
            ),
            how: format!("{what} of the same footprint, no arithmetic; best of all stores"),
            workload: MemoryRequest::new(read_bytes, reads, writes).workload(),
            scale,
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(spec: &LimitSpec) -> (u64, u64, f64) {
        let LimitSpec::Measured { workload, scale, .. } = spec else { panic!("measured") };
        let request = MemoryRequest::of(workload).unwrap();
        (request.read_lines, request.write_lines, *scale)
    }

    #[test]
    fn a_limit_has_the_stages_own_ratio_of_reads_to_writes() {
        assert_eq!(ratio(&LimitSpec::memory(6_000_000, 2, 4)), (1, 2, 1.0));
        assert_eq!(ratio(&LimitSpec::memory(6_000_000, 2, 8)), (1, 4, 1.0));
        assert_eq!(ratio(&LimitSpec::memory(6_000_000, 20, 4)), (5, 1, 1.0));
        assert_eq!(ratio(&LimitSpec::memory(6_000_000, 1, 1)), (1, 1, 1.0));
    }

    #[test]
    fn samples_further_apart_than_a_line_skip_lines() {
        assert_eq!(ratio(&LimitSpec::memory(6_000_000, 128, 4)), (16, 1, 2.0));
    }
}
