//! `daqmeter ab`: two sides in turns, until it is decided whether they differ.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_campaign::ab::{Answer, Command, Question, Request, Switch, ask, serve};
use daqmeter_campaign::{Plan, engines};
use daqmeter_harness::StopFlag;
use daqmeter_record::units::show_ns;
use daqmeter_report::table;

use crate::arguments::duration;
use crate::cmp::per_cent;
use crate::interrupt;
use crate::output::{FAILED, Failure, emit, tell};

/// Exit code when the budget did not decide.
const UNDECIDED: u8 = 3;
/// The hidden verb that a side is.
pub(crate) const SIDE: &str = "ab-side";
/// Share of the budget of one block; more blocks see more of what differs from process to process.
const BLOCKS: u32 = 40;
/// Shortest block: preparation would take most of a shorter one.
const MIN_BLOCK: Duration = Duration::from_millis(20);

/// Measure two sides in turns and say whether they differ.
///
/// A and B are two points (an engine with its parameters), or, with --plan, two binaries of daqmeter that measure the same points.
/// Both sides are prepared, in processes of their own on one CPU, and then work in turns in slices of about a millisecond, so that what
/// else the host does meets both alike. It ends as soon as the answer is known: same, slower or faster, or at the budget.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub(crate) struct Arguments {
    /// Side A: a point such as "convert function=3 samples=2000 isa=avx2", or with --plan a binary
    #[arg(value_name = "A")]
    a: String,
    /// Side B
    #[arg(value_name = "B")]
    b: String,
    /// A and B are binaries: measure the points of this plan (a file, or a name) with both
    #[arg(long, value_name = "PLAN", conflicts_with = "switch")]
    plan: Option<String>,
    /// Write A to this file of the host's settings before each slice of A, and B before each of B; put it back at the end
    #[arg(long, value_name = "FILE", requires = "point")]
    switch: Option<PathBuf>,
    /// With --switch: the point that both sides measure
    #[arg(long, value_name = "POINT", requires = "switch")]
    point: Option<String>,
    /// Differences that are of no interest
    #[arg(long, value_name = "PERCENT", value_parser = per_cent, default_value = "1%")]
    ignore: f64,
    /// Time for each point
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    budget: Duration,
    /// CPU for both sides; cpu=N in a point is for that side [default: the first one allowed]
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
    /// Chance that an answer is wrong
    #[arg(long, value_name = "PERCENT", value_parser = per_cent, default_value = "1%")]
    error: f64,
    /// Seed of the orders
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Print the answers as JSON lines
    #[arg(long)]
    json: bool,
}

const EXAMPLE: &str = "\
Examples:

  $ daqmeter ab \"convert function=3 samples=2000 isa=portable\" \"convert function=3 samples=2000 isa=avx2\"
  $ daqmeter ab ./daqmeter.old ./daqmeter --plan quick
  $ daqmeter ab \"memory read_bytes=1MiB cpu=0\" \"memory read_bytes=1MiB cpu=1\"
  # daqmeter ab cubic reno --switch /proc/sys/net/ipv4/tcp_congestion_control --point \"stream ...\"

Exit codes: 0 all the same; 1 something differs; 2 could not measure; 3 undecided, and nothing differs.";

/// A point with both of its sides.
struct Pair {
    name: String,
    sides: [Command; 2],
    switch: Option<Switch>,
}

/// The hidden verb.
pub(crate) fn side() -> Result<ExitCode, Failure> {
    serve(std::io::stdin().lock(), std::io::stdout().lock()).map_err(Failure::refused)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    check(arguments)?;
    let stop = StopFlag::default();
    let asked = stop.clone();
    interrupt::on_signal(move || asked.set());
    let mut answers: Vec<(String, Answer)> = Vec::new();
    let mut refused = 0;
    for pair in pairs(arguments)? {
        if stop.is_set() {
            break;
        }
        match ask(&question(arguments, &pair), &stop, |_| ()) {
            Ok(found) => {
                for answer in found {
                    show(arguments, &pair.name, &answer)?;
                    answers.push((pair.name.clone(), answer));
                }
            }
            Err(why) => {
                refused += 1;
                tell(&format!("daqmeter: {}: {why}", pair.name));
            }
        }
    }
    if !arguments.json && !answers.is_empty() {
        emit(&text(arguments, &answers))?;
    }
    if refused > 0 {
        return Err(Failure::refused(format!(
            "{refused} points could not be measured"
        )));
    }
    Ok(exit_code(&answers))
}

fn check(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.budget.is_zero() {
        return Err(Failure::refused(
            "--budget 0s decides nothing: 1s or more is wanted",
        ));
    }
    if arguments.error <= 0.0 || arguments.error >= 0.5 {
        return Err(Failure::refused("--error is a chance between 0% and 50%"));
    }
    Ok(())
}

fn question(arguments: &Arguments, pair: &Pair) -> Question {
    Question {
        sides: pair.sides.clone(),
        ignore: arguments.ignore,
        alpha: arguments.error,
        budget: arguments.budget,
        block: (arguments.budget / BLOCKS).max(MIN_BLOCK),
        seed: arguments.seed,
        switch: pair.switch.clone(),
    }
}

fn pairs(arguments: &Arguments) -> Result<Vec<Pair>, Failure> {
    let own = std::env::current_exe().map_err(Failure::refused)?;
    if let Some(plan) = &arguments.plan {
        return of_plan(arguments, plan);
    }
    let (a, b) = (arguments.a.as_str(), arguments.b.as_str());
    let (first, second, switch) = match (&arguments.switch, &arguments.point) {
        (Some(path), Some(point)) => {
            let values = [a.to_owned(), b.to_owned()];
            (
                point.as_str(),
                point.as_str(),
                Some(Switch {
                    path: path.clone(),
                    values,
                }),
            )
        }
        _ => (a, b, None),
    };
    let side = |name: &str, text: &str| {
        let request =
            Request::parse(text).map_err(|why| Failure::refused(format!("{name}: {why}")))?;
        Ok::<Command, Failure>(command(name, own.clone(), placed(arguments, request)))
    };
    Ok(vec![Pair {
        name: format!("{a} against {b}"),
        sides: [side("A", first)?, side("B", second)?],
        switch,
    }])
}

fn placed(arguments: &Arguments, request: Request) -> Request {
    let first = || Some(*daqmeter_sys::affinity::allowed_cpus().ok()?.first()?);
    let cpu = request.cpu.or(arguments.pin).or_else(first);
    Request { cpu, ..request }
}

fn command(name: &str, program: PathBuf, request: Request) -> Command {
    Command {
        name: name.to_owned(),
        program,
        arguments: vec![SIDE.to_owned()],
        request,
    }
}

/// Every point of the plan once, for both binaries.
fn of_plan(arguments: &Arguments, plan: &str) -> Result<Vec<Pair>, Failure> {
    let plan = Plan::load(plan).map_err(Failure::refused)?;
    let known = engines(0);
    let mut pairs: Vec<Pair> = Vec::new();
    for point in &plan.points {
        let name = point.workload.to_string();
        let is_there = known
            .iter()
            .any(|engine| engine.name() == point.workload.kind);
        if !is_there || pairs.iter().any(|pair| pair.name == name) {
            continue;
        }
        let cpu = point.pin.first().copied();
        let request = placed(arguments, Request::new(point.workload.clone(), cpu));
        let side = |name: &str, binary: &str| command(name, PathBuf::from(binary), request.clone());
        pairs.push(Pair {
            name,
            sides: [side("A", &arguments.a), side("B", &arguments.b)],
            switch: None,
        });
    }
    Ok(pairs)
}

fn show(arguments: &Arguments, point: &str, answer: &Answer) -> Result<(), Failure> {
    if arguments.json {
        let mut line = serde_json::to_value(answer).map_err(Failure::refused)?;
        line["point"] = point.into();
        emit(&format!("{line}\n"))?;
    }
    Ok(())
}

fn text(arguments: &Arguments, answers: &[(String, Answer)]) -> String {
    let headers = [
        "verdict", "stage", "A", "B", "B/A", "interval", "blocks", "groups", "left out", "point",
    ];
    let time = |ns: Option<f64>| ns.map_or("-".to_owned(), show_ns);
    let rows = answers.iter().map(|(point, answer)| {
        let interval = answer.interval.map_or("-".to_owned(), |(low, high)| {
            format!("{low:.4} - {high:.4}")
        });
        vec![
            answer.verdict.to_owned(),
            answer.stage.clone(),
            time(answer.a_ns),
            time(answer.b_ns),
            answer
                .ratio
                .map_or("-".to_owned(), |ratio| format!("{ratio:.4}")),
            interval,
            answer.blocks.to_string(),
            answer.groups.to_string(),
            answer.left_out.to_string(),
            point.clone(),
        ]
    });
    let mut out = table::plain(&headers, rows);
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    for (point, answer) in answers
        .iter()
        .filter(|(_, answer)| answer.verdict == "undecided")
    {
        let visible = answer.visible.map_or("none yet".to_owned(), percent);
        let missing = answer
            .missing_s
            .map_or("cannot be told".to_owned(), |seconds| {
                format!("about {seconds:.0} s")
            });
        let _ = writeln!(
            out,
            "undecided: {} of {point}: differences above {visible} could have been seen; time that is missing: {missing}",
            answer.stage
        );
    }
    let _ = writeln!(
        out,
        "differences up to {} are ignored; each answer is wrong with a chance of at most {}",
        percent(arguments.ignore),
        percent(arguments.error)
    );
    out
}

fn exit_code(answers: &[(String, Answer)]) -> ExitCode {
    let any = |verdicts: &[&str]| {
        answers
            .iter()
            .any(|(_, answer)| verdicts.contains(&answer.verdict))
    };
    let code = if any(&["slower", "faster"]) {
        ExitCode::from(FAILED)
    } else if any(&["undecided"]) || answers.is_empty() {
        ExitCode::from(UNDECIDED)
    } else {
        ExitCode::SUCCESS
    };
    interrupt::exit_code(code)
}
