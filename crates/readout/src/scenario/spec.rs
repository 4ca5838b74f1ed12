//! The fields of a scenario, with their defaults.

use daqmeter_record::units;
use daqmeter_wire::felix::Elink;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::place::Origin;
use crate::recorded::Playback;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
/// One line that names the place.
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

/// A number with its unit, or without one.
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

/// A scenario.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// For tables; the file's name where it is empty.
    pub name: String,
    /// When triggers come.
    pub trigger: TriggerSettings,
    pub card: CardSettings,
    /// When the card stops them.
    pub busy: BusySettings,
    /// Links that differ from the others.
    pub link: Vec<LinkSettings>,
    pub fault: Vec<FaultSpec>,
    pub reader: ReaderSettings,
    pub publish: Publish,
    /// A recorded file whose blocks the card gives instead of its own.
    #[serde(skip)]
    pub(crate) recorded: Option<Playback>,
    /// The file that it was read from, to name its lines.
    #[serde(skip)]
    pub(crate) origin: Origin,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum TriggerKind {
    /// Equal gaps.
    #[default]
    Fixed,
    /// Exponential gaps.
    Poisson,
    /// Times from a file, and the triggers' numbers (`triggers`), once.
    Times,
}

/// `[trigger]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerSettings {
    pub source: TriggerKind,
    /// Mean rate.
    pub rate: Hertz,
    /// Of the random numbers.
    pub seed: u64,
    /// Text file of times and numbers for `times`, which says the rate, too.
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

/// Generation of the firmware.
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
    /// Replayed where the scenario allows it, else live.
    #[default]
    Auto,
    /// Made trigger by trigger.
    Live,
    /// Made once, to fill the ring; the card then only moves its pointer and numbers the blocks.
    Replay,
}

/// `[card]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct CardSettings {
    pub mode: Mode,
    /// Devices of the host: connectors of the fids.
    pub devices: u16,
    /// DMA channels per device.
    pub channels: u16,
    /// Links per DMA channel.
    pub links: u8,
    /// Indices of a link's E-links; eight 8-bit ones (GBT) or one (FULL) where it is empty.
    pub elinks: Vec<u8>,
    /// Bytes of a chunk.
    pub payload: ByteSize,
    /// Bytes of a block.
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
    /// The card's PC_PTR_GAP; an eighth of the ring where it is not said.
    pub pointer_gap: Option<ByteSize>,
    /// Main output FIFO of a channel.
    pub fifo: ByteSize,
    /// Bytes per second and channel; unlimited by default.
    pub dma_rate: Option<ByteSize>,
    /// A block that is not full is closed so long after its first chunk.
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

/// `[busy]`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct BusySettings {
    /// BUSY-by-DMA is on.
    pub dma: bool,
    /// It is asserted when fewer bytes of a ring are free; 7/32 of the ring where it is not said
    /// (224 MiB of 1 GiB).
    pub assert_below: Option<ByteSize>,
    /// It is released when more are free; 1/4 of the ring where it is not said.
    pub release_above: Option<ByteSize>,
    /// BUSY-by-FIFO is on.
    pub fifo: bool,
    /// Nothing reaches the trigger source: flags only.
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

/// `[[link]]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    pub link: u8,
    /// Share of the triggers for which its emulator makes no fragment.
    #[serde(default)]
    pub deficit: f64,
    /// Bytes of its chunks.
    pub payload: Option<ByteSize>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The block never reaches the ring.
    LostBlock,
    /// It comes twice.
    DuplicatedBlock,
    /// It changes places with the next of its E-link.
    SwappedBlocks,
    /// The last trailer has the undefined type.
    CorruptedTrailer,
    /// The header has another magic.
    CorruptedMagic,
    /// The chunk's trailer says truncated.
    Truncated,
    /// It says error.
    Error,
    /// It says CRC error.
    Crc,
    /// It says busy.
    Busy,
    /// An out-of-band marker before the chunk.
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

/// `[[fault]]`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    pub kind: FaultKind,
    /// With which E-link; all of them where it is not said.
    pub elink: Option<u16>,
    /// With every so-many-th block or chunk.
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

/// `[reader]`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct ReaderSettings {
    pub mode: ReaderMode,
    /// Polling interval; 0 never sleeps.
    pub poll: Nanos,
    /// Poll or interrupt.
    pub completion: ReaderCompletion,
    /// Bytes of a page.
    pub page: ByteSize,
    /// Pages per subscriber that may wait for it.
    pub pages: usize,
    /// A page with data is sent at the latest after this time.
    pub timeout: Nanos,
    /// Slow subscribers.
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

/// `[publish]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Publish {
    /// `tcp`, or `zenoh` where that was built in.
    pub transport: String,
    pub address: String,
    /// Congestion control of each socket; the host's default where it is `default`.
    pub congestion: String,
    /// A subscriber that acknowledges nothing for so long is taken for dead.
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

/// One E-link of a channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElinkSpec {
    pub elink: Elink,
    pub link: u8,
    /// Bytes of its chunks.
    pub payload_bytes: usize,
    /// Share of the triggers without a fragment.
    pub deficit: f64,
    /// The trigger system's own.
    pub is_ttc: bool,
    /// The fid under which it is published.
    pub tag: u64,
}

/// Parts of a read-out in one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounts {
    /// Channels of a card.
    pub channels: usize,
    /// Subscribers of readers, all together.
    pub subscribers: usize,
    /// Connections of receivers to publishers.
    pub receptions: usize,
}
