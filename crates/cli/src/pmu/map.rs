//! `daqmeter pmu map`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_pmu::mesh::topology;
use daqmeter_report::pmu::map;

use super::chosen::Place;
use crate::named::Replaced;
use crate::output::{Failure, emit, tell, write_file};

/// Draw the mesh: crosspoints, ports, NodeIDs, controllers.
///
/// From the driver's map in debugfs (root), or from --map: a dump of registers (lines R 0xADDRESS
/// 0xVALUE, as cmn-tools writes them), a copy of the driver's map, or a description in TOML.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n\n  $ daqmeter pmu map --emulated n1sdp\n  $ daqmeter pmu map --map lab7.dump --svg lab7.svg\n  $ daqmeter pmu map --format toml > lab7.toml   # for --map on hosts without root"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: Place,
    /// How to show it
    #[arg(long, value_enum, default_value = "grid")]
    format: Format,
    /// Picture to write
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    svg: Option<Replaced>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Grid and table of nodes
    Grid,
    /// The table of nodes
    Table,
    /// A description that --map reads
    Toml,
    /// Lines of JSON
    Json,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let setting = arguments.place.setting()?;
    if setting.meshes.is_empty() {
        let has = setting.pmus.iter().any(|pmu| pmu.family() == "arm_cmn");
        return Err(Failure::refused(if has {
            "the driver's map cannot be read: run as root with debugfs mounted (mount -t debugfs none /sys/kernel/debug), or give --map FILE"
        } else {
            "this host has no arm_cmn PMU; --map FILE draws a dump or a description, --emulated n1sdp a mesh that ships"
        }));
    }
    if let Some(path) = &arguments.svg {
        // A file has one picture.
        write_file(path, &map::svg(&setting.meshes[0], None))?;
        tell(&format!("wrote {}", path.display()));
    }
    let is_of_host = arguments.place.map.is_empty();
    for warning in setting.meshes.iter().filter_map(|mesh| setting.driver.warning(mesh)) {
        if is_of_host {
            tell(&format!("daqmeter: warning: {warning}"));
        }
    }
    let text = setting.meshes.iter().map(|mesh| match arguments.format {
        Format::Grid => format!("{}\n{}", map::grid(mesh, None), map::node_table(mesh)),
        Format::Table => map::node_table(mesh),
        Format::Toml => topology::emit(mesh),
        Format::Json => format!("{}\n", serde_json::to_string(mesh).unwrap_or_default()),
    });
    let between = if arguments.format == Format::Json { "" } else { "\n" };
    emit(&text.collect::<Vec<_>>().join(between))
}
