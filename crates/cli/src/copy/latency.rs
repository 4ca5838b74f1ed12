//! `daqmeter copy latency`: how long one copy takes, by size, way and context.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use daqmeter_copy::Context;
use daqmeter_report::copy::latency_text;
use daqmeter_report::copy_classic;

use super::import::{Import, NOT_OF_FILES};
use super::{Chosen, Ending, Format, Study, Written};
use crate::output::Failure;
use crate::runner::{Common, Runner};

/// Time of one copy by size: from, to, and both with caches emptied, by CPU and by an engine's channels.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Pinning and mapping of an engine's copy are outside its clock and reported separately. With several contexts the\nclassic files lie in a folder for each. Their CPU is n/a where the thread moved: name one by --pin.\n\nExample:\n\n  $ daqmeter copy latency --sizes 1,64,4KiB --contexts cpu --format classic --out-dir results"
)]
pub(super) struct Arguments {
    /// Read the study's files instead (micro-benchmark_from_1.dat and its like), or the folders that hold them
    #[arg(long, value_name = "FILE|DIR", num_args = 1.., conflicts_with_all = NOT_OF_FILES)]
    from: Vec<PathBuf>,
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let chosen = &arguments.chosen;
    if !arguments.from.is_empty() {
        let import = Import {
            verb: "latency",
            from: &arguments.from,
            common: &arguments.common,
            written: &arguments.written,
        };
        let told = |file: &Path| chosen.told(file);
        return import.run(told, copy_classic::latency, latency_text);
    }
    let study = Study {
        chosen,
        name: "copy/latency",
        who: chosen.who(&[Context::Cpu, Context::Exclusive, Context::Shared])?,
        operations: chosen.operations(&["from", "to", "from_nc", "to_nc"]),
        sizes: chosen.sizes(1)?,
        lanes: 1,
        pin: arguments.common.pin.as_ref().map(|list| list.0.clone()).unwrap_or_default(),
    };
    if arguments.written.format == Format::Classic && chosen.request.depth > 1 {
        return Err(Failure::refused(
            "--depth: a line of the classic files is one copy, and a call of several blocks is timed as a whole: leave out --depth or --format classic",
        ));
    }
    let runner = Runner::new(&arguments.common, 0)?;
    let ending = Ending {
        common: &arguments.common,
        written: &arguments.written,
        text: latency_text,
        files: copy_classic::latency,
    };
    study.run(runner, &ending)
}
