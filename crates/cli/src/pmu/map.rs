//! `daqmeter pmu map`.

use std::process::ExitCode;

use clap::Args;
use daqmeter_report::pmu::map;

use super::chosen::Place;
use crate::output::{Failure, emit};

/// Draw the mesh: crosspoints, ports, NodeIDs, controllers. From the driver's map in debugfs
/// (root), or from --map.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n\n  $ daqmeter pmu map --emulated n1sdp\n  $ daqmeter pmu map --json > lab7.json   # for --map on hosts without root"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: Place,
    /// A line of JSON for each mesh; --map reads one
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let host = arguments.place.host()?;
    if host.meshes.is_empty() {
        return Err(Failure::refused(
            "no map of a mesh: run as root with debugfs mounted (mount -t debugfs none /sys/kernel/debug) on a host with arm_cmn, or give --map FILE or --emulated n1sdp",
        ));
    }
    let text = host.meshes.iter().map(|mesh| match arguments.json {
        true => format!("{}\n", serde_json::to_string(mesh).unwrap_or_default()),
        false => format!("{}\n{}", map::grid(mesh, None), map::node_table(mesh)),
    });
    emit(&text.collect::<Vec<_>>().join(if arguments.json { "" } else { "\n" }))
}
