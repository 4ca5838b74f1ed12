//! Groups: the events that answer a question, and their rates. One TOML file each, below
//! `groups/<uarch>/`.

use std::collections::{BTreeMap, BTreeSet};

use daqmeter_harness::{Fault, Shipped, TomlText};
use daqmeter_record::mesh::Node;
use daqmeter_record::observed::{ObservedEvent, ObservedMetric};
use daqmeter_record::units::joined;
use daqmeter_record::{Mesh, Observations};
use serde::Deserialize;

use crate::event::EventResolver;
use crate::format::FormatField;
use crate::sysfs::{Pmu, is_of};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricGroup {
    pub name: String,
    pub about: String,
    /// PMU family that it needs; empty for counters of every host.
    #[serde(default)]
    pub pmu: String,
    /// Formats of fields of that PMU, where processors with other events have others.
    #[serde(default)]
    format: BTreeMap<String, String>,
    pub events: Vec<GroupEvent>,
    #[serde(default)]
    pub metric: Vec<Metric>,
}

/// Event of a group with its short name, and other ways to write it for other parts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupEvent {
    #[serde(default)]
    id: String,
    event: String,
    /// Kind of node for which it is counted one by one, in place of `{node}`; empty adds up all.
    #[serde(default)]
    each: String,
    #[serde(default)]
    or: Vec<GroupEvent>,
}

impl GroupEvent {
    /// Returns the event and the kind of node, in each way that they may be written.
    fn ways(&self) -> impl Iterator<Item = (&str, &str)> {
        let others = self.or.iter().map(|other| (other.event.as_str(), other.each.as_str()));
        std::iter::once((self.event.as_str(), self.each.as_str())).chain(others)
    }

    /// Returns the way that the host supports; by default the first.
    fn way(&self, pmus: &[Pmu], family: &str) -> (&str, &str) {
        let is_known = |(event, _): &(&str, &str)| {
            let event = event.replace("{pmu}", family);
            let Some((pmu, name)) = short_name(&event) else {
                return true;
            };
            pmus.iter().filter(|other| is_of(&other.name, pmu)).any(|pmu| pmu.event(name).is_some())
        };
        self.ways().find(is_known).unwrap_or((&self.event, &self.each))
    }

    fn is(&self, other: &str, family: &str) -> bool {
        self.ways().any(|(event, _)| {
            let event = event.replace("{pmu}", family);
            match (short_name(&event), short_name(other)) {
                (Some((pmu, name)), Some((other_pmu, other_name))) => {
                    let mut fields = terms(&event).filter(|term| term.contains('='));
                    let is_given = |field: &str| terms(other).any(|term| term == field);
                    is_of(other_pmu, pmu)
                        && name == other_name
                        && fields.all(|field| field.contains("nodeid=") || is_given(field))
                }
                // Later versions of perf leave the PMU out.
                (Some((_, name)), None) => name == other,
                _ => event == other,
            }
        })
    }
}

/// Returns PMU and named event of `PMU/NAME,FIELD=VALUE/`.
fn short_name(event: &str) -> Option<(&str, &str)> {
    let (pmu, _) = event.split_once('/')?;
    Some((pmu, terms(event).find(|term| !term.contains('='))?))
}

fn terms(event: &str) -> impl Iterator<Item = &str> {
    let (_, terms) = event.split_once('/').unwrap_or(("", ""));
    terms.trim_end_matches('/').split(',')
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    pub name: String,
    /// Unit: `B/s`, `bit/s`, `1/s`, or empty for a ratio.
    pub unit: String,
    pub sum: Vec<String>,
    #[serde(default = "daqmeter_harness::one::<f64>")]
    pub times: f64,
    /// Events of the denominator; empty takes the sum per second.
    #[serde(default)]
    pub over: Vec<String>,
    /// Load of `pmu verify` whose bytes it counts: `memory` or `device`.
    #[serde(default)]
    load: String,
    pub source: String,
    #[serde(default)]
    pub caveat: String,
}

pub const SHIPPED_GROUPS: Shipped = Shipped {
    kind: "group",
    files: &[
        ("memory", include_str!("../groups/cmn/memory.toml")),
        ("pcie", include_str!("../groups/cmn/pcie.toml")),
        ("slc", include_str!("../groups/cmn/slc.toml")),
        ("memory-nodes", include_str!("../groups/cmn/nodes.toml")),
        ("rni", include_str!("../groups/cmn/rni.toml")),
        ("imc", include_str!("../groups/intel/imc.toml")),
        ("umc", include_str!("../groups/amd/umc.toml")),
        ("df", include_str!("../groups/amd/df.toml")),
        ("ddrc", include_str!("../groups/hisilicon/ddrc.toml")),
        ("dmc620", include_str!("../groups/arm/dmc620.toml")),
        ("scf", include_str!("../groups/nvidia/scf.toml")),
        ("energy", include_str!("../groups/any/energy.toml")),
        ("block", include_str!("../groups/any/block.toml")),
        ("net", include_str!("../groups/any/net.toml")),
        ("kernel", include_str!("../groups/any/kernel.toml")),
        ("mbm", include_str!("../groups/any/resctrl.toml")),
        ("cpu", include_str!("../groups/any/cpu.toml")),
    ],
};

pub(crate) const INSTEAD: &str =
    "DRAM traffic cannot be counted on this host; the groups block, net and kernel work everywhere";

impl MetricGroup {
    pub fn parse(text: &TomlText) -> Result<MetricGroup, Fault> {
        let group: MetricGroup = text.parse().map_err(Fault::new)?;
        let file = &text.name;
        let wrong = |problem: String| Err(Fault::new(format!("{file}: {problem}")));
        for Metric { name, sum, over, .. } in &group.metric {
            let known = |id: &&String| group.events.iter().any(|event| event.id == **id);
            if let Some(id) = sum.iter().chain(over).find(|id| !known(id)) {
                return wrong(format!("metric `{name}` uses `{id}`, which is not an event of it"));
            }
            if sum.is_empty() {
                return wrong(format!("metric `{name}` has no events to add"));
            }
        }
        if group.events.is_empty() {
            return wrong("it has no events".to_owned());
        }
        Ok(group)
    }

    /// Finds a shipped group by its name, or reads the file of that name.
    pub fn find(name: &str) -> Result<MetricGroup, Fault> {
        MetricGroup::parse(&SHIPPED_GROUPS.get(name).map_err(Fault::new)?)
    }

    /// Returns the shipped groups.
    pub fn shipped() -> impl Iterator<Item = MetricGroup> {
        SHIPPED_GROUPS.names().into_iter().filter_map(|name| MetricGroup::find(name).ok())
    }

    /// Tests for rates of bytes by PMUs of the interconnect or of the memory's controllers.
    pub fn is_of_interconnect(&self) -> bool {
        !self.pmu.is_empty() && self.metric.iter().any(|metric| metric.unit == "B/s")
    }

    pub fn is_there(&self, pmus: &[Pmu]) -> bool {
        self.pmu.is_empty() || pmus.iter().any(|pmu| is_of(&pmu.name, &self.pmu))
    }

    pub fn expand(
        &self,
        pmus: &[Pmu],
        meshes: &[Mesh],
    ) -> Result<(Vec<String>, Vec<ObservedMetric>), Fault> {
        if !self.is_there(pmus) {
            let MetricGroup { name, pmu, .. } = self;
            return Err(Fault::new(format!(
                "group `{name}` needs the PMU {pmu}, which this host does not have; {INSTEAD}"
            )));
        }
        let differs = |(field, format): &(&String, &String)| {
            let mut own = pmus.iter().filter(|pmu| is_of(&pmu.name, &self.pmu));
            own.any(|pmu| pmu.format(field) != FormatField::parse(field, format).as_ref())
        };
        if let Some((field, format)) = self.format.iter().find(differs) {
            return Err(Fault::new(format!(
                "group `{}` is for processors whose {} has {field} in {format}: this one numbers its events otherwise",
                self.name, self.pmu
            )));
        }
        let (mut texts, mut ids): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
        for event in &self.events {
            let (text, each) = event.way(pmus, &self.pmu);
            let of_node = |mesh: &Mesh, node: &Node| {
                text.replace("{node}", &format!("{:#x}", node.node_id)).replace("{pmu}", &mesh.name)
            };
            let of_mesh = |mesh: &Mesh| -> Vec<String> {
                let nodes = mesh.nodes.iter().filter(|node| node.kind == each);
                nodes.map(|node| of_node(mesh, node)).collect()
            };
            let all: Vec<String> = match each {
                "" => vec![text.to_owned()],
                _ => meshes.iter().flat_map(of_mesh).collect(),
            };
            if all.is_empty() {
                return Err(Fault::new(format!(
                    "group `{}` counts each {each} by itself and the map of the mesh is not known: give one with --map FILE (daqmeter pmu list --mesh)",
                    self.name
                )));
            }
            ids.extend(std::iter::repeat_n(event.id.as_str(), all.len()));
            texts.extend(all);
        }
        Ok((texts, self.metrics(&ids)))
    }

    /// Returns the events that a load checks, with the bytes of a count.
    pub(crate) fn checked_by(&self, load: &str, pmus: &[Pmu]) -> Vec<(String, f64)> {
        let metrics = self.metric.iter().filter(|metric| metric.load == load);
        let checked = metrics.flat_map(|metric| {
            let events = self.events.iter().filter(|event| metric.sum.contains(&event.id));
            events.map(|event| (event.way(pmus, &self.pmu).0.to_owned(), metric.times))
        });
        checked.collect()
    }

    /// Returns the metrics of events, given by their ids.
    fn metrics(&self, ids: &[&str]) -> Vec<ObservedMetric> {
        let at = |names: &[String]| -> Vec<usize> {
            let is_named = |at: &usize| names.iter().any(|name| name == ids[*at]);
            (0..ids.len()).filter(is_named).collect()
        };
        let placed = |metric: &Metric| ObservedMetric {
            name: metric.name.clone(),
            unit: metric.unit.clone(),
            caveat: metric.caveat.clone(),
            values: Vec::new(),
            sum: at(&metric.sum),
            times: metric.times,
            over: at(&metric.over),
        };
        self.metric.iter().map(placed).collect()
    }

    /// Adds the metrics that can be computed from the counts of another program, such as perf. An
    /// event of a node is left out if the sum over all nodes is there.
    ///
    /// # Errors
    /// Refuses counts of which no metric can be computed.
    pub fn measure(&self, observed: &mut Observations) -> Result<(), Fault> {
        let events = &observed.events;
        let is_of_node = |event: &ObservedEvent| event.name.contains("nodeid=");
        let id = |other: &ObservedEvent| {
            let is = |event: &GroupEvent, one: &ObservedEvent| event.is(one.bare_name(), &self.pmu);
            let event = self.events.iter().find(|event| is(event, other))?;
            let is_sum = |sum: &ObservedEvent| {
                !is_of_node(sum) && sum.place == other.place && is(event, sum)
            };
            let counts = !is_of_node(other) || !events.iter().any(is_sum);
            counts.then_some(event.id.as_str())
        };
        let ids: Vec<&str> = events.iter().map(|event| id(event).unwrap_or("")).collect();
        let has_all = |names: &[String]| names.iter().all(|name| ids.contains(&name.as_str()));
        let whole = self.metric.iter().zip(self.metrics(&ids));
        let whole = whole.filter(|(metric, _)| has_all(&metric.sum) && has_all(&metric.over));
        let metrics: Vec<_> =
            whole.flat_map(|(_, metric)| by_place(metric, &observed.events)).collect();
        if metrics.is_empty() {
            let missing = self.events.iter().filter(|event| !ids.contains(&event.id.as_str()));
            let missing = joined(missing.map(|event| event.event.as_str()), " or ");
            let (name, missing) = (&self.name, missing.unwrap_or_default());
            return Err(Fault::new(format!(
                "none of the rates of group `{name}` can be computed: there is no {missing}"
            )));
        }
        observed.metrics.extend(metrics);
        observed.fill_metrics();
        Ok(())
    }

    /// Returns the reason why the host cannot count it, from its first missing event.
    pub fn missing(&self, host: &EventResolver<'_>, meshes: &[Mesh]) -> Option<String> {
        let expanded = self.expand(host.pmus, meshes);
        let set = match expanded.and_then(|(texts, _)| host.resolve(&texts)) {
            Ok(set) => set,
            Err(missing) => return Some(missing.0),
        };
        let is_of_cpus = |pmu: &Pmu| pmu.name.starts_with("cpu") || pmu.name.starts_with("armv");
        let needs_cpus = set.events().any(|event| event.pmu == "cpu");
        (needs_cpus && !host.pmus.iter().any(is_of_cpus))
            .then(|| "this host shows no PMU of its CPUs".to_owned())
    }
}

/// Returns a metric of all places, unless cgroups are counted, which may hold each other, and that
/// of each place where its events were counted.
pub(crate) fn by_place(metric: ObservedMetric, events: &[ObservedEvent]) -> Vec<ObservedMetric> {
    let label = |number: &usize| events[*number].label();
    let labels: BTreeSet<&str> = metric.sum.iter().map(label).collect();
    let of = |place: &&str| {
        let is_here = |number: &usize| label(number) == *place;
        let [sum, over]: [Vec<usize>; 2] = [&metric.sum, &metric.over]
            .map(|numbers| numbers.iter().copied().filter(is_here).collect());
        let name = format!("{place} {}", metric.name).trim_start().to_owned();
        let is_whole = over.is_empty() == metric.over.is_empty();
        is_whole.then(|| ObservedMetric { name, sum, over, ..metric.clone() })
    };
    let has_sum = labels.len() > 1 && metric.sum.iter().all(|at| events[*at].cgroup.is_empty());
    let all = has_sum.then(|| metric.clone());
    all.into_iter().chain(labels.iter().filter_map(of)).collect()
}

#[cfg(test)]
mod tests;
