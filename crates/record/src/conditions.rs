//! Time that others took from the CPUs of a record, by the accounts of `/proc/stat`. They count in
//! ticks of 10 ms (man proc_stat), so that a share is known only beyond two ticks of each CPU.

use std::collections::{BTreeMap, BTreeSet};

use crate::units::{show_ns, significant};
use crate::{Lane, RunRecord};

/// Tick of `/proc/stat` in nanoseconds: USER_HZ is 100 on every current architecture.
const TICK_NS: f64 = 1e7;
/// Error of a CPU's account in ticks: one at each end.
const TICKS: f64 = 2.0;
/// Share from which work of whole CPUs, such as a chain's, does not show what it can do.
const TAKEN: f64 = 0.05;

/// CPUs that others took from measurements on average, and the time in which these stood still.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Taken {
    /// CPUs that the measurements could use.
    pub cpus: f64,
    /// CPUs that other programs used, less the error of the ticks.
    pub by_programs: f64,
    /// CPUs that the hypervisor took.
    pub by_hypervisor: f64,
    pub stood_still_ns: u64,
}

impl Taken {
    /// Sums over records that ran one after the other, on the CPUs of [`pinned`] lanes or else on
    /// all CPUs of the host.
    pub fn from<R: std::borrow::Borrow<RunRecord>>(
        records: &[R],
        used: Option<&BTreeSet<u32>>,
    ) -> Taken {
        let is_used = |cpu: u32| used.is_none_or(|cpus| cpus.contains(&cpu));
        let of_used = |times: &BTreeMap<u32, u64>| -> f64 {
            times.iter().filter(|(cpu, _)| is_used(**cpu)).map(|(_, ns)| *ns as f64).sum()
        };
        let of_host =
            || records.first().map_or(0.0, |first| f64::from(first.borrow().host.logical_cpus));
        let cpus = used.map_or_else(of_host, |used| used.len() as f64);
        let (mut foreign_ns, mut stolen_ns, mut wall_ns, mut stood_still_ns) = (0.0, 0.0, 0.0, 0);
        for record in records {
            let RunRecord { host_cpu, process_cpu, wall_ns: own_ns, .. } = record.borrow();
            let own = process_cpu.total_ns().saturating_add(host_cpu.peers_ns);
            foreign_ns += of_used(&host_cpu.busy_by_cpu_ns) - own as f64;
            stolen_ns += of_used(&host_cpu.steal_by_cpu_ns);
            wall_ns += *own_ns as f64;
            stood_still_ns += host_cpu.stood_still_ns;
        }
        // Errors of the ticks of several records cancel.
        let error_ns = TICKS * TICK_NS * cpus * (records.len() as f64).sqrt();
        let mean = |ns: f64| if wall_ns > 0.0 { (ns - error_ns).max(0.0) / wall_ns } else { 0.0 };
        let [by_programs, by_hypervisor] = [foreign_ns, stolen_ns].map(mean);
        if (stood_still_ns as f64) < wall_ns * MIN_STANDSTILL {
            stood_still_ns = 0;
        }
        Taken { cpus, by_programs, by_hypervisor, stood_still_ns }
    }

    /// Tests if others took so little that rates are not visibly low.
    pub fn is_little(&self) -> bool {
        self.by_programs + self.by_hypervisor <= self.cpus * WORTH
    }

    /// Says what disturbed the measurements, and by which factor their rates may be low; `None` for
    /// less than a tenth.
    pub fn text(&self) -> Option<String> {
        let Taken { cpus, by_programs, by_hypervisor, stood_still_ns } = *self;
        let all = if cpus == 1.0 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") };
        let by = [("other programs used", by_programs), ("the hypervisor took", by_hypervisor)];
        let worth = by.into_iter().filter(|(_, taken)| *taken > cpus * WORTH / 2.0);
        let each = worth.map(|(who, taken)| format!("{who} {} of {all}", significant(taken, 2)));
        let each = each.collect::<Vec<_>>().join(", ");
        let factor = cpus / (cpus - by_programs - by_hypervisor).max(cpus / MAX_FACTOR);
        let factor = significant(factor, 2);
        let who = (!self.is_little())
            .then(|| format!("{each}: rates may be low by up to a factor of {factor}"));
        let still = (stood_still_ns > 0).then(|| {
            format!(
                "this program stood still for {}: rates are low by that",
                show_ns(stood_still_ns as f64)
            )
        });
        let all: Vec<String> = [who, still].into_iter().flatten().collect();
        (!all.is_empty()).then(|| format!("disturbed: {}", all.join("; ")))
    }
}

/// Returns the CPUs of the lanes if each was pinned.
pub fn pinned(records: &[RunRecord]) -> Option<BTreeSet<u32>> {
    let lanes = records.iter().flat_map(|record| &record.lanes);
    let pinned: Option<BTreeSet<u32>> = lanes.map(|lane| lane.requested_cpu).collect();
    pinned.filter(|cpus| !cpus.is_empty())
}

/// Share of the time from which a standstill is worth a line: a short wait for a quota is not.
const MIN_STANDSTILL: f64 = 0.01;
/// Share of the CPUs from which rates are visibly low.
const WORTH: f64 = 0.1;
/// Beyond it ticks do not tell factors apart.
const MAX_FACTOR: f64 = 20.0;

/// Returns the share of the time of its CPUs that others took from a record; 0 without timed lanes.
fn taken(record: &RunRecord) -> f64 {
    let has_samples = |lane: &Lane| lane.stages.iter().any(|stage| !stage.sample_ns.is_empty());
    let seen = record.lanes.iter().flat_map(|lane| lane.seen_cpus.iter().copied());
    let seen: BTreeSet<u32> = seen.collect();
    let taken = Taken::from(std::slice::from_ref(record), Some(&seen));
    let is_known = !seen.is_empty() && record.lanes.iter().any(has_samples);
    if is_known { (taken.by_programs + taken.by_hypervisor) / taken.cpus } else { 0.0 }
}

/// Tests if others took so much that a record of whole CPUs does not show what they can do.
pub fn is_disturbed(record: &RunRecord) -> bool {
    taken(record) > TAKEN
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
    fn a_screen_says_by_which_factor_rates_may_be_low_and_for_how_long_nothing_ran() {
        let text = |change: &dyn Fn(&mut RunRecord)| {
            let mut record = quiet();
            Arc::make_mut(&mut record.host).logical_cpus = 2;
            record.host_cpu.busy_by_cpu_ns = [(0, 10 * SECOND), (1, 10 * SECOND)].into();
            change(&mut record);
            Taken::from(&[record], None).text()
        };
        let wanted =
            "disturbed: other programs used 1 of 2 CPUs: rates may be low by up to a factor of 2";
        assert_eq!(text(&|_| ()).as_deref(), Some(wanted));
        assert_eq!(text(&|record| record.host_cpu.peers_ns = 9 * SECOND), None);
        let still = text(&|record| {
            record.host_cpu.peers_ns = 10 * SECOND;
            record.host_cpu.stood_still_ns = 4 * SECOND;
        });
        let wanted = "disturbed: this program stood still for 4 s: rates are low by that";
        assert_eq!(still.as_deref(), Some(wanted));
        let stolen = text(&|record| {
            record.host_cpu.busy_by_cpu_ns = [(0, 10 * SECOND)].into();
            record.host_cpu.steal_by_cpu_ns = [(1, 9 * SECOND)].into();
        });
        let wanted = "disturbed: the hypervisor took 0.9 of 2 CPUs: rates may be low by up to a factor of 1.8";
        assert_eq!(stolen.as_deref(), Some(wanted));
    }

    #[test]
    fn what_others_take_from_the_used_cpus_counts_beyond_the_ticks() {
        assert_eq!(taken(&quiet()), 0.0);
        assert_eq!(taken(&RunRecord::default()), 0.0);
        let mut beside = quiet();
        beside.process_cpu.user_ns = 9 * SECOND;
        assert!((taken(&beside) - 0.098).abs() < 1e-9, "{}", taken(&beside));
        assert!(is_disturbed(&beside));
        let mut stolen = quiet();
        stolen.host_cpu.steal_by_cpu_ns = [(0, SECOND), (1, 9 * SECOND)].into();
        assert!((taken(&stolen) - 0.098).abs() < 1e-9);
        let mut watched = beside;
        watched.lanes[0].stages.clear();
        assert!(!is_disturbed(&watched));
    }
}
