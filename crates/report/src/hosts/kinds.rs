//! Kinds of points, by the part of a host that they measure.

use serde::Serialize;

use crate::family::Work;
use crate::levels::PointUse;

/// Part of a host that points of one kind measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointKind {
    Clock,
    Core,
    Memory,
    Network,
    Cpus,
    Disk,
}

impl PointKind {
    pub(crate) const ALL: [(PointKind, &str); 6] = [
        (PointKind::Clock, "CPU clock"),
        (PointKind::Core, "core"),
        (PointKind::Memory, "memory"),
        (PointKind::Network, "network"),
        (PointKind::Cpus, "several CPUs"),
        (PointKind::Disk, "disk"),
    ];

    pub(crate) fn of(used: PointUse, work: Work) -> PointKind {
        match used {
            _ if work == Work::Streams => PointKind::Network,
            PointUse::Cpu => PointKind::Core,
            PointUse::Sockets | PointUse::Ends => PointKind::Network,
            PointUse::Memory => PointKind::Memory,
            PointUse::Cpus => PointKind::Cpus,
            PointUse::Disk => PointKind::Disk,
        }
    }

    /// Returns the deviation between runs that a run does not show.
    pub(crate) fn beyond(self) -> f64 {
        let used = match self {
            PointKind::Clock | PointKind::Core => PointUse::Cpu,
            PointKind::Memory => PointUse::Memory,
            PointKind::Network => PointUse::Sockets,
            PointKind::Cpus => PointUse::Cpus,
            PointKind::Disk => PointUse::Disk,
        };
        used.beyond()
    }

    pub(crate) fn name(self) -> &'static str {
        PointKind::ALL[self as usize].1
    }
}
