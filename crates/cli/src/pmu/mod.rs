//! `daqmeter pmu`: counters of the interconnect and of everything else that Linux counts.

pub(crate) mod chosen;
mod from;
mod list;
mod plan;
mod stat;
mod verify;

use crate::deferred::{Deferred, verbs};

pub(crate) use list::summary;
pub(crate) use verify::survey;

verbs! {
    #[command(
        after_help = "Begin with: daqmeter pmu list",
        after_long_help = include_str!("../../help/pmu.txt")
    )]
    pub(crate) enum Verb {
        /// List PMUs, events, groups, meshes and counters of the system
        List(arguments: Deferred<list::Arguments>) => list::run(arguments),
        /// Count events in intervals, plan a count, or show records
        Stat(arguments: Deferred<stat::Arguments>) => match &arguments.from {
            Some(path) => from::run(path, arguments),
            None if arguments.plan => plan::run(arguments),
            None => stat::run(arguments),
        },
        /// Count a known load, and compare
        Verify(arguments: Deferred<verify::Arguments>) => verify::run(arguments),
    }
}
