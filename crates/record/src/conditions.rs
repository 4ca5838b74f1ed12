//! Time that others took from the CPUs of a record, by the accounts of `/proc/stat`. They count in
//! ticks of 10 ms (man proc_stat), so that a share is known only beyond two ticks of each CPU.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Lane, RunRecord};

/// Tick of `/proc/stat` in nanoseconds: USER_HZ is 100 on every current architecture.
const TICK_NS: f64 = 1e7;
/// Error of a CPU's account in ticks: one at each end.
const TICKS: f64 = 2.0;
/// Share from which work of whole CPUs, such as a chain's, does not show what it can do.
const TAKEN: f64 = 0.05;

/// Returns the share of the time of its CPUs that other programs and the hypervisor took from a
/// record, less the error of the ticks; 0 if it has no timed lanes or no accounts.
fn taken(record: &RunRecord) -> f64 {
    let has_samples = |lane: &Lane| lane.stages.iter().any(|stage| !stage.sample_ns.is_empty());
    let used: BTreeSet<u32> =
        record.lanes.iter().flat_map(|lane| lane.seen_cpus.iter().copied()).collect();
    let cpu = &record.host_cpu;
    let of_used = |times: &BTreeMap<u32, u64>| -> f64 {
        used.iter().filter_map(|cpu| times.get(cpu)).map(|&ns| ns as f64).sum()
    };
    let foreign_ns = of_used(&cpu.busy_by_cpu_ns) - record.process_cpu.total_ns() as f64;
    let taken_ns = foreign_ns.max(0.0) + of_used(&cpu.steal_by_cpu_ns);
    let least_ns = taken_ns - TICKS * TICK_NS * used.len() as f64;
    let available_ns = record.wall_ns as f64 * used.len() as f64;
    let is_known = available_ns > 0.0 && record.lanes.iter().any(has_samples);
    if is_known { (least_ns / available_ns).max(0.0) } else { 0.0 }
}

/// Returns the reason why a record of whole CPUs does not show what they can do; `None` if it does.
pub fn disturbance(record: &RunRecord) -> Option<String> {
    let share = taken(record);
    (share > TAKEN)
        .then(|| format!("other programs used {:.0} % of the time of our CPUs", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuTime, Stage};

    const SECOND: u64 = 1_000_000_000;

    /// A lane on CPU 0 for ten seconds.
    fn quiet() -> RunRecord {
        let mut record = RunRecord {
            wall_ns: 10 * SECOND,
            process_cpu: CpuTime { user_ns: 10 * SECOND, system_ns: 0 },
            ..RunRecord::default()
        };
        record.host_cpu.busy_by_cpu_ns = [(0, 10 * SECOND), (1, 5 * SECOND)].into();
        record.lanes.push(Lane {
            seen_cpus: vec![0],
            stages: vec![Stage { sample_ns: vec![SECOND], ..Stage::default() }],
            ..Lane::default()
        });
        record
    }

    #[test]
    fn what_others_take_from_the_used_cpus_counts_beyond_the_ticks() {
        assert_eq!(taken(&quiet()), 0.0);
        assert_eq!(taken(&RunRecord::default()), 0.0);
        let mut beside = quiet();
        beside.process_cpu.user_ns = 9 * SECOND;
        assert!((taken(&beside) - 0.098).abs() < 1e-9, "{}", taken(&beside));
        assert!(disturbance(&beside).unwrap().contains("used 10 % of the time"));
        let mut stolen = quiet();
        stolen.host_cpu.steal_by_cpu_ns = [(0, SECOND), (1, 9 * SECOND)].into();
        assert!((taken(&stolen) - 0.098).abs() < 1e-9);
        let mut watched = beside;
        watched.lanes[0].stages.clear();
        assert_eq!(disturbance(&watched), None);
    }
}
