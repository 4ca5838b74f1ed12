//! Whether `path explain` is right: `cargo bench -p daqmeter-path --bench validate [-- CASES SEED SECONDS]` [40, 1, 0.05 a run].
//!
//! Random paths of 3 to 6 elements get a limit that is known because it was put there: a stage of `work` or `wait`, with one or two
//! threads, work in several stages on too few CPUs, all threads on one CPU. For each the table says which limit was put there, which was
//! named, the predicted and the real gain of taking it out, and the largest rate that was predicted from runs at half of it. Judges nothing: the
//! sums at the end are for the record.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use std::path::Path as FilePath;

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_path::explain::{Answer, Load, Seen, System, explain};
use daqmeter_path::{Path, PathEngine, PathRequest};
use daqmeter_record::resources::What;
use daqmeter_stats::simulated::Random;

const ROUNDS: usize = 4;

/// A path that can be run again and again.
struct Chain {
    path: Path,
    file: String,
    seconds: f64,
}

impl Chain {
    fn new(folder: &FilePath, text: &str, seconds: f64) -> Chain {
        let file = folder.join("path.toml");
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap().to_owned();
        let path = Path::load(&file).unwrap_or_else(|error| panic!("{error}\n{text}"));
        Chain {
            path,
            file,
            seconds,
        }
    }
}

impl System for Chain {
    type Error = String;

    fn run(&mut self, load: Load) -> Result<Seen, String> {
        let mut request = PathRequest::new(&self.path, self.seconds);
        request.path.clone_from(&self.file);
        match load {
            Load::Free => {}
            Load::Slowed { element, ns } => {
                request.slow_element = Some(element as u64);
                request.slow_ns = ns;
            }
            Load::Every { ns } => request.rate_hz = Some(1e9 / ns),
        }
        let settings = Settings::new(StepPlan::ByStage(1), "bench");
        let (engine, context) = (PathEngine::default(), Context::default());
        let workload = request.workload();
        let record = measure(&engine, &workload, &settings, &context, &[], &mut []);
        let record = record.map_err(|error| error.to_string())?;
        let run = record.path.ok_or("no run")?;
        Ok(Seen::of(&run))
    }
}

/// A limit that is put into a path.
#[derive(Clone, Copy, Debug)]
enum Put {
    /// One stage works, with so many threads.
    Work,
    /// One stage waits, with so many threads.
    Wait(usize),
    /// Several stages work, more than there are CPUs.
    Shared,
    /// All threads are on one CPU, two of them at work.
    OneCpu,
}

const PUTS: [Put; 5] = [
    Put::Work,
    Put::Wait(1),
    Put::Wait(2),
    Put::Shared,
    Put::OneCpu,
];

/// A number below another.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small counts"
)]
fn below(random: &mut Random, bound: usize) -> usize {
    (random.uniform() * bound as f64) as usize
}

/// A random path.
struct Case {
    block_kib: u64,
    /// Ordinary stages.
    stages: Vec<&'static str>,
    put: Put,
    /// Before which of them the limit stands.
    at: usize,
    /// Its time over the time per block of the path without it.
    times: f64,
}

impl Case {
    fn random(random: &mut Random, put: Put) -> Case {
        let kinds = ["copy", "checksum", "unix"];
        let stages: Vec<&str> = (0..below(random, 3))
            .map(|_| kinds[below(random, kinds.len())])
            .collect();
        Case {
            block_kib: [16, 64, 256][below(random, 3)],
            at: below(random, stages.len() + 1),
            stages,
            put,
            times: 3.2 + 2.8 * random.uniform(),
        }
    }

    /// The path's file, with so many nanoseconds in each stage that was put in.
    fn text(&self, ns: f64) -> String {
        let cpus = match self.put {
            Put::OneCpu => format!("cpus = [{}]\n", daqmeter_sys::affinity::process_cpus()[0]),
            Put::Work | Put::Wait(_) | Put::Shared => String::new(),
        };
        let part = |kind: &str| format!("[[stage]]\nkind = \"{kind}\"\n{cpus}");
        let mut stages: Vec<String> = self.stages.iter().map(|kind| part(kind)).collect();
        let time = format!("time = \"{}ns\"\n", ns.round().max(1.0));
        let (kind, threads, count) = match self.put {
            Put::Work => ("work", 1, 1),
            Put::Wait(threads) => ("wait", threads, 1),
            Put::Shared => ("work", 1, most_shared()),
            Put::OneCpu => ("work", 1, 2),
        };
        for _ in 0..count {
            let stage = format!("{}{time}threads = {threads}\n", part(kind));
            stages.insert(self.at, stage);
        }
        format!(
            "title = \"a case\"\nblock = \"{}KiB\"\n[source]\nkind = \"memory\"\nspan = \"1MiB\"\n{cpus}{}[sink]\nkind = \"read\"\n{cpus}",
            self.block_kib,
            stages.concat()
        )
    }

    fn is_limit(&self, what: &What) -> bool {
        match (self.put, what) {
            (Put::Work, What::Threads { name, .. }) => name == "work",
            (Put::Wait(_), What::Threads { name, .. }) => name == "wait",
            (Put::Shared, What::AllCpus) => true,
            (Put::OneCpu, What::Cpu(cpu)) => *cpu == daqmeter_sys::affinity::process_cpus()[0],
            _ => false,
        }
    }
}

/// Stages that work in a path whose CPUs are to be the limit: half as many again.
fn most_shared() -> usize {
    let cpus = daqmeter_sys::affinity::process_cpus().len();
    cpus + cpus.div_ceil(2)
}

/// What came of a case.
struct Came {
    right: bool,
    wrong: bool,
    /// Predicted over real gain, less one.
    gain: Option<f64>,
    /// Predicted over measured rate, less one.
    rate: f64,
}

fn try_case(folder: &FilePath, case: &Case, seconds: f64) -> Result<(Came, String), String> {
    let mut without = Chain::new(folder, &case.text(1.0), seconds);
    let base_ns = without.run(Load::Free)?.block_ns;
    let threads = match case.put {
        Put::Wait(threads) => threads as f64,
        Put::Work | Put::Shared | Put::OneCpu => 1.0,
    };
    let put_ns = base_ns * case.times * threads;
    let mut with = Chain::new(folder, &case.text(put_ns), seconds);
    let parts = with.path.parts();
    let explained = explain(&mut with, &parts, ROUNDS)?;
    let right = matches!(&explained.answer, Answer::Limit(what) if case.is_limit(what));
    let wrong = matches!(&explained.answer, Answer::Limit(_)) && !right;
    let real = match case.put {
        Put::Work | Put::Wait(_) => {
            let mut without = Chain::new(folder, &case.text(1.0), seconds);
            let runs: Result<Vec<Seen>, String> =
                (0..ROUNDS).map(|_| without.run(Load::Free)).collect();
            let ns: Vec<f64> = runs?.iter().map(|seen| seen.block_ns).collect();
            Some(explained.block_ns.mean / daqmeter_stats::median(&ns))
        }
        Put::Shared | Put::OneCpu => None,
    };
    let gain = explained.gain.filter(|_| right).zip(real);
    let rate = explained.block_ns.mean / explained.predicted_ns.mean - 1.0;
    let named = match &explained.answer {
        Answer::Limit(what) => what.text(),
        Answer::NoSingle => "no single one".to_owned(),
        Answer::CannotTell => "cannot tell".to_owned(),
    };
    let gains = gain.map_or("-".to_owned(), |(predicted, real)| {
        format!("{:.2} / {real:.2}", predicted.mean)
    });
    let line = format!(
        "{:<8} {:>4} KiB {:<24} {:<24} gain {gains:<14} rate {:+.1} %",
        format!("{:?}", case.put),
        case.block_kib,
        case.stages.join(" "),
        named,
        rate * 100.0
    );
    let gain = gain.map(|(predicted, real)| predicted.mean / real - 1.0);
    let came = Came {
        right,
        wrong,
        gain,
        rate,
    };
    Ok((came, line))
}

/// Median and 90th percentile of the sizes, in per cent.
fn errors(values: &[f64]) -> String {
    let mut sizes: Vec<f64> = values.iter().map(|value| value.abs() * 100.0).collect();
    sizes.sort_by(f64::total_cmp);
    let within = sizes.iter().filter(|size| **size <= 10.0).count();
    match sizes.len() {
        0 => "none".to_owned(),
        n => format!(
            "median {:.1} %, p90 {:.1} %, {within} of {n} within 10 %",
            daqmeter_stats::quantile(&sizes, 0.5),
            daqmeter_stats::quantile(&sizes, 0.9)
        ),
    }
}

fn main() {
    let numbers: Vec<f64> = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse().ok())
        .collect();
    let number = |at: usize, usual: f64| numbers.get(at).copied().unwrap_or(usual);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small counts"
    )]
    let (cases, seed) = (number(0, 40.0) as usize, number(1, 1.0) as u64);
    let seconds = number(2, 0.05);
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for at in 0..cases {
        let case = Case::random(&mut random, PUTS[at % PUTS.len()]);
        match try_case(folder.path(), &case, seconds) {
            Ok((came, line)) => {
                println!("{line}");
                all.push(came);
            }
            Err(error) => println!("failed: {error}\n{}", case.text(1.0)),
        }
    }
    let count = |of: fn(&Came) -> bool| all.iter().filter(|came| of(came)).count();
    let gains: Vec<f64> = all.iter().filter_map(|came| came.gain).collect();
    let rates: Vec<f64> = all.iter().map(|came| came.rate).collect();
    println!(
        "\nseed {seed}, {seconds} s a run, {ROUNDS} rounds, {} CPUs, threads not pinned but for OneCpu",
        daqmeter_sys::available::cpus()
    );
    println!(
        "limits named: {} of {cases} right, {} wrong, the rest undecided",
        count(|came| came.right),
        count(|came| came.wrong)
    );
    println!("gain, predicted against real: {}", errors(&gains));
    println!(
        "largest rate, predicted against measured: {}",
        errors(&rates)
    );
}
