//! The speed targets of read-out as ratios in one run: `cargo bench -p daqmeter-digitizer`.
//! Conversion alone is benched in `daqmeter-kernels`.
//!
//! Samples both sides in turn, on one thread pinned to the last CPU allowed, so that noise of the
//! host affects both. Prints medians without a verdict, because shared machines are noisy.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host lacks memory"
)]

use std::hint::black_box;

use daqmeter_digitizer::DigitizerRequest;
use daqmeter_harness::{NullRequest, Request, Session, variants};
use daqmeter_kernels::Isa;
use daqmeter_record::Workload;
use daqmeter_stats::trimmed_interval;
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::{affinity, clock};

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn seconds(work: &mut dyn FnMut()) -> f64 {
    let begin = clock::monotonic_ns();
    work();
    (clock::monotonic_ns() - begin) as f64 * 1e-9
}

fn pair(rounds: usize, a: &mut dyn FnMut(), b: &mut dyn FnMut()) -> (f64, f64) {
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    a();
    b();
    for _ in 0..rounds {
        of_a.push(seconds(a));
        of_b.push(seconds(b));
    }
    (median(of_a), median(of_b))
}

fn line(what: &str, ratio: f64, target: f64, detail: &str) {
    let verdict = if ratio >= target { "met" } else { "MISSED" };
    println!("{what:<44} {ratio:>6.2}  target {target:>5.2}  {verdict:<7} {detail}");
}

struct Memory {
    raw: Buffer,
    out: Buffer,
}

impl Memory {
    fn new(bytes: usize) -> Memory {
        let mut raw = Buffer::new(bytes, Pages::Transparent).unwrap();
        for (at, byte) in raw.slice_mut::<u8>(bytes).iter_mut().enumerate() {
            *byte = u8::try_from((at.wrapping_mul(40_503) >> 3) & 0xFF).unwrap();
        }
        Memory { raw, out: Buffer::new(bytes, Pages::Transparent).unwrap() }
    }

    fn copy(&mut self, bytes: usize) {
        let raw = self.raw.slice::<u8>(bytes);
        self.out.slice_mut::<u8>(bytes).copy_from_slice(raw);
        black_box(&mut self.out);
    }
}

fn workload(function: u64, samples: u64) -> Workload {
    Workload::new("digitizer")
        .with("devices", "emu:l0")
        .with("samples", samples)
        .with("function", function)
        .with("unpaced", true)
}

fn session(workload: &Workload) -> Box<dyn Session> {
    let job = DigitizerRequest::of(workload).unwrap().job().unwrap();
    let mut session = job.open().unwrap().remove(0);
    session.prepare().unwrap();
    variants::choose(&mut *session).unwrap();
    session.verify().unwrap();
    session
}

fn chosen(session: &mut dyn Session) -> f64 {
    let counters = session.tally().counters;
    let block = counters.iter().find(|counter| counter.name == "block-bytes");
    block.unwrap().value
}

/// Compares the fused pass with separate ones. Fusing can at most save the copy of time t_copy out
/// of both, t: the bound is t / (t - t_copy).
fn fusion(function: u64, samples: u64, rounds: usize) {
    let asked = workload(function, samples);
    let mut fused = session(&asked.clone().with("fuse", true));
    let mut plain = session(&asked);
    let block = chosen(&mut *fused);
    let [mut fused_s, mut both_s, mut copy_s] = [(); 3].map(|()| Vec::new());
    for _ in 0..rounds {
        fused_s.push(seconds(&mut || fused.step(0, 1).unwrap()));
        let copy = seconds(&mut || plain.step(0, 1).unwrap());
        both_s.push(copy + seconds(&mut || plain.step(1, 1).unwrap()));
        copy_s.push(copy);
    }
    let least_s: Vec<f64> = both_s.iter().zip(&copy_s).map(|(t, copy)| t - copy).collect();
    let over_fused = |seconds: &[f64]| {
        let ratios: Vec<f64> = seconds.iter().zip(&fused_s).map(|(s, fused)| s / fused).collect();
        let (ratio, low, high) = trimmed_interval(&ratios, 0.95).unwrap();
        format!("{ratio:.2} ({low:.2} - {high:.2})")
    };
    let (of_bound, gain) = (over_fused(&least_s), over_fused(&both_s));
    let rate = |seconds: &[f64]| samples as f64 * 2e-6 / median(seconds.to_vec());
    println!(
        "function {function}, {:>4.0} MB raw, block {:>6.0} KiB: {:>6.0} against {:>6.0} MB/s: {gain} times, \
         bound {:.2}; of the bound {of_bound}",
        samples as f64 * 2e-6,
        block / 1024.0,
        rate(&fused_s),
        rate(&both_s),
        median(both_s.clone()) / median(least_s.clone()),
    );
}

fn blocks(samples: u64, rounds: usize) {
    println!(
        "\nread-out + cast, {} MB raw: fused against one after the other",
        samples as f64 * 2e-6
    );
    let mut plain = session(&workload(4, samples));
    for block in [4_u64 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10] {
        let mut fused = session(&workload(4, samples).with("block_bytes", block));
        let (a, b) = pair(rounds, &mut || fused.step(0, 1).unwrap(), &mut || {
            plain.step(0, 1).unwrap();
            plain.step(1, 1).unwrap();
        });
        let mb = samples as f64 * 2e-6;
        println!(
            "blocks of {:>3} KiB: {:.2}, {:.0} against {:.0} MB/s",
            block >> 10,
            b / a,
            mb / a,
            mb / b
        );
    }
}

fn readout() {
    println!("\nemulated board, unpaced, against memcpy of the same 6 MB");
    let mut board = session(&workload(0, 3_000_000));
    let bytes = 6_000_000;
    let mut memory = Memory::new(bytes);
    let (a, b) = pair(151, &mut || board.step(0, 1).unwrap(), &mut || memory.copy(bytes));
    line("read-out", b / a, 0.9, &format!("{:.0} against {:.0} MB/s", 6.0 / a, 6.0 / b));
}

fn tool() {
    println!("\nthe tool itself");
    let mut null = NullRequest::session();
    let operations = 1_000_000;
    let samples = (0..101)
        .map(|_| seconds(&mut || null.step(0, operations).unwrap()) * 1e9 / operations as f64)
        .collect();
    let ns = median(samples);
    line("null engine, 1 ns over ns per operation", 1.0 / ns, 1.0, &format!("{ns:.2} ns"));
}

fn main() {
    let cpu = affinity::allowed_cpus().unwrap().pop().unwrap();
    affinity::pin_to(cpu).unwrap();
    println!(
        "one thread on CPU {cpu}; medians of samples taken in turn; {} kernels",
        Isa::best().name()
    );
    tool();
    readout();
    println!("\nread-out and conversion in blocks that are chosen when a session is opened");
    for function in [4, 3, 5] {
        fusion(function, 3_000_000, 151);
        fusion(function, 30_000_000, 31);
    }
    blocks(3_000_000, 151);
    blocks(30_000_000, 15);
}
