//! Whether `twin predict` is right: `cargo bench -p daqmeter-campaign --bench validate_twin -- PATHS SEED SECONDS [PROFILE]`.
//!
//! Paths drawn by a seed that no calibration uses run as fast as they go and at a rate, each once, and are compared with what was
//! predicted for them. Without a profile this host is calibrated first. It ends after so many seconds. Judges nothing.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use std::time::{Duration, Instant};

use daqmeter_campaign::calibrate::{Paths, calibrate, check};
use daqmeter_campaign::{Runner, drawn_path};
use daqmeter_harness::Context;
use daqmeter_path::Path;
use daqmeter_record::Tool;
use daqmeter_stats::simulated::Random;
use daqmeter_twin::{Check, Predicted, Prediction, Profile, predict};

/// Sizes of errors, and whether the intervals held.
#[derive(Default)]
struct Errors {
    sizes: Vec<f64>,
    held: usize,
}

impl Errors {
    fn ratio(&mut self, predicted: Predicted, measured: f64) {
        self.sizes.push((predicted.value / measured - 1.0).abs());
        self.held += usize::from(predicted.holds(measured));
    }

    fn difference(&mut self, predicted: Predicted, measured: f64) {
        self.sizes.push((predicted.value - measured).abs());
        self.held += usize::from(predicted.holds(measured));
    }

    fn line(&self, name: &str) -> String {
        let sorted = daqmeter_stats::sorted(&self.sizes);
        let of = |share| 100.0 * daqmeter_stats::quantile(&sorted, share);
        let held = 100.0 * self.held as f64 / sorted.len() as f64;
        format!(
            "{name:<24} {:>5} {:>10.1} {:>10.1} {held:>12.1}",
            sorted.len(),
            of(0.5),
            of(0.9)
        )
    }
}

#[derive(Default)]
struct Sums {
    rate: Errors,
    p50: Errors,
    p99: Errors,
    cpu: Errors,
    paths: usize,
}

impl Sums {
    fn add(&mut self, free: (&Prediction, &Check), paced: (&Prediction, &Check)) {
        self.paths += 1;
        self.rate.ratio(free.0.largest_hz, free.1.rate.measured);
        self.p50.ratio(paced.0.p50_ns, paced.1.p50_ns.measured);
        self.p99.ratio(paced.0.p99_ns, paced.1.p99_ns.measured);
        for (predicted, check) in [free, paced] {
            for (row, pair) in predicted.rows.iter().zip(&check.cpu) {
                self.cpu.difference(row.cpu, pair.measured);
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|text| text != "--bench")
        .collect();
    let number = |at: usize, usual: u64| {
        arguments
            .get(at)
            .and_then(|text| text.parse().ok())
            .unwrap_or(usual)
    };
    let (paths, seed, seconds) = (number(0, 200), number(1, 1), number(2, 280));
    let runner = Runner::new(Context::gather(Tool::default(), String::new(), Vec::new()));
    let began = Instant::now();
    let profile = match arguments.get(3) {
        Some(file) => Profile::parse(&std::fs::read_to_string(file).unwrap()).unwrap(),
        None => calibrate(&runner, Duration::from_secs(55), &mut |step| {
            println!("{step}")
        })
        .unwrap(),
    };
    let mut random = Random::new(seed);
    let mut sums = Sums::default();
    let mut live = Paths::new(&runner).unwrap();
    while sums.paths < usize::try_from(paths).unwrap() && began.elapsed().as_secs() < seconds {
        let drawn = drawn_path(&mut random);
        let [free, paced] = check(&mut live, &profile, &drawn).unwrap();
        let mut shape = Path::parse(&drawn.text, "drawn").unwrap().shape().unwrap();
        let first = predict(&shape, &profile, 1).unwrap();
        shape.rate_hz = paced.rate_hz;
        let second = predict(&shape, &profile, 1).unwrap();
        println!(
            "{:>8.0} {:>8.0} blocks/s {:>6.0} {:>6.0} us  {}",
            first.largest_hz.value,
            free.rate.measured,
            second.p99_ns.value / 1e3,
            paced.p99_ns.measured / 1e3,
            free.line
        );
        sums.add((&first, &free), (&second, &paced));
    }
    println!(
        "\nseed {seed}, {} paths, profile of {}, {} checks",
        sums.paths,
        profile.time_utc,
        profile.checks.len()
    );
    println!("                             n median [%]    p90 [%] in 90 % [%]");
    let all = [
        ("largest rate", &sums.rate),
        ("latency, median", &sums.p50),
        ("latency, p99", &sums.p99),
    ];
    for (name, errors) in all {
        println!("{}", errors.line(name));
    }
    println!("{}", sums.cpu.line("CPU of a thread [points]"));
}
