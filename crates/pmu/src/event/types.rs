use daqmeter_sys::counters::{Attributes, Excluded};

use crate::system::SystemCounter;

#[derive(Clone, Debug, Default)]
pub struct PmuEvent {
    pub name: String,
    /// PMU, or the family when several instances are added up.
    pub pmu: String,
    pub sources: Vec<EventCounter>,
    /// Unit after scaling, empty for a plain count.
    pub unit: String,
    /// Factor from count to unit.
    pub scale: f64,
    pub on_mesh: Option<OnMesh>,
}

impl PmuEvent {
    pub fn new(name: &str, pmu: &str) -> PmuEvent {
        PmuEvent { name: name.into(), pmu: pmu.into(), scale: 1.0, ..PmuEvent::default() }
    }

    pub(super) fn exclude(&mut self, excluded: Excluded) {
        for source in &mut self.sources {
            if let EventCounter::Perf { attributes, .. } = source {
                attributes.excluded = excluded;
            }
        }
    }

    pub fn is_on(&self, mesh: &str) -> bool {
        let instance = mesh.strip_prefix(self.pmu.as_str());
        self.on_mesh.is_some()
            && instance.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }
}

#[derive(Clone, Debug)]
pub enum EventCounter {
    /// A counter of `perf_event_open(2)`, on each of the CPUs.
    Perf { attributes: Attributes, cpus: Vec<u32> },
    /// A file of the kernel.
    System(SystemCounter),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnMesh {
    pub type_code: u16,
    /// Event number; for a watchpoint its direction, 0 up and 2 down.
    pub event_id: u64,
    /// Filter of the node, or the combination of a watchpoint.
    pub occup_id: u64,
    /// The only node; `None` sums all of the type.
    pub node_id: Option<u16>,
    pub wp_device: u64,
    pub wp_group: u64,
}

#[derive(Clone, Debug, Default)]
pub struct EventSet {
    pub groups: Vec<Vec<PmuEvent>>,
    pub warnings: Vec<String>,
}

impl EventSet {
    pub fn events(&self) -> impl Iterator<Item = &PmuEvent> {
        self.groups.iter().flatten()
    }
}
