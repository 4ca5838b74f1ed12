//! Synthetic counts of a mesh, for planning and tests; only this program sees them.
//! Events get the shares of the planner, and their rates vary.

use daqmeter_harness::Fault;
use daqmeter_record::Mesh;
use daqmeter_record::units::whole;
use daqmeter_sys::clock;
use daqmeter_sys::perf::Reading;

use crate::event::{OnMesh, PmuEvent};
use crate::format::FormatField;
use crate::mesh::nodes::{self, DTC, XP};
use crate::mesh::topology;
use crate::plan::{Driver, plan};
use crate::source::{Counters, Opener, Refused};
use crate::sysfs::{Alias, Pmu};

/// Events of the parts as the kernel's driver names them, recorded from its sysfs on the emulated
/// configuration space (`cargo xtask pmu-vm` compares them): Linux 6.1, S3 from 6.12.
const EVENTS: &[(&str, &str)] = &[
    ("CMN-600", include_str!("events/cmn600.txt")),
    ("CMN-650", include_str!("events/cmn650.txt")),
    ("CMN-700", include_str!("events/cmn700.txt")),
    ("CMN-S3", include_str!("events/s3.txt")),
];
const FORMATS: &[(&str, &str)] = &[
    ("type", "config:0-15"),
    ("eventid", "config:16-26"),
    ("occupid", "config:27-30"),
    ("bynodeid", "config:31"),
    ("nodeid", "config:32-47"),
    ("wp_dev_sel", "config:48-50"),
    ("wp_chn_sel", "config:51-55"),
    ("wp_grp", "config:56-57"),
    ("wp_exclusive", "config:58"),
    ("wp_val", "config1:0-63"),
    ("wp_mask", "config2:0-63"),
];

/// Returns the PMU that the driver would show for a mesh: events of the types that it has.
pub fn catalogue(mesh: &Mesh) -> Pmu {
    let has = |code: u64| {
        let Ok(code) = u16::try_from(code) else {
            return false;
        };
        let mut types = mesh.nodes.iter().map(|node| node.type_code);
        [XP, nodes::WATCHPOINT].contains(&code) || types.any(|node| nodes::counts_as(node, code))
    };
    let alias = |line: &str| {
        let (name, terms) = line.split_once(' ')?;
        let (name, terms) = (name.to_owned(), terms.to_owned());
        let alias = Alias { name, terms, unit: String::new(), scale: 1.0 };
        has(alias.term("type")?).then_some(alias)
    };
    let of_part =
        EVENTS.iter().find(|(part, _)| *part == mesh.part).map_or("", |(_, events)| *events);
    let events = of_part.lines().filter(|line| !line.starts_with('#')).filter_map(alias).collect();
    let field = |(name, text): &(&str, &str)| FormatField::parse(name, text);
    Pmu {
        name: mesh.name.clone(),
        cpus: vec![0],
        mux_interval_ms: Some(4),
        base: mesh.base,
        formats: FORMATS.iter().filter_map(field).collect(),
        events,
        ..Pmu::default()
    }
}

/// Returns a shipped mesh as `arm_cmn_0`, with its PMU.
pub fn emulated(name: &str) -> Option<(Mesh, Pmu)> {
    let mesh = Mesh { name: "arm_cmn_0".to_owned(), ..topology::shipped(name)? };
    let pmu = catalogue(&mesh);
    Some((mesh, pmu))
}

#[derive(Clone, Debug)]
pub struct Synthetic {
    mesh: Mesh,
    shares: Vec<f64>,
    opened: usize,
    since_ns: u64,
}

struct Group {
    share: f64,
    since_ns: u64,
    /// Seed and mean rate of each node of each event.
    rates: Vec<Vec<(f64, f64)>>,
}

impl Synthetic {
    pub fn new(mesh: &Mesh, groups: &[Vec<PmuEvent>]) -> Result<Synthetic, Fault> {
        let shares = plan(mesh, Driver::Mainline, groups)?.shares;
        Ok(Synthetic { mesh: mesh.clone(), shares, opened: 0, since_ns: clock::monotonic_ns() })
    }

    fn rates(&self, on: &OnMesh) -> Vec<(f64, f64)> {
        if on.type_code == DTC {
            return vec![(0.0, 2e9)];
        }
        let nodes = self.mesh.nodes.iter().map(|node| (node.type_code, node.node_id));
        let xps = self.mesh.crosspoints.iter().map(|xp| (XP, xp.node_id));
        let is_meant = |(code, id): &(u16, u16)| {
            nodes::counts_as(*code, on.type_code) && on.node_id.is_none_or(|wanted| wanted == *id)
        };
        let rate = |(_, id)| {
            let seed = f64::from(id) * 7.3 + on.event_id as f64;
            (seed, 2e6 + 120e6 * (seed * 12.9898).sin().abs())
        };
        nodes.chain(xps).filter(is_meant).map(rate).collect()
    }
}

impl Opener for Synthetic {
    fn open(&mut self, group: &[PmuEvent]) -> Result<Box<dyn Counters>, Refused> {
        let mut rates = Vec::new();
        for (member, event) in group.iter().enumerate() {
            let Some(on) = &event.on_mesh else {
                let reason = "it is not an event of the emulated mesh".to_owned();
                return Err(Refused { member, event: event.name.clone(), reason });
            };
            rates.push(self.rates(on));
        }
        let share = self.shares.get(self.opened).copied().unwrap_or(1.0);
        self.opened += 1;
        Ok(Box::new(Group { share, since_ns: self.since_ns, rates }))
    }
}

impl Group {
    fn read_at(&self, enabled_ns: u64, into: &mut [Reading]) {
        let seconds = enabled_ns as f64 * 1e-9;
        for (reading, rates) in into.iter_mut().zip(&self.rates) {
            // Integral of a rate that varies by a fifth within some seconds.
            let count = |(seed, rate): &(f64, f64)| {
                let wave = |seconds: f64| (seconds / 3.0 + seed).cos();
                rate * (seconds + 0.6 * (wave(0.0) - wave(seconds)))
            };
            let value = whole(self.share * rates.iter().map(count).sum::<f64>());
            let running_ns = whole(self.share * enabled_ns as f64).min(enabled_ns);
            *reading = Reading { value, enabled_ns, running_ns };
        }
    }
}

impl Counters for Group {
    fn read(&mut self, into: &mut [Reading]) {
        self.read_at(clock::monotonic_ns().saturating_sub(self.since_ns), into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventResolver;
    use crate::mesh::topology::shipped;
    use daqmeter_sys::host::Files;

    #[test]
    fn the_catalogue_has_the_documents_events_for_the_n1sdp() {
        let pmu = catalogue(&shipped("n1sdp").unwrap());
        for name in [
            "hnf_brd_snoops_sent",
            "hnf_cache_fill",
            "hnf_cache_miss",
            "hnf_cmp_adq_full",
            "hnf_dir_snoops_sent",
            "hnf_intv_dirty",
            "hnf_ld_st_swp_adq_full",
            "hnf_mc_reqs",
            "hnf_mc_retries",
            "dn_rxreq_dvmop",
            "dn_rxreq_dvmop_vmid_filtered",
            "dn_rxreq_dvmsync",
            "dn_rxreq_retried",
            "dn_rxreq_trk_occupancy_all",
            "dn_rxreq_trk_occupancy_dvmop",
            "rnid_s0_rdata_beats",
            "rnid_s0_wdata_beats",
            "dtc_cycles",
        ] {
            assert!(pmu.event(name).is_some(), "{name}");
        }
        assert_eq!(
            pmu.event("mxp_p0_dat_txflit_valid").and_then(|alias| alias.term("eventid")),
            Some(0x71)
        );
        assert!(pmu.event("hns_mc_reqs_local_all").is_none(), "no HN-S on this mesh");
    }

    #[test]
    fn shares_are_those_of_the_plan_and_counts_grow_at_their_rate() {
        let (mesh, pmu) = emulated("n1sdp").unwrap();
        let host = EventResolver { pmus: &[pmu], files: &Files::below("/nonexistent") };
        let text = |name| format!("arm_cmn/rnid_{name},bynodeid=1,nodeid=8/");
        let names =
            ["rxdat_flits", "txdat_flits", "s0_rdata_beats", "s0_wdata_beats", "txreq_flits_total"];
        let set = host.resolve(&names.map(text)).unwrap();
        let source = Synthetic::new(&mesh, &set.groups).unwrap();
        assert_eq!(source.shares, [0.8; 5]);
        let rates = vec![source.rates(set.groups[0][0].on_mesh.as_ref().unwrap())];
        let rate = rates[0][0].1;
        let group = Group { share: 0.8, since_ns: 0, rates };
        let mut before = [Reading::default()];
        for seconds in 1..30 {
            let mut now = [Reading::default()];
            group.read_at(seconds * 1_000_000_000, &mut now);
            let scaled = (now[0].value - before[0].value) as f64 / 0.8;
            assert!((scaled / rate - 1.0).abs() < 0.21, "{seconds} s: {scaled} for {rate}");
            assert_eq!(now[0].running_ns, seconds * 800_000_000);
            before = now;
        }
    }
}
