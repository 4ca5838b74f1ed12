//! Validation of `path explain`: `cargo bench -p daqmeter-path --bench validate [-- CASES SEED
//! SECONDS]` [40, 1, 0.1 a run].
//!
//! Random paths of 3 to 6 elements get a known limit: a stage of `work` or `wait`, with one or two
//! threads, work in several stages on too few CPUs, or all threads on one CPU. Each line gives the
//! limit that was put there, and the one that was named. Judges nothing: the sums at the end are
//! for the record.
//!
//! `-- cards [SECONDS ROUNDS]` [0.25 s a run, 8 rounds] is the same for a card that is read out live,
//! with chunks of several sizes:
//!
//! - reader, publisher, receiver: 1.5 us of work for each block beside its own, more than the other
//!   thread needs; each thread has a CPU of its own. Reader and publisher share a thread, which is
//!   the limit in both cases;
//! - CPU: both threads on one CPU;
//! - ring: of 2 MiB, looked at each 10 ms.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]

use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_path::explain::{Explanation, PathLoad, Seen, Slope, Used, explain};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::Host;
use daqmeter_record::path::{Interval, LimitFound, What};
use daqmeter_stats::Random;
use daqmeter_sys::affinity::process_cpus;

/// Time for an answer: the default of `path explain`.
const BUDGET: Duration = Duration::from_secs(30);

struct Chain {
    path: Path,
    request: PathRequest,
}

impl Chain {
    fn new(folder: &FilePath, name: &str, text: &str, seconds: f64) -> Chain {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        let path = Path::load(file.to_str().unwrap());
        let path = path.unwrap_or_else(|error| panic!("{error}\n{text}"));
        Chain { request: PathRequest::new(&path, seconds), path }
    }

    fn run(&self, load: PathLoad) -> Result<Seen, String> {
        let request = load.of(self.request.clone(), &self.path, None);
        let settings = Settings::new(StepPlan::ByStage(1), "bench");
        // Its CPUs tell what other programs use.
        let host = Host { allowed_cpus: process_cpus().to_vec(), ..Host::default() };
        let context = Context { host: host.into(), ..Context::default() };
        let record = measure(&request.job().unwrap(), &settings, &context, &[], &mut []);
        let record = record.map_err(|error| error.to_string())?;
        if !record.ledgers.iter().all(|ledger| ledger.closes()) {
            return Err("a ledger does not close".to_owned());
        }
        Seen::of(&record).ok_or("no run".to_owned())
    }
}

/// Answers so far, by verdict.
#[derive(Default)]
struct Counts([usize; 3]);

impl Counts {
    /// Counts an answer; returns its verdict and the limit that it names.
    fn judge(&mut self, answer: &LimitFound, is_limit: impl Fn(&What) -> bool) -> (&str, String) {
        let (at, named) = match answer {
            LimitFound::Limit(What::OtherPrograms) => (2, "other programs".to_owned()),
            LimitFound::Limit(what) => (usize::from(!is_limit(what)), what.text()),
            LimitFound::NoSingleOne => (1, "no single one".to_owned()),
            LimitFound::CannotTell => (2, "cannot tell".to_owned()),
        };
        self.0[at] += 1;
        (["right", "wrong", "cannot tell"][at], named)
    }

    fn text(&self) -> String {
        let [right, wrong, none] = self.0;
        format!("{right} right, {wrong} wrong, {none} cannot tell")
    }
}

#[derive(Clone, Copy, Debug)]
enum Put {
    Work,
    /// One stage waits, with this many threads.
    Wait(usize),
    Shared,
    /// All threads are on one CPU, two of them at work.
    OneCpu,
}

const PUTS: [Put; 5] = [Put::Work, Put::Wait(1), Put::Wait(2), Put::Shared, Put::OneCpu];

impl Put {
    /// Stages that take time; if the limit is the CPUs, half as many again.
    fn stages(self) -> usize {
        let cpus = process_cpus().len();
        match self {
            Put::Work | Put::Wait(_) => 1,
            Put::Shared => cpus + cpus.div_ceil(2),
            Put::OneCpu => 2,
        }
    }

    fn is_limit(self, what: &What) -> bool {
        match (self, what) {
            (Put::Work, What::Threads { name, .. }) => name == "work",
            (Put::Wait(_), What::Threads { name, .. }) => name == "wait",
            (Put::Shared, What::AllCpus) | (Put::OneCpu, What::Cpu(_)) => true,
            _ => false,
        }
    }
}

struct Case {
    block_kib: u64,
    stages: Vec<&'static str>,
    put: Put,
    at: usize,
    /// Its time over the time per block of the path without it.
    times: f64,
}

impl Case {
    fn random(random: &mut Random, put: Put) -> Case {
        let mut below = |bound: usize| (random.uniform() * bound as f64) as usize;
        let kinds = ["copy", "checksum", "unix"];
        // With source and sink at most six elements.
        let most = 4_usize.saturating_sub(put.stages()).min(2);
        let stages: Vec<&str> = (0..below(most + 1)).map(|_| kinds[below(kinds.len())]).collect();
        let (block_kib, at) = ([16, 64, 256][below(3)], below(stages.len() + 1));
        Case { block_kib, at, stages, put, times: 3.2 + 2.8 * random.uniform() }
    }

    /// File of the path, with the nanoseconds of each added stage. Without a limit the stages are
    /// there but take no time: a wait of a nanosecond would still set a timer.
    fn text(&self, ns: Option<f64>) -> String {
        let cpus = match self.put {
            Put::OneCpu => format!("cpus = [{}]\n", process_cpus()[0]),
            Put::Work | Put::Wait(_) | Put::Shared => String::new(),
        };
        let part = |kind: &str| format!("[[stage]]\nkind = \"{kind}\"\n{cpus}");
        let mut stages: Vec<String> = self.stages.iter().map(|kind| part(kind)).collect();
        let time = format!("time = \"{}ns\"\n", ns.unwrap_or(1.0).round().max(1.0));
        let kind = if matches!(self.put, Put::Wait(_)) && ns.is_some() { "wait" } else { "work" };
        for _ in 0..self.put.stages() {
            stages.insert(self.at, part(kind) + &time);
        }
        let layout = match self.put {
            Put::Wait(2) => self.with_two(kind),
            Put::Work | Put::Wait(_) | Put::Shared | Put::OneCpu => "pipeline".to_owned(),
        };
        format!(
            "title = \"a case\"\nblock = \"{}KiB\"\nbuffers = 64\nlayout = \"{layout}\"\n[source]\nkind = \"memory\"\nspan = \"1MiB\"\n{cpus}{}[sink]\nkind = \"read\"\n{cpus}",
            self.block_kib,
            stages.concat()
        )
    }

    /// Layout in which the added stage has two threads, and each other part has one.
    fn with_two(&self, kind: &str) -> String {
        let mut groups = vec!["[memory]".to_owned()];
        for (at, own) in self.stages.iter().enumerate() {
            let before = self.stages[..at].iter().filter(|one| *one == own).count();
            let number = if before > 0 { format!(" {}", before + 1) } else { String::new() };
            groups.push(format!("[{own}{number}]"));
        }
        groups.insert(self.at + 1, format!("[{kind}] x 2"));
        groups.concat() + "[read]"
    }
}

/// Prints what an answer follows from.
fn show(explained: &Explanation) {
    let shown = |one: Interval| format!("{:.2} ({:.2} to {:.2})", one.mean, one.low, one.high);
    for Used { what, used, occupied } in &explained.resources {
        println!("    {}: used {}, or waits {}", what.text(), shown(*used), shown(*occupied));
    }
    for Slope { name, slope } in &explained.slopes {
        println!("    {name}: slope {}", shown(*slope));
    }
    println!("    other programs used {:.2} of the CPUs", explained.limit.others);
}

fn random_paths(folder: &FilePath, given: &[f64]) -> Result<(), String> {
    let number = |at: usize, usual: f64| given.get(at).copied().unwrap_or(usual);
    let (cases, seconds) = (number(0, 40.0) as usize, number(2, 0.1));
    let mut random = Random::new(number(1, 1.0) as u64);
    let mut counts = Counts::default();
    for at in 0..cases {
        let case = Case::random(&mut random, PUTS[at % PUTS.len()]);
        let without = Chain::new(folder, "without.toml", &case.text(None), seconds);
        let block_ns = without.run(PathLoad::Free)?.block_ns;
        let threads = if let Put::Wait(threads) = case.put { threads as f64 } else { 1.0 };
        let text = case.text(Some(case.times * block_ns * threads));
        let with = Chain::new(folder, "with.toml", &text, seconds);
        let (parts, begin) = (with.path.parts(), Instant::now());
        let explained = explain(|load| with.run(load), &parts, None, |_| begin.elapsed() < BUDGET)?;
        let (verdict, named) = counts.judge(&explained.limit.found, |what| case.put.is_limit(what));
        println!(
            "{at}: {:?} in {}: {verdict}, named {named} in {} runs",
            case.put,
            with.path.line(),
            explained.limit.runs
        );
        if verdict != "right" {
            show(&explained);
        }
    }
    println!("{}", counts.text());
    Ok(())
}

/// A limit that is put into the read-out of a card: its name, elements with more work, ring,
/// interval of looks, CPUs of reader and receiver, and the thread or CPU that is the limit.
type OfCard = (&'static str, Option<u64>, &'static str, &'static str, [u32; 2], &'static str);

const OF_CARD: [OfCard; 5] = [
    ("reader", Some(1), "8MiB", "100us", [0, 1], "to-host"),
    ("receiver", Some(3), "8MiB", "100us", [0, 1], "receiver"),
    ("one CPU", None, "8MiB", "100us", [0, 0], "CPU 0"),
    ("ring", None, "2MiB", "10ms", [0, 1], "too few buffers"),
    ("publisher", Some(2), "8MiB", "100us", [0, 1], "to-host"),
];
const PAYLOADS: [u64; 4] = [24, 200, 16, 64];
const ADDED_NS: f64 = 1500.0;

fn cards(folder: &FilePath, given: &[f64]) -> Result<(), String> {
    let number = |at: usize, usual: f64| given.get(at).copied().unwrap_or(usual);
    let (seconds, rounds) = (number(0, 0.25), number(1, 8.0) as usize);
    let mut counts = Counts::default();
    let cases = PAYLOADS.into_iter().flat_map(|bytes| OF_CARD.map(|put| (bytes, put)));
    for (bytes, (name, slower, ring, poll, [reader, receiver], limit)) in cases {
        let scenario = folder.join("scenario.toml");
        let text = format!(
            "[trigger]\nrate = \"100kHz\"\n[card]\nmode = \"gbt\"\nlinks = 3\npayload = \"{bytes}B\"\nring = \"{ring}\"\n[reader]\npoll = \"{poll}\"\n"
        );
        std::fs::write(&scenario, text).unwrap();
        let text = format!(
            "title = \"a card\"\nblock = \"1KiB\"\n[source]\nkind = \"card\"\nscenario = \"{}\"\n[[stage]]\nkind = \"to-host\"\ncpus = [{reader}]\n[[stage]]\nkind = \"tcp\"\n[sink]\nkind = \"receiver\"\ncpus = [{receiver}]\n",
            scenario.display()
        );
        let mut chain = Chain::new(folder, "path.toml", &text, seconds);
        chain.request.unpaced = true;
        chain.request.slower.extend(slower.map(|element| (element, ADDED_NS)));
        let parts = chain.path.parts();
        let explained = explain(|load| chain.run(load), &parts, None, |round| round < rounds)?;
        let is_limit = |what: &What| what.text() == limit;
        let (verdict, named) = counts.judge(&explained.limit.found, is_limit);
        println!("{name}, {bytes} B: {verdict}, named: {named}; {} runs", explained.limit.runs);
    }
    println!("{seconds} s a run, at most {rounds} rounds: {}", counts.text());
    Ok(())
}

fn main() -> Result<(), String> {
    let given: Vec<f64> = std::env::args().filter_map(|text| text.parse().ok()).collect();
    let folder = tempfile::tempdir().unwrap();
    match std::env::args().any(|text| text == "cards") {
        true => cards(folder.path(), &given),
        false => random_paths(folder.path(), &given),
    }
}
