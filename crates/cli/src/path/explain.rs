//! `daqmeter path explain`: which resource limits a path, by slowing each part in turn.

use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_campaign::engine;
use daqmeter_harness::{CpuList, LimitSpec, Request, StepPlan, best_rate, guarded, measure};
use daqmeter_path::explain::{
    Explanation, MIN_ROUNDS, PathPart, Seen, Slope, Used, alternately, explain,
};
use daqmeter_path::{Layout, Path, PathRequest};
use daqmeter_record::RunRecord;
use daqmeter_record::path::{Interval, PathChange, PathLimit};
use daqmeter_record::units::{percent, show_ns, significant};
use daqmeter_report::paths;
use daqmeter_report::table::numbers_from;

use super::ChosenPath;
use super::run::{PROBE, probe_quietly, run_of};
use crate::arguments::budget;
use crate::measure::{Bench, Common};
use crate::output::{Ended, Failure};
use crate::progress::Forecast;

/// Name the resource that limits a path, and confirm it by slowing each part.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/path-explain.txt"))]
pub(crate) struct Arguments {
    /// Time for the search, which has at least four rounds over all parts [default: 30s, or the
    /// least]
    #[arg(long, value_name = "TIME", value_parser = budget)]
    time: Option<Duration>,
    #[command(flatten)]
    chosen: ChosenPath,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let ChosenPath { path, layout, set } = &arguments.chosen;
    let path = Path::load_with(path, set)?;
    let mut bench = Bench::new(&arguments.common)?;
    let search = Search {
        path: &path,
        layout: layout.clone(),
        cpus: arguments.common.pins(),
        within: arguments.time,
    };
    let found = guarded("the search", || search.prove(&mut bench, "path/explain", true));
    let found = found.map_err(Failure::tool).flatten();
    let found = if bench.recorder.records.is_empty() { Ok(found?) } else { found };
    let code = bench.recorder.finish(|records| {
        let last = records.last().map(std::slice::from_ref).unwrap_or_default();
        let mut frame = paths::explained(last);
        if let Ok(Some(found)) = &found {
            frame.tables = frame.tables + "\n" + &tables(found);
        }
        frame
    })?;
    found?.ok_or("nothing was measured")?;
    Ok(code)
}

/// Time of a search without --time, if its fewest runs do not take longer.
const USUAL_TIME: Duration = Duration::from_secs(30);
/// Time of the first run, which measures the effort of a run. The ring of a card is soon full.
const FIRST_TIME: Duration = Duration::from_millis(50);
const MIN_TIME: Duration = Duration::from_millis(5);
const MAX_TIME: Duration = Duration::from_millis(200);
/// Multiple of the fewest rounds that the time of one run allows.
const MORE_ROUNDS: usize = 2;
/// Share of the time after which the search ends, so that other values of fields can be tried.
const SEARCH: f64 = 0.75;
/// Time of a run that tries a value, pairs of such runs, and of those that confirm the best.
const TRY: Duration = Duration::from_millis(20);
const TRIES: usize = 2;
const CONFIRMED: usize = 8;
/// Time of a limit's measurement.
const LIMIT_TIME: Duration = Duration::from_millis(75);
/// Most resources in the table, the most used first.
const SHOWN: usize = 6;

/// Search for the limit of a path.
pub(crate) struct Search<'a> {
    pub(crate) path: &'a Path,
    /// Layout that the user chose, instead of the file's.
    pub(crate) layout: Option<Layout>,
    /// CPUs that the user chose.
    pub(crate) cpus: Vec<u32>,
    /// Time that the user chose.
    pub(crate) within: Option<Duration>,
}

impl Search<'_> {
    /// Finds the limit in about the given time, and records one run with the answer. A search that
    /// the user asked for records all runs, and refuses a time that is too short for the fewest;
    /// another returns `None` then.
    pub(crate) fn prove(
        &self,
        bench: &mut Bench,
        study: &str,
        is_asked: bool,
    ) -> Result<Option<Explanation>, Failure> {
        let begin = Instant::now();
        let mut first = PathRequest {
            unpaced: true,
            cpus: CpuList(self.cpus.clone()),
            layout: self.layout.clone(),
            ..PathRequest::new(self.path, FIRST_TIME.as_secs_f64())
        };
        first.check()?;
        let is_auto = self.path.is_auto(self.layout.as_ref());
        // A choice of CPUs is judged, too, unless the layout is open.
        let mut free = first.clone();
        if !is_auto {
            free.cpus = CpuList::default();
        }
        let other = free.fastest(&bench.runner.stop);
        let mut other = other.map_err(|fault| Failure::tool(fault.0))?;
        if is_auto && let Some((best, _)) = other.take() {
            first = best;
        }
        let is_own = |one: &PathRequest| (&one.layout, &one.cpus) == (&first.layout, &first.cpus);
        let other = other.filter(|(other, _)| !is_own(other));
        let (record, beside) = first_run(bench, &first)?;
        let mut parts = self.path.parts_of(run_of(&record)?);
        if is_asked {
            parts.iter_mut().for_each(|part| part.limit_bytes_per_s = limit(bench, part));
        }
        let changed = parts.len() + 1 + usize::from(other.is_some());
        let Some([each, within]) = self.times(begin, beside, changed, is_asked)? else {
            return Ok(None);
        };
        bench.recorder.expect(Forecast::budget(within));
        let request = PathRequest { seconds: each.as_secs_f64(), ..first };
        let first_round = Instant::now();
        let search = within.mul_f64(if is_asked { SEARCH } else { 1.0 });
        let mut explained = explain(
            |load| {
                let other = other.as_ref().map(|(other, _)| other);
                let request = load.of(request.clone(), self.path, other);
                let record = match is_asked {
                    true => bench.probe(&request, PROBE, &[])?,
                    false => probe_quietly(bench, &request)?,
                };
                run_of(&record)?;
                let seen = Seen::of(&record).ok_or("a run carried no block: use a longer --time");
                Ok::<_, Failure>(seen?)
            },
            &parts,
            other.as_ref().map(|(_, name)| name.as_str()),
            |rounds| begin.elapsed() + first_round.elapsed().div_f64(rounds as f64) < search,
        )?;
        if is_asked {
            self.try_changes(bench, &request, begin + within, &mut explained.limit);
        }
        if is_asked {
            bench.watch_network(self.path);
        }
        let record = proved(bench, &request, study, &explained, self.path)?;
        bench.recorder.take(record)?;
        Ok(Some(explained))
    }

    /// Runs the path with another value for one field after the other, while there is time, and
    /// the fastest of these once more, in its best layout if that is open.
    fn try_changes(&self, bench: &Bench, own: &PathRequest, until: Instant, limit: &mut PathLimit) {
        let time = until.saturating_duration_since(Instant::now()) / 2;
        let (begin, mut best) = (Instant::now(), None::<(f64, String, PathRequest)>);
        for (what, path) in self.path.alternatives() {
            let changed = PathRequest { path, ..own.clone() };
            // One that the source cannot give, such as blocks beyond a short file, is left out.
            let gain = gain(bench, [own, &changed], TRY, TRIES).map_or(0.0, |gain| gain.mean);
            if bench.runner.stop.is_set() || begin.elapsed() > time {
                break;
            }
            limit.tried.extend((gain > 0.0).then(|| what.clone()));
            if gain > best.as_ref().map_or(1.0, |(best, ..)| *best) {
                best = Some((gain, what, changed));
            }
        }
        let Some((_, mut what, mut changed)) = best else { return };
        if self.path.is_auto(self.layout.as_ref())
            && let Ok(Some((fastest, layout))) = changed.fastest(&bench.runner.stop)
            && (&fastest.layout, &fastest.cpus) != (&own.layout, &own.cpus)
        {
            (changed, what) = (fastest, format!("{what}, layout {layout}"));
        }
        let each = Duration::from_secs_f64(own.seconds);
        let gain = gain(bench, [own, &changed], each, CONFIRMED).ok();
        limit.change = gain.map(|gain| PathChange { what, gain });
    }

    /// Returns the time of a run, and that of the whole search. One that is too short is refused if
    /// the user asked for the search, else it is `None`.
    fn times(
        &self,
        begin: Instant,
        beside: Duration,
        changed: usize,
        is_asked: bool,
    ) -> Result<Option<[Duration; 2]>, Failure> {
        let min = if is_asked { 2 * MIN_TIME } else { MIN_TIME };
        let runs = |rounds| u32::try_from(2 + rounds * 2 * changed).unwrap_or(u32::MAX);
        let least = begin.elapsed() + (beside + min).saturating_mul(runs(MIN_ROUNDS));
        let within = self.within.unwrap_or(USUAL_TIME.max(least));
        if is_asked && least > within {
            let [within, least] = [within, least].map(|time| show_ns(time.as_nanos() as f64));
            return Err(Failure::refused(format!(
                "--time {within} is too short: the fewest runs of this path take about {least}; use a longer --time"
            )));
        }
        let left = within.saturating_sub(begin.elapsed());
        let each = (left / runs(MORE_ROUNDS * MIN_ROUNDS)).saturating_sub(beside);
        let is_enough = is_asked || each >= MIN_TIME;
        Ok(is_enough.then_some([each.clamp(min, MAX_TIME), within]))
    }
}

/// Runs the path for [`FIRST_TIME`], twice if that takes longer: the first run of a process is
/// slower. Returns a record, and the time of a run in which threads are made and memory is touched.
fn first_run(bench: &Bench, first: &PathRequest) -> Result<(RunRecord, Duration), Failure> {
    let timed = || {
        let begin = Instant::now();
        let record = probe_quietly(bench, first)?;
        Ok::<_, Failure>((record, begin.elapsed().saturating_sub(FIRST_TIME)))
    };
    let (record, beside) = timed()?;
    let again = if beside > FIRST_TIME { timed()?.1 } else { beside };
    Ok((record, beside.min(again)))
}

/// Returns the factor by which the second of two requests is faster than the first.
fn gain(
    bench: &Bench,
    requests: [&PathRequest; 2],
    time: Duration,
    pairs: usize,
) -> Result<Interval, Failure> {
    let run = |is_changed: bool| {
        let request = requests[usize::from(is_changed)].clone();
        let request = PathRequest { seconds: time.as_secs_f64(), ..request };
        let record = probe_quietly(bench, &request)?;
        let run = run_of(&record)?;
        Ok(1.0 / run.per_s(run.payload_bytes))
    };
    alternately(run, pairs)
}

/// Measures what this host can do at most in as many threads; `None` if nothing measures it.
fn limit(bench: &Bench, part: &PathPart) -> Option<f64> {
    let Some(LimitSpec::Measured { workload, scale, .. }) = &part.limit else { return None };
    let workload = workload.clone().with("lanes", part.threads as u64);
    let job = engine(&workload.kind).ok()?.parse(&workload).ok()?;
    let settings = bench.runner.settings(StepPlan::Timed(LIMIT_TIME), PROBE, &[]);
    let record = measure(&job, &settings, &bench.runner.context, &[], &mut []).ok()?;
    Some(best_rate(&record).ok()?.per_s * scale)
}

/// Runs the path once more, for a record with the answer.
fn proved(
    bench: &Bench,
    request: &PathRequest,
    study: &str,
    explained: &Explanation,
    path: &Path,
) -> Result<RunRecord, Failure> {
    let settings = bench.runner.settings(StepPlan::ByStage(1), study, &[]);
    let mut record = bench.runner.measured(&request.job()?, &settings)?;
    if let Some(run) = &mut record.sections.path {
        let block_bytes = run.payload_bytes as f64 / run.blocks.max(1) as f64;
        run.limit = Some(PathLimit {
            carries_bytes_per_s: block_bytes / explained.block_ns.mean * 1e9,
            rate_bytes_per_s: path.own_bytes_per_s(),
            ..explained.limit.clone()
        });
    }
    Ok(record)
}

fn tables(explained: &Explanation) -> String {
    let mut resources: Vec<&Used> = explained.resources.iter().collect();
    resources.sort_by(|a, b| b.used.mean.total_cmp(&a.used.mean));
    let resource = |found: &&Used| {
        let [used, occupied] = [found.used, found.occupied].map(|share| percent(share.mean, 3));
        vec![found.what.text(), used, occupied]
    };
    let headings = ["resource", "use [%]", "use or wait [%]"];
    let resources = numbers_from(1, &headings, resources.iter().take(SHOWN).map(resource));
    let slope = |Slope { name, slope }: &Slope| {
        let interval = format!("{} to {}", significant(slope.low, 2), significant(slope.high, 2));
        vec![name.clone(), significant(slope.mean, 2), interval]
    };
    let headings = ["part", "slope", "interval"];
    resources + "\n" + &numbers_from(1, &headings, explained.slopes.iter().map(slope))
}
