//! The conversion kernels against the limit of the same ratio, by instruction set: `cargo bench -p daqmeter-kernels [-- SET...]`.
//!
//! Each ratio comes from samples of both sides taken in turn, on one thread pinned to the last CPU allowed, so that a mood of
//! the host meets both. The limit is the fastest stream of that set and those below it; the conversion stores as it does. Prints medians and the interval of their
//! ratio; judges nothing and fails nothing, because shared machines are noisy.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host lacks memory"
)]

use std::cell::RefCell;
use std::hint::black_box;

use daqmeter_kernels::convert::{Conversion, Converter, Decimation, Out, Qmn};
use daqmeter_kernels::stream::{LINE_BYTES, Ratio, stream};
use daqmeter_kernels::{Isa, Store};
use daqmeter_stats::{median, quantile_ratio};
use daqmeter_sys::memory::{Buffer, Pages};
use daqmeter_sys::{affinity, clock};

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

    fn stream(&mut self, (isa, store): (Isa, Store), ratio: Ratio) {
        let raw = self.raw.slice::<u8>(self.samples * 2);
        let out = self.out.slice_mut(self.samples * 8 + 2 * LINE_BYTES);
        stream(isa, store, ratio, raw, out);
        black_box(&mut self.out);
    }
}

/// Both sides work on the same memory: two sets would not fit the caches that one fits.
struct Bench {
    memory: RefCell<Memory>,
    rounds: usize,
}

impl Bench {
    fn new(samples: usize, rounds: usize) -> Bench {
        Bench {
            memory: RefCell::new(Memory::new(samples)),
            rounds,
        }
    }

    /// Prints the speed of one side, that of the other and how the two compare.
    fn pair(&self, what: &str, detail: &str, a: &dyn Fn(&mut Memory), b: &dyn Fn(&mut Memory)) {
        let memory = &mut *self.memory.borrow_mut();
        let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
        for round in 0..self.rounds + self.rounds / 10 + 1 {
            let (took_a, took_b) = (seconds(&mut || a(memory)), seconds(&mut || b(memory)));
            // The first tenth warms up.
            if round > self.rounds / 10 {
                of_a.push(took_a);
                of_b.push(took_b);
            }
        }
        let mb = memory.samples as f64 * 2e-6;
        let ratio = quantile_ratio(&of_b, &of_a, 0.5).unwrap();
        println!(
            "  {what:<36} {:>6.0} of {:>6.0} MB/s  {:.2} ({:.2} - {:.2})  {detail}",
            mb / median(&of_a),
            mb / median(&of_b),
            ratio.ratio,
            ratio.low,
            ratio.high
        );
    }

    /// The fastest of the streams with this ratio: which width and store that is depends on the CPU.
    fn best_stream(&self, isa: Isa, ratio: Ratio) -> (Isa, Store) {
        let sets = Isa::available().filter(|&set| set <= isa);
        let variants = sets.flat_map(|isa| stores_of(isa).iter().map(move |&store| (isa, store)));
        let memory = &mut *self.memory.borrow_mut();
        let timed = variants.map(|variant| {
            let one = || seconds(&mut || memory.stream(variant, ratio));
            let samples: Vec<f64> = std::iter::repeat_with(one)
                .take(self.rounds / 10 + 3)
                .collect();
            (median(&samples), variant)
        });
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1
    }

    fn against_the_limit(&self, what: &str, conversion: Conversion, factor: usize, isa: Isa) {
        let ratio = Ratio::of_bytes(2 * factor, conversion.out_bytes()).unwrap();
        let limit = self.best_stream(isa, ratio);
        let converter = converter(conversion, factor, isa, limit.1);
        let detail = format!("{} {}", limit.0.name(), limit.1.name());
        let detail = match converter.arithmetic() {
            Some(arithmetic) => format!("{detail}; {arithmetic}"),
            None => detail,
        };
        let convert = |memory: &mut Memory| memory.convert(&converter);
        self.pair(what, &detail, &convert, &|memory| {
            memory.stream(limit, ratio)
        });
    }
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

/// A calibration for each arithmetic: see `convert/scaling.rs`.
fn conversions() -> [(&'static str, Conversion); 9] {
    [
        ("4 cast", Conversion::CastF32),
        ("3 scaling by 0.123", scale(0.123, 0.0)),
        ("3 scaling by 0.123 - 45.6", scale(0.123, -45.6)),
        ("3 scaling by 0.1 + 1e9", scale(0.1, 1_000_000_007.0)),
        ("3 scaling by 1e305 - 1e305", scale(1e305, -1e305)),
        (
            "7 unsigned Q-format to f32",
            Conversion::QmnF32(Qmn::MAGNITUDE),
        ),
        ("8 signed Q-format to f32", Conversion::QmnF32(Qmn::PHASE)),
        (
            "5 unsigned Q-format to f64",
            Conversion::QmnF64(Qmn::MAGNITUDE),
        ),
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

fn stores(isa: Isa) {
    let bench = Bench::new(120_000_000, 15);
    println!(
        "\n{}, 240 MB raw, non-temporal against cached stores",
        isa.name()
    );
    for (what, conversion) in conversions() {
        let [around, plain] =
            [Store::NonTemporal, Store::Cached].map(|store| converter(conversion, 1, isa, store));
        let plain = |memory: &mut Memory| memory.convert(&plain);
        bench.pair(what, "", &|memory| memory.convert(&around), &plain);
    }
}

fn main() {
    let cpu = affinity::allowed_cpus().unwrap().pop().unwrap();
    affinity::pin_to(cpu).unwrap();
    let named: Vec<Isa> = std::env::args()
        .filter_map(|name| Isa::from_name(&name))
        .collect();
    println!("one thread on CPU {cpu}; medians of samples taken in turn, 95 % of their ratio");
    for isa in Isa::available().filter(|isa| named.is_empty() || named.contains(isa)) {
        // Within the second-level cache, where arithmetic is the limit, and beyond it.
        limits(isa, 50_000, 1001);
        limits(isa, 3_000_000, 151);
        if isa.has_non_temporal() {
            stores(isa);
        }
    }
}
