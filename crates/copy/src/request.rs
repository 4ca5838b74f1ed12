//! What a copy point is asked: which way, by whom, how much.

use daqmeter_harness::Fault;
use daqmeter_record::Workload;
use daqmeter_sys::memory::buffer_bytes;

/// Which way bytes go. Named from the kernel's side, as the kernel's functions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// `copy_from_user`: into the kernel.
    From,
    /// `copy_to_user`: out of it.
    To,
    /// From, then to.
    Both,
}

impl Direction {
    /// All three.
    pub const ALL: [Direction; 3] = [Direction::From, Direction::To, Direction::Both];

    /// Name in options and records.
    pub fn name(self) -> &'static str {
        match self {
            Direction::From => "from",
            Direction::To => "to",
            Direction::Both => "both",
        }
    }

    /// The direction of that name.
    pub fn from_name(name: &str) -> Option<Direction> {
        Direction::ALL
            .into_iter()
            .find(|direction| direction.name() == name)
    }

    /// The single directions that it consists of.
    pub(crate) fn parts(self) -> &'static [Direction] {
        match self {
            Direction::From => &[Direction::From],
            Direction::To => &[Direction::To],
            Direction::Both => &[Direction::From, Direction::To],
        }
    }
}

/// Who copies, and which channel a copy gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context {
    /// The CPU.
    Cpu,
    /// A DMA engine, channel k for lane k.
    Exclusive,
    /// A DMA engine, whichever channel is free.
    Shared,
    /// A DMA engine whose high channels own it for a quantum in each window.
    Priority,
}

impl Context {
    /// All four.
    pub const ALL: [Context; 4] = [
        Context::Cpu,
        Context::Exclusive,
        Context::Shared,
        Context::Priority,
    ];

    /// Name in options and records.
    pub fn name(self) -> &'static str {
        match self {
            Context::Cpu => "cpu",
            Context::Exclusive => "exclusive",
            Context::Shared => "shared",
            Context::Priority => "priority",
        }
    }

    /// The context of that name.
    pub fn from_name(name: &str) -> Option<Context> {
        Context::ALL
            .into_iter()
            .find(|context| context.name() == name)
    }

    /// The module's number of the policy.
    pub(crate) fn policy(self) -> u32 {
        match self {
            Context::Cpu => 0,
            Context::Exclusive => 1,
            Context::Shared => 2,
            Context::Priority => 3,
        }
    }
}

/// The window of the priority policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Time of the high channels alone.
    pub quantum_ns: u64,
    /// The whole.
    pub window_ns: u64,
    /// Bit mask of the high channels.
    pub high_channels: u64,
}

impl Default for Window {
    /// 30 us of 90 us for channel 0: the study's (section 2.2).
    fn default() -> Self {
        Window {
            quantum_ns: 30_000,
            window_ns: 90_000,
            high_channels: 1,
        }
    }
}

/// How the end of an engine's copy is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// By looking.
    Polled,
    /// By being woken.
    Interrupt,
}

/// Largest block; what a host lacks is refused when it is allocated.
pub(crate) const MAX_BLOCK_BYTES: u64 = 1 << 40;
/// Channels of an engine, as many as a mask of high channels could name many times over.
const MAX_CHANNELS: u64 = 1024;
/// Longest window of the priority policy, the kernel module's.
const MAX_WINDOW_NS: u64 = 1_000_000_000;

/// One point.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// How bytes cross: a name of [`crate::PATHS`].
    pub path: String,
    /// Who copies.
    pub context: Context,
    /// Which way.
    pub direction: Direction,
    /// Bytes of one copy.
    pub block_bytes: usize,
    /// Caches are emptied of both buffers before each copy.
    pub cold: bool,
    /// Threads that copy at once.
    pub lanes: usize,
    /// Channels of a software engine; 0 is one for each lane.
    pub channels: usize,
    /// Polled or interrupt.
    pub completion: Completion,
    /// Of the priority policy.
    pub window: Window,
    /// Blocks that go with one call, where the path has calls for many.
    pub depth: u32,
}

impl Request {
    /// A copy by the CPU of one lane.
    pub fn new(path: &str, direction: Direction, block_bytes: usize) -> Request {
        Request {
            path: path.to_owned(),
            context: Context::Cpu,
            direction,
            block_bytes,
            cold: false,
            lanes: 1,
            channels: 0,
            completion: Completion::Polled,
            window: Window::default(),
            depth: 1,
        }
    }

    /// As a workload.
    pub fn workload(&self) -> Workload {
        let mut workload = Workload::new("copy")
            .with("path", self.path.as_str())
            .with("context", self.context.name())
            .with("direction", self.direction.name())
            .with("block_bytes", self.block_bytes as u64)
            .with("lanes", self.lanes as u64);
        if self.cold {
            workload = workload.with("cold", true);
        }
        if self.context != Context::Cpu {
            let interrupt = self.completion == Completion::Interrupt;
            workload = workload
                .with("channels", self.channels as u64)
                .with("completion", if interrupt { "interrupt" } else { "polled" });
        }
        if self.context == Context::Priority {
            workload = workload
                .with("quantum_ns", self.window.quantum_ns)
                .with("window_ns", self.window.window_ns)
                .with("high_channels", self.window.high_channels);
        }
        if self.depth > 1 {
            workload = workload.with("depth", self.depth);
        }
        workload
    }

    /// Bytes of memory that all its lanes take: both sides of each copy, and three copies while bytes are compared.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let blocks = if self.path.starts_with("io-uring") {
            u64::from(self.depth)
        } else {
            1
        };
        let bytes = (self.block_bytes as u64).saturating_mul(blocks);
        let lane = buffer_bytes(bytes)
            .saturating_mul(2)
            .saturating_add(bytes.saturating_mul(3));
        lane.saturating_mul(self.lanes as u64)
    }

    /// From a workload.
    ///
    /// # Errors
    /// Names the parameter that is missing or cannot be.
    pub fn of(workload: &Workload) -> Result<Request, Fault> {
        let named = |name: &'static str| workload.text(name);
        let wrong =
            |name: &str, problem: &str| Fault::from(workload.error(name, problem.to_owned()));
        let or = |name: &str, other: u64| {
            if workload.params.contains_key(name) {
                workload.int(name)
            } else {
                Ok(other)
            }
        };
        let size = |name: &str, value: u64| {
            usize::try_from(value).map_err(|_| wrong(name, "is beyond this machine"))
        };
        let direction = Direction::from_name(named("direction")?)
            .ok_or_else(|| wrong("direction", "is none of from, to, both"))?;
        let block_bytes = size(
            "block_bytes",
            workload.int_within("block_bytes", 1..=MAX_BLOCK_BYTES)?,
        )?;
        let mut request = Request::new(named("path")?, direction, block_bytes);
        request.context = Context::from_name(named("context")?)
            .ok_or_else(|| wrong("context", "is none of cpu, exclusive, shared, priority"))?;
        request.cold = workload.flag("cold");
        request.lanes = size("lanes", or("lanes", 1)?)?;
        request.channels = size(
            "channels",
            workload.int_within_or("channels", 0, 0..=MAX_CHANNELS)?,
        )?;
        request.completion = match workload
            .params
            .get("completion")
            .map(ToString::to_string)
            .as_deref()
        {
            None | Some("polled") => Completion::Polled,
            Some("interrupt") => Completion::Interrupt,
            Some(_) => return Err(wrong("completion", "is neither polled nor interrupt")),
        };
        let window = Window::default();
        request.window = Window {
            quantum_ns: or("quantum_ns", window.quantum_ns)?,
            window_ns: or("window_ns", window.window_ns)?,
            high_channels: or("high_channels", window.high_channels)?,
        };
        request.depth =
            u32::try_from(or("depth", 1)?).map_err(|_| wrong("depth", "is beyond reason"))?;
        request.check(workload)?;
        Ok(request)
    }

    fn check(&self, workload: &Workload) -> Result<(), Fault> {
        let refuse =
            |name: &str, problem: &str| Err(Fault::from(workload.error(name, problem.to_owned())));
        if self.lanes == 0 || self.lanes > 64 {
            return refuse("lanes", "is not between 1 and 64");
        }
        if self.depth == 0 || self.depth > 1024 {
            return refuse("depth", "is not between 1 and 1024");
        }
        if self.window.window_ns > MAX_WINDOW_NS {
            return refuse(
                "window_ns",
                "is more than a second: the low channels would stand still",
            );
        }
        if self.window.quantum_ns == 0 || self.window.quantum_ns >= self.window.window_ns {
            return refuse("quantum_ns", "is not a part of window_ns");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_workload() {
        let mut request = Request::new("engine-thread", Direction::Both, 4096);
        request.context = Context::Priority;
        request.cold = true;
        request.lanes = 3;
        request.completion = Completion::Interrupt;
        assert_eq!(Request::of(&request.workload()).unwrap(), request);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let of = |name: &str, value: u64| {
            Request::of(
                &Request::new("pread", Direction::To, 64)
                    .workload()
                    .with(name, value),
            )
            .unwrap_err()
            .0
        };
        assert!(of("block_bytes", 0).contains("block_bytes"));
        assert!(of("lanes", 65).contains("lanes"));
        assert!(of("quantum_ns", 90_000).contains("window_ns"));
        assert!(of("window_ns", 1_000_000_001).contains("more than a second"));
        assert!(of("block_bytes", 1 << 63).contains("1 to 1099511627776 is wanted"));
        assert!(of("channels", u64::MAX).contains("`channels`"));
    }
}
