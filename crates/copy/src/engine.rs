//! The engine `copy`: one point of latency or bandwidth, by any path and policy.

use daqmeter_harness::{
    Availability, DeviceTime, Engine, Fault, Parameter, Session, StageSpec, Tally, parameters,
};
use daqmeter_record::{Ledger, Workload};
use daqmeter_sys::copies::null_call;

use crate::paths::{self, Mover};
use crate::request::{Context, Direction, Request};

/// Copies between user and kernel. See [`Request`] for its workload.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyEngine;

/// Name of the stage that measures a system call without work.
pub const NULL_CALL: &str = "null_call";

/// Name of the stage that copies, as the kernel's function of that direction.
pub fn stage_name(direction: Direction) -> &'static str {
    match direction {
        Direction::From => "copy_from_user",
        Direction::To => "copy_to_user",
        Direction::Both => "copy_from_and_to_user",
    }
}

struct CopySession {
    request: Request,
    mover: Box<dyn Mover>,
    issued: u64,
    done: u64,
    /// Filled by verification, compared with what comes out at the other end.
    pattern: u8,
}

impl Engine for CopyEngine {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn description(&self) -> &'static str {
        "copies between user and kernel memory, by CPU or by the channels of an engine, under a policy"
    }

    fn probe(&self) -> Availability {
        Availability::Ready
    }

    fn probe_for(&self, workload: &Workload) -> Availability {
        paths::probe_for(workload)
    }

    fn target(&self, workload: &Workload) -> String {
        let Ok(request) = Request::of(workload) else {
            return String::new();
        };
        if request.path != "module" || request.context == Context::Cpu {
            return request.path;
        }
        match paths::provider(&request) {
            Some((driver, channels, _)) => format!("module: {driver}, {channels} channels"),
            None => "module".to_owned(),
        }
    }

    fn is_emulated(&self, workload: &Workload) -> bool {
        let Ok(request) = Request::of(workload) else {
            return false;
        };
        match request.path.as_str() {
            "engine-thread" => true,
            "module" if request.context != Context::Cpu => {
                paths::provider(&request).is_some_and(|(_, _, soft)| soft)
            }
            _ => false,
        }
    }

    fn parameters(&self) -> &'static [Parameter] {
        parameters![
            "path": "a way to copy, as daqmeter list copies names it",
            "context": "who does it: cpu, exclusive, shared or priority",
            "direction": "from the kernel, to it, or both",
            "block_bytes": "bytes of one copy",
            "lanes": "threads that copy at the same time; 1",
            "cold": "true flushes the buffers from the caches before each copy",
            "channels": "DMA channels; 0 takes all",
            "completion": "polled or interrupt",
            "quantum_ns": "time of the high channels in each window",
            "window_ns": "window of the priority policy",
            "high_channels": "bit mask of the high channels",
            "depth": "copies on their way at once; 1",
            "load": "heavy keeps all other CPUs busy",
        ]
    }

    fn memory_bytes(&self, workload: &Workload) -> Option<u64> {
        Some(Request::of(workload).ok()?.memory_bytes())
    }

    fn example(&self) -> Workload {
        let mut request = Request::new("pread", Direction::Both, 4096);
        request.lanes = 2;
        request.workload()
    }

    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
        let request = Request::of(workload)?;
        let path = paths::path(&request.path).ok_or_else(|| {
            let names: Vec<&str> = paths::PATHS.iter().map(|path| path.name).collect();
            Fault::new(format!(
                "there is no way to copy called `{}`; choose among {}",
                request.path,
                names.join(", ")
            ))
        })?;
        if let Availability::Waived(reason) = path.probe() {
            return Err(Fault::new(format!("{}: {reason}", path.name)));
        }
        let session = |mover| -> Box<dyn Session> {
            Box::new(CopySession {
                request: request.clone(),
                mover,
                issued: 0,
                done: 0,
                pattern: 1,
            })
        };
        Ok(path.open(&request)?.into_iter().map(session).collect())
    }
}

impl CopySession {
    fn operation_bytes(&self) -> usize {
        self.request.block_bytes * self.mover.blocks()
    }

    /// One direction, checked byte by byte: a pattern at one end, something else at the other, a copy, the pattern at both.
    fn check(&mut self, direction: Direction) -> Result<(), Fault> {
        let bytes = self.operation_bytes();
        self.pattern = self.pattern.wrapping_mul(5).wrapping_add(3);
        let pattern: Vec<u8> = (0..=250_u8)
            .cycle()
            .map(|byte| byte ^ self.pattern)
            .take(bytes)
            .collect();
        let other = vec![!self.pattern; bytes];
        let mut found = vec![0; bytes];
        if direction == Direction::To {
            self.mover.put_user(&other)?;
            self.mover.put_kernel(&pattern)?;
            self.mover.freshen(direction)?;
            self.mover.copy(direction)?;
            self.mover.get_user(&mut found)?;
        } else {
            self.mover.put_kernel(&other)?;
            self.mover.put_user(&pattern)?;
            self.mover.freshen(direction)?;
            self.mover.copy(direction)?;
            self.mover.get_kernel(&mut found)?;
        }
        match found
            .iter()
            .zip(&pattern)
            .position(|(found, wanted)| found != wanted)
        {
            None => Ok(()),
            Some(at) => Err(Fault::new(format!(
                "{}: byte {at} of {bytes} is {:#04x}, expected {:#04x}",
                stage_name(direction),
                found[at],
                pattern[at]
            ))),
        }
    }
}

impl Session for CopySession {
    fn device(&self) -> String {
        self.mover.device()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let passes = self.request.direction.parts().len() as u64;
        let bytes = self.operation_bytes() as u64 * passes;
        let fresh =
            self.mover.is_consumed() || self.request.cold && self.mover.device_time().is_none();
        let copy = StageSpec {
            fresh,
            device_timed: self.mover.device_time().is_some(),
            ..StageSpec::new(stage_name(self.request.direction), bytes, 2 * bytes)
        };
        if self.mover.is_system_call() {
            vec![copy, StageSpec::new(NULL_CALL, 0, 0)]
        } else {
            vec![copy]
        }
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        if self.mover.is_consumed() && self.request.direction == Direction::Both {
            return Err(Fault::new(format!(
                "{}: what is written is read again at once: ask for direction from or to",
                self.request.path
            )));
        }
        self.mover.prepare()
    }

    #[inline]
    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        if stage == 1 {
            (0..operations).for_each(|_| null_call());
            return Ok(());
        }
        for _ in 0..operations {
            self.issued += 1;
            for direction in self.request.direction.parts() {
                self.mover.copy(*direction)?;
            }
            self.done += 1;
        }
        Ok(())
    }

    fn freshen(&mut self, _stage: usize) -> Result<(), Fault> {
        self.mover.freshen(self.request.direction)?;
        if self.request.cold {
            self.mover.flush()
        } else {
            Ok(())
        }
    }

    fn device_time(&self) -> DeviceTime {
        self.mover.device_time().unwrap_or_default()
    }

    fn verify(&mut self) -> Result<(), Fault> {
        self.request
            .direction
            .parts()
            .iter()
            .try_for_each(|direction| self.check(*direction))
    }

    fn begin(&mut self) {
        (self.issued, self.done) = (0, 0);
        self.mover.begin();
    }

    fn tally(&mut self) -> Tally {
        let mut ledger = Ledger {
            issued: self.issued,
            ..Ledger::new("copies")
        };
        ledger.delivered = self.done;
        ledger.lose("failed", self.issued - self.done);
        Tally {
            ledgers: vec![ledger],
            counters: self.mover.counters(),
            warnings: self.mover.warnings(),
            numa_node: self.mover.numa_node(),
            ..Tally::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_conform() {
        daqmeter_harness::conformance::run(&CopyEngine);
    }

    #[test]
    fn a_point_says_how_much_memory_it_takes() {
        const MIB: u64 = 1 << 20;
        let mut request = Request::new("pread", Direction::To, 4 << 20);
        request.lanes = 3;
        // Each lane: both sides, and three copies while bytes are compared.
        assert_eq!(
            CopyEngine.memory_bytes(&request.workload()),
            Some(3 * (4 + 4 + 12) * MIB)
        );
        request.depth = 2;
        request.path = "io-uring".to_owned();
        assert_eq!(
            CopyEngine.memory_bytes(&request.workload()),
            Some(2 * 3 * (4 + 4 + 12) * MIB)
        );
        assert_eq!(
            CopyEngine.memory_bytes(&request.workload().with("lanes", 65_u64)),
            None
        );
    }

    /// The examples of every path that this host has.
    #[test]
    fn every_path_moves_every_byte() {
        for path in paths::PATHS.iter().filter(|path| path.name != "module") {
            if path.probe() != Availability::Ready {
                continue;
            }
            for direction in [Direction::From, Direction::To] {
                let mut request = Request::new(path.name, direction, 5003);
                if path.by_engine {
                    request.context = Context::Exclusive;
                }
                request.depth = 4;
                let Ok(mut sessions) = CopyEngine.open(&request.workload()) else {
                    assert_eq!((path.name, direction), ("hugetlb", Direction::From));
                    continue;
                };
                sessions[0].prepare().unwrap();
                for _ in 0..3 {
                    sessions[0]
                        .verify()
                        .unwrap_or_else(|fault| panic!("{path:?} {direction:?}: {fault}"));
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_copied_is_refused_in_one_line() {
        let refused = |request: Request| match CopyEngine.open(&request.workload()) {
            Ok(mut sessions) => sessions[0].prepare().unwrap_err().0,
            Err(fault) => fault.0,
        };
        let mut shared = Request::new("pread", Direction::To, 64);
        shared.context = Context::Shared;
        assert!(refused(shared).contains("--path module or engine-thread"));
        assert!(refused(Request::new("nowhere", Direction::To, 64)).contains("choose among pread"));
        assert!(refused(Request::new("pipe", Direction::To, 2 << 20)).contains("smaller --sizes"));
        assert!(refused(Request::new("pipe", Direction::Both, 64)).contains("from or to"));
        assert!(refused(Request::new("memcpy", Direction::To, 1 << 40)).contains("map"));
    }
}
