//! Sources of counts: the kernel, or an emulated mesh ([`crate::emulated`]). The trait lets the
//! rest run and be tested without hardware.

use std::io::{self, ErrorKind};

use daqmeter_sys::clock;
use daqmeter_sys::counters::{Attributes, CounterGroup, CounterGroupError};
use daqmeter_sys::host::Files;
use daqmeter_sys::perf::Reading;

use crate::event::{EventCounter, PmuEvent};
use crate::system::SystemCounter;

pub trait Opener {
    fn open(&mut self, group: &[PmuEvent]) -> Result<Box<dyn Counters>, Refused>;
}

pub trait Counters: Send {
    fn read(&mut self, into: &mut [Reading]);
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{event}`: {reason}")]
pub struct Refused {
    pub event: String,
    pub reason: String,
}

impl Refused {
    pub(crate) fn new(event: &PmuEvent, reason: &str) -> Refused {
        Refused { event: event.name.clone(), reason: reason.to_owned() }
    }
}

#[derive(Debug)]
pub struct KernelOpener {
    pub files: Files,
}

/// Counters of one group on each of its CPUs and instances, added up.
struct CounterPlaces {
    groups: Vec<CounterGroup>,
    row: Vec<Reading>,
}

struct Alone {
    counter: SystemCounter,
    last: u64,
    passed: u64,
    since_ns: u64,
}

impl Opener for KernelOpener {
    fn open(&mut self, group: &[PmuEvent]) -> Result<Box<dyn Counters>, Refused> {
        if let [event] = group
            && let [EventCounter::System(counter)] = event.sources.as_slice()
        {
            // Without a first value the count would begin at the start of the host.
            let last = counter.value().ok_or_else(|| Refused::new(event, "cannot be read"))?;
            let (counter, since_ns) = (counter.clone(), clock::monotonic_ns());
            return Ok(Box::new(Alone { counter, last, passed: 0, since_ns }));
        }
        let mut groups = Vec::new();
        for place in 0..group.first().map_or(0, |event| event.sources.len()) {
            let (members, cpus) = members(group, place)?;
            for cpu in cpus {
                let opened = CounterGroup::open(&members, cpu);
                groups.push(opened.map_err(|refused| self.explain(group, &refused))?);
            }
        }
        Ok(Box::new(CounterPlaces { groups, row: vec![Reading::default(); group.len()] }))
    }
}

fn members(group: &[PmuEvent], place: usize) -> Result<(Vec<Attributes>, Vec<u32>), Refused> {
    let mut all = Vec::new();
    let mut on: Option<Vec<u32>> = None;
    for event in group {
        let Some(EventCounter::Perf { attributes, cpus }) = event.sources.get(place) else {
            return Err(Refused::new(
                event,
                "counters of files and of PMUs with another number of instances cannot be in one group",
            ));
        };
        match &on {
            Some(before) if before != cpus => {
                let reason = "it counts on other CPUs than the first of its group";
                return Err(Refused::new(event, reason));
            }
            _ => on = Some(cpus.clone()),
        }
        all.push(*attributes);
    }
    Ok((all, on.unwrap_or_default()))
}

impl KernelOpener {
    fn explain(&self, group: &[PmuEvent], refused: &CounterGroupError) -> Refused {
        let member = refused.member;
        let reason = self.reason(group.len(), member, refused.error.errno().unwrap_or(0));
        Refused {
            event: group.get(member).map_or(String::new(), |event| event.name.clone()),
            reason: reason.unwrap_or_else(|| refused.error.to_string()),
        }
    }

    /// Returns the meaning of an error number of `perf_event_open(2)`.
    fn reason(&self, members: usize, member: usize, errno: i32) -> Option<String> {
        const EMFILE: i32 = 24;
        let paranoid = self.files.text("proc/sys/kernel/perf_event_paranoid");
        let paranoid = paranoid.as_deref().unwrap_or("unknown");
        Some(match io::Error::from_raw_os_error(errno).kind() {
            ErrorKind::PermissionDenied => format!(
                "not allowed: kernel.perf_event_paranoid is {paranoid}; run as root, give the program CAP_PERFMON, or: sysctl kernel.perf_event_paranoid=0"
            ),
            ErrorKind::InvalidInput if members > 1 => format!(
                "the driver refuses the group at this member: it does not fit beside the {member} before it (daqmeter pmu stat --plan names the limit)"
            ),
            ErrorKind::NotFound => "this host does not have it (virtual machines usually have no hardware PMU)".into(),
            ErrorKind::ResourceBusy => "another program uses the counter (perf record, a watchdog)".into(),
            _ if errno == EMFILE => "too many open files: raise ulimit -n, one descriptor is needed for each event and CPU".into(),
            ErrorKind::InvalidInput => "the driver refuses it: no node of this type and NodeID, or a field that the part does not have (daqmeter pmu list --mesh)".into(),
            _ => return None,
        })
    }
}

impl Counters for CounterPlaces {
    fn read(&mut self, into: &mut [Reading]) {
        into.fill(Reading::default());
        for group in &mut self.groups {
            self.row.fill(Reading::default());
            group.read(&mut self.row);
            for (sum, one) in into.iter_mut().zip(&self.row) {
                sum.value = sum.value.wrapping_add(one.value);
                sum.enabled_ns += one.enabled_ns;
                sum.running_ns += one.running_ns;
            }
        }
    }
}

impl Counters for Alone {
    fn read(&mut self, into: &mut [Reading]) {
        // A device that went away keeps its count; a sum over devices loses its part.
        let now = self.counter.value().unwrap_or(self.last);
        self.passed += now.saturating_sub(self.last);
        self.last = now;
        let passed_ns = clock::monotonic_ns().saturating_sub(self.since_ns);
        if let Some(reading) = into.first_mut() {
            *reading = Reading { value: self.passed, enabled_ns: passed_ns, running_ns: passed_ns };
        }
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;

    /// Scripted counts for tests: the n-th reading of each event.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Script {
        /// Cumulative readings by event name, the last of which repeats; other events are refused.
        pub(crate) readings: Vec<(String, Vec<Reading>)>,
    }

    struct Scripted {
        rows: Vec<Vec<Reading>>,
        at: usize,
    }

    impl Opener for Script {
        fn open(&mut self, group: &[PmuEvent]) -> Result<Box<dyn Counters>, Refused> {
            let mut rows = Vec::new();
            for event in group {
                let found = self.readings.iter().find(|(name, _)| *name == event.name);
                let refused = || Refused::new(event, "not in the script");
                rows.push(found.ok_or_else(refused)?.1.clone());
            }
            Ok(Box::new(Scripted { rows, at: 0 }))
        }
    }

    impl Counters for Scripted {
        fn read(&mut self, into: &mut [Reading]) {
            for (reading, row) in into.iter_mut().zip(&self.rows) {
                *reading = row.get(self.at).or(row.last()).copied().unwrap_or_default();
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::tree;

    fn event(name: &str, cpus: &[u32]) -> PmuEvent {
        let source = EventCounter::Perf { attributes: Attributes::default(), cpus: cpus.to_vec() };
        PmuEvent { sources: vec![source], ..PmuEvent::new(name, "x") }
    }

    #[test]
    fn refusals_say_what_to_change() {
        let (_root, files) = tree(&[("proc/sys/kernel/perf_event_paranoid", "3\n")]);
        let kernel = KernelOpener { files };
        for (members, errno, part) in [
            (1, 13, "perf_event_paranoid is 3; run as root"),
            (2, 22, "does not fit beside the 1 before it"),
            (1, 22, "no node of this type"),
            (1, 2, "does not have it"),
        ] {
            assert!(kernel.reason(members, 1, errno).unwrap().contains(part), "{part}");
        }
        assert_eq!(kernel.reason(1, 0, 5), None);
    }

    #[test]
    fn a_group_over_different_cpus_is_refused_before_it_is_opened() {
        let refused = members(&[event("a", &[0]), event("b", &[1])], 0).unwrap_err();
        assert_eq!(refused.event, "b");
    }

    #[test]
    fn a_file_counter_begins_at_zero() {
        let (root, files) = tree(&[("proc/vmstat", "pgpgin 100\n")]);
        let counter = SystemCounter::find(&files, "vmstat.pgpgin").unwrap();
        let mut one = event("vmstat.pgpgin", &[]);
        one.sources = vec![EventCounter::System(counter)];
        let mut open = KernelOpener { files }.open(&[one]).unwrap();
        std::fs::write(root.path().join("proc/vmstat"), "pgpgin 142\n").unwrap();
        let mut readings = [Reading::default()];
        open.read(&mut readings);
        assert_eq!((readings[0].value, readings[0].enabled_ns), (42, readings[0].running_ns));
        for (now, passed) in [("50", 42), ("57", 49)] {
            std::fs::write(root.path().join("proc/vmstat"), format!("pgpgin {now}\n")).unwrap();
            open.read(&mut readings);
            assert_eq!(readings[0].value, passed);
        }
    }
}
