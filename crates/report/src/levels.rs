//! Levels of the points of records: what is compared, and what tables show as the time of an
//! operation. See [`daqmeter_stats::Level`].

use std::collections::HashMap;

use daqmeter_record::conditions::Taken;
use daqmeter_record::units::significant;
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{Level, SliceTime, Summary, least_sibling, median, quantile, sorted};

use serde::Serialize;

use crate::families;
use crate::family::Work;
use crate::groups::in_groups;
use crate::points::{Runs, StagePoint, points_of, runs_by_point, runs_of_lanes};
use crate::samples::{mean_ns, outcome_of, stages};

/// Time of a point that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Finding {
    /// A low quantile: the work itself.
    Level,
    /// The mean, which includes all pauses of data that several threads or a disk move.
    Sustained,
    /// CPU time in a second, of work that waits for its triggers.
    Cpu,
}

impl Finding {
    fn of(record: &RunRecord, stage: &Stage) -> Finding {
        match families::work(record) {
            _ if families::is_idle(record) => Finding::Cpu,
            Work::Threads | Work::Streams | Work::Disk if stage.bytes_per_op > 0 => {
                Finding::Sustained
            }
            _ => Finding::Level,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Finding::Level => "level",
            Finding::Sustained => "sustained",
            Finding::Cpu => "cpu",
        }
    }
}

/// Ratios of the probes on a host while the sibling of the core is idle.
struct IdleRatios {
    /// That after most points.
    usual: Option<f64>,
    /// That after each point, which is less where non-temporal stores end during the first probe.
    own: HashMap<StagePoint, f64>,
}

impl IdleRatios {
    fn of<'a>(records: impl IntoIterator<Item = &'a RunRecord>) -> IdleRatios {
        let stages = records.into_iter().flat_map(points_of).filter(|(_, stage)| is_probed(stage));
        let least = in_groups(stages).into_iter().filter_map(|(point, stages)| {
            let slices: Vec<SliceTime> = stages.into_iter().flat_map(Stage::slices).collect();
            Some((point, least_sibling(&slices)?))
        });
        let own: HashMap<StagePoint, f64> = least.collect();
        IdleRatios { usual: median(&own.values().copied().collect::<Vec<f64>>()), own }
    }

    fn after(&self, point: &StagePoint) -> Option<f64> {
        let usual = self.usual?;
        // Beside some points the sibling is never idle.
        Some(self.own.get(point).map_or(usual, |own| own.min(usual)))
    }

    /// Returns the part of the slices beside a busy sibling.
    fn beside<'a>(&self, records: impl IntoIterator<Item = &'a RunRecord>) -> f64 {
        let stages = records.into_iter().flat_map(points_of).filter(|(_, stage)| is_probed(stage));
        let is_busy = stages.flat_map(|(point, stage)| {
            let idle = self.after(&point);
            let probed = stage.slices().filter(|slice| slice.chain_ns.is_some());
            probed.map(move |slice| f64::from(u8::from(!slice.has_idle_sibling(idle))))
        });
        Summary::of(&is_busy.collect::<Vec<f64>>()).map_or(0.0, |all| all.mean)
    }
}

/// Tests if the slices of a stage show the sibling: the thread of work that waits gives its CPU
/// away in each.
fn is_probed(stage: &Stage) -> bool {
    stage.slices.lost.len() * 10 < stage.slices.samples.len() * 9
}

/// Levels of invocations of a host, by the time of their begin.
pub(crate) struct Levels<'a> {
    hosts: HashMap<String, IdleRatios>,
    /// By invocation.
    others: HashMap<String, Others>,
    points: Vec<(StagePoint, Runs<'a>)>,
}

/// Level of one invocation.
#[derive(Clone, Debug)]
pub(crate) struct Invocation<'a> {
    pub(crate) first: &'a RunRecord,
    pub(crate) level: Level,
    pub(crate) used: PointUse,
    pub(crate) others: Others,
}

/// Use of the host by others during an invocation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Others {
    /// Share of the CPUs that other programs and the hypervisor had.
    pub(crate) cpus: f64,
    /// Part of the slices beside a busy sibling, which other machines use.
    pub(crate) beside: f64,
}

impl Others {
    /// Returns the share of what a point used.
    pub(crate) fn of(self, used: PointUse) -> f64 {
        if used == PointUse::Memory { self.cpus.max(self.beside) } else { self.cpus }
    }
}

/// Resource that the times of a point depend on beside its own CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointUse {
    /// Nothing.
    Cpu,
    /// Sockets and the scheduler between two of their ends.
    Sockets,
    /// Memory or a cache that the CPUs of a machine share.
    Memory,
    /// Several CPUs, or all the time of one.
    Cpus,
    /// Two CPUs that idle until the other end wakes them: beside load they are faster, too.
    Ends,
    Disk,
}

impl PointUse {
    fn of(record: &RunRecord, stage: &Stage, finding: Finding) -> PointUse {
        let own_bytes = record.host.private_cache_bytes().unwrap_or(MEMORY_BYTES);
        let is_large = stage.traffic_bytes_per_op.max(stage.bytes_per_op) > own_bytes
            || families::is_uncached(record, stage);
        match (families::work(record), finding) {
            (Work::Disk, _) if !record.workload.flag("cached") => PointUse::Disk,
            (
                Work::Sockets | Work::Threads | Work::Streams,
                Finding::Level | Finding::Sustained,
            ) if record.workload.int("peer_cpu").is_ok() => PointUse::Ends,
            (_, Finding::Sustained | Finding::Cpu) => PointUse::Cpus,
            (Work::Sockets, Finding::Level) => PointUse::Sockets,
            (_, Finding::Level) if is_large => PointUse::Memory,
            (_, Finding::Level) => PointUse::Cpu,
        }
    }

    /// Returns the standard deviation, as logarithm, between invocations beyond what their
    /// instances show, by files of `quick` and of `survey`, see METHODOLOGY.
    pub(crate) fn beyond(self) -> f64 {
        match self {
            PointUse::Cpu => 0.0,
            PointUse::Sockets => 0.007,
            PointUse::Memory => 0.04,
            PointUse::Cpus | PointUse::Ends => 0.05,
            PointUse::Disk => 0.15,
        }
    }

    /// Returns the logarithm of the factor by which others with that share of the CPUs may have
    /// slowed it.
    fn slowed(self, others: f64) -> f64 {
        match self {
            PointUse::Cpu | PointUse::Sockets => others * BESIDE.ln(),
            PointUse::Memory => others * PROGRAMS.ln(),
            PointUse::Cpus | PointUse::Ends | PointUse::Disk => -(1.0 - others).max(0.01).ln(),
        }
    }
}

/// Returns the logarithms of the factors by which others may have slowed all invocations of A and
/// of B, beyond what both levels show.
pub(crate) fn slowed(sides: [&[Invocation<'_>]; 2]) -> [f64; 2] {
    let by_programs = |side: &[Invocation<'_>]| {
        let slowed = side.iter().map(|own| own.used.slowed(own.others.cpus));
        slowed.fold(f64::INFINITY, f64::min)
    };
    let beside = |side: &[Invocation<'_>]| {
        let is_memory = side.iter().filter(|own| own.used == PointUse::Memory);
        let beside: Vec<f64> = is_memory.map(|own| own.others.beside).collect();
        Summary::of(&beside).map_or(0.0, |all| all.mean)
    };
    let beside = sides.map(beside);
    // Other machines slow both sides, and the one beside which they do more the more.
    let by_machines = |side: usize| (beside[side] - beside[1 - side]).max(0.0) * MACHINES.ln();
    let programs = sides.map(by_programs);
    let by_programs = |side: usize| match sides[side][0].used {
        PointUse::Ends => programs[0].max(programs[1]),
        _ => programs[side],
    };
    [0, 1].map(|side| by_programs(side) + by_machines(side))
}

/// Returns the same for all runs of one host, beside the usual part of busy siblings on others.
pub(crate) fn slowed_among(used: PointUse, own: &[Others], usual_beside: f64) -> f64 {
    let programs = own.iter().map(|others| used.slowed(others.cpus)).fold(f64::INFINITY, f64::min);
    let beside = own.iter().map(|others| others.beside).fold(f64::INFINITY, f64::min);
    let machines = if used == PointUse::Memory { (beside - usual_beside).max(0.0) } else { 0.0 };
    programs + machines * MACHINES.ln()
}

/// Share of the CPUs that others had, from which they are a reason.
pub(crate) const MANY: f64 = 0.05;
/// Factor that interrupts and caches for other programs take from slices that these did not touch.
const BESIDE: f64 = 1.01;
/// Factors that the memory is slower by, while programs use all CPUs (1.98 in the slowest of 14
/// files of `quick` beside two compressors), and while other machines use all siblings (slopes of
/// 0.44 and 0.57 of its logarithm over 23 files).
const PROGRAMS: f64 = 2.0;
const MACHINES: f64 = 1.7;

impl<'a> Levels<'a> {
    /// Groups records that were done. `all` are all that tell about the hosts.
    pub(crate) fn of(records: &'a [RunRecord], all: &[&[RunRecord]]) -> Levels<'a> {
        let all = all.iter().copied().flatten().map(|record| (record.host.label(), record));
        let hosts = in_groups(all).into_iter().map(|(host, all)| (host, IdleRatios::of(all)));
        let hosts: HashMap<String, IdleRatios> = hosts.collect();
        let runs = in_groups(records.iter().map(|record| (record.run_id.clone(), record)));
        let others = runs.into_iter().map(|(run, records)| {
            let Taken { cpus, by_programs, by_hypervisor, .. } = Taken::from(&records, None);
            let cpus = (by_programs + by_hypervisor) / cpus.max(1.0);
            let idle = hosts.get(&records[0].host.label());
            let beside = idle.map_or(0.0, |idle| idle.beside(records));
            (run, Others { cpus, beside })
        });
        let others = others.collect();
        Levels { hosts, others, points: runs_by_point(records) }
    }

    /// Returns the points and their findings, each with its invocations in the order of time.
    pub(crate) fn findings(&self) -> Vec<((StagePoint, Finding), Vec<Invocation<'a>>)> {
        let of_point = |(point, runs): &(StagePoint, Runs<'a>)| {
            let (record, stage) = *runs.first()?;
            let finding = Finding::of(record, stage);
            let found = self.invocations(point, runs, finding);
            (!found.is_empty()).then(|| ((point.clone(), finding), found))
        };
        self.points.iter().filter_map(of_point).collect()
    }

    fn invocations(
        &self,
        point: &StagePoint,
        runs: &Runs<'a>,
        finding: Finding,
    ) -> Vec<Invocation<'a>> {
        let groups = in_groups(runs.iter().map(|run| (run.0.run_id.as_str(), *run)));
        let level = |(_, runs): (_, Runs<'a>)| {
            let (first, _) = *runs.iter().min_by_key(|(record, _)| record.time_utc.as_str())?;
            let stages: Vec<&Stage> = runs.into_iter().map(|(_, stage)| stage).collect();
            let idle = self.hosts.get(&first.host.label()).and_then(|host| host.after(point));
            let waits = families::work(first) != Work::Cpu;
            let level = Level::of(&repetitions(&stages, finding)?, idle, waits)?;
            let used = PointUse::of(first, stages[0], finding);
            let others = self.others.get(&first.run_id).copied().unwrap_or_default();
            Some(Invocation { first, level, used, others })
        };
        let mut found: Vec<Invocation<'a>> = groups.into_iter().filter_map(level).collect();
        found.sort_by(|a, b| a.first.time_utc.cmp(&b.first.time_utc));
        found
    }
}

/// Returns the times of each repetition of an invocation; `None` for a finding that its stages do
/// not support.
fn repetitions(stages: &[&Stage], finding: Finding) -> Option<Vec<Vec<SliceTime>>> {
    let slices = |stage: &&Stage| stage.slices().collect::<Vec<_>>();
    let chain = |stage: &Stage| {
        median(&stage.slices().filter_map(|slice| slice.chain_ns).collect::<Vec<_>>())
    };
    let mean_of = |stage: &Stage, op_ns: f64| {
        vec![SliceTime { op_ns, chain_ns: chain(stage), ..SliceTime::default() }]
    };
    match finding {
        Finding::Level => Some(stages.iter().map(slices).collect()),
        Finding::Sustained => {
            let mean = |stage: &&Stage| Some(mean_of(stage, mean_ns(stage)? * stage.longer()));
            stages.iter().map(mean).collect()
        }
        Finding::Cpu => {
            let used = |stage: &&Stage| {
                let ns = stage.end_ns.saturating_sub(stage.start_ns).max(1) as f64;
                mean_of(stage, stage.cpu.total_ns() as f64 / ns * 1e9)
            };
            Some(stages.iter().map(used).collect())
        }
    }
}

/// Time of an operation for a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ShownLevel {
    pub(crate) ns: f64,
    /// 95 % interval, from the repetitions.
    pub(crate) interval: (f64, f64),
}

impl ShownLevel {
    /// Half of an interval, as a fraction, up to which repetitions agree.
    const AGREED: f64 = 0.1;

    pub(crate) fn agrees(self) -> bool {
        self.interval.1 <= self.ns * (1.0 + ShownLevel::AGREED)
    }
}

/// Times of the points of records, by invocation.
pub(crate) struct ShownLevels(HashMap<(String, StagePoint), ShownLevel>);

impl ShownLevels {
    pub(crate) fn of(records: &[RunRecord]) -> ShownLevels {
        let mut levels = Levels::of(records, &[records]);
        // A lane that was done has its time, whatever happened to its neighbours.
        levels.points = runs_of_lanes(records, |record, lane| outcome_of(record, lane).is_ok());
        let clocks = usual_chains_ns(records);
        let of_point = |(point, runs): &(StagePoint, Runs<'_>)| {
            let invocations = levels.invocations(point, runs, Finding::Level).into_iter();
            let shown = |Invocation { first, level, .. }: Invocation<'_>| {
                let (ns, interval) = level.shown(clocks.get(&first.host.label()).copied());
                ((first.run_id.clone(), point.clone()), ShownLevel { ns, interval })
            };
            invocations.map(shown).collect::<Vec<_>>()
        };
        ShownLevels(levels.points.iter().flat_map(of_point).collect())
    }

    /// Returns the level of the stage of that point.
    pub(crate) fn get(&self, record: &RunRecord, point: &StagePoint) -> Option<ShownLevel> {
        self.0.get(&(record.run_id.clone(), point.clone())).copied()
    }
}

/// Returns the usual time of the chain on each host that has any.
fn usual_chains_ns(records: &[RunRecord]) -> HashMap<String, f64> {
    let chains = records.iter().map(|record| {
        let own = all_slices(std::slice::from_ref(record)).filter_map(|(_, slice)| slice.chain_ns);
        (record.host.label(), own)
    });
    let median = |own: Vec<_>| median(&own.into_iter().flatten().collect::<Vec<f64>>());
    in_groups(chains).into_iter().filter_map(|(host, own)| Some((host, median(own)?))).collect()
}

fn all_slices(records: &[RunRecord]) -> impl Iterator<Item = (&RunRecord, SliceTime)> {
    records.iter().flat_map(|record| {
        let probed = stages(record).filter(|stage| is_probed(stage));
        probed.flat_map(move |stage| stage.slices().map(move |slice| (record, slice)))
    })
}

/// Describes the host during its records: clock, lost CPUs, siblings. `None` without slices.
pub(crate) fn host_line(records: &[RunRecord]) -> Option<String> {
    let slices: Vec<(&RunRecord, SliceTime)> = all_slices(records).collect();
    if slices.is_empty() {
        return None;
    }
    let lost = slices.iter().filter(|(_, slice)| slice.is_lost).count() as f64;
    let ghz = slices
        .iter()
        .filter_map(|(record, slice)| Some(record.clock.chain_cycles as f64 / slice.chain_ns?));
    let ghz = sorted(&ghz.collect::<Vec<_>>());
    let clock = match [0.05, 0.5, 0.95].map(|q| quantile(&ghz, q)) {
        [Some(low), Some(usual), Some(high)] => {
            format!("CPU clock {low:.2} to {high:.2} GHz, times are for {usual:.2} GHz")
        }
        _ => "CPU clock unknown".to_owned(),
    };
    let [lost, beside] = [lost / slices.len() as f64, IdleRatios::of(records).beside(records)];
    let [lost, beside] = [lost, beside].map(|share| significant(share * 100.0, 2));
    let memory = memory_range(records).map_or(String::new(), |[low, high]| {
        format!("; memory time {low:.2} to {high:.2} of the median")
    });
    Some(format!(
        "host: {clock}; {lost} % of the slices lost the CPU, {beside} % shared the core{memory}"
    ))
}

/// Bytes of an operation in the memory, or in a cache that others share.
const MEMORY_BYTES: u64 = 32_000_000;

/// Returns the range of the times of such operations over their medians, without a tenth of them.
fn memory_range(records: &[RunRecord]) -> Option<[f64; 2]> {
    let stages = records.iter().flat_map(stages);
    let stages = stages.filter(|stage| stage.bytes_per_op >= MEMORY_BYTES);
    let over_median = stages.flat_map(|stage| {
        let times: Vec<f64> = stage.slices().map(|slice| slice.op_ns).collect();
        let usual = median(&times).filter(|usual| *usual > 0.0);
        times.into_iter().filter_map(move |ns| Some(ns / usual?))
    });
    let all = sorted(&over_median.collect::<Vec<_>>());
    Some([quantile(&all, 0.05)?, quantile(&all, 0.95)?])
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{EngineInfo, Lane, Slices, Workload};

    use super::*;

    #[test]
    fn memory_s_range_is_that_of_large_operations_over_their_median() {
        let record = |bytes_per_op| {
            let mut record = RunRecord::new(EngineInfo::default(), Workload::default());
            let sample_ns = (80..=120).map(|percent| percent * 100_000).collect();
            let stage = Stage { bytes_per_op, ops_per_sample: 1, sample_ns, ..Stage::default() };
            record.lanes.push(Lane { stages: vec![stage], ..Lane::default() });
            record
        };
        assert_eq!(memory_range(&[record(1 << 20)]), None);
        let found = memory_range(&[record(64 << 20), record(1 << 20)]).unwrap();
        assert!((found[0] - 0.82).abs() < 0.005 && (found[1] - 1.18).abs() < 0.005, "{found:?}");
    }

    #[test]
    fn memory_may_be_slower_by_what_more_slices_were_beside_a_busy_sibling() {
        let side = |bytes_per_op, busy| {
            let engine = EngineInfo { name: "memory".into(), ..EngineInfo::default() };
            let mut record = RunRecord::new(engine, Workload::default());
            record.run_id = format!("{busy}");
            let slices = Slices {
                samples: vec![1; 40],
                gap_ns: vec![9000; 40],
                chain_ns: vec![3000; 40],
                sibling_ns: (0..40).map(|at| if at < busy { 2600 } else { 1500 }).collect(),
                lost: Vec::new(),
            };
            let sample_ns = vec![5_000_000; 40];
            let stage =
                Stage { bytes_per_op, ops_per_sample: 1, sample_ns, slices, ..Stage::default() };
            record.lanes.push(Lane { stages: vec![stage], ..Lane::default() });
            record
        };
        let between = |bytes_per_op| {
            let sides = [10, 30].map(|busy| vec![side(bytes_per_op, busy)]);
            let [a, b] = sides
                .each_ref()
                .map(|own| Levels::of(own, &[&sides[0], &sides[1]]).findings()[0].1.clone());
            slowed([&a, &b])
        };
        assert_eq!(between(1 << 20), [0.0, 0.0]);
        let [a, b] = between(64 << 20);
        assert!(a == 0.0 && (b - MACHINES.ln() / 2.0).abs() < 1e-9, "{a} {b}");
    }
}
