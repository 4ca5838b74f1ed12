//! Counting by parts of the machine: sockets, NUMA nodes, instances of a PMU such as meshes.

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum;
use daqmeter_record::observed::ObservedMetric;

use crate::count::Selection;
use crate::event::{EventCounter, EventSet, PmuEvent};
use crate::host::CountedHost;

/// Parts that are counted by themselves.
// Comments of its variants are no `///`: the help of --by names all of them in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MachinePart {
    Socket,
    Node,
    // An instance of a PMU: a mesh, a memory channel.
    #[value(alias = "mesh")]
    Pmu,
}

impl CountedHost {
    /// Splits the events of a selection by part; counters of files stay whole.
    #[must_use]
    pub fn by(&self, part: MachinePart, selection: Selection) -> Selection {
        let mut split = Selection { set: EventSet::default(), ..selection };
        split.set.warnings = selection.set.warnings;
        let mut moved: Vec<Vec<usize>> = Vec::new();
        let mut next = 0;
        for group in selection.set.groups {
            let parts: Vec<_> = group.iter().map(|event| self.parts(part, event)).collect();
            let places: BTreeSet<&String> = parts.iter().flat_map(BTreeMap::keys).collect();
            let (members, first) = (group.len(), next);
            next += places.len() * members;
            moved.extend((first..first + members).map(|at| (at..next).step_by(members).collect()));
            for place in places {
                let at = |(event, parts): (&PmuEvent, &BTreeMap<String, Vec<EventCounter>>)| {
                    let sources = parts.get(place).cloned().unwrap_or_default();
                    PmuEvent { sources, place: place.clone(), ..event.clone() }
                };
                split.set.groups.push(group.iter().zip(&parts).map(at).collect());
            }
        }
        for ObservedMetric { sum, over, .. } in &mut split.metrics {
            for numbers in [sum, over] {
                *numbers = numbers.iter().flat_map(|number| moved[*number].clone()).collect();
            }
        }
        split
    }

    /// Returns the counters of an event by place, one for each CPU.
    fn parts(&self, part: MachinePart, event: &PmuEvent) -> BTreeMap<String, Vec<EventCounter>> {
        let mut parts: BTreeMap<String, Vec<EventCounter>> = BTreeMap::new();
        for source in &event.sources {
            let EventCounter::Perf { attributes, cpus } = source else {
                parts.entry(String::new()).or_default().push(source.clone());
                continue;
            };
            for cpu in cpus {
                let place = self.place(part, attributes.kind, *cpu);
                let one = EventCounter::Perf { attributes: *attributes, cpus: vec![*cpu] };
                parts.entry(place).or_default().push(one);
            }
        }
        parts
    }

    fn place(&self, part: MachinePart, kind: u32, cpu: u32) -> String {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        match part {
            MachinePart::Socket => {
                let socket = self.files.text(&format!("{folder}/topology/physical_package_id"));
                format!("S{}", socket.as_deref().unwrap_or("0"))
            }
            MachinePart::Node => {
                let names = self.files.names(&folder);
                let node = names.iter().find_map(|name| name.strip_prefix("node"));
                format!("N{}", node.unwrap_or("0"))
            }
            MachinePart::Pmu => {
                let pmu = self.pmus.iter().find(|pmu| pmu.kind == kind);
                pmu.map_or("cpu", |pmu| &pmu.name).to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::tree;

    #[test]
    fn events_and_rates_are_split_by_socket_node_and_instance() {
        let devices = "sys/bus/event_source/devices";
        let mut entries = vec![("sys/devices/system/cpu/online".to_owned(), "0-3\n")];
        for (pmu, kind) in [("uncore_imc_0", "20\n"), ("uncore_imc_1", "21\n")] {
            let file = |name: &str| format!("{devices}/{pmu}/{name}");
            entries.push((file("type"), kind));
            entries.push((file("cpumask"), "0,2\n"));
            entries.push((file("format/event"), "config:0-7\n"));
            for event in ["cas_count_read", "cas_count_write"] {
                entries.push((file(&format!("events/{event}")), "event=0x1\n"));
            }
        }
        for (cpu, socket) in [(0, "0\n"), (1, "0\n"), (2, "1\n"), (3, "1\n")] {
            let cpu = format!("sys/devices/system/cpu/cpu{cpu}");
            entries.push((format!("{cpu}/topology/physical_package_id"), socket));
            entries.push((format!("{cpu}/node{}/x", socket.trim()), ""));
        }
        let entries: Vec<(&str, &str)> =
            entries.iter().map(|(path, text)| (&**path, *text)).collect();
        let (_root, files) = tree(&entries);
        let host = CountedHost::new(files, Vec::new());
        for (part, places) in [
            (MachinePart::Socket, ["S0", "S1"]),
            (MachinePart::Node, ["N0", "N1"]),
            (MachinePart::Pmu, ["uncore_imc_0", "uncore_imc_1"]),
        ] {
            let whole = host.choose(&["imc".to_owned()], None, &[]).unwrap();
            assert_eq!((whole.metrics[1].sum.as_slice(), whole.set.groups.len()), (&[1][..], 2));
            let split = host.by(part, whole);
            let found: Vec<(&str, u32)> =
                split.set.events().map(|event| (&*event.place, event.places())).collect();
            let [one, two] = places;
            assert_eq!(found, [(one, 2), (two, 2), (one, 2), (two, 2)], "{part:?}");
            assert_eq!(split.metrics[1].sum, [2, 3]);
        }
    }
}
