//! Test suite for the sessions of every engine. An engine's test module calls [`run`] with a job.

use std::time::Duration;

use daqmeter_record::{Outcome, RunRecord};

use crate::{Context, Job, Settings, StepPlan, measure};

/// Runs the suite on a job.
///
/// # Panics
/// Panics if the engine breaks a promise; the message names it.
pub fn run(job: &Job) {
    if let Some(reason) = &job.waiver {
        assert!(reason.len() > 10, "a waiver names what is missing");
        return;
    }
    sessions_describe_themselves(job);
    exact_plans_are_exact(job);
    passes_interleave_the_stages(job);
    timed_plans_stay_near_their_budget(job);
}

pub(crate) fn context() -> Context {
    let allowed_cpus =
        daqmeter_sys::affinity::allowed_cpus().expect("the kernel tells our own mask");
    let host = daqmeter_record::Host { allowed_cpus, logical_cpus: 1, ..Default::default() };
    let clock =
        daqmeter_record::Clock { resolution_ns: 20.0, overhead_ns: 20.0, ..Default::default() };
    Context { host: host.into(), clock, ..Context::default() }
}

fn measured(job: &Job, plan: StepPlan) -> RunRecord {
    let settings = Settings::new(plan, "conformance");
    let record = measure(job, &settings, &context(), &[], &mut []).expect("it opens");
    let of = &job.workload;
    assert_eq!(record.outcome, Outcome::Ok, "{of}: it runs, verifies and closes its ledgers");
    record
}

fn sessions_describe_themselves(job: &Job) {
    let sessions = job.open().expect("it opens");
    assert!(!sessions.is_empty(), "at least one lane");
    for session in &sessions {
        assert!(!session.device().is_empty(), "a lane names its device");
        let stages = session.stages();
        assert!(!stages.is_empty(), "at least one stage");
        assert_eq!(stages, session.stages(), "stages do not change");
        assert!(stages.iter().all(|stage| !stage.name.is_empty()), "a stage has a name");
    }
}

fn exact_plans_are_exact(job: &Job) {
    let record = measured(job, StepPlan::ByStage(3));
    for stage in record.lanes.iter().flat_map(|lane| &lane.stages) {
        let operations = stage.sample_ns.len() as u64 * stage.ops_per_sample;
        let of = format!("{} {}", job.workload, stage.name);
        assert!([1, 3].contains(&operations), "{of}: 3 operations asked, {operations} done");
    }
    assert!(record.ledgers.iter().all(|ledger| ledger.closes()));
}

fn passes_interleave_the_stages(job: &Job) {
    let record = measured(job, StepPlan::ByPass(2));
    for lane in &record.lanes {
        if let [first, .., last] = &lane.stages[..] {
            assert!(
                last.start_ns <= first.end_ns || last.sample_ns.len() == 1,
                "the last stage begins within the first pass"
            );
        }
    }
}

fn timed_plans_stay_near_their_budget(job: &Job) {
    let record = measured(job, StepPlan::Timed(Duration::from_millis(2)));
    for stage in record.lanes.iter().flat_map(|lane| &lane.stages) {
        assert!(stage.sample_ns.len() >= 3, "{}: at least three samples", stage.name);
    }
}
