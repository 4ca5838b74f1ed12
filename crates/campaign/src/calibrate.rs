//! Measures a profile of this host with short paths. It has costs of a block by kind of work, with
//! all threads on one CPU and with neighbours on two, and runs to which the three numbers of the
//! prediction are fitted. Further paths are held back from both.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use daqmeter_harness::Request;
use daqmeter_harness::facts::utc_now;
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_path::explain::clock_ghz;
use daqmeter_path::predict::{
    ClosedForm, CostPoint, HeldBackPath, HostProfile, MIN_CHECKS, PathShape, PredictedAndMeasured,
    ShapeRow, WorkCost, fit,
};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::path::{PathRun, PathThread};
use daqmeter_record::{RunRecord, conditions};
use daqmeter_stats::Random;

use crate::run::Runner;

const BLOCK_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const ROUNDS: u64 = 2;
const COST_S: f64 = 0.025;
/// Paths to which the prediction is fitted: ten for each of its numbers.
const FITTED_PATHS: usize = 40;
const FIT_S: f64 = 0.12;
/// Seconds of a run. Equal runs of pinned threads of this length differ by 4 % in their rates,
/// those of 80 ms by 8 %.
const CHECK_S: f64 = 0.25;
const REPEATS: usize = 3;
/// Largest number of checked paths: intervals hardly gain from more.
const MAX_CHECKED: usize = 400;
const TRIES: usize = 2;
const SEED: u64 = 2026;
/// Source with fast bytes, for paths in which its own cost does not count.
const SHORT: &str = "kind = \"memory\"\nspan = \"1MiB\"\n";
const MEMORY: &str = "kind = \"memory\"\n";
const READ: &str = "kind = \"read\"\n";

/// Measures a profile of this host; `step` gets the name of each part.
///
/// # Errors
/// Fails also after a signal, or if the budget left too few runs.
pub fn calibrate(
    runner: &Runner,
    budget: Duration,
    step: &mut dyn FnMut(&str),
) -> Result<HostProfile, String> {
    let began = Instant::now();
    let context = &runner.context;
    let host = (*context.host).clone();
    if host.allowed_cpus.is_empty() {
        return Err("the CPUs that may be used are not known".to_owned());
    }
    let mut profile = HostProfile::new(utc_now(), context.tool.clone(), host);
    profile.clock_ghz = 1.0;
    let mut paths = ShortPaths { runner, runs: 0 };
    step("costs of each kind of work");
    profile.works = costs(&mut paths, &profile)?;
    step("hand-overs and waits");
    let mut random = Random::new(SEED);
    let cpus = profile.host.allowed_cpus.clone();
    let (mut fitted, mut clocks) = (Vec::new(), Vec::new());
    for _ in 0..FITTED_PATHS {
        let drawn = drawn_path(&mut random, &cpus);
        let (shape, record) = paths.run(&drawn.text, FIT_S, None)?;
        clocks.extend(clock_ghz(&record));
        let run = run_of(&record)?;
        fitted.push((shape, run.per_s(run.blocks)));
    }
    profile.clock_ghz = daqmeter_stats::median(&clocks).unwrap_or(profile.clock_ghz);
    fit(&mut profile, &fitted)?;
    step("paths that are held back");
    while profile.held_back.len() < 2 * MIN_CHECKS
        || (profile.held_back.len() < 2 * MAX_CHECKED && began.elapsed() < budget)
    {
        let drawn = drawn_path(&mut random, &cpus);
        let free = held_back(&mut paths, &profile, &drawn.text, None)?;
        let rate_hz = free.rate.measured * drawn.load;
        let paced = held_back(&mut paths, &profile, &drawn.text, Some(rate_hz))?;
        profile.held_back.extend([free, paced]);
    }
    profile.runs = paths.runs;
    profile.seconds = began.elapsed().as_secs_f64();
    profile.check()?;
    Ok(profile)
}

fn run_of(record: &RunRecord) -> Result<&PathRun, String> {
    let run = record.path.as_deref().filter(|run| run.blocks > 0);
    run.ok_or_else(|| format!("{}: no block came to the end", record.engine.target))
}

fn path_text(block_bytes: usize, layout: &str, source: &str, stage: &str, sink: &str) -> String {
    format!(
        "title = \"calibration\"\nblock = \"{block_bytes}\"\nlayout = \"{layout}\"\n[source]\n{source}{stage}[sink]\n{sink}"
    )
}

fn kinds(file: &str) -> Vec<[String; 3]> {
    let through =
        |stage: String| [SHORT.to_owned(), format!("[[stage]]\n{stage}\n"), READ.to_owned()];
    let copies = CopyKernel::available().into_iter();
    let copies = copies.map(|kernel| format!("kind = \"copy\"\nby = \"{}\"", kernel.name()));
    let converts = (1..=8).map(|function| format!("kind = \"convert\"\nfunction = {function}"));
    let plain = ["checksum", "unix", "tcp"].map(|kind| format!("kind = \"{kind}\""));
    let work = "kind = \"work\"\ntime = \"1ns\"".to_owned();
    let stages = copies.chain(converts).chain(plain).chain([work]);
    let felix = "kind = \"felix\"\nscenario = \"gbt\"\nspan = \"1MiB\"\n";
    let replay = "kind = \"file\"\npath = \"/proc/self/exe\"\ncached = true\n";
    let write = format!("kind = \"file\"\npath = \"{file}\"\nmax = \"16MiB\"\n");
    let others = [
        [MEMORY, "", READ],
        [replay, "", READ],
        [felix, "[[stage]]\nkind = \"decode\"\n", READ],
        [SHORT, "", &write],
    ];
    stages.map(through).chain(others.map(|parts| parts.map(str::to_owned))).collect()
}

/// Ways of a block: handed over on one CPU, or to another one each time, or in one thread.
const WAYS: usize = 3;
const NEAR: usize = 0;
const APART: usize = 1;
const FUSED: usize = 2;

/// CPUs of a source, a stage or its two ends, and a sink.
fn places(stage: &str, cpus: &[u32], way: usize) -> [String; 3] {
    let [one, other] = [cpus[0], cpus[usize::from(way == APART && cpus.len() > 1)]];
    let has_two_ends = ["unix", "tcp"].iter().any(|kind| stage.contains(kind));
    let (stage_cpus, sink) = match (stage.is_empty(), has_two_ends) {
        (true, _) => (String::new(), other),
        (false, true) => (format!("cpus = [{other}, {one}]\n"), other),
        (false, false) => (format!("cpus = [{other}]\n"), one),
    };
    [format!("cpus = [{one}]\n"), stage_cpus, format!("cpus = [{sink}]\n")]
}

type Cycles = [Vec<f64>; WAYS];

fn costs(paths: &mut ShortPaths<'_>, profile: &HostProfile) -> Result<Vec<WorkCost>, String> {
    // A path makes the file that it writes, and removes it.
    let folder = tempfile::tempdir().map_err(|error| format!("a folder: {error}"))?;
    let written = folder.path().join("blocks");
    let written = written.to_str().ok_or("the folder for temporary files is not UTF-8")?;
    let ways = |bytes| [NEAR, APART, FUSED].map(|way| (bytes, way));
    let sizes = BLOCK_BYTES.into_iter().flat_map(ways);
    let all = kinds(written).into_iter();
    let mut all: Vec<([String; 3], (usize, usize))> =
        all.flat_map(|kind| sizes.clone().map(move |size| (kind.clone(), size))).collect();
    let mut found: BTreeMap<String, BTreeMap<u64, Cycles>> = BTreeMap::new();
    let mut has_clock = false;
    for round in 1..=ROUNDS {
        Random::new(round).shuffle(&mut all);
        for ([source, stage, sink], (bytes, way)) in &all {
            let [of_source, of_stage, of_sink] = places(stage, &profile.host.allowed_cpus, *way);
            let [placed, on, into] =
                [source.clone() + &of_source, stage.clone() + &of_stage, sink.clone() + &of_sink];
            let layout = if *way == FUSED { "fused" } else { "pipeline" };
            let text = path_text(*bytes, layout, &placed, &on, &into);
            let (shape, record) = paths.run(&text, COST_S, None)?;
            let run = run_of(&record)?;
            let clock = clock_ghz(&record);
            has_clock |= clock.is_some();
            // Without any clock, cycles are those of 1 GHz.
            let Some(clock_ghz) = clock.or((!has_clock).then_some(1.0)) else { continue };
            for (row, threads) in shape.rows.iter().zip(shape.threads_of(run)) {
                for (work, each_ns) in row.works.iter().zip(each_ns(row, threads, run.blocks)) {
                    if work.name == "memory" && source != MEMORY {
                        continue;
                    }
                    let points = found.entry(work.name.clone()).or_default();
                    let cycles = each_ns.max(0.0) * clock_ghz;
                    points.entry(work.bytes).or_default()[*way].push(cycles);
                }
            }
        }
    }
    // A connection costs one thing in one thread, and another at each of its ends.
    for ways in found.values_mut().flat_map(BTreeMap::values_mut) {
        let known: Vec<f64> = ways.iter().flatten().copied().collect();
        let missing = ways.iter_mut().filter(|way| way.is_empty());
        missing.for_each(|way| way.push(middle(&known)));
    }
    let point = |(block_bytes, ways): (u64, Cycles)| {
        let [cycles, apart_cycles, fused_cycles] = ways.map(|found| middle(&found));
        CostPoint { block_bytes, cycles, apart_cycles, fused_cycles }
    };
    let work = |(work, points): (String, BTreeMap<u64, Cycles>)| WorkCost {
        work,
        points: points.into_iter().map(point).collect(),
    };
    Ok(found.into_iter().map(work).collect())
}

/// Median of runs that were made, whose times are finite.
fn middle(values: &[f64]) -> f64 {
    daqmeter_stats::median(values).expect("finite values of runs")
}

/// CPU time of a block for each work of a row, without the work that the path asks for.
fn each_ns(row: &ShapeRow, threads: &[PathThread], blocks: u64) -> Vec<f64> {
    let per_block = |ns: u64| ns as f64 / blocks.max(1) as f64;
    let all_ns = per_block(threads.iter().map(|thread| thread.cpu_ns).sum()) - row.added_ns;
    let within = threads.iter().flat_map(|thread| &thread.within);
    let within: Vec<f64> = within.map(|within| per_block(within.ns)).collect();
    // The first work of a thread is what the others leave.
    let first_ns = all_ns - within.iter().sum::<f64>();
    std::iter::once(first_ns).chain(within).collect()
}

fn held_back(
    paths: &mut ShortPaths<'_>,
    profile: &HostProfile,
    text: &str,
    total_hz: Option<f64>,
) -> Result<HeldBackPath, String> {
    let mut runs = Vec::new();
    let mut shape = PathShape::default();
    for _ in 0..REPEATS {
        let (found, record) = paths.run(text, CHECK_S, total_hz)?;
        shape = found;
        runs.push(run_of(&record)?.clone());
    }
    let form = ClosedForm::of(&shape, profile)?;
    let pair = |predicted: f64, of: &dyn Fn(&PathRun) -> f64| PredictedAndMeasured {
        predicted,
        measured: middle(&runs.iter().map(of).collect::<Vec<_>>()),
    };
    let latency = |share: f64| {
        let measured = move |run: &PathRun| run.latency_ns(share).unwrap_or(0).max(1) as f64;
        pair(form.latency_ns, &measured)
    };
    let cpu = form.cpus(&shape).into_iter().enumerate().map(|(at, predicted)| {
        pair(predicted, &|run| {
            let own = shape.threads_of(run)[at];
            let cpu_ns: u64 = own.iter().map(|thread| thread.cpu_ns).sum();
            cpu_ns as f64 / run.time_ns() as f64 / own.len().max(1) as f64
        })
    });
    Ok(HeldBackPath {
        threads: shape.threads(),
        block_bytes: shape.block_bytes,
        is_pinned: shape.is_pinned(),
        is_fused: shape.rows.len() == 1,
        rate_hz: shape.rate_hz,
        rate: pair(form.largest_hz(), &|run| run.per_s(run.blocks)),
        p50_ns: latency(0.5),
        p99_ns: latency(0.99),
        cpu: cpu.collect(),
        line: shape.line.clone(),
    })
}

/// Runs paths that are texts.
struct ShortPaths<'a> {
    runner: &'a Runner,
    runs: u64,
}

impl ShortPaths<'_> {
    /// Runs a path as fast as it goes, or at this rate of all its streams. Repeats the run if
    /// others took CPU time from it.
    fn run(
        &mut self,
        text: &str,
        seconds: f64,
        total_hz: Option<f64>,
    ) -> Result<(PathShape, RunRecord), String> {
        let path = Path::parse(text, "calibration").map_err(|error| error.to_string())?;
        let mut shape = path.shape()?;
        shape.rate_hz = total_hz.map(|hz| hz / shape.streams as f64);
        let request = PathRequest {
            rate_hz: shape.rate_hz,
            unpaced: total_hz.is_none(),
            ..PathRequest::new(&path, seconds)
        };
        let (job, mut tries) = (request.job().map_err(|fault| fault.0)?, 0);
        loop {
            (self.runs, tries) = (self.runs + 1, tries + 1);
            let record = self.runner.quietly(&job, "path/calibrate");
            let record = record.map_err(|refusal| refusal.to_string())?;
            if self.runner.stop.is_set() {
                return Err("interrupted".to_owned());
            }
            if let Some(reason) = record.outcome.reason() {
                return Err(format!("{}: {reason}", path.line()));
            }
            let is_disturbed = conditions::disturbance(&record).is_some();
            if tries == TRIES || !is_disturbed {
                return Ok((shape, record));
            }
        }
    }
}

/// A random path, and the share of its largest rate for its paced run.
#[derive(Clone, Debug, PartialEq)]
struct DrawnPath {
    text: String,
    load: f64,
}

fn drawn_path(random: &mut Random, cpus: &[u32]) -> DrawnPath {
    // The fourfold width of a conversion to f64 is still within the calibrated sizes.
    let block_bytes = (between(random, 4096.0, 262_144.0) / 64.0).round() * 64.0;
    let buffers = 2 << below(random, 4);
    let is_pinned = below(random, 2) == 0 && !cpus.is_empty();
    let layout = match below(random, 3) {
        0 => format!("fused x {}", 1 + below(random, cpus.len())),
        _ => "pipeline".to_owned(),
    };
    let place = |random: &mut Random| match is_pinned {
        true => {
            let [one, other] = [(); 2].map(|()| cpus[below(random, cpus.len())]);
            format!("cpus = [{one}, {other}]\n")
        }
        false => String::new(),
    };
    let source = match below(random, 3) {
        0 => "kind = \"file\"\npath = \"/proc/self/exe\"\ncached = true\n",
        _ => MEMORY,
    };
    let place_of_source = place(random);
    let mut text = format!(
        "title = \"drawn\"\nblock = \"{block_bytes}\"\nbuffers = {buffers}\nlossless = true\nlayout = \"{layout}\"\n[source]\n{source}{place_of_source}"
    );
    let mut takes_samples = true;
    for _ in 0..below(random, 4) {
        let stage = match below(random, 6) {
            0 => "kind = \"checksum\"\n".to_owned(),
            1 => "kind = \"unix\"\n".to_owned(),
            2 => "kind = \"tcp\"\n".to_owned(),
            3 => format!("kind = \"work\"\ntime = \"{:.0}ns\"\n", between(random, 2e3, 2e5)),
            4 if takes_samples => {
                takes_samples = false;
                "kind = \"convert\"\nfunction = 3\nscale_factor = 3e-5\n".to_owned()
            }
            _ => "kind = \"copy\"\n".to_owned(),
        };
        text.push_str(&format!("[[stage]]\n{stage}{}", place(random)));
    }
    text.push_str(&format!("[sink]\n{READ}{}", place(random)));
    DrawnPath { text, load: 0.2 + 0.7 * random.uniform() }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
fn below(random: &mut Random, bound: usize) -> usize {
    (random.uniform() * bound as f64) as usize
}

fn between(random: &mut Random, from: f64, to: f64) -> f64 {
    from * (to / from).powf(random.uniform())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_that_is_drawn_can_be_read_and_lies_within_the_calibrated_sizes() {
        let mut random = Random::new(7);
        for _ in 0..300 {
            let drawn = drawn_path(&mut random, &[0, 1]);
            let path = Path::parse(&drawn.text, "drawn.toml");
            let path = path.unwrap_or_else(|error| panic!("{error}\n{}", drawn.text));
            let shape = path.shape().unwrap();
            let pinned = shape.rows.iter().filter(|row| !row.cpus.is_empty()).count();
            assert!(pinned == 0 || pinned == shape.rows.len(), "{}", drawn.text);
            let mut works = shape.rows.iter().flat_map(|row| &row.works);
            assert!(works.all(|work| (4096..=1 << 20).contains(&work.bytes)));
        }
    }

    #[test]
    fn the_kinds_that_are_measured_are_those_that_paths_drawn_at_random_have() {
        let mut random = Random::new(7);
        let works = |text: &str| {
            let path = Path::parse(text, "x.toml").unwrap();
            let rows = path.shape().unwrap().rows.into_iter();
            rows.flat_map(|row| row.works).map(|work| work.name).collect::<Vec<_>>()
        };
        let known: Vec<String> = kinds("/nonexistent")
            .iter()
            .flat_map(|[source, stage, sink]| {
                let of = |layout| works(&path_text(65_536, layout, source, stage, sink));
                [of("pipeline"), of("fused")].concat()
            })
            .collect();
        for _ in 0..100 {
            for work in works(&drawn_path(&mut random, &[0, 1]).text) {
                assert!(known.contains(&work), "{work}");
            }
        }
    }
}
