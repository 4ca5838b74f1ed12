//! Compares the conversion kernels with the limit of equal ratio, by instruction set: `cargo bench
//! -p daqmeter-kernels [-- SET...]`.
//!
//! Samples both sides in turn, on one thread pinned to the last CPU allowed, so that noise of the
//! host affects both. The limit is the fastest stream of that set and those below it; the
//! conversion stores as the limit does. Prints medians and the interval of their ratio, without a
//! verdict, because shared machines are noisy.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host lacks memory"
)]

use std::cell::RefCell;
use std::hint::black_box;

use daqmeter_kernels::convert::{Conversion, Converter, Decimation, Out, Qmn};
use daqmeter_kernels::stream::{LINE_BYTES, StreamRatio, stream};
use daqmeter_kernels::{Isa, Store};
use daqmeter_stats::trimmed_interval;
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::{affinity, clock};

fn median(values: &[f64]) -> f64 {
    daqmeter_stats::median(values).unwrap()
}

fn seconds(work: &mut dyn FnMut()) -> f64 {
    let begin = clock::monotonic_ns();
    work();
    (clock::monotonic_ns() - begin) as f64 * 1e-9
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

    fn stream(&mut self, (isa, store): (Isa, Store), ratio: StreamRatio) {
        let raw = self.raw.slice::<u8>(self.samples * 2);
        let out = self.out.slice_mut(self.samples * 8 + 2 * LINE_BYTES);
        stream(isa, store, ratio, raw, out);
        black_box(&mut self.out);
    }
}

/// Memory of both sides: two sets would not fit the caches that one fits.
struct Bench {
    memory: RefCell<Memory>,
    rounds: usize,
}

impl Bench {
    fn new(samples: usize, rounds: usize) -> Bench {
        Bench { memory: RefCell::new(Memory::new(samples)), rounds }
    }

    fn pair(&self, what: &str, detail: &str, a: &dyn Fn(&mut Memory), b: &dyn Fn(&mut Memory)) {
        let memory = &mut *self.memory.borrow_mut();
        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        for round in 0..self.rounds + self.rounds / 10 + 1 {
            let (took_a, took_b) = (seconds(&mut || a(memory)), seconds(&mut || b(memory)));
            if round > self.rounds / 10 {
                of_a.push(took_a);
                of_b.push(took_b);
            }
        }
        print(what, detail, memory.samples as f64 * 2e-6, [&of_a, &of_b]);
    }

    fn best_stream(&self, isa: Isa, ratio: StreamRatio) -> (Isa, Store) {
        let memory = &mut *self.memory.borrow_mut();
        let timed = streams(isa).map(|variant| {
            let one = || seconds(&mut || memory.stream(variant, ratio));
            let samples: Vec<f64> =
                std::iter::repeat_with(one).take(self.rounds / 10 + 3).collect();
            (median(&samples), variant)
        });
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1
    }

    fn against_the_limit(&self, what: &str, conversion: Conversion, factor: usize, isa: Isa) {
        // In lowest terms: samples have 2 bytes.
        let divisor = if factor == 1 { 2 } else { 4 };
        let (reads, writes) = (2 * factor / divisor, conversion.out_bytes() / divisor);
        let ratio = StreamRatio::new(reads, writes).unwrap();
        let limit = self.best_stream(isa, ratio);
        let converter = converter(conversion, factor, isa, limit.1);
        let detail = format!("{} {}", limit.0.name(), limit.1.name());
        let detail = match converter.arithmetic() {
            Some(arithmetic) => format!("{detail}; {arithmetic}"),
            None => detail,
        };
        let convert = |memory: &mut Memory| memory.convert(&converter);
        self.pair(what, &detail, &convert, &|memory| memory.stream(limit, ratio));
    }
}

fn print(what: &str, detail: &str, mb: f64, [of_a, of_b]: [&[f64]; 2]) {
    let ratios: Vec<f64> = of_b.iter().zip(of_a).map(|(b, a)| b / a).collect();
    let (ratio, low, high) = trimmed_interval(&ratios, 0.95).unwrap();
    println!(
        "  {what:<36} {:>6.0} of {:>6.0} MB/s  {ratio:.2} ({low:.2} - {high:.2})  {detail}",
        mb / median(of_a),
        mb / median(of_b),
    );
}

fn streams(isa: Isa) -> impl Iterator<Item = (Isa, Store)> {
    let sets = Isa::available().filter(move |&set| set <= isa);
    sets.flat_map(|isa| stores_of(isa).iter().map(move |&store| (isa, store)))
}

fn stores_of(isa: Isa) -> &'static [Store] {
    match isa.has_non_temporal() {
        true => &[Store::Cached, Store::NonTemporal],
        false => &[Store::Cached],
    }
}

fn converter(conversion: Conversion, factor: usize, isa: Isa, store: Store) -> Converter {
    let decimation = Decimation { offset: 0, factor };
    Converter::new(conversion, decimation, isa, store).unwrap()
}

fn scale(factor: f64, offset: f64) -> Conversion {
    Conversion::ScaleF32 { factor, offset }
}

fn conversions() -> [(&'static str, Conversion); 9] {
    [
        ("4 cast", Conversion::CastF32),
        ("3 scaling by 0.123", scale(0.123, 0.0)),
        ("3 scaling by 0.123 - 45.6", scale(0.123, -45.6)),
        ("3 scaling by 0.1 + 1e9", scale(0.1, 1_000_000_007.0)),
        ("3 scaling by 1e305 - 1e305", scale(1e305, -1e305)),
        ("7 unsigned Q-format to f32", Conversion::QmnF32(Qmn::MAGNITUDE)),
        ("8 signed Q-format to f32", Conversion::QmnF32(Qmn::PHASE)),
        ("5 unsigned Q-format to f64", Conversion::QmnF64(Qmn::MAGNITUDE)),
        ("6 signed Q-format to f64", Conversion::QmnF64(Qmn::PHASE)),
    ]
}

fn limits(isa: Isa, samples: usize, rounds: usize) {
    let bench = Bench::new(samples, rounds);
    println!(
        "\n{}, {} KB raw, against the limit of the same ratio",
        isa.name(),
        samples * 2 / 1000
    );
    for (what, conversion) in conversions() {
        bench.against_the_limit(what, conversion, 1, isa);
    }
    for (what, conversion) in [
        ("1 scaling, every 10th", scale(0.123, -45.6)),
        ("2 cast, every 10th", Conversion::CastF32),
    ] {
        bench.against_the_limit(what, conversion, 10, isa);
    }
}

fn main() {
    let cpu = *affinity::allowed_cpus().unwrap().last().unwrap();
    affinity::pin_to(cpu).unwrap();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_named = |isa: &Isa| words.iter().any(|word| word == isa.name());
    let sets: Vec<Isa> = Isa::ALL.into_iter().filter(is_named).collect();
    println!("one thread on CPU {cpu}; medians of samples taken in turn, 95 % of their ratio");
    for isa in Isa::available().filter(|isa| sets.is_empty() || sets.contains(isa)) {
        // Within the second-level cache, with arithmetic as the limit, and beyond it.
        limits(isa, 50_000, 1001);
        limits(isa, 3_000_000, 151);
    }
}
