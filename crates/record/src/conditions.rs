//! Load of the host during a measurement, and the thresholds above which a result is unsound.
//! Warnings of records, tables, answers and the page all use these decisions.
//!
//! The accounts are those of `/proc/stat`, in ticks of 10 ms (man proc_stat). A share is only
//! compared with its threshold beyond two ticks of each CPU, because ticks dominate short points.
//! Several records are judged by their sum.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::{Lane, RunRecord};

/// Other programs' share of the CPUs of the lanes above which a result is unsound.
pub(crate) const FOREIGN_ON_USED: f64 = 0.05;
/// Other programs' share of all CPUs above which a result is unsound: they share caches, memory and
/// clock speed with the lanes.
pub const FOREIGN_ON_ALL: f64 = 0.10;
pub(crate) const STOLEN: f64 = 0.02;
/// Change of the CPUs' speed over the timed steps, as a fraction, above which a result is unsound.
pub(crate) const SPEED: f64 = 0.05;
pub(crate) const DISTURBED_POINTS: f64 = 0.10;

/// Tick of `/proc/stat` in nanoseconds: USER_HZ is 100 on every current architecture.
const TICK_NS: f64 = 1e7;
/// Error of a CPU's account in ticks: one at each end.
const TICKS: f64 = 2.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Disturbance {
    ForeignOnUsed(f64),
    ForeignOnAll(f64),
    Stolen(f64),
    /// Slowdown of the CPUs over the timed steps (below zero: faster).
    Speed(f64),
}

impl Disturbance {
    pub fn name(self) -> &'static str {
        match self {
            Disturbance::ForeignOnUsed(_) | Disturbance::ForeignOnAll(_) => "foreign load",
            Disturbance::Stolen(_) => "stolen time",
            Disturbance::Speed(_) => "clock speed",
        }
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (who, whose, share) = match *self {
            Disturbance::ForeignOnUsed(share) => {
                ("other programs", "the CPUs that were used", share)
            }
            Disturbance::ForeignOnAll(share) => ("other programs", "all CPUs", share),
            Disturbance::Stolen(share) => ("the hypervisor", "the CPUs that were used", share),
            Disturbance::Speed(change) => {
                let how = if change > 0.0 { "slower" } else { "faster" };
                let percent = change.abs() * 100.0;
                return write!(
                    f,
                    "the CPUs became {percent:.0} % {how} during the timed steps: fix their frequency, or cool them"
                );
            }
        };
        let percent = share * 100.0;
        write!(f, "{who} took {percent:.0} % of the time of {whose}: repeat on a quiet host")
    }
}

/// Available CPU time and its users, in nanoseconds; of one record or summed over several.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    available_ns: f64,
    taken_ns: f64,
    /// Squared error of the ticks: errors of records are independent.
    error_ns2: f64,
}

impl Account {
    fn new(available_ns: f64, taken_ns: f64, cpus: usize) -> Account {
        Account { available_ns, taken_ns, error_ns2: (TICKS * TICK_NS * cpus as f64).powi(2) }
    }

    fn add(&mut self, other: Account) {
        self.available_ns += other.available_ns;
        self.taken_ns += other.taken_ns;
        self.error_ns2 += other.error_ns2;
    }

    /// Returns the share if it exceeds the threshold by more than the error of the ticks.
    fn beyond(&self, threshold: f64) -> Option<f64> {
        let least_ns = self.taken_ns - self.error_ns2.sqrt();
        let is_beyond = self.available_ns > 0.0 && least_ns > threshold * self.available_ns;
        is_beyond.then(|| self.taken_ns / self.available_ns)
    }
}

/// Time of other programs on the used CPUs and on all, and stolen time on the used ones.
#[derive(Clone, Copy, Debug, Default)]
struct Accounts([Account; 3]);

impl Accounts {
    /// Returns the accounts of a record with timed lanes; `None` for others, such as observations
    /// of other programs.
    fn of(record: &RunRecord) -> Option<Accounts> {
        let has_samples = |lane: &Lane| lane.stages.iter().any(|stage| !stage.sample_ns.is_empty());
        if record.wall_ns == 0 || !record.lanes.iter().any(has_samples) {
            return None;
        }
        let used: BTreeSet<u32> =
            record.lanes.iter().flat_map(|lane| lane.seen_cpus.iter().copied()).collect();
        let cpu = &record.host_cpu;
        let own_ns = record.process_cpu.total_ns() as f64;
        let on_used = |times: &BTreeMap<u32, u64>| -> f64 {
            used.iter().filter_map(|cpu| times.get(cpu)).map(|&ns| ns as f64).sum()
        };
        let available_ns = record.wall_ns as f64 * used.len() as f64;
        // Older records have no busy time of single CPUs.
        let foreign_on_used = if cpu.busy_by_cpu_ns.is_empty() {
            Account::default()
        } else {
            let foreign_ns = on_used(&cpu.busy_by_cpu_ns) - own_ns;
            Account::new(available_ns, foreign_ns, used.len())
        };
        let busy_ns = cpu.user_ns as f64 + cpu.system_ns as f64;
        let interrupts_ns = cpu.irq_ns as f64 + cpu.softirq_ns as f64;
        let away_ns = cpu.steal_ns as f64 + cpu.iowait_ns as f64 + cpu.idle_ns as f64;
        let all_ns = busy_ns + interrupts_ns + away_ns;
        let cpus = record.host.logical_cpus.max(1) as usize;
        Some(Accounts([
            foreign_on_used,
            Account::new(all_ns, busy_ns - own_ns, cpus),
            Account::new(available_ns, on_used(&cpu.steal_by_cpu_ns), used.len()),
        ]))
    }

    /// Returns each share above its threshold; of the two shares of other programs only one.
    fn judged(&self) -> Vec<Disturbance> {
        let [on_used, on_all, stolen] = &self.0;
        let on_used = on_used.beyond(FOREIGN_ON_USED).map(Disturbance::ForeignOnUsed);
        let foreign = on_used.or(on_all.beyond(FOREIGN_ON_ALL).map(Disturbance::ForeignOnAll));
        let stolen = stolen.beyond(STOLEN).map(Disturbance::Stolen);
        foreign.into_iter().chain(stolen).collect()
    }
}

/// Returns the largest change of speed of a lane, as a fraction of its first speed; `None` if it
/// was not measured.
fn speed_change(record: &RunRecord) -> Option<f64> {
    let change = |lane: &Lane| match lane.reference_ns[..] {
        [before, after] if before > 0 => Some(after as f64 / before as f64 - 1.0),
        _ => None,
    };
    record.lanes.iter().filter_map(change).max_by(|a, b| a.abs().total_cmp(&b.abs()))
}

/// Returns the causes that make a record unsound; empty if it is sound, or too short for a verdict.
pub fn of(record: &RunRecord) -> Vec<Disturbance> {
    Accounts::of(record).map_or(Vec::new(), |accounts| judged(record, &accounts))
}

fn judged(record: &RunRecord, accounts: &Accounts) -> Vec<Disturbance> {
    let speed = speed_change(record).filter(|change| change.abs() > SPEED);
    let mut found = accounts.judged();
    found.extend(speed.map(Disturbance::Speed));
    found
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    pub disturbances: Vec<Disturbance>,
    pub disturbed: usize,
    pub points: usize,
}

impl Conditions {
    pub fn of(records: &[RunRecord]) -> Conditions {
        let mut sum = Accounts::default();
        let mut found = Conditions::default();
        for record in records {
            let Some(accounts) = Accounts::of(record) else {
                continue;
            };
            found.points += 1;
            found.disturbed += usize::from(!judged(record, &accounts).is_empty());
            sum.0.iter_mut().zip(accounts.0).for_each(|(sum, account)| sum.add(account));
        }
        found.disturbances = sum.judged();
        found
    }

    pub fn are_unsound(&self) -> bool {
        !self.disturbances.is_empty()
            || self.disturbed as f64 > DISTURBED_POINTS * self.points as f64
    }

    pub fn line(&self) -> Option<String> {
        let points = format!(
            "disturbed by foreign load, stolen time or a change of the CPU's speed: {} of {}",
            self.disturbed,
            crate::units::plural(self.points as u64, "point")
        );
        let whole: Vec<String> = self.disturbances.iter().map(Disturbance::to_string).collect();
        match (whole.is_empty(), self.disturbed) {
            (true, 0) => None,
            (true, _) => Some(points),
            (false, _) => Some(format!("{}; {points}", whole.join("; "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuTime, Host, Stage};

    const SECOND: u64 = 1_000_000_000;

    /// A lane on CPU 0 of two for ten seconds, the other CPU idle; by itself undisturbed.
    fn quiet() -> RunRecord {
        let mut record = RunRecord {
            wall_ns: 10 * SECOND,
            process_cpu: CpuTime { user_ns: 10 * SECOND, system_ns: 0 },
            host: std::sync::Arc::new(Host { logical_cpus: 2, ..Host::default() }),
            ..RunRecord::default()
        };
        record.host_cpu.user_ns = 10 * SECOND;
        record.host_cpu.idle_ns = 10 * SECOND;
        record.host_cpu.busy_by_cpu_ns.insert(0, 10 * SECOND);
        record.lanes.push(Lane {
            seen_cpus: vec![0],
            reference_ns: vec![100_000, 101_000],
            stages: vec![Stage { sample_ns: vec![SECOND], ..Stage::default() }],
            ..Lane::default()
        });
        record
    }

    fn beside(ns: u64) -> RunRecord {
        let mut record = quiet();
        record.host_cpu.user_ns += ns;
        record.host_cpu.idle_ns -= ns;
        record.host_cpu.busy_by_cpu_ns.insert(1, ns);
        record
    }

    fn in_the_way(ns: u64) -> RunRecord {
        let mut record = quiet();
        record.process_cpu.user_ns -= ns;
        record
    }

    #[test]
    fn a_quiet_host_disturbs_nothing() {
        assert_eq!(of(&quiet()), []);
        assert_eq!(of(&RunRecord::default()), []);
        assert_eq!(Conditions::of(&[quiet(), quiet()]).line(), None);
        assert_eq!(Conditions::of(&[]), Conditions::default());
    }

    #[test]
    fn foreign_load_is_held_against_the_cpus_that_were_used_and_against_all() {
        assert_eq!(of(&in_the_way(SECOND)), [Disturbance::ForeignOnUsed(0.1)]);
        assert_eq!(of(&in_the_way(SECOND / 2)), [], "the ticks may explain it");
        assert_eq!(of(&beside(3 * SECOND)), [Disturbance::ForeignOnAll(0.15)]);
        assert_eq!(of(&beside(SECOND)), []);
        // Older records have only the sum over the host.
        let mut older = in_the_way(5 * SECOND);
        older.host_cpu.busy_by_cpu_ns.clear();
        assert_eq!(of(&older), [Disturbance::ForeignOnAll(0.25)]);
    }

    #[test]
    fn stolen_time_and_a_change_of_speed_disturb() {
        let mut record = quiet();
        record.host_cpu.steal_by_cpu_ns.insert(0, SECOND);
        record.host_cpu.steal_by_cpu_ns.insert(1, 9 * SECOND);
        record.lanes[0].reference_ns = vec![100_000, 120_000];
        let found = of(&record);
        assert_eq!(found[0], Disturbance::Stolen(0.1));
        assert!(found[1].to_string().contains("20 % slower"), "{found:?}");
        record.lanes[0].reference_ns = vec![100_000, 80_000];
        assert!(of(&record)[1].to_string().contains("20 % faster"));
    }

    #[test]
    fn what_watches_other_programs_is_not_disturbed_by_them() {
        let mut record = beside(9 * SECOND);
        record.lanes[0].stages.clear();
        assert_eq!(of(&record), []);
    }

    #[test]
    fn points_too_short_to_be_judged_are_judged_together() {
        let mut short = in_the_way(0);
        (short.wall_ns, short.process_cpu.user_ns) = (SECOND / 10, SECOND / 12);
        short.host_cpu.busy_by_cpu_ns.insert(0, SECOND / 10);
        (short.host_cpu.user_ns, short.host_cpu.idle_ns) = (SECOND / 10, SECOND / 10);
        assert_eq!(of(&short), []);
        let many = Conditions::of(&vec![short; 100]);
        assert!(
            matches!(many.disturbances[..], [Disturbance::ForeignOnUsed(share)] if (share - 1.0 / 6.0).abs() < 1e-6),
            "{many:?}"
        );
        assert!(many.are_unsound());
    }

    #[test]
    fn a_few_disturbed_points_are_counted_and_many_are_unsound() {
        let of_points = |disturbed: usize| {
            let mut records = vec![quiet(); 20 - disturbed];
            records.extend(vec![in_the_way(SECOND * 4 / 5); disturbed]);
            Conditions::of(&records)
        };
        let few = of_points(1);
        assert!(!few.are_unsound());
        assert_eq!(
            few.line().unwrap(),
            "disturbed by foreign load, stolen time or a change of the CPU's speed: 1 of 20 points"
        );
        assert!(of_points(3).are_unsound());
        let all = of_points(20).line().unwrap();
        assert!(all.starts_with("other programs took 8 % of the time of the CPUs"), "{all}");
    }
}
