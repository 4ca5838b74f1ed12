//! `daqmeter path explain`: which resource limits a path, by slowing each part in turn.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_harness::{Request, StepPlan};
use daqmeter_path::explain::{
    Explanation, Interval, LimitAnswer, MIN_ROUNDS, PathLoad, PathSystem, Seen, Slope, Used,
    explain,
};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::path::{LimitFound, PathGain, PathLimit, PathUsed};
use daqmeter_record::resources::What;
use daqmeter_record::units::{show_mb_per_s, show_ns, significant};
use daqmeter_record::{RunRecord, sanitise};
use daqmeter_report::paths;
use daqmeter_report::table::numbers_from;

use super::max::{probe, probe_quietly, run_of};
use super::placed::Placed;
use super::run::{checked, loaded, request};
use crate::arguments::{budget, duration};
use crate::measure::{Bench, Common};
use crate::output::Failure;

/// Name the resource that limits a path, confirm it by slowing each part, and say what removing it
/// gains.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Runs as fast as the path goes say how far each resource is used: threads, CPUs, links, what lies between the ends of a\n\
socket. Runs with 20 % of work added to one part say what the whole follows: its slope is 1 for the limit and 0 for a part\n\
with time to spare. Runs with eight times as many buffers say whether parts wait for one another. The resource that\n\
explains the slopes best is named; rounds go on until that is certain or the budget ends. \"No single one\" and \"cannot\n\
tell\" are answers. The gain is predicted from what a block needs of everything else.\n\n\
Each thread gets a core of its own where there are as many, the busiest ones fast cores, unless the file or --pin chooses.\n\
A change is tried with `daqmeter ab`, such as `ab 'path run P' 'path run P --set block=128KiB'`.\n\n\
Example:\n\n  $ daqmeter path explain digitizer-crate --budget 1m"
)]
pub(crate) struct Arguments {
    /// Path: one that ships, or a TOML file
    #[arg(value_name = "PATH")]
    path: String,
    /// Time of one run
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "100ms")]
    time: Duration,
    /// Time in which the limit is to be found; four rounds over all parts are run in any case
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "30s")]
    budget: Duration,
    /// Another value for a field of the file: block=128KiB, stage.1.threads=2
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    common: Common,
}

struct Chain<'a> {
    bench: &'a mut Bench,
    request: PathRequest,
    path: &'a Path,
    /// True if each run is kept as a record.
    is_kept: bool,
}

impl PathSystem for Chain<'_> {
    type Error = Failure;

    fn run(&mut self, load: PathLoad) -> Result<Seen, Failure> {
        let mut request = self.request.clone();
        match load {
            PathLoad::Free => {}
            PathLoad::Slowed { element, ns } => request.slower.push((element as u64, ns)),
            PathLoad::Buffers { times } => request.with = self.path.with_more_buffers(times),
        }
        let record = match self.is_kept {
            true => probe(self.bench, &request)?,
            false => probe_quietly(self.bench, &request)?,
        };
        Ok(Seen::of(run_of(&record)?))
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let path = loaded(&arguments.path, &arguments.set)?;
    let mut request =
        PathRequest { unpaced: true, ..request(&path, arguments.time, &arguments.common) };
    checked(&request)?;
    let mut bench = Bench::new(&arguments.common, 0)?;
    let placed = Placed::choose(&bench, &path, &mut request)?;
    let begin = Instant::now();
    let mut chain = Chain { bench: &mut bench, request, path: &path, is_kept: true };
    let explained = explain(&mut chain, &path.parts(), |_| begin.elapsed() < arguments.budget)?;
    let record = proved(&chain, "path/explain", &explained)?;
    bench.recorder.take(record)?;
    bench.recorder.finish(|records| {
        let last = records.iter().rev().find_map(|record| record.path.as_deref());
        let line = last.map_or_else(String::new, |run| format!("{}\n", sanitise::text(&run.line)));
        let shown = Shown {
            explained: &explained,
            block_bytes: path.block_bytes as f64,
            is_live: path.is_live(),
        };
        line + &format!("placement: {}\n", placed.text()) + &shown.text() + &paths::text(records)
    })
}

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
    let begin = Instant::now();
    // Its remaining time is that of a run: threads are made, memory is touched.
    probe_quietly(bench, &request(MIN_TIME))?;
    let beside = begin.elapsed().saturating_sub(MIN_TIME);
    let runs = 1 + MORE_ROUNDS * MIN_ROUNDS * (2 * parts.len() + 2);
    let left = within.saturating_sub(begin.elapsed());
    let each = (left / u32::try_from(runs).unwrap_or(u32::MAX)).saturating_sub(beside);
    if each < MIN_TIME {
        return Ok(false);
    }
    let request = request(each.min(MAX_TIME));
    let mut chain = Chain { bench, request, path: &path, is_kept: false };
    let explained = explain(&mut chain, &parts, |_| begin.elapsed() < within)?;
    let record = proved(&chain, study, &explained)?;
    bench.recorder.take(record)?;
    Ok(true)
}

/// Runs the path once more, for a record with the answer.
fn proved(chain: &Chain<'_>, study: &str, explained: &Explanation) -> Result<RunRecord, Failure> {
    let settings = chain.bench.runner.settings(StepPlan::ByStage(1), study, &[]);
    let mut record = chain.bench.runner.measured("path", &chain.request.workload(), &settings)?;
    if let Some(run) = &mut record.path {
        let gain = |Interval { mean, low, high }| PathGain { mean, low, high };
        run.limit = Some(PathLimit {
            room: None,
            runs: explained.runs as u64,
            used: match &explained.answer {
                LimitAnswer::Limit(what) => used(explained, what),
                LimitAnswer::NoSingle | LimitAnswer::CannotTell => None,
            },
            gain: (explained.answer == LimitAnswer::Limit(What::Buffers))
                .then(|| gain(explained.more_buffers)),
            found: match &explained.answer {
                LimitAnswer::Limit(what) => LimitFound::Limit(what.clone()),
                LimitAnswer::NoSingle => LimitFound::NoSingleOne,
                LimitAnswer::CannotTell => LimitFound::CannotTell,
            },
        });
    }
    Ok(record)
}

fn used(explained: &Explanation, what: &What) -> Option<PathUsed> {
    let own = explained.resources.iter().find(|used| used.what == *what)?;
    let Interval { mean, low, high } = own.used;
    let works = PathGain { mean, low, high };
    Some(PathUsed { works, waits_for_cpu: own.occupied.mean - mean })
}

struct Shown<'a> {
    explained: &'a Explanation,
    block_bytes: f64,
    is_live: bool,
}

impl Shown<'_> {
    fn text(&self) -> String {
        let Explanation { runs, block_ns, more_buffers: more, .. } = self.explained;
        let [mean, low, high] =
            [block_ns.mean, block_ns.high, block_ns.low].map(|ns| self.rate(ns));
        let [times, least, most] =
            [more.mean, more.low, more.high].map(|times| significant(times, 3));
        format!(
            "{}\nlargest rate: {mean} MB/s ({low} to {high})\n{}: {times} times as fast ({least} to {most})\n\n{}\n{}\n{runs} runs; intervals hold with 95 % confidence each\n",
            self.answer(),
            self.more_buffers(),
            self.resources(),
            self.slopes(),
        )
    }

    fn rate(&self, block_ns: f64) -> String {
        show_mb_per_s(self.block_bytes / block_ns.max(f64::MIN_POSITIVE) * 1e9)
    }

    fn more_buffers(&self) -> &'static str {
        match self.is_live {
            true => "with the ring looked at eight times as often",
            false => "with eight times as many buffers",
        }
    }

    fn answer(&self) -> String {
        let what = match &self.explained.answer {
            LimitAnswer::Limit(what) => what,
            LimitAnswer::NoSingle => {
                return "limit: no single one. No part moves the path one for one, and no resource that was looked at is used up: \
                 the time of wake-ups, or memory, is left"
                    .to_owned();
            }
            LimitAnswer::CannotTell => {
                return "limit: cannot tell. What was measured fits several resources, or none: a longer --budget, a longer --time, or a quiet host"
                    .to_owned();
            }
        };
        let used = used(self.explained, what).map_or_else(String::new, |used| used.text());
        let why = match what {
            What::Buffers if self.is_live => {
                "No resource is used up, and the card's ring is full before it is looked at again"
                    .to_owned()
            }
            What::Buffers => "No resource is used up, and threads wait for one another".to_owned(),
            _ if what.follows_no_part() => format!("It {used}, and the path follows no part"),
            _ => format!("It {used}, and the path follows what uses it"),
        };
        let gain = self.explained.gain.map_or_else(String::new, |gain| {
            format!(
                ".\nWithout it, the path would be about {} times as fast until the next resource is used up: predicted from what a \
                 block needs now, not tried",
                significant(gain, 2)
            )
        });
        format!("limit: {}. {why}{gain}", sanitise::text(&what.text()))
    }

    fn resources(&self) -> String {
        let percent = |share: f64| significant(share * 100.0, 3);
        let row = |used: &Used| {
            vec![
                used.what.text(),
                percent(used.used.mean),
                format!("{} to {}", percent(used.used.low), percent(used.used.high)),
                percent(used.occupied.mean),
                show_ns(used.least_ns.mean),
                self.rate(used.least_ns.mean),
            ]
        };
        let headings = [
            "resource",
            "used [%]",
            "interval",
            "or waits for a CPU [%]",
            "per block",
            "allows MB/s",
        ];
        numbers_from(1, &headings, self.explained.resources.iter().map(row))
    }

    fn slopes(&self) -> String {
        let row = |Slope { name, slope }: &Slope| {
            vec![
                name.clone(),
                significant(slope.mean, 2),
                format!("{} to {}", significant(slope.low, 2), significant(slope.high, 2)),
            ]
        };
        numbers_from(1, &["part", "slope", "interval"], self.explained.slopes.iter().map(row))
    }
}
