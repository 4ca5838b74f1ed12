//! What `daqmeter ab` promises, on simulated hosts and with real work: equal sides are seldom called different, and a slowdown of 1 % is found.
//!
//! `cargo bench -p daqmeter-campaign --bench ab -- simulated [TESTS]`: false verdicts on hosts whose noise is known. Exits with 1 when more
//! are wrong than promised.
//! `cargo bench -p daqmeter-campaign --bench ab -- real [TESTS] [SECONDS] [LOAD]`: points against themselves, and against 1 % more work, beside
//! so many threads of our own for each CPU. Prints what it found; judges nothing, as the host is what it is.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a benchmark prints what it found, and stops where it fails; its numbers are small"
)]

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use daqmeter_campaign::ab::{PATIENCE, Question, Request, Side, Verdict, ask, serve};
use daqmeter_harness::StopFlag;
use daqmeter_stats::simulated::{Kind, Random, null_row};
use daqmeter_stats::{Decision, MedianSequence, median, quantile, sorted};

/// Argument that makes this program a side.
const SIDE: &str = "side";
/// Chance of a wrong answer that is asked for.
const ALPHA: f64 = 0.01;
/// Blocks of a simulated comparison, and groups of a block.
const BLOCKS: usize = 100;
const GROUPS: usize = 12;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let number = |at: usize, usual: f64| {
        words
            .get(at)
            .map_or(usual, |word| word.parse().expect("a number is wanted"))
    };
    match words.first().map(String::as_str) {
        Some(SIDE) => {
            let page = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
            serve(page.into()).unwrap();
            ExitCode::SUCCESS
        }
        Some("real") => {
            real(
                number(1, 10.0) as u64,
                number(2, 10.0),
                number(3, 0.0) as usize,
            );
            ExitCode::SUCCESS
        }
        _ => simulated(number(1, 1000.0) as usize),
    }
}

/// A host in which values of slices follow each other like that, and processes differ by so much (standard deviation).
struct Host {
    name: &'static str,
    kind: Kind,
    process: f64,
}

const HOSTS: [Host; 8] = [
    Host {
        name: "independent, 2 %",
        kind: Kind::Independent,
        process: 0.0,
    },
    Host {
        name: "AR(1) 0.3",
        kind: Kind::Correlated(0.3),
        process: 0.0,
    },
    Host {
        name: "AR(1) 0.7",
        kind: Kind::Correlated(0.7),
        process: 0.0,
    },
    Host {
        name: "AR(1) 0.99",
        kind: Kind::Correlated(0.99),
        process: 0.0,
    },
    Host {
        name: "bursts",
        kind: Kind::Bursts,
        process: 0.0,
    },
    Host {
        name: "two modes, 12 %",
        kind: Kind::TwoModes,
        process: 0.0,
    },
    Host {
        name: "skewed, 5 %",
        kind: Kind::Skewed,
        process: 0.0,
    },
    Host {
        name: "AR(1) 0.7, processes 1 %",
        kind: Kind::Correlated(0.7),
        process: 0.01,
    },
];

fn simulated(tests: usize) -> ExitCode {
    println!(
        "{tests} comparisons each of at most {BLOCKS} blocks of {GROUPS} groups; chance of a wrong answer asked for: {ALPHA}"
    );
    println!(
        "{:28} {:>14} {:>8} {:>10} {:>14} {:>14}",
        "host", "equal: wrong", "same", "blocks", "1 %, >0.5 %", "1 % as same"
    );
    let mut is_kept = true;
    for host in &HOSTS {
        let mut random = Random::new(17);
        let equal: Vec<_> = (0..tests)
            .map(|_| compared(host, 0.0, 0.01, &mut random))
            .collect();
        let slower: Vec<_> = (0..tests)
            .map(|_| compared(host, 0.01, 0.005, &mut random))
            .collect();
        let count = |found: &[(Decision, usize)], wanted: &[Decision]| {
            found
                .iter()
                .filter(|(decision, _)| wanted.contains(decision))
                .count()
        };
        let wrong = count(&equal, &[Decision::Slower, Decision::Faster]);
        let missed = count(&slower, &[Decision::Same, Decision::Faster]);
        let blocks: Vec<f64> = equal.iter().map(|(_, blocks)| *blocks as f64).collect();
        println!(
            "{:28} {:>14} {:>8} {:>10.0} {:>14} {:>14}",
            host.name,
            wrong,
            count(&equal, &[Decision::Same]),
            median(&blocks),
            count(&slower, &[Decision::Slower]),
            missed
        );
        // Three standard deviations of a count above what is promised.
        let most = tests as f64 * ALPHA;
        is_kept &= (wrong.max(missed) as f64) <= most + 3.0 * most.sqrt();
    }
    if is_kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// One comparison, looked at after each block; how it ended, after how many blocks.
fn compared(host: &Host, effect: f64, ignore: f64, random: &mut Random) -> (Decision, usize) {
    let slices = null_row(host.kind, BLOCKS * GROUPS * 4, random);
    let mut sequence = MedianSequence::new(ALPHA);
    for (at, slices) in slices.chunks(GROUPS * 4).enumerate() {
        let process = effect + host.process * (random.normal() - random.normal());
        let ratios: Vec<f64> = slices.chunks(4).map(|group| ratio(group, random)).collect();
        sequence.push(median(&ratios) + process);
        let decision = sequence.decision(ignore);
        if decision != Decision::Undecided {
            return (decision, at + 1);
        }
    }
    (Decision::Undecided, BLOCKS)
}

/// Logarithm of B over A of a group whose order is drawn by lot.
fn ratio(group: &[f64], random: &mut Random) -> f64 {
    let ratio = ((group[0] + group[3]) / (group[1] + group[2])).ln();
    if random.uniform() < 0.5 {
        ratio
    } else {
        -ratio
    }
}

/// Points that any host has, with one that does 1 % more.
const POINTS: [(&str, &str); 3] = [
    (
        "convert function=3 samples=20000",
        "convert function=3 samples=20200",
    ),
    (
        "memory read_bytes=409600 read_lines=1 write_lines=0",
        "memory read_bytes=413696 read_lines=1 write_lines=0",
    ),
    (
        "memory read_bytes=12800 write_lines=1 read_lines=1",
        "memory read_bytes=12928 write_lines=1 read_lines=1",
    ),
];

fn real(tests: u64, seconds: f64, load: usize) {
    let load = Load::of(load);
    println!(
        "{tests} comparisons each, at most {seconds} s a point, beside {} threads of our own",
        load.threads.len()
    );
    println!(
        "{:52} {:>6} {:>5} {:>6} {:>6} {:>9} {:>9} {:>9} {:>9}",
        "", "ignore", "same", "slower", "faster", "undecided", "p50 |d|", "p95 |d|", "s, median"
    );
    for (point, more) in POINTS {
        report(point, point, 0.01, tests, seconds);
        report(point, more, 0.005, tests, seconds);
    }
    load.end();
}

/// Compares so often, and prints one line.
fn report(a: &str, b: &str, ignore: f64, tests: u64, seconds: f64) {
    let (mut verdicts, mut apart, mut took) = ([0_u64; 4], Vec::new(), Vec::new());
    for seed in 0..tests {
        let began = Instant::now();
        let question = question(a, b, ignore, seed, seconds);
        let found = ask(&question, &StopFlag::default(), |_| ()).unwrap();
        for answer in &found.answers {
            verdicts[answer.verdict as usize] += 1;
            apart.push((answer.ratio.unwrap_or(1.0).ln().abs() * 100.0).min(1e6));
        }
        took.push(began.elapsed().as_secs_f64());
    }
    let count = |verdict: Verdict| verdicts[verdict as usize];
    let at = |share| quantile(&sorted(&apart), share);
    let name = if a == b {
        a.to_owned()
    } else {
        format!("{a} +1 %")
    };
    println!(
        "{name:52} {:>6} {:>5} {:>6} {:>6} {:>9} {:>9.2} {:>9.2} {:>9.1}",
        format!("{} %", ignore * 100.0),
        count(Verdict::Same),
        count(Verdict::Slower),
        count(Verdict::Faster),
        count(Verdict::Undecided),
        at(0.5),
        at(0.95),
        median(&took)
    );
}

fn question(a: &str, b: &str, ignore: f64, seed: u64, seconds: f64) -> Question {
    let cpu = daqmeter_sys::affinity::allowed_cpus()
        .unwrap()
        .last()
        .copied();
    let side = |text: &str| Side::Point {
        program: std::env::current_exe().unwrap(),
        arguments: vec![SIDE.to_owned()],
        request: Request {
            cpu,
            ..Request::parse(text).unwrap()
        },
    };
    let budget = Duration::from_secs_f64(seconds);
    Question {
        sides: [side(a), side(b)],
        ignore,
        alpha: ALPHA,
        budget,
        patience: PATIENCE,
        seed,
        switch: None,
    }
}

/// Threads that keep all CPUs busy.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    /// So many for each CPU.
    fn of(each: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let cpus = daqmeter_sys::affinity::allowed_cpus().unwrap().len();
        let work = || {
            let stop = stop.clone();
            std::thread::spawn(move || {
                let (from, mut to) = (vec![1_u8; 1 << 19], vec![0_u8; 1 << 19]);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
                }
            })
        };
        let threads = (0..cpus * each).map(|_| work()).collect();
        Load { stop, threads }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}
