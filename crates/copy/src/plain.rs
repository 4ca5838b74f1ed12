//! The engine `plain-copy`: the memory limit of copies of one size. It limits the copies between
//! user and kernel.

use daqmeter_harness::{
    Fault, Job, Problem, Request, Session, StageSpec, StopFlag, Tally, check_lanes, is_one, one,
};
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_sys::memory::{Buffer, Pages, buffer_bytes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
        let lane = buffer_bytes(self.block_bytes as u64).saturating_mul(2);
        let memory_bytes = Some(lane.saturating_mul(self.lanes as u64));
        Ok(Job { memory_bytes, ..Job::new(self, "memory", PlainRequest::open) })
    }
}

impl PlainRequest {
    fn open(&self) -> Result<Vec<Box<dyn Session>>, Fault> {
        let session = |_| -> Box<dyn Session> {
            Box::new(PlainSession {
                bytes: self.block_bytes,
                kernels: CopyKernel::available(),
                buffers: None,
                stop: StopFlag::default(),
            })
        };
        Ok((0..self.lanes).map(session).collect())
    }
}

struct PlainSession {
    bytes: usize,
    kernels: Vec<CopyKernel>,
    buffers: Option<(Buffer, Buffer)>,
    stop: StopFlag,
}

impl PlainSession {
    fn sides(&mut self) -> (&mut [u8], &mut [u8]) {
        let (from, to) = self.buffers.as_mut().expect("prepared before it copies");
        (from.slice_mut(self.bytes), to.slice_mut(self.bytes))
    }
}

/// Fills memory with a prime number of values in turn, so that lines differ. Bytes one by one would
/// take seconds for a gigabyte.
pub(crate) fn fill(bytes: &mut [u8]) {
    let pattern = Vec::from_iter(0..=250).repeat(64);
    for part in bytes.chunks_mut(pattern.len()) {
        part.copy_from_slice(&pattern[..part.len()]);
    }
}

impl Session for PlainSession {
    fn device(&self) -> String {
        "memory".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let bytes = self.bytes as u64;
        let stage = |kernel: &CopyKernel| StageSpec::new(kernel.name(), bytes, 2 * bytes);
        self.kernels.iter().map(stage).collect()
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let buffer = || Buffer::new(self.bytes, Pages::Transparent);
        self.buffers = Some((buffer()?, buffer()?));
        fill(self.sides().0);
        Ok(())
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        let kernel = self.kernels[stage];
        let (from, to) = self.sides();
        for _ in 0..operations {
            kernel.copy(from, to);
            std::hint::black_box(&mut *to);
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        for stage in 0..self.kernels.len() {
            if self.stop.is_set() {
                return Err(Fault::interrupted());
            }
            self.sides().1.fill(0xA5);
            self.step(stage, 1)?;
            let name = self.kernels[stage].name();
            let (from, to) = self.sides();
            if let Some(at) = from.iter().zip(&*to).position(|(from, to)| from != to) {
                return Err(Fault::new(format!("{name}: byte {at} is wrong")));
            }
        }
        Ok(())
    }

    fn tally(&mut self) -> Tally {
        Tally::default()
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
