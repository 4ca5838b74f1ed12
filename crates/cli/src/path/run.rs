//! `daqmeter path run`: a path as one record, or the search for its largest rate without loss.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_harness::search::{CONFIRM_TIMES, SearchPlan, SearchResult, highest_rate};
use daqmeter_harness::{CpuList, Request, StepPlan};
use daqmeter_path::{Path, PathRequest, WITHOUT_ACCOUNT, engine};
use daqmeter_record::units::{TRIGGER_RATES_HZ, show_bytes, show_mb_per_s, significant, whole};
use daqmeter_record::{PathRun, RunRecord};
use daqmeter_report::paths;
use daqmeter_report::table;

use super::ChosenPath;
use crate::arguments::{budget, duration};
use crate::measure::{Bench, Common};
use crate::output::{CANNOT_TELL, Ended, Failure};
use crate::progress::Forecast;

/// Run a path from its source to its sink and say where the time of each thread went.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/path-run.txt"))]
pub(crate) struct Arguments {
    /// Time for which the source goes, or of the whole search with --max [default: 3s, 50s with
    /// --max]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Rate at which blocks are due from each stream: 14Hz, 500MB/s
    #[arg(long, value_name = "RATE", conflicts_with = "unpaced")]
    rate: Option<String>,
    /// As fast as it goes, whatever rate the file says
    #[arg(long)]
    unpaced: bool,
    /// Lose blocks that are due when there is no room
    #[arg(long)]
    lossy: bool,
    /// Search for the largest rate that the path keeps up with
    #[arg(long, conflicts_with_all = ["rate", "unpaced", "lossy"])]
    max: bool,
    /// Time for which the path keeps up with the rate of --max [default: --time / 24]
    #[arg(long, value_name = "TIME", value_parser = budget, requires = "max")]
    keep: Option<Duration>,
    #[command(flatten)]
    chosen: ChosenPath,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let ChosenPath { path: name, layout, set } = &arguments.chosen;
    let mut path = Path::load_with(name, set)?;
    if arguments.max && waits(&path) {
        path = path.waiting();
    }
    let usual = Duration::from_secs(if arguments.max { 50 } else { 3 });
    let whole = arguments.time.unwrap_or(usual);
    let time = if arguments.max { arguments.keep.unwrap_or(whole / KEPT) } else { whole };
    let rate_hz = arguments.rate.as_ref().map(|rate| path.parse_rate(rate)).transpose();
    let mut request = PathRequest {
        cpus: CpuList(arguments.common.pins()),
        layout: layout.clone(),
        unpaced: arguments.unpaced,
        lossy: arguments.lossy,
        rate_hz: rate_hz.map_err(|problem| format!("--rate: {problem}"))?,
        ..PathRequest::new(&path, time.as_secs_f64())
    };
    request.check()?;
    let mut bench = Bench::new(&arguments.common)?;
    let searched = match arguments.max {
        true => {
            bench.recorder.expect(Forecast::budget(whole));
            maximum(&mut bench, &path, &mut request, whole.saturating_sub(time)).map(Some)
        }
        false => Ok(None),
    };
    let searched = if bench.recorder.records.is_empty() { Ok(searched?) } else { searched };
    let found = searched.as_ref().ok().and_then(Option::as_ref);
    if searched.is_ok() && (found.is_none() || request.rate_hz.is_some()) {
        bench.watch_network(&path);
        let settings = bench.runner.settings(StepPlan::ByStage(1), "path/run", &[]);
        bench.measure(&request, &settings, None)?;
    }
    let code = bench.recorder.finish(|records| {
        // A search that failed has probes alone.
        let is_found = searched.is_ok();
        let mut frame = if is_found { paths::runs(records) } else { table::stages(records) };
        if let Some(found) = &found {
            frame.answer.splice(0..0, answer(&path, found));
        }
        frame
    })?;
    let found = searched?;
    let last = bench.recorder.records.last();
    let has_no_account = last.is_some_and(|record| record.counter(WITHOUT_ACCOUNT).is_some());
    let has_no_rate = found.is_some_and(|found| found.result.rate_hz.is_none());
    Ok(match has_no_account || has_no_rate && code == ExitCode::SUCCESS {
        true => ExitCode::from(CANNOT_TELL),
        false => code,
    })
}

/// Searches the largest rate, and sets it in the request.
fn maximum(
    bench: &mut Bench,
    path: &Path,
    request: &mut PathRequest,
    budget: Duration,
) -> Result<Searched, Failure> {
    // All runs of a search have one layout.
    if path.is_auto(request.layout.as_ref()) {
        let fastest = request.fastest(&bench.runner.stop);
        let fastest = fastest.map_err(|fault| Failure::tool(fault.0))?;
        *request = fastest.map_or(request.clone(), |(fastest, _)| fastest);
    }
    let trial = PathRequest { path: path.clone().trial(), ..request.clone() };
    let found = search(bench, path, &trial, budget)?;
    if found.result.rate_hz.is_none()
        && let Some(mut record) = bench.recorder.records.last().cloned()
    {
        record.study = MAXIMUM.into();
        record.warnings.push(format!("no largest rate: {}", found.result.confidence));
        bench.recorder.take(record)?;
    }
    (request.rate_hz, request.lossy) = (found.result.rate_hz, !waits(path) && !path.is_live());
    Ok(found)
}

/// Part of the time of a search for which its rate is kept; six times that confirm it.
const KEPT: u32 = 24;

/// Study of the points of a search.
pub(super) const PROBE: &str = "path/probe";

/// Study of the record that says that a search found no rate.
const MAXIMUM: &str = "path/maximum";

/// Makes a run without a record in the file, for searches that keep only their result.
pub(super) fn probe_quietly(bench: &Bench, request: &PathRequest) -> Result<RunRecord, Failure> {
    request.check()?;
    bench.done(Some(bench.runner.quietly(&request.job()?, PROBE)?))
}

pub(super) fn run_of(record: &RunRecord) -> Result<&PathRun, Failure> {
    let run = record.sections.path.as_deref().filter(|run| run.blocks > 0);
    run.ok_or_else(|| Failure::tool("no block came to the sink: give it more --time"))
}

fn bounds_hz(bench: &mut Bench, path: &Path, request: &PathRequest) -> Result<(f64, f64), Failure> {
    /// Trigger rate of ATLAS: a card's search begins there.
    const CARD_FROM_HZ: f64 = 100e3;
    if path.is_live() {
        return Ok((CARD_FROM_HZ, *TRIGGER_RATES_HZ.end()));
    }
    // A path that may lose blocks loses them at its full speed. This is no fault here.
    let free = PathRequest { unpaced: true, lossy: path.may_lose(), ..request.clone() };
    let record = bench.probe(&free, PROBE, &[])?;
    let run = run_of(&record)?;
    let free_hz = run.per_s(run.blocks) / path.streams() as f64;
    Ok((free_hz / 2.0, free_hz * 2.0))
}

/// Tests if its source can wait for room, so that nothing is lost on the way.
fn waits(path: &Path) -> bool {
    !path.is_live() && !path.may_lose()
}

/// Result of a search, and the blocks that its source needs if it cannot wait.
struct Searched {
    result: SearchResult,
    /// Most blocks of a stream that were due and not done at the rate; `None` where the source does
    /// not wait.
    behind: Option<f64>,
}

/// Searches for the largest rate for about the time `budget`.
fn search(
    bench: &mut Bench,
    path: &Path,
    request: &PathRequest,
    budget: Duration,
) -> Result<Searched, Failure> {
    let begin = Instant::now();
    let time = Duration::from_secs_f64(request.seconds);
    let (from_hz, to_hz) = bounds_hz(bench, path, request)?;
    let (probe, confirm) = match waits(path) {
        true => (time / 10, time / CONFIRM_TIMES),
        false => (time / 6, time),
    };
    let plan = SearchPlan { from_hz, to_hz, resolution: 0.02, probe, confirm };
    let mut longest_ns: Vec<u64> = Vec::new();
    let result = highest_rate(&plan, |rate_hz, duration| {
        if begin.elapsed() + duration > budget {
            return Ok(None);
        }
        let request = PathRequest {
            rate_hz: Some(rate_hz),
            lossy: !waits(path) && !path.is_live(),
            seconds: duration.as_secs_f64(),
            ..request.clone()
        };
        let record = bench.probe(&request, PROBE, &[])?;
        let latency_ns = record.sections.path.as_ref().map_or(0, |run| run.latency_max_ns);
        longest_ns.push(latency_ns);
        Ok::<_, Failure>(Some(engine::observation(path, &record)))
    })?;
    let longest_ns = result.confirmed.and_then(|probe| longest_ns.get(probe));
    let behind = result.rate_hz.zip(longest_ns).map(|(hz, ns)| hz * *ns as f64 / 1e9);
    Ok(Searched { result, behind: behind.filter(|_| waits(path)) })
}

fn answer(path: &Path, Searched { result: found, behind }: &Searched) -> Vec<String> {
    let due = if path.is_live() { "triggers/s" } else { "blocks/s per stream" };
    let bytes = path.due_bytes() * path.streams() as f64;
    let shown = |hz: f64| {
        let rate = show_mb_per_s(hz * bytes);
        format!("{} {due}, {rate} MB/s in total", significant(hz, 4))
    };
    let highest = match (found.rate_hz, found.is_cut) {
        (Some(hz), _) => shown(hz),
        (None, true) => "not clear: give it more --time".to_owned(),
        (None, false) => "none".to_owned(),
    };
    let unstable = found.unstable_hz.map_or("no rate in the search".to_owned(), shown);
    let (name, probes, confidence) = (&path.name, found.probes.len(), &found.confidence);
    let what = if waits(path) { "largest rate" } else { "largest rate without loss" };
    let buffers = behind.map(|blocks| {
        let [needs, has] = [blocks.ceil(), path.buffers as f64];
        let [needs, has] = [needs, has].map(|blocks| show_bytes(whole(blocks * bytes)));
        format!("a source that cannot wait needs {needs} of buffers at this rate; it has {has}")
    });
    let found = format!("{name}: {what}: {highest}; not kept: {unstable}");
    [Some(found), buffers, Some(format!("{probes} probes; {confidence}"))]
        .into_iter()
        .flatten()
        .collect()
}
