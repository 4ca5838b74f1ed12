//! One file that says what is read out and how: triggers, card, BUSY, faults, reader, network.
//!
//! Every field has a default; `daqmeter list scenarios` names those that ship.
//!
//! ```toml
//! [trigger]
//! source = "fixed"            # fixed, poisson, bursty, file
//! rate = "1MHz"
//! [card]
//! mode = "gbt"                # gbt, full
//! links = 3                   # per DMA channel
//! payload = "24B"
//! ring = "64MiB"
//! [[link]]                    # what is different about one link of every channel
//! link = 2
//! deficit = 0.0126
//! [busy]
//! assert_below = "14MiB"
//! [reader]
//! poll = "100us"
//! ```

mod check;
mod memory;
mod place;

use std::io::Read;
use std::path::Path;

use daqmeter_record::units;
use daqmeter_sys::memory::Pages;
use daqmeter_wire::felix::encoder::blocks_of;
use daqmeter_wire::felix::payload::{Fid, TTC_BYTES};
use daqmeter_wire::felix::{Elink, Format};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

pub use check::{MAX_PAYLOAD_BYTES, check_congestion};
pub use memory::Parts;
use place::{Origin, one_line};

/// Why a scenario is none: one line that names the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScenarioError(pub String);

/// A size, written `64MiB` or as a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub usize);

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

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = written(deserializer, units::parse_bytes)?;
        usize::try_from(bytes).map(Bytes).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Nanos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let time = written(deserializer, units::parse_duration)?;
        u64::try_from(time.as_nanos())
            .map(Nanos)
            .map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Hertz {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        written(deserializer, units::parse_rate_hz).map(Hertz)
    }
}

/// The whole of it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// For tables; the file's name where it is empty.
    pub name: String,
    /// When triggers come.
    pub trigger: Trigger,
    /// What the card does with them.
    pub card: Card,
    /// When the card stops them.
    pub busy: Busy,
    /// Links that differ from the others.
    pub link: Vec<Link>,
    /// What goes wrong on request.
    pub fault: Vec<FaultSpec>,
    /// How the host reads.
    pub reader: Reader,
    /// How data leaves the host.
    pub publish: Publish,
    /// The file that it was read from, to name its lines.
    #[serde(skip)]
    origin: Origin,
}

/// How triggers are spaced.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// Equal gaps.
    #[default]
    Fixed,
    /// Exponential gaps.
    Poisson,
    /// Bursts of equal gaps, the bursts at equal distance.
    Bursty,
    /// Gaps from a file, over and over.
    File,
}

/// `[trigger]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Trigger {
    /// How they are spaced.
    pub source: SourceKind,
    /// Mean rate.
    pub rate: Hertz,
    /// Of the random numbers.
    pub seed: u64,
    /// Triggers of a burst.
    pub burst: u64,
    /// Gap between the triggers of a burst.
    pub spacing: Nanos,
    /// Text file of gaps in ns, one per line, for `file`; scaled to the mean rate.
    pub file: Option<String>,
}

impl Default for Trigger {
    fn default() -> Self {
        let rate = Hertz(100e3);
        Trigger {
            source: SourceKind::Fixed,
            rate,
            seed: 1,
            burst: 10,
            spacing: Nanos(100),
            file: None,
        }
    }
}

/// What the card's links speak.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Many narrow E-links per link.
    #[default]
    Gbt,
    /// One wide E-link per link, with flow control (XOFF).
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

/// Where the blocks come from.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Blocks {
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
pub struct Card {
    /// What its links speak.
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
    pub payload: Bytes,
    /// Bytes of a block.
    pub block: Bytes,
    /// How blocks look.
    pub format: Generation,
    /// Whether channel 0 of each device carries the trigger system's E-link 0x600.
    pub ttc: bool,
    /// Where blocks come from.
    pub blocks: Blocks,
    /// Bytes of the ring; replayed ones hold whole turns and are a little smaller.
    pub ring: Bytes,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// NUMA node of the rings.
    pub numa_node: Option<u32>,
    /// The DMA writes multiples of this.
    pub tlp: Bytes,
    /// The card's PC_PTR_GAP; an eighth of the ring where it is not said.
    pub pointer_gap: Option<Bytes>,
    /// Main output FIFO of a channel.
    pub fifo: Bytes,
    /// What the DMA moves per second and channel; none is as fast as need be.
    pub dma_rate: Option<Bytes>,
    /// A block that is not full is closed so long after its first chunk.
    pub timeout: Option<Nanos>,
    /// FULL mode: the sender is told to wait when the FIFO holds so much.
    pub xoff_above: Option<Bytes>,
    /// FULL mode: and to go on when it holds no more than this.
    pub xon_below: Option<Bytes>,
    /// FULL mode: events that the sender can hold back.
    pub sender_events: u64,
}

impl Default for Card {
    fn default() -> Self {
        Card {
            mode: Mode::Gbt,
            devices: 1,
            channels: 1,
            links: 3,
            elinks: Vec::new(),
            payload: Bytes(24),
            block: Bytes(1024),
            format: Generation::Phase2,
            ttc: false,
            blocks: Blocks::Auto,
            ring: Bytes(64 << 20),
            huge_pages: true,
            numa_node: None,
            tlp: Bytes(512),
            pointer_gap: None,
            fifo: Bytes(1 << 20),
            dma_rate: None,
            timeout: None,
            xoff_above: None,
            xon_below: None,
            sender_events: 64,
        }
    }
}

/// `[busy]`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Busy {
    /// BUSY-by-DMA is on.
    pub dma: bool,
    /// It is asserted when fewer bytes of a ring are free; 7/32 of the ring where it is not said (224 MiB of 1 GiB).
    pub assert_below: Option<Bytes>,
    /// It is released when more are free; 1/4 of the ring where it is not said.
    pub release_above: Option<Bytes>,
    /// BUSY-by-FIFO is on.
    pub fifo: bool,
    /// It is asserted when the FIFO holds more; 3/4 of it where it is not said.
    pub fifo_high: Option<Bytes>,
    /// It is released when the FIFO holds less; 1/2 of it where it is not said.
    pub fifo_low: Option<Bytes>,
    /// Nothing reaches the trigger source: flags only.
    pub inhibit: bool,
}

impl Default for Busy {
    fn default() -> Self {
        Busy {
            dma: true,
            assert_below: None,
            release_above: None,
            fifo: false,
            fifo_high: None,
            fifo_low: None,
            inhibit: false,
        }
    }
}

/// `[[link]]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Which one of every channel, from 0.
    pub link: u8,
    /// Share of the triggers for which its emulator makes no fragment.
    #[serde(default)]
    pub deficit: f64,
    /// Bytes of its chunks.
    pub payload: Option<Bytes>,
}

/// What can go wrong on request.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The block never reaches the ring.
    LostBlock,
    /// It comes twice.
    DuplicatedBlock,
    /// It changes places with the next of its E-link.
    SwappedBlocks,
    /// Its last trailer has the undefined type.
    CorruptedTrailer,
    /// Its header has another magic.
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
    /// Whether it hits blocks, not chunks.
    pub fn is_of_block(self) -> bool {
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
    /// What goes wrong.
    pub kind: FaultKind,
    /// With which E-link; all of them where it is not said.
    pub elink: Option<u16>,
    /// With every so-many-th block or chunk.
    pub every: u64,
}

/// What the reader does with chunks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ReaderMode {
    /// Copies them to pages: the ring is free at once.
    #[default]
    Buffered,
    /// Sends blocks from the ring: it is free when the network has them.
    ZeroCopy,
}

/// How the reader learns of data.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Completion {
    /// It looks again after the polling interval.
    #[default]
    Poll,
    /// It sleeps until the card's interrupt.
    Interrupt,
}

/// What a subscriber that takes nothing does to the others.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum OnSlow {
    /// The reader waits; the ring fills, BUSY comes.
    #[default]
    Block,
    /// Its pages are dropped and counted.
    Drop,
}

/// `[reader]`
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Reader {
    /// What it does with chunks.
    pub mode: ReaderMode,
    /// Polling interval; 0 never sleeps.
    pub poll: Nanos,
    /// Poll or interrupt.
    pub completion: Completion,
    /// Bytes of a page.
    pub page: Bytes,
    /// Pages per subscriber that may wait for it.
    pub pages: usize,
    /// A page with data is sent at the latest after this time.
    pub timeout: Nanos,
    /// Check event counters and trigger numbers in the reader.
    pub l0id_check: bool,
    /// Slow subscribers.
    pub on_slow: OnSlow,
}

impl Default for Reader {
    fn default() -> Self {
        Reader {
            mode: ReaderMode::Buffered,
            poll: Nanos(100_000),
            completion: Completion::Poll,
            page: Bytes(256 << 10),
            pages: 64,
            timeout: Nanos(1_000_000),
            l0id_check: false,
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
    /// Where the publisher listens (tcp) or what it connects to or listens on (zenoh, an endpoint).
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
    /// Its number in the device.
    pub elink: Elink,
    /// Its link within the channel.
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

/// Scenarios that ship.
pub const SHIPPED: &[(&str, &str)] = &[
    ("gbt", include_str!("../scenarios/gbt.toml")),
    ("full", include_str!("../scenarios/full.toml")),
    ("felig", include_str!("../scenarios/felig.toml")),
    ("nikhef", include_str!("../scenarios/nikhef.toml")),
];

/// Longest file of a scenario: shipped ones are below 2 KiB.
const MAX_SCENARIO_BYTES: u64 = 1 << 20;

/// A text file of at most so many bytes. Devices and pipes may never end.
pub(crate) fn read_text(path: &Path, max_bytes: u64) -> std::io::Result<String> {
    let mut text = String::new();
    let got = std::fs::File::open(path)?
        .take(max_bytes + 1)
        .read_to_string(&mut text)?;
    if got as u64 > max_bytes {
        let what = format!("longer than {}", units::show_bytes(max_bytes));
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

impl Scenario {
    /// From a name that ships, or a file.
    ///
    /// # Errors
    /// When there is no such thing, or it is no scenario.
    pub fn load(name: &str) -> Result<Scenario, ScenarioError> {
        if let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            return Scenario::parse(text, name);
        }
        let path = Path::new(name);
        let text = read_text(path, MAX_SCENARIO_BYTES).map_err(|error| {
            let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            ScenarioError(format!(
                "cannot read the scenario {name}: {error}; shipped ones are {}",
                names.join(", ")
            ))
        })?;
        let stem = path
            .file_stem()
            .map_or(name.to_owned(), |stem| stem.to_string_lossy().into_owned());
        let named = |error| ScenarioError(format!("{name}: {error}"));
        let mut scenario = Scenario::parse(&text, &stem).map_err(named)?;
        scenario.origin.file = Some(name.to_owned());
        Ok(scenario)
    }

    /// From text; the name is for tables.
    ///
    /// # Errors
    /// Names line and field.
    pub fn parse(text: &str, name: &str) -> Result<Scenario, ScenarioError> {
        let mut scenario: Scenario =
            toml::from_str(text).map_err(|error| ScenarioError(one_line(text, &error)))?;
        if scenario.name.is_empty() {
            name.clone_into(&mut scenario.name);
        }
        scenario.origin = Origin {
            file: None,
            text: text.into(),
        };
        scenario
            .find_wrong()
            .map_err(|wrong| ScenarioError(scenario.origin.located(&wrong)))?;
        Ok(scenario)
    }

    /// How blocks look.
    pub fn format(&self) -> Option<Format> {
        let kib = u8::try_from(self.card.block.0 / 1024)
            .ok()
            .filter(|_| self.card.block.0.is_multiple_of(1024))?;
        match self.card.format {
            Generation::Phase2 => Format::phase2(kib),
            Generation::Phase1Wide => Format::phase1_wide(kib),
            Generation::Phase1 => (kib == 1).then_some(Format::PHASE1),
        }
    }

    /// Indices of a link's E-links.
    pub fn link_elinks(&self) -> Vec<u8> {
        match (self.card.elinks.is_empty(), self.card.mode) {
            (false, _) => self.card.elinks.clone(),
            (true, Mode::Gbt) => (2..10).map(|path| path * 4).collect(),
            (true, Mode::Full) => vec![0],
        }
    }

    /// The E-links of a DMA channel.
    pub fn elinks(&self, device: u16, channel: u16) -> Vec<ElinkSpec> {
        let of = |elink, link, payload_bytes, deficit, is_ttc| ElinkSpec {
            elink,
            link,
            payload_bytes,
            deficit,
            is_ttc,
            tag: Fid::of_elink(0, device, elink).to_u64(),
        };
        let mut elinks = Vec::new();
        for link in 0..self.card.links {
            let own = self.link.iter().find(|own| own.link == link);
            let payload = own
                .and_then(|own| own.payload)
                .unwrap_or(self.card.payload)
                .0;
            let number = u8::try_from(u16::from(link) + channel * u16::from(self.card.links))
                .unwrap_or(u8::MAX);
            let deficit = own.map_or(0.0, |own| own.deficit);
            for index in self.link_elinks() {
                elinks.push(of(
                    Elink::of_link(number, index),
                    link,
                    payload,
                    deficit,
                    false,
                ));
            }
        }
        if self.card.ttc && channel == 0 {
            elinks.push(of(Elink::TTC, self.card.links, TTC_BYTES, 0.0, true));
        }
        elinks
    }

    /// Bytes that a trigger brings into each ring, blocks and trailers included.
    pub fn event_bytes(&self) -> f64 {
        const MANY: u64 = 1 << 20;
        let Some(format) = self.format() else {
            return 0.0;
        };
        let of = |spec: &ElinkSpec| {
            blocks_of(format, spec.payload_bytes, MANY) as f64 * (1.0 - spec.deficit)
        };
        self.elinks(0, 0).iter().map(of).sum::<f64>() * format.block_bytes as f64 / MANY as f64
    }

    /// Why the card's blocks cannot be made once and replayed, if they cannot.
    pub fn why_not_replayed(&self) -> Option<&'static str> {
        match self {
            _ if self.card.ttc => Some("the trigger system's E-link, whose numbers grow,"),
            _ if !self.fault.is_empty() => Some("faults"),
            _ if self.link.iter().any(|link| link.deficit > 0.0) => Some("a link with a deficit"),
            _ if self.card.timeout.is_some() => Some("blocks closed by a timeout"),
            _ if self.card.xoff_above.is_some() => Some("XOFF"),
            _ => None,
        }
    }

    /// Whether blocks are replayed.
    pub fn replays(&self) -> bool {
        self.card.blocks != Blocks::Live && self.why_not_replayed().is_none()
    }

    /// The card's pointer gap.
    pub fn pointer_gap(&self) -> usize {
        self.card
            .pointer_gap
            .map_or(self.card.ring.0 / 8, |gap| gap.0)
    }

    /// Free bytes below which BUSY-by-DMA is asserted, and above which it is released.
    pub fn dma_thresholds(&self) -> (usize, usize) {
        let ring = self.card.ring.0;
        (
            self.busy
                .assert_below
                .map_or(ring / 32 * 7, |bytes| bytes.0),
            self.busy.release_above.map_or(ring / 4, |bytes| bytes.0),
        )
    }

    /// Bytes of the FIFO below which BUSY-by-FIFO is released, and above which it is asserted.
    pub fn fifo_thresholds(&self) -> (usize, usize) {
        let fifo = self.card.fifo.0;
        (
            self.busy.fifo_low.map_or(fifo / 2, |bytes| bytes.0),
            self.busy.fifo_high.map_or(fifo / 4 * 3, |bytes| bytes.0),
        )
    }

    /// Pages to ask for.
    pub fn ring_pages(&self) -> Pages {
        if self.card.huge_pages {
            Pages::HugeTlb
        } else {
            Pages::Base
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ships_is_valid_and_an_empty_file_too() {
        for (name, text) in SHIPPED {
            assert_eq!(Scenario::parse(text, name).unwrap().name, *name);
        }
        let scenario = Scenario::parse("", "empty").unwrap();
        let elinks = scenario.elinks(0, 0);
        let numbers: Vec<u16> = elinks.iter().map(|elink| elink.elink.number()).collect();
        assert_eq!(
            (
                numbers.len(),
                numbers[0],
                numbers[7],
                numbers[8],
                numbers[23]
            ),
            (24, 0x008, 0x024, 0x048, 0x0a4)
        );
    }

    #[test]
    fn thresholds_follow_the_ring_as_in_the_published_set_up() {
        let scenario = Scenario::parse("[card]\nring = \"1GiB\"\n", "").unwrap();
        assert_eq!(scenario.dma_thresholds(), (224 << 20, 256 << 20));
    }

    #[test]
    fn events_weigh_what_the_published_packings_say() {
        // 24 bytes: 3 blocks for 109 chunks.
        let bytes = Scenario::load("gbt").unwrap().event_bytes();
        assert!((bytes - 24.0 * 1024.0 * 3.0 / 109.0).abs() < 0.01);
    }
}
