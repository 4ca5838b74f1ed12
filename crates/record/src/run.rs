//! The record, in the order of a reader: tool, request, host, result.

use std::collections::BTreeMap;
use std::sync::Arc;

use daqmeter_stats::{Rate, SliceTime, sustained};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observed::TimeSeries;
use crate::{Host, Ledger, Param, SCHEMA_VERSION, Sections, Workload};

/// One measured point: one engine, one workload, one go. See the crate documentation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct RunRecord {
    /// Schema version of this line; this tool writes 1.
    pub schema: u32,
    /// The tool that wrote the line.
    pub tool: Tool,
    /// UTC time at which the point began, RFC 3339 with milliseconds.
    pub time_utc: String,
    /// Groups the points of one invocation: its start time and process number.
    pub run_id: String,
    /// Start of the invocation at a time that was asked for (`--at`), as for many hosts at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// The study and figure that the point belongs to, e.g. `survey/conversion`; reports group by
    /// it.
    pub study: String,
    /// Purpose of the point, if its parameters do not show it.
    #[serde(default, skip_serializing_if = "Role::is_point")]
    pub role: Role,
    /// The command line that reproduces the point.
    pub command: String,
    /// Engine that did the work.
    pub engine: EngineInfo,
    /// Request. Records of equal requests may share it.
    pub workload: Arc<Workload>,
    /// Place of the point in the (shuffled) sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// End of the point: done, waived or failed.
    pub outcome: Outcome,
    /// Conditions that make the numbers doubtful; each names the remedy.
    pub warnings: Vec<String>,
    /// One entry per thread that did the work, in the order of the workload's devices.
    pub lanes: Vec<Lane>,
    /// Physical limits measured in the same run that the stages are held against, by name.
    pub limits: Vec<Limit>,
    /// Everything issued, and what became of it.
    pub ledgers: Vec<Ledger>,
    /// Counts of the observers around the timed region.
    pub counters: Vec<Counter>,
    /// Quantities that the engine measured over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<TimeSeries>,
    /// Results of one kind of work: of a path, of counters over time.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub sections: Sections,
    /// CPU time of this process over the timed region, all its threads.
    pub process_cpu: CpuTime,
    /// CPU time of the whole host over the timed region, from `/proc/stat`.
    pub host_cpu: HostCpu,
    /// Shares of the CPU time by function, from samples of our own threads; empty without
    /// `--profile-cpu`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hotspots: Vec<Hotspot>,
    /// `CLOCK_MONOTONIC` at the release of the lanes, which all times of stages are relative to.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub origin_ns: u64,
    /// Wall time of the timed region, from the release of the lanes to the end of the last one.
    pub wall_ns: u64,
    /// Memory that the process held.
    pub memory: Memory,
    /// The clock that the samples were taken with.
    pub clock: Clock,
    /// The machine. Records of one run share it.
    pub host: Arc<Host>,
}

impl Lane {
    pub fn is_emulated(&self, record: &RunRecord) -> bool {
        self.emulated.unwrap_or(record.engine.emulated)
    }
}

impl RunRecord {
    pub fn new(engine: EngineInfo, workload: impl Into<Arc<Workload>>) -> Self {
        RunRecord {
            schema: SCHEMA_VERSION,
            engine,
            workload: workload.into(),
            ..RunRecord::default()
        }
    }

    /// Refuses slices that no run has, by the path of the first wrong field.
    pub(crate) fn check_slices(&self) -> Result<(), String> {
        let lanes = self.lanes.iter().enumerate();
        let mut stages = lanes.flat_map(|(lane, found)| {
            found.stages.iter().enumerate().map(move |(at, stage)| (lane, at, stage))
        });
        stages.try_for_each(|(lane, at, stage)| {
            let wrong = |why| format!("lanes[{lane}].stages[{at}].slices.{why}");
            stage.slices.check(stage.sample_ns.len()).map_err(wrong)
        })
    }

    pub fn set_param(&mut self, name: &str, value: impl Into<Param>) {
        let workload = Arc::make_mut(&mut self.workload);
        workload.params.insert(name.to_owned(), value.into());
    }

    pub fn limit(&self, name: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| limit.name == name)
    }

    pub fn series(&self, name: &str) -> Option<&TimeSeries> {
        self.series.iter().find(|series| series.name == name)
    }

    pub fn counter(&self, name: &str) -> Option<f64> {
        self.counters.iter().find(|counter| counter.name == name).map(|counter| counter.value)
    }
}

/// Purpose of a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A point to show and to compare.
    #[default]
    Point,
    /// A step of a search: it says on which side of the limit a rate is, and is too short for more.
    Probe,
}

impl Role {
    pub fn is_point(&self) -> bool {
        *self == Role::Point
    }
}

/// Name and origin of the program that measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// `daqmeter`.
    pub name: String,
    /// Semantic version.
    pub version: String,
    /// Abbreviated commit, with `+` when the tree had uncommitted changes; `unknown` outside a
    /// checkout.
    pub git_revision: String,
    /// `release`, `release, musl` of the static binary, or `debug`: numbers of a debug build are
    /// not worth comparing.
    pub profile: String,
}

/// Start at a time that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Start {
    /// Time that was asked for: UTC, RFC 3339 with milliseconds.
    pub asked_utc: String,
    /// Time from then to the end of the wait, by the wall clock of the host.
    pub late_ns: u64,
    /// Largest error of this clock as the kernel knows it (adjtimex(2), maxerror); absent where it
    /// may not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// True if the kernel calls its clock synchronised.
    pub is_synchronised: bool,
}

/// The engine that did the work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineInfo {
    /// Name as `daqmeter list` prints it.
    pub name: String,
    /// Target of the work: devices, instruction set, transport.
    pub target: String,
    /// True when any device in the path is emulated: such a rate says nothing about real hardware.
    pub emulated: bool,
}

/// Place of a point in its sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Order {
    /// Seed of the shuffle; the same seed gives the same order.
    pub seed: u64,
    /// Position, from 0, in which the point was measured.
    pub position: u64,
    /// Number of points of the sweep.
    pub of: u64,
}

/// End of a point, a lane or a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "status", content = "reason", rename_all = "lowercase")]
pub enum Outcome {
    /// Done and verified.
    #[default]
    Ok,
    /// Could not be run here, for the stated reason; not a fault.
    Waived(String),
    /// Ran and went wrong, or its bytes or its ledger did not check.
    Failed(String),
}

impl Outcome {
    pub fn is_ok(&self) -> bool {
        *self == Outcome::Ok
    }

    pub fn reason(&self) -> Option<&str> {
        match self {
            Outcome::Ok => None,
            Outcome::Waived(reason) | Outcome::Failed(reason) => Some(reason),
        }
    }
}

/// One thread of the run and all it did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lane {
    /// The device or buffer that this lane worked on.
    pub device: String,
    /// True if its device is emulated; absent if the engine's flag holds for all lanes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated: Option<bool>,
    /// CPU that was asked for; none when the thread was left free.
    pub requested_cpu: Option<u32>,
    /// CPUs that the kernel allowed the thread while it was timed, read back after pinning.
    pub allowed_cpus: Vec<u32>,
    /// CPUs on which the thread was seen, at the start and the end of each stage.
    pub seen_cpus: Vec<u32>,
    /// NUMA node of the lane's buffers, where the kernel tells.
    pub numa_node: Option<u32>,
    /// The stages in the order in which they ran.
    pub stages: Vec<Stage>,
    /// End of the lane.
    pub outcome: Outcome,
}

/// One stage of one lane: read-out, a conversion, a wait for the trigger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stage {
    /// Name as the classic table prints it, e.g. `func_readout`.
    pub name: String,
    /// Operations in each sample.
    pub ops_per_sample: u64,
    /// Bytes that one operation is counted as. For digitizers: raw bytes, 2 per sample, as in the
    /// source document.
    pub bytes_per_op: u64,
    /// Bytes that all operations really carried together, where they do not all carry what they are
    /// counted as: a chain whose triggers were stopped. None where each carried `bytes_per_op`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried_bytes: Option<u64>,
    /// Bytes that one operation reads from and writes to memory, without write-allocate traffic.
    pub traffic_bytes_per_op: u64,
    /// Name of the limit, among the record's limits, that this stage is held against.
    pub limit: Option<String>,
    /// Start of the first operation, relative to the release of all lanes.
    pub start_ns: u64,
    /// End of the last operation, relative to the release of all lanes.
    pub end_ns: u64,
    /// Raw samples: duration of each in nanoseconds, in the order in which they were taken. None is
    /// ever dropped.
    pub sample_ns: Vec<u64>,
    /// Start of each sample relative to the release of all lanes, if samples do not follow one
    /// another. Empty if each begins when the one before it ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sample_start_ns: Vec<u64>,
    /// The samples in slices, each followed by probes of the CPU. Empty for times of other
    /// programs.
    #[serde(default, skip_serializing_if = "Slices::is_empty")]
    pub slices: Slices,
    /// CPU time that the thread spent in this stage; zero if the stage was too short for it.
    pub cpu: CpuTime,
}

/// Slices of a stage: uninterrupted samples of 0.25 to 1 ms together, or one longer sample, and the
/// probes after them. One value a slice, in order; samples after the last slice belong to none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slices {
    /// Samples in each slice.
    pub samples: Vec<u32>,
    /// Time from the end of a slice to the begin of the next one, in nanoseconds.
    pub gap_ns: Vec<u32>,
    /// Time of [`Clock::chain_cycles`] cycles after the slice; empty where those do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain_ns: Vec<u32>,
    /// Time of independent additions after the chain, which a busy sibling of the core slows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sibling_ns: Vec<u32>,
    /// Numbers of the slices, from 0, in which the thread lost its CPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<u32>,
}

impl Slices {
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    fn check(&self, samples: usize) -> Result<(), String> {
        let Slices { samples: counts, gap_ns, chain_ns, sibling_ns, lost } = self;
        let slices = counts.len();
        let probes = [("chain_ns", chain_ns), ("sibling_ns", sibling_ns)];
        let given = probes.iter().filter(|(_, column)| !column.is_empty());
        for (name, column) in given.chain(&[("gap_ns", gap_ns)]) {
            if column.len() != slices {
                return Err(format!("{name} has {} values for {slices} slices", column.len()));
            }
        }
        for (name, column) in probes.iter().chain(&[("samples", counts)]) {
            if let Some(at) = column.iter().position(|value| *value == 0) {
                return Err(format!("{name}[{at}] is 0"));
            }
        }
        if counts.iter().map(|count| u64::from(*count)).sum::<u64>() > samples as u64 {
            return Err(format!("samples has more than the {samples} of the stage"));
        }
        match lost.iter().position(|at| *at as usize >= slices) {
            Some(at) => Err(format!("lost[{at}] is no slice")),
            None => Ok(()),
        }
    }
}

impl Stage {
    pub fn seconds(&self) -> f64 {
        self.sample_ns.iter().map(|&ns| ns as f64).sum::<f64>() * 1e-9
    }

    /// Returns the sustained rate in bytes per second: all bytes over the sum of all samples; zero
    /// without samples.
    pub fn rate_bytes_per_s(&self) -> f64 {
        if self.seconds() > 0.0 { self.bytes() / self.seconds() } else { 0.0 }
    }

    /// Returns the sustained rate with its interval; `None` without samples.
    pub fn rate(&self) -> Option<Rate> {
        sustained(self.bytes_per_sample(), &self.sample_ns)
    }

    /// Iterates over the starts of the samples relative to the release of all lanes. Without
    /// recorded starts, samples follow one another from the stage's start, but for the gaps of
    /// slices.
    pub fn sample_starts_ns(&self) -> impl Iterator<Item = u64> + '_ {
        let mut next_ns = self.start_ns;
        let mut gaps = self.slices.samples.iter().zip(&self.slices.gap_ns);
        let mut slice = gaps.next();
        let mut left = slice.map_or(0, |(samples, _)| *samples);
        self.sample_ns.iter().enumerate().map(move |(at, ns)| {
            let start_ns = self.sample_start_ns.get(at).copied().unwrap_or(next_ns);
            next_ns = next_ns.saturating_add(*ns);
            left = left.saturating_sub(1);
            if let (0, Some((_, gap_ns))) = (left, slice) {
                next_ns = next_ns.saturating_add(u64::from(*gap_ns));
                slice = gaps.next();
                left = slice.map_or(0, |(samples, _)| *samples);
            }
            start_ns
        })
    }

    /// Iterates over the slices, with the time of an operation that carries what it is counted as.
    /// Without any, they are its samples.
    pub fn slices(&self) -> impl Iterator<Item = SliceTime> + '_ {
        let Slices { samples, chain_ns, sibling_ns, lost, .. } = &self.slices;
        let single = if samples.is_empty() { self.sample_ns.len() } else { 0 };
        let counts = samples.iter().copied().chain(std::iter::repeat_n(1, single));
        let per_op = self.longer() / self.ops_per_sample.max(1) as f64;
        let (mut from, mut lost) = (0, lost.iter().peekable());
        counts.enumerate().map(move |(at, count)| {
            let to = (from + count as usize).min(self.sample_ns.len());
            let ns = crate::border::sum(&self.sample_ns[from..to]) as f64;
            let probed = |column: &[u32]| column.get(at).copied().map(f64::from);
            let slice = SliceTime {
                ns,
                op_ns: ns / (to - from).max(1) as f64 * per_op,
                chain_ns: probed(chain_ns),
                sibling_ns: probed(sibling_ns),
                is_lost: lost.next_if(|lost| **lost as usize == at).is_some(),
            };
            from = to;
            slice
        })
    }

    /// Returns the factor from the time of an operation to that of its counted bytes: above 1 for
    /// chains whose triggers were stopped.
    pub fn longer(&self) -> f64 {
        match (self.carried_bytes, self.asked_bytes_per_sample()) {
            (Some(_), asked) if asked > 0.0 => asked / self.bytes_per_sample().max(1.0),
            _ => 1.0,
        }
    }

    pub fn bytes(&self) -> f64 {
        self.bytes_per_sample() * self.sample_ns.len() as f64
    }

    /// Returns the mean bytes that one sample carried; every rate uses it. It is a float, because a
    /// record may contain any number.
    pub fn bytes_per_sample(&self) -> f64 {
        match (self.carried_bytes, self.sample_ns.len()) {
            (Some(bytes), 1..) => bytes as f64 / self.sample_ns.len() as f64,
            _ => self.asked_bytes_per_sample(),
        }
    }

    pub fn asked_bytes_per_sample(&self) -> f64 {
        self.bytes_per_op as f64 * self.ops_per_sample as f64
    }
}

/// A physical limit of this host, measured in the same run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Limit {
    /// Name that stages refer to.
    pub name: String,
    /// The rate, in the bytes that the stage counts, per second.
    #[serde(deserialize_with = "number")]
    pub rate_bytes_per_s: f64,
    /// Lower end of the 95 % interval of the rate; none where it was given, or measured with too
    /// few samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_bytes_per_s: Option<f64>,
    /// Upper end of that interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_bytes_per_s: Option<f64>,
    /// Definition of the rate: stages are held against it by the same one.
    pub basis: LimitBasis,
    /// Method of the measurement, for the reader.
    pub how: String,
}

/// Definition by which a limit is a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LimitBasis {
    /// Sustained: all bytes over all time.
    #[default]
    Sustained,
    /// Not measured: a link's width, a profile.
    Given,
}

impl Limit {
    pub fn rate(&self) -> Rate {
        let interval = self.low_bytes_per_s.zip(self.high_bytes_per_s);
        Rate { per_s: self.rate_bytes_per_s, interval }
    }

    pub fn given(name: impl Into<String>, rate_bytes_per_s: f64, how: impl Into<String>) -> Limit {
        let basis = LimitBasis::Given;
        Limit { name: name.into(), rate_bytes_per_s, basis, how: how.into(), ..Limit::default() }
    }
}

/// One counted value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Counter {
    /// Name, e.g. `page-faults`, `register-reads`.
    pub name: String,
    /// Value over the timed region.
    #[serde(deserialize_with = "number")]
    pub value: f64,
    /// Unit of the value; empty for plain counts.
    pub unit: String,
    /// Share of the time in which the counter was really counting; below 1 the value is scaled.
    #[serde(deserialize_with = "number")]
    pub share: f64,
}

/// Reads `null` as NaN: JSON cannot write NaN or infinity.
fn number<'de, D: serde::Deserializer<'de>>(source: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(source)?.unwrap_or(f64::NAN))
}

impl Counter {
    pub fn count(name: impl Into<String>, value: u64) -> Self {
        Counter::measured(name, value as f64, "")
    }

    pub fn measured(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Counter { name: name.into(), value, unit: unit.into(), share: 1.0 }
    }
}

/// CPU time of a thread or a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuTime {
    /// Time in user mode.
    pub user_ns: u64,
    /// Time in the kernel on its behalf.
    pub system_ns: u64,
}

impl CpuTime {
    pub fn total_ns(self) -> u64 {
        self.user_ns.saturating_add(self.system_ns)
    }
}

/// CPU time of the whole host by kind, `/proc/stat` (Documentation/filesystems/proc.rst, 1.7), and
/// of our threads by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostCpu {
    /// User and nice.
    pub user_ns: u64,
    /// System.
    pub system_ns: u64,
    /// Hardware interrupts.
    pub irq_ns: u64,
    /// Soft interrupts.
    pub softirq_ns: u64,
    /// Time taken by the hypervisor.
    pub steal_ns: u64,
    /// Part of it that was taken from each CPU, by its number; CPUs that lost nothing are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steal_by_cpu_ns: BTreeMap<u32, u64>,
    /// User, nice and system time of each CPU by its number, of all programs; idle CPUs are left
    /// out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub busy_by_cpu_ns: BTreeMap<u32, u64>,
    /// Time in wait for block I/O.
    pub iowait_ns: u64,
    /// Idle.
    pub idle_ns: u64,
    /// CPU time of our ended child processes, and of other processes of this program that serve,
    /// such as the slave of `eb perf`: work of the measurement, not of others.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub peers_ns: u64,
    /// Time in which no thread of this process could run: stopped, frozen, out of its CPU quota, or
    /// on a suspended host.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub stood_still_ns: u64,
    /// CPU time of each of our threads over the timed region, by thread name and number.
    pub threads_ns: BTreeMap<String, u64>,
    /// Our threads and whatever else used the CPUs over the timed region, the busiest first, where
    /// the engine asks for it: chains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessUse>,
}

/// A process of the host, or a thread of ours, as `top` shows it at the end of the timed region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessUse {
    /// Number; of a thread its own.
    pub pid: u32,
    /// Name as the kernel has it. Command lines are not kept: they may hold what is not for others.
    pub name: String,
    /// Owner of the process.
    pub part: ProcessPart,
    /// Number of its user.
    pub user: u32,
    /// Priority as the kernel has it: 20 is usual, below 0 is real time.
    pub priority: i64,
    /// Nice value.
    pub nice: i64,
    /// State, `R`, `S`, ... as `ps` prints it.
    pub state: char,
    /// Address space; of a thread its process'.
    pub virtual_bytes: u64,
    /// Resident set; of a thread its process'.
    pub resident_bytes: u64,
    /// Part of it that is shared with others.
    pub shared_bytes: u64,
    /// CPU time over the timed region. That of other processes is counted in ticks of 10 ms.
    pub cpu_ns: u64,
    /// CPU time since it was started.
    pub total_cpu_ns: u64,
}

/// Owner of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessPart {
    /// A thread of the process that measures.
    Own,
    /// Another process of this program: a part of a chain of several processes.
    Chain,
    /// A thread of the kernel.
    Kernel,
    /// Another program.
    #[default]
    Other,
}

/// One line of the answer to "what takes the time".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hotspot {
    /// `user` or `kernel`.
    pub space: String,
    /// Function, or the object when it has no symbol.
    pub symbol: String,
    /// Share of all samples, 0 to 1.
    pub share: f64,
}

/// Memory of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// Highest resident set so far (VmHWM); 0 if it could not be read.
    pub peak_rss_bytes: u64,
    /// Part of it for the raw samples of this point.
    pub sample_bytes: u64,
}

/// The clock behind the samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Clock {
    /// Clock and kernel clock source, e.g. `CLOCK_MONOTONIC (tsc)`.
    pub source: String,
    /// Smallest step seen between two different readings.
    pub resolution_ns: f64,
    /// Median cost of one reading.
    pub overhead_ns: f64,
    /// The tool's own cost per operation: the null engine's step loop, measured at the start of the
    /// invocation.
    #[serde(default)]
    pub tool_ns_per_op: f64,
    /// Cycles of the chain of additions after each slice; 0 where it does not count cycles
    /// (emulated CPUs).
    #[serde(default)]
    pub chain_cycles: u64,
}
