//! Limit of a path in a record: a run at full speed, with the result of runs whose parts are
//! slowed.

use std::time::{Duration, Instant};

use daqmeter_harness::{Request, StepPlan};
use daqmeter_path::explain::{Explanation, Interval, LimitAnswer, MIN_ROUNDS, Room, explain};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::RunRecord;
use daqmeter_record::path::{LimitFound, PathGain, PathLimit, PathRoom, PathUsed};
use daqmeter_record::resources::What;

use super::explain::Chain;
use super::max::probe_quietly;
use crate::measure::Bench;
use crate::output::Failure;

const MIN_TIME: Duration = Duration::from_millis(5);
const MAX_TIME: Duration = Duration::from_millis(200);
/// Multiple of the fewest rounds that the time of one run allows.
const MORE_ROUNDS: usize = 2;

/// Finds the limit of a path in about the given time, and keeps one run of it with the answer.
/// Returns false if the time is too short for the fewest runs.
pub(crate) fn prove(
    bench: &mut Bench,
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
    let begin = Instant::now();
    // The first run computes the bytes that all others are compared with.
    probe_quietly(bench, &free)?;
    // The second run measures the remaining time of a run: threads are made, memory is touched.
    let second = Instant::now();
    probe_quietly(bench, &free)?;
    let beside = second.elapsed().saturating_sub(MIN_TIME);
    let runs = 1 + MORE_ROUNDS * MIN_ROUNDS * (2 * parts.len() + 3);
    let left = within.saturating_sub(begin.elapsed());
    let each = (left / u32::try_from(runs).unwrap_or(u32::MAX)).saturating_sub(beside);
    if each < MIN_TIME {
        return Ok(false);
    }
    let request = request(each.min(MAX_TIME));
    let mut chain = Chain::new(bench, &path, request, false);
    let explained = explain(&mut chain, &parts, |_| begin.elapsed() < within)?;
    let record = proved(chain, study, &explained)?;
    bench.recorder.take(record)?;
    Ok(true)
}

pub(super) fn proved(
    chain: Chain<'_>,
    study: &str,
    explained: &Explanation,
) -> Result<RunRecord, Failure> {
    let Chain { bench, request, path, mut ceiling, .. } = chain;
    let settings = bench.runner.settings(StepPlan::ByStage(1), study, &[]);
    let mut record = bench.runner.measured("path", &request.workload(), &settings)?;
    if let Some(run) = &mut record.path {
        ceiling.put_into(run, bench);
        run.limit = Some(limit(explained, &path));
    }
    Ok(record)
}

fn limit(explained: &Explanation, path: &Path) -> PathLimit {
    PathLimit {
        // A card has its ring, whose filling is in its own account.
        room: (!path.is_live()).then(|| room(&explained.room, path)),
        found: match &explained.answer {
            LimitAnswer::Limit(what) => LimitFound::Limit(what.clone()),
            LimitAnswer::NoSingle => LimitFound::NoSingleOne,
            LimitAnswer::CannotTell => LimitFound::CannotTell,
        },
        runs: explained.runs as u64,
        used: match &explained.answer {
            LimitAnswer::Limit(what) => used(explained, what),
            LimitAnswer::NoSingle | LimitAnswer::CannotTell => None,
        },
        gain: explained.gain.and_then(|gain| gain.tried).map(kept),
    }
}

fn kept(Interval { mean, low, high }: Interval) -> PathGain {
    PathGain { mean, low, high }
}

pub(super) fn used(explained: &Explanation, what: &What) -> Option<PathUsed> {
    let own = explained.resources.iter().find(|used| used.what == *what)?;
    Some(PathUsed { works: kept(own.used), waits_for_cpu: own.occupied.mean - own.used.mean })
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of runs, in nanoseconds"
)]
fn room(room: &Room, path: &Path) -> PathRoom {
    let (buffers, streams) = (path.buffers as u64, path.streams() as f64);
    PathRoom {
        rate_hz: 1e9 / room.every_ns / streams,
        watched_ns: room.watched_ns as u64,
        no_room_ns: room.no_room_ns as u64,
        buffers,
        wanted: room.wanted(buffers, streams),
    }
}
