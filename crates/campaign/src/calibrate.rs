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
    Check, CostPoint, FarWake, MIN_CHECKS, MIN_RUNS, Pair, Profile, Sharing, Simulated, Threads,
    ThreadsOutcome, WorkCost, model, run_threads, simulate,
};

use crate::drawn::{DrawnPath, drawn_path};
use crate::run::Runner;

/// Sizes of blocks at which costs are measured.
const BLOCK_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Blocks from this size on are measured with their neighbours on other CPUs, too. Below it what comes on top for that goes with the
/// size: there it would be lost in what waking the neighbours costs.
const MIN_APART_BYTES: u64 = 64 << 10;
/// Time of a run for a cost.
const COST_S: f64 = 0.025;
/// Time of a run that is compared with a prediction: equal runs of pinned threads differ by 4 % in their rates, those of 80 ms by 8 %.
const CHECK_S: f64 = 0.25;
/// Runs of a path at one load of which the median is compared: equal runs are far apart.
pub const REPEATS: usize = 3;
/// Rates of the paths that show what waking costs, by how long CPUs are idle between blocks.
const PROBE_HZ: [f64; 3] = [20_000.0, 5_000.0, 1_000.0];
/// Time of the run that shows how long wake-ups take.
const IDLE_S: f64 = 0.32;
/// Time of each of these runs.
const PROBE_S: f64 = 0.06;
/// Time of a run to which the costs of waking up are fitted.
const FIT_S: f64 = 0.12;
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
/// What is tried for the two numbers that are fitted: factor of the time of a wake-up, and how long a thread stays with its CPU.
const FACTORS: [f64; 6] = [0.2, 0.35, 0.5, 0.75, 1.0, 1.4];
const STAYS_NS: [u64; 7] = [0, 50_000, 100_000, 200_000, 400_000, 1_000_000, 4_000_000];
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
    let cpus = profile.host.allowed_cpus.clone();
    profile.works = costs(&mut paths, &cpus)?;
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

    /// Runs a path for that time, as fast as it goes or at so many blocks per second and stream, its threads pinned to these CPUs in
    /// turn, or as the path says where there are none.
    ///
    /// # Errors
    /// When it cannot be run, or a signal came.
    pub fn run(
        &mut self,
        text: &str,
        seconds: f64,
        rate_hz: Option<f64>,
        pins: &[u32],
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
            cpus: pins
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(","),
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
        pin(&mut shape, pins);
        Ok((shape, *run))
    }
}

/// Pins the threads of a shape in turn, from source to sink, as a run does.
pub(crate) fn pin(shape: &mut PathShape, pins: &[u32]) {
    let mut turn = pins.iter().copied().cycle();
    for row in &mut shape.rows {
        if !pins.is_empty() {
            row.cpus = turn.by_ref().take(row.threads).collect();
        }
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
type Costs = BTreeMap<(String, u64), Vec<f64>>;

/// A CPU for all threads, and two for neighbours in turn, where there are two: other ones in each round.
fn placements(cpus: &[u32], round: u64) -> (Vec<u32>, Option<Vec<u32>>) {
    let turn = usize::try_from(round).unwrap_or(0);
    let cpu = |at: usize| cpus[(turn + at) % cpus.len().max(1)];
    (vec![cpu(0)], (cpus.len() > 1).then(|| vec![cpu(0), cpu(1)]))
}

fn costs(paths: &mut Paths<'_>, cpus: &[u32]) -> Result<Vec<WorkCost>, String> {
    let file = paths
        .folder
        .0
        .join("written")
        .to_string_lossy()
        .into_owned();
    let mut jobs = Vec::new();
    for kind in kinds(&file) {
        for bytes in BLOCK_BYTES {
            jobs.push((kind.clone(), bytes, false));
            if bytes as u64 >= MIN_APART_BYTES {
                jobs.push((kind.clone(), bytes, true));
            }
        }
    }
    let (mut together, mut apart) = (Costs::new(), Costs::new());
    for round in 0..u64::from(MIN_RUNS) {
        let (one, two) = placements(cpus, round);
        for (_, ((source, stage, sink), bytes, is_apart)) in ordered(jobs.clone(), round + 1) {
            let (pins, found) = match (is_apart, &two) {
                (false, _) => (&one, &mut together),
                (true, Some(two)) => (two, &mut apart),
                (true, None) => continue,
            };
            let text = path_text(bytes, 8, &source, &stage, &sink);
            let (shape, run) = paths.run(&text, COST_S, None, pins)?;
            book(found, &shape, &run, source.contains(SHORT_SPAN));
        }
    }
    Ok(works(&together, &apart))
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
        let all = found.entry((row.work.clone(), row.bytes)).or_default();
        all.push(each_ns.max(0.0));
    }
}

/// The costs of each kind of work; sizes with fewer runs than a median needs are left out.
fn works(together: &Costs, apart: &Costs) -> Vec<WorkCost> {
    let mut works: Vec<WorkCost> = Vec::new();
    for ((work, block_bytes), all) in together {
        let sorted = daqmeter_stats::sorted(all);
        let runs = u32::try_from(all.len()).unwrap_or(u32::MAX);
        if runs < MIN_RUNS {
            continue;
        }
        if works.last().is_none_or(|last| last.work != *work) {
            works.push(WorkCost {
                work: work.clone(),
                how: "CPU time per block outside of waits, in paths that go as fast as they can: all threads on one CPU, and what comes on top on two in turn".to_owned(),
                points: Vec::new(),
            });
        }
        let cpu_ns = daqmeter_stats::quantile(&sorted, 0.5);
        let points = &mut works.last_mut().expect("it was pushed").points;
        points.push(CostPoint {
            block_bytes: *block_bytes,
            cpu_ns,
            low_ns: sorted[0],
            high_ns: sorted[sorted.len() - 1],
            apart_ns: on_top(together, apart, work, *block_bytes),
            runs,
        });
    }
    works
}

/// What comes on top where neighbours are on other CPUs. Of small blocks it goes with the size.
fn on_top(together: &Costs, apart: &Costs, work: &str, block_bytes: u64) -> f64 {
    let sizes = apart.keys().filter(|(known, _)| known == work);
    let measured = sizes
        .map(|(_, bytes)| *bytes)
        .find(|bytes| *bytes >= block_bytes);
    let Some(bytes) = measured else {
        return 0.0;
    };
    let key = (work.to_owned(), bytes);
    let (Some(one), Some(two)) = (together.get(&key), apart.get(&key)) else {
        return 0.0;
    };
    let more = daqmeter_stats::median(two) - daqmeter_stats::median(one);
    more.max(0.0) * block_bytes as f64 / bytes as f64
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
    let cpus = profile.host.allowed_cpus.clone();
    let (one, two) = placements(&cpus, 0);
    let far = two.unwrap_or_else(|| one.clone());
    let usual = Sharing {
        slice_ns: SLICE_NS,
        wake_ns: vec![0],
        ..waits(paths, profile, &one, &far)?
    };
    let profile = Profile {
        sharing: usual.clone(),
        ..profile.clone()
    };
    let idle = path_text(4096, 8, MEMORY, "", READ);
    let (shape, run) = paths.run(&idle, IDLE_S, Some(1000.0), &far)?;
    let wake_ns = wakes(&shape, &run, &profile)?;
    let mut fitted = Vec::new();
    for (text, rate_hz) in short_paths() {
        let (shape, run) = paths.run(&text, COST_S * 2.0, rate_hz, &[])?;
        fitted.push(Fitted::of(&shape, &run, &profile)?);
    }
    let mut random = Random::new(SEEDS.0);
    for _ in 0..FITTED_PATHS {
        let drawn = drawn_path(&mut random, &cpus);
        let (shape, run) = paths.run(&drawn.text, FIT_S, None, &[])?;
        fitted.push(Fitted::of(&shape, &run, &profile)?);
    }
    Ok(best(&fitted, &wake_ns, &usual))
}

/// What a path with a stage shows at a rate at which each block wakes all threads.
struct Probed {
    timer_ns: Vec<f64>,
    sleep_ns: Vec<f64>,
    wake_ns: Vec<f64>,
}

/// Probes at a rate: CPU time of the source's timer, of the waits of the others, and of the stage's work beyond its cost: it wakes one.
fn probed(paths: &mut Paths<'_>, cost_ns: f64, hz: f64, pins: &[u32]) -> Result<Probed, String> {
    let text = path_text(4096, 8, MEMORY, "[[stage]]\nkind = \"copy\"\n", READ);
    let mut found = Probed {
        timer_ns: Vec::new(),
        sleep_ns: Vec::new(),
        wake_ns: Vec::new(),
    };
    for _ in 0..MIN_RUNS {
        let (_, run) = paths.run(&text, PROBE_S, Some(hz), pins)?;
        let blocks = run.blocks as f64;
        let [source, stage, sink] = &run.threads[..] else {
            return Err("a path of three threads has others: a bug in daqmeter".to_owned());
        };
        let wait_ns = |thread: &PathThread| thread.cpu_ns.saturating_sub(thread.busy_ns) as f64;
        found.timer_ns.push(source.due_cpu_ns as f64 / blocks);
        found
            .sleep_ns
            .extend([stage, sink].map(|thread| wait_ns(thread) / blocks));
        found
            .wake_ns
            .push((stage.busy_ns as f64 / blocks - cost_ns).max(0.0));
    }
    Ok(found)
}

/// What each block costs two threads that hand over one buffer as fast as they can: each waits for each block.
struct HandOver {
    /// CPU time of a wait.
    sleep_ns: f64,
    /// CPU time of waking the other thread.
    wake_ns: f64,
    /// For how long a thread is off its CPU.
    off_ns: f64,
}

/// Hands blocks over, one at a time. The consumer's side counts: the source makes its bytes, which costs more than to read them.
fn handed_over(paths: &mut Paths<'_>, profile: &Profile, pins: &[u32]) -> Result<HandOver, String> {
    let is_apart = pins.len() > 1;
    let cost = profile
        .cost("read", 4096)
        .map_err(|error| error.to_string())?;
    let cost_ns = cost.cpu_ns + if is_apart { cost.apart_ns } else { 0.0 };
    let text = path_text(4096, 1, MEMORY, "", READ);
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..MIN_RUNS {
        let (_, run) = paths.run(&text, PROBE_S, None, pins)?;
        let sink = run
            .threads
            .last()
            .ok_or("a path without threads: a bug in daqmeter")?;
        let blocks = run.blocks as f64;
        let waits_ns = sink.cpu_ns.saturating_sub(sink.busy_ns) as f64;
        all[0].push(waits_ns / blocks);
        all[1].push((sink.busy_ns as f64 / blocks - cost_ns).max(0.0));
        all[2].push(run.wall_ns.saturating_sub(sink.cpu_ns) as f64 / blocks);
    }
    let [sleep_ns, wake_ns, off_ns] = all.map(|values| daqmeter_stats::median(&values));
    Ok(HandOver {
        sleep_ns,
        wake_ns,
        off_ns,
    })
}

/// What sleeping and waking costs: on one CPU while it is used all the time, with neighbours on two at rates and as fast as they go.
fn waits(
    paths: &mut Paths<'_>,
    profile: &Profile,
    one: &[u32],
    two: &[u32],
) -> Result<Sharing, String> {
    let work = format!("copy {}", CopyKernel::Memcpy.name());
    let cost = profile
        .cost(&work, 4096)
        .map_err(|error| error.to_string())?;
    let near = handed_over(paths, profile, one)?;
    let far = handed_over(paths, profile, two)?;
    let (mut timers, mut sleeps) = (Vec::new(), vec![far.sleep_ns]);
    let mut far_wakes = vec![FarWake {
        idle_ns: whole(far.off_ns),
        cpu_ns: whole(far.wake_ns),
    }];
    for hz in PROBE_HZ {
        let here = probed(paths, cost.cpu_ns, hz, one)?;
        let there = probed(paths, cost.cpu_ns + cost.apart_ns, hz, two)?;
        timers.extend([here.timer_ns, there.timer_ns].concat());
        sleeps.extend(there.sleep_ns);
        far_wakes.push(FarWake {
            idle_ns: whole(1e9 / hz),
            cpu_ns: whole(daqmeter_stats::median(&there.wake_ns)),
        });
    }
    far_wakes.sort_by_key(|far| far.idle_ns);
    far_wakes.dedup_by_key(|far| far.idle_ns);
    Ok(Sharing {
        sleep_cpu_ns: whole(near.sleep_ns),
        far_sleep_cpu_ns: whole(daqmeter_stats::median(&sleeps)),
        timer_cpu_ns: whole(daqmeter_stats::median(&timers)),
        near_wake_cpu_ns: whole(near.wake_ns),
        far_wakes,
        ..Sharing::default()
    })
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
    let work_ns: f64 = model
        .rows
        .iter()
        .map(|row| row.work_ns + row.apart_ns)
        .sum();
    let paid_ns = (model.timer_cpu_ns + model.far_sleep_cpu_ns) as f64;
    let value = |at: usize| {
        let share = (at as f64 + 0.5) / WAKE_VALUES as f64;
        let latency_ns = run.latency_ns(share).unwrap_or(0) as f64;
        whole((latency_ns - work_ns - paid_ns).max(0.0) / 2.0)
    };
    Ok((0..WAKE_VALUES).map(value).collect())
}

/// Of all that is tried the numbers with the smallest mean error.
fn best(fitted: &[Fitted], wake_ns: &[u64], usual: &Sharing) -> Sharing {
    let mut best: Option<(f64, Sharing)> = None;
    for (factor, stay_ns) in FACTORS
        .iter()
        .flat_map(|factor| STAYS_NS.map(|stay_ns| (*factor, stay_ns)))
    {
        let tried = Sharing {
            how: "sleep and near_wake_cpu_ns: a buffer handed over on one CPU as fast as it goes; far_sleep, timer and far_wakes: that on two CPUs, and paths at rates at which each block wakes all threads; wake_ns: latency of a path at 1 kHz less its work, halved, times a factor; factor and stay_ns: smallest mean error of rates and median latencies".to_owned(),
            wake_ns: wake_ns.iter().map(|ns| whole(*ns as f64 * factor)).collect(),
            stay_ns,
            points: fitted.len(),
            parameters: 2,
            ..usual.clone()
        };
        let off: Vec<f64> = fitted.iter().map(|point| point.off(&tried)).collect();
        let mean = off.iter().sum::<f64>() / off.len() as f64;
        if best.as_ref().is_none_or(|(smallest, _)| mean < *smallest) {
            let left = daqmeter_stats::median(&off);
            best = Some((mean, Sharing { left, ..tried }));
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
    // Of pinned and other paths enough, where the budget allows it; for an interval at all in any case.
    while checks.len() < 2 * MIN_CHECKS || (checks.len() < 2 * MAX_CHECKED && wants_more()) {
        let drawn = drawn_path(&mut random, &profile.host.allowed_cpus);
        checks.extend(check(paths, profile, &drawn)?.map(|compared| compared.check));
    }
    Ok(checks)
}

/// A path at one load: what was predicted, and what its runs gave.
pub struct Compared {
    /// The path at that load.
    pub shape: PathShape,
    /// Medians of the runs beside what was predicted.
    pub check: Check,
    /// Each run by itself.
    runs: Vec<Check>,
}

impl Compared {
    /// How far each run is from the median of the others.
    pub fn apart(&self, value: impl Fn(&Check) -> f64, distance: fn(f64, f64) -> f64) -> Vec<f64> {
        let of = |at: usize| {
            let others = self
                .runs
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at);
            let others: Vec<f64> = others.map(|(_, run)| value(run)).collect();
            distance(value(&self.runs[at]), daqmeter_stats::median(&others))
        };
        (0..self.runs.len()).map(of).collect()
    }
}

/// A path as fast as it goes, and at its share of that, several runs of each.
///
/// # Errors
/// When it cannot be run or predicted.
pub fn check(
    paths: &mut Paths<'_>,
    profile: &Profile,
    drawn: &DrawnPath,
) -> Result<[Compared; 2], String> {
    let free = compared(paths, profile, drawn, None)?;
    let streams = free.shape.rows[0].threads as f64;
    let rate_hz = free.check.rate.measured / streams * drawn.load;
    let paced = compared(paths, profile, drawn, Some(rate_hz))?;
    Ok([free, paced])
}

fn compared(
    paths: &mut Paths<'_>,
    profile: &Profile,
    drawn: &DrawnPath,
    rate_hz: Option<f64>,
) -> Result<Compared, String> {
    let (shape, first) = paths.run(&drawn.text, CHECK_S, rate_hz, &[])?;
    let simulated = simulate(&shape, profile, 1).map_err(|error| error.to_string())?;
    let Simulated { at_rate, .. } = simulated;
    let mut runs = vec![beside(&shape, &first, &at_rate)];
    for _ in 1..REPEATS {
        let (shape, run) = paths.run(&drawn.text, CHECK_S, rate_hz, &[])?;
        runs.push(beside(&shape, &run, &at_rate));
    }
    Ok(Compared {
        check: middle(&runs),
        shape,
        runs,
    })
}

/// The median of each figure over the runs.
fn middle(runs: &[Check]) -> Check {
    let median = |of: &dyn Fn(&Check) -> Pair| Pair {
        predicted: of(&runs[0]).predicted,
        measured: daqmeter_stats::median(
            &runs.iter().map(|run| of(run).measured).collect::<Vec<_>>(),
        ),
    };
    let each = |of: fn(&Check) -> &Vec<Pair>| {
        let count = runs.iter().map(|run| of(run).len()).min().unwrap_or(0);
        (0..count).map(|at| median(&|run| of(run)[at])).collect()
    };
    Check {
        rate: median(&|run| run.rate),
        p50_ns: median(&|run| run.p50_ns),
        p99_ns: median(&|run| run.p99_ns),
        cpu: each(|run| &run.cpu),
        depth: each(|run| &run.depth),
        ..runs[0].clone()
    }
}

/// Prediction and measurement of a run.
fn beside(shape: &PathShape, run: &PathRun, at_rate: &ThreadsOutcome) -> Check {
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
    Check {
        line: shape.line.clone(),
        threads: shape.threads(),
        block_bytes: shape.block_bytes,
        is_pinned: shape.rows.iter().any(|row| !row.cpus.is_empty()),
        rate_hz: shape.rate_hz,
        rate: pair(
            at_rate.rate_hz(),
            run.blocks as f64 / (run.wall_ns as f64 * 1e-9),
        ),
        p50_ns: latency(0.5),
        p99_ns: latency(0.99),
        cpu: cpu.collect(),
        depth: depth.collect(),
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "nanoseconds of a short run"
)]
fn whole(ns: f64) -> u64 {
    ns.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_cpus_cost_is_measured_for_large_blocks_and_goes_with_the_size_of_small_ones() {
        let costs = |all: &[(u64, f64)]| -> Costs {
            let point = |(bytes, ns): &(u64, f64)| (("read".to_owned(), *bytes), vec![*ns; 3]);
            all.iter().map(point).collect()
        };
        let together = costs(&[(4096, 600.0), (65_536, 4000.0), (1 << 20, 60_000.0)]);
        let apart = costs(&[(65_536, 8000.0), (1 << 20, 50_000.0)]);
        let works = works(&together, &apart);
        let found: Vec<(f64, f64)> = works[0]
            .points
            .iter()
            .map(|point| (point.cpu_ns, point.apart_ns))
            .collect();
        // Never negative: it was noise.
        assert_eq!(found, [(600.0, 250.0), (4000.0, 4000.0), (60_000.0, 0.0)]);
    }

    #[test]
    fn the_median_of_the_runs_counts_and_each_is_held_to_the_others() {
        let check = |measured: f64| {
            let pair = Pair {
                predicted: 10.0,
                measured,
            };
            Check {
                rate: pair,
                cpu: vec![pair],
                ..Check::default()
            }
        };
        let runs: Vec<Check> = [8.0, 30.0, 11.0].map(check).into();
        let found = middle(&runs);
        assert_eq!((found.rate.measured, found.cpu[0].measured), (11.0, 11.0));
        let compared = Compared {
            shape: PathShape::default(),
            check: found,
            runs,
        };
        let apart = compared.apart(|run| run.rate.measured, |one, other| (one - other).abs());
        assert_eq!(apart, [12.5, 20.5, 8.0]);
    }

    #[test]
    fn threads_are_pinned_in_turn_from_source_to_sink() {
        let row = |threads| daqmeter_record::shape::ShapeRow {
            threads,
            ..Default::default()
        };
        let mut shape = PathShape {
            rows: vec![row(1), row(2), row(1)],
            ..PathShape::default()
        };
        pin(&mut shape, &[4, 7]);
        let cpus: Vec<&[u32]> = shape.rows.iter().map(|row| &row.cpus[..]).collect();
        assert_eq!(cpus, [&[4][..], &[7, 4], &[7]]);
    }
}
