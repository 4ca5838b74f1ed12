//! The one measuring loop.
//!
//! ```text
//! probe -> open -> limits -> [each lane: pin, prepare, verify, warm up] -> observers start -> release
//!       -> [each lane: timed steps] -> observers stop -> [each lane: verify, tally] -> record
//! ```
//!
//! Only this file reads the clock around work. Timed steps allocate nothing: sample vectors have their room beforehand.
//! Consecutive samples share their time stamp, so one reading of the clock is the whole cost per sample.

use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::Duration;

use daqmeter_record::{Counter, CpuTime, EngineInfo, Host, HostCpu, Lane, Ledger, Outcome, RunRecord, Stage, Workload};
use daqmeter_sys::perf::Sampler;
use daqmeter_sys::{affinity, clock, cpu_time};

use crate::conclude::conclude;
use crate::limits::limits;
use crate::settings::{Settings, StepPlan};
use crate::{Availability, Context, Engine, Fault, Observer, Session, StageSpec};

/// Most samples that a stage keeps; beyond it each sample covers several operations, so that memory does not grow with the
/// number of operations. 65,536 samples are 512 KiB.
pub const MAX_SAMPLES: u64 = 1 << 16;
/// A sample must last this many times the clock's cost and resolution, so that they stay below 0.1 % of it.
const SAMPLE_OVER_CLOCK: f64 = 1000.0;

/// The work was not begun: bad parameters, a device that is not understood. Nothing was measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Refusal(fault.0)
    }
}

/// Runs one point and returns its record. Lanes that fail, bytes that do not check and ledgers that do not close are in the
/// record's outcome; limits that stages ask for are measured by the one of `limit_engines` that has the name of their kind.
///
/// # Errors
/// When the work cannot even begin.
pub fn measure(
    engine: &dyn Engine,
    workload: &Workload,
    settings: &Settings,
    context: &Context,
    limit_engines: &[&dyn Engine],
    observers: &mut [Box<dyn Observer>],
) -> Result<RunRecord, Refusal> {
    let mut record = blank(engine, workload, settings, context);
    let probed = if settings.waive { engine.probe_for(workload) } else { engine.probe() };
    if let Availability::Waived(reason) = probed {
        record.outcome = Outcome::Waived(reason);
        return Ok(record);
    }
    check_cpus(&settings.pin, &context.host)?;
    let sessions = engine.open(workload)?;
    let (limits, missing) = limits(limit_engines, &sessions, settings, context)?;
    record.limits = limits;
    record.warnings.extend(missing);
    let lanes = run_lanes(sessions, settings, context, observers, &mut record);
    conclude(&mut record, lanes, settings, context);
    Ok(record)
}

fn blank(engine: &dyn Engine, workload: &Workload, settings: &Settings, context: &Context) -> RunRecord {
    let info = EngineInfo {
        name: engine.name().to_owned(),
        target: engine.target(workload),
        emulated: engine.is_emulated(workload),
    };
    let mut record = context.blank_record(info, workload.clone());
    record.study.clone_from(&settings.study);
    record
}

fn check_cpus(pin: &[u32], host: &Host) -> Result<(), Refusal> {
    match pin.iter().find(|cpu| !host.allowed_cpus.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => Err(Refusal(format!(
            "CPU {cpu} does not exist or is not allowed here; choose among {}",
            join(&host.allowed_cpus)
        ))),
    }
}

pub(crate) fn join(cpus: &[u32]) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// What one lane's thread brings back.
pub(crate) struct LaneDone {
    pub(crate) lane: Lane,
    pub(crate) ledgers: Vec<Ledger>,
    pub(crate) counters: Vec<Counter>,
    pub(crate) warnings: Vec<String>,
    pub(crate) pointers: Vec<u64>,
}

/// The points where all lanes and the starting thread meet.
struct Meeting {
    prepared: Barrier,
    released: Barrier,
    done: Barrier,
    origin_ns: std::sync::atomic::AtomicU64,
}

fn run_lanes(
    sessions: Vec<Box<dyn Session>>,
    settings: &Settings,
    context: &Context,
    observers: &mut [Box<dyn Observer>],
    record: &mut RunRecord,
) -> Vec<LaneDone> {
    let all = sessions.len() + 1;
    let meeting = Meeting {
        prepared: Barrier::new(all),
        released: Barrier::new(all),
        done: Barrier::new(all),
        origin_ns: 0.into(),
    };
    observers.iter_mut().for_each(|observer| observer.arm());
    std::thread::scope(|scope| {
        let meeting = &meeting;
        let start = |(index, session): (usize, Box<dyn Session>)| {
            let requested_cpu = settings.pin.get(index % settings.pin.len().max(1)).copied();
            let runner = LaneRunner { index, session, requested_cpu, settings, context };
            std::thread::Builder::new()
                .name(format!("lane-{index}"))
                .spawn_scoped(scope, move || runner.run(meeting))
                .expect("the host has room for one more thread")
        };
        let threads: Vec<_> = sessions.into_iter().enumerate().map(start).collect();
        meeting.prepared.wait();
        let host_before = cpu_time::of_host("/".as_ref());
        let process_before = cpu_time::of_process();
        let threads_before = cpu_time::of_own_threads();
        observers.iter_mut().for_each(|observer| observer.start());
        let origin_ns = clock::monotonic_ns();
        meeting.origin_ns.store(origin_ns, Ordering::Release);
        meeting.released.wait();
        meeting.done.wait();
        record.wall_ns = clock::monotonic_ns() - origin_ns;
        record.origin_ns = origin_ns;
        record.counters = observers.iter_mut().flat_map(|observer| observer.stop()).collect();
        record.observed = observers.iter_mut().find_map(|observer| observer.observations(origin_ns));
        record.warnings.extend(observers.iter_mut().filter_map(|observer| observer.trouble()));
        let process = cpu_time::of_process();
        record.process_cpu = CpuTime {
            user_ns: process.user_ns.saturating_sub(process_before.user_ns),
            system_ns: process.system_ns.saturating_sub(process_before.system_ns),
        };
        record.host_cpu = host_cpu(cpu_time::of_host("/".as_ref()).since(host_before));
        record.host_cpu.threads_ns = cpu_time::of_own_threads()
            .into_iter()
            .map(|(name, ns)| (name.clone(), ns.saturating_sub(threads_before.get(&name).copied().unwrap_or(0))))
            .filter(|(_, ns)| *ns > 0)
            .collect();
        // The lanes go on to verify and to tally; their CPU time is not counted any more.
        meeting.released.wait();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    })
}

fn panicked() -> LaneDone {
    let outcome = Outcome::Failed("the lane's thread panicked: a bug in daqmeter, please report it".to_owned());
    LaneDone {
        lane: Lane { outcome, ..Lane::default() },
        ledgers: vec![],
        counters: vec![],
        warnings: vec![],
        pointers: vec![],
    }
}

fn host_cpu(times: cpu_time::HostTimes) -> HostCpu {
    HostCpu {
        user_ns: times.user_ns,
        system_ns: times.system_ns,
        irq_ns: times.irq_ns,
        softirq_ns: times.softirq_ns,
        steal_ns: times.steal_ns,
        iowait_ns: times.iowait_ns,
        idle_ns: times.idle_ns,
        threads_ns: Default::default(),
    }
}

struct LaneRunner<'a> {
    index: usize,
    session: Box<dyn Session>,
    requested_cpu: Option<u32>,
    settings: &'a Settings,
    context: &'a Context,
}

impl LaneRunner<'_> {
    /// The lane's whole life. Whatever fails, every meeting point is kept, or the others would wait for ever.
    fn run(mut self, meeting: &Meeting) -> LaneDone {
        let mut warnings = Vec::new();
        let mut lane = Lane { device: self.session.device(), requested_cpu: self.requested_cpu, ..Lane::default() };
        let ready = self.make_ready(&mut lane);
        let mut sampler = self.sampler(&mut warnings);
        meeting.prepared.wait();
        meeting.released.wait();
        let origin_ns = meeting.origin_ns.load(Ordering::Acquire);
        self.session.begin();
        if let Some(sampler) = &sampler {
            sampler.start();
        }
        let timed = ready.and_then(|mut stages| {
            let ended = self.timed(&mut stages, origin_ns, &mut lane.seen_cpus);
            lane.stages = stages.into_iter().map(|(_, stage)| stage).collect();
            ended
        });
        let (pointers, lost) = sampler.as_mut().map(Sampler::stop).unwrap_or_default();
        meeting.done.wait();
        meeting.released.wait();
        if lost > 0 {
            warnings.push(format!("profile of lane {}: {lost} samples did not fit the ring", self.index));
        }
        let verified =
            timed.and_then(|()| self.session.verify().map_err(|fault| after("verification after the run", fault)));
        if let Err(fault) = verified {
            lane.outcome = Outcome::Failed(fault.0);
        }
        let tally = self.session.tally();
        lane.numa_node = tally.numa_node;
        lane.seen_cpus.sort_unstable();
        lane.seen_cpus.dedup();
        warnings.extend(tally.warnings);
        LaneDone { lane, ledgers: tally.ledgers, counters: tally.counters, warnings, pointers }
    }

    fn make_ready(&mut self, lane: &mut Lane) -> Result<Vec<(StageSpec, Stage)>, Fault> {
        lane.allowed_cpus = match self.requested_cpu {
            Some(cpu) => affinity::pin_to(cpu)?,
            None => affinity::allowed_cpus()?,
        };
        if let Some(cpu) = self.requested_cpu
            && lane.allowed_cpus != [cpu]
        {
            return Err(Fault::new(format!("pinned to CPU {cpu}, but the kernel allows {}", join(&lane.allowed_cpus))));
        }
        self.session.prepare()?;
        self.session.verify().map_err(|fault| after("verification before the run", fault))?;
        let specs = self.session.stages();
        specs.into_iter().enumerate().map(|(at, spec)| self.plan_stage(at, spec)).collect()
    }

    /// Chooses the operations per sample and makes room for the samples.
    fn plan_stage(&mut self, at: usize, spec: StageSpec) -> Result<(StageSpec, Stage), Fault> {
        let (ops_per_sample, samples) = match self.settings.plan {
            _ if spec.once => (1, 1),
            StepPlan::ByStage(operations) | StepPlan::ByPass(operations) if spec.apart() => (1, operations),
            StepPlan::Timed(_) if spec.apart() => (1, MAX_SAMPLES),
            StepPlan::ByStage(operations) => exact(operations, spec.batch),
            StepPlan::ByPass(passes) => exact(passes, 1),
            StepPlan::Timed(budget) => self.calibrate(at, budget, spec.batch)?,
        };
        let room = usize::try_from(samples.min(MAX_SAMPLES)).expect("at most MAX_SAMPLES");
        let stage = Stage {
            name: spec.name.clone(),
            ops_per_sample,
            bytes_per_op: spec.bytes_per_op,
            traffic_bytes_per_op: spec.traffic_bytes_per_op,
            limit: spec.limit.as_ref().map(|limit| limit.name().to_owned()),
            sample_ns: Vec::with_capacity(room),
            sample_start_ns: Vec::with_capacity(if spec.apart() { room } else { 0 }),
            ..Stage::default()
        };
        Ok((spec, stage))
    }

    /// Warms up for a tenth of the budget, and from that chooses operations per sample: long against the clock's cost and
    /// resolution, at most as many samples as are kept, and whole batches.
    fn calibrate(&mut self, at: usize, budget: Duration, whole: u64) -> Result<(u64, u64), Fault> {
        let warm_up_ns = as_ns(budget) / 10;
        let begin = clock::monotonic_ns();
        let (mut operations, mut batch) = (0_u64, whole.max(1));
        let elapsed_ns = loop {
            self.session.step(at, batch)?;
            operations += batch;
            let elapsed_ns = clock::monotonic_ns() - begin;
            if elapsed_ns >= warm_up_ns {
                break elapsed_ns;
            }
            batch = batch.saturating_mul(2).min(((1 << 30) / whole.max(1)).max(1) * whole.max(1));
        };
        let op_ns = (elapsed_ns as f64 / operations as f64).max(1e-3);
        let clock = &self.context.clock;
        let sample_ns = SAMPLE_OVER_CLOCK * clock.resolution_ns.max(clock.overhead_ns);
        let fewest_for_memory = as_ns(budget) as f64 / op_ns / MAX_SAMPLES as f64;
        #[allow(clippy::cast_possible_truncation, reason = "a number of operations, clamped to a sane range")]
        let ops_per_sample = (sample_ns / op_ns).max(fewest_for_memory).ceil().clamp(1.0, 1e15) as u64;
        Ok((ops_per_sample.next_multiple_of(whole.max(1)), MAX_SAMPLES))
    }

    fn sampler(&self, warnings: &mut Vec<String>) -> Option<Sampler> {
        let hertz = self.settings.profile_hz?;
        match Sampler::of_this_thread(hertz) {
            Ok(sampler) => {
                if !sampler.sees_kernel {
                    warnings.push(
                        "the profile sees user mode only: set kernel.perf_event_paranoid to 1 or run as root".into(),
                    );
                }
                Some(sampler)
            }
            Err(error) => {
                warnings.push(format!("profile waived: {error}; set kernel.perf_event_paranoid to 2 or lower"));
                None
            }
        }
    }

    fn timed(&mut self, stages: &mut [(StageSpec, Stage)], origin_ns: u64, seen: &mut Vec<u32>) -> Result<(), Fault> {
        match self.settings.plan {
            StepPlan::ByPass(passes) => {
                for pass in 0..passes {
                    for (at, (spec, stage)) in stages.iter_mut().enumerate() {
                        if !spec.once || pass == 0 {
                            seen.extend(affinity::current_cpu());
                            let merge = pass % stage.ops_per_sample != 0;
                            self.one_pass(at, spec, stage, merge, origin_ns)?;
                        }
                    }
                    self.check_stop(pass + 1, passes)?;
                }
                Ok(())
            }
            StepPlan::ByStage(operations) => stages.iter_mut().enumerate().try_for_each(|(at, (spec, stage))| {
                let samples = if spec.once { 1 } else { operations.div_ceil(stage.ops_per_sample) };
                seen.extend(affinity::current_cpu());
                self.stage_samples(at, spec, stage, (samples, u64::MAX), origin_ns)?;
                seen.extend(affinity::current_cpu());
                self.check_stop(stage.sample_ns.len() as u64, samples)
            }),
            StepPlan::Timed(budget) => stages.iter_mut().enumerate().try_for_each(|(at, (spec, stage))| {
                seen.extend(affinity::current_cpu());
                self.stage_samples(at, spec, stage, (MAX_SAMPLES, as_ns(budget)), origin_ns)?;
                seen.extend(affinity::current_cpu());
                self.check_stop(stage.sample_ns.len() as u64, MAX_SAMPLES)
            }),
        }
    }

    /// Takes up to `most` samples, for at most `budget_ns` (but five), and books the CPU time.
    fn stage_samples(
        &mut self,
        at: usize,
        spec: &StageSpec,
        stage: &mut Stage,
        (most, budget_ns): (u64, u64),
        origin_ns: u64,
    ) -> Result<(), Fault> {
        if spec.apart() {
            return self.samples_apart(at, spec, stage, (most, budget_ns), origin_ns);
        }
        let cpu_before = cpu_time::of_thread();
        let begin = clock::monotonic_ns();
        if stage.sample_ns.is_empty() {
            stage.start_ns = begin.saturating_sub(origin_ns);
        }
        let mut last = begin;
        let mut taken = 0;
        let mut result = Ok(());
        while taken < most && (last - begin < budget_ns || taken < 5) && !self.settings.stop.is_set() {
            result = self.session.step(at, stage.ops_per_sample);
            if result.is_err() {
                break;
            }
            let now = clock::monotonic_ns();
            stage.sample_ns.push(now - last);
            last = now;
            taken += 1;
        }
        stage.end_ns = last.saturating_sub(origin_ns);
        book_cpu(stage, cpu_before);
        result
    }

    /// The same where each sample is one operation that stands apart from the others: made ready before, or timed by the device.
    fn samples_apart(
        &mut self,
        at: usize,
        spec: &StageSpec,
        stage: &mut Stage,
        (most, budget_ns): (u64, u64),
        origin_ns: u64,
    ) -> Result<(), Fault> {
        let cpu_before = cpu_time::of_thread();
        let begin = clock::monotonic_ns();
        let mut last = begin;
        let mut taken = 0;
        let mut result = Ok(());
        while taken < most && (last - begin < budget_ns || taken < 5) && !self.settings.stop.is_set() {
            result = self.sample_apart(at, spec, stage, origin_ns);
            if result.is_err() {
                break;
            }
            last = clock::monotonic_ns();
            taken += 1;
        }
        book_cpu(stage, cpu_before);
        result
    }

    fn sample_apart(&mut self, at: usize, spec: &StageSpec, stage: &mut Stage, origin_ns: u64) -> Result<(), Fault> {
        if spec.fresh {
            self.session.freshen(at)?;
        }
        let before = clock::monotonic_ns();
        self.session.step(at, 1)?;
        let after = clock::monotonic_ns();
        let (before, after) = if spec.device_timed {
            let told = self.session.device_time();
            (told.before_ns, told.after_ns)
        } else {
            (before, after)
        };
        let start_ns = before.saturating_sub(origin_ns);
        if stage.sample_ns.is_empty() {
            stage.start_ns = start_ns;
        }
        stage.end_ns = after.saturating_sub(origin_ns);
        stage.sample_start_ns.push(start_ns);
        stage.sample_ns.push(after.saturating_sub(before));
        Ok(())
    }

    /// One operation of a by-pass plan. With more than [`MAX_SAMPLES`] passes, consecutive ones share a sample.
    fn one_pass(
        &mut self,
        at: usize,
        spec: &StageSpec,
        stage: &mut Stage,
        merge: bool,
        origin_ns: u64,
    ) -> Result<(), Fault> {
        if spec.apart() {
            return self.samples_apart(at, spec, stage, (1, u64::MAX), origin_ns);
        }
        let cpu_before = cpu_time::of_thread();
        let begin = clock::monotonic_ns();
        let result = self.session.step(at, 1);
        let end = clock::monotonic_ns();
        if stage.sample_ns.is_empty() {
            stage.start_ns = begin.saturating_sub(origin_ns);
        }
        stage.end_ns = end.saturating_sub(origin_ns);
        book_cpu(stage, cpu_before);
        result?;
        match stage.sample_ns.last_mut() {
            Some(last) if merge => *last += end - begin,
            _ => stage.sample_ns.push(end - begin),
        }
        Ok(())
    }

    fn check_stop(&self, done: u64, of: u64) -> Result<(), Fault> {
        if self.settings.stop.is_set() && done < of {
            return Err(Fault::new(format!("{INTERRUPTED} after {done} samples")));
        }
        Ok(())
    }
}

/// How the reason of an interrupted lane begins.
pub const INTERRUPTED: &str = "interrupted";

/// Operations per sample and number of samples for exactly so many operations: whole batches, where they divide them.
fn exact(operations: u64, batch: u64) -> (u64, u64) {
    let whole = batch.clamp(1, operations.max(1));
    let batch = if operations.is_multiple_of(whole) { whole } else { 1 };
    let ops_per_sample = batch * (operations / batch).div_ceil(MAX_SAMPLES).max(1);
    (ops_per_sample, operations.div_ceil(ops_per_sample))
}

fn book_cpu(stage: &mut Stage, before: cpu_time::Usage) {
    let after = cpu_time::of_thread();
    stage.cpu.user_ns += after.user_ns - before.user_ns;
    stage.cpu.system_ns += after.system_ns - before.system_ns;
}

fn as_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn after(what: &str, fault: Fault) -> Fault {
    Fault(format!("{what}: {}", fault.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NullEngine, Tally};

    fn context() -> Context {
        let host = Host { allowed_cpus: affinity::allowed_cpus().unwrap(), logical_cpus: 1, ..Host::default() };
        let clock = daqmeter_record::Clock { resolution_ns: 20.0, overhead_ns: 20.0, ..Default::default() };
        Context { host: host.into(), clock, ..Context::default() }
    }

    fn run(engine: &dyn Engine, settings: &Settings) -> RunRecord {
        measure(engine, &engine.example(), settings, &context(), &[], &mut crate::observe::standard()).unwrap()
    }

    /// Two lanes, two stages; what goes wrong is chosen by each test.
    #[derive(Clone, Default)]
    struct Scripted {
        fail_at: Option<u64>,
        wrong_bytes: bool,
        leak: u64,
        waived: bool,
    }

    struct ScriptedSession {
        script: Scripted,
        lane: u64,
        done: u64,
    }

    impl Engine for Scripted {
        fn name(&self) -> &'static str {
            "scripted"
        }
        fn description(&self) -> &'static str {
            "for tests"
        }
        fn probe(&self) -> Availability {
            if self.waived { Availability::Waived("no card; install one".into()) } else { Availability::Ready }
        }
        fn target(&self, _: &Workload) -> String {
            "test".into()
        }
        fn example(&self) -> Workload {
            Workload::new("scripted")
        }
        fn open(&self, _: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
            let lane = |lane| Box::new(ScriptedSession { script: self.clone(), lane, done: 0 }) as Box<dyn Session>;
            Ok(vec![lane(0), lane(1)])
        }
    }

    impl Session for ScriptedSession {
        fn device(&self) -> String {
            format!("test{}", self.lane)
        }
        fn stages(&self) -> Vec<StageSpec> {
            let once = StageSpec { once: true, ..StageSpec::new("once", 1, 1) };
            vec![StageSpec::new("first", 10, 20), once]
        }
        fn prepare(&mut self) -> Result<(), Fault> {
            Ok(())
        }
        fn step(&mut self, _: usize, operations: u64) -> Result<(), Fault> {
            self.done += operations;
            match self.script.fail_at {
                Some(at) if self.lane == 1 && self.done > at => Err(Fault::new("board gone")),
                _ => Ok(()),
            }
        }
        fn verify(&mut self) -> Result<(), Fault> {
            if self.script.wrong_bytes && self.done > 0 { Err(Fault::new("byte 3 is 0, not 1")) } else { Ok(()) }
        }
        fn begin(&mut self) {
            self.done = 0;
        }
        fn tally(&mut self) -> Tally {
            let mut ledger = Ledger::new("operations");
            ledger.issued = self.done;
            ledger.delivered = self.done - self.script.leak.min(self.done);
            Tally { ledgers: vec![ledger], ..Tally::default() }
        }
    }

    #[test]
    fn the_number_of_operations_is_exact_and_every_sample_is_kept() {
        let record = run(&Scripted::default(), &Settings::new(StepPlan::ByStage(30), "test"));
        assert_eq!(record.outcome, Outcome::Ok);
        assert_eq!(record.lanes.len(), 2);
        for lane in &record.lanes {
            assert_eq!(lane.stages[0].sample_ns.len(), 30);
            assert_eq!(lane.stages[1].sample_ns.len(), 1, "a once-stage runs once");
            assert!(lane.stages[1].start_ns >= lane.stages[0].end_ns);
        }
        assert_eq!(record.ledgers[0].issued, 62);
    }

    /// Counts what it is asked for; its operations come in batches of ten.
    #[derive(Clone, Default)]
    struct Batched(std::sync::Arc<std::sync::Mutex<Vec<u64>>>);

    impl Engine for Batched {
        fn name(&self) -> &'static str {
            "batched"
        }
        fn description(&self) -> &'static str {
            "counts operations that come in batches"
        }
        fn probe(&self) -> Availability {
            Availability::Ready
        }
        fn target(&self, _workload: &Workload) -> String {
            "test".to_owned()
        }
        fn example(&self) -> Workload {
            Workload::new("batched")
        }
        fn open(&self, _workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
            Ok(vec![Box::new(self.clone())])
        }
    }

    impl Session for Batched {
        fn device(&self) -> String {
            "test".to_owned()
        }
        fn stages(&self) -> Vec<StageSpec> {
            vec![StageSpec { batch: 10, ..StageSpec::new("work", 1, 1) }]
        }
        fn prepare(&mut self) -> Result<(), Fault> {
            Ok(())
        }
        fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
            self.0.lock().unwrap().push(operations);
            Ok(())
        }
        fn verify(&mut self) -> Result<(), Fault> {
            Ok(())
        }
        fn tally(&mut self) -> Tally {
            Tally::default()
        }
    }

    #[test]
    fn operations_that_belong_together_are_not_torn_apart() {
        for (plan, wanted) in [
            (StepPlan::ByStage(30), vec![10, 10, 10]),
            (StepPlan::ByStage(7), vec![7]),
            (StepPlan::ByStage(10), vec![10]),
        ] {
            let engine = Batched::default();
            run(&engine, &Settings::new(plan, "test"));
            assert_eq!(*engine.0.lock().unwrap(), wanted);
        }
        let engine = Batched::default();
        run(&engine, &Settings::new(StepPlan::Timed(Duration::from_millis(1)), "test"));
        assert!(engine.0.lock().unwrap().iter().all(|operations| operations.is_multiple_of(10)));
    }

    #[test]
    fn memory_for_samples_does_not_grow_with_the_number_of_operations() {
        let many = MAX_SAMPLES * 3;
        let record = run(&Scripted::default(), &Settings::new(StepPlan::ByStage(many), "test"));
        let stage = &record.lanes[0].stages[0];
        assert_eq!((stage.ops_per_sample, stage.sample_ns.len() as u64), (3, MAX_SAMPLES));
        let record = run(&Scripted::default(), &Settings::new(StepPlan::ByPass(MAX_SAMPLES * 2), "test"));
        let stage = &record.lanes[0].stages[0];
        assert_eq!((stage.ops_per_sample, stage.sample_ns.len() as u64), (2, MAX_SAMPLES));
    }

    #[test]
    fn a_lane_that_fails_names_its_reason_and_the_other_finishes() {
        let engine = Scripted { fail_at: Some(5), ..Scripted::default() };
        let record = run(&engine, &Settings::new(StepPlan::ByStage(30), "test"));
        assert_eq!(record.lanes[0].outcome, Outcome::Ok);
        assert_eq!(record.lanes[0].stages[0].sample_ns.len(), 30);
        assert_eq!(record.lanes[1].outcome, Outcome::Failed("board gone".into()));
        assert_eq!(record.lanes[1].stages[0].sample_ns.len(), 5);
        assert_eq!(record.outcome, Outcome::Failed("test1: board gone".into()));
    }

    #[test]
    fn wrong_bytes_fail_the_run() {
        let engine = Scripted { wrong_bytes: true, ..Scripted::default() };
        let record = run(&engine, &Settings::new(StepPlan::ByStage(3), "test"));
        let reason = record.outcome.reason().unwrap();
        assert!(reason.contains("verification after the run: byte 3"), "{reason}");
    }

    #[test]
    fn a_ledger_that_does_not_close_fails_the_run() {
        let engine = Scripted { leak: 1, ..Scripted::default() };
        let record = run(&engine, &Settings::new(StepPlan::ByStage(3), "test"));
        assert!(record.outcome.reason().unwrap().contains("does not close"));
    }

    #[test]
    fn missing_hardware_is_waived_with_the_reason() {
        let engine = Scripted { waived: true, ..Scripted::default() };
        let record = run(&engine, &Settings::new(StepPlan::ByStage(3), "test"));
        assert_eq!(record.outcome, Outcome::Waived("no card; install one".into()));
        assert!(record.lanes.is_empty());
    }

    #[test]
    fn pinning_is_verified_and_both_cpus_are_recorded() {
        let cpu = affinity::allowed_cpus().unwrap()[0];
        let settings = Settings { pin: vec![cpu], ..Settings::new(StepPlan::ByStage(3), "test") };
        let record = run(&Scripted::default(), &settings);
        for lane in &record.lanes {
            assert_eq!(
                (lane.requested_cpu, &lane.allowed_cpus[..], &lane.seen_cpus[..]),
                (Some(cpu), &[cpu][..], &[cpu][..])
            );
        }
        assert!(record.warnings.iter().any(|warning| warning.contains("share")), "{:?}", record.warnings);
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused_before_anything_runs() {
        let settings = Settings { pin: vec![9999], ..Settings::new(StepPlan::ByStage(3), "test") };
        let engine = Scripted::default();
        let refused = measure(&engine, &engine.example(), &settings, &context(), &[], &mut []);
        assert!(refused.unwrap_err().0.contains("CPU 9999 does not exist"));
    }

    #[test]
    fn an_interrupted_run_keeps_what_it_has() {
        let settings = Settings::new(StepPlan::ByStage(30), "test");
        settings.stop.set();
        let record = run(&Scripted::default(), &settings);
        assert!(record.outcome.reason().unwrap().contains(INTERRUPTED));
    }

    #[test]
    fn timed_plans_choose_samples_that_are_long_against_the_clock() {
        let record = run(&NullEngine, &Settings::new(StepPlan::Timed(Duration::from_millis(2)), "test"));
        let stage = &record.lanes[0].stages[0];
        assert!(stage.ops_per_sample > 100 && stage.sample_ns.len() >= 5);
        assert_eq!(record.outcome, Outcome::Ok);
    }
}
