//! A profile of this host, by running short paths: what blocks cost each kind of work, what waking threads costs, and how far predictions
//! are off for paths that went into neither.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use daqmeter_harness::facts::utc_now;
use daqmeter_harness::{Request, StepPlan, ordered};
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::path::{PathRun, PathThread};
use daqmeter_record::shape::PathShape;
use daqmeter_stats::simulated::Random;
use daqmeter_twin::{
    Check, CostPoint, MIN_CHECKS, MIN_RUNS, Pair, Profile, Sharing, Simulated, Threads, WorkCost,
    model, run_threads, simulate,
};

use crate::drawn::{DrawnPath, drawn_path};
use crate::run::Runner;

/// Sizes of blocks at which costs are measured.
const BLOCK_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Time of a run for a cost, and of one that is compared with a prediction.
const COST_S: f64 = 0.025;
/// See `COST_S`.
pub const CHECK_S: f64 = 0.08;
/// Paths to which the costs of waking up are fitted; others than those that are checked.
const FITTED_PATHS: usize = 16;
/// Seeds of the paths that are fitted and of those that are checked.
const SEEDS: (u64, u64) = (20, 2026);
/// Bytes that a source in memory has where its own cost is not looked at: made quickly.
const SHORT_SPAN: &str = "span = \"1MiB\"\n";
/// Linux gives two CPUs slices of 2.8 ms at 1000 Hz: `sched_base_slice_ns` times (1 + log2 of the CPUs), in whole ticks.
const SLICE_NS: u64 = 3_000_000;
/// Values that stand for the distribution of the time of a wake-up.
const WAKE_VALUES: usize = 100;
/// What is tried for the three numbers that are fitted: factor of the time of a wake-up, CPU time of a sleep, and how long a thread
/// stays with its CPU.
const FACTORS: [f64; 5] = [0.35, 0.5, 0.75, 1.0, 1.4];
const SLEEPS_NS: [u64; 5] = [500, 1_500, 3_000, 5_000, 8_000];
const STAYS_NS: [u64; 6] = [0, 50_000, 100_000, 200_000, 400_000, 1_000_000];
/// Blocks of a simulation while it is fitted.
const FIT_BLOCKS: u64 = 800;

/// Measures a profile of this host; `step` hears what is measured.
///
/// # Errors
/// When a path cannot be run, a signal came, or the budget left too few runs.
pub fn calibrate(
    runner: &Runner,
    budget: Duration,
    step: &mut dyn FnMut(&str),
) -> Result<Profile, String> {
    let began = Instant::now();
    let context = &runner.context;
    let mut profile = Profile::new(
        utc_now(),
        context.tool.clone(),
        (*context.host).clone(),
        daqmeter_sys::available::cpus(),
    );
    let mut paths = Paths::new(runner)?;
    step("costs of each kind of work");
    profile.works = costs(&mut paths)?;
    step("sleeping and waking up");
    profile.sharing = sharing(&mut paths, &profile)?;
    step("paths that are held back");
    profile.checks = checks(&mut paths, &profile, || began.elapsed() < budget)?;
    profile.runs = paths.runs;
    profile.seconds = began.elapsed().as_secs_f64();
    profile.check().map_err(|error| error.to_string())?;
    Ok(profile)
}

/// Runs paths that are texts.
pub struct Paths<'a> {
    runner: &'a Runner,
    folder: Folder,
    runs: u64,
}

/// Removed with what is in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // It is in the system's folder for such things, which is emptied anyway.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl<'a> Paths<'a> {
    /// With a folder for the files.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(runner: &'a Runner) -> Result<Paths<'a>, String> {
        let folder = std::env::temp_dir().join(format!("daqmeter-paths-{}", std::process::id()));
        std::fs::create_dir(&folder)
            .map_err(|error| format!("make {}: {error}", folder.display()))?;
        Ok(Paths {
            runner,
            folder: Folder(folder),
            runs: 0,
        })
    }

    /// Runs a path for that time, as fast as it goes or at so many blocks per second and stream.
    ///
    /// # Errors
    /// When it cannot be run, or a signal came.
    pub fn run(
        &mut self,
        text: &str,
        seconds: f64,
        rate_hz: Option<f64>,
    ) -> Result<(PathShape, PathRun), String> {
        self.runs += 1;
        let file = self.folder.0.join("path.toml");
        let failed = |error: std::io::Error| format!("write {}: {error}", file.display());
        std::fs::write(&file, text).map_err(failed)?;
        let name = file
            .to_str()
            .ok_or("the folder for temporary files is not UTF-8")?;
        let path = Path::load(name).map_err(|error| error.to_string())?;
        let request = PathRequest {
            rate_hz,
            unpaced: rate_hz.is_none(),
            ..PathRequest::new(&path, seconds)
        };
        let settings = self
            .runner
            .settings(StepPlan::ByStage(1), "twin/calibrate", &[]);
        let record = self.runner.quietly("path", &request.workload(), &settings);
        let record = record.map_err(|refusal| refusal.to_string())?;
        if self.runner.stop.is_set() {
            return Err("interrupted".to_owned());
        }
        if let Some(reason) = record.outcome.reason() {
            return Err(format!("{}: {reason}", path.line()));
        }
        let run = record.path.filter(|run| run.blocks > 0);
        let run = run.ok_or_else(|| format!("{}: no block came to the end", path.line()))?;
        let mut shape = path.shape()?;
        shape.rate_hz = rate_hz;
        Ok((shape, run))
    }
}

/// The threads of each row.
fn threads_by_row<'a>(
    shape: &'a PathShape,
    run: &'a PathRun,
) -> impl Iterator<Item = &'a [PathThread]> {
    let mut rest = &run.threads[..];
    shape.rows.iter().map(move |row| {
        let (own, others) = rest.split_at(row.threads.min(rest.len()));
        rest = others;
        own
    })
}

fn path_text(block_bytes: usize, buffers: usize, source: &str, stage: &str, sink: &str) -> String {
    format!(
        "title = \"calibration\"\nblock = \"{block_bytes}\"\nbuffers = {buffers}\n[source]\n{source}{stage}[sink]\n{sink}"
    )
}

const MEMORY: &str = "kind = \"memory\"\n";
const READ: &str = "kind = \"read\"\n";

/// One path for each kind of work: source, stage, sink.
fn kinds(file: &str) -> Vec<(String, String, String)> {
    let short = format!("{MEMORY}{SHORT_SPAN}");
    let through = |stage: String| {
        (
            short.clone(),
            format!("[[stage]]\n{stage}\n"),
            READ.to_owned(),
        )
    };
    let copies = CopyKernel::available().into_iter();
    let copies = copies.map(|kernel| format!("kind = \"copy\"\nby = \"{}\"", kernel.name()));
    let converts = (1..=8).map(|function| format!("kind = \"convert\"\nfunction = {function}"));
    let plain = ["checksum", "unix", "tcp"].map(|kind| format!("kind = \"{kind}\""));
    let work = "kind = \"work\"\ntime = \"1ns\"".to_owned();
    let stages = copies.chain(converts).chain(plain).chain([work]);
    let felix = "kind = \"felix\"\nscenario = \"gbt\"\nspan = \"1MiB\"\n".to_owned();
    let replay = "kind = \"file\"\npath = \"/proc/self/exe\"\ncached = true\n".to_owned();
    let write = format!("kind = \"file\"\npath = \"{file}\"\nmax = \"16MiB\"\n");
    let others = [
        (MEMORY.to_owned(), String::new(), READ.to_owned()),
        (replay, String::new(), READ.to_owned()),
        (
            felix,
            "[[stage]]\nkind = \"decode\"\n".to_owned(),
            READ.to_owned(),
        ),
        (short.clone(), String::new(), write),
    ];
    stages.map(through).chain(others).collect()
}

/// CPU time of a block by kind of work and size.
type Costs = BTreeMap<String, BTreeMap<u64, Vec<f64>>>;

fn costs(paths: &mut Paths<'_>) -> Result<Vec<WorkCost>, String> {
    let file = paths
        .folder
        .0
        .join("written")
        .to_string_lossy()
        .into_owned();
    let mut jobs = Vec::new();
    for kind in kinds(&file) {
        jobs.extend(BLOCK_BYTES.map(|bytes| (kind.clone(), bytes)));
    }
    let mut found = Costs::new();
    for round in 0..u64::from(MIN_RUNS) {
        for (_, ((source, stage, sink), bytes)) in ordered(jobs.clone(), round + 1) {
            let text = path_text(bytes, 8, &source, &stage, &sink);
            let (shape, run) = paths.run(&text, COST_S, None)?;
            book(&mut found, &shape, &run, source.contains(SHORT_SPAN));
        }
    }
    Ok(found
        .into_iter()
        .filter_map(|(work, points)| cost(work, points))
        .collect())
}

/// What the threads of a run worked for each block. A source that was made short has no costs of its own.
fn book(found: &mut Costs, shape: &PathShape, run: &PathRun, is_short: bool) {
    for (row, threads) in shape.rows.iter().zip(threads_by_row(shape, run)) {
        let is_felix = shape.line.contains("felix");
        if row.work == "memory" && (is_short || is_felix) {
            continue;
        }
        let busy_ns: u64 = threads.iter().map(|thread| thread.busy_ns).sum();
        let each_ns = busy_ns as f64 / run.blocks as f64 - row.added_ns;
        let sizes = found.entry(row.work.clone()).or_default();
        sizes.entry(row.bytes).or_default().push(each_ns.max(0.0));
    }
}

/// The cost of a kind of work; sizes with fewer runs than a median needs are left out.
fn cost(work: String, points: BTreeMap<u64, Vec<f64>>) -> Option<WorkCost> {
    let point = |(block_bytes, all): (u64, Vec<f64>)| {
        let sorted = daqmeter_stats::sorted(&all);
        let runs = u32::try_from(all.len()).unwrap_or(u32::MAX);
        (runs >= MIN_RUNS).then(|| CostPoint {
            block_bytes,
            cpu_ns: daqmeter_stats::quantile(&sorted, 0.5),
            low_ns: sorted[0],
            high_ns: sorted[sorted.len() - 1],
            runs,
        })
    };
    let points: Vec<CostPoint> = points.into_iter().filter_map(point).collect();
    (!points.is_empty()).then(|| WorkCost {
        how: "CPU time per block outside of waits, in paths that go as fast as they can".to_owned(),
        work,
        points,
    })
}

/// A run to which a model is fitted.
struct Fitted {
    model: Threads,
    block_ns: Option<f64>,
    p50_ns: Option<f64>,
}

impl Fitted {
    fn of(shape: &PathShape, run: &PathRun, profile: &Profile) -> Result<Fitted, String> {
        let model = model(shape, profile).map_err(|error| error.to_string())?;
        let is_paced = shape.rate_hz.is_some();
        Ok(Fitted {
            model: Threads {
                blocks: FIT_BLOCKS,
                warm_up: FIT_BLOCKS / 8,
                ..model
            },
            block_ns: (!is_paced).then(|| run.wall_ns as f64 / run.blocks as f64),
            p50_ns: run.latency_ns(0.5).filter(|_| is_paced).map(|ns| ns as f64),
        })
    }

    /// By how much a model with these numbers is off, as a logarithm.
    fn off(&self, sharing: &Sharing) -> f64 {
        let outcome = run_threads(
            &Threads {
                wake_ns: sharing.wake_ns.clone().into(),
                sleep_cpu_ns: sharing.sleep_cpu_ns,
                stay_ns: sharing.stay_ns,
                ..self.model.clone()
            },
            1,
        );
        let block_ns = 1e9 / outcome.rate_hz();
        let rate = self.block_ns.map(|measured| (measured / block_ns).ln());
        let p50_ns = outcome.latency_ns.quantile(0.5).max(1) as f64;
        let p50 = self
            .p50_ns
            .map(|measured| (measured.max(1.0) / p50_ns).ln());
        rate.or(p50).unwrap_or(0.0).abs()
    }
}

fn sharing(paths: &mut Paths<'_>, profile: &Profile) -> Result<Sharing, String> {
    let usual = Sharing {
        wake_ns: vec![0],
        slice_ns: SLICE_NS,
        ..Sharing::default()
    };
    let profile = Profile {
        sharing: usual.clone(),
        ..profile.clone()
    };
    let idle = path_text(4096, 8, MEMORY, "", READ);
    let (shape, run) = paths.run(&idle, 4.0 * CHECK_S, Some(1000.0))?;
    let wake_ns = wakes(&shape, &run, &profile)?;
    let mut fitted = Vec::new();
    for (text, rate_hz) in short_paths() {
        let (shape, run) = paths.run(&text, COST_S * 2.0, rate_hz)?;
        fitted.push(Fitted::of(&shape, &run, &profile)?);
    }
    let mut random = Random::new(SEEDS.0);
    for _ in 0..FITTED_PATHS {
        let (shape, run) = paths.run(&drawn_path(&mut random).text, CHECK_S, None)?;
        fitted.push(Fitted::of(&shape, &run, &profile)?);
    }
    Ok(best(&fitted, &wake_ns, &usual))
}

/// Paths that wait often: few buffers, small blocks, and rates at which each block wakes all threads.
fn short_paths() -> Vec<(String, Option<f64>)> {
    let copy = "[[stage]]\nkind = \"copy\"\n";
    let unix = "[[stage]]\nkind = \"unix\"\n";
    let mut all = Vec::new();
    for bytes in [4096, 16_384, 65_536] {
        all.push((path_text(bytes, 1, MEMORY, "", READ), None));
        all.push((path_text(bytes, 2, MEMORY, copy, READ), None));
        all.push((path_text(bytes, 4, MEMORY, unix, READ), None));
        all.push((path_text(bytes, 8, MEMORY, copy, READ), Some(3000.0)));
        all.push((path_text(bytes, 8, MEMORY, unix, READ), Some(3000.0)));
    }
    all
}

/// How long a wake-up takes: what is left of the latency of a path that is nearly idle, which has two of them, by equal shares.
fn wakes(shape: &PathShape, run: &PathRun, profile: &Profile) -> Result<Vec<u64>, String> {
    let model = model(shape, profile).map_err(|error| error.to_string())?;
    let work_ns: f64 = model.rows.iter().map(|row| row.work_ns).sum();
    let value = |at: usize| {
        let share = (at as f64 + 0.5) / WAKE_VALUES as f64;
        let latency_ns = run.latency_ns(share).unwrap_or(0) as f64;
        whole((latency_ns - work_ns).max(0.0) / 2.0)
    };
    Ok((0..WAKE_VALUES).map(value).collect())
}

/// Of all that is tried the numbers with the smallest mean error.
fn best(fitted: &[Fitted], wake_ns: &[u64], usual: &Sharing) -> Sharing {
    let mut best: Option<(f64, Sharing)> = None;
    for factor in FACTORS {
        let wake_ns: Vec<u64> = wake_ns
            .iter()
            .map(|ns| whole(*ns as f64 * factor))
            .collect();
        for (sleep_cpu_ns, stay_ns) in SLEEPS_NS
            .iter()
            .flat_map(|sleep| STAYS_NS.map(|stay| (*sleep, stay)))
        {
            let tried = Sharing {
                how: "wake_ns: latency of a path at 1 kHz less its work, halved, times a factor; factor, sleep_cpu_ns and stay_ns: smallest mean error of rates and median latencies".to_owned(),
                wake_ns: wake_ns.clone(),
                sleep_cpu_ns,
                stay_ns,
                points: fitted.len(),
                parameters: 3,
                ..usual.clone()
            };
            let off: Vec<f64> = fitted.iter().map(|point| point.off(&tried)).collect();
            let mean = off.iter().sum::<f64>() / off.len() as f64;
            if best.as_ref().is_none_or(|(least, _)| mean < *least) {
                let left = daqmeter_stats::median(&off);
                best = Some((mean, Sharing { left, ..tried }));
            }
        }
    }
    best.map_or_else(|| usual.clone(), |(_, sharing)| sharing)
}

/// Most paths that are checked: intervals hardly gain from more.
const MAX_CHECKED: usize = 400;

fn checks(
    paths: &mut Paths<'_>,
    profile: &Profile,
    wants_more: impl Fn() -> bool,
) -> Result<Vec<Check>, String> {
    let mut random = Random::new(SEEDS.1);
    let mut checks = Vec::new();
    // Of both classes of paths enough, where the budget allows it; for an interval at all in any case.
    while checks.len() < 2 * MIN_CHECKS || (checks.len() < 2 * MAX_CHECKED && wants_more()) {
        checks.extend(check(paths, profile, &drawn_path(&mut random))?);
    }
    Ok(checks)
}

/// A path as fast as it goes, and at its share of that.
///
/// # Errors
/// When it cannot be run or predicted.
pub fn check(
    paths: &mut Paths<'_>,
    profile: &Profile,
    drawn: &DrawnPath,
) -> Result<[Check; 2], String> {
    let (shape, run) = paths.run(&drawn.text, CHECK_S, None)?;
    let free = compared(&shape, &run, profile)?;
    let streams = shape.rows[0].threads as f64;
    let rate_hz = free.rate.measured / streams * drawn.load;
    let (shape, run) = paths.run(&drawn.text, CHECK_S, Some(rate_hz))?;
    Ok([free, compared(&shape, &run, profile)?])
}

/// Prediction and measurement of a run.
fn compared(shape: &PathShape, run: &PathRun, profile: &Profile) -> Result<Check, String> {
    let Simulated { at_rate, .. } =
        simulate(shape, profile, 1).map_err(|error| error.to_string())?;
    let pair = |predicted: f64, measured: f64| Pair {
        predicted,
        measured,
    };
    let latency = |share| {
        let measured = run.latency_ns(share).unwrap_or(0).max(1);
        pair(
            at_rate.latency_ns.quantile(share).max(1) as f64,
            measured as f64,
        )
    };
    let cpu = threads_by_row(shape, run)
        .zip(&at_rate.cpu)
        .map(|(own, predicted)| {
            let cpu_ns: u64 = own.iter().map(|thread| thread.cpu_ns).sum();
            pair(
                *predicted,
                cpu_ns as f64 / run.wall_ns as f64 / own.len() as f64,
            )
        });
    let depth = threads_by_row(shape, run)
        .skip(1)
        .zip(&at_rate.depth)
        .filter_map(|(own, predicted)| {
            let queues = run
                .queues
                .iter()
                .filter(|queue| own.iter().any(|thread| thread.name == queue.to));
            let means: Vec<f64> = queues
                .filter_map(daqmeter_record::path::PathQueue::mean)
                .collect();
            (!means.is_empty())
                .then(|| pair(*predicted, means.iter().sum::<f64>() / means.len() as f64))
        });
    Ok(Check {
        line: shape.line.clone(),
        threads: shape.threads(),
        block_bytes: shape.block_bytes,
        rate_hz: shape.rate_hz,
        rate: pair(
            at_rate.rate_hz(),
            run.blocks as f64 / (run.wall_ns as f64 * 1e-9),
        ),
        p50_ns: latency(0.5),
        p99_ns: latency(0.99),
        cpu: cpu.collect(),
        depth: depth.collect(),
    })
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "nanoseconds of a short run"
)]
fn whole(ns: f64) -> u64 {
    ns.round() as u64
}
