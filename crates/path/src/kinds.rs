//! Kinds of sources, stages and sinks with the fields of their tables in a path's file. A field is
//! that of the engine's own request, where it has one.

use daqmeter_copy::CopyPath;
use daqmeter_digitizer::conversion::ConversionRequest;
use daqmeter_digitizer::devices::sis8300::emulated::Profile;
use daqmeter_digitizer::function::Function;
use daqmeter_digitizer::request::TriggerCompletion;
use daqmeter_harness::Resolved;
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_readout::{Chosen, Scenario};
use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_record::written::{ByteSize, Hertz, Nanos};
use daqmeter_wire::felix::BlockFormat;
use serde::{Deserialize, Deserializer, de};

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum SourceKind {
    /// A pattern, copied from memory of that many bytes.
    Memory {
        #[serde(default = "bytes::<{ 16 << 20 }>")]
        span: ByteSize,
    },
    /// A block device or a file, read in order.
    File {
        path: String,
        #[serde(default)]
        cached: bool,
    },
    /// Boards, one thread each.
    Digitizer {
        devices: Vec<String>,
        #[serde(default)]
        profile: Resolved<Profile>,
        #[serde(default)]
        unpaced: bool,
        trigger: Option<Hertz>,
        #[serde(default = "interrupt")]
        completion: TriggerCompletion,
        #[serde(default = "usual_poll")]
        poll_interval: Nanos,
    },
    /// Times of a timing receiver, read over Etherbone in cycles of `count`.
    Etherbone {
        address: String,
        #[serde(default = "usual_count")]
        count: u64,
    },
    /// Blocks of an emulated card, made beforehand.
    Felix {
        scenario: Resolved<Scenario>,
        #[serde(default = "bytes::<{ 16 << 20 }>")]
        span: ByteSize,
    },
    /// An emulated card, which writes blocks into its rings as triggers come.
    Card {
        #[serde(flatten)]
        chosen: Box<Chosen>,
    },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum StageKind {
    /// Copied by an instruction.
    Copy {
        #[serde(default = "memcpy", deserialize_with = "copy_kernel")]
        by: CopyKernel,
    },
    /// Samples to numbers.
    Convert {
        #[serde(deserialize_with = "function")]
        function: Function,
        #[serde(flatten)]
        request: Box<ConversionRequest>,
    },
    /// Subchunks found in blocks of this scenario.
    Decode {
        scenario: Option<Resolved<Scenario>>,
        #[serde(skip)]
        format: Option<BlockFormat>,
    },
    /// Each byte is read, for a sum.
    Checksum {},
    /// Arithmetic for each block: a stage that does not exist yet.
    Work { time: Nanos },
    /// A wait for each block: a device that does not exist yet.
    Wait { time: Nanos },
    /// Written to a program and read from it.
    Program {
        command: Vec<String>,
        #[serde(default)]
        changes: bool,
    },
    /// Sent over TCP on loopback and received, or behind `to-host` the transport of its pages.
    Tcp { congestion: Option<String> },
    /// Sent over a pair of Unix sockets.
    Unix {},
    /// A card's rings are read, and their chunks put into pages.
    ToHost {},
    /// Behind `to-host`: pages are published over Zenoh.
    Zenoh {},
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum SinkKind {
    /// Each byte is read once.
    Read {},
    /// Written to a file of at most `max` bytes, from its beginning again when it is full; `direct`
    /// bypasses the page cache.
    File {
        path: String,
        #[serde(default = "bytes::<{ 256 << 20 }>")]
        max: ByteSize,
        #[serde(default)]
        direct: bool,
    },
    /// Subscribes to pages and checks each chunk.
    Receiver {
        /// One for each DMA channel, unless there are fewer.
        threads: Option<usize>,
    },
    /// Sent to a receiver on another host.
    Tcp { to: String, congestion: Option<String> },
    /// The same in datagrams.
    Udp {
        to: String,
        #[serde(default = "bytes::<IN_A_FRAME>")]
        datagram: ByteSize,
        #[serde(default = "bytes::<{ 4 << 20 }>")]
        socket_buffer: ByteSize,
    },
}

fn interrupt() -> TriggerCompletion {
    TriggerCompletion::Interrupt
}

fn usual_poll() -> Nanos {
    Nanos(1000)
}

/// Times of a cycle: the number in the study of 2018.
fn usual_count() -> u64 {
    8
}

/// Bytes of a datagram in an Ethernet frame.
const IN_A_FRAME: usize = 1472;

fn bytes<const N: usize>() -> ByteSize {
    ByteSize(N)
}

fn memcpy() -> CopyKernel {
    CopyKernel::Memcpy
}

fn copy_kernel<'de, D: Deserializer<'de>>(from: D) -> Result<CopyKernel, D::Error> {
    let path = CopyPath::deserialize(from)?;
    path.kernel().ok_or_else(|| {
        let here: Vec<&str> = CopyKernel::available().into_iter().map(CopyKernel::name).collect();
        let here = here.join(", ");
        de::Error::custom(format!(
            "`{path}` does not copy between two blocks here; these do: {here}"
        ))
    })
}

fn function<'de, D: Deserializer<'de>>(from: D) -> Result<Function, D::Error> {
    let number = u64::deserialize(from)?;
    let found = Function::conversions().find(|function| function.number() == number);
    found.ok_or_else(|| de::Error::custom(format!("is {number}; 1 to 8 is wanted")))
}

impl SourceKind {
    pub(crate) fn text(&self) -> String {
        match self {
            SourceKind::Memory { span } => format!("memory, {}", show_bytes(span.0 as u64)),
            SourceKind::File { path, cached: true } => format!("file {path}, page cache"),
            SourceKind::File { path, cached: false } => format!("file {path}, direct"),
            SourceKind::Digitizer { devices, trigger, .. } => {
                let trigger =
                    trigger.map_or_else(String::new, |hz| format!(", {} Hz", significant(hz.0, 4)));
                format!("digitizer {}{trigger}", devices.join(" "))
            }
            SourceKind::Etherbone { address, count } => {
                format!("etherbone {address}, {count} times a cycle")
            }
            SourceKind::Felix { scenario, .. } => format!("felix {}", scenario.name()),
            SourceKind::Card { chosen } => format!("card {}", chosen.scenario.name()),
        }
    }

    /// Digest of the file that it names; empty without one, or if it ships.
    pub(crate) fn digest(&self) -> &str {
        match self {
            SourceKind::Digitizer { profile, .. } => profile.digest(),
            SourceKind::Felix { scenario, .. } => scenario.digest(),
            SourceKind::Card { chosen } => chosen.scenario.digest(),
            _ => "",
        }
    }

    /// Bytes of memory that it makes blocks from.
    pub(crate) fn span_bytes(&self) -> usize {
        match self {
            SourceKind::Memory { span } | SourceKind::Felix { span, .. } => span.0,
            _ => 0,
        }
    }
}

impl StageKind {
    pub(crate) fn text(&self) -> String {
        match self {
            StageKind::Copy { by } => format!("copy {}", by.name()),
            StageKind::Convert { function, .. } => {
                format!("convert, function {}", function.number())
            }
            StageKind::Decode { .. } => "decode".to_owned(),
            StageKind::Checksum {} => "checksum".to_owned(),
            StageKind::Work { time } => format!("work of {}", show_ns(time.0 as f64)),
            StageKind::Wait { time } => format!("wait of {}", show_ns(time.0 as f64)),
            StageKind::Program { command, .. } => format!("program {}", command.join(" ")),
            StageKind::Tcp { congestion } => format!("tcp on loopback{}", by(congestion.as_ref())),
            StageKind::Unix {} => "unix socket".to_owned(),
            StageKind::ToHost {} => "to-host".to_owned(),
            StageKind::Zenoh {} => "zenoh".to_owned(),
        }
    }

    /// Digest of the file that it names; empty without one, or if it ships.
    pub(crate) fn digest(&self) -> &str {
        match self {
            StageKind::Decode { scenario: Some(scenario), .. } => scenario.digest(),
            _ => "",
        }
    }

    /// True if it has a thread at each end of something that bytes go through.
    pub(crate) fn has_two_ends(&self) -> bool {
        matches!(self, StageKind::Program { .. } | StageKind::Tcp { .. } | StageKind::Unix {})
    }
}

impl SinkKind {
    pub(crate) fn text(&self) -> String {
        match self {
            SinkKind::Read {} => "read".to_owned(),
            SinkKind::Receiver { .. } => "receiver".to_owned(),
            SinkKind::Tcp { to, congestion } => format!("tcp to {to}{}", by(congestion.as_ref())),
            SinkKind::Udp { to, datagram, .. } => {
                format!("udp to {to}, datagrams of {} B", datagram.0)
            }
            SinkKind::File { path, direct: true, .. } => format!("file {path}, direct"),
            SinkKind::File { path, .. } => format!("file {path}"),
        }
    }

    /// Address of a receiver on another host.
    pub(crate) fn to(&self) -> Option<&str> {
        match self {
            SinkKind::Tcp { to, .. } | SinkKind::Udp { to, .. } => Some(to),
            SinkKind::Read {} | SinkKind::File { .. } | SinkKind::Receiver { .. } => None,
        }
    }
}

/// Congestion control that differs from the host's own.
fn by(congestion: Option<&String>) -> String {
    congestion.map_or_else(String::new, |name| format!(", {name}"))
}
