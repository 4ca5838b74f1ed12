//! Synthetic counts of a mesh, for planning and tests; only this program sees them.
//! Events get the shares of the planner. Their rates vary, and keep the laws of a mesh: a part is
//! at most its whole, memory at most the peak of its channels, and home nodes share it evenly.

use daqmeter_harness::Fault;
use daqmeter_record::Mesh;
use daqmeter_record::units::whole;
use daqmeter_sys::clock;
use daqmeter_sys::perf::Reading;

use crate::event::{OnMesh, PmuEvent};
use crate::format::FormatField;
use crate::mesh::nodes::{self, DTC, XP};
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
    let field = |(name, text): &(String, String)| FormatField::parse(name, text);
    Pmu {
        name: mesh.name.clone(),
        cpus: vec![0],
        mux_interval_ms: Some(4),
        base: mesh.base,
        formats: nodes::CATALOGUE.formats.iter().filter_map(field).collect(),
        events,
        ..Pmu::default()
    }
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
    /// Phase, which events of one type share, and mean rate over all nodes, of each event.
    rates: Vec<(f64, f64)>,
}

impl Synthetic {
    pub fn new(mesh: &Mesh, groups: &[Vec<PmuEvent>]) -> Result<Synthetic, Fault> {
        let shares = plan(mesh, Driver::Mainline, groups)?.shares;
        Ok(Synthetic { mesh: mesh.clone(), shares, opened: 0, since_ns: clock::monotonic_ns() })
    }

    /// Returns phase and mean rate of an event over its nodes.
    fn rate(&self, on: &OnMesh) -> (f64, f64) {
        if on.type_code == DTC {
            return (0.0, 2e9);
        }
        let all: Vec<u16> = nodes::counting(&self.mesh, on.type_code).collect();
        let noise = |number: f64| (number * 12.9898).sin().abs();
        let is_home = HOMES.contains(&on.type_code);
        let ports = self.mesh.crosspoints.iter().flat_map(|xp| &xp.ports);
        let channels = ports.filter(|port| port.starts_with("SN-F")).count().max(1);
        let lines = MEMORY_LOAD * CHANNEL_BYTES_PER_S * channels as f64 / 64.0;
        let memory_share = nodes::share_of(HOMES[0], MEMORY_REQUESTS).unwrap_or(1.0);
        let traffic = |id: &u16| match is_home {
            true => lines / memory_share / all.len() as f64 * (1.0 + 1e-5 * noise(f64::from(*id))),
            false => 10e6 + 40e6 * noise(f64::from(*id) * 7.3),
        };
        let kind = if is_home { HOMES[0] } else { on.type_code };
        let known = nodes::share_of(kind, on.event_id);
        let share = known.unwrap_or(0.2 * noise(on.event_id as f64));
        let part = if on.occup_id == 0 { share } else { share / 2.0 };
        let meant = all.iter().filter(|id| on.node_id.is_none_or(|wanted| wanted == **id));
        (f64::from(on.type_code), part * meant.map(traffic).sum::<f64>())
    }
}

/// Types of home nodes with a slice of the cache: HN-F, HN-S.
const HOMES: [u16; 2] = [0x5, 0x200];

/// Peak of a channel of DDR4-3200 with 64 bits, and the part of it that the emulated load takes: 31
/// GB/s on the two channels of the N1SDP, as in its document.
const CHANNEL_BYTES_PER_S: f64 = 25.6e9;
const MEMORY_LOAD: f64 = 0.6;
/// Event of a home node: mc_reqs.
const MEMORY_REQUESTS: u64 = 0xd;

impl Synthetic {
    fn group(&mut self, group: &[PmuEvent]) -> Result<Group, Refused> {
        let mut rates = Vec::new();
        for event in group {
            let Some(on) = &event.on_mesh else {
                return Err(Refused::new(event, "it is not an event of the emulated mesh"));
            };
            rates.push(self.rate(on));
        }
        let share = self.shares.get(self.opened).copied().unwrap_or(1.0);
        self.opened += 1;
        Ok(Group { share, since_ns: self.since_ns, rates })
    }
}

impl Opener for Synthetic {
    fn open(&mut self, group: &[PmuEvent]) -> Result<Box<dyn Counters>, Refused> {
        Ok(Box::new(self.group(group)?))
    }
}

impl Group {
    fn read_at(&self, enabled_ns: u64, into: &mut [Reading]) {
        let seconds = enabled_ns as f64 * 1e-9;
        for (reading, (phase, rate)) in into.iter_mut().zip(&self.rates) {
            // Integral of a rate that varies by a fifth within some seconds.
            let wave = |seconds: f64| (seconds / 3.0 + phase).cos();
            let count = rate * (seconds + 0.6 * (wave(0.0) - wave(seconds)));
            let value = whole(self.share * count);
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
    use crate::CountedHost;
    use crate::event::EventResolver;
    use crate::mesh::topology::{SHIPPED_MESHES, shipped};
    use daqmeter_record::Observations;
    use daqmeter_record::observed::ObservedEvent;
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
        let CountedHost { pmus, meshes, .. } = CountedHost::emulated("n1sdp").unwrap();
        let host = EventResolver { pmus: &pmus, files: &Files::below("/nonexistent") };
        let text = |name| format!("arm_cmn/rnid_{name},bynodeid=1,nodeid=8/");
        let names =
            ["rxdat_flits", "txdat_flits", "s0_rdata_beats", "s0_wdata_beats", "txreq_flits_total"];
        let set = host.resolve(&names.map(text)).unwrap();
        let source = Synthetic::new(&meshes[0], &set.groups).unwrap();
        assert_eq!(source.shares, [0.8; 5]);
        let rate = source.rate(set.groups[0][0].on_mesh.as_ref().unwrap());
        let group = Group { share: 0.8, since_ns: 0, rates: vec![rate] };
        let (_, rate) = rate;
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

    /// Laws that hold for counts of a machine, in every group and mesh.
    #[test]
    fn emulated_counts_keep_the_laws_of_a_mesh() {
        for name in SHIPPED_MESHES.names() {
            let host = CountedHost::emulated(name).unwrap();
            let groups = ["memory", "slc", "pcie", "rni", "memory-nodes"].map(str::to_owned);
            let selection = host.choose(&groups, None, &[]).unwrap();
            let mut source = Synthetic::new(&host.meshes[0], &selection.set.groups).unwrap();
            let open = |group: &Vec<PmuEvent>| source.group(group).unwrap();
            let groups: Vec<Group> = selection.set.groups.iter().map(open).collect();
            let read = |seconds: u64| {
                let one = |group: &Group| {
                    let mut reading = [Reading::default()];
                    group.read_at(seconds * 1_000_000_000, &mut reading);
                    reading[0]
                };
                groups.iter().map(one).collect::<Vec<Reading>>()
            };
            for seconds in 1..20 {
                let event = |(before, now): (&Reading, &Reading)| ObservedEvent {
                    scale: 1.0,
                    count: vec![now.value - before.value],
                    enabled_ns: vec![now.enabled_ns - before.enabled_ns],
                    running_ns: vec![now.running_ns - before.running_ns],
                    ..ObservedEvent::default()
                };
                let (before, now) = (read(seconds - 1), read(seconds));
                let observed = Observations {
                    end_ns: vec![1_000_000_000],
                    events: before.iter().zip(&now).map(event).collect(),
                    ..Observations::default()
                };
                let value = |metric| observed.metric_over(metric, 0..1).value.unwrap();
                let ratios = selection.metrics.iter().filter(|metric| !metric.over.is_empty());
                for metric in ratios {
                    let ratio = value(metric);
                    assert!((0.0..=1.0).contains(&ratio), "{name}: {} is {ratio}", metric.name);
                }
                let rate = |name: &str| {
                    value(selection.metrics.iter().find(|metric| metric.name == name).unwrap())
                };
                let ports = host.meshes[0].crosspoints.iter().flat_map(|xp| &xp.ports);
                let channels = ports.filter(|port| port.starts_with("SN-F")).count();
                let memory = rate("memory");
                assert!(memory <= 25.6e9 * channels as f64, "{name}: {memory}");
                assert!(memory <= rate("accesses"), "{name}: {memory}");
                let nodes = &selection.metrics.last().unwrap().sum;
                let nodes = nodes.iter().map(|at| observed.events[*at].scaled(0).unwrap());
                let (low, high) = nodes.fold((f64::MAX, 0.0_f64), |(low, high), count| {
                    (low.min(count), high.max(count))
                });
                assert!(high / low < 1.001, "{name}: {low} to {high} at the home nodes");
            }
        }
    }
}
