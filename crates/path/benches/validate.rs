//! Validation of `path explain`: `cargo bench -p daqmeter-path --bench validate [-- CASES SEED
//! SECONDS [FIRST FILE]]` [40, 1, 0.1 a run]. FIRST leaves out the cases before it. With FILE
//! results are appended to it, and the sums are over all results in it: a validation in pieces.
//!
//! Random paths of 3 to 6 elements get a known limit: a stage of `work` or `wait`, with one or two
//! threads, work in several stages on too few CPUs, or all threads on one CPU. The table gives the
//! limit that was put there, the one that was named, and the predicted and the real gain of its
//! removal. It also gives the largest rate that was predicted from runs below it. Beside it are the
//! rate of free runs and that of a search for the largest one without loss (as `path run --max`).
//! The real gain and the search are measured twice: their difference bounds the accuracy of a
//! prediction. Judges nothing: the sums at the end are for the record.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may stop when the host refuses"
)]

use std::io::Write;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use daqmeter_harness::{Context, Request, Settings, StepPlan, measure};
use daqmeter_path::explain::{
    Explanation, Interval, LimitAnswer, PathLoad, PathSystem, Seen, Slope, Used, WATCHES, explain,
};
use daqmeter_path::{Path, PathRequest, engine};
use daqmeter_readout::search::{self, Observation, SearchPlan, highest_rate};
use daqmeter_record::RunRecord;
use daqmeter_record::resources::What;
use daqmeter_stats::Random;
use daqmeter_sys::cpu_time::{HostTimes, Usage, of_host, of_process};

/// Time for an answer: the default of `path explain`.
const BUDGET: Duration = Duration::from_secs(30);
const BUFFERS: u64 = 64;
const MAX_BUFFERS: u64 = 65_536;
const PAIRS: usize = 8;

struct Chain {
    path: Path,
    file: String,
    seconds: f64,
}

struct Bench<'a> {
    folder: &'a FilePath,
    seconds: f64,
}

impl Bench<'_> {
    fn chain(&self, name: &str, text: &str) -> Chain {
        let Bench { folder, seconds } = *self;
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap().to_owned();
        let path = Path::load(&file).unwrap_or_else(|error| panic!("{error}\n{text}"));
        Chain { path, file, seconds }
    }
}

impl Chain {
    fn request(&self, seconds: f64) -> PathRequest {
        PathRequest { path: self.file.clone(), ..PathRequest::new(&self.path, seconds) }
    }

    fn measured(&self, request: &PathRequest) -> Result<RunRecord, String> {
        let settings = Settings::new(StepPlan::ByStage(1), "bench");
        let context = Context::default();
        let record = measure(&request.job().unwrap(), &settings, &context, &[], &mut []);
        record.map_err(|error| error.to_string())
    }

    /// Largest rate without loss in blocks per second, found as by `path run --max` but in less
    /// time.
    fn highest_hz(&mut self, free_hz: f64) -> Result<Option<f64>, String> {
        let time = Duration::from_secs_f64(self.seconds);
        let plan = SearchPlan {
            from_hz: free_hz / 2.0,
            to_hz: free_hz * 2.0,
            resolution: 0.02,
            probe: time,
            confirm: time * 3,
        };
        Ok(highest_rate(self, &plan)?.rate_hz)
    }
}

impl search::RatedSystem for Chain {
    type Error = String;

    fn observe(&mut self, rate_hz: f64, duration: Duration) -> Result<Observation, String> {
        let request = PathRequest {
            rate_hz: Some(rate_hz),
            lossy: true,
            ..self.request(duration.as_secs_f64())
        };
        let record = self.measured(&request)?;
        Ok(engine::observation(&self.path, &record, duration))
    }
}

impl PathSystem for Chain {
    type Error = String;

    fn run(&mut self, load: PathLoad) -> Result<Seen, String> {
        let mut request = self.request(self.seconds);
        match load {
            PathLoad::Free => {}
            PathLoad::Slowed { element, ns } => {
                request.slow_element = Some(element as u64);
                request.slow_ns = ns;
            }
            PathLoad::Without { element } => request.left_out = Some(element as u64),
            PathLoad::Buffers { times } => request.with = self.path.with_more_buffers(times),
            PathLoad::Every { ns } => request.rate_hz = Some(1e9 / ns),
        }
        let run = self.measured(&request)?.path.ok_or("no run")?;
        Ok(Seen::of(&run))
    }

    fn watches(&self) -> usize {
        WATCHES
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
    fn stages(self) -> usize {
        match self {
            Put::Work | Put::Wait(_) => 1,
            Put::Shared => most_shared(),
            Put::OneCpu => 2,
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
fn below(random: &mut Random, bound: usize) -> usize {
    (random.uniform() * bound as f64) as usize
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
        let kinds = ["copy", "checksum", "unix"];
        // With source and sink at most six elements.
        let most = 4_usize.saturating_sub(put.stages()).min(2);
        let stages: Vec<&str> =
            (0..below(random, most + 1)).map(|_| kinds[below(random, kinds.len())]).collect();
        Case {
            block_kib: [16, 64, 256][below(random, 3)],
            at: below(random, stages.len() + 1),
            stages,
            put,
            times: 3.2 + 2.8 * random.uniform(),
        }
    }

    /// File of the path, with the nanoseconds of each added stage. Without a limit the stages are
    /// there but take no time: a wait of a nanosecond would still set a timer.
    fn text(&self, ns: Option<f64>, buffers: u64) -> String {
        let cpus = match self.put {
            Put::OneCpu => format!("cpus = [{}]\n", daqmeter_sys::affinity::process_cpus()[0]),
            Put::Work | Put::Wait(_) | Put::Shared => String::new(),
        };
        let part = |kind: &str| format!("[[stage]]\nkind = \"{kind}\"\n{cpus}");
        let mut stages: Vec<String> = self.stages.iter().map(|kind| part(kind)).collect();
        let time = format!("time = \"{}ns\"\n", ns.unwrap_or(1.0).round().max(1.0));
        let kind = match self.put {
            Put::Wait(_) if ns.is_some() => "wait",
            _ => "work",
        };
        let threads = self.threads();
        for _ in 0..self.put.stages() {
            let stage = format!("{}{time}threads = {threads}\n", part(kind));
            stages.insert(self.at, stage);
        }
        format!(
            "title = \"a case\"\nblock = \"{}KiB\"\nbuffers = {buffers}\n[source]\nkind = \"memory\"\nspan = \"1MiB\"\n{cpus}{}[sink]\nkind = \"read\"\n{cpus}",
            self.block_kib,
            stages.concat()
        )
    }

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

/// Stages that work in a path whose limit is the CPUs: half as many again.
fn most_shared() -> usize {
    let cpus = daqmeter_sys::affinity::process_cpus().len();
    cpus + cpus.div_ceil(2)
}

struct Came {
    right: bool,
    wrong: bool,
    /// Predicted over real gain, less one.
    gain: Option<f64>,
    tried: Option<f64>,
    /// Predicted rate over that of free runs, less one.
    rate: f64,
    /// Predicted rate over the largest without loss, less one; `None` if none was found.
    highest: Option<f64>,
    /// Second measurement of the real gain over the first, less one: a bound on the accuracy of any
    /// prediction.
    gain_again: Option<f64>,
    /// Second search for the largest rate without loss over the first, less one.
    highest_again: Option<f64>,
    is_disturbed: bool,
}

impl Came {
    fn line(&self) -> String {
        let is = |so: bool| f64::from(u8::from(so));
        let or_nan = |value: Option<f64>| value.unwrap_or(f64::NAN);
        format!(
            "{} {} {} {} {} {} {} {} {}",
            is(self.right),
            is(self.wrong),
            is(self.is_disturbed),
            or_nan(self.gain),
            or_nan(self.tried),
            self.rate,
            or_nan(self.highest),
            or_nan(self.gain_again),
            or_nan(self.highest_again)
        )
    }

    fn parse(line: &str) -> Option<Came> {
        let numbers: Vec<f64> = line.split(' ').map_while(|text| text.parse().ok()).collect();
        let [right, wrong, is_disturbed, gain, tried, rate, highest, gain_again, highest_again] =
            numbers[..]
        else {
            return None;
        };
        let known = |value: f64| Some(value).filter(|value| !value.is_nan());
        Some(Came {
            right: right > 0.0,
            wrong: wrong > 0.0,
            gain: known(gain),
            tried: known(tried),
            rate,
            highest: known(highest),
            gain_again: known(gain_again),
            highest_again: known(highest_again),
            is_disturbed: is_disturbed > 0.0,
        })
    }
}

struct Others {
    begin: std::time::Instant,
    host: HostTimes,
    own: Usage,
}

impl Others {
    fn begin() -> Others {
        Others {
            begin: std::time::Instant::now(),
            host: of_host(FilePath::new("/")).expect("a host has /proc/stat"),
            own: of_process(),
        }
    }

    fn cpus(&self) -> f64 {
        let host = of_host(FilePath::new("/")).expect("a host has /proc/stat");
        let host = host.since(self.host);
        let own = of_process();
        let own_ns = own.user_ns + own.system_ns - self.own.user_ns - self.own.system_ns;
        let all_ns = host.user_ns + host.system_ns + host.steal_ns;
        all_ns.saturating_sub(own_ns) as f64 / self.begin.elapsed().as_nanos() as f64
    }
}

const QUIET: f64 = 0.1;

fn real_gain(with: &mut Chain, without: &mut Chain) -> Result<f64, String> {
    let mut ratios = Vec::new();
    for _ in 0..PAIRS {
        let slow_ns = with.run(PathLoad::Free)?.block_ns;
        ratios.push(slow_ns / without.run(PathLoad::Free)?.block_ns);
    }
    let interval = daqmeter_stats::trimmed_interval(&ratios, 0.95);
    Ok(interval.ok_or("no pairs")?.0)
}

fn shown(off: Option<f64>) -> String {
    off.map_or("none".to_owned(), |off| format!("{:+.1} %", off * 100.0))
}

fn try_case(bench: &Bench<'_>, case: &Case) -> Result<(Came, String), String> {
    let others = Others::begin();
    let mut without = bench.chain("without.toml", &case.text(None, BUFFERS));
    let base_ns = without.run(PathLoad::Free)?.block_ns;
    let put_ns = base_ns * case.times * case.threads() as f64;
    let mut with = bench.chain("with.toml", &case.text(Some(put_ns), BUFFERS));
    let parts = with.path.parts();
    let began = Instant::now();
    let explained = explain(&mut with, &parts, |_| began.elapsed() < BUDGET)?;
    let right = matches!(&explained.answer, LimitAnswer::Limit(what) if case.is_limit(what));
    let wrong = explained.answer != LimitAnswer::CannotTell && !right;
    let real = match case.put {
        Put::Work | Put::Wait(_) => Some(real_gain(&mut with, &mut without)?),
        Put::Shared | Put::OneCpu => None,
    };
    let gain = explained.gain.filter(|_| right).zip(real);
    let tried = gain.and_then(|(gain, real)| Some((gain.tried?, real)));
    let predicted_ns = explained.predicted_ns.mean;
    let rate = explained.block_ns.mean / predicted_ns - 1.0;
    let free_hz = 1e9 / explained.block_ns.mean;
    let off = |hz: f64, buffers: u64| {
        let share = explained.room.share_without_loss(BUFFERS, buffers);
        share * 1e9 / predicted_ns / hz - 1.0
    };
    let few = with.highest_hz(free_hz)?;
    let buffers = explained.room.wanted(BUFFERS, 1.0).min(MAX_BUFFERS);
    let mut enough = bench.chain("room.toml", &case.text(Some(put_ns), buffers));
    let highest = match buffers > BUFFERS {
        true => enough.highest_hz(free_hz)?,
        false => few,
    };
    let real_again = match real {
        Some(_) => Some(real_gain(&mut with, &mut without)?),
        None => None,
    };
    let highest_again = enough.highest_hz(free_hz)?;
    let again = |(second, first): (f64, f64)| second / first - 1.0;
    let gain_again = real_again.zip(real).map(again);
    let highest_again = highest_again.zip(highest).map(again);
    let named = match &explained.answer {
        LimitAnswer::Limit(what) => what.text(),
        LimitAnswer::NoSingle => "no single one".to_owned(),
        LimitAnswer::CannotTell => "cannot tell".to_owned(),
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
        "{:<8} {:>4} KiB {:<18} {:<18} {:>5} {gains:<20} {:+6.1} %  {} buffers {}  {buffers} buffers {}; again {} {}{}",
        format!("{:?}", case.put),
        case.block_kib,
        case.stages.join(" "),
        named,
        explained.runs,
        rate * 100.0,
        BUFFERS,
        shown(few.map(|hz| off(hz, BUFFERS))),
        shown(highest.map(|hz| off(hz, buffers))),
        shown(gain_again),
        shown(highest_again),
        match is_disturbed {
            true => format!("  disturbed: others used {others:.2} CPUs"),
            false => String::new(),
        }
    );
    let line = match right {
        true => line,
        false => line + &evidence(&explained),
    };
    let came = Came {
        right,
        wrong,
        gain: gain.map(|(gain, real)| gain.predicted.mean / real - 1.0),
        tried: tried.map(|(tried, real)| tried.mean / real - 1.0),
        rate,
        highest: highest.map(|hz| off(hz, buffers)),
        gain_again,
        highest_again,
        is_disturbed,
    };
    Ok((came, line))
}

fn evidence(explained: &Explanation) -> String {
    let interval = |of: Interval| format!("{:.2} ({:.2} to {:.2})", of.mean, of.low, of.high);
    let slope = |slope: &Slope| format!("\n    slope {}: {}", slope.name, interval(slope.slope));
    let used = |used: &Used| {
        let ns = used.least_ns.mean / explained.block_ns.mean;
        format!(
            "\n    {}: used {}, or waiting for a CPU {}, with time to spare {ns:.2}",
            used.what.text(),
            interval(used.used),
            interval(used.occupied)
        )
    };
    let slopes: String = explained.slopes.iter().map(slope).collect();
    let used: String = explained.resources.iter().map(used).collect();
    slopes + &used
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

fn joined(file: Option<&String>, new: Vec<Came>) -> Vec<Came> {
    let Some(file) = file else { return new };
    let mut options = std::fs::OpenOptions::new();
    let mut opened = options.create(true).append(true).open(file).unwrap();
    for came in new {
        writeln!(opened, "{}", came.line()).unwrap();
    }
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().filter_map(Came::parse).collect()
}

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|text| text != "--bench").collect();
    let number = |at: usize, usual: f64| {
        let given = arguments.get(at).map(|text| text.parse().unwrap());
        given.unwrap_or(usual)
    };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
    let [cases, seed, first] =
        [number(0, 40.0), number(1, 1.0), number(3, 0.0)].map(|n| n as usize);
    let seconds = number(2, 0.1);
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench { folder: folder.path(), seconds };
    let mut random = Random::new(seed as u64);
    let mut all = Vec::new();
    for at in 0..first + cases {
        let case = Case::random(&mut random, PUTS[at % PUTS.len()]);
        if at < first {
            continue;
        }
        match try_case(&bench, &case) {
            Ok((came, line)) => {
                println!("{line}");
                all.push(came);
            }
            Err(error) => println!("failed: {error}\n{}", case.text(None, BUFFERS)),
        }
    }
    println!(
        "\nseed {seed}, {seconds} s a run, {} s for an answer at most, {} CPUs, threads not pinned but for OneCpu",
        BUDGET.as_secs(),
        daqmeter_sys::available::cpus()
    );
    let all = joined(arguments.get(4), all);
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
    // The gain as explain reports it: measured if possible, else predicted.
    let reported: Vec<f64> = all.iter().filter_map(|came| came.tried.or(came.gain)).collect();
    let rates: Vec<f64> = all.iter().map(|came| came.rate).collect();
    let highest: Vec<f64> = all.iter().filter_map(|came| came.highest).collect();
    let gains_again: Vec<f64> = all.iter().filter_map(|came| came.gain_again).collect();
    let highest_again: Vec<f64> = all.iter().filter_map(|came| came.highest_again).collect();
    format!(
        "{} cases, {name}: {right} limits named, {wrong} wrong, {} cannot tell\n\
         gain, predicted from demands against real: {}\n\
         gain, with the work left out against real: {}\n\
         gain as reported: {}\n\
         real gain, measured twice, one against the other: {}\n\
         largest rate, predicted against free runs: {}\n\
         largest rate, predicted against a search without loss: {}\n\
         search without loss, done twice, one against the other: {}",
        all.len(),
        all.len() - right - wrong,
        errors(&gains),
        errors(&tried),
        errors(&reported),
        errors(&gains_again),
        errors(&rates),
        errors(&highest),
        errors(&highest_again)
    )
}
