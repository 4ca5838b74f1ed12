//! State of the host during a measurement: the time, and the users of the CPUs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use daqmeter_record::{CpuTime, RunRecord};
use daqmeter_sys::cpu_time::StatTimes;
use daqmeter_sys::host::Files;
use daqmeter_sys::{available, cpu_time, processes};

use crate::processes::Processes;
use crate::standstill;

/// Verbs that serve a measurement in another process.
const SERVERS: [&str; 6] = ["serve", "snoop", "tunnel", "receive", "emulate", "tohost"];
/// Processes that serve, as they were at the first measurement.
static PEERS: LazyLock<Vec<u32>> =
    LazyLock::new(|| processes::with_argument(&Files::default(), "daqmeter", &SERVERS));

fn peers_ns() -> u64 {
    let files = Files::default();
    let peers = PEERS.iter().map(|pid| processes::cpu_ns(&files, *pid));
    peers.sum::<u64>() + cpu_time::of_children_ns()
}

pub(crate) struct Conditions {
    host: BTreeMap<Option<u32>, StatTimes>,
    process: cpu_time::Usage,
    threads: BTreeMap<String, u64>,
    processes: Option<Processes>,
    peers_ns: u64,
    throttled_ns: u64,
    begin_ns: u64,
}

impl Conditions {
    /// Reads the accounts, with those of every process if an engine asks for it.
    pub(crate) fn before(with_processes: bool) -> Conditions {
        Conditions {
            processes: with_processes
                .then(|| Processes::before(Files::default(), std::process::id())),
            host: cpu_time::of_host(),
            process: cpu_time::of_process(),
            threads: cpu_time::of_own_threads(),
            peers_ns: peers_ns(),
            throttled_ns: available::throttled_ns(&Files::default()),
            begin_ns: standstill::watch(),
        }
    }

    pub(crate) fn after(&self, record: &mut RunRecord) {
        let process = cpu_time::of_process();
        record.process_cpu = CpuTime {
            user_ns: process.user_ns.saturating_sub(self.process.user_ns),
            system_ns: process.system_ns.saturating_sub(self.process.system_ns),
        };
        let now = cpu_time::of_host();
        if let Some((before, now)) = self.host.get(&None).zip(now.get(&None)) {
            // Idle and iowait step back by a tick now and then.
            let spent = |at: usize| now[at].saturating_sub(before[at]);
            let host = &mut record.host_cpu;
            [host.user_ns, host.system_ns, host.idle_ns, host.iowait_ns] = [0, 1, 2, 3].map(spent);
            [host.irq_ns, host.softirq_ns, host.steal_ns] = [4, 5, 6].map(spent);
        }
        record.host_cpu.peers_ns = peers_ns().saturating_sub(self.peers_ns);
        let throttled_ns = available::throttled_ns(&Files::default());
        // It is the sum of all CPUs.
        let throttled_ns = throttled_ns.saturating_sub(self.throttled_ns);
        let cpus = self.host.keys().flatten().count().max(1);
        record.host_cpu.stood_still_ns =
            standstill::since(self.begin_ns) + throttled_ns / cpus as u64;
        let of_each = |ns: fn(&StatTimes) -> u64| {
            let times = |all: &BTreeMap<Option<u32>, StatTimes>| {
                all.iter().filter_map(|(cpu, times)| Some(((*cpu)?, ns(times)))).collect()
            };
            since(&times(&self.host), times(&now))
        };
        record.host_cpu.steal_by_cpu_ns = of_each(|times| times[6]);
        record.host_cpu.busy_by_cpu_ns = of_each(|times| times[0].saturating_add(times[1]));
        let threads = cpu_time::of_own_threads();
        let used_ns = since(&self.threads, threads.clone());
        let named = used_ns.iter().map(|(name, ns)| (name.into(), *ns));
        record.host_cpu.threads_ns = named.collect();
        if let Some(processes) = &self.processes {
            let used = |(name, ns): (&String, &u64)| (name.clone(), (*ns, threads[name]));
            let threads = used_ns.iter().map(used).collect();
            record.host_cpu.processes = processes.used(&threads);
        }
    }
}

/// Returns the increase of each time. Empty if the times before could not be read, because they are
/// the increase since the host's start.
fn since<K: Ord>(before: &BTreeMap<K, u64>, now: BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    if before.is_empty() {
        return BTreeMap::new();
    }
    let mut added = now;
    for (key, ns) in &mut added {
        *ns = ns.saturating_sub(before.get(key).copied().unwrap_or(0));
    }
    added.retain(|_, ns| *ns > 0);
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_before_adds_nothing_and_what_begins_later_counts() {
        let times = |times: &[(u32, u64)]| times.iter().copied().collect::<BTreeMap<_, _>>();
        let now = || times(&[(0, 900), (1, 7), (2, 5)]);
        assert_eq!(since(&times(&[]), now()), times(&[]));
        assert_eq!(since(&times(&[(0, 890), (2, 5)]), now()), times(&[(0, 10), (1, 7)]));
    }
}
