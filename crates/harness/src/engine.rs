//! What an engine promises.

use std::fmt::Display;

use daqmeter_record::{Counter, Ledger, Limit, ParamError, PathRun, TimeSeries, Workload};

use crate::StopFlag;
use crate::control::Control;
use crate::sample::INTERRUPTED;

/// One way to do some kind of work.
pub trait Engine: Send + Sync {
    /// Name in records and `daqmeter list`.
    fn name(&self) -> &'static str;

    /// One sentence for `daqmeter list`.
    fn description(&self) -> &'static str;

    /// Whether it can run here at all. Cheap; touches no hardware state.
    fn probe(&self) -> Availability;

    /// Whether what this workload needs is here: an instruction set, a module, a channel. A workload that is wrong is refused by
    /// [`Engine::open`] instead.
    fn probe_for(&self, _workload: &Workload) -> Availability {
        self.probe()
    }

    /// What the given workload works on, for the record: devices, instruction set.
    fn target(&self, workload: &Workload) -> String;

    /// True when any device in the path of this workload is emulated.
    fn is_emulated(&self, _workload: &Workload) -> bool {
        false
    }

    /// True when the workload works on a real device whose state only one process at a time may have: its registers, its buffers.
    /// Such work cannot be measured in turns with another process.
    fn owns_device(&self, _workload: &Workload) -> bool {
        false
    }

    /// What a workload of this engine may hold, for lists and for checking plans before anything runs.
    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    /// The workload as this engine writes it today: parameters that older versions wrote out or left out are left out or filled
    /// in, so that equal requests have equal keys. None where it cannot be read.
    fn canonical(&self, _workload: &Workload) -> Option<Workload> {
        None
    }

    /// The same workload for so many lanes, where this engine measures the limit of stages of several lanes.
    fn with_lanes(&self, workload: &Workload, _lanes: usize) -> Workload {
        workload.clone()
    }

    /// Bytes of memory that a point of this workload takes, over all its lanes, where that is known before it is opened. Its
    /// limits come on top. None where the engine cannot know, or the workload is wrong, which [`Engine::open`] then reports.
    fn memory_bytes(&self, _workload: &Workload) -> Option<u64> {
        None
    }

    /// Whether its records name the processes that used the CPUs: for engines whose points last long enough to look at all of them.
    fn names_processes(&self) -> bool {
        false
    }

    /// A small workload that the conformance suite runs, quick and without hardware.
    fn example(&self) -> Workload;

    /// Checks the workload and makes one session per lane. Nothing large is allocated here: that is
    /// [`Session::prepare`]'s part, in the thread that will use it.
    ///
    /// # Errors
    /// When the workload asks for what this engine cannot do, or a device refuses.
    fn open(&self, workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault>;
}

/// A parameter of an engine's workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in the workload, with its unit last.
    pub name: String,
    /// What it is, in half a sentence.
    pub about: String,
}

/// Whether an engine can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It can.
    Ready,
    /// It cannot, for this reason: what is missing and how to get it.
    Waived(String),
}

/// One lane's share of the work, driven by one thread.
pub trait Session: Send {
    /// What the lane works on, for the record.
    fn device(&self) -> String;

    /// True if this lane's device is emulated; `None` if [`Engine::is_emulated`] holds for all.
    fn is_emulated(&self) -> Option<bool> {
        None
    }

    /// The stages, in the order in which they run. Constant over the session's life.
    fn stages(&self) -> Vec<StageSpec>;

    /// Allocates and touches everything that the steps need, in the thread that runs them, after pinning. After this, steps
    /// allocate nothing.
    ///
    /// # Errors
    /// When memory or the device refuses.
    fn prepare(&mut self) -> Result<(), Fault>;

    /// Called once, before [`Session::prepare`], with the flag that a signal sets. Who does operations that may last longer than
    /// about 0.1 s keeps it, looks at it meanwhile, and cuts the operation short with [`Fault::interrupted`].
    fn heed(&mut self, _stop: &StopFlag) {}

    /// Ways to do the same work that differ in nothing but speed: how many. Where there are several the harness tries them after
    /// [`Session::prepare`], and the fastest is used.
    fn ways(&self) -> usize {
        1
    }

    /// Works in one of its ways from now on; the first is used until then.
    fn use_way(&mut self, _way: usize) {}

    /// Does `operations` operations of one stage in its own loop. It reads no clock to measure itself and never prints.
    ///
    /// # Errors
    /// When the work cannot go on; the lane then fails and the others finish.
    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault>;

    /// Called before each sample of a stage that asks for it ([`StageSpec::before_sample`]), outside the clock.
    ///
    /// # Errors
    /// When the stage cannot be made ready; the lane then fails.
    fn before_sample(&mut self, _stage: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// When the last operation of a stage that is `device_timed` began and ended.
    fn device_time(&self) -> DeviceTime {
        DeviceTime::default()
    }

    /// Compares what the last operation of a stage left ([`StageSpec::checked`]), between two
    /// samples and outside the clock, and changes the source for the operations that follow. An
    /// operation that is wrong only sometimes is found by this alone.
    ///
    /// # Errors
    /// As [`Session::verify`]; the lane then fails.
    fn check_sample(&mut self, _stage: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Checks the bytes: before timing it does each stage's work once and compares, after timing it compares what the last
    /// step left. A wrong byte is a failure, whatever the speed.
    ///
    /// # Errors
    /// Names the first wrong place, with what was expected and found.
    fn verify(&mut self) -> Result<(), Fault>;

    /// Called once when the timed region begins: accounts start from zero here.
    fn begin(&mut self) {}

    /// Called when the harness did something else between two samples, with how long that lasted.
    /// The clock of a device went on meanwhile.
    fn paused(&mut self, _pause_ns: u64) {}

    /// The accounts since [`Session::begin`].
    fn tally(&mut self) -> Tally;
}

/// One stage of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct StageSpec {
    /// Name in tables.
    pub name: String,
    /// Bytes that one operation is counted as.
    pub bytes_per_op: u64,
    /// Bytes that one operation moves to and from memory, without write-allocate.
    pub traffic_bytes_per_op: u64,
    /// What the rate is held against.
    pub limit: Option<LimitSpec>,
    /// Work that loads the same resource, done between samples. None where nothing may come between operations: a device that goes on
    /// meanwhile would fill its ring.
    pub control: Option<Control>,
    /// Run once instead of as often as the others (function 100 of the original).
    pub once: bool,
    /// Operations that belong together, of which a sample takes whole batches: cycles in a pipeline, datagrams in a burst.
    pub batch: u64,
    /// Each operation is a sample of its own, and [`Session::before_sample`] comes before it, outside the clock: caches to empty, a
    /// pipe to fill.
    pub before_sample: bool,
    /// The device itself says when each operation began and ended ([`Session::device_time`]): the clock of a kernel module, with
    /// what surrounds the work left out. Each operation is a sample of its own.
    pub device_timed: bool,
    /// True if [`Session::check_sample`] comes after some of the samples.
    pub checked: bool,
}

/// When a device began and ended an operation, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTime {
    /// Before.
    pub before_ns: u64,
    /// After.
    pub after_ns: u64,
}

impl StageSpec {
    /// Whether each operation is a sample of its own.
    pub(crate) fn is_separate(&self) -> bool {
        self.before_sample || self.device_timed
    }

    /// True if samples do not follow one another at once, so that the start of each is kept.
    pub(crate) fn has_gaps(&self) -> bool {
        self.is_separate() || self.checked
    }

    /// The same with a copy of like footprint as its control.
    #[must_use]
    pub fn beside_copy(self) -> Self {
        let footprint_bytes = self.traffic_bytes_per_op;
        let control = Some(Control::Copy { footprint_bytes });
        StageSpec { control, ..self }
    }

    /// A repeated stage without a limit and without a control.
    pub fn new(name: impl Into<String>, bytes_per_op: u64, traffic_bytes_per_op: u64) -> Self {
        StageSpec {
            name: name.into(),
            bytes_per_op,
            traffic_bytes_per_op,
            limit: None,
            control: None,
            once: false,
            batch: 1,
            before_sample: false,
            device_timed: false,
            checked: false,
        }
    }
}

/// The physical limit that a stage could reach.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitSpec {
    /// To be measured in the same run, with as many lanes, by the engine that has the name of the workload's kind.
    Measured {
        /// Name in the record.
        name: String,
        /// How it is measured, for the reader.
        how: String,
        /// What that engine is asked, for one lane: it knows how to ask for more ([`Engine::with_lanes`]).
        workload: Workload,
        /// Bytes that the stage counts for each byte that the limit engine reads: above 1 where a stage skips whole lines.
        scale: f64,
    },
    /// Known from elsewhere: a link's width, an emulated board's profile.
    Given(Limit),
}

impl LimitSpec {
    /// Name in the record.
    pub fn name(&self) -> &str {
        match self {
            LimitSpec::Measured { name, .. } => name,
            LimitSpec::Given(limit) => &limit.name,
        }
    }
}

/// What a lane accounts for.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Its ledgers; those of the same unit are added up over the lanes.
    pub ledgers: Vec<Ledger>,
    /// Its counters; those of the same name are added up over the lanes.
    pub counters: Vec<Counter>,
    /// What it measured over time.
    pub series: Vec<TimeSeries>,
    /// What the threads of a path did.
    pub path: Option<PathRun>,
    /// Bytes that its first stage really carried, where that is not what its operations are counted as.
    pub carried_bytes: Option<u64>,
    /// What the reader must know.
    pub warnings: Vec<String>,
    /// NUMA node of its buffers.
    pub numa_node: Option<u32>,
}

/// Lanes of one point: more than any host has CPUs for.
pub const MAX_LANES: u64 = 1024;

/// As many lanes as one point may have: [`MAX_LANES`], and at most as many threads as this process may still start.
pub(crate) fn max_lanes() -> u64 {
    daqmeter_sys::available::threads().map_or(MAX_LANES, |threads| threads.clamp(1, MAX_LANES))
}

/// Why work could not be done or was wrong: one line, with what to do where that is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String, Cause);

/// What the harness treats in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Any,
    TooLarge,
}

impl Fault {
    /// A fault with the given reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Fault(reason.into(), Cause::Any)
    }

    /// The host, a control group or a limit of this process leaves too little memory or too few threads for the work.
    pub fn too_large(reason: impl Into<String>) -> Self {
        Fault(reason.into(), Cause::TooLarge)
    }

    /// The stop flag was set in the middle of an operation.
    pub fn interrupted() -> Self {
        Fault::new(format!("{INTERRUPTED} in the middle of an operation"))
    }

    /// Whether memory or threads were lacking: a smaller workload may do.
    pub(crate) fn does_not_fit(&self) -> bool {
        self.1 == Cause::TooLarge
    }

    /// The same fault, with what was being done before its reason.
    pub fn context(self, what: impl Display) -> Self {
        Fault(format!("{what}: {}", self.0), self.1)
    }
}

impl From<ParamError> for Fault {
    fn from(error: ParamError) -> Self {
        Fault::new(error.to_string())
    }
}

impl From<daqmeter_sys::SysError> for Fault {
    fn from(error: daqmeter_sys::SysError) -> Self {
        match error.is_out_of_memory() {
            true => Fault::too_large(format!(
                "{error}: the host, its control group or ulimit -v leaves less"
            )),
            false => Fault::new(error.to_string()),
        }
    }
}
