//! Validation of `path explain` for a card that is read out live: `cargo bench -p daqmeter-path
//! --bench live [-- SECONDS ROUNDS FIRST CASES]` [0.25 s a run, 8 rounds, all cases].
//!
//! Each case has a known limit, which was put there, with chunks of several sizes:
//!
//! - reader, publisher, receiver: 1.5 us of work for each block beside its own, more than the other
//!   thread needs; each thread has a CPU of its own. Reader and publisher share a thread, which is
//!   the limit in both cases;
//! - CPU: both threads on one CPU;
//! - ring: of 2 MiB, looked at each 10 ms.
//!
//! Prints the limit that was put there, the one that was named, slopes and use. Judges nothing: the
//! sums at the end are for the record.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_path::explain::{Explanation, PathLoad, Seen, explain};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::path::{Interval, LimitFound, What};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Reader,
    Publisher,
    Receiver,
    OneCpu,
    Ring,
}

const PUTS: [Put; 5] = [Put::Reader, Put::Receiver, Put::OneCpu, Put::Ring, Put::Publisher];
const PAYLOADS: [u64; 4] = [24, 200, 16, 64];
const ADDED_NS: f64 = 1500.0;

impl Put {
    fn slower(self) -> Vec<(u64, f64)> {
        match self {
            Put::Reader => vec![(1, ADDED_NS)],
            Put::Publisher => vec![(2, ADDED_NS)],
            Put::Receiver => vec![(3, ADDED_NS)],
            Put::OneCpu | Put::Ring => Vec::new(),
        }
    }
}

struct Case {
    put: Put,
    payload_bytes: u64,
}

impl Case {
    fn texts(&self, scenario: &str) -> (String, String) {
        let Case { put, payload_bytes } = self;
        let (ring, poll) = match put {
            Put::Ring => ("2MiB", "10ms"),
            _ => ("8MiB", "100us"),
        };
        let of_scenario = format!(
            "[trigger]\nrate = \"100kHz\"\n[card]\nmode = \"gbt\"\nlinks = 3\npayload = \"{payload_bytes}B\"\nring = \"{ring}\"\n[reader]\npoll = \"{poll}\"\n"
        );
        let (reader, receiver) = match put {
            Put::OneCpu => (0, 0),
            _ => (0, 1),
        };
        let of_path = format!(
            "title = \"a card\"\nblock = \"1KiB\"\n[source]\nkind = \"card\"\nscenario = \"{scenario}\"\n[[stage]]\nkind = \"to-host\"\ncpus = [{reader}]\n[[stage]]\nkind = \"tcp\"\n[sink]\nkind = \"receiver\"\ncpus = [{receiver}]\n"
        );
        (of_scenario, of_path)
    }

    fn is_right(&self, what: &What) -> bool {
        match (self.put, what) {
            (Put::Reader | Put::Publisher, What::Threads { name, .. }) => name == "to-host",
            (Put::Receiver, What::Threads { name, .. }) => name == "receiver",
            (Put::OneCpu, What::Cpu(0)) | (Put::Ring, What::Buffers) => true,
            // A thread that has a CPU to itself and that CPU are one limit.
            (Put::Reader | Put::Publisher, What::Cpu(0)) | (Put::Receiver, What::Cpu(1)) => true,
            _ => false,
        }
    }
}

struct Chain {
    path: Path,
    seconds: f64,
    slower: Vec<(u64, f64)>,
}

impl Chain {
    fn run(&self, load: PathLoad) -> Result<Seen, String> {
        let request = PathRequest {
            unpaced: true,
            slower: self.slower.clone(),
            ..PathRequest::new(&self.path, self.seconds)
        };
        let request = load.of(request, &self.path);
        let settings = Settings::new(StepPlan::ByStage(1), "bench");
        let context = Context::default();
        let record = measure(&request.job().unwrap(), &settings, &context, &[], &mut []);
        let record = record.map_err(|error| error.to_string())?;
        if !record.ledgers.iter().all(|ledger| ledger.closes()) {
            return Err("a ledger does not close".to_owned());
        }
        Seen::of(&record).ok_or("no run".to_owned())
    }
}

fn show(interval: Interval) -> String {
    let Interval { mean, low, high } = interval;
    format!("{mean:.2} ({low:.2} to {high:.2})")
}

fn shown(explained: &Explanation) -> String {
    let slopes = explained.slopes.iter();
    let slopes: Vec<String> =
        slopes.map(|slope| format!("{} {}", slope.name, show(slope.slope))).collect();
    let used = explained.resources.iter();
    let used: Vec<String> =
        used.map(|used| format!("{} {}", used.what.text(), show(used.used))).collect();
    format!(
        "    {:.0} ns a block; looked at eight times as often {} times as fast\n    slopes: {}\n    used: {}",
        explained.block_ns.mean,
        show(explained.more_buffers),
        slopes.join("; "),
        used.join("; ")
    )
}

fn main() {
    let given: Vec<f64> = std::env::args().filter_map(|text| text.parse().ok()).collect();
    let number = |at: usize, usual: f64| given.get(at).copied().unwrap_or(usual);
    let folder = tempfile::tempdir().unwrap();
    let (seconds, rounds) = (number(0, 0.25), number(1, 8.0) as usize);
    let (first, most) = (number(2, 0.0) as usize, number(3, 20.0) as usize);
    let mut counts = [0; 3];
    for at in first..(first + most).min(PUTS.len() * PAYLOADS.len()) {
        let case = Case { put: PUTS[at % PUTS.len()], payload_bytes: PAYLOADS[at / PUTS.len()] };
        let files = ["scenario.toml", "path.toml"].map(|name| folder.path().join(name));
        let (scenario, path) = case.texts(files[0].to_str().unwrap());
        std::fs::write(&files[0], scenario).unwrap();
        std::fs::write(&files[1], path).unwrap();
        let path = Path::load(files[1].to_str().unwrap()).unwrap();
        let parts = path.parts();
        let slower = case.put.slower();
        let chain = Chain { path, seconds, slower };
        let explained = explain(|load| chain.run(load), &parts, |round| round < rounds);
        let explained = match explained {
            Ok(explained) => explained,
            Err(error) => {
                println!("{:?}, {} B: failed: {error}", case.put, case.payload_bytes);
                continue;
            }
        };
        let (found, named) = match &explained.answer {
            LimitFound::Limit(what) if case.is_right(what) => (0, what.text()),
            LimitFound::Limit(what) => (1, what.text()),
            LimitFound::NoSingleOne => (1, "no single one".to_owned()),
            LimitFound::CannotTell => (2, "cannot tell".to_owned()),
        };
        counts[found] += 1;
        println!(
            "{:?}, {} B: {}, named: {named}; {} runs\n{}",
            case.put,
            case.payload_bytes,
            ["right", "wrong", "cannot tell"][found],
            explained.runs,
            shown(&explained)
        );
    }
    let [right, wrong, none] = counts;
    println!(
        "{seconds} s a run, at most {rounds} rounds: {right} right, {wrong} wrong, {none} cannot tell"
    );
}
