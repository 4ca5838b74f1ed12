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
    after_long_help = include_str!("../../help/pmu.txt")
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
                None if arguments.plan => plan::run(arguments),
                None => stat::run(arguments),
            },
            Verb::Verify(arguments) => verify::run(arguments),
        }
    }
}
