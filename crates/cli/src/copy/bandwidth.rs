//! `daqmeter copy bandwidth`: what all CPUs, or all channels, move at once.

use std::process::ExitCode;

use clap::Args;
use daqmeter_copy::Context;
use daqmeter_harness::{StepPlan, ordered};
use daqmeter_report::copy::bandwidth_text;
use daqmeter_report::copy_classic;

use super::{Chosen, Operation, Written, limits, operation, refuse_large, write_classic, write_page};
use crate::arguments::count;
use crate::output::{Failure, emit};
use crate::run::{Common, Runner};

/// Rate of all CPUs or all channels at once: per channel and in total, the priority policy included.
#[derive(Debug, Args)]
#[command(
    after_long_help = "MB are of 2^20 bytes, as in the study; the total is the sum of the channels' rates, and beside it stands what\nall bytes over the time of all give.\n\nExample:\n\n  $ daqmeter copy bandwidth --contexts cpu,priority --sizes 64KiB,1MiB"
)]
pub(super) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// CPUs or channels that copy at once; without, as many as CPUs are allowed
    #[arg(long, value_name = "N", value_parser = count)]
    lanes: Option<u64>,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    common: Common,
}

fn operations(chosen: &Chosen) -> Vec<Operation> {
    if !chosen.operations.is_empty() {
        return chosen.operations.clone();
    }
    ["from", "to", "both"].into_iter().filter_map(|name| operation(name).ok()).collect()
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let chosen = &arguments.chosen;
    let sizes = chosen.sizes(1024)?;
    let contexts = chosen.contexts(&Context::ALL);
    let paths = contexts.iter().map(|context| chosen.path_of(*context)).collect::<Result<Vec<_>, _>>()?;
    let mut runner = Runner::new(&arguments.common, contexts.len() * sizes.len() * operations(chosen).len())?;
    let cpus = runner.context.host.allowed_cpus.clone();
    let lanes = arguments.lanes.map_or(cpus.len().min(64), |lanes| usize::try_from(lanes).unwrap_or(usize::MAX));
    refuse_large(&sizes, lanes)?;
    let pin = arguments.common.pin.as_ref().map_or(cpus, |list| list.0.clone());
    let limits = limits(&mut runner, &sizes, lanes, &pin)?;
    let mut points = Vec::new();
    for (context, path) in contexts.iter().zip(&paths) {
        for operation in operations(chosen) {
            for (size, limit) in sizes.iter().zip(&limits) {
                let mut request = chosen.request(path, *context, operation, *size)?;
                request.lanes = lanes;
                request.limit_bytes_per_s = Some(*limit).filter(|limit| *limit > 0.0);
                points.push(chosen.workload(&request));
            }
        }
    }
    let settings = runner.settings(StepPlan::ByStage(chosen.reps.clamp(1, 1 << 20)), "copy/bandwidth", &pin);
    for (order, workload) in ordered(points, chosen.seed) {
        runner.point("copy", &workload, &settings, Some(order))?;
    }
    runner.finish();
    let records = &runner.recorder.records;
    if !arguments.common.json {
        emit(&bandwidth_text(records))?;
    }
    write_classic(&arguments.written, &copy_classic::bandwidth(records))?;
    write_page(arguments.written.output.as_ref(), &runner)?;
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}
