//! Engines, the jobs that they make of workloads, and the sessions that do the work.

use std::fmt::Display;

use daqmeter_record::{Counter, Ledger, Limit, ParamError, PathRun, TimeSeries, Workload};

use crate::control::Control;
use crate::request::{Request, parameters, read};
use crate::sample::INTERRUPTED;
use crate::{Observer, StopFlag};

/// One way to do some kind of work: a table's line, from which everything else about it is reached.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    /// Name in records, in plans and in `daqmeter list`.
    pub name: &'static str,
    /// One sentence for `daqmeter list`.
    pub description: &'static str,
    example: fn() -> Workload,
    parameters: fn() -> Vec<Parameter>,
    canonical: fn(&Workload) -> Result<Workload, Fault>,
    parse: fn(&Workload) -> Result<Job, Fault>,
}

impl Engine {
    /// The engine of these requests.
    pub const fn of<R: Request>() -> Engine {
        Engine {
            name: R::KIND,
            description: R::DESCRIPTION,
            example: || R::example().workload(),
            parameters: parameters::<R>,
            canonical: |workload| Ok(read::<R>(workload)?.workload()),
            parse: |workload| R::of(workload)?.job(),
        }
    }

    /// A small workload, quick and without hardware.
    pub fn example(&self) -> Workload {
        (self.example)()
    }

    /// Parameters of its workloads, for lists and for checking plans before anything runs.
    pub fn parameters(&self) -> Vec<Parameter> {
        (self.parameters)()
    }

    /// The workload as the command line records the same request, so that equal requests have equal
    /// keys. Bounds are not checked.
    ///
    /// # Errors
    /// As [`Request::of`].
    pub fn canonical(&self, workload: &Workload) -> Result<Workload, Fault> {
        (self.canonical)(workload)
    }

    /// Reads and checks a workload: the only place where one is parsed to be measured.
    ///
    /// # Errors
    /// Names the parameter that is missing, unknown, of the wrong type or out of bounds, or the
    /// file that cannot be read.
    pub fn parse(&self, workload: &Workload) -> Result<Job, Fault> {
        (self.parse)(workload)
    }
}

/// Makes the sessions of a job.
pub type Opener = Box<dyn Fn() -> Result<Vec<Box<dyn Session>>, Fault>>;

/// A request that was understood and checked.
pub struct Job {
    /// The request as it stands in records.
    pub workload: Workload,
    /// Devices or instruction set that it works on, for the record.
    pub target: String,
    /// True when any device is emulated.
    pub is_emulated: bool,
    /// True when it works on a real device whose state only one process at a time may have: its
    /// registers, its buffers. Such work cannot be measured alternately with another process.
    pub owns_device: bool,
    /// Bytes of memory over all lanes, where that is known before it is opened. Its limits come on
    /// top.
    pub memory_bytes: Option<u64>,
    /// Whether an instruction set, a module or a channel that it needs is here.
    pub availability: Availability,
    /// True if its record names the processes that used the CPUs: for points that last long enough
    /// to look at all of them.
    pub names_processes: bool,
    /// Load that is put on the host while it is measured.
    pub load: Option<fn() -> Box<dyn Observer>>,
    /// Makes one session for each lane: see [`Job::open`].
    pub opener: Opener,
}

impl Job {
    /// A job of real work on `target` that needs nothing special. `open` makes one session for each
    /// lane and allocates nothing large: that is [`Session::prepare`]'s part, in the thread that
    /// will use it.
    pub fn new<R: Request>(
        request: &R,
        target: impl Into<String>,
        open: impl Fn(&R) -> Result<Vec<Box<dyn Session>>, Fault> + 'static,
    ) -> Job {
        let own = request.clone();
        Job::untyped(request.workload(), target, move || open(&own))
    }

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
            availability: Availability::Ready,
            names_processes: false,
            load: None,
            opener: Box::new(open),
        }
    }

    /// Makes one session for each lane.
    ///
    /// # Errors
    /// When this host or a device does not allow it.
    pub fn open(&self) -> Result<Vec<Box<dyn Session>>, Fault> {
        (self.opener)()
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.workload, self.target)
    }
}

/// A parameter of an engine's workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in the workload, with its unit last.
    pub name: String,
    /// What it is, in half a sentence.
    pub about: String,
}

/// Availability of what work needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// All is here.
    Ready,
    /// Something is missing: what, and how to get it.
    Waived(String),
}

/// One lane's share of the work, driven by one thread.
pub trait Session: Send {
    /// What the lane works on, for the record.
    fn device(&self) -> String;

    /// True if this lane's device is emulated; `None` if [`Job::is_emulated`] holds for all.
    fn is_emulated(&self) -> Option<bool> {
        None
    }

    /// The stages, in the order in which they run. Constant over the session's life.
    fn stages(&self) -> Vec<StageSpec>;

    /// Allocates and touches everything that the steps need, in the thread that runs them, after
    /// pinning. After this, steps allocate nothing.
    ///
    /// # Errors
    /// When memory or the device refuses.
    fn prepare(&mut self) -> Result<(), Fault>;

    /// Called once, before [`Session::prepare`], with the flag that a signal sets. Who does
    /// operations that may last longer than about 0.1 s keeps it, looks at it meanwhile, and cuts
    /// the operation short with [`Fault::interrupted`].
    fn set_stop_flag(&mut self, _stop: &StopFlag) {}

    /// Number of variants of the same work that differ in nothing but speed. The harness tries them
    /// after [`Session::prepare`], and the fastest is used.
    fn variants(&self) -> usize {
        1
    }

    /// Works by that variant from now on; the first is used until then.
    fn use_variant(&mut self, _variant: usize) {}

    /// Does `operations` operations of one stage in its own loop. It reads no clock to measure
    /// itself and never prints.
    ///
    /// # Errors
    /// When the work cannot go on; the lane then fails and the others finish.
    fn step(&mut self, stage: usize, operations: u64) -> Result<(), Fault>;

    /// Called before each sample of a stage that asks for it ([`StageSpec::before_sample`]),
    /// outside the clock.
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

    /// Checks the bytes: before timing it does each stage's work once and compares, after timing it
    /// compares what the last step left. A wrong byte is a failure, whatever the speed.
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
    /// Work that loads the same resource, done between samples. None where nothing may come between
    /// operations: a device that goes on meanwhile would fill its ring.
    pub control: Option<Control>,
    /// Run once instead of as often as the others (function 100 of the original).
    pub once: bool,
    /// Operations that belong together, of which a sample takes whole batches: cycles in a
    /// pipeline, datagrams in a burst.
    pub batch: u64,
    /// Each operation is a sample of its own, and [`Session::before_sample`] comes before it,
    /// outside the clock: caches to empty, a pipe to fill.
    pub before_sample: bool,
    /// The device itself says when each operation began and ended ([`Session::device_time`]): the
    /// clock of a kernel module, with what surrounds the work left out. Each operation is a sample
    /// of its own.
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
    /// To be measured in the same run by the engine that has the name of the workload's kind: in as
    /// many lanes, if it has such a parameter.
    Measured {
        /// Name in the record.
        name: String,
        /// How it is measured, for the reader.
        how: String,
        /// Request to that engine, for one lane.
        workload: Workload,
        /// Bytes that the stage counts for each byte that the limit engine reads: above 1 where a
        /// stage skips whole lines.
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
    /// Bytes that its first stage really carried, where that is not what its operations are counted
    /// as.
    pub carried_bytes: Option<u64>,
    /// What the reader must know.
    pub warnings: Vec<String>,
    /// NUMA node of its buffers.
    pub numa_node: Option<u32>,
}

/// Lanes of one point: more than any host has CPUs for.
pub const MAX_LANES: u64 = 1024;

/// As many lanes as one point may have: [`MAX_LANES`], and at most as many threads as this process
/// may still start.
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

    /// The host, a control group or a limit of this process leaves too little memory or too few
    /// threads for the work.
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
