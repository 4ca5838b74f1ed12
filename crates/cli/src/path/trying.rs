//! Changes to a path, each tried in turns with the path as it is.

use std::time::{Duration, Instant};

use daqmeter_path::trials::{PathChange, changes, compare, ranked};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::path::{InTurns, PathRun, Trial, Tried};
use daqmeter_record::resources::What;
use daqmeter_sys::host::Files;

use super::max::{probe_quietly, run_of};
use crate::measure::Bench;
use crate::output::Failure;

pub(super) fn trials(
    bench: &Bench,
    path: &Path,
    request: &PathRequest,
    run: &PathRun,
    limit: Option<&What>,
    within: Duration,
) -> Result<Vec<Trial>, Failure> {
    let all = changes(path, run, limit, &bench.runner.context.host, &Files::default());
    let (begin, mut trials) = (Instant::now(), Vec::new());
    let tried = all.iter().filter(|change| change.obstacle.is_none()).count();
    let mut waiting = tried;
    for change in all {
        let found = match &change.obstacle {
            Some(why) => Tried::Not(why.clone()),
            None => {
                let left = within.saturating_sub(begin.elapsed());
                let share = left / u32::try_from(waiting).unwrap_or(u32::MAX);
                waiting -= 1;
                match in_turns(bench, request, &change, tried, share) {
                    Ok(found) => Tried::InTurns(found),
                    Err(failure) if bench.runner.stop.is_set() => return Err(failure),
                    Err(failure) => Tried::Not(failure.line().to_owned()),
                }
            }
        };
        trials.push(Trial {
            change: change.text,
            predicted: change.predicted,
            threads_of: change.threads_of,
            found,
        });
    }
    Ok(ranked(trials))
}

fn in_turns(
    bench: &Bench,
    request: &PathRequest,
    change: &PathChange,
    of: usize,
    share: Duration,
) -> Result<InTurns, Failure> {
    let mut changed = PathRequest { with: change.with.clone(), ..request.clone() };
    if !change.cpus.is_empty() {
        changed.cpus.clone_from(&change.cpus);
    }
    let begin = Instant::now();
    let run = |is_changed: bool| {
        let request = if is_changed { &changed } else { request };
        let record = probe_quietly(bench, request)?;
        let run = run_of(&record)?;
        Ok(run.wall_ns as f64 / run.payload_bytes as f64)
    };
    compare(run, of, SEED, || begin.elapsed() < share)
}

const SEED: u64 = 1;
