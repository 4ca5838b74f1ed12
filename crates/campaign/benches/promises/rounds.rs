//! Real work in rounds: an invocation of the program as it is, one whose every point is 5 % slower,
//! one as it is again; stored, so that rounds of several runs are judged together.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use daqmeter_campaign::{Plan, PlannedPoint, Site, engine};
use daqmeter_harness::{
    Context, DeviceTime, Fault, Job, Session, Settings, StageSpec, Tally, measure, observe,
};
use daqmeter_record::{Host, RunRecord, jsonl};
use daqmeter_report::cmp::{Compared, Conclusion, cmp};
use daqmeter_stats::Asked;
use daqmeter_stats::Random;

use crate::promise::Promise;

/// Occasions a side of a comparison with real work: the fewest that count as in turn, so that as
/// many comparisons as can be are independent.
const OCCASIONS: usize = 5;
/// As many as the manual recommends to record: what they find is printed.
const MORE_OCCASIONS: usize = 10;
/// Comparisons with real work of one kind.
const COMPARISONS: usize = 500;
/// Pairs of single invocations.
const PAIRS: usize = 500;
/// Other invocations that a pair is given as its history.
const HISTORY: usize = 20;
/// Differences that are ignored, as `daqmeter cmp` does by default.
const IGNORE: f64 = 0.02;

/// Work whose every so many operations one is done twice: every twentieth is 5 % slower, with real
/// work. Both sides go through it: one call more on one side only would shift the stack, which
/// alone changes conversions of 270 ns by 4 % on some hosts.
struct SlowedSession {
    inner: Box<dyn Session>,
    every: u64,
    owed: u64,
}

/// Every twentieth, and none.
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

/// Points whose operations are far shorter than a sample: the twentieth then falls into every
/// sample.
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

/// One invocation's worth: all points on the last CPU, in an order of their own.
fn occasion(context: &Context, number: u64, is_slower: bool) -> Vec<RunRecord> {
    let pin = context.host.allowed_cpus.last().copied();
    let site = Site {
        host: Host::clone(&context.host),
        pin: Some(pin.into_iter().collect()),
        seed: Some(number * 100),
    };
    let plan = Plan::parse_for(POINTS, "promises", &site).unwrap();
    // No engine of limits: they would take most of the time, and the controls stand in the records.
    let measured = |point: PlannedPoint| {
        let job = engine(&point.engine).unwrap().parse(&point.workload).unwrap();
        let settings = Settings { pin: point.pin, ..Settings::new(point.steps, &point.study) };
        let observers = &mut observe::standard();
        let record = measure(&slowed(job, is_slower), &settings, context, &[], observers);
        let mut record = record.unwrap();
        assert!(record.outcome.is_ok(), "{:?}", record.outcome);
        record.order = Some(point.place);
        record.run_id = format!("occasion {number:06}").into();
        record.time_utc = record.run_id.to_string();
        record
    };
    plan.points.into_iter().map(measured).collect()
}

/// Occasions in turn: of the program as it is twice, and of one whose every point is 5 % slower.
#[derive(Default)]
pub(crate) struct Rounds {
    plain: [Vec<Vec<RunRecord>>; 2],
    slowed: Vec<Vec<RunRecord>>,
}

/// Names of the three invocations of a round.
const PARTS: [&str; 3] = ["before", "slowed", "after"];

/// Rounds after which every promise has as many independent comparisons as it needs, and a few
/// more.
const ENOUGH: usize = 37 * OCCASIONS;

impl Rounds {
    /// Those that the folder holds, and more of them for so long, which are stored there; where no
    /// more is asked for than it takes, no longer than until there are enough.
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

    /// Comparisons of so many neighbouring rounds a side, from a random one on, and in each round
    /// by lot which of two of its invocations is A's: nothing but the lot makes A of one of two
    /// invocations of the same program.
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

    /// A round is in many comparisons: independent are only those that share none.
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
        // A pair is of two rounds.
        promises.push(Promise::false_ones(name, false_ones, PAIRS, rounds / 2));
        promises
    }
}

fn differs(found: &Compared) -> bool {
    found.conclusion == Conclusion::Different
}

/// Points that are found to be slower by about what was put in.
fn slower(found: &Compared) -> bool {
    let is_found = |ratio: f64| (1.02..1.10).contains(&ratio);
    let points = found.points.iter().filter(|point| point.verdict == "slower");
    points.filter(|point| is_found(point.ratio)).count() > 0
}

/// Random pairs of invocations that are found to differ; each with so many others as history.
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

/// Random pairs of invocations that were stored in a folder, a file each, by a program and on a
/// host that did not change.
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
