//! `daqmeter ab`: two sides alternately, until it is decided whether they differ.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_campaign::ab::{AbSide, AbWork, COMMAND, MAX_SHIFT, PATIENCE, PointRequest};
use daqmeter_campaign::{Plan, Site, engine};
use daqmeter_harness::{StopFlag, Tally};
use daqmeter_record::conditions::{Taken, pinned};
use daqmeter_record::units::whole;
use daqmeter_record::{EngineInfo, RunRecord, Workload, jsonl};
use daqmeter_report::cmp::{Compared, Conclusion, in_turn};
use daqmeter_stats::Random;

use crate::arguments::{budget, check_cpus, share};
use crate::compare::code_of;
use crate::context::context;
use crate::interrupt;
use crate::named::Appended;
use crate::output::{Ended, Failure, emit, json_lines};
use crate::progress::{Forecast, Progress};
use crate::recorder::Lines;

/// Measure two sides alternately, and say whether they differ.
///
/// A and B are two points: an engine with its parameters, and cpu=N for its CPU. With --plan they
/// are two binaries of daqmeter that measure the same points, with --commands two commands of the
/// shell. A new process measures each time, so that other programs disturb both sides alike. It
/// ends when the answer is known, or after --time.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/ab.txt"))]
pub(crate) struct Arguments {
    /// Side A: a point such as "null cpu=0"; a binary with --plan, a command with --commands
    a: String,
    /// Side B
    b: String,
    /// Plan whose points are measured with two binaries: a file or a name
    #[arg(long, value_name = "PLAN")]
    plan: Option<String>,
    /// A and B are commands of the shell: compare their times from start to end
    #[arg(long, conflicts_with = "plan")]
    commands: bool,
    /// Largest difference that is not called one
    #[arg(long, value_name = "PERCENT", value_parser = share, default_value = "1%")]
    ignore: f64,
    /// Longest time for all points [default: 10s for each, at most 50s]
    #[arg(long, value_name = "TIME", value_parser = budget)]
    time: Option<Duration>,
    /// CPU for both sides [default: the last one allowed; for commands all]
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
    /// Append the record of each measurement to this file (JSON lines)
    #[arg(long, value_name = "FILE.jsonl")]
    records: Option<Appended>,
    /// Print the comparisons as JSON lines
    #[arg(long)]
    json: bool,
}

/// Number of pairs before the first look. Each further look has half as many again.
const FIRST_LOOK: usize = 4;
/// Looks that share the chance of a wrong answer: the last is at 163 pairs.
const LOOKS: f64 = 10.0;

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let points = points(arguments)?;
    let mut file = arguments.records.as_ref().map(|file| Lines::open(file, None)).transpose()?;
    let stop = interrupt::flag();
    let usual = Duration::from_secs(10 * (points.len() as u64).clamp(1, 5));
    let (time, began) = (arguments.time.unwrap_or(usual), Instant::now());
    let progress = Progress::begin(false, arguments.json);
    let context = context(None);
    progress.expect(Forecast { points: points.len() as u64, ..Forecast::budget(time) });
    let (mut conclusions, mut refused) = (Vec::new(), Vec::new());
    for (at, (name, sides)) in points.iter().enumerate().take_while(|_| !stop.is_set()) {
        progress.begin_point(name.clone());
        let whole = context.open_record("", EngineInfo::default(), Workload::default());
        let left = time.saturating_sub(began.elapsed());
        let time = left.div_f64((points.len() - at) as f64);
        let compared = compared(arguments, time, sides, points.len(), &stop, &mut file);
        progress.took_point();
        match compared {
            Ok((compared, cpus)) => {
                conclusions.push(compared.conclusion);
                emit(&match arguments.json {
                    true => json_lines(std::slice::from_ref(&compared))?,
                    false => {
                        let whole = whole.so_far(Tally::default(), Vec::new());
                        compared.frame(true).text(Taken::from(&[whole], cpus.as_ref()).text())
                    }
                })?;
            }
            Err(why) => refused.push(format!("{name}: {why}")),
        }
    }
    progress.end();
    if let ([first, ..], false) = (&refused[..], stop.is_set()) {
        let (refused, of) = (refused.len(), points.len());
        return Err(format!("{refused} of {of} points not measured: {first}").into());
    }
    Ok(code_of(conclusions.into_iter().max().unwrap_or(Conclusion::NotComparable)))
}

/// Returns the name of each point, and its sides.
fn points(arguments: &Arguments) -> Result<Vec<(String, [AbSide; 2])>, Failure> {
    check_cpus("--pin", arguments.pin.as_slice())?;
    let texts = [&arguments.a, &arguments.b];
    if arguments.commands {
        // Children inherit the CPU.
        arguments.pin.map(daqmeter_sys::affinity::pin_to).transpose()?;
        let context = context(None);
        let patience = PATIENCE.max(arguments.time.unwrap_or_default());
        let sides = texts.map(|text| AbWork::Shell(text.clone(), context.clone()));
        return Ok(vec![(COMMAND.to_owned(), named(sides, patience))]);
    }
    let last = daqmeter_sys::affinity::allowed_cpus()?.last().copied();
    // The first CPUs serve most interrupts.
    let placed = |request: PointRequest| PointRequest {
        cpu: request.cpu.or(arguments.pin).or(last),
        ..request
    };
    let point = |programs: &[PathBuf; 2], requests: [PointRequest; 2]| {
        let name = daqmeter_report::label(&requests[0].workload, "");
        let [of_a, of_b] = requests.map(placed);
        let [a, b] = programs.clone();
        (name, named([AbWork::Point(a, of_a), AbWork::Point(b, of_b)], PATIENCE))
    };
    let Some(plan) = &arguments.plan else {
        let side = |text: &str, name: &str| {
            let request = PointRequest::parse(text).map_err(|why| format!("{name}: {why}"))?;
            check_cpus(&format!("{name}: cpu"), request.cpu.as_slice())?;
            let job = engine(&request.workload.kind).map(|engine| engine.parse(&request.workload));
            job.map_err(|why| format!("{name}: {why}"))?.map_err(|why| format!("{name}: {why}"))?;
            Ok::<_, Failure>(request)
        };
        let own = std::env::current_exe()?;
        return Ok(vec![point(&[own.clone(), own], [side(texts[0], "A")?, side(texts[1], "B")?])]);
    };
    let programs = [binary(texts[0])?, binary(texts[1])?];
    let site = Site { pin: arguments.pin.map(|cpu| vec![cpu]), ..Site::here() };
    let mut requests: Vec<PointRequest> = Vec::new();
    for found in Plan::load_for(plan, &site)?.points {
        let (workload, cpu, steps) = (found.workload, found.pin.first().copied(), found.steps);
        let request = PointRequest { workload, cpu, steps };
        // Repetitions are measured anyway.
        if !requests.contains(&request) {
            requests.push(request);
        }
    }
    Ok(requests.into_iter().map(|request| point(&programs, [request.clone(), request])).collect())
}

fn named(works: [AbWork; 2], patience: Duration) -> [AbSide; 2] {
    let [a, b] = works;
    [("A", a), ("B", b)].map(|(name, work)| AbSide { name, work, patience })
}

/// Returns the path of a file, even if it has no folder; else looks for it as the shell does.
fn binary(name: &str) -> Result<PathBuf, Failure> {
    let path = Path::new(name);
    if path.is_file() {
        return Ok(std::path::absolute(path)?);
    }
    match name.contains('/') {
        true => Err(format!("{name} is not a file; a binary of daqmeter is wanted").into()),
        false => Ok(path.to_owned()),
    }
}

/// Measures alternately until every time is decided, the time is over, or `stop` is set. Returns
/// the comparison, and the CPUs of both sides if they were pinned.
fn compared(
    arguments: &Arguments,
    time: Duration,
    sides: &[AbSide; 2],
    points: usize,
    stop: &StopFlag,
    file: &mut Option<Lines>,
) -> Result<(Compared, Option<BTreeSet<u32>>), String> {
    let began = Instant::now();
    let mut random = Random::new(1);
    let mut records: [Vec<RunRecord>; 2] = Default::default();
    let (mut pairs, mut look) = (0, FIRST_LOOK);
    loop {
        let first = usize::from(random.uniform() < 0.5);
        for side in [first, 1 - first] {
            let shift_bytes =
                usize::try_from(whole(random.uniform() * MAX_SHIFT)).expect("below 4096");
            let mut found = sides[side].measure(shift_bytes)?;
            let lines = found.iter().flat_map(jsonl::to_line).collect::<Vec<u8>>();
            let written = file.as_mut().map_or(Ok(()), |file| file.write(&lines));
            written.map_err(|failure| failure.line)?;
            records[side].append(&mut found);
        }
        pairs += 1;
        let is_over = stop.is_set() || began.elapsed() >= time;
        if pairs < look && !is_over {
            continue;
        }
        look += look.div_ceil(2);
        let [a, b] = &mut records;
        // Sides with other parameters are one point. Commands are not part of its name.
        let of_a = a.first().map(|record| record.workload.clone());
        let command = arguments.commands.then(|| Workload::new(COMMAND).into());
        if let Some(of_all) = command.or(of_a) {
            let all = a.iter_mut().chain(b.iter_mut());
            all.for_each(|record| record.workload = Arc::clone(&of_all));
        }
        let compared = in_turn(a, b, arguments.ignore, LOOKS * points as f64);
        if is_over || compared.is_decided() {
            return Ok((compared, pinned(&records.concat())));
        }
    }
}
