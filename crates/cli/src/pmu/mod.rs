//! `daqmeter pmu`: counters of the interconnect and of everything else that Linux counts.

pub(crate) mod chosen;
mod list;
mod map;
mod plan;
mod replay;
mod stat;
mod verify;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::output::Failure;

pub(crate) use list::summary;
pub(crate) use verify::survey;

/// See, plan, measure and verify counters: of an Arm CMN mesh, of every other PMU, of the kernel
#[derive(Debug, Args)]
#[command(
    after_help = "Begin with: daqmeter pmu list; without hardware: daqmeter pmu stat --emulated n1sdp --heat hnf_mc_reqs",
    after_long_help = "Examples:

  $ daqmeter pmu list --groups
  $ daqmeter pmu map --emulated n1sdp
  $ daqmeter pmu plan --emulated n1sdp -e arm_cmn/rnid_txdat_flits,nodeid=8/ -e arm_cmn/rnid_rxdat_flits,nodeid=8/
  $ daqmeter pmu stat --group memory --group pcie -I 1s
  $ daqmeter pmu verify block --file /dev/nvme0n1p5

Events are written as for perf: PMU/EVENT,FIELD=VALUE/, {a,b} for a group, block:block_rq_issue, page-faults; and counters of
the system: disk.read_bytes, net.eth0.rx_bytes, irq.24. Any other verb takes --observe GROUP."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List PMUs, their events, groups, and what the system counts by itself
    List(list::Arguments),
    /// Draw the mesh: which node is where
    Map(map::Arguments),
    /// Tell which events fit at once and what share of the time each will get
    Plan(plan::Arguments),
    /// Count in intervals
    Stat(Box<stat::Arguments>),
    /// Count while a known load runs, and compare
    Verify(verify::Arguments),
    /// Show what was recorded, an interval after the other
    Replay(replay::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.verb {
        Verb::List(arguments) => list::run(arguments),
        Verb::Map(arguments) => map::run(arguments),
        Verb::Plan(arguments) => plan::run(arguments),
        Verb::Stat(arguments) => stat::run(arguments),
        Verb::Verify(arguments) => verify::run(arguments),
        Verb::Replay(arguments) => replay::run(arguments),
    }
}
