//! The engine `plain-copy`: the memory limit of copies, or fills, of one size. It limits the copies
//! between user and kernel.

use daqmeter_harness::{
    Fault, Job, Problem, Request, Session, StageSpec, StopFlag, Tally, check_lanes, is_default,
    is_one, one,
};
use daqmeter_kernels::copy::{CopyKernel, FillKernel};
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
    /// True writes zeros instead, and reads nothing
    #[serde(default, skip_serializing_if = "is_default")]
    pub fill: bool,
}

impl PlainRequest {
    pub(crate) fn new(block_bytes: usize) -> PlainRequest {
        PlainRequest { block_bytes, lanes: 1, fill: false }
    }

    pub(crate) fn fill(block_bytes: usize) -> PlainRequest {
        PlainRequest { fill: true, ..PlainRequest::new(block_bytes) }
    }
}

impl Request for PlainRequest {
    const KIND: &'static str = "plain-copy";
    const DESCRIPTION: &'static str = "copies memory by memcpy, rep movsb and vectors, or fills it: the limit that copies are held against";

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
                works: works(self.fill),
                buffers: None,
                stop: StopFlag::default(),
            })
        };
        Ok((0..self.lanes).map(session).collect())
    }
}

#[derive(Clone, Copy)]
enum Work {
    Copy(CopyKernel),
    Fill(FillKernel),
}

fn works(fill: bool) -> Vec<Work> {
    if fill {
        FillKernel::available().into_iter().map(Work::Fill).collect()
    } else {
        CopyKernel::available().into_iter().map(Work::Copy).collect()
    }
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Copy(kernel) => kernel.name(),
            Work::Fill(kernel) => kernel.name(),
        }
    }

    fn passes(self) -> u64 {
        match self {
            Work::Copy(_) => 2,
            Work::Fill(_) => 1,
        }
    }

    fn leaves(self, from: u8) -> u8 {
        match self {
            Work::Copy(_) => from,
            Work::Fill(_) => 0,
        }
    }
}

struct PlainSession {
    bytes: usize,
    works: Vec<Work>,
    buffers: Option<(Buffer, Buffer)>,
    stop: StopFlag,
}

impl PlainSession {
    fn sides(&mut self) -> (&mut [u8], &mut [u8]) {
        let (from, to) = self.buffers.as_mut().expect("prepared before it copies");
        (from.slice_mut(self.bytes), to.slice_mut(self.bytes))
    }
}

/// Runs the timed loop; the compiler must keep every write.
#[inline]
fn repeat(operations: u64, to: &mut [u8], work: impl Fn(&mut [u8])) {
    for _ in 0..operations {
        work(to);
        std::hint::black_box(&mut *to);
    }
}

impl Session for PlainSession {
    fn device(&self) -> String {
        "memory".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let bytes = self.bytes as u64;
        let stage = |work: &Work| StageSpec::new(work.name(), bytes, work.passes() * bytes);
        self.works.iter().map(stage).collect()
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let buffer = || Buffer::new(self.bytes, Pages::Transparent);
        self.buffers = Some((buffer()?, buffer()?));
        let (from, _) = self.sides();
        for (place, value) in from.iter_mut().zip((0..=250).cycle()) {
            *place = value;
        }
        Ok(())
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        let work = self.works[stage];
        let (from, to) = self.sides();
        match work {
            Work::Copy(kernel) => repeat(operations, to, |to| kernel.copy(from, to)),
            Work::Fill(kernel) => repeat(operations, to, |to| kernel.fill(to, 0)),
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        for stage in 0..self.works.len() {
            if self.stop.is_set() {
                return Err(Fault::interrupted());
            }
            self.sides().1.fill(0xA5);
            self.step(stage, 1)?;
            let work = self.works[stage];
            let (from, to) = self.sides();
            let mut places = from.iter().zip(&*to);
            if let Some(at) = places.position(|(from, to)| work.leaves(*from) != *to) {
                return Err(Fault::new(format!("{}: byte {at} is wrong", work.name())));
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
    fn fills_are_verified_and_move_each_byte_once() {
        let request = PlainRequest::fill(5003);
        let mut sessions = request.open().unwrap();
        let session = sessions[0].as_mut();
        let stages = session.stages();
        assert_eq!((&*stages[0].name, stages[0].traffic_bytes_per_op), ("memset", 5003));
        assert_eq!(stages.len(), FillKernel::available().len());
        session.prepare().unwrap();
        session.verify().unwrap();
    }

    #[test]
    fn it_copies_in_as_many_lanes_as_it_is_asked_for() {
        let three = PlainRequest { lanes: 3, ..PlainRequest::example() };
        assert_eq!(three.open().unwrap().len(), 3);
    }
}
