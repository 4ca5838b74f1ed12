//! `daqmeter eb perf`: cost of register reads, by method and by the number of timestamps per cycle.

use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use daqmeter_etherbone::{EtherboneRequest, Method, Payload, reach};
use daqmeter_harness::{StepPlan, ordered};
use daqmeter_record::RunRecord;
use daqmeter_report::etherbone::{cycles_text, round_trips_text};
use daqmeter_report::table;

use crate::measure::{Bench, Common};
use crate::output::{Failure, tell};

/// Measure reads: convenience functions, blocking cycles, pipelined cycles.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub(crate) struct Arguments {
    /// Timestamps (or words) per cycle: 4, 1,2,8 or 1-8
    #[arg(short = 'm', long = "per-cycle", value_name = "LIST", value_parser = list, default_value = "1-8")]
    per_cycle: List,
    /// Series
    #[arg(short = 'l', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000), default_value = "11")]
    series: u64,
    /// Method
    #[arg(long, value_enum, default_value = "all")]
    method: Methods,
    #[command(flatten)]
    request: EtherboneRequest,
    #[command(flatten)]
    common: Common,
}

const EXAMPLE: &str = "\
Example, both ends on CPU 1:

  $ daqmeter eb perf loop/udp -m 1,8 --pin 1

us/item is the mean time per 64-bit timestamp by this host's clock; kHz and Mbit/s are of the same
mean. `realistic` and `underest.` are the
windows of the study of 2018, by the slave's own clock: from a single timestamp before the series to
the last of the series, which holds the way there and back once; and from the first of the series to
the last. `gap` is the time between two timestamps of one cycle. The limit of loop/ is the same
bytes over the same kind of socket without Etherbone: a ping-pong, for pipelines an echo of as many
messages; of emu/ it is the bus or the line.";

#[derive(Debug, Clone, PartialEq, Eq)]
struct List(Vec<u64>);

fn list(text: &str) -> Result<List, String> {
    let wrong = || format!("`{text}` is not a list such as 4, 1,2,8 or 1-8");
    let number =
        |part: &str| part.parse::<u64>().ok().filter(|number| *number > 0).ok_or_else(wrong);
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

#[derive(Clone, Copy, Debug)]
struct Methods(Option<Method>);

impl ValueEnum for Methods {
    fn value_variants<'a>() -> &'a [Methods] {
        &[
            Methods(None),
            Methods(Some(Method::Convenience)),
            Methods(Some(Method::Blocking)),
            Methods(Some(Method::Pipelined)),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self.0 {
            None => Some(PossibleValue::new("all").help("All three")),
            Some(method) => method.to_possible_value(),
        }
    }
}

/// Returns the points: every method at every count; of the TLU one count.
fn workloads(arguments: &Arguments) -> Vec<EtherboneRequest> {
    let counts = match arguments.request.payload {
        Payload::Tlu => &[1][..],
        Payload::Timestamps | Payload::Memory => &arguments.per_cycle.0,
    };
    let methods = match arguments.method.0 {
        Some(method) => vec![method],
        None => Method::ALL.to_vec(),
    };
    let point = |count, method| EtherboneRequest { count, method, ..arguments.request.clone() };
    counts
        .iter()
        .flat_map(|&count| methods.iter().map(move |&method| point(count, method)))
        .collect()
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.request.peer_cpu.is_some() && !arguments.request.address.starts_with("loop/") {
        tell("daqmeter: --server-pin had no effect: only the server of loop/ is in this process");
    }
    let points = workloads(arguments);
    let reached = || reach(&arguments.request).map_err(|fault| fault.0);
    reached().map_err(Failure::refused)?;
    let mut bench = Bench::new(&arguments.common, points.len())?;
    let pin = arguments.common.pins();
    for (order, request) in ordered(points, 1) {
        let left = order.of - order.position - 1;
        let settings = bench.runner.settings(
            StepPlan::ByStage(arguments.request.cycles * arguments.series),
            "eb/perf",
            &pin,
        );
        bench.measure(&request, &settings, Some(order))?;
        let is_done = |record: &RunRecord| record.outcome.is_ok();
        if bench.recorder.records.last().is_some_and(is_done) || bench.runner.stop.is_set() {
            continue;
        }
        if left > 0
            && let Err(why) = reached()
        {
            tell(&format!("daqmeter: {why}; points not measured: {left}"));
            break;
        }
    }
    bench.recorder.finish(text)
}

/// Writes the table, and once the common facts of all points.
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
