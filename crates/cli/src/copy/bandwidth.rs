//! `daqmeter copy bandwidth`: what all CPUs, or all channels, move at once.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_copy::Context;
use daqmeter_report::copy::bandwidth_text;
use daqmeter_report::copy_classic;

use super::import::{Import, NOT_OF_FILES};
use super::{Chosen, Ending, Study, Written};
use crate::arguments::count;
use crate::output::Failure;
use crate::runner::{Common, Runner};

/// Rate of all CPUs or all channels at once: per channel and in total, the priority policy included.
#[derive(Debug, Args)]
#[command(
    after_long_help = "MB are of 2^20 bytes, as in the study; the total is the sum of the channels' rates, and beside it stands what\nall bytes over the time of all give. In the classic files (--format classic) a line holds channel or CPU, bytes of a copy,\ncopies (both ways at once are two), clock before, clock after, time spent in the copies, rate = bytes x copies / time.\n\nExample:\n\n  $ daqmeter copy bandwidth --contexts cpu,priority --sizes 64KiB,1MiB"
)]
pub(super) struct Arguments {
    /// Read the study's files instead (measures_from.dat and its like), or the folders that hold them
    #[arg(long, value_name = "FILE|DIR", num_args = 1.., conflicts_with_all = NOT_OF_FILES)]
    from: Vec<PathBuf>,
    #[command(flatten)]
    chosen: Chosen,
    /// CPUs or channels that copy at once; without, as many as CPUs are allowed
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "from")]
    lanes: Option<u64>,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let chosen = &arguments.chosen;
    if !arguments.from.is_empty() {
        let import = Import {
            verb: "bandwidth",
            from: &arguments.from,
            common: &arguments.common,
            written: &arguments.written,
        };
        let told = |file: &Path| chosen.told(file);
        return import.run(told, copy_classic::bandwidth, bandwidth_text);
    }
    let runner = Runner::new(&arguments.common, 0)?;
    let cpus = runner.context.host.allowed_cpus.clone();
    let study = Study {
        chosen,
        name: "copy/bandwidth",
        who: chosen.who(Context::value_variants())?,
        operations: chosen.operations(&["from", "to", "both"]),
        sizes: chosen.sizes(1024)?,
        lanes: arguments
            .lanes
            .map_or(cpus.len(), |lanes| usize::try_from(lanes).unwrap_or(usize::MAX)),
        pin: arguments.common.pin.as_ref().map_or(cpus, |list| list.0.clone()),
    };
    let ending = Ending {
        common: &arguments.common,
        written: &arguments.written,
        text: bandwidth_text,
        files: copy_classic::bandwidth,
    };
    study.run(runner, &ending)
}
