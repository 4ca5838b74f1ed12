//! Rates of each node of a mesh in each interval, for heat maps in the terminal and on the page.

use daqmeter_record::observed::ObservedEvent;
use daqmeter_record::{Mesh, Observations};

/// Rates of the counted nodes of a mesh.
#[derive(Clone, Debug)]
pub struct Heat<'a> {
    pub mesh: &'a Mesh,
    pub event: String,
    /// Counts of a node, and its rate per second if it counted.
    nodes: Vec<(&'a ObservedEvent, Option<f64>)>,
}

impl Heat<'_> {
    pub(super) fn rate(&self, kind: &str, node_id: u16) -> Option<f64> {
        // The driver counts RN-D as RN-I.
        let kinds = if kind == "RN-D" { ["RN-D", "RN-I"] } else { [kind; 2] };
        let is_node = |event: &ObservedEvent| {
            kinds.contains(&event.node_kind.as_str()) && event.node_id == Some(node_id)
        };
        self.nodes.iter().find(|(event, _)| is_node(event))?.1
    }

    pub(super) fn max(&self) -> f64 {
        self.nodes.iter().filter_map(|(_, rate)| *rate).fold(0.0, f64::max)
    }
}

/// Returns the event without the terms that select its node.
fn base_name(event: &str) -> String {
    let Some((pmu, rest)) = event.split_once('/') else {
        return event.to_owned();
    };
    let terms = rest.trim_end_matches('/').split(',');
    let selects = |term: &&str| term.starts_with("nodeid") || term.starts_with("bynodeid");
    let kept: Vec<&str> = terms.filter(|term| !selects(term)).collect();
    format!("{pmu}/{}/", kept.join(","))
}

fn is_on(event: &ObservedEvent, mesh: &Mesh) -> bool {
    event.node_id.is_some()
        && (event.pmu == mesh.name || mesh.name.starts_with(&format!("{}_", event.pmu)))
}

/// Returns the heat of each mesh in an interval, or in the whole run, by the first event that is
/// counted by node there.
pub fn heats(observed: &Observations, interval: Option<usize>) -> Vec<Heat<'_>> {
    let heat = |mesh| {
        let on_mesh = observed.events.iter().filter(move |event| is_on(event, mesh));
        let event = base_name(&on_mesh.clone().next()?.name);
        let rate = |event| match interval {
            Some(at) => observed.rate_at(event, at),
            None => observed.rate_of(event),
        };
        let own = on_mesh.filter(|one| base_name(&one.name) == event);
        let nodes = own.map(|event| (event, rate(event))).collect();
        Some(Heat { mesh, event, nodes })
    };
    observed.meshes.iter().filter_map(heat).collect()
}

/// Writes a rate in few letters: `121.7M`.
pub(super) fn short(rate: f64) -> String {
    let (value, unit) = match rate {
        rate if rate < 1e3 => (rate, ""),
        rate if rate < 1e6 => (rate / 1e3, "k"),
        rate if rate < 1e9 => (rate / 1e6, "M"),
        rate => (rate / 1e9, "G"),
    };
    format!("{}{unit}", daqmeter_record::units::significant(value, 4))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use daqmeter_record::mesh::{Crosspoint, Node};

    /// Two crosspoints, three nodes, two intervals.
    pub(crate) fn example() -> Observations {
        let xp = |x: u32, ports: &[&str]| Crosspoint {
            x,
            y: 0,
            node_id: u16::try_from(x << 5).unwrap(),
            logical_id: u16::try_from(x).unwrap(),
            dtc: Some(0),
            ports: ports.iter().map(|port| (*port).to_owned()).collect(),
        };
        let node = |kind: &str, node_id: u16, crosspoint, port, label: &str| Node {
            kind: kind.into(),
            node_id,
            crosspoint,
            port,
            label: label.into(),
            ..Node::default()
        };
        let mesh = Mesh {
            name: "arm_cmn_0".into(),
            part: "CMN-600".into(),
            revision: "r1p2".into(),
            base: Some(0x5000_0000),
            width: 2,
            height: 1,
            crosspoints: vec![xp(0, &["RN-D", "HN-F"]), xp(1, &["HN-F"])],
            nodes: vec![
                node("RN-D", 0x0, 0, 0, "PCI_0"),
                node("HN-F", 0x4, 0, 1, ""),
                node("HN-F", 0x20, 1, 0, ""),
            ],
            ..Mesh::default()
        };
        let event = |id: u16, counts: [u64; 2], ran: u64| ObservedEvent {
            name: format!("arm_cmn_0/hnf_mc_reqs,bynodeid=1,nodeid={id:#x}/"),
            pmu: "arm_cmn_0".into(),
            node_id: Some(id),
            node_kind: "HN-F".into(),
            scale: 1.0,
            places: 1,
            count: counts.to_vec(),
            enabled_ns: vec![1_000_000_000; 2],
            running_ns: vec![1_000_000_000, ran],
            ..ObservedEvent::default()
        };
        Observations {
            continues: false,
            what: "memory-nodes".into(),
            begin_ns: 0,
            end_ns: vec![1_000_000_000, 2_000_000_000],
            events: vec![
                event(0x4, [121_713_206, 60_000_000], 500_000_000),
                event(0x20, [1500, 0], 0),
            ],
            metrics: vec![daqmeter_record::observed::ObservedMetric {
                name: "memory".into(),
                unit: "B/s".into(),
                caveat: "assumes that memory traffic is what misses the cache".into(),
                values: vec![Some(7.79e9), None],
                sum: vec![0, 1],
                times: 64.0,
                over: Vec::new(),
            }],
            meshes: vec![mesh],
        }
    }

    #[test]
    fn each_interval_and_the_whole_have_a_rate_for_each_counted_node() {
        let observed = example();
        let rate = |interval, kind: &str, id| heats(&observed, interval)[0].rate(kind, id);
        assert_eq!(heats(&observed, None)[0].event, "arm_cmn_0/hnf_mc_reqs/");
        assert_eq!(rate(Some(0), "HN-F", 0x4), Some(121_713_206.0));
        assert_eq!(rate(Some(1), "HN-F", 0x4), Some(120_000_000.0), "scaled by its share");
        assert_eq!(rate(Some(1), "HN-F", 0x20), None);
        // 181,713,206 counts in three quarters of two seconds.
        assert_eq!(rate(None, "HN-F", 0x4).unwrap().round(), 121_142_137.0);
        assert_eq!(rate(None, "RN-D", 0x0), None);
        assert_eq!(heats(&observed, Some(0))[0].max(), 121_713_206.0);
    }

    #[test]
    fn rates_are_short() {
        assert_eq!(
            [0.0, 999.0, 1500.0, 121_713_206.0, 2e9].map(short),
            ["0", "999", "1.5k", "121.7M", "2G"]
        );
    }
}
