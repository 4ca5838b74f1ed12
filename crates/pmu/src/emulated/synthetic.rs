//! Synthetic counts of a mesh, for planning and tests; only this program sees them.
//! Events take turns as the kernel would let them, and their rates vary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use daqmeter_record::Mesh;
use daqmeter_sys::clock;
use daqmeter_sys::perf::Reading;

use crate::event::{OnMesh, PmuEvent};
use crate::format::FormatField;
use crate::mesh::nodes::{self, DTC, XP};
use crate::plan::{Driver, Rules, Schedule};
use crate::source::{Counters, Opener, Refused};
use crate::sysfs::{Alias, Pmu};

/// Events of the parts as the kernel's driver names them, recorded from its sysfs on the emulated
/// configuration space (`cargo xtask pmu-vm --record`): Linux 6.1, S3 from 6.12.
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
        let alias = Alias {
            name: name.to_owned(),
            terms: terms.to_owned(),
            unit: String::new(),
            scale: 1.0,
        };
        has(alias.term("type")?).then_some(alias)
    };
    let of_part =
        EVENTS.iter().find(|(part, _)| *part == mesh.part).map_or("", |(_, events)| *events);
    let events = of_part.lines().filter(|line| !line.starts_with('#')).filter_map(alias).collect();
    let formats = FORMATS
        .iter()
        .map(|(name, text)| FormatField::parse(name, text).expect("constant, and tested"))
        .collect();
    let mut pmu = Pmu::assumed("arm_cmn_0", formats, events);
    pmu.mux_interval_ms = Some(MUX_NS / 1_000_000);
    pmu.base = mesh.base;
    pmu
}

/// Time of a turn: the driver's default at 250 Hz.
const MUX_NS: u64 = 4_000_000;

#[derive(Clone, Debug)]
pub struct Synthetic {
    mesh: Mesh,
    schedule: Arc<Schedule>,
    opened: usize,
    clock: Clock,
}

#[derive(Clone, Debug)]
enum Clock {
    Real { since_ns: u64 },
    Given(Arc<AtomicU64>),
}

impl Clock {
    fn now_ns(&self) -> u64 {
        match self {
            Clock::Real { since_ns } => clock::monotonic_ns().saturating_sub(*since_ns),
            Clock::Given(now) => now.load(Ordering::Relaxed),
        }
    }
}

impl Synthetic {
    pub fn new(
        mesh: &Mesh,
        groups: &[Vec<PmuEvent>],
    ) -> Result<Synthetic, crate::plan::CountPlanError> {
        Synthetic::with_clock(mesh, groups, Clock::Real { since_ns: clock::monotonic_ns() })
    }

    pub fn at(
        mesh: &Mesh,
        groups: &[Vec<PmuEvent>],
        now_ns: Arc<AtomicU64>,
    ) -> Result<Synthetic, crate::plan::CountPlanError> {
        Synthetic::with_clock(mesh, groups, Clock::Given(now_ns))
    }

    fn with_clock(
        mesh: &Mesh,
        groups: &[Vec<PmuEvent>],
        clock: Clock,
    ) -> Result<Synthetic, crate::plan::CountPlanError> {
        let schedule = Schedule::of(&Rules::new(mesh, Driver::Mainline), groups)?;
        Ok(Synthetic { mesh: mesh.clone(), schedule: Arc::new(schedule), opened: 0, clock })
    }

    fn rate(&self, on: &OnMesh) -> Vec<(u64, f64)> {
        if on.type_code == DTC {
            return vec![(0, 2e9)];
        }
        let is_meant = |code: u16, id: u16| {
            let same = nodes::counts_as(code, on.type_code);
            same && on.node_id.is_none_or(|wanted| wanted == id)
        };
        let nodes = self.mesh.nodes.iter().map(|node| (node.type_code, node.node_id));
        let xps = self.mesh.crosspoints.iter().map(|xp| (XP, xp.node_id));
        let meant = nodes.chain(xps).filter(|(code, id)| is_meant(*code, *id));
        meant
            .map(|(_, id)| {
                let seed = u64::from(id) << 16 | on.event_id;
                (seed, 2e6 + 120e6 * uniform(mix(seed)))
            })
            .collect()
    }
}

fn mix(input: u64) -> u64 {
    let mut z = input.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn uniform(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

struct Group {
    number: usize,
    schedule: Arc<Schedule>,
    clock: Clock,
    rates: Vec<Vec<(u64, f64)>>,
    done_ns: u64,
    readings: Vec<Reading>,
    fractions: Vec<f64>,
}

impl Opener for Synthetic {
    fn open(&mut self, group: &[PmuEvent]) -> Result<Box<dyn Counters>, Refused> {
        let mut rates = Vec::new();
        for (member, event) in group.iter().enumerate() {
            let Some(on) = &event.on_mesh else {
                let reason = "it is not an event of the emulated mesh".to_owned();
                return Err(Refused { member, event: event.name.clone(), reason });
            };
            rates.push(self.rate(on));
        }
        let number = self.opened;
        self.opened += 1;
        Ok(Box::new(Group {
            number,
            schedule: self.schedule.clone(),
            clock: self.clock.clone(),
            done_ns: 0,
            readings: vec![Reading::default(); rates.len()],
            fractions: vec![0.0; rates.len()],
            rates,
        }))
    }
}

impl Counters for Group {
    fn read(&mut self, into: &mut [Reading]) {
        let now_ns = self.clock.now_ns();
        while self.done_ns < now_ns {
            let tick = self.done_ns / MUX_NS;
            let until_ns = ((tick + 1) * MUX_NS).min(now_ns);
            let passed_ns = until_ns - self.done_ns;
            let at = usize::try_from(tick % self.schedule.ticks.len().max(1) as u64).unwrap_or(0);
            let runs =
                self.schedule.ticks.get(at).is_some_and(|groups| groups.contains(&self.number));
            for ((reading, fraction), rates) in
                self.readings.iter_mut().zip(&mut self.fractions).zip(&self.rates)
            {
                reading.enabled_ns += passed_ns;
                if runs {
                    reading.running_ns += passed_ns;
                    // Rates vary by a fifth from turn to turn, and slowly over seconds.
                    let of = |(seed, rate): &(u64, f64)| {
                        let slow = (self.done_ns as f64 * 1e-9 / 3.0 + *seed as f64).sin();
                        rate * (0.7 + 0.2 * slow + 0.2 * uniform(mix(seed ^ tick << 32)))
                    };
                    *fraction += rates.iter().map(of).sum::<f64>() * passed_ns as f64 * 1e-9;
                    let whole = fraction.floor();
                    *fraction -= whole;
                    #[allow(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "whole and not negative"
                    )]
                    let counted = whole as u64;
                    reading.value += counted;
                }
            }
            self.done_ns = until_ns;
        }
        into.copy_from_slice(&self.readings);
    }

    fn places(&self) -> Vec<u32> {
        vec![1; self.rates.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::Count;
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
    fn shares_are_those_of_the_plan_and_scaled_counts_near_the_truth() {
        let mesh = shipped("n1sdp").unwrap();
        let pmus = [catalogue(&mesh)];
        let host = EventResolver { pmus: &pmus, files: &Files::below("/nonexistent") };
        let names =
            ["rxdat_flits", "txdat_flits", "s0_rdata_beats", "s0_wdata_beats", "txreq_flits_total"];
        let texts: Vec<String> =
            names.map(|name| format!("arm_cmn/rnid_{name},bynodeid=1,nodeid=8/")).into();
        let set = host.resolve(&texts).unwrap();
        let now = Arc::new(AtomicU64::new(0));
        let mut source = Synthetic::at(&mesh, &set.groups, now.clone()).unwrap();
        let mut count = Count::open(&set, "test", &mut source).unwrap();
        count.begin(0);
        now.store(2_000_000_000, Ordering::Relaxed);
        count.interval();
        let observed = count.finish();
        for event in &observed.events {
            assert!((event.share(0).unwrap() - 0.8).abs() < 0.01, "{:?}", event.share(0));
            assert!(event.scaled(0).unwrap() > 1e5);
        }
        let alone = host.resolve(&texts[..1]).unwrap();
        let mut source = Synthetic::at(&mesh, &alone.groups, now).unwrap();
        let mut count = Count::open(&alone, "test", &mut source).unwrap();
        count.begin(0);
        assert_eq!(count.observed().events[0].places, 1);
    }
}
