//! `daqmeter survey`: everything that can be measured on this host with what exists so far, as one report.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_copy::{Direction, Request};
use daqmeter_etherbone::Method;
use daqmeter_harness::{StepPlan, Sweep, ordered};
use daqmeter_record::{Host, Workload};
use daqmeter_report::{answers, page, table};

use crate::arguments::duration;
use crate::output::{Failure, emit, tell, write_file};
use crate::run::{Common, CpuList, Runner};

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
    plan: StepPlan,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let began = Instant::now();
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
        .unwrap_or_else(|| CpuList(runner.context.host.allowed_cpus.iter().rev().copied().collect()))
        .0;
    // Memory traffic beside every point, where something counts it.
    for group in ["memory", "imc", "mbm"] {
        runner.observe_if_there(group);
    }
    let points = plan(arguments.budget, &runner.context.host, &pin);
    runner.expect(points.len());
    for (order, point) in ordered(points, arguments.seed) {
        let settings = runner.settings(point.plan, point.study, &pin);
        runner.point(point.engine, &point.workload, &settings, Some(order))?;
    }
    if !runner.stop.is_set() {
        // A fiftieth of the budget for each of the loads that counters are held against.
        let record = crate::pmu::survey(arguments.budget.div_f64(50.0).min(Duration::from_secs(2)), &runner.context);
        record.map(|record| runner.recorder.take(record)).transpose()?;
    }
    runner.finish();
    let records = &runner.recorder.records;
    if !common.json {
        emit(&summary(records, began.elapsed()))?;
    }
    write_file(&arguments.output, &page(records).map_err(Failure::refused)?)?;
    if let (Some(out), false) = (&common.out, common.json) {
        tell(&format!("\nwrote {} and {}", arguments.output.display(), out.display()));
    }
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}

/// Samples of the source document's conversion tables: 6 MB raw.
const SAMPLES: u64 = 3_000_000;

/// The points, sized so that all of them together take about the budget.
fn plan(budget: Duration, host: &Host, pin: &[u32]) -> Vec<Planned> {
    // At 60 s the timed points below take about 20 s together with their limits, the paced and triggered ones 15 s.
    let scale = (budget.as_secs_f64() / 60.0).clamp(0.05, 20.0);
    let time = |ms: f64| StepPlan::Timed(Duration::from_secs_f64(ms * scale / 1e3));
    let mut points =
        vec![Planned { study: "survey/tool", engine: "null", workload: Workload::new("null"), plan: time(300.0) }];
    points.extend(memory(host, time(40.0)));
    points.extend(conversion(time(350.0)));
    points.extend(stores(host, time(250.0)));
    points.extend(fusion(time(250.0)));
    points.extend(readout());
    points.extend(completion(scale));
    points.extend(etherbone(time(100.0)));
    points.extend(felix(scale, pin, time(200.0)));
    points.extend(copies(time(25.0)));
    points
}

/// Copies between user and kernel by system calls, and beside them the plain copies that are their limit.
fn copies(plan: StepPlan) -> Vec<Planned> {
    let sizes = [1, 64, 1024, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
    let each = |size: usize| {
        ["pread", "memcpy"].into_iter().flat_map(move |path| {
            [Direction::From, Direction::To]
                .into_iter()
                .filter(move |direction| path == "pread" || *direction == Direction::To)
                .map(move |direction| Planned {
                    study: "survey/copies",
                    engine: "copy",
                    workload: Request::new(path, direction, size).workload(),
                    plan,
                })
        })
    };
    sizes.into_iter().flat_map(each).collect()
}

/// An emulated timing receiver behind sockets of this host, client and server on one CPU.
fn etherbone(plan: StepPlan) -> Vec<Planned> {
    let methods = [(Method::Convenience, 1..=1_u64), (Method::Blocking, 1..=8), (Method::Pipelined, 1..=8)];
    let each = |address: &'static str| {
        methods.clone().into_iter().flat_map(move |(method, counts)| {
            counts.filter(|count| count.is_power_of_two()).map(move |count| Planned {
                study: "survey/etherbone",
                engine: "etherbone",
                workload: daqmeter_etherbone::reproduce::workload(address, method, "timestamps", count),
                plan,
            })
        })
    };
    ["loop/udp", "loop/tcp"].into_iter().flat_map(each).collect()
}

/// Read-out chains of one reader and one receiver, each on a CPU of its own where there are two; and decoding by itself.
fn felix(scale: f64, pin: &[u32], plan: StepPlan) -> Vec<Planned> {
    let receiver = pin.get(1).or(pin.first()).map(u32::to_string).unwrap_or_default();
    let decode = ["gbt", "full"].map(|scenario| Planned {
        study: "survey/decode",
        engine: "decode",
        workload: Workload::new("decode").with("scenario", scenario).with("bytes", 64_u64 << 20),
        plan,
    });
    let chain = |scenario: &'static str, rate_hz: f64, poll_us: f64| Planned {
        study: "survey/felix",
        engine: "readout",
        workload: Workload::new("readout")
            .with("scenario", scenario)
            .with("rate_hz", rate_hz)
            .with("poll_us", poll_us)
            .with("seconds", (0.5 * scale).clamp(0.05, 10.0))
            .with("receiver_cpus", receiver.as_str()),
        plan: StepPlan::ByStage(1),
    };
    let rates = [1.0, 250e3, 500e3, 1e6, 1.5e6, 2e6];
    let gbt = [100.0, 1000.0].into_iter().flat_map(|poll_us| rates.map(|rate_hz| chain("gbt", rate_hz, poll_us)));
    let full = [500e3, 1.05e6, 2e6].map(|rate_hz| chain("full", rate_hz, 100.0));
    decode.into_iter().chain(gbt).chain(full).collect()
}

fn memory(host: &Host, plan: StepPlan) -> Vec<Planned> {
    let last_level = host.last_level_cache_bytes().max(8 << 20);
    let most = (last_level * 4).clamp(64 << 20, host.memory_bytes / 8);
    let footprints =
        std::iter::successors(Some(16_u64 << 10), |bytes| Some(bytes * 2)).take_while(|bytes| *bytes <= most);
    let ratios = [(1_u64, 0_u64), (1, 1), (1, 2)];
    let each = |bytes: u64| {
        ratios.map(|(reads, writes)| Planned {
            study: "survey/memory",
            engine: "memory",
            workload: Workload::new("memory")
                .with("read_bytes", bytes * reads / (reads + writes))
                .with("read_lines", reads)
                .with("write_lines", writes),
            plan,
        })
    };
    footprints.flat_map(each).collect()
}

fn conversion(plan: StepPlan) -> Vec<Planned> {
    let base =
        Workload::new("convert").with("samples", SAMPLES).with("scale_factor", 0.123).with("scale_offset", -45.6);
    let mut workloads = Sweep::of(base.clone()).over("function", 0_u64..=8).workloads();
    for function in [1_u64, 2] {
        workloads.push(base.clone().with("function", function).with("dec_factor", 10_u64));
    }
    let planned = |workload| Planned { study: "survey/conversion", engine: "convert", workload, plan };
    workloads.into_iter().map(planned).collect()
}

fn stores(host: &Host, plan: StepPlan) -> Vec<Planned> {
    // Up to the source reference's 240 MB raw, if memory allows.
    let most = (host.memory_bytes / 24).min(120_000_000);
    let samples =
        [50_000, 500_000, SAMPLES, 12_000_000, 120_000_000].into_iter().filter(|&samples| samples <= most.max(SAMPLES));
    let base = Workload::new("convert").with("function", 4_u64);
    let workloads = Sweep::of(base).over("samples", samples).over("store", ["cached", "non-temporal"]).workloads();
    let planned = |workload| Planned { study: "survey/stores", engine: "convert", workload, plan };
    workloads.into_iter().map(planned).collect()
}

fn fusion(plan: StepPlan) -> Vec<Planned> {
    let base = Workload::new("digitizer")
        .with("devices", "emu:l0")
        .with("samples", SAMPLES)
        .with("function", 4_u64)
        .with("unpaced", true);
    let blocks = [0_u64, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
    let planned = |workload| Planned { study: "survey/fusion", engine: "digitizer", workload, plan };
    Sweep::of(base).over("block_bytes", blocks).workloads().into_iter().map(planned).collect()
}

fn readout() -> Vec<Planned> {
    let crates = ["emu:l0", "emu:ku0", "emu:l0..4", "emu:ku0 emu:l0..4"];
    let planned = |devices: &str| Planned {
        study: "survey/readout",
        engine: "digitizer",
        workload: Workload::new("digitizer").with("devices", devices).with("samples", SAMPLES).with("reads", 30_u64),
        plan: StepPlan::ByStage(30),
    };
    crates.map(planned).into_iter().collect()
}

fn completion(scale: f64) -> Vec<Planned> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number of passes")]
    let passes = (28.0 * scale).clamp(5.0, 280.0) as u64;
    let crates = [("emu:l0", 300_000_u64), ("emu:l0..4", SAMPLES)];
    let each = |(devices, samples): (&str, u64)| {
        ["poll", "interrupt"].map(|completion| Planned {
            study: "survey/completion",
            engine: "digitizer",
            workload: Workload::new("digitizer")
                .with("devices", devices)
                .with("samples", samples)
                .with("passes", passes)
                .with("completion", completion)
                .with("trigger_rate_hz", 14.0),
            plan: StepPlan::ByPass(passes),
        })
    };
    crates.into_iter().flat_map(each).collect()
}

/// The host in one line, the answers, and the table of what was asked about most.
fn summary(records: &[daqmeter_record::RunRecord], took: Duration) -> String {
    let mut out = String::new();
    let Some(first) = records.first() else { return "nothing was measured\n".to_owned() };
    let host = &first.host;
    let _ = writeln!(
        out,
        "{}, {} CPUs, kernel {}",
        host.cpu_model,
        host.logical_cpus,
        host.kernel.split(' ').next().unwrap_or("")
    );
    let _ = writeln!(out, "{} points in {:.0} s\n", records.len(), took.as_secs_f64());
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
    let failed = records.iter().filter_map(|record| Some(format!("{}: {}", record.study, record.outcome.reason()?)));
    for line in failed {
        let _ = writeln!(out, "\nnot measured  {line}");
    }
    out
}
