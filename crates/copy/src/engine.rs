//! The engine `copy`: one point of latency or bandwidth, by any path and policy.

use daqmeter_harness::request::workload_of;
use daqmeter_harness::{
    DeviceTime, Fault, Job, LimitSpec, Problem, Request, Session, StageSpec, StopFlag, Tally,
    check_lanes,
};
use daqmeter_record::{Counter, Ledger, Workload};
use daqmeter_sys::copies::null_call;

use crate::load::HeavyLoad;
use crate::paths::{self, Mover};
use crate::plain::PlainRequest;
use crate::request::{
    CopyContext, CopyLoad, CopyPath, CopyRequest, Direction, MAX_BLOCK_BYTES, MAX_CHANNELS,
    MAX_WINDOW_NS,
};

pub(crate) const NULL_CALL: &str = "null_call";

fn stage_name(direction: Direction) -> &'static str {
    match direction {
        Direction::From => "copy_from_user",
        Direction::To => "copy_to_user",
        Direction::Both => "copy_from_and_to_user",
    }
}

struct CopySession {
    request: CopyRequest,
    mover: Box<dyn Mover>,
    issued: u64,
    done: u64,
    compared: u64,
    /// Number of the pattern that is expected at the destination.
    number: u8,
    pattern: Vec<u8>,
    found: Vec<u8>,
    stop: StopFlag,
}

impl Request for CopyRequest {
    const KIND: &'static str = "copy";
    const DESCRIPTION: &'static str = "copies between user and kernel memory, by CPU or by the channels of an engine, under a policy";

    fn example() -> CopyRequest {
        CopyRequest { lanes: 2, ..CopyRequest::new(CopyPath::Pread, Direction::Both, 4096) }
    }

    fn job(&self) -> Result<Job, Fault> {
        Ok(Job {
            is_emulated: is_emulated(self),
            memory_bytes: Some(self.memory_bytes()),
            waiver: self.path.waiver(),
            load: (self.load == CopyLoad::Heavy).then_some(|| Box::new(HeavyLoad::default())),
            ..Job::new(self, target(self), open)
        })
    }

    fn check(&self) -> Result<(), Problem> {
        Problem::unless_within("block_bytes", self.block_bytes, 1..=MAX_BLOCK_BYTES)?;
        check_lanes("lanes", self.lanes)?;
        Problem::unless_within("channels", self.channels, 0..=MAX_CHANNELS)?;
        // A longer window would starve the low channels.
        Problem::unless_within("window_ns", self.window_ns, 2..=MAX_WINDOW_NS)?;
        Problem::unless_within("quantum_ns", self.quantum_ns, 1..=self.window_ns - 1)
    }

    /// Leaves out fields without effect in its context, so that equal points have equal workloads.
    fn workload(&self) -> Workload {
        let mut workload = workload_of(self);
        if self.context == CopyContext::Cpu {
            workload.params.remove("channels");
            workload.params.remove("completion");
        }
        if self.context != CopyContext::Priority {
            workload.params.remove("quantum_ns");
            workload.params.remove("window_ns");
            workload.params.remove("high_channels");
        }
        workload
    }
}

fn target(request: &CopyRequest) -> String {
    if request.path != CopyPath::Module || request.context == CopyContext::Cpu {
        return request.path.to_string();
    }
    match paths::provider(request) {
        Some((driver, channels, _)) => format!("module: {driver}, {channels} channels"),
        None => "module".to_owned(),
    }
}

pub(crate) fn is_emulated(request: &CopyRequest) -> bool {
    match request.path {
        CopyPath::EngineThread => true,
        CopyPath::Module if request.context != CopyContext::Cpu => {
            paths::provider(request).is_some_and(|(_, _, soft)| soft)
        }
        _ => false,
    }
}

pub(crate) fn open(request: &CopyRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
    let movers = request.path.open(request)?.into_iter();
    Ok(movers.map(|mover| CopySession::on(request, mover)).collect())
}

impl CopySession {
    fn on(request: &CopyRequest, mover: Box<dyn Mover>) -> Box<dyn Session> {
        Box::new(CopySession {
            request: request.clone(),
            mover,
            issued: 0,
            done: 0,
            compared: 0,
            number: 1,
            pattern: Vec::new(),
            found: Vec::new(),
            stop: StopFlag::default(),
        })
    }

    /// Checks one direction byte by byte: the pattern at one end, other bytes at the other, a copy,
    /// the pattern at the other end.
    fn check(&mut self, direction: Direction) -> Result<(), Fault> {
        self.change_pattern();
        self.go_on()?;
        let (source, destination) = direction.sides();
        self.found.fill(!self.number);
        self.mover.put(destination, &self.found)?;
        self.mover.put(source, &self.pattern)?;
        self.go_on()?;
        self.mover.copy(direction)?;
        self.go_on()?;
        self.compare(direction)
    }

    fn compare(&mut self, direction: Direction) -> Result<(), Fault> {
        self.mover.get(direction.sides().1, &mut self.found)?;
        let mut places = self.found.iter().zip(&self.pattern);
        match places.position(|(found, wanted)| found != wanted) {
            None => Ok(()),
            Some(at) => Err(Fault::new(format!(
                "{}: byte {at} of {} is {:#04x}, expected {:#04x}",
                stage_name(direction),
                self.found.len(),
                self.found[at],
                self.pattern[at]
            ))),
        }
    }

    /// Fails after a signal. Called between the steps of a check, because blocks may be large.
    fn go_on(&self) -> Result<(), Fault> {
        if self.stop.is_set() { Err(Fault::interrupted()) } else { Ok(()) }
    }

    /// Makes other bytes than those of the previous check.
    fn change_pattern(&mut self) {
        self.number = self.number.wrapping_mul(5).wrapping_add(3);
        let bytes = (0..=250_u8).cycle().map(|byte| byte ^ self.number);
        self.pattern.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    }

    /// Makes the limit: a plain copy of as many bytes.
    fn limit(&self) -> LimitSpec {
        // Far beyond the caches the rate no longer depends on the size, but the preparation time
        // does.
        const LARGEST: usize = 128 << 20;
        let bytes = self.request.block_bytes;
        LimitSpec::Measured {
            name: format!("memcpy at {bytes} B"),
            how: "a plain copy of as many bytes, 128 MiB at most, in the same run; the best of memcpy, rep movsb and vectors".to_owned(),
            workload: PlainRequest::new(bytes.min(LARGEST)).workload(),
            scale: 1.0,
        }
    }
}

impl Session for CopySession {
    fn device(&self) -> String {
        self.mover.device()
    }

    fn stages(&self) -> Vec<StageSpec> {
        let passes = self.request.direction.parts().len() as u64;
        let bytes = self.request.block_bytes as u64 * passes;
        let before_sample = self.request.cold && self.mover.device_time().is_none();
        let copy = StageSpec {
            limit: Some(self.limit()),
            before_sample,
            checked: true,
            device_timed: self.mover.device_time().is_some(),
            ..StageSpec::new(stage_name(self.request.direction), bytes, 2 * bytes)
        };
        let null = self.mover.is_system_call().then(|| StageSpec::new(NULL_CALL, 0, 0));
        [copy].into_iter().chain(null).collect()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.mover.prepare()?;
        let bytes = self.request.block_bytes;
        (self.pattern, self.found) = (vec![0; bytes], vec![0; bytes]);
        Ok(())
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

    fn before_sample(&mut self, _stage: usize) -> Result<(), Fault> {
        if !self.request.cold || self.mover.flush()? {
            return Ok(());
        }
        Err(Fault::new(
            "this CPU has no instruction with which a program empties its caches: leave from_nc, to_nc and both_nc out of --operations",
        ))
    }

    fn device_time(&self) -> DeviceTime {
        self.mover.device_time().unwrap_or_default()
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn check_sample(&mut self, stage: usize) -> Result<(), Fault> {
        if stage == 1 {
            return Ok(());
        }
        for direction in self.request.direction.parts() {
            self.compare(*direction)?;
        }
        self.compared += 1;
        // Of several copies of equal bytes, one that moves nothing cannot be seen.
        self.verify()
    }

    fn verify(&mut self) -> Result<(), Fault> {
        self.request.direction.parts().iter().try_for_each(|direction| self.check(*direction))
    }

    fn begin(&mut self) {
        (self.issued, self.done, self.compared) = (0, 0, 0);
        self.mover.begin();
    }

    fn tally(&mut self) -> Tally {
        let (issued, delivered) = (self.issued, self.done);
        let mut ledger = Ledger { issued, delivered, ..Ledger::new("copies") };
        ledger.lose("failed", self.issued - self.done);
        let mut counters = self.mover.counters();
        counters.push(Counter::count("compared", self.compared));
        Tally {
            ledgers: vec![ledger],
            counters,
            warnings: self.mover.warnings(),
            numa_node: self.mover.numa_node(),
            ..Tally::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::{Context as Facts, Engine, Limits, Settings, StepPlan, measure};
    use daqmeter_record::LimitBasis;

    use super::*;
    use crate::PlainRequest;
    use crate::paths::Side;

    #[test]
    fn copies_conform() {
        daqmeter_harness::conformance::run(&CopyRequest::example().job().unwrap());
    }

    #[test]
    fn every_point_is_held_against_a_plain_copy_of_as_many_bytes() {
        let limits = Limits::new(std::time::Duration::from_micros(200));
        let settings = Settings { limits, ..Settings::new(StepPlan::ByStage(3), "test") };
        let record = measure(
            &CopyRequest::example().job().unwrap(),
            &settings,
            &Facts::default(),
            &[Engine::of::<PlainRequest>()],
            &mut [],
        )
        .unwrap();
        let limit = &record.limits[0];
        assert_eq!(
            (limit.name.as_str(), limit.basis, record.limits.len()),
            ("memcpy at 4096 B", LimitBasis::Sustained, 1)
        );
        for lane in &record.lanes {
            assert_eq!(lane.stages[0].limit.as_ref(), Some(&limit.name));
            assert_eq!(lane.stages[1].limit, None, "an empty call copies nothing");
        }
    }

    #[test]
    fn a_point_says_how_much_memory_it_takes() {
        const MIB: u64 = 1 << 20;
        let bytes = |request: &CopyRequest| request.job().unwrap().memory_bytes;
        let mut request = CopyRequest::new(CopyPath::Pread, Direction::To, 4 << 20);
        request.lanes = 3;
        assert_eq!(bytes(&request), Some(3 * (4 + 4 + 12) * MIB));
    }

    /// Copies between two buffers; one copy in `every` is wrong or missing.
    struct Sometimes {
        sides: [Vec<u8>; 2],
        copies: usize,
        every: usize,
        flips: bool,
    }

    impl Mover for Sometimes {
        fn device(&self) -> String {
            "sometimes".to_owned()
        }
        fn prepare(&mut self) -> Result<(), Fault> {
            Ok(())
        }
        fn copy(&mut self, direction: Direction) -> Result<(), Fault> {
            self.copies += 1;
            let is_due = self.copies.is_multiple_of(self.every);
            let [user, kernel] = &mut self.sides;
            let (from, to) =
                if direction == Direction::To { (kernel, user) } else { (user, kernel) };
            if !is_due || self.flips {
                to.copy_from_slice(from);
            }
            if is_due && self.flips {
                to[2] ^= 0x10;
            }
            Ok(())
        }
        fn put(&mut self, side: Side, bytes: &[u8]) -> Result<(), Fault> {
            self.sides[side as usize].copy_from_slice(bytes);
            Ok(())
        }
        fn get(&mut self, side: Side, into: &mut [u8]) -> Result<(), Fault> {
            into.copy_from_slice(&self.sides[side as usize]);
            Ok(())
        }
        fn flush(&mut self) -> Result<bool, Fault> {
            Ok(true)
        }
    }

    struct SometimesWrong {
        every: usize,
        flips: bool,
    }

    impl SometimesWrong {
        fn job(&self, direction: Direction) -> Job {
            let (every, flips) = (self.every, self.flips);
            Job::new(&CopyRequest::new(CopyPath::Memcpy, direction, 64), "a test", move |request| {
                let side = vec![0; request.block_bytes];
                let mover = Sometimes { sides: [side.clone(), side], copies: 0, every, flips };
                Ok(vec![CopySession::on(request, Box::new(mover))])
            })
        }
    }

    #[test]
    fn a_bit_that_is_flipped_between_the_first_and_the_last_copy_fails_the_point() {
        let settings = Settings::new(StepPlan::ByStage(300), "test");
        let outcome = |direction, every, flips| {
            let job = SometimesWrong { every, flips }.job(direction);
            let record = measure(&job, &settings, &Facts::default(), &[], &mut []);
            record.unwrap().outcome
        };
        for direction in [Direction::From, Direction::To, Direction::Both] {
            // Neither the copies before the run (1 or 2) nor those after it (301 to 604) are wrong.
            let never = outcome(direction, 10_000, true);
            assert!(never.is_ok(), "{direction}: {never:?}");
            for every in [5, 7] {
                let wrong = outcome(direction, every, true);
                let reason = wrong.reason().unwrap_or_else(|| panic!("{direction} {every}"));
                assert!(reason.contains("byte 2 of 64"), "{direction} {every}: {reason}");
            }
        }
        // Every third copy moves nothing and leaves the earlier bytes, which differ from the
        // expected ones.
        let reason = outcome(Direction::To, 3, false);
        assert!(reason.reason().unwrap().contains("byte 0 of 64"), "{reason:?}");
    }

    #[test]
    fn what_is_checked_between_samples_is_in_no_time_and_no_account() {
        let settings = Settings::new(StepPlan::ByStage(20), "test");
        let job = SometimesWrong { every: 10_000, flips: true }.job(Direction::To);
        let record = measure(&job, &settings, &Facts::default(), &[], &mut []).unwrap();
        let stage = &record.lanes[0].stages[0];
        assert_eq!(record.counter("compared"), Some(8.0));
        assert_eq!((stage.sample_ns.len(), stage.sample_start_ns.len()), (20, 20));
        let ends = stage.sample_starts_ns().zip(&stage.sample_ns);
        let ends: Vec<u64> = ends.map(|(start, ns)| start + ns).collect();
        let starts = stage.sample_starts_ns().skip(1);
        let gaps: Vec<u64> = starts.zip(ends).map(|(start, end)| start - end).collect();
        assert!(gaps.iter().any(|ns| *ns > 0), "no check took any time");
    }

    #[test]
    fn an_emulated_engine_has_fewer_channels_than_lanes() {
        let request = CopyRequest {
            context: CopyContext::Shared,
            lanes: 70,
            ..CopyRequest::new(CopyPath::EngineThread, Direction::To, 64)
        };
        let mut sessions = open(&request).unwrap();
        let last = sessions.last_mut().unwrap();
        last.prepare().unwrap();
        last.verify().unwrap();
    }

    #[test]
    fn what_cannot_be_copied_is_refused_in_one_line() {
        let refused = |request: CopyRequest| match open(&request) {
            Ok(mut sessions) => sessions[0].prepare().unwrap_err().0,
            Err(fault) => fault.0,
        };
        let of = |path, direction, bytes| refused(CopyRequest::new(path, direction, bytes));
        let mut shared = CopyRequest::new(CopyPath::Pread, Direction::To, 64);
        shared.context = CopyContext::Shared;
        assert!(refused(shared).contains("--path module or engine-thread"));
        assert!(of(CopyPath::Memcpy, Direction::To, 1 << 40).contains("map"));
        let nowhere = CopyRequest::example().workload().with("path", "nowhere");
        let fault = CopyRequest::of(&nowhere).unwrap_err().0;
        assert!(fault.contains("unknown variant `nowhere`, expected one of `pread`"));
    }
}
