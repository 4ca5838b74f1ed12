//! `daqmeter eb perf`: what reading registers costs, by method and by the number of timestamps per cycle.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_etherbone::Method;
use daqmeter_harness::{StepPlan, Sweep, ordered};
use daqmeter_record::{RunRecord, Workload};
use daqmeter_report::etherbone::{cycles_text, round_trips_text};
use daqmeter_report::table;

use crate::output::{Failure, tell};
use crate::runner::{Common, Runner};

/// Measure reads: convenience functions, blocking cycles, pipelined cycles.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub(crate) struct Arguments {
    /// Slave; loop/udp and loop/tcp serve an emulated one in this process
    #[arg(default_value = "loop/udp")]
    slave: String,
    /// Timestamps (or words) per cycle: 4, 1,2,8 or 1-8
    #[arg(short = 'm', long = "per-cycle", value_name = "LIST", value_parser = list, default_value = "1-8")]
    per_cycle: List,
    /// Cycles of a series
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20), default_value = "90")]
    cycles: u64,
    /// Series
    #[arg(short = 'l', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000), default_value = "11")]
    series: u64,
    /// Method
    #[arg(long, value_enum, default_value = "all")]
    method: MethodChoice,
    /// What is read
    #[arg(long, value_enum, default_value = "timestamps")]
    payload: Payload,
    /// Address from which --payload memory reads [default: the memory of loop/ and emu/]
    #[arg(long, value_name = "ADDRESS", value_parser = super::number)]
    base: Option<u64>,
    /// Put the link of this bridge, or of a TOML file, in between: delay, rate, loss
    #[arg(long, value_name = "NAME|FILE")]
    link: Option<String>,
    /// CPU of the server of loop/ [default: where the client is]
    #[arg(long, value_name = "CPU", help_heading = "Placement")]
    server_pin: Option<u32>,
    /// Page to write, with the study's four figures
    #[arg(short, long, value_name = "FILE.html", help_heading = "Output")]
    output: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

const EXAMPLE: &str = "\
Example, both ends on CPU 1:

  $ daqmeter eb perf loop/udp -m 1,8 --pin 1

us/item is the time per 64-bit timestamp by this host's clock. `realistic` and `underest.` are the
windows of the study of 2018, by the slave's own clock: from a single timestamp before the series to
the last of the series, which holds the way there and back once; and from the first of the series to
the last. `gap` is the time between two timestamps of one cycle. The limit of loop/ is the same
bytes over the same kind of socket without Etherbone: a ping-pong, for pipelines an echo of as many
messages; of emu/ it is the bus or the line.";

/// Values of an option: single ones and ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
struct List(Vec<u64>);

fn list(text: &str) -> Result<List, String> {
    let wrong = || format!("`{text}` is not a list such as 4, 1,2,8 or 1-8");
    let number = |part: &str| {
        part.parse::<u64>()
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(wrong)
    };
    let mut values = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => values.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last || last - first > 1000 {
                    return Err(wrong());
                }
                values.extend(first..=last);
            }
        }
    }
    Ok(List(values))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MethodChoice {
    /// All three
    All,
    /// Each operation a round trip
    Convenience,
    /// Each cycle a round trip
    Blocking,
    /// Many cycles on their way at once
    Pipelined,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Payload {
    /// 64-bit times of the ECA
    Timestamps,
    /// 3 reads and 1 write of the timestamp latch; loop/ and emu/ only
    Tlu,
    /// Words of memory
    Memory,
}

impl Payload {
    fn name(self) -> &'static str {
        match self {
            Payload::Timestamps => "timestamps",
            Payload::Tlu => "tlu",
            Payload::Memory => "memory",
        }
    }
}

fn methods(choice: MethodChoice) -> Vec<Method> {
    let wanted = |method: &Method| match choice {
        MethodChoice::All => true,
        MethodChoice::Convenience => *method == Method::Convenience,
        MethodChoice::Blocking => *method == Method::Blocking,
        MethodChoice::Pipelined => *method == Method::Pipelined,
    };
    Method::ALL.into_iter().filter(wanted).collect()
}

/// The points: every method at every count; of the TLU one count.
fn workloads(arguments: &Arguments) -> Vec<Workload> {
    let mut base = Workload::new("etherbone")
        .with("address", arguments.slave.as_str())
        .with("payload", arguments.payload.name())
        .with("cycles", arguments.cycles);
    if let Some(cpu) = arguments.server_pin {
        base = base.with("server_cpu", cpu);
    }
    if let Some(address) = arguments.base {
        base = base.with("base", address);
    }
    if let Some(link) = &arguments.link {
        base = base.with("link", link.as_str());
    }
    let counts = if arguments.payload == Payload::Tlu {
        vec![1]
    } else {
        arguments.per_cycle.0.clone()
    };
    let methods = methods(arguments.method).into_iter().map(Method::name);
    Sweep::of(base)
        .over("count", counts)
        .over("method", methods)
        .workloads()
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.server_pin.is_some() && !arguments.slave.starts_with("loop/") {
        tell("daqmeter: --server-pin had no effect: only the server of loop/ is in this process");
    }
    let points = workloads(arguments);
    let mut runner = Runner::new(&arguments.common, points.len())?;
    let pin = arguments.common.pins();
    for (order, workload) in ordered(points, 1) {
        let settings = runner.settings(
            StepPlan::ByStage(arguments.cycles * arguments.series),
            "eb/perf",
            &pin,
        );
        runner.point("etherbone", &workload, &settings, Some(order))?;
    }
    runner.conclude(arguments.output.as_deref(), text)
}

/// The table, and once what is the same for all points.
fn text(records: &[RunRecord]) -> String {
    let mut out = cycles_text(records);
    let trips = round_trips_text(records);
    if !trips.is_empty() {
        out.push('\n');
        out.push_str(&trips);
    }
    let mut notes: Vec<String> = records.iter().flat_map(table::faults_and_ledgers).collect();
    notes.sort();
    notes.dedup();
    for note in notes {
        out.push_str(&format!(" {note}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_single_values_and_ranges() {
        assert_eq!(list("1-3,8").unwrap().0, [1, 2, 3, 8]);
        assert_eq!(list("4").unwrap().0, [4]);
        for wrong in ["", "0", "3-1", "a", "1,", "1-100000"] {
            assert!(list(wrong).is_err(), "{wrong}");
        }
    }
}
