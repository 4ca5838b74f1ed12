//! Real work in rounds: an invocation of the program, one with every point 5 % slower, and one of
//! the program again. They are stored, so that rounds of several runs are judged together.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use daqmeter_campaign::{Plan, PlannedPoint, Site, engine};
use daqmeter_harness::{
    Context, DeviceTime, Fault, Job, Session, Settings, StageSpec, Tally, TomlText, measure,
    observe,
};
use daqmeter_record::{Host, RunRecord, jsonl};
use daqmeter_report::cmp::{Compared, Conclusion, cmp};
use daqmeter_stats::Asked;
use daqmeter_stats::Random;

use crate::promise::Promise;

/// Occasions a side of a comparison with real work: the fewest that count as in turn, for the most
/// independent comparisons.
const OCCASIONS: usize = 5;
const MORE_OCCASIONS: usize = 10;
const COMPARISONS: usize = 500;
const PAIRS: usize = 500;
const HISTORY: usize = 20;
const IGNORE: f64 = 0.02;

/// Work that is 5 % slower, since it repeats every twentieth operation. Both sides go through it:
/// an additional call on one side shifts the stack. On some hosts that alone changes conversions of
/// 270 ns by 4 %.
struct SlowedSession {
    inner: Box<dyn Session>,
    every: u64,
    owed: u64,
}

/// Interval of repeated operations: every twentieth, or never.
const SLOWED: u64 = 20;
const UNCHANGED: u64 = u64::MAX;

fn slowed(job: Job, is_slower: bool) -> Job {
    let every = if is_slower { SLOWED } else { UNCHANGED };
    let opener = job.opener;
    let opener = Box::new(move || {
        let slowed =
            |inner| -> Box<dyn Session> { Box::new(SlowedSession { inner, every, owed: 0 }) };
        Ok(opener()?.into_iter().map(slowed).collect())
    });
    Job { opener, ..job }
}

impl Session for SlowedSession {
    fn device(&self) -> String {
        self.inner.device()
    }

    fn stages(&self) -> Vec<StageSpec> {
        self.inner.stages()
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        self.inner.prepare()
    }

    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault> {
        self.owed += operations;
        let more = self.owed / self.every;
        self.owed %= self.every;
        self.inner.step(stage, operations + more)
    }

    fn device_time(&self) -> DeviceTime {
        self.inner.device_time()
    }

    fn verify(&mut self) -> Result<(), Fault> {
        self.inner.verify()
    }

    fn tally(&mut self) -> Tally {
        self.inner.tally()
    }
}

/// Points with operations far shorter than a sample, so that every sample has repeated ones.
const POINTS: &str = "
title = 'promises'
repetitions = 2
time = '10ms'
[[sweep]]
study = 'promises'
engine = 'convert'
workload = { scale_factor = 0.123, scale_offset = -45.6, samples = 2000 }
axes = { function = [3, 2] }
[[sweep]]
study = 'promises'
engine = 'copy'
workload = { path = 'pread', context = 'cpu', direction = 'to', block_bytes = '4KiB', lanes = 1 }
";

fn occasion(context: &Context, number: u64, is_slower: bool) -> Vec<RunRecord> {
    let pin = context.host.allowed_cpus.last().copied();
    let site = Site {
        host: Host::clone(&context.host),
        pin: Some(pin.into_iter().collect()),
        seed: Some(number * 100),
    };
    let plan = Plan::of(&TomlText::new("promises", POINTS), &site).unwrap();
    // Engines of limits are left out, since they take most of the time and the records have
    // controls.
    let measured = |point: PlannedPoint| {
        let job = engine(&point.engine).unwrap().parse(&point.workload).unwrap();
        let settings = Settings { pin: point.pin, ..Settings::new(point.steps, &point.study) };
        let observers = &mut observe::standard();
        let record = measure(&slowed(job, is_slower), &settings, context, &[], observers);
        let mut record = record.unwrap();
        assert!(record.outcome.is_ok(), "{:?}", record.outcome);
        record.order = Some(point.place);
        record.run_id = format!("occasion {number:06}");
        record.time_utc = record.run_id.to_string();
        record
    };
    plan.points.into_iter().map(measured).collect()
}

/// Occasions in turn: two of the program, and one with every point 5 % slower.
#[derive(Default)]
pub(crate) struct Rounds {
    plain: [Vec<Vec<RunRecord>>; 2],
    slowed: Vec<Vec<RunRecord>>,
}

const PARTS: [&str; 3] = ["before", "slowed", "after"];

/// Rounds after which every promise has enough independent comparisons, and a few more.
const ENOUGH: usize = 37 * OCCASIONS;

impl Rounds {
    /// Reads the rounds of the folder, and adds new ones to it for `time`. With `stops_at_enough`
    /// it ends when there are enough.
    pub(crate) fn measured(folder: &Path, time: Duration, stops_at_enough: bool) -> Rounds {
        let (began, mut found) = (Instant::now(), Rounds::default());
        let context = Context::gather(Default::default(), "cargo bench".to_owned(), Vec::new());
        std::fs::create_dir_all(folder).unwrap();
        loop {
            let first = 3 * found.slowed.len() as u64;
            let file = |part: &str| folder.join(format!("{:04}-{part}.jsonl", found.slowed.len()));
            if PARTS.iter().all(|part| file(part).exists()) {
                found.add(PARTS.map(|part| records(&file(part))));
                continue;
            }
            let is_enough = stops_at_enough && found.slowed.len() >= ENOUGH;
            if is_enough || began.elapsed() >= time {
                return found;
            }
            let round = [0, 1, 2].map(|at| occasion(&context, first + at, at == 1));
            for (part, records) in PARTS.iter().zip(&round) {
                let lines = records.iter().map(|record| serde_json::to_string(record).unwrap());
                let text: String = lines.map(|line| line + "\n").collect();
                std::fs::write(file(part), text).unwrap();
            }
            found.add(round);
        }
    }

    fn add(&mut self, [before, slowed, after]: [Vec<RunRecord>; 3]) {
        let [first, second] = &mut self.plain;
        first.push(before);
        second.push(after);
        self.slowed.push(slowed);
    }

    /// Compares `occasions` neighbouring rounds a side, from a random one on. In each round a lot
    /// decides which of two invocations of the program is A's.
    fn compared(&self, occasions: usize, is_slowed: bool) -> Vec<Compared> {
        let rounds = self.slowed.len();
        if rounds < occasions {
            return Vec::new();
        }
        let mut random = Random::new(7);
        let mut compare = |_| {
            let first = (random.uniform() * (rounds - occasions + 1) as f64) as usize;
            let (mut a, mut b) = (Vec::new(), Vec::new());
            for round in first..first + occasions {
                let lot = usize::from(random.uniform() < 0.5);
                a.extend_from_slice(&self.plain[lot][round]);
                let other = match is_slowed {
                    true => &self.slowed[round],
                    false => &self.plain[1 - lot][round],
                };
                b.extend_from_slice(other);
            }
            cmp(&a, &b, &[], Asked::ignoring(IGNORE))
        };
        (0..COMPARISONS).map(&mut compare).collect()
    }

    pub(crate) fn promises(&self, where_: &str) -> Vec<Promise> {
        let rounds = self.slowed.len();
        let mut promises = Vec::new();
        for occasions in [MORE_OCCASIONS, OCCASIONS] {
            let [alike, slowed] = [false, true].map(|it| self.compared(occasions, it));
            let count = |of: &[Compared], is: &dyn Fn(&Compared) -> bool| {
                of.iter().filter(|found| is(found)).count()
            };
            let (wrong, speed_up) =
                (count(&alike, &differs), count(&slowed, &|found| found.count("faster") > 0));
            println!(
                "{where_}: {rounds} rounds, {occasions} a side in turn: of {} with 5 % {} found it; of {} of the same program {} were the same, {wrong} different",
                slowed.len(),
                count(&slowed, &slower),
                alike.len(),
                count(&alike, &|found| found.conclusion == Conclusion::Same),
            );
            let promise = |name: &str, wrong: usize| {
                let name = format!("real work, {where_}, {occasions} a side in turn, {name}");
                Promise::false_ones(name, wrong, COMPARISONS, rounds / occasions)
            };
            if occasions == OCCASIONS {
                promises.push(promise("false", wrong));
                promises.push(promise("slowdown a speed-up", speed_up));
            }
        }
        let invocations = self.plain.concat();
        let false_ones = if rounds > 1 { pairs(&invocations, 0) } else { 0 };
        let name = format!("real work, {where_}, pairs of single invocations, false");
        // A pair has two rounds.
        promises.push(Promise::false_ones(name, false_ones, PAIRS, rounds / 2));
        promises
    }
}

fn differs(found: &Compared) -> bool {
    found.conclusion == Conclusion::Different
}

fn slower(found: &Compared) -> bool {
    let is_found = |ratio: f64| (1.02..1.10).contains(&ratio);
    let points = found.points.iter().filter(|point| point.verdict == "slower");
    points.filter(|point| is_found(point.ratio)).count() > 0
}

/// Counts random pairs of invocations that are found to differ, each with `history` others as its
/// history.
fn pairs(invocations: &[Vec<RunRecord>], history: usize) -> usize {
    let mut random = Random::new(3);
    let mut draw = || {
        let place = (random.uniform() * invocations.len() as f64) as usize;
        place.min(invocations.len() - 1)
    };
    let mut false_ones = 0;
    for _ in 0..PAIRS {
        let (a, mut b) = (draw(), draw());
        while b == a {
            b = draw();
        }
        let others: Vec<usize> =
            (0..history).map(|_| draw()).filter(|at| *at != a && *at != b).collect();
        let others: std::collections::BTreeSet<usize> = others.into_iter().collect();
        let others: Vec<RunRecord> =
            others.into_iter().flat_map(|at| invocations[at].clone()).collect();
        let found = cmp(&invocations[a], &invocations[b], &others, Asked::ignoring(IGNORE));
        if differs(&found) {
            println!("false comparison of a pair:\n{}", found.text(false));
        }
        false_ones += usize::from(differs(&found));
    }
    false_ones
}

fn records(path: &Path) -> Vec<RunRecord> {
    let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
    jsonl::read_printable(file).unwrap().records
}

pub(crate) fn stored(folder: &Path) -> Vec<Promise> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
    files.sort();
    let invocations: Vec<Vec<RunRecord>> = files.iter().map(|path| records(path)).collect();
    println!("{} stored invocations", invocations.len());
    [("no history", 0), ("up to 20 others as history", HISTORY)]
        .map(|(name, history)| {
            let name = format!("stored invocations, pairs, {name}, false");
            let false_ones = pairs(&invocations, history);
            Promise::false_ones(name, false_ones, PAIRS, invocations.len() / 2)
        })
        .into()
}
