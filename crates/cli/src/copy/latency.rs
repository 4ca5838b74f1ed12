//! `daqmeter copy latency`: how long one copy takes, by size, way and context.

use std::process::ExitCode;

use clap::Args;
use daqmeter_copy::Context;
use daqmeter_harness::{StepPlan, ordered};
use daqmeter_report::copy::latency_text;
use daqmeter_report::copy_classic;

use super::{Chosen, Operation, Written, limits, operation, refuse_large, write_classic, write_page};
use crate::output::{Failure, emit};
use crate::run::{Common, Runner};

/// Time of one copy by size: from, to, and both with caches emptied, by CPU and by an engine's channels.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Pinning and mapping of an engine's copy are outside its clock and reported apart. With several contexts the\nclassic files lie in a folder for each.\n\nExample:\n\n  $ daqmeter copy latency --sizes 1,64,4KiB --contexts cpu --format classic --out-dir results"
)]
pub(super) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    common: Common,
}

/// Operations of the study: from, to, and both without cache.
fn operations(chosen: &Chosen) -> Vec<Operation> {
    if !chosen.operations.is_empty() {
        return chosen.operations.clone();
    }
    ["from", "to", "from_nc", "to_nc"].into_iter().filter_map(|name| operation(name).ok()).collect()
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let chosen = &arguments.chosen;
    let sizes = chosen.sizes(1)?;
    refuse_large(&sizes, 1)?;
    let contexts = chosen.contexts(&[Context::Cpu, Context::Exclusive, Context::Shared]);
    let paths = contexts.iter().map(|context| chosen.path_of(*context)).collect::<Result<Vec<_>, _>>()?;
    let mut runner = Runner::new(&arguments.common, contexts.len() * sizes.len() * operations(chosen).len())?;
    let pin = arguments.common.pin.as_ref().map(|list| list.0.clone()).unwrap_or_default();
    let limits = limits(&mut runner, &sizes, 1, &pin)?;
    let mut points = Vec::new();
    for (context, path) in contexts.iter().zip(&paths) {
        for operation in operations(chosen) {
            for (size, limit) in sizes.iter().zip(&limits) {
                let mut request = chosen.request(path, *context, operation, *size)?;
                request.limit_bytes_per_s = Some(*limit).filter(|limit| *limit > 0.0);
                points.push(chosen.workload(&request));
            }
        }
    }
    let settings = runner.settings(StepPlan::ByStage(chosen.reps.clamp(1, 65_536)), "copy/latency", &pin);
    for (order, workload) in ordered(points, chosen.seed) {
        runner.point("copy", &workload, &settings, Some(order))?;
    }
    runner.finish();
    let records = &runner.recorder.records;
    if !arguments.common.json {
        emit(&latency_text(records))?;
    }
    write_classic(&arguments.written, &copy_classic::latency(records))?;
    write_page(arguments.written.output.as_ref(), &runner)?;
    Ok(runner.recorder.exit_code(runner.stop.is_set()))
}
