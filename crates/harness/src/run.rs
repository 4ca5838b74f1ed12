//! The one measuring loop.
//!
//! ```text
//! probe -> open -> limits -> [each lane: pin, prepare, verify, warm up] -> observers start ->
//! release
//!       -> [each lane: timed steps] -> observers stop -> [each lane: verify, tally] -> limits
//!       -> record
//! ```
//!
//! `lanes.rs` has the lanes, `sample.rs` the timed steps, and `conclude.rs` the conclusion.

use daqmeter_record::{EngineInfo, Outcome, RunRecord};
use daqmeter_sys::available;

use crate::conclude::conclude;
use crate::guarded::guarded;
use crate::lanes::{Running, lane_thread, run_lanes};
use crate::limits::Sought;
pub use crate::sample::{INTERRUPTED, MAX_SAMPLES};
use crate::settings::Settings;
use crate::{Context, Engine, Fault, Job, Observer, Problem};

/// Returns the record of a point that could not be measured.
pub fn failed(job: &Job, settings: &Settings, context: &Context, fault: Fault) -> RunRecord {
    let mut record = blank(job, settings, context);
    record.outcome = Outcome::Failed(fault.0);
    record
}

fn blank(job: &Job, settings: &Settings, context: &Context) -> RunRecord {
    let info = EngineInfo {
        name: job.workload.kind.as_str().into(),
        target: job.target.as_str().into(),
        emulated: job.is_emulated,
    };
    let mut record = context.blank_record(info, job.workload.clone());
    (record.study, record.role) = (settings.study.clone(), settings.role);
    record
}

/// Runs one point and returns its record. The outcome in the record covers failed lanes, wrong
/// bytes and ledgers that do not close. The one of `limit_engines` with the kind of a limit
/// measures it.
///
/// # Errors
/// Fails only if the work cannot begin.
pub fn measure(
    job: &Job,
    settings: &Settings,
    context: &Context,
    limit_engines: &[Engine],
    observers: &mut [Box<dyn Observer>],
) -> Result<RunRecord, Fault> {
    let mut record = blank(job, settings, context);
    if let (true, Some(reason)) = (settings.waive, &job.waiver) {
        record.outcome = Outcome::Waived(reason.clone());
        return Ok(record);
    }
    Problem::unless_cpus_exist("pin", &settings.pin)
        .map_err(|problem| Fault::new(problem.to_string()))?;
    let settings = &Settings { plan: job.steps_in(settings.plan)?, ..settings.clone() };
    let sessions = match check_fits(job.memory_bytes).and_then(|()| job.open()) {
        Err(fault) if settings.waive && fault.does_not_fit() => {
            record.outcome = Outcome::Waived(fault.0);
            return Ok(record);
        }
        opened => opened?,
    };
    let alone = |job: &Job, settings: &Settings| measure(job, settings, context, &[], &mut []);
    let mut sought = Sought::before(limit_engines, &sessions, settings, &alone)?;
    let running =
        Running { settings, context, processes: job.names_processes, thread: lane_thread };
    let ran = run_lanes(sessions, running, observers, &mut record);
    conclude(&mut record, ran, settings, context);
    if record.outcome.is_ok() {
        let after = guarded("finding the limits", || sought.after(&record)).flatten();
        record.warnings.extend(after.err().map(|fault| format!("limits after the run: {fault}")));
    }
    sought.book(&mut record);
    Ok(record)
}

/// Compares the needs of a point with the free memory before any allocation, because the kernel
/// would kill the program later.
pub fn check_fits(needed_bytes: Option<u64>) -> Result<(), Fault> {
    match (needed_bytes, available::memory_bytes()) {
        (Some(needed), Some(free)) if needed > free => Err(Fault::too_large(format!(
            "needs {needed} bytes of memory, but this process may use only {free}: choose a smaller workload"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use daqmeter_record::{Ledger, Workload};
    use daqmeter_sys::affinity;

    use super::*;
    use crate::conformance::context;
    use crate::fixtures::Fake;
    use crate::{NullRequest, Request, Session, StageSpec, StepPlan, Tally};

    fn by_stage(operations: u64) -> Settings {
        Settings::new(StepPlan::ByStage(operations), "test")
    }

    fn run(script: &Scripted, settings: &Settings) -> RunRecord {
        run_job(&script.job(), settings)
    }

    fn run_job(job: &Job, settings: &Settings) -> RunRecord {
        measure(job, settings, &context(), &[], &mut crate::observe::standard()).unwrap()
    }

    #[test]
    fn what_does_not_fit_is_waived_where_points_may_be_left_out_and_else_refused() {
        let settings = |waive| Settings { waive, ..by_stage(3) };
        let large = Scripted { memory_bytes: Some(u64::MAX), ..Scripted::default() };
        let reason = run(&large, &settings(true)).outcome;
        assert!(
            matches!(&reason, Outcome::Waived(reason) if reason.contains("18446744073709551615 bytes")),
            "{reason:?}"
        );
        let refused = measure(&large.job(), &settings(false), &context(), &[], &mut []);
        assert!(refused.unwrap_err().0.contains("choose a smaller workload"));
        let waived = run(&Scripted { waived: true, ..Scripted::default() }, &settings(true));
        assert_eq!(waived.outcome, Outcome::Waived("no card; install one".into()));
        assert!(waived.lanes.is_empty());
        // Memory that is lacking only at its allocation.
        let lacking = Scripted { lacks_memory: true, ..Scripted::default() };
        let record = run(&lacking, &settings(true));
        assert!(
            matches!(&record.outcome, Outcome::Waived(reason) if reason.contains("map 64 bytes")),
            "{record:?}"
        );
        assert!(matches!(run(&lacking, &settings(false)).outcome, Outcome::Failed(_)));
        assert_eq!((check_fits(Some(5)), check_fits(None)), (Ok(()), Ok(())));
    }

    #[derive(Clone, Default)]
    struct Scripted {
        fail_at: Option<u64>,
        wrong_bytes: bool,
        leak: u64,
        waived: bool,
        memory_bytes: Option<u64>,
        lacks_memory: bool,
        carried_bytes: Option<u64>,
    }

    struct ScriptedSession {
        script: Scripted,
        lane: u64,
        done: u64,
    }

    impl Scripted {
        fn job(&self) -> Job {
            let script = self.clone();
            let job = Job::untyped(Workload::new("scripted"), "test", move || {
                let lane = |lane| -> Box<dyn Session> {
                    Box::new(ScriptedSession { script: script.clone(), lane, done: 0 })
                };
                Ok(vec![lane(0), lane(1)])
            });
            let waiver = self.waived.then(|| "no card; install one".to_owned());
            Job { waiver, memory_bytes: self.memory_bytes, ..job }
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
            let error = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            let lacking = daqmeter_sys::SysError { call: "map 64 bytes".to_owned(), source: error };
            if self.script.lacks_memory { Err(lacking.into()) } else { Ok(()) }
        }
        fn step(&mut self, _: usize, operations: u64) -> Result<(), Fault> {
            self.done += operations;
            match self.script.fail_at {
                Some(at) if self.lane == 1 && self.done > at => Err(Fault::new("board gone")),
                _ => Ok(()),
            }
        }
        fn verify(&mut self) -> Result<(), Fault> {
            if self.script.wrong_bytes && self.done > 0 {
                Err(Fault::new("byte 3 is 0, not 1"))
            } else {
                Ok(())
            }
        }
        fn begin(&mut self) {
            self.done = 0;
        }
        fn tally(&mut self) -> Tally {
            let mut ledger = Ledger::new("operations");
            ledger.issued = self.done;
            ledger.delivered = self.done - self.script.leak.min(self.done);
            Tally {
                ledgers: vec![ledger],
                carried_bytes: self.script.carried_bytes,
                ..Tally::default()
            }
        }
    }

    #[test]
    fn what_a_session_says_that_it_carried_is_in_its_first_stage() {
        let script = Scripted { carried_bytes: Some(7), ..Scripted::default() };
        let settings = Settings { role: daqmeter_record::Role::Probe, ..by_stage(30) };
        let record = run(&script, &settings);
        let carried = |stage: usize| record.lanes[1].stages[stage].carried_bytes;
        assert_eq!((carried(0), carried(1)), (Some(7), None));
        assert_eq!(record.lanes[1].stages[0].bytes(), 7.0);
        assert_eq!(record.role, daqmeter_record::Role::Probe);
    }

    #[test]
    fn the_number_of_operations_is_exact_and_every_sample_is_kept() {
        let record = run(&Scripted::default(), &by_stage(30));
        assert_eq!(record.outcome, Outcome::Ok);
        assert_eq!(record.lanes.len(), 2);
        for lane in &record.lanes {
            assert_eq!(lane.stages[0].sample_ns.len(), 30);
            assert_eq!(lane.stages[1].sample_ns.len(), 1, "a once-stage runs once");
            assert!(lane.stages[1].start_ns >= lane.stages[0].end_ns);
        }
        assert_eq!(record.ledgers[0].issued, 62);
    }

    /// Returns the operations of each call, of a stage with batches of ten.
    fn batched(plan: StepPlan) -> Vec<u64> {
        let (send, calls) = std::sync::mpsc::channel();
        let job = Job::untyped(Workload::new("batched"), "test", move || {
            let send = send.clone();
            let step = move |operations| {
                send.send(operations).unwrap();
                Ok(())
            };
            let stage = StageSpec { batch: 10, ..StageSpec::new("work", 1, 1) };
            Ok(vec![Box::new(Fake { stage, step, verified: Ok(()) })])
        });
        run_job(&job, &Settings::new(plan, "test"));
        calls.try_iter().collect()
    }

    #[test]
    fn operations_that_belong_together_are_not_torn_apart() {
        assert_eq!(batched(StepPlan::ByStage(30)), [10, 10, 10]);
        assert_eq!(batched(StepPlan::ByStage(7)), [7]);
        assert_eq!(batched(StepPlan::ByStage(10)), [10]);
        let timed = batched(StepPlan::Timed(Duration::from_millis(1)));
        assert!(timed.iter().all(|operations| operations.is_multiple_of(10)));
    }

    #[test]
    fn memory_for_samples_does_not_grow_with_the_number_of_operations() {
        for (plan, ops_per_sample) in
            [(StepPlan::ByStage(MAX_SAMPLES * 3), 3), (StepPlan::ByPass(MAX_SAMPLES * 2), 2)]
        {
            let record = run(&Scripted::default(), &Settings::new(plan, "test"));
            let stage = &record.lanes[0].stages[0];
            let found = (stage.ops_per_sample, stage.sample_ns.len() as u64);
            assert_eq!(found, (ops_per_sample, MAX_SAMPLES));
        }
    }

    #[test]
    fn a_lane_that_fails_names_its_reason_and_the_other_finishes() {
        let engine = Scripted { fail_at: Some(5), ..Scripted::default() };
        let record = run(&engine, &by_stage(30));
        assert_eq!(record.lanes[0].outcome, Outcome::Ok);
        assert_eq!(record.lanes[0].stages[0].sample_ns.len(), 30);
        assert_eq!(record.lanes[1].outcome, Outcome::Failed("board gone".into()));
        assert_eq!(record.lanes[1].stages[0].sample_ns.len(), 5);
        assert_eq!(record.outcome, Outcome::Failed("test1: board gone".into()));
    }

    #[test]
    fn wrong_bytes_and_a_ledger_that_does_not_close_fail_the_run() {
        let wrong = Scripted { wrong_bytes: true, ..Scripted::default() };
        let leak = Scripted { leak: 1, ..Scripted::default() };
        for (script, wanted) in
            [(wrong, "verification after the run: byte 3"), (leak, "does not close")]
        {
            let record = run(&script, &by_stage(3));
            assert!(record.outcome.reason().unwrap().contains(wanted), "{:?}", record.outcome);
        }
    }

    #[test]
    fn pinning_is_verified_and_both_cpus_are_recorded() {
        let cpu = affinity::allowed_cpus().unwrap()[0];
        let settings = Settings { pin: vec![cpu], ..by_stage(3) };
        let record = run(&Scripted::default(), &settings);
        for lane in &record.lanes {
            assert_eq!(
                (lane.requested_cpu, &lane.allowed_cpus[..], &lane.seen_cpus[..]),
                (Some(cpu), &[cpu][..], &[cpu][..])
            );
        }
        assert!(
            record.warnings.iter().any(|warning| warning.contains("share")),
            "{:?}",
            record.warnings
        );
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused_before_anything_runs() {
        let settings = Settings { pin: vec![9999], ..by_stage(3) };
        let job = Scripted::default().job();
        let refused = measure(&job, &settings, &context(), &[], &mut []);
        assert!(refused.unwrap_err().0.contains("`pin` is 9999: there is no such CPU"));
    }

    #[test]
    fn an_interrupted_run_keeps_what_it_has() {
        let settings = by_stage(30);
        settings.stop.set();
        let record = run(&Scripted::default(), &settings);
        assert!(record.outcome.reason().unwrap().contains(INTERRUPTED));
    }

    #[test]
    fn timed_plans_choose_samples_that_are_long_against_the_clock() {
        let settings = Settings::new(StepPlan::Timed(Duration::from_millis(2)), "test");
        let is_long = |_| {
            let record = run_job(&NullRequest {}.job().unwrap(), &settings);
            assert_eq!(record.outcome, Outcome::Ok);
            let stage = &record.lanes[0].stages[0];
            stage.ops_per_sample > 100 && stage.sample_ns.len() >= 5
        };
        // A host that takes the CPU away meanwhile shortens a run.
        assert!((0..5).any(is_long));
    }
}
