//! The speed targets as ratios in one run: `cargo bench -p daqmeter-digitizer`.
//!
//! Each ratio comes from samples of both sides taken in turn, on one thread pinned to the last CPU allowed, so that a mood of
//! the host meets both. Prints medians; judges nothing and fails nothing, because shared machines are noisy.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host lacks memory"
)]

use std::cell::RefCell;
use std::hint::black_box;

use daqmeter_digitizer::conversion::ConversionRequest;
use daqmeter_digitizer::{DigitizerEngine, Function};
use daqmeter_harness::{Engine, NullEngine, Session};
use daqmeter_kernels::convert::{Conversion, Converter, Out};
use daqmeter_kernels::stream::{LINE_BYTES, Ratio, stream};
use daqmeter_kernels::{Isa, Store};
use daqmeter_record::Workload;
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

/// Medians of both sides, sampled in turn.
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
    samples: usize,
}

impl Memory {
    fn new(samples: usize) -> Memory {
        let mut raw = Buffer::new(samples * 2, Pages::Transparent).unwrap();
        for (at, sample) in raw.slice_mut::<u16>(samples).iter_mut().enumerate() {
            *sample = u16::try_from((at.wrapping_mul(40_503) >> 3) & 0xFFFF).unwrap();
        }
        Memory {
            raw,
            out: Buffer::new(samples * 8 + 2 * LINE_BYTES, Pages::Transparent).unwrap(),
            samples,
        }
    }

    fn convert(&mut self, converter: &Converter) {
        let kept = converter.decimation().kept(self.samples);
        let raw = self.raw.slice::<u16>(self.samples);
        match converter.conversion() {
            Conversion::QmnF64(_) => converter.convert(raw, Out::F64(self.out.slice_mut(kept))),
            _ => converter.convert(raw, Out::F32(self.out.slice_mut(kept))),
        }
        black_box(&mut self.out);
    }

    fn stream(&mut self, isa: Isa, store: Store, ratio: Ratio) {
        let raw = self.raw.slice::<u8>(self.samples * 2);
        stream(
            isa,
            store,
            ratio,
            raw,
            self.out.slice_mut::<u8>(self.samples * 8 + 2 * LINE_BYTES),
        );
        black_box(&mut self.out);
    }

    fn copy(&mut self) {
        let bytes = self.samples * 2;
        self.out
            .slice_mut::<u8>(bytes)
            .copy_from_slice(self.raw.slice::<u8>(bytes));
        black_box(&mut self.out);
    }
}

fn converter(function: Function, factor: usize, store: Store) -> Converter {
    scaled(function, factor, store, -45.6)
}

fn scaled(function: Function, factor: usize, store: Store, scale_offset: f64) -> Converter {
    let request = ConversionRequest {
        dec_factor: factor as u64,
        scale_factor: 0.123,
        scale_offset,
        ..ConversionRequest::default()
    };
    let (conversion, decimation) = request.of(function).unwrap();
    Converter::new(conversion, decimation, Isa::best(), store).unwrap()
}

/// The fastest of the streams with this ratio: which width and store that is depends on the CPU.
fn best_stream(memory: &mut Memory, ratio: Ratio) -> (Isa, Store) {
    let variants =
        Isa::available().filter(|isa| *isa != Isa::Portable || Isa::best() == Isa::Portable);
    let variants: Vec<_> = variants
        .flat_map(|isa| [(isa, Store::Cached), (isa, Store::NonTemporal)])
        .collect();
    let time = |memory: &mut Memory, (isa, store)| {
        median(
            (0..15)
                .map(|_| seconds(&mut || memory.stream(isa, store, ratio)))
                .collect(),
        )
    };
    let timed: Vec<_> = variants
        .into_iter()
        .map(|variant| (time(memory, variant), variant))
        .collect();
    timed
        .into_iter()
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap()
        .1
}

fn conversions() {
    // Both sides work on the same memory: two sets would not fit the caches that one fits.
    let cell = RefCell::new(Memory::new(3_000_000));
    let mb = 6.0;
    println!("\nconversion of 3 M samples against the copy limit of the same ratio (MB/s raw)");
    let mut cases = vec![(Function::Readout, 1)];
    cases.extend(Function::CONVERSIONS.map(|function| (function, 1)));
    cases.extend([(Function::DecimateScale, 10), (Function::Decimate, 10)]);
    for (function, factor) in cases {
        let every = if factor > 1 {
            format!(", every {factor}th")
        } else {
            String::new()
        };
        let name = format!("{} {}{every}", function.number(), function.description());
        let (work, limit) = if function == Function::Readout {
            let (isa, store) = best_stream(&mut cell.borrow_mut(), Ratio::COPY);
            let limit = &mut || cell.borrow_mut().stream(isa, store, Ratio::COPY);
            pair(151, &mut || cell.borrow_mut().copy(), limit)
        } else {
            let converter = converter(function, factor, Store::Cached);
            let ratio = Ratio::of_bytes(2 * factor, converter.conversion().out_bytes()).unwrap();
            let (isa, store) = best_stream(&mut cell.borrow_mut(), ratio);
            let limit = &mut || cell.borrow_mut().stream(isa, store, ratio);
            pair(151, &mut || cell.borrow_mut().convert(&converter), limit)
        };
        line(
            &name,
            limit / work,
            0.95,
            &format!("{:.0} of {:.0}", mb / work, mb / limit),
        );
    }
    let no_offset = scaled(Function::Scale, 1, Store::Cached, 0.0);
    let one_to_two = Ratio::of_bytes(2, 4).unwrap();
    let (isa, store) = best_stream(&mut cell.borrow_mut(), one_to_two);
    let limit = &mut || cell.borrow_mut().stream(isa, store, one_to_two);
    let (a, b) = pair(151, &mut || cell.borrow_mut().convert(&no_offset), limit);
    line(
        "3 scaling to f32, offset 0",
        b / a,
        0.95,
        &format!("{:.0} of {:.0}", mb / a, mb / b),
    );
    let (decimate, cast) = (
        converter(Function::Decimate, 1, Store::Cached),
        converter(Function::Cast, 1, Store::Cached),
    );
    let (a, b) = pair(
        151,
        &mut || cell.borrow_mut().convert(&decimate),
        &mut || cell.borrow_mut().convert(&cast),
    );
    line("decimation by 1 against cast", b / a, 0.95, "");
}

fn stores() {
    println!("\nnon-temporal against plain stores, 240 MB raw");
    let cell = RefCell::new(Memory::new(120_000_000));
    let pairs = [
        (Function::Cast, 1),
        (Function::Scale, 1),
        (Function::UnsignedF64, 1),
    ];
    for (function, factor) in pairs {
        let (around, plain) = (
            converter(function, factor, Store::NonTemporal),
            converter(function, factor, Store::Cached),
        );
        let (a, b) = pair(9, &mut || cell.borrow_mut().convert(&around), &mut || {
            cell.borrow_mut().convert(&plain)
        });
        line(
            function.description(),
            b / a,
            1.6,
            &format!("{:.0} against {:.0} MB/s", 240.0 / a, 240.0 / b),
        );
    }
}

fn session(block_bytes: u64, function: u64, samples: u64) -> Box<dyn Session> {
    let workload = Workload::new("digitizer")
        .with("devices", "emu:l0")
        .with("samples", samples)
        .with("function", function)
        .with("block_bytes", block_bytes)
        .with("unpaced", true);
    let mut sessions = DigitizerEngine {
        last_level_bytes: last_level_bytes(),
    }
    .open(&workload)
    .unwrap();
    let mut session = sessions.remove(0);
    session.prepare().unwrap();
    session.verify().unwrap();
    session
}

fn last_level_bytes() -> u64 {
    daqmeter_harness::facts::host_facts(&Default::default(), vec![]).last_level_cache_bytes()
}

fn fusion(samples: u64, rounds: usize) {
    println!(
        "\nread-out + cast, {} MB raw: fused against one after the other",
        samples as f64 * 2e-6
    );
    for block in [4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10] {
        let mut fused = session(block, 4, samples);
        let mut plain = session(0, 4, samples);
        let (a, b) = pair(rounds, &mut || fused.step(0, 1).unwrap(), &mut || {
            plain.step(0, 1).unwrap();
            plain.step(1, 1).unwrap();
        });
        line(
            &format!("blocks of {} KiB", block >> 10),
            b / a,
            1.6,
            &format!(
                "{:.0} against {:.0} MB/s",
                samples as f64 * 2e-6 / a,
                samples as f64 * 2e-6 / b
            ),
        );
    }
}

fn readout() {
    println!("\nemulated board, unpaced, against memcpy of the same 6 MB");
    let mut board = session(0, 0, 3_000_000);
    let mut memory = Memory::new(3_000_000);
    let (a, b) = pair(151, &mut || board.step(0, 1).unwrap(), &mut || {
        memory.copy()
    });
    line(
        "read-out",
        b / a,
        0.9,
        &format!("{:.0} against {:.0} MB/s", 6.0 / a, 6.0 / b),
    );
}

fn tool() {
    println!("\nthe tool itself");
    let mut null = NullEngine.open(&NullEngine.example()).unwrap().remove(0);
    let operations = 1_000_000;
    let samples = (0..101)
        .map(|_| seconds(&mut || null.step(0, operations).unwrap()) * 1e9 / operations as f64)
        .collect();
    let ns = median(samples);
    line(
        "null engine, 1 ns over ns per operation",
        1.0 / ns,
        1.0,
        &format!("{ns:.2} ns"),
    );
}

fn main() {
    let cpu = affinity::allowed_cpus().unwrap().pop().unwrap();
    affinity::pin_to(cpu).unwrap();
    println!(
        "one thread on CPU {cpu}; medians of samples taken in turn; {} kernels",
        Isa::best().name()
    );
    tool();
    conversions();
    stores();
    readout();
    fusion(3_000_000, 151);
    fusion(30_000_000, 15);
}
