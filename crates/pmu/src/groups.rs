//! Groups: which events answer a question, and how they become rates. One TOML file each, below `groups/<uarch>/`.

use daqmeter_record::Mesh;
use daqmeter_record::observed::{ObservedEvent, ObservedMetric};
use serde::Deserialize;

use crate::sysfs::Pmu;

/// A group as its file says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Name on the command line.
    pub name: String,
    /// What it answers, one sentence.
    pub about: String,
    /// PMU family that it needs; empty for what every host has.
    #[serde(default)]
    pub pmu: String,
    /// Events by short name. `{node}` stands for each node of the kind `each`.
    pub events: Vec<GroupEvent>,
    /// Rates and ratios.
    #[serde(default)]
    pub metric: Vec<Metric>,
}

/// One event of a group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupEvent {
    /// Short name that metrics use.
    pub id: String,
    /// The event as after `-e`.
    pub event: String,
    /// Kind of node for which it is counted one by one; empty adds up all.
    #[serde(default)]
    pub each: String,
}

/// A rate or a ratio: the sum of events times a factor, per second or over another sum.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Name.
    pub name: String,
    /// Unit: `B/s`, `bit/s`, `1/s`, or empty for a ratio.
    pub unit: String,
    /// Events that are added up, by short name.
    pub sum: Vec<String>,
    /// What one count stands for.
    #[serde(default = "one")]
    pub times: f64,
    /// Events over which the sum is taken; empty takes it per second.
    #[serde(default)]
    pub over: Vec<String>,
    /// Where the formula is from.
    pub source: String,
    /// What must be known to believe it.
    #[serde(default)]
    pub caveat: String,
    /// Positions of the events in the set, filled by [`Group::expand`].
    #[serde(skip)]
    positions: (Vec<usize>, Vec<usize>),
}

fn one() -> f64 {
    1.0
}

/// The files that ship with the binary.
const SHIPPED: &[(&str, &str)] = &[
    ("cmn", include_str!("../groups/cmn/memory.toml")),
    ("cmn", include_str!("../groups/cmn/pcie.toml")),
    ("cmn", include_str!("../groups/cmn/slc.toml")),
    ("cmn", include_str!("../groups/cmn/nodes.toml")),
    ("cmn", include_str!("../groups/cmn/rni.toml")),
    ("intel", include_str!("../groups/intel/imc.toml")),
    ("any", include_str!("../groups/any/energy.toml")),
    ("any", include_str!("../groups/any/block.toml")),
    ("any", include_str!("../groups/any/net.toml")),
    ("any", include_str!("../groups/any/kernel.toml")),
    ("any", include_str!("../groups/any/resctrl.toml")),
    ("any", include_str!("../groups/any/cpu.toml")),
];

/// Why a group cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// No group of that name.
    #[error(
        "there is no group `{name}`; there are {there} (daqmeter pmu list --groups), or name a file"
    )]
    Unknown {
        /// The name.
        name: String,
        /// Those that ship.
        there: String,
    },
    /// The file is wrong.
    #[error("{file}: {problem}")]
    File {
        /// File or name.
        file: String,
        /// The first line of what is wrong.
        problem: String,
    },
    /// The host lacks the PMU.
    #[error("group `{name}` needs the PMU {pmu}, which this host does not have; {instead}")]
    NoPmu {
        /// Group.
        name: String,
        /// PMU family.
        pmu: String,
        /// What can be had.
        instead: String,
    },
    /// Events for each node, and no map.
    #[error(
        "group `{name}` counts each {kind} by itself and the map of the mesh is not known: give one with --map FILE (daqmeter pmu map)"
    )]
    NoMap {
        /// Group.
        name: String,
        /// Kind of node.
        kind: String,
    },
}

/// What hosts without an interconnect PMU can count, for those who asked for more.
pub const INSTEAD: &str =
    "DRAM traffic cannot be counted here; block, net and kernel work on every host";

impl Group {
    /// All groups that ship, with the folder that they lie in.
    pub fn shipped() -> Vec<(&'static str, Group)> {
        let parse = |(folder, text): &(&'static str, &str)| {
            (
                *folder,
                Group::parse(text, folder).expect("ships with the binary and is tested"),
            )
        };
        SHIPPED.iter().map(parse).collect()
    }

    /// Parses a group's file.
    ///
    /// # Errors
    /// Names the line and what is wrong there.
    pub fn parse(text: &str, file: &str) -> Result<Group, GroupError> {
        let wrong = |problem: String| GroupError::File {
            file: file.to_owned(),
            problem,
        };
        let group: Group = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| {
                text[..span.start.min(text.len())].matches('\n').count() + 1
            });
            wrong(format!(
                "line {line}: {}",
                error.message().lines().next().unwrap_or("")
            ))
        })?;
        for metric in &group.metric {
            let known = |id: &String| group.events.iter().any(|event| event.id == *id);
            if let Some(id) = metric.sum.iter().chain(&metric.over).find(|id| !known(id)) {
                return Err(wrong(format!(
                    "metric `{}` uses `{id}`, which is no event of the group",
                    metric.name
                )));
            }
            if metric.sum.is_empty() {
                return Err(wrong(format!("metric `{}` adds up nothing", metric.name)));
            }
        }
        if group.events.is_empty() {
            return Err(wrong("it has no events".to_owned()));
        }
        Ok(group)
    }

    /// The group of that name among those that ship, or the one in the file of that name.
    ///
    /// # Errors
    /// When there is neither, or the file is wrong.
    pub fn find(name: &str) -> Result<Group, GroupError> {
        if name.ends_with(".toml") {
            let problem = |error: std::io::Error| GroupError::File {
                file: name.to_owned(),
                problem: error.to_string(),
            };
            return Group::parse(&std::fs::read_to_string(name).map_err(problem)?, name);
        }
        let all = Group::shipped();
        let there = || {
            all.iter()
                .map(|(_, group)| group.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let found = all.iter().find(|(_, group)| group.name == name);
        found
            .map(|(_, group)| group.clone())
            .ok_or_else(|| GroupError::Unknown {
                name: name.to_owned(),
                there: there(),
            })
    }

    /// Whether the host has what it needs.
    pub fn is_there(&self, pmus: &[Pmu]) -> bool {
        self.pmu.is_empty()
            || pmus
                .iter()
                .any(|pmu| pmu.name == self.pmu || pmu.family() == self.pmu)
    }

    /// The events as texts for [`crate::event::Host::resolve`], and the metrics with their places among them.
    ///
    /// # Errors
    /// When the host lacks the PMU, or events are for each node and no mesh is known.
    pub fn expand(
        &self,
        pmus: &[Pmu],
        meshes: &[Mesh],
    ) -> Result<(Vec<String>, Vec<Metric>), GroupError> {
        if !self.is_there(pmus) {
            let (name, pmu) = (self.name.clone(), self.pmu.clone());
            return Err(GroupError::NoPmu {
                name,
                pmu,
                instead: INSTEAD.to_owned(),
            });
        }
        let (mut texts, mut ids): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
        for event in &self.events {
            if event.each.is_empty() {
                texts.push(event.event.clone());
                ids.push(&event.id);
                continue;
            }
            let of_kind = |mesh: &Mesh| -> Vec<(String, u16)> {
                let nodes = mesh.nodes.iter().filter(|node| node.kind == event.each);
                nodes
                    .map(|node| (mesh.name.clone(), node.node_id))
                    .collect()
            };
            let nodes: Vec<_> = meshes.iter().flat_map(of_kind).collect();
            if nodes.is_empty() {
                return Err(GroupError::NoMap {
                    name: self.name.clone(),
                    kind: event.each.clone(),
                });
            }
            for (pmu, node) in nodes {
                let text = event.event.replace("{node}", &format!("{node:#x}"));
                texts.push(text.replace("{pmu}", &pmu));
                ids.push(&event.id);
            }
        }
        let at = |names: &[String]| -> Vec<usize> {
            (0..ids.len())
                .filter(|at| names.iter().any(|name| name == ids[*at]))
                .collect()
        };
        let place = |metric: &Metric| Metric {
            positions: (at(&metric.sum), at(&metric.over)),
            ..metric.clone()
        };
        Ok((texts, self.metric.iter().map(place).collect()))
    }
}

impl Metric {
    /// The same metric for a set in which the group's events begin at `first`.
    #[must_use]
    pub fn shifted(mut self, first: usize) -> Metric {
        self.positions
            .0
            .iter_mut()
            .chain(&mut self.positions.1)
            .for_each(|at| *at += first);
        self
    }

    /// A metric before its first value.
    pub fn blank(&self) -> ObservedMetric {
        ObservedMetric {
            name: self.name.clone(),
            unit: self.unit.clone(),
            caveat: self.caveat.clone(),
            values: Vec::new(),
        }
    }

    /// The value in an interval: per second of the time that the counters themselves saw. None when one of its events did not
    /// count, or when the ratio has nothing below the line.
    pub fn value(&self, events: &[ObservedEvent], interval: usize) -> Option<f64> {
        let per_second = self.over.is_empty();
        let add = |positions: &[usize], rate: bool| -> Option<f64> {
            let one = |at: &usize| {
                let event = events.get(*at)?;
                let value = event.scaled(interval)?;
                Some(if rate {
                    value / event.seconds(interval)?
                } else {
                    value
                })
            };
            positions.iter().map(one).sum()
        };
        let above = add(&self.positions.0, per_second)? * self.times;
        if per_second {
            return Some(above);
        }
        add(&self.positions.1, false)
            .filter(|below| *below > 0.0)
            .map(|below| above / below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64, seconds: f64) -> ObservedEvent {
        let ns = u64::try_from(std::time::Duration::from_secs_f64(seconds).as_nanos()).unwrap();
        ObservedEvent {
            count: vec![count],
            enabled_ns: vec![ns],
            running_ns: vec![ns],
            scale: 1.0,
            places: 1,
            ..Default::default()
        }
    }

    fn metric(text: &str, events: &[ObservedEvent]) -> Option<f64> {
        let ids: Vec<String> = (0..events.len())
            .map(|at| format!("[[events]]\nid='e{at}'\nevent='page-faults'\n"))
            .collect();
        let text = format!(
            "name='x'\nabout='x'\n{}[[metric]]\nname='m'\nsource='x'\n{text}",
            ids.concat()
        );
        let (_, metrics) = Group::parse(&text, "test")
            .unwrap()
            .expand(&[], &[])
            .unwrap();
        metrics[0].value(events, 0)
    }

    #[test]
    fn the_published_memory_bandwidth_is_right_once_units_and_the_interval_are() {
        // hnf_mc_reqs of four slices; the document prints "29715 MB/sec", which is MiB and per its interval.
        let events = [121_713_206_u64, 121_715_680, 121_712_781, 121_715_432];
        assert_eq!(events.iter().sum::<u64>() * 64, 31_158_854_336);
        let second: Vec<_> = [121_683_890, 121_685_839, 121_682_684, 121_685_669]
            .map(|count| counted(count, 1.000_250_043))
            .into();
        let rate = metric("unit='B/s'\nsum=['e0','e1','e2','e3']\ntimes=64", &second).unwrap();
        assert_eq!(
            (
                format!("{:.2}", rate / 1e6),
                format!("{:.2}", rate / f64::from(1 << 20))
            ),
            ("31143.45".into(), "29700.71".into())
        );
    }

    #[test]
    fn the_published_block_and_network_rates() {
        let beats = "unit='B/s'\nsum=['e0']\ntimes=32";
        for (count, passed, expected) in [
            (84_728_162, 1.0, "2711.30"),
            (84_743_908, 1.000_138_888, "2711.43"),
            (84_746_976, 1.000_158_483, "2711.47"),
            (84_417_098, 1.000_156_148, "2700.93"),
            (248_145, 1.0, "7.94"),
        ] {
            assert_eq!(
                format!(
                    "{:.2}",
                    metric(beats, &[counted(count, passed)]).unwrap() / 1e6
                ),
                expected
            );
        }
        let bits = "unit='bit/s'\nsum=['e0']\ntimes=256";
        let rate = metric(bits, &[counted(4_024_000, 1.0)]).unwrap();
        assert_eq!(rate / 1e6, 1030.144);
        assert_eq!(
            format!("{:.3}", rate / 941.52e6),
            "1.094",
            "framing and descriptors: above one"
        );
        // Against fio: 202101 reads of 64 KiB in 4.894 s.
        let fio = 202_101.0 * 65_536.0 / 4.894;
        assert_eq!(
            format!("{:.2} {:.3}", fio / 1e6, 84.74e6 * 32.0 / fio),
            "2706.35 1.002"
        );
    }

    #[test]
    fn ratios_need_something_below_the_line_and_nothing_is_invented() {
        let ratio = "unit=''\nsum=['e0']\nover=['e1']";
        assert_eq!(
            metric(ratio, &[counted(1, 1.0), counted(4, 1.0)]),
            Some(0.25)
        );
        assert_eq!(metric(ratio, &[counted(1, 1.0), counted(0, 1.0)]), None);
        let never = ObservedEvent {
            count: vec![0],
            enabled_ns: vec![5],
            running_ns: vec![0],
            ..Default::default()
        };
        assert_eq!(metric(ratio, &[counted(1, 1.0), never]), None);
    }

    #[test]
    fn every_shipped_group_parses_and_says_where_its_formulas_are_from() {
        for (_, group) in Group::shipped() {
            assert!(
                !group.about.is_empty()
                    && group.metric.iter().all(|metric| metric.source.len() > 10),
                "{}",
                group.name
            );
        }
        let mut names: Vec<String> = Group::shipped()
            .into_iter()
            .map(|(_, group)| group.name)
            .collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all, "names are unique");
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_line() {
        let error = Group::parse("name='x'\nabout='x'\nsurprise=1\nevents=[]", "mine.toml")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("mine.toml: line 3: unknown field"),
            "{error}"
        );
        let error = Group::parse(
            "name='x'\nabout='x'\n[[events]]\nid='a'\nevent='faults'\n[[metric]]\nname='m'\nunit=''\nsource='s'\nsum=['b']",
            "mine.toml",
        );
        assert!(error.unwrap_err().to_string().contains("uses `b`"));
    }
}
