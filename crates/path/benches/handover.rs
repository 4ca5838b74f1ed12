//! Cost of a path over a chain that is written by hand: `cargo bench -p daqmeter-path --bench
//! handover [-- SECONDS]`, each side for SECONDS [20] at each size.
//!
//! - Blocks: `memory -> read` beside two threads that do the same work over `sync_channel`.
//! - A card read out live: `felix-readout` beside the read-out's own chain of two threads, at more
//!   triggers than it carries. Also CPU time at a rate that it does carry.
//!
//! The sides run in turns; the order of each pair changes. Prints medians and the ratio with its 95
//! % interval over the pairs; judges nothing, because shared machines are noisy. Target: 1.05 or
//! less.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_path::{Path, PathRequest, sum};
use daqmeter_readout::Scenario;
use daqmeter_readout::scenario::Hertz;
use daqmeter_record::RunRecord;
use daqmeter_stats::{quantile, sorted, trimmed_interval};

#[path = "../../readout/tests/readout/by_hand.rs"]
#[allow(dead_code, reason = "tests look at more of it")]
mod by_hand;

const BUFFERS: usize = 8;
const SPAN: usize = 16 << 20;
const ROUNDS: usize = 40;
/// More triggers than one reader carries: BUSY stops the rest.
const TOO_MANY_HZ: f64 = 10e6;
const CARRIED_HZ: f64 = 500e3;

/// Nanoseconds per block by hand: one thread copies blocks from a pattern, the other sums them.
fn by_hand(block_bytes: usize, time: Duration) -> f64 {
    let pattern: Vec<u8> = (0..SPAN).map(|at| at.to_le_bytes()[0]).collect();
    let (full_in, full) = sync_channel::<Vec<u8>>(BUFFERS);
    let (empty_in, empty) = sync_channel(BUFFERS);
    (0..BUFFERS).for_each(|_| empty_in.send(vec![0; block_bytes]).unwrap());
    let begin = Instant::now();
    let producer = std::thread::spawn(move || {
        for block in pattern.chunks_exact(block_bytes).cycle() {
            let Ok(mut out) = empty.recv() else { return };
            out.copy_from_slice(block);
            if begin.elapsed() > time || full_in.send(out).is_err() {
                return;
            }
        }
    });
    let mut blocks = 0_u64;
    while let Ok(block) = full.recv() {
        std::hint::black_box(sum(&block));
        blocks += 1;
        // The producer may have ended.
        let _ = empty_in.send(block);
    }
    let elapsed = begin.elapsed();
    producer.join().unwrap();
    elapsed.as_nanos() as f64 / blocks as f64
}

fn record(request: &PathRequest) -> RunRecord {
    let settings = Settings::new(StepPlan::ByStage(1), "bench");
    let context = Context::default();
    let record = measure(&request.job().unwrap(), &settings, &context, &[], &mut []).unwrap();
    assert!(record.outcome.is_ok(), "{:?}", record.outcome);
    record
}

fn as_path(file: &str, time: Duration) -> f64 {
    let path = Path::load(file).unwrap();
    let run = record(&PathRequest::new(&path, time.as_secs_f64())).path.unwrap();
    run.wall_ns as f64 / run.blocks as f64
}

#[derive(Clone, Copy)]
struct PerChunk {
    /// Time of the card over the chunks that came to the receiver.
    wall_ns: f64,
    cpu_ns: f64,
}

impl PerChunk {
    /// Costs of chunks in that time, during which both threads together used this many CPUs.
    fn of(card_ns: f64, chunks: u64, cpus: f64) -> PerChunk {
        let wall_ns = card_ns / chunks as f64;
        PerChunk { wall_ns, cpu_ns: wall_ns * cpus }
    }
}

fn chain_by_hand(hz: f64, time: Duration) -> PerChunk {
    let mut scenario = Scenario::load("gbt").unwrap();
    scenario.trigger.rate = Hertz(hz);
    let (placement, stop) = (by_hand::Placement::default(), AtomicBool::new(false));
    let done = by_hand::run(&scenario, &placement, time, None, &stop).unwrap();
    assert!(done.closes());
    let chunks: u64 = done.receivers.iter().map(|one| one.chunks()).sum();
    let cpus = done.readers[0].cpu + done.receivers[0].cpu;
    PerChunk::of(done.readers[0].card_ns as f64, chunks, cpus)
}

fn chain_as_path(hz: f64, time: Duration) -> PerChunk {
    let path = Path::load("felix-readout").unwrap();
    let record =
        record(&PathRequest { rate_hz: Some(hz), ..PathRequest::new(&path, time.as_secs_f64()) });
    let counter = |name| record.counter(name).unwrap();
    let card_ns = counter("triggers") / counter("trigger-rate") * 1e9;
    let cpus = counter("reader-cpu-ppm") * 1e-6 + counter("receiver-cpu");
    PerChunk::of(card_ns, record.path.as_deref().unwrap().events, cpus)
}

fn in_turns<T>(mut hand: impl FnMut() -> T, mut path: impl FnMut() -> T) -> Vec<(T, T)> {
    let pair = |round: usize| match round % 2 {
        0 => {
            let first = hand();
            (first, path())
        }
        _ => {
            let first = path();
            (hand(), first)
        }
    };
    (0..ROUNDS).map(pair).collect()
}

fn show(what: &str, unit: &str, pairs: &[(f64, f64)]) {
    let median = |values: Vec<f64>| quantile(&sorted(&values), 0.5);
    let (hand, path): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let ratios: Vec<f64> = pairs.iter().map(|(hand, path)| path / hand).collect();
    let (mean, low, high) = trimmed_interval(&ratios, 0.95).unwrap();
    println!(
        "{what}: by hand {:.1} ns per {unit}, as a path {:.1} ns, ratio {mean:.3} ({low:.3} to {high:.3})",
        median(hand),
        median(path)
    );
}

fn blocks(time: Duration) {
    let folder = tempfile::tempdir().unwrap();
    for block_bytes in [1024, 4096, 16_384, 65_536, 1 << 20] {
        let file = folder.path().join("path.toml");
        let text = format!(
            "title = \"bench\"\nblock = \"{block_bytes}\"\nbuffers = {BUFFERS}\nlayout = \"pipeline\"\n[source]\nkind = \"memory\"\nspan = \"16MiB\"\n[sink]\nkind = \"read\"\n"
        );
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let pairs = in_turns(|| by_hand(block_bytes, time), || as_path(file, time));
        show(&format!("blocks of {block_bytes} B"), "block", &pairs);
    }
}

fn chunks(time: Duration) {
    let pairs = in_turns(
        || chain_by_hand(TOO_MANY_HZ, time).wall_ns,
        || chain_as_path(TOO_MANY_HZ, time).wall_ns,
    );
    show("felix-readout, as fast as it goes", "chunk", &pairs);
    let pairs = in_turns(
        || chain_by_hand(CARRIED_HZ, time).cpu_ns,
        || chain_as_path(CARRIED_HZ, time).cpu_ns,
    );
    show("felix-readout at 500 kHz, CPU time", "chunk", &pairs);
}

fn main() {
    let seconds = std::env::args().skip(1).find_map(|text| text.parse::<f64>().ok());
    let time = Duration::from_secs_f64(seconds.unwrap_or(20.0) / ROUNDS as f64);
    chunks(time);
    blocks(time);
}
