//! Rules of the kernel's arm-cmn driver for sharing counters, by the version that changed them.
//! Source: Linux drivers/perf/arm-cmn.c of 6.1, 6.8, 6.12 and 6.18 (`arm_cmn_validate_group`,
//! `arm_cmn_event_add`, `arm_cmn_filter_sel`).

use clap::ValueEnum;
use daqmeter_record::Mesh;
use daqmeter_record::units::joined;

use crate::event::OnMesh;

/// A driver, named after the first kernel that has its rules.
// Comments of its variants are no `///`: the help of --driver names all of them in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Driver {
    // Linux 6.18 and later: a group needs free counters only in the controllers that it uses.
    Mainline,
    // Linux 6.10 and later: watchpoints take any free comparator.
    #[value(name = "6.12")]
    Linux6_12,
    #[value(name = "6.7")]
    Linux6_7,
    #[value(name = "6.1")]
    Linux6_1,
    // The driver of the N1SDP's software release: two pairs of counters in each monitor.
    N1sdp,
}

daqmeter_harness::displayed!(Driver);

impl Driver {
    /// Returns the driver of a kernel, from its release such as `6.1.0-18-arm64`.
    pub fn of_kernel(release: &str) -> Driver {
        let mut numbers =
            release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => match (major, minor) {
                (..6, _) | (6, ..7) => Driver::Linux6_1,
                (6, ..10) => Driver::Linux6_7,
                (6, ..18) => Driver::Linux6_12,
                _ => Driver::Mainline,
            },
            _ => Driver::Mainline,
        }
    }

    pub(super) fn monitor_counters(self) -> usize {
        match self {
            Driver::N1sdp => 2,
            _ => 4,
        }
    }

    /// Returns true if every event takes a counter of all controllers, wherever its nodes are.
    pub(super) fn takes_all_controllers(self) -> bool {
        self == Driver::Linux6_1
    }

    /// Returns true if a group is refused once any controller is full, even an unneeded one.
    pub(super) fn stops_at_any_full_controller(self) -> bool {
        matches!(self, Driver::Linux6_12 | Driver::Linux6_7)
    }

    /// Returns true if `wp_grp` names the comparator of a watchpoint, free or not.
    pub(super) fn fixes_watchpoints(self) -> bool {
        matches!(self, Driver::Linux6_7 | Driver::Linux6_1)
    }

    /// Returns true if a second cycle event in a group is refused, despite several controllers.
    pub(super) fn refuses_second_cycles(self) -> bool {
        self != Driver::Linux6_1
    }

    /// Returns true if `type=0xd` (RN-D) is taken as RN-I; others know no events of RN-D.
    pub(super) fn knows_rnd(self) -> bool {
        self == Driver::Mainline
    }

    pub fn warning(self, mesh: &Mesh) -> Option<String> {
        joined([self.lost_counts(mesh), self.other_crosspoint(mesh)].into_iter().flatten(), "; ")
    }

    /// Reports a wrong NodeID on a mesh of two by two. `arm_cmn_xyidbits` takes one bit for each
    /// coordinate, but the NodeID has two. The cause is "Refactor node ID handling. Again." (6.12
    /// and the later releases of 6.1).
    fn other_crosspoint(self, mesh: &Mesh) -> Option<String> {
        let is_small = mesh.width <= 2 && mesh.height <= 2 && mesh.crosspoints.len() > 1;
        let may_be_wrong = matches!(self, Driver::Linux6_1 | Driver::Linux6_7 | Driver::Linux6_12);
        (is_small && may_be_wrong).then(|| {
            format!(
                "{}: the arm-cmn drivers of Linux 6.1 and 6.12 program another crosspoint on a mesh of {} x {}; use Linux 6.18 or \
                 later, or check the counts against a known load (daqmeter pmu verify)",
                mesh.name, mesh.width, mesh.height
            )
        })
    }

    fn lost_counts(self, mesh: &Mesh) -> Option<String> {
        (self == Driver::Linux6_1 && mesh.dtcs() > 1).then(|| {
            format!(
                "{}: the arm-cmn driver before Linux 6.7 loses counts on a mesh with {} DTCs; use Linux 6.7 or later, or check \
                 the counts against a known load (daqmeter pmu verify)",
                mesh.name,
                mesh.dtcs()
            )
        })
    }
}

/// Filters of a node: each has one value for all events that the node counts at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Filter {
    Occupancy,
    Class,
    Throttle,
    /// High or low bandwidth traffic (S3).
    Bandwidth,
    /// Requests to memory or to another home (S3).
    MemoryOrHome,
}

const DVM: u16 = 0x1;
const HNF: u16 = 0x5;
const HNS: u16 = 0x200;

/// Returns the filter through which an event of a part is counted, also when its value is 0. Other
/// events ignore `occupid`.
pub(super) fn filter_of(part: &str, on: &OnMesh) -> Option<Filter> {
    let is_600 = part == "CMN-600";
    match (on.type_code, on.event_id) {
        (DVM, 0x5) => is_600.then_some(Filter::Occupancy),
        (DVM, 0xc) => (!is_600).then_some(Filter::Occupancy),
        (DVM, 0xd | 0xe) => ["CMN-700", "CMN-S3"].contains(&part).then_some(Filter::Occupancy),
        (HNF | HNS, 0xf) => Some(Filter::Occupancy),
        (HNF, 0x26..=0x2b) if part != "CMN-700" => None,
        (HNF | HNS, 0x26..=0x29) | (HNS, 0x3c) => Some(Filter::Class),
        (HNF | HNS, 0x2a | 0x2b) => Some(Filter::Throttle),
        (HNS, 0x1..=0x7 | 0xa | 0xb) => Some(Filter::Bandwidth),
        (HNS, 0xd | 0x3b) => Some(Filter::MemoryOrHome),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::catalogue;
    use crate::mesh::topology::{SHIPPED_MESHES, shipped};

    #[test]
    fn kernels_have_the_driver_of_their_version() {
        for (release, driver) in [
            ("5.15.0-91-generic", Driver::Linux6_1),
            ("6.1.0-18-arm64", Driver::Linux6_1),
            ("6.6.30", Driver::Linux6_1),
            ("6.8.0-1015-aws", Driver::Linux6_7),
            ("6.12.95+deb13-arm64", Driver::Linux6_12),
            ("6.18.1", Driver::Mainline),
            ("7.2.13", Driver::Mainline),
            ("unknown", Driver::Mainline),
            ("", Driver::Mainline),
        ] {
            assert_eq!(Driver::of_kernel(release), driver, "{release}");
        }
    }

    /// Compares with the driver's own listing in sysfs, which prints `occupid` only for events with
    /// a filter.
    #[test]
    fn events_have_a_filter_where_the_drivers_listing_has_one() {
        for name in SHIPPED_MESHES.names() {
            let mesh = shipped(name).unwrap();
            for alias in &catalogue(&mesh).events {
                let on = OnMesh {
                    type_code: u16::try_from(alias.term("type").unwrap()).unwrap(),
                    event_id: alias.term("eventid").unwrap_or(0),
                    ..OnMesh::default()
                };
                assert_eq!(
                    filter_of(&mesh.part, &on).is_some(),
                    alias.terms.contains("occupid"),
                    "{name}: {} is {}",
                    alias.name,
                    alias.terms
                );
            }
        }
    }

    #[test]
    fn counts_that_an_old_driver_loses_are_warned_of() {
        let (one, two) = (shipped("n1sdp").unwrap(), shipped("cmn700").unwrap());
        let warning = Driver::Linux6_1.warning(&two).unwrap();
        assert!(warning.contains("loses counts") && warning.contains("2 DTCs"), "{warning}");
        assert_eq!(Driver::Linux6_1.warning(&one), None);
        assert_eq!(Driver::Linux6_12.warning(&two), None);
        let mut small = one;
        (small.width, small.height) = (2, 2);
        small.crosspoints.truncate(4);
        for (driver, is_warned) in
            [(Driver::Linux6_1, true), (Driver::Linux6_12, true), (Driver::Mainline, false)]
        {
            let warning = driver.warning(&small).unwrap_or_default();
            assert_eq!(warning.contains("another crosspoint on a mesh of 2 x 2"), is_warned);
        }
    }
}
