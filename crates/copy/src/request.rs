//! Request of a copy point.

use clap::builder::{FalseyValueParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use daqmeter_harness::{is_default, one, usual};
use daqmeter_record::units::parse_ns;
use daqmeter_sys::memory::buffer_bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which way bytes go. Named from the kernel's side, as the kernel's functions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
// The numbers are those of the kernel module.
pub enum Direction {
    /// `copy_from_user`: into the kernel
    From = 0,
    /// `copy_to_user`: out of it
    To = 1,
    /// From, then to
    Both = 2,
}

impl Direction {
    pub(crate) fn parts(self) -> &'static [Direction] {
        match self {
            Direction::From => &[Direction::From],
            Direction::To => &[Direction::To],
            Direction::Both => &[Direction::From, Direction::To],
        }
    }
}

/// Who copies, and which channel a copy gets.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
// The numbers are those of the kernel module's policies.
pub enum CopyContext {
    /// The CPU
    #[default]
    Cpu = 0,
    /// A DMA engine, channel k for lane k
    Exclusive = 1,
    /// A DMA engine, whichever channel is free
    Shared = 2,
    /// A DMA engine whose high channels own it for a quantum in each window
    Priority = 3,
}

/// How the end of an engine's copy is noticed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum CopyCompletion {
    /// By looking
    #[default]
    Poll,
    /// By being woken
    Interrupt,
}

/// What else the host does while copies are measured.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum CopyLoad {
    /// Nothing on purpose
    #[default]
    Light,
    /// A thread on each CPU that works all the time
    Heavy,
}

/// One way to copy. Its comment is what `daqmeter list copies` says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CopyPath {
    /// pread and pwrite on kernel memory (memfd), base pages
    Pread,
    /// the same on huge pages (tmpfs huge=always, mounted nowhere; root)
    TmpfsHuge,
    /// process_vm_readv and _writev within this process
    ProcessVm,
    /// user memory only: the C library's memcpy
    Memcpy,
    /// user memory only: the string instruction
    RepMovsb,
    /// user memory only: 256-bit vectors
    Avx2,
    /// user memory only: 256-bit vectors, stores around the caches
    Avx2Nt,
    /// user memory only: 512-bit vectors
    Avx512,
    /// user memory only: 512-bit vectors, stores around the caches
    Avx512Nt,
    /// copy_from_user and copy_to_user of daqmeter's kernel module, or its DMA channels
    Module,
    /// an emulated engine: a thread that copies for its channels (emulated)
    EngineThread,
}

impl CopyPath {
    /// True if it has channels, so that contexts other than `cpu` are possible.
    pub(crate) fn has_channels(self) -> bool {
        matches!(self, CopyPath::Module | CopyPath::EngineThread)
    }
}

daqmeter_harness::displayed!(Direction, CopyContext, CopyCompletion, CopyLoad, CopyPath);

/// The study's 30 us of 90 us for channel 0 (section 2.2).
const QUANTUM_NS: u64 = 30_000;
const WINDOW_NS: u64 = 90_000;

/// Largest block; allocation refuses more than the host has.
pub(crate) const MAX_BLOCK_BYTES: usize = 1 << 40;
pub(crate) const MAX_CHANNELS: usize = 1024;
/// Longest window of the priority policy, equal to the kernel module's.
pub(crate) const MAX_WINDOW_NS: u64 = 1_000_000_000;

/// One point. Verbs that sweep choose the fields without an option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Args)]
#[serde(deny_unknown_fields)]
pub struct CopyRequest {
    /// A way to copy, as `daqmeter list copies` names it
    #[arg(skip = CopyPath::Pread)]
    pub path: CopyPath,
    /// Who copies: cpu, exclusive, shared, priority
    #[arg(skip)]
    pub context: CopyContext,
    /// Which way: from, to, both
    #[arg(skip = Direction::To)]
    pub direction: Direction,
    /// Bytes of one copy
    #[arg(skip)]
    pub block_bytes: usize,
    /// Threads that copy at the same time
    #[arg(skip = 1_usize)]
    #[serde(default = "one::<usize>")]
    pub lanes: usize,
    /// True empties the caches of both buffers before each copy
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "is_default")]
    pub cold: bool,
    /// DMA channels; 0 is one for each lane, or all of a device
    #[arg(skip)]
    #[serde(default)]
    pub channels: usize,
    /// Sleep until the engine's interrupt instead of looking
    #[arg(long = "interrupt", action = ArgAction::SetTrue, value_parser = FalseyValueParser::new().map(completion))]
    #[serde(default)]
    pub completion: CopyCompletion,
    /// Beside the copies: nothing, or a thread on each CPU that works all the time
    #[arg(long, value_enum, default_value_t)]
    #[serde(default, skip_serializing_if = "is_default")]
    pub load: CopyLoad,
    /// Time of the high channels in each window (priority)
    #[arg(long = "quantum", value_name = "TIME", value_parser = parse_ns, default_value = "30us", help_heading = "Priority policy")]
    #[serde(default = "usual::<QUANTUM_NS>")]
    pub quantum_ns: u64,
    /// The window
    #[arg(long = "window", value_name = "TIME", value_parser = parse_ns, default_value = "90us", help_heading = "Priority policy")]
    #[serde(default = "usual::<WINDOW_NS>")]
    pub window_ns: u64,
    /// Channels that are high
    ///
    /// In records and plans a bit mask.
    #[arg(long = "high", value_name = "LIST", value_parser = channel_mask, default_value = "0", help_heading = "Priority policy")]
    #[serde(default = "one::<u64>")]
    pub high_channels: u64,
}

fn completion(interrupt: bool) -> CopyCompletion {
    if interrupt { CopyCompletion::Interrupt } else { CopyCompletion::Poll }
}

fn channel_mask(text: &str) -> Result<u64, String> {
    text.split(',').try_fold(0, |mask, part| {
        let channel = part.parse::<u32>().ok().and_then(|at| 1_u64.checked_shl(at));
        match channel {
            Some(bit) => Ok(mask | bit),
            None => Err(format!("`{part}` is not a channel from 0 to 63")),
        }
    })
}

impl CopyRequest {
    pub fn new(path: CopyPath, direction: Direction, block_bytes: usize) -> CopyRequest {
        CopyRequest {
            path,
            context: CopyContext::Cpu,
            direction,
            block_bytes,
            cold: false,
            lanes: 1,
            channels: 0,
            completion: CopyCompletion::Poll,
            quantum_ns: QUANTUM_NS,
            window_ns: WINDOW_NS,
            high_channels: 1,
            load: CopyLoad::Light,
        }
    }

    /// Memory of all lanes in bytes: both sides of each copy, and three copies while bytes are
    /// compared.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let bytes = self.block_bytes as u64;
        let lane = buffer_bytes(bytes).saturating_mul(2).saturating_add(bytes.saturating_mul(3));
        lane.saturating_mul(self.lanes as u64)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use daqmeter_harness::Request as _;

    use super::*;

    #[test]
    fn a_request_survives_its_workload() {
        let request = CopyRequest {
            context: CopyContext::Priority,
            cold: true,
            lanes: 3,
            completion: CopyCompletion::Interrupt,
            load: CopyLoad::Heavy,
            quantum_ns: 5000,
            ..CopyRequest::new(CopyPath::EngineThread, Direction::Both, 4096)
        };
        assert_eq!(CopyRequest::of(&request.workload()).unwrap(), request);
    }

    #[test]
    fn a_workload_says_what_means_something_in_its_context() {
        let mut request = CopyRequest::new(CopyPath::Pread, Direction::To, 64);
        assert_eq!(
            request.workload().to_string(),
            "copy block_bytes=64 context=cpu direction=to lanes=1 path=pread"
        );
        (request.path, request.context) = (CopyPath::Module, CopyContext::Shared);
        assert_eq!(
            request.workload().to_string(),
            "copy block_bytes=64 channels=0 completion=poll context=shared direction=to lanes=1 path=module"
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let of = |name: &str, value: u64| {
            let workload = CopyRequest::new(CopyPath::Pread, Direction::To, 64).workload();
            CopyRequest::of(&workload.with(name, value)).unwrap_err().0
        };
        for (name, value, wanted) in [
            ("block_bytes", 0, "1 to 1099511627776 is wanted"),
            ("block_bytes", 1 << 63, "1 to 1099511627776 is wanted"),
            ("lanes", 0, "1 to "),
            ("lanes", 1025, "1 to "),
            ("quantum_ns", 90_000, "1 to 89999 is wanted"),
            ("window_ns", 1_000_000_001, "2 to 1000000000 is wanted"),
            ("channels", u64::MAX, "0 to 1024 is wanted"),
        ] {
            let refused = of(name, value);
            assert!(
                refused.contains(&format!("`{name}` is {value}; ")) && refused.contains(wanted),
                "{refused}"
            );
        }
        let workload = CopyRequest::new(CopyPath::Pread, Direction::To, 64).workload();
        let refused = CopyRequest::of(&workload.with("path", "tmpfs-hug")).unwrap_err().0;
        assert!(refused.contains("did you mean `tmpfs-huge`?"), "{refused}");
    }

    #[test]
    fn options_are_understood_or_refused() {
        #[derive(Parser)]
        struct Options {
            #[command(flatten)]
            request: CopyRequest,
        }
        let parse = |arguments: &[&str]| {
            Options::try_parse_from([&["copy"], arguments].concat()).map(|options| options.request)
        };
        let usual =
            CopyRequest { block_bytes: 0, ..CopyRequest::new(CopyPath::Pread, Direction::To, 1) };
        assert_eq!(parse(&[]).unwrap(), usual);
        let asked = parse(&["--interrupt", "--high", "0,3", "--window", "1ms"]).unwrap();
        assert_eq!(
            (asked.completion, asked.high_channels, asked.window_ns),
            (CopyCompletion::Interrupt, 9, 1_000_000)
        );
        for (wrong, wanted) in [("99", "`99` is not a channel from 0 to 63"), ("", "``")] {
            let error = parse(&["--high", wrong]).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
