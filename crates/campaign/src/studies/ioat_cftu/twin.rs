//! From which size on a DMA engine is faster than the CPU, and what a priority channel gets.
//!
//! A copy costs a time of its own and a time for each byte. Both are fitted to two sizes, once for the CPU and once for one channel; what
//! several channels do, and where the crossover is, follows. The CPU hands copies to the channels one after the other, the channels move
//! bytes at the same time. The document's own crossover and shares are in pictures; other engines' are published in words.

use daqmeter_record::study::{Comparison, Derived, Published};
use daqmeter_twin::{Arrivals, Draw, Model, SECOND_PS, Source, Station, run};

use super::super::twin::Prediction;
use super::Engines;

const PTDMA: &str = "Copies by an engine, AMD PTDMA";
const DSA: &str = "Copies by an engine, Intel DSA";
const GATE: &str = "Priority channel, 30 us of each 90 us";

/// Sizes of the published rates.
const PAGE: f64 = 4096.0;
const HUGE: f64 = 2_097_152.0;
/// DTO's bins: the middle of 8 to 12 KiB, "about 100 KB", "about 1 MB".
const DSA_BYTES: [f64; 3] = [10_240.0, 100e3, 1e6];

pub(super) fn predictions(published: &Engines) -> Vec<Prediction> {
    let mut rows = ptdma(published);
    rows.extend(dsa(published));
    rows.extend(gate());
    rows
}

/// Times of a copy: its own, and that of a byte, in ns.
#[derive(Clone, Copy, Debug)]
struct Cost {
    copy_ns: f64,
    byte_ns: f64,
}

impl Cost {
    /// Through two sizes with their times.
    fn through(small: (f64, f64), large: (f64, f64)) -> Cost {
        let byte_ns = (large.1 - small.1) / (large.0 - small.0);
        Cost { copy_ns: small.1 - byte_ns * small.0, byte_ns }
    }

    /// Through two sizes with their rates in GB/s.
    fn of_rates(small: &Published, large: &Published) -> Option<Cost> {
        let time = |bytes: f64, rate: &Published| Some((bytes, bytes / rate.value()?));
        Some(Cost::through(time(PAGE, small)?, time(HUGE, large)?))
    }

    /// GB/s of so many channels, one copy after the other handed to them: the slower of handing over and moving. One channel takes
    /// the next copy when it is done with the one before, as where the CPU waits for it.
    fn gb_per_s(self, channels: u32, bytes: f64) -> f64 {
        let moving = self.byte_ns * bytes;
        let ns = match channels {
            1 => self.copy_ns + moving,
            _ => self.copy_ns.max((self.copy_ns + moving) / f64::from(channels)),
        };
        bytes / ns
    }

    /// The same, simulated: as many copies as channels go round through the CPU that hands them over and the channels.
    fn simulated_gb_per_s(self, channels: u32, bytes: f64) -> Option<f64> {
        let hands_over = Station::new("CPU", Draw::Constant(ps(self.copy_ns))).to(1);
        let moves = Station {
            servers: Some(channels),
            ..Station::new("channels", Draw::Constant(ps(self.byte_ns * bytes)))
        };
        let copies = Source {
            name: "copies".to_owned(),
            arrivals: Arrivals::Closed(channels),
            bytes: Draw::Constant(1),
            to: vec![0],
            each: false,
        };
        let round_ps = ps(self.copy_ns + self.byte_ns * bytes);
        let model = Model {
            stations: vec![hands_over, moves],
            sources: vec![copies],
            time_ps: (round_ps * 500).clamp(1, SECOND_PS),
            warm_up_ps: round_ps * 5,
            samples: 0,
        };
        let outcome = run(&model, 1).ok()?;
        Some(outcome.left as f64 * bytes / outcome.seconds * 1e-9)
    }
}

/// The smallest size at which the engine is faster, by halving; none up to 64 MiB.
fn crossover(faster: impl Fn(f64) -> bool) -> Option<f64> {
    let (mut slow, mut fast) = (1.0, 67_108_864.0);
    if !faster(fast) {
        return None;
    }
    while fast > slow * 1.001 {
        let bytes = f64::sqrt(slow * fast);
        match faster(bytes) {
            true => fast = bytes,
            false => slow = bytes,
        }
    }
    Some(fast)
}

fn ptdma(published: &Engines) -> Vec<Prediction> {
    let cpu = Cost::of_rates(&published.cpu_4k_gb_per_s, &published.cpu_2m_gb_per_s);
    let one = Cost::of_rates(&published.one_4k_gb_per_s, &published.one_2m_gb_per_s);
    let Some((cpu, one)) = cpu.zip(one) else {
        return Vec::new();
    };
    let rate = |row: &str, figure: &Published, cost: Cost, channels: u32, bytes: f64| {
        let figure = Comparison::new(PTDMA, row, figure.clone(), "GB/s");
        let figure = figure.model(cost.gb_per_s(channels, bytes));
        Prediction::new(figure, cost.simulated_gb_per_s(channels, bytes))
    };
    let pays = |row: &str, figure: &Published, channels: u32| {
        let formula = crossover(|b| one.gb_per_s(channels, b) > cpu.gb_per_s(1, b));
        let simulated = crossover(|b| {
            let engine = one.simulated_gb_per_s(channels, b);
            let by_cpu = cpu.simulated_gb_per_s(1, b);
            engine.zip(by_cpu).is_some_and(|(engine, cpu)| engine > cpu)
        });
        let figure = Comparison::new(PTDMA, row, figure.clone(), "B").model(formula);
        Prediction::new(figure, simulated)
    };
    let of = published;
    vec![
        rate("CPU, 4 KiB", &of.cpu_4k_gb_per_s, cpu, 1, PAGE).fitted(),
        rate("CPU, 2 MiB", &of.cpu_2m_gb_per_s, cpu, 1, HUGE).fitted(),
        rate("1 channel, 4 KiB", &of.one_4k_gb_per_s, one, 1, PAGE).fitted(),
        rate("1 channel, 2 MiB", &of.one_2m_gb_per_s, one, 1, HUGE).fitted(),
        rate("4 channels, 4 KiB", &of.four_4k_gb_per_s, one, 4, PAGE).misses(IN_TURN),
        rate("4 channels, 2 MiB", &of.four_2m_gb_per_s, one, 4, HUGE).misses(SHARED),
        pays("size from which 1 channel beats the CPU", &of.one_pays_from_bytes, 1).fitted(),
        pays("size from which 4 channels beat the CPU", &of.four_pay_from_bytes, 4).misses(IN_TURN),
    ]
}

/// Why four channels are too slow at 4 KiB.
const IN_TURN: &str = "all of a copy's own time is taken as the CPU's, one after the other";
/// Why four channels are too fast at 2 MiB.
const SHARED: &str = "the model has no memory that the channels share";

fn dsa(published: &Engines) -> Vec<Prediction> {
    let times = [&published.dsa_10k_us, &published.dsa_100k_us, &published.dsa_1m_us];
    let known: Option<Vec<f64>> = times.iter().map(|time| Some(time.value()? * 1e3)).collect();
    let Some(known) = known else {
        return Vec::new();
    };
    let [small, _, large] = DSA_BYTES;
    let cost = Cost::through((small, known[0]), (large, known[2]));
    let row = |(at, time): (usize, &&Published)| {
        let bytes = DSA_BYTES[at];
        let name = ["8 to 12 KiB", "about 100 KB", "about 1 MB"][at];
        let formula_us = bytes / cost.gb_per_s(1, bytes) * 1e-3;
        let simulated = cost.simulated_gb_per_s(1, bytes);
        let figure = Comparison::new(DSA, format!("time of a call, {name}"), (*time).clone(), "us");
        let row =
            Prediction::new(figure.model(formula_us), simulated.map(|rate| bytes / rate * 1e-3));
        if at == 1 { row } else { row.fitted() }
    };
    times.iter().enumerate().map(row).collect()
}

/// The document's window and quantum, its channels, and the time that its engine is taken to need for a descriptor of 4 KiB.
const WINDOW_NS: u64 = 90_000;
const QUANTUM_NS: u64 = 30_000;
const CHANNELS: usize = 4;
const PAGE_NS: u64 = 2_000;

/// Shares of the engine's time: in the quantum all of it is the first channel's, else each has its turn.
fn gate() -> Vec<Prediction> {
    let alone = QUANTUM_NS as f64 / WINDOW_NS as f64;
    let each = (1.0 - alone) / CHANNELS as f64;
    let shares = gated(PAGE_NS);
    let row = |name: &str, share: f64, channel: usize| {
        let how = "30 us of 90 us alone, the rest shared by four channels";
        let figure = Comparison::new(GATE, name, None, "%")
            .derived(Derived::computed(share * 100.0, how))
            .model(share * 100.0);
        // The formula is what the policy says: that it comes out proves the gate and nothing of the engine.
        Prediction::new(figure, shares[channel] * 100.0).fitted()
    };
    vec![row("first channel", alone + each, 0), row("each other channel", each, 1)]
}

/// Shares of the engine, descriptor by descriptor: one that has begun is not stopped when the quantum begins.
fn gated(descriptor_ns: u64) -> [f64; CHANNELS] {
    let mut used_ns = [0_u64; CHANNELS];
    let (mut now_ns, mut turn) = (0_u64, 0);
    while now_ns < 10_000 * WINDOW_NS {
        let is_alone = now_ns % WINDOW_NS < QUANTUM_NS;
        let channel = if is_alone { 0 } else { turn };
        if !is_alone {
            turn = (turn + 1) % CHANNELS;
        }
        used_ns[channel] += descriptor_ns;
        now_ns += descriptor_ns;
    }
    used_ns.map(|ns| ns as f64 / now_ns as f64)
}

fn ps(ns: f64) -> u64 {
    super::super::twin::us_ps(ns * 1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_through_two_sizes_gives_both_back() {
        let cost = Cost::through((100.0, 50.0), (300.0, 90.0));
        assert!((cost.copy_ns - 30.0).abs() < 1e-9 && (cost.byte_ns - 0.2).abs() < 1e-9);
        assert!((cost.gb_per_s(1, 300.0) - 300.0 / 90.0).abs() < 1e-9);
    }

    #[test]
    fn formula_and_simulation_agree_on_rates_and_crossover() {
        let cost = Cost { copy_ns: 1000.0, byte_ns: 0.1 };
        for channels in [1, 2, 4, 16] {
            for bytes in [64.0, 4096.0, 65_536.0, 2_097_152.0] {
                let formula = cost.gb_per_s(channels, bytes);
                let simulated = cost.simulated_gb_per_s(channels, bytes).unwrap();
                let off = simulated / formula - 1.0;
                assert!(off.abs() < 0.01, "{channels} {bytes}: {simulated} {formula}");
            }
        }
        // 1000 + 0.1 b = 500 + 0.2 b at 5000 B.
        let cpu = Cost { copy_ns: 500.0, byte_ns: 0.2 };
        let found = crossover(|b| cost.gb_per_s(1, b) > cpu.gb_per_s(1, b)).unwrap();
        assert!((found / 5000.0 - 1.0).abs() < 0.002, "{found}");
        assert_eq!(crossover(|_| false), None);
    }

    #[test]
    fn a_gate_gives_the_first_channel_its_quantum_and_its_turn() {
        // Descriptors that do not fit into the quantum change the moments and not the mean.
        let coarse = gated(32_000);
        assert!((coarse[0] - 0.5).abs() < 0.002, "{coarse:?}");
        let fine = gated(100);
        assert!((fine[0] - 0.5).abs() < 0.002, "{fine:?}");
        assert!((fine[3] - 1.0 / 6.0).abs() < 0.002, "{fine:?}");
        assert!((coarse.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
