//! What sleeping, waking up and sharing CPUs costs.

use daqmeter_kernels::copy::CopyKernel;
use daqmeter_record::path::{PathRun, PathThread};
use daqmeter_record::shape::PathShape;
use daqmeter_stats::simulated::Random;
use daqmeter_twin::{FarWake, MIN_RUNS, Profile, Sharing, Threads, model, run_threads};

use super::costs::{COST_S, HandOver, HandOvers, MEMORY, READ, SEVERAL, path_text, placements};
use super::paths::Paths;
use super::whole;
use crate::drawn::drawn_path;

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
/// Seed of these paths.
const SEED: u64 = 20;
/// Linux gives two CPUs slices of 2.8 ms at 1000 Hz: `sched_base_slice_ns` times (1 + log2 of the CPUs), in whole ticks.
const SLICE_NS: u64 = 3_000_000;
/// Values that stand for the distribution of the time of a wake-up.
const WAKE_VALUES: usize = 100;
/// What is tried for the two numbers that are fitted: factor of the time of a wake-up, and how long a thread stays with its CPU.
const FACTORS: [f64; 6] = [0.2, 0.35, 0.5, 0.75, 1.0, 1.4];
const STAYS_NS: [u64; 7] = [0, 50_000, 100_000, 200_000, 400_000, 1_000_000, 4_000_000];
/// Blocks of a simulation while it is fitted.
const FIT_BLOCKS: u64 = 800;

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
            model: Threads { blocks: FIT_BLOCKS, warm_up: FIT_BLOCKS / 8, ..model },
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
                keeps_cpu: sharing.keeps_cpu,
                ..self.model.clone()
            },
            1,
        );
        let block_ns = 1e9 / outcome.rate_hz();
        let rate = self.block_ns.map(|measured| (measured / block_ns).ln());
        let p50_ns = outcome.latency_ns.quantile(0.5).max(1) as f64;
        let p50 = self.p50_ns.map(|measured| (measured.max(1.0) / p50_ns).ln());
        rate.or(p50).unwrap_or(0.0).abs()
    }
}

pub(super) fn sharing(
    paths: &mut Paths<'_>,
    profile: &Profile,
    hands: &HandOvers,
) -> Result<Sharing, String> {
    let cpus = profile.host.allowed_cpus.clone();
    let (one, two) = placements(&cpus, 0);
    let far = two.unwrap_or_else(|| one.clone());
    let usual = Sharing {
        slice_ns: SLICE_NS,
        wake_ns: vec![0],
        ..waits(paths, profile, hands, &one, &far)?
    };
    let profile = Profile { sharing: usual.clone(), ..profile.clone() };
    let idle = path_text(4096, 8, MEMORY, "", READ);
    let (shape, run) = paths.run(&idle, IDLE_S, Some(1000.0), &far)?;
    let wake_ns = wakes(&shape, &run, &profile)?;
    let mut fitted = Vec::new();
    for (text, rate_hz) in short_paths() {
        let (shape, run) = paths.run(&text, COST_S * 2.0, rate_hz, &[])?;
        fitted.push(Fitted::of(&shape, &run, &profile)?);
    }
    let mut random = Random::new(SEED);
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
    let mut found = Probed { timer_ns: Vec::new(), sleep_ns: Vec::new(), wake_ns: Vec::new() };
    for _ in 0..MIN_RUNS {
        let (_, run) = paths.run(&text, PROBE_S, Some(hz), pins)?;
        let blocks = run.blocks as f64;
        let [source, stage, sink] = &run.threads[..] else {
            return Err("a path of three threads has others: a bug in daqmeter".to_owned());
        };
        let wait_ns = |thread: &PathThread| thread.cpu_ns.saturating_sub(thread.busy_ns) as f64;
        found.timer_ns.push(source.due_cpu_ns as f64 / blocks);
        found.sleep_ns.extend([stage, sink].map(|thread| wait_ns(thread) / blocks));
        found.wake_ns.push((stage.busy_ns as f64 / blocks - cost_ns).max(0.0));
    }
    Ok(found)
}

/// Hands blocks over, on one CPU and on two where there are two.
pub(super) fn hand_overs(paths: &mut Paths<'_>, cpus: &[u32]) -> Result<HandOvers, String> {
    let (one, two) = placements(cpus, 0);
    let several = handed_over(paths, SEVERAL, &one)?;
    let near = handed_over(paths, 1, &one)?;
    // On one CPU a thread works until all buffers went round, and wakes the other once for these.
    let share = 1.0 / SEVERAL as f64;
    let wake_ns = (near.busy_ns - several.busy_ns).max(0.0) / (1.0 - share);
    let work_ns = several.busy_ns - share * wake_ns;
    let far = match &two {
        Some(two) => handed_over(paths, 1, two)?,
        None => near,
    };
    Ok(HandOvers {
        near: near.with_wake(wake_ns),
        several: Handed { sleep_ns: several.sleep_ns * SEVERAL as f64, ..several }
            .with_wake(wake_ns),
        far: far.with_wake((far.busy_ns - work_ns).max(0.0)),
    })
}

/// What a block costs the consumer of a path of two threads.
#[derive(Clone, Copy, Debug)]
struct Handed {
    busy_ns: f64,
    sleep_ns: f64,
    off_ns: f64,
}

impl Handed {
    fn with_wake(self, wake_ns: f64) -> HandOver {
        HandOver { sleep_ns: self.sleep_ns, wake_ns, off_ns: self.off_ns }
    }
}

/// Hands blocks over. The consumer's side counts: the source makes its bytes, which costs more than to read them.
fn handed_over(paths: &mut Paths<'_>, buffers: usize, pins: &[u32]) -> Result<Handed, String> {
    let text = path_text(4096, buffers, MEMORY, "", READ);
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..MIN_RUNS {
        let (_, run) = paths.run(&text, PROBE_S, None, pins)?;
        let sink = run.threads.last().ok_or("a path without threads: a bug in daqmeter")?;
        let blocks = run.blocks as f64;
        let waits_ns = sink.cpu_ns.saturating_sub(sink.busy_ns) as f64;
        all[0].push(sink.busy_ns as f64 / blocks);
        all[1].push(waits_ns / blocks);
        all[2].push(run.wall_ns.saturating_sub(sink.cpu_ns) as f64 / blocks);
    }
    let [busy_ns, sleep_ns, off_ns] = all.map(|values| daqmeter_stats::median(&values));
    Ok(Handed { busy_ns, sleep_ns, off_ns })
}

/// What sleeping and waking costs: on one CPU while it is used all the time, with neighbours on two at rates and as fast as they go.
fn waits(
    paths: &mut Paths<'_>,
    profile: &Profile,
    HandOvers { near, several, far }: &HandOvers,
    one: &[u32],
    two: &[u32],
) -> Result<Sharing, String> {
    let work = format!("copy {}", CopyKernel::Memcpy.name());
    let cost = profile.cost(&work, 4096).map_err(|error| error.to_string())?;
    let (mut timers, mut sleeps) = (Vec::new(), vec![far.sleep_ns]);
    let mut far_wakes = vec![FarWake { idle_ns: whole(far.off_ns), cpu_ns: whole(far.wake_ns) }];
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
        several_sleep_cpu_ns: whole(several.sleep_ns),
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
    let work_ns: f64 = model.rows.iter().map(|row| row.work_ns + row.apart_ns).sum();
    let paid_ns = (model.timer_cpu_ns + model.far_sleep_cpu_ns) as f64;
    let value = |at: usize| {
        let share = (at as f64 + 0.5) / WAKE_VALUES as f64;
        let latency_ns = run.latency_ns(share).unwrap_or(0) as f64;
        whole((latency_ns - work_ns - paid_ns).max(0.0) / 2.0)
    };
    Ok((0..WAKE_VALUES).map(value).collect())
}

const HOW: &str = "sleep and near_wake_cpu_ns: a buffer handed over on one CPU as fast as it goes; several_sleep: the same with eight buffers; far_sleep, timer and far_wakes: that on two CPUs, and paths at rates at which each block wakes all threads; wake_ns: latency of a path at 1 kHz less its work, halved, times a factor; factor, stay_ns and keeps_cpu: smallest mean error of rates and median latencies";

/// Of all that is tried the numbers with the smallest mean error.
fn best(fitted: &[Fitted], wake_ns: &[u64], usual: &Sharing) -> Sharing {
    let mut best: Option<(f64, Sharing)> = None;
    let combinations = FACTORS.iter().flat_map(|factor| {
        let stays = STAYS_NS.iter().map(move |stay_ns| (*factor, *stay_ns));
        stays.flat_map(|(factor, stay_ns)| [false, true].map(|keeps| (factor, stay_ns, keeps)))
    });
    for (factor, stay_ns, keeps_cpu) in combinations {
        let tried = Sharing {
            how: HOW.to_owned(),
            wake_ns: wake_ns.iter().map(|ns| whole(*ns as f64 * factor)).collect(),
            stay_ns,
            keeps_cpu,
            points: fitted.len(),
            parameters: 3,
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
