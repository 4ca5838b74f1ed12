//! `daqmeter pmu`: counters of the interconnect and of everything else that Linux counts.

pub(crate) mod chosen;
mod from;
mod list;
mod plan;
mod stat;
mod verify;

use clap::Subcommand;

use crate::deferred::Deferred;
use crate::output::Ended;

pub(crate) use list::summary;
pub(crate) use verify::survey;

#[derive(Debug, Subcommand)]
#[command(
    after_help = "Begin with: daqmeter pmu list",
    after_long_help = "\
        Examples:\n\n  \
        $ daqmeter pmu list --groups\n  \
        $ daqmeter pmu list --mesh --emulated n1sdp\n  \
        $ daqmeter pmu stat --plan --emulated n1sdp --group memory\n  \
        $ daqmeter pmu stat --group memory --group pcie -I 1s\n  \
        $ daqmeter pmu verify block --file /dev/nvme0n1p5\n\n\
        Events are written as for perf: PMU/EVENT,FIELD=VALUE/, {a,b} for a group, \
        block:block_rq_issue, page-faults. Counters of the system are disk.read_bytes, \
        net.eth0.rx_bytes, irq.24 and others. Other verbs count a group with --observe GROUP."
)]
pub(crate) enum Verb {
    /// List PMUs, events, groups, meshes and counters of the system
    List(Deferred<list::Arguments>),
    /// Count events in intervals, plan a count, or show records
    Stat(Deferred<stat::Arguments>),
    /// Count a known load, and compare
    Verify(Deferred<verify::Arguments>),
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
