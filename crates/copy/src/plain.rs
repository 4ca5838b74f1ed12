//! The engine `plain-copy`: the memory limit of copies of one size. It limits the copies between
//! user and kernel.

use daqmeter_harness::{Fault, Job, Problem, Request, Session, check_lanes, is_one, one};
use daqmeter_kernels::copy::CopyKernel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::memory::{Footprint, Variant, sessions};
use crate::request::MAX_BLOCK_BYTES;

/// Copies of one buffer to another by every kernel of this CPU: a stage each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlainRequest {
    /// Bytes of one copy
    pub block_bytes: usize,
    /// Threads that copy at the same time
    #[serde(default = "one::<usize>", skip_serializing_if = "is_one")]
    pub lanes: usize,
}

impl PlainRequest {
    pub(crate) fn new(block_bytes: usize) -> PlainRequest {
        PlainRequest { block_bytes, lanes: 1 }
    }
}

impl Request for PlainRequest {
    const KIND: &'static str = "plain-copy";
    const DESCRIPTION: &'static str =
        "copies memory by memcpy, rep movsb and vectors: the limit that copies are held against";

    fn example() -> PlainRequest {
        PlainRequest::new(5003)
    }

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("block_bytes", self.block_bytes, 1..=MAX_BLOCK_BYTES)?;
        check_lanes("lanes", self.lanes)
    }

    fn job(&self) -> Result<Job, Fault> {
        let memory_bytes = Some(Footprint::of_copy(self.block_bytes).memory_bytes(self.lanes));
        Ok(Job { memory_bytes, ..Job::new(self, "memory", PlainRequest::open) })
    }
}

impl PlainRequest {
    fn open(&self) -> Result<Vec<Box<dyn Session>>, Fault> {
        let kernels: Vec<Variant> =
            CopyKernel::available().into_iter().map(Variant::Kernel).collect();
        Ok(sessions(self.lanes, Footprint::of_copy(self.block_bytes), &kernels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_copies_conform() {
        daqmeter_harness::conformance::run(&PlainRequest::example().job().unwrap());
    }

    #[test]
    fn it_copies_in_as_many_lanes_as_it_is_asked_for() {
        let three = PlainRequest { lanes: 3, ..PlainRequest::example() };
        assert_eq!(three.open().unwrap().len(), 3);
    }
}
