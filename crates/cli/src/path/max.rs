//! The largest rate of a path without loss.

use std::time::{Duration, Instant};

use daqmeter_digitizer::daq::TRIGGER_RATES_HZ;
use daqmeter_harness::{Request, Settings, StepPlan};
use daqmeter_path::{Path, PathRequest, engine};
use daqmeter_readout::search::{Observation, RatedSystem, SearchPlan, SearchResult, highest_rate};
use daqmeter_record::units::{show_mb_per_s, significant};
use daqmeter_record::{Outcome, PathRun, Role, RunRecord};

use crate::measure::Bench;
use crate::output::Failure;

pub(super) fn probe(bench: &mut Bench, request: &PathRequest) -> Result<RunRecord, Failure> {
    let settings = Settings {
        role: Role::Probe,
        ..bench.runner.settings(StepPlan::ByStage(1), "path/probe", &[])
    };
    bench.measure(request, &settings, None)?;
    if bench.runner.stop.is_set() {
        return Err(Failure::interrupted());
    }
    let record = bench.recorder.records.last();
    done(record.ok_or_else(|| Failure::refused("nothing was measured"))?.clone())
}

/// Makes a run without a record in the file, for searches that keep only their result.
pub(super) fn probe_quietly(bench: &Bench, request: &PathRequest) -> Result<RunRecord, Failure> {
    let settings = bench.runner.settings(StepPlan::ByStage(1), "path/probe", &[]);
    let record = bench.runner.quietly("path", &request.workload(), &settings)?;
    if bench.runner.stop.is_set() {
        return Err(Failure::interrupted());
    }
    done(record)
}

fn done(record: RunRecord) -> Result<RunRecord, Failure> {
    match &record.outcome {
        Outcome::Ok => Ok(record),
        other => Err(Failure::tool(other.reason().unwrap_or("failed"))),
    }
}

pub(super) fn run_of(record: &RunRecord) -> Result<&PathRun, Failure> {
    let run = record.path.as_deref().filter(|run| run.blocks > 0);
    run.ok_or_else(|| Failure::tool("no block came to the sink: give it more --time"))
}

struct Searched<'a> {
    bench: &'a mut Bench,
    path: &'a Path,
    request: PathRequest,
    begin: Instant,
    budget: Duration,
}

impl RatedSystem for Searched<'_> {
    type Error = Failure;

    fn observe(&mut self, rate_hz: f64, duration: Duration) -> Result<Observation, Failure> {
        let request = PathRequest {
            rate_hz: Some(rate_hz),
            lossy: !self.path.is_live(),
            seconds: duration.as_secs_f64(),
            ..self.request.clone()
        };
        let record = probe(self.bench, &request)?;
        Ok(engine::observation(self.path, &record, duration))
    }

    fn is_over(&self) -> bool {
        self.begin.elapsed() >= self.budget
    }
}

fn bounds_hz(bench: &mut Bench, path: &Path, request: &PathRequest) -> Result<(f64, f64), Failure> {
    if path.is_live() {
        return Ok((FROM_HZ, *TRIGGER_RATES_HZ.end()));
    }
    let free = PathRequest {
        unpaced: true,
        // A path that may lose blocks loses them at its full speed. This is no fault here.
        lossy: path.may_lose(),
        ..request.clone()
    };
    let record = probe(bench, &free)?;
    let run = run_of(&record)?;
    let free_hz = run.blocks as f64 / (run.wall_ns as f64 * 1e-9) / path.streams() as f64;
    Ok((free_hz / 2.0, free_hz * 2.0))
}

/// Trigger rate of ATLAS: a card's search begins there.
const FROM_HZ: f64 = 100e3;

/// Searches for the largest rate for about the time `budget`, and sets the request to it.
pub(super) fn search(
    bench: &mut Bench,
    path: &Path,
    request: &mut PathRequest,
    budget: Duration,
) -> Result<Searching, Failure> {
    let begin = Instant::now();
    let confirm = Duration::from_secs_f64(request.seconds);
    let (from_hz, to_hz) = bounds_hz(bench, path, request)?;
    let plan = SearchPlan { from_hz, to_hz, resolution: 0.02, probe: confirm / 6, confirm };
    let mut searched = Searched { bench, path, request: request.clone(), begin, budget };
    let found = highest_rate(&mut searched, &plan)?;
    request.rate_hz = found.rate_hz;
    request.lossy = !path.is_live();
    Ok(Searching { text: text(path, &found), cannot_tell: found.is_cut && found.rate_hz.is_none() })
}

#[derive(Default)]
pub(super) struct Searching {
    pub(super) text: String,
    pub(super) cannot_tell: bool,
}

fn text(path: &Path, found: &SearchResult) -> String {
    let (due, lost) = match path.is_live() {
        true => ("triggers/s", "triggers were lost, or the backlog grew,"),
        false => ("blocks/s per stream", "blocks were lost"),
    };
    let bytes = path.due_bytes() * path.streams() as f64;
    let shown = |hz: f64| {
        let rate = show_mb_per_s(hz * bytes);
        format!("{} {due}, {rate} MB/s in all", significant(hz, 4))
    };
    let highest = match (found.rate_hz, found.is_cut) {
        (Some(hz), _) => shown(hz),
        (None, true) => "cannot tell".to_owned(),
        (None, false) => "none".to_owned(),
    };
    let beyond = found.unstable_hz.map_or_else(
        || "nothing was lost up to the end of the search".to_owned(),
        |hz| format!("{lost} at {}", shown(hz)),
    );
    let cut = match found.is_cut {
        true => "\n  the search was cut short: give it more --budget",
        false => "",
    };
    format!(
        "{}: largest rate without loss: {highest}\n  {beyond}\n  {} probes; {}{cut}\n\n",
        path.name,
        found.probes.len(),
        found.confidence
    )
}
