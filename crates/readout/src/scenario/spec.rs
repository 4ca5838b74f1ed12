//! The fields of a scenario, with their defaults.

use daqmeter_harness::Resolved;
use daqmeter_record::written::{ByteSize, Hertz, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// Name for tables; the file's name if it is empty.
    pub name: String,
    pub trigger: TriggerSettings,
    pub card: CardSettings,
    pub busy: BusySettings,
    pub fault: Vec<FaultSpec>,
    pub reader: ReaderSettings,
    pub publish: Publish,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum TriggerKind {
    #[default]
    Fixed,
    Poisson,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerSettings {
    pub source: TriggerKind,
    /// 0 for no trigger. That of a file of times is their mean rate.
    pub rate: Hertz,
    pub seed: u64,
    /// File of the times of the triggers, in place of a source.
    pub times: Option<Resolved<Pattern>>,
}

impl Default for TriggerSettings {
    fn default() -> Self {
        TriggerSettings { source: TriggerKind::Fixed, rate: Hertz(100e3), seed: 1, times: None }
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
    /// Made once, to fill the ring, if all turns are alike ([`Scenario::replays`]). The card then
    /// only moves its pointer and numbers the blocks.
    #[default]
    Auto,
    Live,
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
    /// Share of triggers for which the emulator of each link makes no fragment; 0 by default.
    pub deficits: Vec<f64>,
    pub block: ByteSize,
    pub format: Generation,
    /// Channel 0 of each device carries the trigger system's E-link 0x600.
    pub ttc: bool,
    pub blocks: BlockSource,
    /// Bytes of the ring; replayed ones hold whole turns and are a little smaller.
    pub ring: ByteSize,
    /// True if reserved huge pages are taken where the pool has enough.
    pub huge_pages: bool,
    /// PC_PTR_GAP of the card; an eighth of the ring by default.
    pub pointer_gap: Option<ByteSize>,
    pub fifo: ByteSize,
    /// Bytes per second and channel; unlimited by default.
    pub dma_rate: Option<ByteSize>,
    /// Time after its first chunk at which a block that is not full is closed.
    pub timeout: Option<Nanos>,
    /// True if the links of FULL mode obey XOFF: they send nothing while the FIFO of their channel
    /// is above its mark.
    pub xoff: bool,
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
            deficits: Vec::new(),
            block: ByteSize(1024),
            format: Generation::Phase2,
            ttc: false,
            blocks: BlockSource::Auto,
            ring: ByteSize(64 << 20),
            huge_pages: true,
            pointer_gap: None,
            fifo: ByteSize(1 << 20),
            dma_rate: None,
            timeout: None,
            xoff: false,
        }
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct BusySettings {
    pub dma: bool,
    /// Free bytes of a ring below which it is asserted; 7/32 of the ring by default (224 MiB of 1
    /// GiB).
    pub assert_below: Option<ByteSize>,
    /// Free bytes above which it is released; 1/4 of the ring by default.
    pub release_above: Option<ByteSize>,
    pub fifo: bool,
    /// File of the intervals of BUSY from outside: begins and ends.
    pub outside: Option<Resolved<Pattern>>,
}

impl Default for BusySettings {
    fn default() -> Self {
        BusySettings {
            dma: true,
            assert_below: None,
            release_above: None,
            fifo: false,
            outside: None,
        }
    }
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
pub enum ReaderCompletion {
    /// Looks again after the polling interval.
    #[default]
    Poll,
    /// Sleeps until the card's interrupt.
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
            address: "127.0.0.1:0".to_owned(),
            congestion: "reno".to_owned(),
            dead_after: Nanos(5_000_000_000),
            max_subscribers: 32,
        }
    }
}
