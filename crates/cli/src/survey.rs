//! `daqmeter survey`: everything that can be measured on this host with what exists so far, as one report.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_copy::{Direction, Request};
use daqmeter_etherbone::Method;
use daqmeter_harness::{Limits, Settings, StepPlan, Sweep, ordered};
use daqmeter_kernels::Isa;
use daqmeter_record::{Host, Workload};
use daqmeter_report::advice::advice;
use daqmeter_report::{answers, page, table};
use daqmeter_sys::host::Files;

use crate::arguments::duration;
use crate::output::{Failure, emit, tell, write_file};
use crate::run::{Common, CpuList, Runner, on_ctrl_c};

/// Measure what this host can do, print a summary, write report.html and records.jsonl.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter survey --budget 20s -o lab7.html --out lab7.jsonl\n\nPoints are measured in random order; the seed is in the records. Without --pin, threads are\npinned to the CPUs allowed, last first: CPU 0 takes most interrupts."
)]
pub(crate) struct Arguments {
    /// Time for the measurements
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "60s")]
    budget: Duration,
    /// Page to write
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Seed of the random order
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

/// One point of the survey.
struct Planned {
    study: &'static str,
    engine: &'static str,
    workload: Workload,
    /// What it takes of a survey of a minute.
    part: Part,
}

/// How a point uses its share of the budget.
#[derive(Clone, Copy)]
enum Part {
    /// Each of so many stages for a time.
    Timed { ms: f64, stages: u32 },
    /// A chain that runs for a time, once.
    Chain { seconds: f64 },
    /// Passes at 14 Hz.
    Passes { passes: f64 },
    /// A fixed number of reads, which take about that time.
    Reads { reads: u64, ms: f64 },
}

impl Part {
    /// Time of it in a survey of a minute.
    fn nominal_s(self) -> f64 {
        match self {
            Part::Timed { ms, stages } => ms * f64::from(stages) / 1e3,
            Part::Chain { seconds } => seconds,
            Part::Passes { passes } => passes / TRIGGER_HZ,
            Part::Reads { ms, .. } => ms / 1e3,
        }
    }
}

/// Triggers of the points that wait for them.
const TRIGGER_HZ: f64 = 14.0;

impl Planned {
    fn timed(study: &'static str, engine: &'static str, workload: Workload, ms: f64) -> Planned {
        let stages = if engine == "memory" { 4 } else { 1 };
        Planned {
            study,
            engine,
            workload,
            part: Part::Timed { ms, stages },
        }
    }

    /// The workload and its steps when every part gets that multiple of its share.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small number of passes"
    )]
    fn scaled(&self, scale: f64) -> (Workload, StepPlan) {
        let workload = self.workload.clone();
        match self.part {
            Part::Timed { ms, .. } => (
                workload,
                StepPlan::Timed(Duration::from_secs_f64((ms * scale / 1e3).max(1e-3))),
            ),
            Part::Chain { seconds } => (
                workload.with("seconds", (seconds * scale).clamp(0.03, 10.0)),
                StepPlan::ByStage(1),
            ),
            Part::Passes { passes } => {
                let passes = (passes * scale).clamp(4.0, 280.0) as u64;
                (workload.with("passes", passes), StepPlan::ByPass(passes))
            }
            Part::Reads { reads, .. } => (workload, StepPlan::ByStage(reads)),
        }
    }
}

/// Keeps the survey to its budget: what is left is shared out anew before each point, by what preparation and verification of each
/// engine took so far.
struct Budget {
    began: Instant,
    whole_s: f64,
    /// Seconds beside the timed part, and points, by engine.
    beside: BTreeMap<&'static str, (f64, f64)>,
    timed_s: f64,
}

impl Budget {
    /// Before an engine was seen, its preparation is taken to last so long.
    const GUESS_S: f64 = 0.12;
    /// Kept back for the page and the counters' loads.
    const KEPT: f64 = 0.06;

    fn new(budget: Duration) -> Budget {
        Budget {
            began: Instant::now(),
            whole_s: budget.as_secs_f64(),
            beside: BTreeMap::new(),
            timed_s: 0.0,
        }
    }

    /// Multiple of their shares that the points which are left may have.
    fn scale(&self, left: &[&Planned]) -> f64 {
        let beside = |point: &&Planned| {
            self.beside
                .get(point.engine)
                .map_or(Self::GUESS_S, |(sum, points)| sum / points)
        };
        let beside: f64 = left.iter().map(beside).sum();
        let nominal: f64 = left.iter().map(|point| point.part.nominal_s()).sum();
        let left_s = self.whole_s * (1.0 - Self::KEPT) - self.began.elapsed().as_secs_f64();
        ((left_s - beside) / nominal.max(1e-3)).clamp(0.02, 20.0)
    }

    fn spent(&mut self, engine: &'static str, took_s: f64, timed_s: f64) {
        let known = self.beside.entry(engine).or_default();
        *known = (known.0 + (took_s - timed_s).max(0.0), known.1 + 1.0);
        self.timed_s += timed_s;
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let began = Instant::now();
    let mut budget = Budget::new(arguments.budget);
    let mut common = arguments.common.clone();
    if common.out.is_none() {
        common.out = Some(PathBuf::from("records.jsonl"));
    }
    // The page is announced at the end: that it can be written is better known now.
    write_file(&arguments.output, "daqmeter survey is under way\n")?;
    let mut runner = Runner::new(&common, 0)?;
    if arguments.common.out.is_none() {
        // The survey's records are of this survey alone.
        runner.recorder.afresh()?;
    }
    let pin = common
        .pin
        .clone()
        .unwrap_or_else(|| {
            CpuList(
                runner
                    .context
                    .host
                    .allowed_cpus
                    .iter()
                    .rev()
                    .copied()
                    .collect(),
            )
        })
        .0;
    // Memory traffic beside every point, where something counts it.
    for group in ["memory", "imc", "mbm"] {
        runner.observe_if_there(group);
    }
    // Points of one footprint share its limit, which is measured once in this survey.
    runner.limits = Limits::shared(
        arguments
            .budget
            .div_f64(1500.0)
            .clamp(Duration::from_millis(8), Duration::from_millis(150)),
    );
    let points = ordered(
        plan(arguments.budget, &runner.context.host, &pin),
        arguments.seed,
    );
    runner.expect(points.len());
    let (mut measuring_s, mut refused) = (0.0, 0);
    for (at, (order, point)) in points.iter().enumerate() {
        let left: Vec<&Planned> = points[at..].iter().map(|(_, point)| point).collect();
        let (workload, steps) = point.scaled(budget.scale(&left));
        let settings = Settings {
            waive: true,
            ..runner.settings(steps, point.study, &pin)
        };
        let begin = Instant::now();
        if runner.stop.is_set() {
            break;
        }
        let timed_s = match runner.measured(point.engine, &workload, &settings, Some(order.clone()))
        {
            Ok(record) => {
                let timed_s = record.wall_ns as f64 * 1e-9;
                runner.keep(record)?;
                timed_s
            }
            // The other points are worth having all the same.
            Err(refusal) => {
                refused += 1;
                tell(&format!("daqmeter: {workload}: {refusal}"));
                0.0
            }
        };
        let took_s = begin.elapsed().as_secs_f64();
        budget.spent(point.engine, took_s, timed_s.min(took_s));
        measuring_s += took_s;
    }
    let stop = Arc::new(AtomicBool::new(false));
    on_ctrl_c(&stop)?;
    if !runner.stop.is_set() {
        // A fiftieth of the budget for each of the loads that counters are held against.
        let begin = Instant::now();
        let record = crate::pmu::survey(
            arguments.budget.div_f64(50.0).min(Duration::from_secs(2)),
            &runner.context,
            &stop,
        );
        record
            .map(|record| runner.recorder.take(record))
            .transpose()?;
        measuring_s += begin.elapsed().as_secs_f64();
    }
    runner.finish();
    let records = &runner.recorder.records;
    write_file(&arguments.output, &page(records).map_err(Failure::refused)?)?;
    if !common.json {
        let took_s = began.elapsed().as_secs_f64();
        let spent = Spent {
            took_s,
            timed_s: budget.timed_s,
            measuring_s,
        };
        emit(&summary(records, &spent))?;
    }
    if let (Some(out), false) = (&common.out, common.json) {
        tell("");
        tell(&format!(
            "wrote {} and {}",
            arguments.output.display(),
            out.display()
        ));
    }
    if refused > 0 {
        return Err(Failure::refused(format!(
            "{refused} of {} points could not be measured",
            points.len()
        )));
    }
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

/// Where the survey's time went.
struct Spent {
    took_s: f64,
    /// In timed steps.
    timed_s: f64,
    /// In points as a whole: limits, preparation, timed steps, verification.
    measuring_s: f64,
}

/// Samples of the source document's conversion tables: 6 MB raw.
const SAMPLES: u64 = 3_000_000;

/// The points; a short survey has fewer of them.
fn plan(budget: Duration, host: &Host, pin: &[u32]) -> Vec<Planned> {
    let coarse = budget < Duration::from_secs(40);
    let mut points = vec![Planned::timed(
        "survey/tool",
        "null",
        Workload::new("null"),
        300.0,
    )];
    points.extend(memory(host, coarse));
    points.extend(conversion());
    points.extend(stores(host, coarse));
    points.extend(fusion(coarse));
    points.extend(readout());
    points.extend(completion());
    points.extend(etherbone(coarse));
    points.extend(felix(pin, coarse));
    points.extend(copies(coarse));
    points.extend(storage());
    points.extend(network(pin));
    points
}

/// The system's disk, read past the page cache and out of it.
fn storage() -> Vec<Planned> {
    // Where the disk itself may not be read, this program's file on it may.
    let own = std::env::current_exe()
        .ok()
        .map(|path| path.display().to_string());
    let candidates = daqmeter_hostio::system_disk(&Files::default())
        .into_iter()
        .chain(own);
    let disk = candidates
        .into_iter()
        .find(|path| daqmeter_hostio::reads_directly(path).is_ok());
    let direct = disk.into_iter().flat_map(|disk| {
        [4_u64 << 10, 64 << 10, 1 << 20].map(|bytes| {
            (
                Workload::new("block")
                    .with("path", disk.as_str())
                    .with("block_bytes", bytes),
                250.0,
            )
        })
    });
    // This program's own file lies in the page cache.
    let cached = [4_u64 << 10, 64 << 10, 1 << 20].map(|bytes| {
        (
            Workload::new("block")
                .with("path", "/proc/self/exe")
                .with("cached", true)
                .with("block_bytes", bytes),
            80.0,
        )
    });
    direct
        .chain(cached)
        .map(|(workload, ms)| Planned::timed("survey/storage", "block", workload, ms))
        .collect()
}

/// Streams on loopback at sizes of pages, sender and receiver on CPUs of their own where there are two.
fn network(pin: &[u32]) -> Vec<Planned> {
    let sender = pin.get(1).or(pin.first()).copied();
    let sizes = [4_u64 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
    let stream = |bytes| {
        let workload = Workload::new("stream").with("message_bytes", bytes);
        let workload = sender.map_or(workload.clone(), |cpu| workload.with("sender_cpu", cpu));
        Planned::timed("survey/network", "stream", workload, 200.0)
    };
    sizes.map(stream).into_iter().collect()
}

/// Copies between user and kernel by system calls, and beside them the plain copies that are their limit.
fn copies(coarse: bool) -> Vec<Planned> {
    let sizes = [
        1,
        64,
        1024,
        4096,
        16 << 10,
        64 << 10,
        256 << 10,
        1 << 20,
        4 << 20,
        16 << 20,
    ];
    let sizes: Vec<usize> = sizes
        .into_iter()
        .filter(|size| !coarse || ![64, 1024, 16 << 10, 256 << 10, 16 << 20].contains(size))
        .collect();
    let each = |size: usize| {
        ["pread", "memcpy"].into_iter().flat_map(move |path| {
            [Direction::From, Direction::To]
                .into_iter()
                .filter(move |direction| path == "pread" || *direction == Direction::To)
                .map(move |direction| {
                    let workload = Request::new(path, direction, size).workload();
                    Planned::timed("survey/copies", "copy", workload, 60.0)
                })
        })
    };
    sizes.into_iter().flat_map(each).collect()
}

/// An emulated timing receiver behind sockets of this host, client and server on one CPU.
fn etherbone(coarse: bool) -> Vec<Planned> {
    let methods = [
        (Method::Convenience, 1..=1_u64),
        (Method::Blocking, 1..=8),
        (Method::Pipelined, 1..=8),
    ];
    let each = |address: &'static str| {
        methods
            .clone()
            .into_iter()
            .flat_map(move |(method, counts)| {
                let wanted = move |count: &u64| {
                    if coarse {
                        *count == 1 || *count == 8
                    } else {
                        count.is_power_of_two()
                    }
                };
                counts.filter(wanted).map(move |count| {
                    let workload = Workload::new("etherbone")
                        .with("address", address)
                        .with("method", method.name())
                        .with("payload", "timestamps")
                        .with("count", count)
                        .with("cycles", 90_u64);
                    Planned::timed("survey/etherbone", "etherbone", workload, 150.0)
                })
            })
    };
    ["loop/udp", "loop/tcp"]
        .into_iter()
        .flat_map(each)
        .collect()
}

/// Read-out chains of one reader and one receiver, each on a CPU of its own where there are two; and decoding by itself.
fn felix(pin: &[u32], coarse: bool) -> Vec<Planned> {
    let receiver = pin
        .get(1)
        .or(pin.first())
        .map(u32::to_string)
        .unwrap_or_default();
    let decode = ["gbt", "full"].map(|scenario| {
        let workload = Workload::new("decode")
            .with("scenario", scenario)
            .with("bytes", 64_u64 << 20);
        Planned::timed("survey/decode", "decode", workload, 250.0)
    });
    let chain = |scenario: &'static str, rate_hz: f64, poll_us: f64| Planned {
        study: "survey/felix",
        engine: "readout",
        workload: Workload::new("readout")
            .with("scenario", scenario)
            .with("rate_hz", rate_hz)
            .with("poll_us", poll_us)
            .with("receiver_cpus", receiver.as_str()),
        part: Part::Chain { seconds: 0.6 },
    };
    let rates: &[f64] = if coarse {
        &[1.0, 1e6, 2e6, 4e6]
    } else {
        &[1.0, 250e3, 500e3, 1e6, 2e6, 3e6, 4e6, 6e6]
    };
    let polls: &[f64] = if coarse { &[100.0] } else { &[100.0, 1000.0] };
    let gbt = polls
        .iter()
        .flat_map(|&poll_us| rates.iter().map(move |&rate_hz| (poll_us, rate_hz)));
    let gbt: Vec<Planned> = gbt
        .filter(|(poll_us, rate_hz)| *poll_us < 1000.0 || *rate_hz <= 1e6)
        .map(|(poll_us, rate_hz)| chain("gbt", rate_hz, poll_us))
        .collect();
    let full: &[f64] = if coarse {
        &[1.05e6]
    } else {
        &[500e3, 1.05e6, 2e6]
    };
    let full: Vec<Planned> = full
        .iter()
        .map(|&rate_hz| chain("full", rate_hz, 100.0))
        .collect();
    decode.into_iter().chain(gbt).chain(full).collect()
}

fn memory(host: &Host, coarse: bool) -> Vec<Planned> {
    let last_level = host.last_level_cache_bytes().max(8 << 20);
    let most = (last_level * 4).clamp(64 << 20, host.memory_bytes / 8);
    let footprints = std::iter::successors(Some(16_u64 << 10), |bytes| {
        Some(bytes * if coarse { 4 } else { 2 })
    })
    .take_while(|bytes| *bytes <= most);
    let ratios = [(1_u64, 0_u64), (1, 1), (1, 2)];
    let each = |bytes: u64| {
        ratios.map(|(reads, writes)| {
            let workload = Workload::new("memory")
                .with("read_bytes", bytes * reads / (reads + writes))
                .with("read_lines", reads)
                .with("write_lines", writes);
            Planned::timed("survey/memory", "memory", workload, 30.0)
        })
    };
    footprints.flat_map(each).collect()
}

fn conversion() -> Vec<Planned> {
    let base = Workload::new("convert")
        .with("samples", SAMPLES)
        .with("scale_factor", 0.123)
        .with("scale_offset", -45.6);
    let mut workloads = Sweep::of(base.clone())
        .over("function", 0_u64..=8)
        .workloads();
    for function in [1_u64, 2] {
        workloads.push(
            base.clone()
                .with("function", function)
                .with("dec_factor", 10_u64),
        );
    }
    let planned = |workload| Planned::timed("survey/conversion", "convert", workload, 350.0);
    workloads.into_iter().map(planned).collect()
}

fn stores(host: &Host, coarse: bool) -> Vec<Planned> {
    // Up to the source reference's 240 MB raw, if memory allows.
    let most = (host.memory_bytes / 24).min(120_000_000);
    let samples = [50_000, 500_000, SAMPLES, 12_000_000, 120_000_000]
        .into_iter()
        .filter(|&samples| samples <= most.max(SAMPLES));
    // The largest takes its time to prepare.
    let samples = samples.filter(|&samples| !coarse || ![500_000, 120_000_000].contains(&samples));
    let base = Workload::new("convert").with("function", 4_u64);
    let kinds: &[&str] = if Isa::best().has_non_temporal() {
        &["cached", "non-temporal"]
    } else {
        &["cached"]
    };
    let workloads = Sweep::of(base)
        .over("samples", samples)
        .over("store", kinds.iter().copied())
        .workloads();
    let planned = |workload| Planned::timed("survey/stores", "convert", workload, 250.0);
    workloads.into_iter().map(planned).collect()
}

fn fusion(coarse: bool) -> Vec<Planned> {
    let base = Workload::new("digitizer")
        .with("devices", "emu:l0")
        .with("samples", SAMPLES)
        .with("function", 4_u64)
        .with("unpaced", true);
    let blocks = [
        0_u64,
        4 << 10,
        8 << 10,
        16 << 10,
        64 << 10,
        256 << 10,
        1 << 20,
        4 << 20,
    ];
    let blocks: Vec<u64> = blocks
        .into_iter()
        .filter(|block| !coarse || ![8 << 10, 64 << 10, 1 << 20].contains(block))
        .collect();
    let planned = |workload| Planned::timed("survey/fusion", "digitizer", workload, 250.0);
    Sweep::of(base)
        .over("block_bytes", blocks)
        .workloads()
        .into_iter()
        .map(planned)
        .collect()
}

fn readout() -> Vec<Planned> {
    let crates = ["emu:l0", "emu:ku0", "emu:l0..4", "emu:ku0 emu:l0..4"];
    let planned = |devices: &str| Planned {
        study: "survey/readout",
        engine: "digitizer",
        workload: Workload::new("digitizer")
            .with("devices", devices)
            .with("samples", SAMPLES)
            .with("reads", 30_u64),
        part: Part::Reads {
            reads: 30,
            ms: 300.0,
        },
    };
    crates.map(planned).into_iter().collect()
}

fn completion() -> Vec<Planned> {
    let crates = [("emu:l0", 300_000_u64), ("emu:l0..4", SAMPLES)];
    let each = |(devices, samples): (&str, u64)| {
        ["poll", "interrupt"].map(|completion| Planned {
            study: "survey/completion",
            engine: "digitizer",
            workload: Workload::new("digitizer")
                .with("devices", devices)
                .with("samples", samples)
                .with("completion", completion)
                .with("trigger_rate_hz", TRIGGER_HZ),
            part: Part::Passes { passes: 28.0 },
        })
    };
    crates.into_iter().flat_map(each).collect()
}

/// The host in one line, the answers, and the table of what was asked about most.
fn summary(records: &[daqmeter_record::RunRecord], spent: &Spent) -> String {
    let mut out = String::new();
    let Some(first) = records.first() else {
        return "nothing was measured\n".to_owned();
    };
    let host = &first.host;
    let _ = writeln!(
        out,
        "{}, {} CPUs, kernel {}",
        host.cpu_model,
        host.logical_cpus,
        host.kernel.split(' ').next().unwrap_or("")
    );
    let share = |seconds: f64| seconds / spent.took_s * 100.0;
    let _ = writeln!(
        out,
        "{} points in {:.0} s: {:.0} % timed, {:.0} % limits, preparation and verification, {:.1} % the survey itself\n",
        records.len(),
        spent.took_s,
        share(spent.timed_s),
        share(spent.measuring_s - spent.timed_s),
        share(spent.took_s - spent.measuring_s)
    );
    let shown: Vec<_> = records
        .iter()
        .filter(|record| record.study == "survey/conversion" || record.study == "survey/readout")
        .cloned()
        .collect();
    let mut shown = shown;
    shown.sort_by_key(|record| {
        (
            record.study.clone(),
            record.lanes.len(),
            record.workload.int("function").unwrap_or(0),
            record.workload.int("dec_factor").unwrap_or(1),
        )
    });
    out.push_str(&table::rows_only(&shown));
    for answer in answers(records) {
        let _ = writeln!(out, "\n{}\n  {}", answer.question, answer.answer);
    }
    let all = advice(records);
    if all.len() > 1 {
        let _ = writeln!(out, "\nWhat else to change");
    }
    for advice in all.iter().skip(1) {
        let evidence = advice
            .evidence
            .as_deref()
            .map_or("no evidence from this run".to_owned(), |found| {
                format!("here: {found}")
            });
        let _ = writeln!(out, "  - {} ({evidence})", advice.what);
    }
    let failed = records
        .iter()
        .filter_map(|record| Some(format!("{}: {}", record.study, record.outcome.reason()?)));
    for line in failed {
        let _ = writeln!(out, "\nnot measured  {line}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a survey of that budget runs, when each point gets that multiple of its share.
    fn keys(budget_s: u64, scale: f64) -> Vec<String> {
        let host = Host {
            memory_bytes: 8 << 30,
            ..Host::default()
        };
        let key = |point: &Planned| format!("{} {}", point.study, point.scaled(scale).0.key());
        plan(Duration::from_secs(budget_s), &host, &[1, 0])
            .iter()
            .map(key)
            .collect()
    }

    #[test]
    fn points_are_the_same_however_long_a_survey_lets_them_run() {
        assert_eq!(keys(60, 0.3), keys(60, 2.0));
        let (short, long) = (keys(20, 0.4), keys(90, 1.3));
        assert!(short.len() < long.len());
        assert!(
            short.iter().all(|key| long.contains(key)),
            "a short survey's points are among a long one's"
        );
    }
}
