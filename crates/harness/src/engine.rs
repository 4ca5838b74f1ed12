//! Jobs of workloads, and the sessions of a job.

use std::fmt::Display;

use daqmeter_record::{Counter, Ledger, Limit, Sections, TimeSeries, Workload};

use crate::sample::INTERRUPTED;
use crate::{Observer, Problem, StepPlan, StopFlag};

pub type JobOpener = Box<dyn Fn() -> Result<Vec<Box<dyn Session>>, Fault>>;

pub struct Job {
    pub workload: Workload,
    pub target: String,
    pub is_emulated: bool,
    /// True for work on a real device whose state (registers, buffers) one process alone may have.
    /// Such work cannot be measured alternately with another process.
    pub owns_device: bool,
    /// Bytes of memory over all lanes without its limits, if known before it is opened.
    pub memory_bytes: Option<u64>,
    /// Part that this host lacks, and the way to get it.
    pub waiver: Option<String>,
    /// True if its record names the processes that used the CPUs: for points that last long enough
    /// to list all of them.
    pub names_processes: bool,
    pub load: Option<fn() -> Box<dyn Observer>>,
    /// Steps that the request itself names, instead of those of a plan. Work that waits for an
    /// event in each pass has passes: 0 are as many as the plan has.
    pub steps: Option<StepPlan>,
    /// Makes one session for each lane: see [`Job::open`].
    pub opener: JobOpener,
}

impl Job {
    pub(crate) fn untyped(
        workload: Workload,
        target: impl Into<String>,
        open: impl Fn() -> Result<Vec<Box<dyn Session>>, Fault> + 'static,
    ) -> Job {
        Job {
            workload,
            target: target.into(),
            is_emulated: false,
            owns_device: false,
            memory_bytes: None,
            waiver: None,
            names_processes: false,
            load: None,
            steps: None,
            opener: Box::new(open),
        }
    }

    /// Returns the steps of this work in a plan with these.
    ///
    /// # Errors
    /// Refuses steps by stage for work that waits for an event before each pass: all waits would
    /// come first.
    pub(crate) fn steps_in(&self, of_plan: StepPlan) -> Result<StepPlan, Fault> {
        match (self.steps, of_plan) {
            (None, steps) | (Some(StepPlan::ByPass(0)), steps @ StepPlan::ByPass(_)) => Ok(steps),
            (Some(StepPlan::ByPass(0)), _) => {
                let wanted = "is 0; the number of events to wait for is wanted";
                Err(self.workload.error("passes", wanted).into())
            }
            (Some(own), _) => Ok(own),
        }
    }

    /// Makes one session for each lane; refuses work for which this host lacks a part.
    pub fn open(&self) -> Result<Vec<Box<dyn Session>>, Fault> {
        match &self.waiver {
            None => (self.opener)(),
            Some(reason) => Err(Fault::new(reason.clone())),
        }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.workload, self.target)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in the workload, with its unit last.
    pub name: String,
    pub about: String,
    /// True if its value is a text, even one that looks like a number.
    pub is_text: bool,
}

pub trait Session: Send {
    fn device(&self) -> String;

    /// Returns true if this lane's device is emulated; `None` if [`Job::is_emulated`] holds for
    /// all.
    fn is_emulated(&self) -> Option<bool> {
        None
    }

    /// Returns the stages in the order of their run; constant over the session's life.
    fn stages(&self) -> Vec<StageSpec>;

    /// Allocates and touches all memory of the steps, in the thread that runs them, after pinning.
    /// After this, steps allocate nothing.
    fn prepare(&mut self) -> Result<(), Fault>;

    /// Receives, once and before [`Session::prepare`], the flag that a signal sets. A session whose
    /// operations may last longer than about 0.1 s checks the flag in them, and ends them with
    /// [`Fault::interrupted`].
    fn set_stop_flag(&mut self, _stop: &StopFlag) {}

    /// Does `operations` operations of one stage in its own loop. It neither reads a clock for its
    /// own timing nor prints.
    ///
    /// # Errors
    /// After an error the lane fails and the others finish.
    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault>;

    /// Prepares a sample of a stage that asks for it ([`StageSpec::before_sample`]), outside the
    /// clock.
    fn before_sample(&mut self, _stage: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Returns the begin and end of the last operation of a stage that is `device_timed`.
    fn device_time(&self) -> DeviceTime {
        DeviceTime::default()
    }

    /// Receives begin and end of a sample, in nanoseconds of `CLOCK_MONOTONIC`. Returns false if
    /// the time is not that of its operations, because some of them were lost: it is not kept.
    fn sampled(&mut self, _from_ns: u64, _to_ns: u64) -> bool {
        true
    }

    /// Compares the output of the last operation of a stage ([`StageSpec::checked`]), between two
    /// rounds, while no lane works. It then changes the source for the following operations. Only
    /// this finds an operation that is wrong now and then.
    fn check_sample(&mut self, _stage: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Checks the bytes: before timing it does and compares each stage's work once, after timing it
    /// compares the output of the last step. A wrong byte is a failure at any speed.
    ///
    /// # Errors
    /// Names the first wrong place, with expected and found values.
    fn verify(&mut self) -> Result<(), Fault>;

    /// Begins the timed region: accounts start from zero here.
    fn begin(&mut self) {}

    /// Returns the accounts since [`Session::begin`].
    fn tally(&mut self) -> Tally;
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageSpec {
    pub name: String,
    /// Counted bytes of one operation.
    pub bytes_per_op: u64,
    /// Bytes that one operation moves to and from memory, without write-allocate.
    pub traffic_bytes_per_op: u64,
    pub limit: Option<LimitSpec>,
    /// Runs once in a plan of a number of operations (function 100 of the original).
    pub once: bool,
    /// Operations that belong together, such as cycles in a pipeline or datagrams in a burst. A
    /// sample takes whole batches.
    pub batch: u64,
    /// True if each operation is a sample, after [`Session::before_sample`] outside the clock:
    /// caches to empty, a pipe to fill.
    pub before_sample: bool,
    /// True if the device reports begin and end of each operation ([`Session::device_time`]): the
    /// clock of a kernel module, without the surrounding work. Each operation is then a sample.
    pub device_timed: bool,
    /// True if the stage is taken in rounds, each ended by [`Session::check_sample`]. Operations
    /// before a round are not timed, but in the session's accounts.
    pub checked: bool,
}

/// Begin and end of an operation by the device, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTime {
    pub before_ns: u64,
    pub after_ns: u64,
}

impl StageSpec {
    pub(crate) fn is_separate(&self) -> bool {
        self.before_sample || self.device_timed
    }

    /// Tests if samples do not follow one another at once, so that the start of each is kept.
    pub(crate) fn has_gaps(&self) -> bool {
        self.is_separate() || self.checked
    }

    pub fn new(name: impl Into<String>, bytes_per_op: u64, traffic_bytes_per_op: u64) -> Self {
        StageSpec {
            name: name.into(),
            bytes_per_op,
            traffic_bytes_per_op,
            batch: 1,
            ..StageSpec::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum LimitSpec {
    /// Limit of the engine with the workload's kind, measured in this run with an equal number of
    /// lanes, if it has such a parameter.
    Measured {
        name: String,
        how: String,
        workload: Workload,
        /// Bytes that the stage counts for each byte that the limit engine reads: above 1 for a
        /// stage that skips whole lines.
        scale: f64,
    },
    /// Limit from another source: a link's width, an emulated board's profile.
    Given(Limit),
}

impl LimitSpec {
    pub fn name(&self) -> &str {
        match self {
            LimitSpec::Measured { name, .. } => name,
            LimitSpec::Given(limit) => &limit.name,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Ledgers; those of one unit and one device are added up over the lanes.
    pub ledgers: Vec<Ledger>,
    /// Counters; those of one name are added up over the lanes.
    pub counters: Vec<Counter>,
    pub series: Vec<TimeSeries>,
    /// Sections; of one kind that of the first lane counts.
    pub sections: Sections,
    /// Bytes that its first stage carried, if they differ from the counted bytes.
    pub carried_bytes: Option<u64>,
    pub warnings: Vec<String>,
    pub numa_node: Option<u32>,
}

/// Most lanes of a point: more than any host has CPUs for.
pub const MAX_LANES: u64 = 1024;

/// Returns the most lanes of a point: [`MAX_LANES`], and at most the threads that this process may
/// still start.
pub(crate) fn max_lanes() -> u64 {
    daqmeter_sys::available::threads().map_or(MAX_LANES, |threads| threads.clamp(1, MAX_LANES))
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String, bool);

impl Fault {
    pub fn new(reason: impl Into<String>) -> Self {
        Fault(reason.into(), false)
    }

    /// Reports too little memory or too few threads for the work, by the host, a control group or a
    /// limit of this process.
    pub fn too_large(reason: impl Into<String>) -> Self {
        Fault(reason.into(), true)
    }

    pub fn interrupted() -> Self {
        Fault::new(format!("{INTERRUPTED} in the middle of an operation"))
    }

    /// Tests if memory or threads were lacking: a smaller workload may fit.
    pub(crate) fn does_not_fit(&self) -> bool {
        self.1
    }

    pub fn context(self, what: impl Display) -> Self {
        Fault(format!("{what}: {}", self.0), self.1)
    }
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Fault::new(reason)
    }
}

impl From<Problem> for Fault {
    fn from(Problem { name, text }: Problem) -> Self {
        Fault::new(format!("{name}: {text}"))
    }
}

impl From<daqmeter_sys::SysError> for Fault {
    fn from(error: daqmeter_sys::SysError) -> Self {
        let less = ": the host, its control group or ulimit -v leaves less";
        match error.source.kind() == std::io::ErrorKind::OutOfMemory {
            true => Fault::too_large(error.to_string() + less),
            false => Fault::new(error.to_string()),
        }
    }
}
