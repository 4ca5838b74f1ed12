//! Layouts of paths: `cargo bench -p daqmeter-campaign --bench layouts [-- PART]`. Without a part all
//! of them; they judge nothing.
//!
//! - shipped: each shipped path as a pipeline, on one CPU, as whole pipelines side by side, one on
//!   each CPU, and in the layout that `auto` takes, in turns;
//! - auto: random paths, pinned or free, in all their layouts. The fastest ones are run again in turns
//!   with what `auto` takes;
//! - named: pipelines whose hand-overs or CPUs are the limit: tiny blocks, neighbours on different
//!   CPUs, a CPU that something else uses, too; and some whose limit is a part;
//! - cost: a path in one thread beside the same loop by hand;
//! - scaling: workers that do everything, one to as many as there are CPUs.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]

use std::fs;
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use daqmeter_harness::{Context, CpuList, Request, Settings, StepPlan, StopFlag, measure};
use daqmeter_path::explain::{PathLoad, Seen, explain};
use daqmeter_path::{Path, PathRequest, sum};
use daqmeter_record::RunRecord;
use daqmeter_record::path::{LimitFound, PathRun, What};
use daqmeter_stats::{LogHistogram, Random, trimmed_interval};
use daqmeter_sys::affinity::{pin_to, process_cpus};
use daqmeter_sys::clock::monotonic_ns;

fn median(values: &[f64]) -> f64 {
    daqmeter_stats::median(values).unwrap()
}

const SHIPPED: [&str; 6] =
    ["pattern", "copy-to-user", "file-replay", "felix-card", "digitizer-crate", "register-control"];
const SHIPPED_S: f64 = 0.5;
const SHIPPED_ROUNDS: usize = 9;
const RANDOM_PATHS: usize = 40;
const RANDOM_S: f64 = 0.03;
const RANDOM_ROUNDS: usize = 9;
/// Runs of each layout, and the number of the fastest that are compared in turns.
const SCREENED: usize = 2;
const JUDGED: usize = 3;
const NAMED: usize = 40;
/// Part of the best rate that counts as the best.
const NEAR: f64 = 0.97;

fn record(request: &PathRequest) -> RunRecord {
    let settings = Settings::new(StepPlan::ByStage(1), "bench");
    let job = request.job().unwrap_or_else(|fault| panic!("{fault}: {request:?}"));
    let record = measure(&job, &settings, &Context::default(), &[], &mut []).unwrap();
    assert!(record.outcome.is_ok(), "{:?} {request:?}", record.outcome);
    record
}

fn run(request: &PathRequest) -> PathRun {
    *record(request).sections.path.unwrap()
}

fn mb_per_s(request: &PathRequest) -> f64 {
    let run = run(request);
    run.payload_bytes as f64 / run.wall_ns as f64 * 1e3
}

fn with(request: &PathRequest, layout: &str, cpus: &[u32]) -> PathRequest {
    let layout = Some(layout.parse().unwrap());
    PathRequest { layout, cpus: CpuList(cpus.to_vec()), ..request.clone() }
}

fn shown(request: &PathRequest) -> String {
    request.layout.as_ref().map_or_else(String::new, ToString::to_string)
}

fn ratio(pairs: &[(f64, f64)]) -> String {
    let ratios: Vec<f64> = pairs.iter().map(|(a, b)| a / b).collect();
    let (mean, low, high) = trimmed_interval(&ratios, 0.95).unwrap();
    format!("{mean:.3} ({low:.3} to {high:.3})")
}

fn shipped() {
    let cpus = process_cpus();
    println!("MB/s, medians of {SHIPPED_ROUNDS} rounds of {SHIPPED_S} s");
    for name in SHIPPED {
        let path = Path::load(name).unwrap();
        let request = PathRequest::new(&path, SHIPPED_S);
        let side_by_side = || -> f64 {
            std::thread::scope(|scope| {
                let one = |cpu: &u32| {
                    let request = with(&request, "pipeline", &[*cpu]);
                    scope.spawn(move || mb_per_s(&request))
                };
                let all: Vec<_> = cpus.iter().map(one).collect();
                all.into_iter().map(|one| one.join().unwrap()).sum()
            })
        };
        let (mut rates, mut layouts) = ([const { Vec::new() }; 4], Vec::new());
        for _ in 0..SHIPPED_ROUNDS {
            rates[0].push(mb_per_s(&with(&request, "pipeline", &[])));
            rates[1].push(mb_per_s(&with(&request, "pipeline", &cpus[..1])));
            rates[2].push(side_by_side());
            let auto = run(&request);
            rates[3].push(auto.payload_bytes as f64 / auto.wall_ns as f64 * 1e3);
            layouts.push(auto.layout);
        }
        layouts.sort();
        layouts.dedup();
        let [free, one, side, auto] = [0, 1, 2, 3].map(|at| median(&rates[at]));
        let pairs: Vec<_> = rates[3].iter().copied().zip(rates[2].iter().copied()).collect();
        println!(
            "{name}: pipeline {free:.1}, on one CPU {one:.1}, side by side {side:.1}, auto {auto:.1}: {} of side by side; {}",
            ratio(&pairs),
            layouts.join(" or ")
        );
    }
}

/// A random path of 2 to 5 parts.
fn drawn(folder: &FilePath, random: &mut Random) -> Path {
    let mut below = |bound: usize| (random.uniform() * bound as f64) as usize;
    let block = [1, 4, 16, 64, 256][below(5)];
    let kinds = [
        "kind = \"copy\"",
        "kind = \"checksum\"",
        "kind = \"unix\"",
        "kind = \"tcp\"",
        "kind = \"work\"\ntime = \"20us\"",
    ];
    let stages = (0..below(4)).map(|_| format!("[[stage]]\n{}\n", kinds[below(kinds.len())]));
    let stages: String = stages.collect();
    let text = format!(
        "title = \"drawn\"\nblock = \"{block}KiB\"\n[source]\nkind = \"memory\"\n{stages}[sink]\nkind = \"read\"\n"
    );
    loaded(folder, &text)
}

fn loaded(folder: &FilePath, text: &str) -> Path {
    let file = folder.join("path.toml");
    fs::write(&file, text).unwrap();
    Path::load(file.to_str().unwrap()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// All layouts of parts with these names, with up to `most` threads in a group.
fn layouts(names: &[String], most: usize) -> Vec<String> {
    let Some((first, rest)) = names.split_first() else { return vec![String::new()] };
    let mut all = Vec::new();
    for own in 0..=rest.len() {
        let group = [std::slice::from_ref(first), &rest[..own]].concat().join(", ");
        for behind in layouts(&rest[own..], most) {
            all.extend((1..=most).map(|workers| format!("[{group}] x {workers} {behind}")));
        }
    }
    all
}

/// Requests for a path in every layout that it can have.
fn every_layout(path: &Path, request: &PathRequest) -> Vec<PathRequest> {
    let names: Vec<String> = path.parts().into_iter().map(|part| part.name).collect();
    let cpus = process_cpus();
    let mut all: Vec<PathRequest> = layouts(&names, cpus.len())
        .into_iter()
        .filter(|layout| layout.matches('[').count() > 1)
        .chain((1..=cpus.len()).map(|workers| format!("fused x {workers}")))
        .map(|layout| with(request, layout.trim(), &request.cpus.0))
        .filter(|request| request.job().is_ok_and(|job| job.open().is_ok()))
        .collect();
    if request.cpus.0.is_empty() {
        all.push(with(request, &format!("fused x {}", cpus.len()), cpus));
    }
    all
}

fn auto(folder: &FilePath) {
    let mut random = Random::new(33);
    let (mut near, mut took_ms) = (0, Vec::new());
    for at in 0..RANDOM_PATHS {
        let path = drawn(folder, &mut random);
        let cpus = if at % 2 == 0 { Vec::new() } else { process_cpus().to_vec() };
        let request = PathRequest { cpus: CpuList(cpus), ..PathRequest::new(&path, RANDOM_S) };
        let begin = Instant::now();
        let (chosen, _) = request.fastest(&StopFlag::default()).unwrap().unwrap();
        took_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        let is_other =
            |one: &PathRequest| (&one.layout, &one.cpus) != (&chosen.layout, &chosen.cpus);
        let others = every_layout(&path, &request).into_iter().filter(is_other);
        let mut others: Vec<(f64, PathRequest)> =
            others.map(|one| (median(&[(); SCREENED].map(|()| mb_per_s(&one))), one)).collect();
        others.sort_by(|a, b| b.0.total_cmp(&a.0));
        // The best of them are run again in turns with the choice, which judges.
        let shares = others.iter().take(JUDGED).map(|(_, one)| {
            let pair = |_| mb_per_s(&chosen) / mb_per_s(one);
            (median(&(0..RANDOM_ROUNDS).map(pair).collect::<Vec<_>>()), shown(one))
        });
        let (share, best) = shares.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        near += usize::from(share >= NEAR);
        println!(
            "{at}: {}: auto took {} in {:.0} ms; {share:.3} of {best}, the best of {} others",
            path.line(),
            shown(&chosen),
            took_ms[at],
            others.len()
        );
    }
    let slowest = took_ms.iter().copied().fold(0.0, f64::max);
    println!(
        "{near} of {RANDOM_PATHS} within 3 % of the best of all layouts; choosing took {:.0} ms, at most {slowest:.0} ms",
        median(&took_ms)
    );
}

/// A pipeline with a limit that was put there.
struct Limited {
    block_bytes: usize,
    stage: &'static str,
    cpus: Vec<u32>,
    has_neighbour: bool,
    limit: What,
}

fn limited(at: usize, random: &mut Random) -> Limited {
    let mut below = |bound: usize| (random.uniform() * bound as f64) as usize;
    let tiny = Limited {
        block_bytes: [256, 512, 1024][below(3)],
        stage: "kind = \"copy\"",
        cpus: Vec::new(),
        has_neighbour: false,
        limit: What::HandOver,
    };
    let cpus = process_cpus().to_vec();
    match at % 4 {
        0 => tiny,
        1 => Limited { block_bytes: [4096, 8192, 16_384][below(3)], cpus, ..tiny },
        2 => Limited {
            block_bytes: 4096,
            stage: "kind = \"work\"\ntime = \"300us\"",
            cpus,
            has_neighbour: true,
            limit: What::Placement,
        },
        _ => Limited {
            block_bytes: 65_536,
            stage: "kind = \"work\"\ntime = \"300us\"",
            limit: What::Threads { element: 1, name: "work".to_owned() },
            ..tiny
        },
    }
}

/// Keeps the last CPU busy for the time of `work`, if there is a neighbour.
fn beside_a_neighbour<T>(has_neighbour: bool, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(!has_neighbour);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(*process_cpus().last().unwrap()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

fn named(folder: &FilePath) {
    let mut random = Random::new(34);
    let (mut right, mut unsure) = (0, 0);
    for at in 0..NAMED {
        let Limited { block_bytes, stage, cpus, has_neighbour, limit } = limited(at, &mut random);
        let text = format!(
            "title = \"limited\"\nblock = \"{block_bytes}\"\n[source]\nkind = \"memory\"\n[[stage]]\n{stage}\n[sink]\nkind = \"read\"\n"
        );
        let path = loaded(folder, &text);
        let free = PathRequest { unpaced: true, ..PathRequest::new(&path, RANDOM_S) };
        let request = with(&free, "pipeline", &cpus);
        let explained = beside_a_neighbour(has_neighbour, || {
            let other = free.fastest(&StopFlag::default()).unwrap().unwrap().0;
            let ran = |load: PathLoad| -> Result<Seen, ()> {
                let request = load.of(request.clone(), &path, Some(&other));
                Ok(Seen::of(&record(&request)).unwrap())
            };
            explain(ran, &path.parts(), Some(""), |round| round < 12).unwrap()
        });
        right += usize::from(explained.limit.found == LimitFound::Limit(limit.clone()));
        unsure += usize::from(explained.limit.found == LimitFound::CannotTell);
        let gain = explained.limit.other.as_ref().map_or(f64::NAN, |other| other.gain.mean);
        println!(
            "{at}: {}: {} put there, named {:?}; the other layout is {gain:.2} times as fast",
            path.line(),
            limit.text(),
            explained.limit.found
        );
    }
    println!("{right} of {NAMED} named, {unsure} cannot tell, {} wrong", NAMED - right - unsure);
}

/// Nanoseconds per block of a loop that copies, sums, and keeps the latencies.
fn by_hand(block_bytes: usize, pattern: &[u8]) -> f64 {
    let (mut block, mut blocks) = (vec![0; block_bytes], 0_u64);
    let mut latency_ns = LogHistogram::default();
    let begin_ns = monotonic_ns();
    for from in pattern.chunks_exact(block_bytes).cycle() {
        let due_ns = monotonic_ns();
        if due_ns - begin_ns > 100_000_000 {
            break;
        }
        block.copy_from_slice(from);
        std::hint::black_box(sum(&block));
        latency_ns.add(monotonic_ns() - due_ns);
        blocks += 1;
    }
    (monotonic_ns() - begin_ns) as f64 / blocks as f64
}

fn cost(folder: &FilePath) {
    let pattern: Vec<u8> = (0..16_u32 << 20).map(|at| at.to_le_bytes()[0]).collect();
    let cpu = process_cpus()[0];
    for block_bytes in [1024, 4096, 16_384, 65_536, 1 << 20] {
        let text = format!(
            "title = \"cost\"\nblock = \"{block_bytes}\"\n[source]\nkind = \"memory\"\n[sink]\nkind = \"read\"\n"
        );
        let path = loaded(folder, &text);
        let request = with(&PathRequest::new(&path, 0.1), "fused", &[cpu]);
        let on_cpu = || {
            pin_to(cpu).unwrap();
            by_hand(block_bytes, &pattern)
        };
        let pair = |_| {
            let run = run(&request);
            let hand = std::thread::scope(|scope| scope.spawn(on_cpu).join().unwrap());
            (run.wall_ns as f64 / run.blocks as f64, hand)
        };
        let pairs: Vec<(f64, f64)> = (0..30).map(pair).collect();
        let (own, hand): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let (own, hand) = (median(&own), median(&hand));
        println!(
            "blocks of {block_bytes} B: {own:.1} ns as a path, {hand:.1} ns by hand: {}",
            ratio(&pairs)
        );
    }
}

fn scaling() {
    for name in SHIPPED {
        let path = Path::load(name).unwrap();
        let request = PathRequest::new(&path, SHIPPED_S);
        let cpus = process_cpus();
        let most = cpus.len().min(if name == "digitizer-crate" { path.streams() } else { 64 });
        let rate = |workers: usize| {
            let request = with(&request, &format!("fused x {workers}"), &cpus[..workers]);
            let rates: Vec<f64> = (0..SHIPPED_ROUNDS).map(|_| mb_per_s(&request)).collect();
            median(&rates)
        };
        let rates: Vec<f64> = (1..=most).map(rate).collect();
        let shown = rates.iter().zip(1..).map(|(rate, workers)| {
            format!("{rate:.0} ({:.2} for each CPU)", rate / rates[0] / f64::from(workers))
        });
        println!("{name}: {} MB/s", shown.collect::<Vec<_>>().join(", "));
    }
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|text| text != "--bench").collect();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let parts: [(&str, &dyn Fn()); 5] = [
        ("shipped", &shipped),
        ("auto", &|| auto(folder)),
        ("named", &|| named(folder)),
        ("cost", &|| cost(folder)),
        ("scaling", &scaling),
    ];
    for (name, part) in parts {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            println!("== {name}");
            part();
        }
    }
}
