//! `daqmeter eb perf`: cost of register reads, by method and by the number of timestamps per cycle.

use std::time::Duration;

use clap::Args;
use daqmeter_etherbone::{EtherboneRequest, Method, Payload, reach};
use daqmeter_harness::{CpuList, Request as _, Settings, StepPlan, StopFlag, ordered};
use daqmeter_report::etherbone::cycles_shown;

use crate::arguments::budget;
use crate::measure::{Bench, Common};
use crate::output::{Ended, tell};
use crate::progress::Forecast;

/// Measure reads: convenience functions, blocking cycles, pipelined cycles.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/eb-perf.txt"))]
pub(crate) struct Arguments {
    /// Timestamps (or words) per cycle: 4, 1,2,8 or 1-8 [default: 1-8]
    #[arg(short = 'm', long = "per-cycle", value_name = "LIST", value_parser = list)]
    per_cycle: Option<CpuList>,
    /// Repetitions of the series
    #[arg(short = 'l', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000), default_value = "11")]
    repeat: u64,
    /// Time for all points together, with fewer repetitions where they do not fit
    #[arg(long, value_name = "TIME", value_parser = budget)]
    time: Option<Duration>,
    /// Only this method
    #[arg(long)]
    method: Option<Method>,
    #[command(flatten)]
    request: EtherboneRequest,
    #[command(flatten)]
    common: Common,
}

fn list(text: &str) -> Result<CpuList, String> {
    text.parse::<CpuList>().map_err(|_| format!("`{text}` is not a list such as 4, 1,2,8 or 1-8"))
}

/// Returns the points: every method at every count; of the TLU one count.
fn points(arguments: &Arguments, request: &EtherboneRequest) -> Vec<EtherboneRequest> {
    let EtherboneRequest { payload, litex, .. } = *request;
    let counts = match (payload, &arguments.per_cycle) {
        (Payload::Tlu, _) => &[1][..],
        (_, Some(counts)) => &counts.0,
        // LiteX buffers 16 words of a packet.
        (_, None) if litex => &[1, 2, 4, 8, 15],
        (_, None) => &[1, 2, 3, 4, 5, 6, 7, 8],
    };
    let only = arguments.method.or(litex.then_some(Method::Blocking));
    let is_chosen = |method: &Method| only.is_none_or(|only| only == *method);
    let at = |count: u32| {
        Method::ALL.into_iter().filter(is_chosen).map(move |method| EtherboneRequest {
            count: count.into(),
            method,
            ..request.clone()
        })
    };
    counts.iter().flat_map(|&count| at(count)).collect()
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let mut request = arguments.request.clone();
    if request.litex && request.payload == Payload::Timestamps {
        (request.payload, request.method) = (Payload::Memory, Method::Blocking);
    }
    let points = points(arguments, &request);
    let reached = |stop: &StopFlag| reach(&request, stop).map_err(|fault| fault.0);
    reached(&StopFlag::default())?;
    points.iter().try_for_each(|point| point.job().map(drop)).map_err(|fault| fault.0)?;
    let mut bench = Bench::new(&arguments.common)?;
    bench.recorder.expect(Forecast::points(points.len(), arguments.time));
    let within = arguments.time.map(|time| time.div_f64(points.len() as f64));
    let steps = StepPlan::ByStage(request.cycles * arguments.repeat);
    for (order, request) in ordered(points, 1) {
        let left = order.of - order.position - 1;
        let settings = bench.runner.settings(steps, "eb/perf", &arguments.common.pins());
        let settings = Settings { within, ..settings };
        bench.measure(&request, &settings, Some(order))?;
        let is_done = bench.recorder.records.last().is_some_and(|last| last.outcome.is_ok());
        if left == 0 || is_done || bench.runner.stop.is_set() {
            continue;
        }
        if let Err(why) = reached(&bench.runner.stop) {
            tell(&format!("daqmeter: {why}; points not measured: {left}"));
            break;
        }
    }
    bench.recorder.finish(cycles_shown)
}
