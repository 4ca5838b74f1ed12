//! `daqmeter pmu`: counters of the interconnect and of everything else that Linux counts.

pub(crate) mod chosen;
mod from;
mod list;
mod plan;
mod stat;
mod verify;

use clap::Subcommand;

use crate::output::Ended;

pub(crate) use list::summary;
pub(crate) use verify::survey;

#[derive(Debug, Subcommand)]
#[command(
    after_help = "Begin with: daqmeter pmu list; without hardware: daqmeter pmu stat --emulated n1sdp --heat hnf_mc_reqs",
    after_long_help = "Examples:

  $ daqmeter pmu list --groups
  $ daqmeter pmu list --mesh --emulated n1sdp
  $ daqmeter pmu stat --plan --emulated n1sdp -e arm_cmn/rnid_txdat_flits,nodeid=8/ -e arm_cmn/rnid_rxdat_flits,nodeid=8/
  $ daqmeter pmu stat --group memory --group pcie -I 1s
  $ daqmeter pmu verify block --file /dev/nvme0n1p5

Events are written as for perf: PMU/EVENT,FIELD=VALUE/, {a,b} for a group, block:block_rq_issue, page-faults; and counters of
the system: disk.read_bytes, net.eth0.rx_bytes, irq.24. Any other verb takes --observe GROUP."
)]
pub(crate) enum Verb {
    /// List PMUs, their events, groups, meshes, and the counters of the system
    List(list::Arguments),
    /// Count in intervals, plan a count, or show a recorded one
    Stat(Box<stat::Arguments>),
    /// Count while a known load runs, and compare
    Verify(verify::Arguments),
}

impl Verb {
    pub(crate) fn run(&self) -> Ended {
        match self {
            Verb::List(arguments) => list::run(arguments),
            Verb::Stat(arguments) => match &arguments.from {
                Some(path) => from::run(path, arguments),
                None if arguments.plan => plan::run(&arguments.wanted, arguments.driver),
                None => stat::run(arguments),
            },
            Verb::Verify(arguments) => verify::run(arguments),
        }
    }
}
