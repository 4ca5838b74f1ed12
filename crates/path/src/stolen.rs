//! CPU time that the hypervisor gives to others while a path runs: it reduces the capacity of CPUs.

use std::sync::OnceLock;

use daqmeter_sys::affinity::allowed_cpus;
use daqmeter_sys::available;
use daqmeter_sys::cpu_time::{OneCpu, by_cpu};
use std::collections::BTreeMap;

/// The accounts of all CPUs when the threads of a path were released.
#[derive(Default)]
pub(crate) struct Stolen(OnceLock<BTreeMap<u32, OneCpu>>);

impl Stolen {
    pub(crate) fn begin(&self) {
        self.0.get_or_init(|| by_cpu("/".as_ref()));
    }

    /// Time taken since then from the CPUs that this process may use, in nanoseconds by CPU.
    pub(crate) fn since(&self) -> BTreeMap<u32, u64> {
        let Some(before) = self.0.get() else {
            return BTreeMap::default();
        };
        // A host that does not name the usable CPUs does not give their capacity either.
        let allowed = allowed_cpus().unwrap_or_default();
        taken(before, &by_cpu("/".as_ref()), &allowed, available::cpus())
    }
}

/// Subtracts the counts. Empty if a quota gives the process less than its CPUs: the hypervisor may
/// then take from the rest.
fn taken(
    before: &BTreeMap<u32, OneCpu>,
    now: &BTreeMap<u32, OneCpu>,
    allowed: &[u32],
    cpus: f64,
) -> BTreeMap<u32, u64> {
    if cpus < allowed.len() as f64 {
        return BTreeMap::default();
    }
    let of = |cpu: &u32| {
        let ns = now.get(cpu)?.steal_ns.saturating_sub(before.get(cpu)?.steal_ns);
        (ns > 0).then_some((*cpu, ns))
    };
    allowed.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_from_cpus_that_may_be_used_counts_and_nothing_beside_a_quota() {
        let times = |steal_ns: [u64; 3]| -> BTreeMap<u32, OneCpu> {
            let one = |steal_ns| OneCpu { busy_ns: 7, steal_ns };
            (0..).zip(steal_ns.map(one)).collect()
        };
        let (before, now) = (times([10, 20, 30]), times([10, 50, 90]));
        let found = |allowed: &[u32], cpus| -> Vec<(u32, u64)> {
            let taken = taken(&before, &now, allowed, cpus);
            taken.iter().map(|(cpu, ns)| (*cpu, *ns)).collect()
        };
        assert_eq!(found(&[0, 1, 2], 3.0), [(1, 30), (2, 60)]);
        assert_eq!(found(&[0, 1], 2.0), [(1, 30)]);
        assert_eq!(found(&[0, 1, 2], 1.5), []);
        assert_eq!(found(&[7], 1.0), []);
    }
}
