//! Whether `path explain` is right: `cargo bench -p daqmeter-path --bench validate [-- CASES SEED SECONDS]` [40, 1, 0.05 a run].
//!
//! Random paths of 3 to 6 elements get a limit that is known because it was put there: a stage of `work` or `wait`, with one or two
//! threads, work in several stages on too few CPUs, all threads on one CPU. For each the table says which limit was put there, which was
//! named, the predicted and the real gain of taking it out, and the largest rate that was predicted from runs below it. Judges nothing: the
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
use daqmeter_sys::cpu_time::{HostTimes, Usage, of_host, of_process};

/// Most rounds for an answer.
const ROUNDS: usize = 12;
/// Pairs of runs with and without the limit.
const PAIRS: usize = 8;

/// A path that can be run again and again.
struct Chain {
    path: Path,
    file: String,
    seconds: f64,
}

impl Chain {
    fn new(folder: &FilePath, name: &str, text: &str, seconds: f64) -> Chain {
        let file = folder.join(name);
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
            Load::Without { element } => request.left_out = Some(element as u64),
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

    /// The path's file, with so many nanoseconds in each stage that was put in; without, it is there but takes no time: one that waits
    /// for a nanosecond would still set a timer.
    fn text(&self, ns: Option<f64>) -> String {
        let cpus = match self.put {
            Put::OneCpu => format!("cpus = [{}]\n", daqmeter_sys::affinity::process_cpus()[0]),
            Put::Work | Put::Wait(_) | Put::Shared => String::new(),
        };
        let part = |kind: &str| format!("[[stage]]\nkind = \"{kind}\"\n{cpus}");
        let mut stages: Vec<String> = self.stages.iter().map(|kind| part(kind)).collect();
        let time = format!("time = \"{}ns\"\n", ns.unwrap_or(1.0).round().max(1.0));
        let (kind, count) = match self.put {
            Put::Work => ("work", 1),
            Put::Wait(_) if ns.is_some() => ("wait", 1),
            Put::Wait(_) => ("work", 1),
            Put::Shared => ("work", most_shared()),
            Put::OneCpu => ("work", 2),
        };
        let threads = self.threads();
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

    /// Threads of the stage that was put in.
    fn threads(&self) -> usize {
        match self.put {
            Put::Wait(threads) => threads,
            Put::Work | Put::Shared | Put::OneCpu => 1,
        }
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
    /// The same of the gain that was tried.
    tried: Option<f64>,
    /// Predicted over measured rate, less one.
    rate: f64,
    /// Whether others used the CPUs, too.
    is_disturbed: bool,
}

/// CPUs that others used meanwhile, in parts.
struct Others {
    begin: std::time::Instant,
    host: HostTimes,
    own: Usage,
}

impl Others {
    fn begin() -> Others {
        Others {
            begin: std::time::Instant::now(),
            host: of_host(FilePath::new("/")),
            own: of_process(),
        }
    }

    fn cpus(&self) -> f64 {
        let host = of_host(FilePath::new("/")).since(self.host);
        let own = of_process();
        let own_ns = own.user_ns + own.system_ns - self.own.user_ns - self.own.system_ns;
        let all_ns = host.user_ns + host.system_ns + host.steal_ns;
        all_ns.saturating_sub(own_ns) as f64 / self.begin.elapsed().as_nanos() as f64
    }
}

/// CPUs that others may use in a case that counts.
const QUIET: f64 = 0.1;

/// By which factor a path is faster without its limit.
fn real_gain(with: &mut Chain, without: &mut Chain) -> Result<f64, String> {
    let mut ratios = Vec::new();
    for _ in 0..PAIRS {
        let slow_ns = with.run(Load::Free)?.block_ns;
        ratios.push(slow_ns / without.run(Load::Free)?.block_ns);
    }
    let interval = daqmeter_stats::trimmed_interval(&ratios, 0.95);
    Ok(interval.ok_or("no pairs")?.0)
}

fn try_case(folder: &FilePath, case: &Case, seconds: f64) -> Result<(Came, String), String> {
    let others = Others::begin();
    let mut without = Chain::new(folder, "without.toml", &case.text(None), seconds);
    let base_ns = without.run(Load::Free)?.block_ns;
    let put_ns = base_ns * case.times * case.threads() as f64;
    let mut with = Chain::new(folder, "with.toml", &case.text(Some(put_ns)), seconds);
    let parts = with.path.parts();
    let explained = explain(&mut with, &parts, |round| round < ROUNDS)?;
    let right = matches!(&explained.answer, Answer::Limit(what) if case.is_limit(what));
    let wrong = explained.answer != Answer::CannotTell && !right;
    let real = match case.put {
        Put::Work | Put::Wait(_) => Some(real_gain(&mut with, &mut without)?),
        Put::Shared | Put::OneCpu => None,
    };
    let gain = explained.gain.filter(|_| right).zip(real);
    let tried = gain.and_then(|(gain, real)| Some((gain.tried?, real)));
    let rate = explained.block_ns.mean / explained.predicted_ns.mean - 1.0;
    let named = match &explained.answer {
        Answer::Limit(what) => what.text(),
        Answer::NoSingle => "no single one".to_owned(),
        Answer::CannotTell => "cannot tell".to_owned(),
    };
    let gains = match gain.zip(tried) {
        Some(((gain, real), (tried, _))) => {
            format!("{:.2} / {:.2} / {real:.2}", gain.predicted.mean, tried.mean)
        }
        None => "-".to_owned(),
    };
    let others = others.cpus();
    let is_disturbed = others > QUIET;
    let line = format!(
        "{:<8} {:>4} KiB {:<18} {:<18} {:>5} {gains:<20} {:+.1} %{}",
        format!("{:?}", case.put),
        case.block_kib,
        case.stages.join(" "),
        named,
        explained.runs,
        rate * 100.0,
        match is_disturbed {
            true => format!("  disturbed: others used {others:.2} CPUs"),
            false => String::new(),
        }
    );
    let came = Came {
        right,
        wrong,
        gain: gain.map(|(gain, real)| gain.predicted.mean / real - 1.0),
        tried: tried.map(|(tried, real)| tried.mean / real - 1.0),
        rate,
        is_disturbed,
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
            Err(error) => println!("failed: {error}\n{}", case.text(None)),
        }
    }
    println!(
        "\nseed {seed}, {seconds} s a run, at most {ROUNDS} rounds, {} CPUs, threads not pinned but for OneCpu",
        daqmeter_sys::available::cpus()
    );
    let (disturbed, quiet): (Vec<Came>, Vec<Came>) =
        all.into_iter().partition(|came| came.is_disturbed);
    println!("{}", summary("quiet", &quiet));
    if !disturbed.is_empty() {
        println!("{}", summary("disturbed by others", &disturbed));
    }
}

fn summary(name: &str, all: &[Came]) -> String {
    let count = |of: fn(&Came) -> bool| all.iter().filter(|came| of(came)).count();
    let (right, wrong) = (count(|came| came.right), count(|came| came.wrong));
    let gains: Vec<f64> = all.iter().filter_map(|came| came.gain).collect();
    let tried: Vec<f64> = all.iter().filter_map(|came| came.tried).collect();
    let rates: Vec<f64> = all.iter().map(|came| came.rate).collect();
    format!(
        "{} cases, {name}: {right} limits named, {wrong} wrong, {} cannot tell\n\
         gain, predicted from demands against real: {}\n\
         gain, with the work left out against real: {}\n\
         largest rate, predicted against measured: {}",
        all.len(),
        all.len() - right - wrong,
        errors(&gains),
        errors(&tried),
        errors(&rates)
    )
}
