//! Compares the conversion kernels with the limit of equal ratio, by instruction set: `cargo bench
//! -p daqmeter-kernels [-- SET... PART...]`. Parts are `limits`, `stores` and `threads`; the
//! default is all.
//!
//! Samples both sides in turn, on one thread pinned to the last CPU allowed, so that noise of the
//! host affects both. `threads` adds a second thread on the first CPU. The limit is the fastest
//! stream of that set and those below it; the conversion stores as the limit does. Prints medians
//! and the interval of their ratio, without a verdict, because shared machines are noisy.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host lacks memory"
)]

use std::cell::RefCell;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};

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
        let ratio = StreamRatio::of_bytes(2 * factor, conversion.out_bytes()).unwrap();
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

fn stores(isa: Isa) {
    let bench = Bench::new(120_000_000, 9);
    println!(
        "\n{}, 240 MB raw, non-temporal stores against the fastest stream of that ratio",
        isa.name()
    );
    for (what, conversion) in conversions() {
        let ratio = StreamRatio::of_bytes(2, conversion.out_bytes()).unwrap();
        let limit = bench.best_stream(isa, ratio);
        let around = converter(conversion, 1, isa, Store::NonTemporal);
        let detail = format!("{} {}", limit.0.name(), limit.1.name());
        bench.pair(what, &detail, &|memory| memory.convert(&around), &|memory| {
            memory.stream(limit, ratio)
        });
    }
    println!("\n{}, 240 MB raw, non-temporal against cached stores", isa.name());
    for (what, conversion) in conversions() {
        let [around, plain] =
            [Store::NonTemporal, Store::Cached].map(|store| converter(conversion, 1, isa, store));
        let plain = |memory: &mut Memory| memory.convert(&plain);
        bench.pair(what, "", &|memory| memory.convert(&around), &plain);
    }
}

/// Barrier for the start of each piece of work. Threads spin, because waking takes longer than a
/// piece.
struct Start {
    arrived: AtomicUsize,
}

impl Start {
    fn wait(&self, times: usize) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < 2 * times {
            spin_loop();
        }
    }
}

type Work<'a> = &'a (dyn Fn(&mut Memory) + Sync);

/// Times each piece of work in seconds, done by two threads at once on their own memory, until both
/// are done.
fn by_two(cpus: [u32; 2], samples: usize, rounds: usize, works: &[Work<'_>]) -> Vec<Vec<f64>> {
    // A piece in the cache lasts some microseconds, so repeats hide the barrier's time.
    let repeats = (3_000_000 / samples).max(1);
    let start = Start { arrived: AtomicUsize::new(0) };
    let run = |cpu: u32| {
        affinity::pin_to(cpu).unwrap();
        let mut memory = Memory::new(samples);
        let mut taken = vec![Vec::new(); works.len()];
        let mut met = 0;
        let mut meet = || {
            met += 1;
            start.wait(met);
        };
        for round in 0..rounds + rounds / 10 + 1 {
            for (work, taken) in works.iter().zip(&mut taken) {
                meet();
                let took = seconds(&mut || {
                    (0..repeats).for_each(|_| work(&mut memory));
                    meet();
                });
                if round > rounds / 10 {
                    taken.push(took / repeats as f64);
                }
            }
        }
        taken
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(cpus[1]));
        let own = scope.spawn(|| run(cpus[0])).join().unwrap();
        other.join().unwrap();
        own
    })
}

fn by_two_against_the_limit(cpus: [u32; 2], isa: Isa, samples: usize, rounds: usize) {
    println!(
        "\n{}, two threads (CPUs {} and {}), {} KB raw each, against the limit of two threads",
        isa.name(),
        cpus[0],
        cpus[1],
        samples * 2 / 1000
    );
    let whole = conversions().map(|(what, conversion)| (what, conversion, 1));
    let decimated = [("1 scaling, every 10th", scale(0.123, -45.6), 10)];
    for (what, conversion, factor) in whole.into_iter().chain(decimated) {
        let ratio = StreamRatio::of_bytes(2 * factor, conversion.out_bytes()).unwrap();
        let limits: Vec<(Isa, Store)> = streams(isa).collect();
        let stream = |limit: (Isa, Store)| move |memory: &mut Memory| memory.stream(limit, ratio);
        let trials: Vec<_> = limits.iter().map(|limit| stream(*limit)).collect();
        let works: Vec<Work<'_>> = trials.iter().map(|trial| trial as Work<'_>).collect();
        let timed = by_two(cpus, samples, rounds / 10 + 3, &works);
        let fastest =
            (0..limits.len()).min_by(|a, b| median(&timed[*a]).total_cmp(&median(&timed[*b])));
        let limit = limits[fastest.unwrap()];
        let converter = converter(conversion, factor, isa, limit.1);
        let convert = |memory: &mut Memory| memory.convert(&converter);
        let timed = by_two(cpus, samples, rounds, &[&convert, &stream(limit)]);
        let detail = format!("{} {}", limit.0.name(), limit.1.name());
        print(what, &detail, samples as f64 * 4e-6, [&timed[0], &timed[1]]);
    }
}

fn main() {
    let allowed = affinity::allowed_cpus().unwrap();
    let cpus = [*allowed.last().unwrap(), allowed[0]];
    affinity::pin_to(cpus[0]).unwrap();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let sets: Vec<Isa> = words.iter().filter_map(|name| Isa::from_name(name)).collect();
    let parts: Vec<&str> = ["limits", "stores", "threads"]
        .into_iter()
        .filter(|part| words.iter().any(|word| word == part))
        .collect();
    let is_wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    println!(
        "one thread on CPU {}; medians of samples taken in turn, 95 % of their ratio",
        cpus[0]
    );
    for isa in Isa::available().filter(|isa| sets.is_empty() || sets.contains(isa)) {
        // Within the second-level cache, with arithmetic as the limit, and beyond it.
        if is_wanted("limits") {
            limits(isa, 50_000, 1001);
            limits(isa, 3_000_000, 151);
        }
        if is_wanted("stores") && isa.has_non_temporal() {
            stores(isa);
        }
        if is_wanted("threads") && cpus[0] != cpus[1] {
            by_two_against_the_limit(cpus, isa, 50_000, 101);
            by_two_against_the_limit(cpus, isa, 3_000_000, 101);
        }
    }
}
