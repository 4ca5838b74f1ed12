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
use daqmeter_harness::{NullRequest, Request, Session};
use daqmeter_kernels::Isa;
use daqmeter_record::Workload;
use daqmeter_stats::median;
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::{affinity, clock};

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
    (median(&of_a).unwrap(), median(&of_b).unwrap())
}

fn line(what: &str, ratio: f64, target: f64, detail: &str) {
    let verdict = if ratio >= target { "met" } else { "MISSED" };
    println!("{what:<44} {ratio:>6.2}  target {target:>5.2}  {verdict:<7} {detail}");
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
    session.verify().unwrap();
    session
}

/// Compares the fused pass with separate ones of read-out and conversion.
fn blocks(function: u64, samples: u64, rounds: usize) {
    println!(
        "\nread-out and function {function}, {} MB raw: fused against one after the other",
        samples as f64 * 2e-6
    );
    let mut plain = session(&workload(function, samples));
    for block in [4_u64 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10] {
        let mut fused = session(&workload(function, samples).with("block_bytes", block));
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
    let [raw, mut out] = [(); 2].map(|()| Buffer::new(bytes, Pages::Transparent).unwrap());
    let (a, b) = pair(151, &mut || board.step(0, 1).unwrap(), &mut || {
        out.slice_mut::<u8>(bytes).copy_from_slice(raw.slice::<u8>(bytes));
        black_box(&mut out);
    });
    line("read-out", b / a, 0.9, &format!("{:.0} against {:.0} MB/s", 6.0 / a, 6.0 / b));
}

fn tool() {
    println!("\nthe tool itself");
    let mut null = NullRequest::session();
    let operations = 1_000_000;
    let samples = (0..101)
        .map(|_| seconds(&mut || null.step(0, operations).unwrap()) * 1e9 / operations as f64)
        .collect::<Vec<f64>>();
    let ns = median(&samples).unwrap();
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
    for function in [4, 3, 5] {
        blocks(function, 3_000_000, 151);
        blocks(function, 30_000_000, 15);
    }
}
