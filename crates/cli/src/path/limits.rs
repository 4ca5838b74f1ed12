//! What limits a path, kept in a record: a run as fast as the path goes, with what runs with its parts slowed found.

use std::time::{Duration, Instant};

use daqmeter_harness::{Request, StepPlan};
use daqmeter_path::explain::{Answer, Explained, MIN_ROUNDS, explain};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::RunRecord;
use daqmeter_record::path::{LimitFound, PathLimit};

use super::explain::Chain;
use super::max::probe_quietly;
use crate::output::Failure;
use crate::runner::Runner;

/// Shortest run that tells anything.
const MIN_TIME: Duration = Duration::from_millis(5);
/// Longest one: more rounds tell more than longer runs.
const MAX_TIME: Duration = Duration::from_millis(200);
/// The time of one run is such that so many times the fewest rounds fit.
const MORE_ROUNDS: usize = 2;

/// Finds what limits a path within about that time, and keeps one run of it with the answer. False where the time is too short for
/// the fewest runs.
pub(crate) fn prove(
    runner: &mut Runner,
    name: &str,
    within: Duration,
    study: &str,
) -> Result<bool, Failure> {
    let path = Path::load(name).map_err(Failure::refused)?;
    let request = |time: Duration| PathRequest {
        unpaced: true,
        ..PathRequest::new(&path, time.as_secs_f64())
    };
    let parts = path.parts();
    let free = request(MIN_TIME);
    // What a run takes beside its time: threads are made, and bytes computed that are compared.
    let begin = Instant::now();
    probe_quietly(runner, &free)?;
    let beside = begin.elapsed().saturating_sub(MIN_TIME);
    let runs = 1 + MORE_ROUNDS * MIN_ROUNDS * (2 * parts.len() + 1);
    let each = (within / u32::try_from(runs).unwrap_or(u32::MAX)).saturating_sub(beside);
    if each < MIN_TIME {
        return Ok(false);
    }
    let request = request(each.min(MAX_TIME));
    let mut chain = Chain {
        runner,
        request: request.clone(),
        streams: path.streams() as f64,
        is_kept: false,
    };
    let explained = explain(&mut chain, &parts, |_| begin.elapsed() < within)?;
    let record = proved(runner, &request, study, &explained)?;
    runner.keep(record)?;
    Ok(true)
}

/// Runs the path once more as a point; its record has the answer.
pub(super) fn proved(
    runner: &mut Runner,
    request: &PathRequest,
    study: &str,
    explained: &Explained,
) -> Result<RunRecord, Failure> {
    let settings = runner.settings(StepPlan::ByStage(1), study, &[]);
    let mut record = runner.measured("path", &request.workload(), &settings)?;
    if let Some(run) = &mut record.path {
        run.limit = Some(limit(explained));
    }
    Ok(record)
}

fn limit(explained: &Explained) -> PathLimit {
    PathLimit {
        found: match &explained.answer {
            Answer::Limit(what) => LimitFound::Resource(what.text()),
            Answer::NoSingle => LimitFound::NoSingleOne,
            Answer::CannotTell => LimitFound::CannotTell,
        },
        runs: explained.runs as u64,
    }
}
