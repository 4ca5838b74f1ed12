//! The fields of a scenario, with their defaults.

use daqmeter_record::units;
use daqmeter_wire::felix::Elink;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::place::Origin;
use crate::recorded::Playback;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
/// Error in one line that names the place.
pub struct ScenarioError(pub String);

/// A size, written `64MiB` or as a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub usize);

/// A time, written `100us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nanos(pub u64);

/// A rate, written `1MHz` or as a number of hertz.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hertz(pub f64);

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text such as \"64MiB\", \"100us\" or \"1MHz\", or a number"
)]
enum Written {
    Text(String),
    Int(i64),
    Float(f64),
}

impl Written {
    fn text(self) -> String {
        match self {
            Written::Text(text) => text,
            Written::Int(int) => int.to_string(),
            Written::Float(float) => float.to_string(),
        }
    }
}

fn written<'de, D: Deserializer<'de>, T, E: std::fmt::Display>(
    deserializer: D,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    read(&Written::deserialize(deserializer)?.text()).map_err(de::Error::custom)
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = written(deserializer, units::parse_bytes)?;
        usize::try_from(bytes).map(ByteSize).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Nanos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let time = written(deserializer, units::parse_duration)?;
        u64::try_from(time.as_nanos()).map(Nanos).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Hertz {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        written(deserializer, units::parse_rate_hz).map(Hertz)
    }
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Name for tables; the file's name if it is empty.
    pub name: String,
    pub trigger: TriggerSettings,
    pub card: CardSettings,
    pub busy: BusySettings,
    pub link: Vec<LinkSettings>,
    pub fault: Vec<FaultSpec>,
    pub reader: ReaderSettings,
    pub publish: Publish,
    /// A recorded file whose blocks the card gives instead of its own.
    #[serde(skip)]
    pub(crate) recorded: Option<Playback>,
    #[serde(skip)]
    pub(crate) origin: Origin,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum TriggerKind {
    #[default]
    Fixed,
    Poisson,
    /// Times from a file, and the triggers' numbers (`triggers`), once.
    Times,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerSettings {
    pub source: TriggerKind,
    pub rate: Hertz,
    pub seed: u64,
    /// Text file of times and numbers for `times`, which also gives the rate.
    pub file: Option<String>,
    /// BUSY from outside: `10ms/5%`, or a file of times with on and off (`pattern`).
    pub external_busy: Option<String>,
}

impl Default for TriggerSettings {
    fn default() -> Self {
        let rate = Hertz(100e3);
        TriggerSettings {
            source: TriggerKind::Fixed,
            rate,
            seed: 1,
            file: None,
            external_busy: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Many narrow E-links per link.
    #[default]
    Gbt,
    /// One wide E-link per link.
    Full,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Generation {
    /// 0xC0CE and its sizes, 32-bit trailers.
    #[default]
    Phase2,
    /// 0xABCD, 1 KiB, 16-bit trailers.
    Phase1,
    /// 0xABCE, 32-bit trailers.
    Phase1Wide,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum BlockSource {
    #[default]
    Auto,
    Live,
    /// Made once, to fill the ring. The card then only moves its pointer and numbers the blocks.
    Replay,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct CardSettings {
    pub mode: Mode,
    /// Devices of the host: connectors of the fids.
    pub devices: u16,
    pub channels: u16,
    pub links: u8,
    /// Indices of a link's E-links; if empty, eight 8-bit ones (GBT) or one (FULL).
    pub elinks: Vec<u8>,
    pub payload: ByteSize,
    pub block: ByteSize,
    pub format: Generation,
    /// Channel 0 of each device carries the trigger system's E-link 0x600.
    pub ttc: bool,
    pub blocks: BlockSource,
    /// Bytes of the ring; replayed ones hold whole turns and are a little smaller.
    pub ring: ByteSize,
    /// Reserved huge pages: true takes no others, false takes none. Without a value they are taken
    /// if the pool has enough.
    pub huge_pages: Option<bool>,
    /// PC_PTR_GAP of the card; an eighth of the ring by default.
    pub pointer_gap: Option<ByteSize>,
    pub fifo: ByteSize,
    /// Bytes per second and channel; unlimited by default.
    pub dma_rate: Option<ByteSize>,
    /// Time after its first chunk at which a block that is not full is closed.
    pub timeout: Option<Nanos>,
}

impl Default for CardSettings {
    fn default() -> Self {
        CardSettings {
            mode: Mode::Gbt,
            devices: 1,
            channels: 1,
            links: 3,
            elinks: Vec::new(),
            payload: ByteSize(24),
            block: ByteSize(1024),
            format: Generation::Phase2,
            ttc: false,
            blocks: BlockSource::Auto,
            ring: ByteSize(64 << 20),
            huge_pages: None,
            pointer_gap: None,
            fifo: ByteSize(1 << 20),
            dma_rate: None,
            timeout: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct BusySettings {
    pub dma: bool,
    /// Free bytes of a ring below which it is asserted; 7/32 of the ring by default (224 MiB of 1
    /// GiB).
    pub assert_below: Option<ByteSize>,
    /// Free bytes above which it is released; 1/4 of the ring by default.
    pub release_above: Option<ByteSize>,
    pub fifo: bool,
    /// True if nothing reaches the trigger source: flags only.
    pub inhibit: bool,
}

impl Default for BusySettings {
    fn default() -> Self {
        BusySettings {
            dma: true,
            assert_below: None,
            release_above: None,
            fifo: false,
            inhibit: false,
        }
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    pub link: u8,
    #[serde(default)]
    pub deficit: f64,
    pub payload: Option<ByteSize>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    LostBlock,
    DuplicatedBlock,
    SwappedBlocks,
    CorruptedTrailer,
    CorruptedMagic,
    Truncated,
    Error,
    Crc,
    Busy,
    OutOfBand,
}

impl FaultKind {
    pub(crate) fn is_of_block(self) -> bool {
        use FaultKind::{
            CorruptedMagic, CorruptedTrailer, DuplicatedBlock, LostBlock, SwappedBlocks,
        };
        matches!(
            self,
            LostBlock | DuplicatedBlock | SwappedBlocks | CorruptedTrailer | CorruptedMagic
        )
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    pub kind: FaultKind,
    /// E-link with the fault; all of them by default.
    pub elink: Option<u16>,
    pub every: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ReaderMode {
    /// Copies them to pages: the ring is free at once.
    #[default]
    Buffered,
    /// Sends blocks from the ring: it is free when the network has them.
    ZeroCopy,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ReaderCompletion {
    /// It looks again after the polling interval.
    #[default]
    Poll,
    /// It sleeps until the card's interrupt.
    Interrupt,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OnSlow {
    /// The reader waits; the ring fills, BUSY comes.
    #[default]
    Block,
    Drop,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct ReaderSettings {
    pub mode: ReaderMode,
    pub poll: Nanos,
    pub completion: ReaderCompletion,
    pub page: ByteSize,
    pub pages: usize,
    /// A page with data is sent at the latest after this time.
    pub timeout: Nanos,
    pub on_slow: OnSlow,
}

impl Default for ReaderSettings {
    fn default() -> Self {
        ReaderSettings {
            mode: ReaderMode::Buffered,
            poll: Nanos(100_000),
            completion: ReaderCompletion::Poll,
            page: ByteSize(256 << 10),
            pages: 64,
            timeout: Nanos(1_000_000),
            on_slow: OnSlow::Block,
        }
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Publish {
    /// `tcp`, or `zenoh` where that was built in.
    pub transport: String,
    pub address: String,
    /// Congestion control of each socket; `default` keeps the host's own.
    pub congestion: String,
    /// Time without acknowledgement after which a subscriber is taken for dead.
    pub dead_after: Nanos,
    /// Subscribers of one publisher at a time; a further one is refused.
    pub max_subscribers: usize,
}

impl Default for Publish {
    fn default() -> Self {
        Publish {
            transport: "tcp".to_owned(),
            address: "127.0.0.1:0".to_owned(),
            congestion: "reno".to_owned(),
            dead_after: Nanos(5_000_000_000),
            max_subscribers: 32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElinkSpec {
    pub elink: Elink,
    pub link: u8,
    pub payload_bytes: usize,
    pub deficit: f64,
    pub is_ttc: bool,
    pub tag: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounts {
    pub channels: usize,
    pub subscribers: usize,
    pub receptions: usize,
}
