//! Promises of `daqmeter ab`, on simulated hosts and with real work: equal sides are not called
//! different, and 1 % more work is found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use daqmeter_campaign::ab::{
    AbSide, AbVerdict, Answer, PATIENCE, Question, SideRequest, ask, serve,
};
use daqmeter_harness::StopFlag;
use daqmeter_stats::{Decision, MedianSequence, Random, median};

use crate::promise::Promise;
use crate::simulated::{Kind, null_row};

const ALPHA: f64 = 0.01;
const BLOCKS: usize = 100;
const GROUPS: usize = 12;

pub(crate) fn side() {
    serve(std::io::stdin().lock(), std::io::stdout().lock()).unwrap();
}

/// A host with this correlation of values of slices and this standard deviation between processes.
struct Host {
    name: &'static str,
    kind: Kind,
    process: f64,
}

const HOSTS: [Host; 8] = [
    Host { name: "independent, 2 %", kind: Kind::Independent, process: 0.0 },
    Host { name: "AR(1) 0.3", kind: Kind::Correlated(0.3), process: 0.0 },
    Host { name: "AR(1) 0.7", kind: Kind::Correlated(0.7), process: 0.0 },
    Host { name: "AR(1) 0.99", kind: Kind::Correlated(0.99), process: 0.0 },
    Host { name: "bursts", kind: Kind::Bursts, process: 0.0 },
    Host { name: "two modes, 12 %", kind: Kind::TwoModes, process: 0.0 },
    Host { name: "skewed, 5 %", kind: Kind::Skewed, process: 0.0 },
    Host { name: "AR(1) 0.7, processes 1 %", kind: Kind::Correlated(0.7), process: 0.01 },
];

pub(crate) fn simulated(tests: usize) -> Vec<Promise> {
    let of_host = |host: &Host| {
        let mut random = Random::new(17);
        let mut wrong = |effect: f64, ignore: f64, wrong: [Decision; 2]| {
            let found = (0..tests).map(|_| compared(host, effect, ignore, &mut random).0);
            found.filter(|decision| wrong.contains(decision)).count()
        };
        let differ = wrong(0.0, 0.01, [Decision::Slower, Decision::Faster]);
        let missed = wrong(0.01, 0.005, [Decision::Same, Decision::Faster]);
        [("equal sides differ", differ), ("1 % is none", missed)].map(|(name, wrong)| {
            let name = format!("ab, {name}: {}", host.name);
            Promise::false_ones(name, wrong, tests)
        })
    };
    HOSTS.iter().flat_map(of_host).collect()
}

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

/// Returns the logarithm of B over A of a group whose order is drawn by lot.
fn ratio(group: &[f64], random: &mut Random) -> f64 {
    let ratio = ((group[0] + group[3]) / (group[1] + group[2])).ln();
    if random.uniform() < 0.5 { ratio } else { -ratio }
}

const POINTS: [(&str, &str); 3] = [
    ("convert function=3 samples=20000", "convert function=3 samples=20200"),
    ("convert function=2 samples=20000", "convert function=2 samples=20200"),
    ("convert function=3 samples=200000", "convert function=3 samples=202000"),
];
/// Ignored differences: for a difference of 1 % that should be found, and for none.
const IGNORED: [f64; 2] = [0.005, 0.01];
const POINT_S: f64 = 2.0;
/// Seconds for a point against itself, and the largest apparent difference of its sides.
const QUICK_S: f64 = 1.0;
const APART: f64 = 0.012;

/// Compares real points in rounds for `time`: against 1 % more, against themselves, and the latter
/// in a second. `found` is the share of slowdowns that has to be found.
pub(crate) fn real(where_: &str, time: Duration, found: f64) -> Vec<Promise> {
    let (began, mut seed) = (Instant::now(), 0);
    let (mut right, mut wrong, mut alarms, mut near, mut of) = ([0; POINTS.len()], 0, 0, 0, 0);
    while began.elapsed() < time {
        for ((point, more), right) in POINTS.into_iter().zip(&mut right) {
            seed += 1;
            let slower = answer(question(point, more, IGNORED[0], seed, POINT_S));
            let same = answer(question(point, point, IGNORED[1], seed, QUICK_S));
            *right += usize::from(slower.verdict == AbVerdict::Slower);
            wrong += usize::from(matches!(slower.verdict, AbVerdict::Same | AbVerdict::Faster));
            alarms += usize::from(matches!(same.verdict, AbVerdict::Slower | AbVerdict::Faster));
            let apart = same.ratio.map_or(f64::INFINITY, |ratio| ratio.ln().abs());
            near += usize::from(apart <= APART);
            of += 1;
        }
    }
    for ((point, _), right) in POINTS.into_iter().zip(right) {
        println!("{where_}: {point}: 1 % found in {right} of {}", of / POINTS.len());
    }
    let right = right.iter().sum();
    let name = |what: &str| format!("ab, {where_}, {what}");
    vec![
        Promise::right_ones(name("1 % found within 2 s a point"), right, of, found),
        Promise::false_ones(name("1 % taken for none or less"), wrong, of),
        Promise::false_ones(name("with itself, different"), alarms, of),
        Promise::right_ones(name("with itself, within 1.2 % in 1 s"), near, of, 0.95),
    ]
}

fn answer(question: Question) -> Answer {
    ask(&question, &StopFlag::default()).unwrap().remove(0)
}

fn question(a: &str, b: &str, ignore: f64, seed: u64, seconds: f64) -> Question {
    let cpu = daqmeter_sys::affinity::allowed_cpus().unwrap().last().copied();
    let side = |text: &str| AbSide {
        program: std::env::current_exe().unwrap(),
        arguments: vec![crate::SIDE.to_owned()],
        request: SideRequest { cpu, ..SideRequest::parse(text).unwrap() },
    };
    let budget = Duration::from_secs_f64(seconds);
    Question { sides: [side(a), side(b)], ignore, alpha: ALPHA, budget, patience: PATIENCE, seed }
}

pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    pub(crate) fn of(each: usize) -> Load {
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
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut self.threads);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
