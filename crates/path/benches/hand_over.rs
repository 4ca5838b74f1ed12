//! What a hand-over costs: `cargo bench -p daqmeter-path [-- SECONDS]`. The shipped path `pattern` without its copy (memory -> read),
//! beside the same work written by hand over `sync_channel`, sampled in turn [2 s each]. Prints medians and the ratio; judges nothing,
//! because shared machines are noisy. Target: 1.05 or less per block.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_path::{Path, PathEngine, PathRequest, sum};

const BUFFERS: usize = 8;
const SPAN: usize = 16 << 20;
const ROUNDS: usize = 5;

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

/// The same as a path.
fn as_path(file: &str, time: Duration) -> f64 {
    let path = Path::load(file).unwrap();
    let request = PathRequest::new(&path, time.as_secs_f64());
    let settings = Settings::new(StepPlan::ByStage(1), "bench");
    let (engine, context) = (PathEngine::default(), Context::default());
    let record = measure(
        &engine,
        &request.workload(),
        &settings,
        &context,
        &[],
        &mut [],
    )
    .unwrap();
    assert!(record.outcome.is_ok(), "{:?}", record.outcome);
    let run = record.path.unwrap();
    run.wall_ns as f64 / run.blocks as f64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() {
    let seconds = std::env::args()
        .skip(1)
        .find_map(|text| text.parse::<f64>().ok());
    let time = Duration::from_secs_f64(seconds.unwrap_or(2.0) / ROUNDS as f64);
    let folder = tempfile::tempdir().unwrap();
    for block_bytes in [4096, 16_384, 65_536, 1 << 20] {
        let file = folder.path().join("path.toml");
        let text = format!(
            "title = \"bench\"\nblock = \"{block_bytes}\"\nbuffers = {BUFFERS}\n[source]\nkind = \"memory\"\nspan = \"16MiB\"\n[sink]\nkind = \"read\"\n"
        );
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let (hand, path): (Vec<f64>, Vec<f64>) = (0..ROUNDS)
            .map(|_| (by_hand(block_bytes, time), as_path(file, time)))
            .unzip();
        let (hand, path) = (median(hand), median(path));
        println!(
            "{block_bytes} B: by hand {hand:.0} ns per block, as a path {path:.0} ns, ratio {:.3}",
            path / hand
        );
    }
}
