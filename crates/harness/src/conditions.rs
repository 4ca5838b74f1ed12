//! What passed on the host while something was measured: the time, and who used the CPUs.

use std::collections::BTreeMap;

use daqmeter_record::{CpuTime, HostCpu, RunRecord};
use daqmeter_sys::cpu_time;

/// The accounts of host and process before a measurement.
pub(crate) struct Conditions {
    host: cpu_time::HostTimes,
    steal: BTreeMap<u32, u64>,
    process: cpu_time::Usage,
    threads: BTreeMap<String, u64>,
}

impl Conditions {
    pub(crate) fn before() -> Conditions {
        Conditions {
            host: cpu_time::of_host("/".as_ref()),
            steal: cpu_time::steal_by_cpu("/".as_ref()),
            process: cpu_time::of_process(),
            threads: cpu_time::of_own_threads(),
        }
    }

    /// Puts what passed since then into the record.
    pub(crate) fn after(&self, record: &mut RunRecord) {
        let process = cpu_time::of_process();
        record.process_cpu = CpuTime {
            user_ns: process.user_ns.saturating_sub(self.process.user_ns),
            system_ns: process.system_ns.saturating_sub(self.process.system_ns),
        };
        record.host_cpu = host_cpu(cpu_time::of_host("/".as_ref()).since(self.host));
        record.host_cpu.steal_by_cpu_ns = since(&self.steal, cpu_time::steal_by_cpu("/".as_ref()));
        record.host_cpu.threads_ns = since(&self.threads, cpu_time::of_own_threads());
    }
}

fn host_cpu(times: cpu_time::HostTimes) -> HostCpu {
    HostCpu {
        user_ns: times.user_ns,
        system_ns: times.system_ns,
        irq_ns: times.irq_ns,
        softirq_ns: times.softirq_ns,
        steal_ns: times.steal_ns,
        iowait_ns: times.iowait_ns,
        idle_ns: times.idle_ns,
        steal_by_cpu_ns: Default::default(),
        threads_ns: Default::default(),
    }
}

/// What was added to each of the times, where anything was.
fn since<K: Ord>(before: &BTreeMap<K, u64>, now: BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    let added = |(key, now): (K, u64)| {
        let ns = now.saturating_sub(before.get(&key).copied().unwrap_or(0));
        (key, ns)
    };
    now.into_iter()
        .map(added)
        .filter(|(_, ns)| *ns > 0)
        .collect()
}
