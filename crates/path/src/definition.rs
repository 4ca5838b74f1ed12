//! A checked path: its elements in order, with sizes and units that fit.

use daqmeter_digitizer::conversion::ConversionRequest;
use daqmeter_digitizer::function::Function;
use daqmeter_etherbone::Times;
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_readout::chain::Chain;
use daqmeter_readout::{Chosen, Scenario};
use daqmeter_record::path::{Brings, Served};
use daqmeter_record::units::{show_bytes, show_mb_per_s, show_ns, significant};
use daqmeter_sys::memory::Pages;
use daqmeter_wire::felix::BlockFormat;

use crate::explain::PathPart;
use crate::remote::Over;
use crate::tcp::SendBy;
use crate::udp::UdpWay;
use crate::zenoh::{WhenFull, ZenohWay};

pub(crate) const MAX_BUFFERS: usize = 65_536;
/// Most bytes of a ring by default.
const MAX_RING_BYTES: usize = 1 << 30;

#[derive(Clone, Debug)]
pub struct Path {
    pub name: String,
    pub title: String,
    /// Purpose of the path, and the meaning of its result.
    pub about: String,
    pub block_bytes: usize,
    pub buffers: usize,
    /// Blocks due per second and stream; `None` if the source goes as fast as it can.
    pub rate_hz: Option<f64>,
    /// True if the source waits for room; else it loses due blocks for which there is none.
    pub lossless: bool,
    /// Unit of the served load, and the rate of one.
    pub served: Option<Served>,
    /// Fields that are not as in the file: `block=128KiB`.
    pub with: Vec<String>,
    pub text: String,
    /// FNV-1a of the text: equal for equal files.
    pub digest: String,
    pub(crate) pages: Pages,
    pub(crate) source: Element<SourceKind>,
    pub(crate) stages: Vec<Element<StageKind>>,
    pub(crate) sink: Element<SinkKind>,
}

#[derive(Clone, Debug)]
pub(crate) struct Element<K> {
    pub(crate) kind: K,
    /// Name, with a number if another element has the same.
    pub(crate) name: String,
    pub(crate) threads: usize,
    pub(crate) cpus: Vec<u32>,
    pub(crate) out_bytes: usize,
    pub(crate) unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Samples,
    Numbers,
    Felix,
    /// Nanoseconds of a timing receiver.
    Times,
    /// FELIX blocks in the ring into which a card writes them.
    Ring,
    Pages,
    Sent,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Samples => "samples",
            Unit::Numbers => "converted samples",
            Unit::Felix => "FELIX blocks",
            Unit::Times => "times",
            Unit::Ring => "a card's ring",
            Unit::Pages => "pages",
            Unit::Sent => "pages that were sent",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum SourceKind {
    /// A pattern, copied from memory of that many bytes.
    Memory { span_bytes: usize },
    /// A block device or a file, read in order.
    File { path: String, cached: bool },
    /// Boards, one thread each.
    Digitizer { devices: Vec<String>, profile: String, paced: bool, trigger_hz: Option<f64> },
    /// Times of a timing receiver, read over Etherbone in cycles of `count`.
    Etherbone { address: String, count: u64 },
    /// Blocks of an emulated card, made beforehand.
    Felix { scenario: String, span_bytes: usize },
    /// An emulated card, which writes blocks into its rings as triggers come: its scenario, and the
    /// parts that replace some of it. The blocks of a recorded file are not read before it runs.
    Card { chosen: Box<Chosen>, scenario: Box<Scenario> },
}

#[derive(Clone, Debug)]
pub(crate) enum StageKind {
    /// Copied by an instruction.
    Copy(CopyKernel),
    /// Samples to numbers.
    Convert(Function, Box<ConversionRequest>),
    /// Subchunks found.
    Decode(BlockFormat),
    /// Each byte is read, for a sum.
    Checksum,
    /// Arithmetic of `ns` nanoseconds for each block: a stage that does not exist yet.
    Work { ns: f64 },
    /// A wait of `ns` nanoseconds for each block: a device that does not exist yet.
    Wait { ns: u64 },
    /// Written to a program and read from it.
    Program { command: Vec<String>, same: bool },
    /// Sent over TCP on loopback and received, by this congestion control or the host's own.
    Tcp { congestion: Option<String>, send: SendBy },
    /// Sent over UDP on loopback; lost blocks are counted.
    Udp(UdpWay),
    /// Sent over a pair of Unix sockets.
    Unix,
    /// Published over Zenoh and received by a subscriber of this host.
    Zenoh(ZenohWay),
    /// A card's rings are read, and their chunks put into pages.
    ToHost,
    /// Pages are published over the transport of that name.
    Publish(String),
}

#[derive(Clone, Debug)]
pub(crate) enum SinkKind {
    /// Each byte is read once.
    Read,
    /// Written to a file of at most `span_bytes`, from its beginning again when it is full;
    /// `direct` bypasses the page cache.
    File { path: String, span_bytes: usize, direct: bool },
    /// Subscribes to pages and checks each chunk.
    Receiver,
    /// Sent to a receiver on another host.
    Remote { to: String, over: Over },
}

impl SourceKind {
    pub(crate) fn due_bytes(&self, block_bytes: usize) -> f64 {
        match self {
            SourceKind::Card { scenario, .. } => scenario.event_bytes(),
            _ => block_bytes as f64,
        }
    }

    fn text(&self) -> String {
        match self {
            SourceKind::Memory { span_bytes } => {
                format!("memory, {}", show_bytes(*span_bytes as u64))
            }
            SourceKind::File { path, cached } => {
                let how = if *cached { "page cache" } else { "direct" };
                format!("file {path}, {how}")
            }
            SourceKind::Digitizer { devices, trigger_hz, .. } => {
                let trigger = trigger_hz
                    .map_or_else(String::new, |hz| format!(", {} Hz", significant(hz, 4)));
                format!("digitizer {}{trigger}", devices.join(" "))
            }
            SourceKind::Etherbone { address, count } => {
                format!("etherbone {address}, {count} times a cycle")
            }
            SourceKind::Felix { scenario, .. } => format!("felix {scenario}"),
            SourceKind::Card { scenario, .. } => format!("card {}", scenario.name),
        }
    }
}

impl StageKind {
    fn text(&self) -> String {
        match self {
            StageKind::Copy(kernel) => format!("copy {}", kernel.name()),
            StageKind::Convert(function, _) => format!("convert, function {}", function.number()),
            StageKind::Decode(_) => "decode".to_owned(),
            StageKind::Checksum => "checksum".to_owned(),
            StageKind::Work { ns } => format!("work of {}", show_ns(*ns)),
            StageKind::Wait { ns } => format!("wait of {}", show_ns(*ns as f64)),
            StageKind::Program { command, .. } => format!("program {}", command.join(" ")),
            StageKind::Tcp { congestion, send } => {
                format!("tcp on loopback{}", of_tcp(congestion.as_deref(), *send))
            }
            StageKind::Udp(way) => format!("udp on loopback{}", of_udp(*way)),
            StageKind::Unix => "unix socket".to_owned(),
            StageKind::Zenoh(way) => way.text(),
            StageKind::ToHost => "to-host".to_owned(),
            StageKind::Publish(transport) => format!("published over {transport}"),
        }
    }

    /// True if it alone knows its output.
    pub(crate) fn changes_unknown(&self) -> bool {
        matches!(self, StageKind::Program { same: false, .. })
    }

    pub(crate) fn has_two_ends(&self) -> bool {
        matches!(
            self,
            StageKind::Program { .. }
                | StageKind::Tcp { .. }
                | StageKind::Udp(_)
                | StageKind::Unix
                | StageKind::Zenoh(_)
        )
    }
}

impl SinkKind {
    fn text(&self) -> String {
        match self {
            SinkKind::Read => "read".to_owned(),
            SinkKind::Receiver => "receiver".to_owned(),
            SinkKind::Remote { to, over } => match over {
                Over::Tcp { congestion, send } => {
                    format!("tcp to {to}{}", of_tcp(congestion.as_deref(), *send))
                }
                Over::Udp(way) => format!("udp to {to}{}", of_udp(*way)),
            },
            SinkKind::File { path, direct, .. } => {
                let how = if *direct { ", direct" } else { "" };
                format!("file {path}{how}")
            }
        }
    }
}

/// Settings of a TCP connection that differ from the default.
fn of_tcp(congestion: Option<&str>, send: SendBy) -> String {
    let congestion = congestion.map_or_else(String::new, |name| format!(", {name}"));
    match send {
        SendBy::Copy => congestion,
        send => format!("{congestion}, sent by {}", send.name()),
    }
}

fn of_udp(way: UdpWay) -> String {
    format!(", datagrams of {} B", way.datagram_bytes)
}

impl Path {
    /// Elements as they are drawn: kind, threads, CPUs, and the output.
    fn elements(&self) -> Vec<(String, usize, &[u32], String)> {
        let behind = |bytes: usize, unit: Unit| self.between(bytes, unit);
        let source = &self.source;
        let mut all = vec![(
            source.kind.text(),
            source.threads,
            &source.cpus[..],
            behind(source.out_bytes, source.unit),
        )];
        for stage in &self.stages {
            let threads = if stage.kind.has_two_ends() { 2 } else { stage.threads };
            let behind = behind(stage.out_bytes, stage.unit);
            all.push((stage.kind.text(), threads, &stage.cpus, behind));
        }
        let sink = &self.sink;
        all.push((sink.kind.text(), sink.threads, &sink.cpus, String::new()));
        all
    }

    fn between(&self, bytes: usize, unit: Unit) -> String {
        let shown = show_bytes(bytes as u64);
        match unit {
            Unit::Ring => format!("a ring of {shown} for each DMA channel"),
            Unit::Pages => format!("pages of {shown} at most"),
            Unit::Sent => "buffers of the network".to_owned(),
            unit => format!("{shown} of {}, {} blocks", unit.name(), self.buffers),
        }
    }

    pub(crate) fn live(&self) -> Option<&Scenario> {
        match &self.source.kind {
            SourceKind::Card { scenario, .. } => Some(scenario),
            _ => None,
        }
    }

    /// True if its source is a card that is read out live: triggers come at a rate, and no part can
    /// be left out.
    pub fn is_live(&self) -> bool {
        self.live().is_some()
    }

    /// True if blocks may be lost between two elements.
    pub(crate) fn may_miss(&self) -> bool {
        let mut stages = self.stages.iter();
        stages.any(|stage| match stage.kind {
            StageKind::Udp(_) => true,
            StageKind::Zenoh(way) => way.when_full == WhenFull::Drop,
            _ => false,
        })
    }

    /// True if the path may lose blocks at any rate, even with a source that waits for room.
    pub fn may_lose(&self) -> bool {
        let Element { kind, .. } = &self.sink;
        self.may_miss() || matches!(kind, SinkKind::Remote { over: Over::Udp(_), .. })
    }

    pub fn line(&self) -> String {
        let parts: Vec<String> = self.elements().into_iter().map(|part| part.0).collect();
        format!("{} -> {}", show_bytes(self.block_bytes as u64), parts.join(" -> "))
    }

    pub fn picture(&self) -> String {
        let mut out = format!("{}: {}\n", self.name, self.title);
        if !self.about.is_empty() {
            out.push_str(&format!("{}\n", self.about.trim_end()));
        }
        out.push_str(&format!("\n{}\n\n", self.conditions()));
        let all = self.elements().into_iter().zip(self.stand_ins());
        for ((text, threads, cpus, behind), stands_for) in all {
            let stands_for = stands_for.map_or_else(String::new, |what| format!(", {what}"));
            out.push_str(&format!("  {text}  ({}{stands_for})\n", place(threads, cpus)));
            if !behind.is_empty() {
                out.push_str(&format!("    |  {behind}\n"));
            }
        }
        out
    }

    fn stand_ins(&self) -> Vec<Option<&'static str>> {
        let source = self.is_emulated().then_some("emulated");
        let stage = |stage: &Element<StageKind>| match stage.kind {
            StageKind::Work { .. } | StageKind::Wait { .. } => Some("stands for a stage"),
            _ => None,
        };
        let stages = self.stages.iter().map(stage);
        std::iter::once(source).chain(stages).chain([None]).collect()
    }

    fn conditions(&self) -> String {
        if let Some(scenario) = self.live() {
            let hz = self.rate_hz.unwrap_or(scenario.trigger.rate.0);
            return format!(
                "triggers at {} Hz; BUSY stops those for which a ring has no room; {} threads; {} of memory",
                significant(hz, 4),
                self.thread_count(),
                show_bytes(self.memory_bytes())
            );
        }
        let rate = self.rate_hz.map_or_else(
            || "as fast as it goes".to_owned(),
            |hz| format!("{} blocks/s due from each stream", significant(hz, 4)),
        );
        let loss = match (self.lossless, self.rate_hz) {
            (true, _) | (false, None) => "the source waits for room",
            (false, Some(_)) => "blocks that are due when there is no room are lost",
        };
        let served = self.served.as_ref().map_or_else(String::new, |served| {
            format!("; serves {}, {} each", served.name, brings(served.each))
        });
        let pages = match self.pages {
            Pages::Transparent => String::new(),
            other => format!(" in {}", other.name()),
        };
        format!(
            "{rate}; {loss}; {} threads; {} of blocks{pages}{served}",
            self.thread_count(),
            show_bytes(self.memory_bytes())
        )
    }

    /// Parses a rate in blocks (`14Hz`) or bytes (`500MB/s`) of one stream, as blocks per second.
    /// The rate of a card that is read out is in triggers.
    pub fn parse_rate(&self, text: &str) -> Result<f64, String> {
        parse_rate(text, self.due_bytes())
    }

    /// Bytes due at a rate: a block, or the bytes of a trigger in a ring of the card that is read
    /// out.
    pub fn due_bytes(&self) -> f64 {
        self.source.kind.due_bytes(self.block_bytes)
    }

    /// Bytes that are due per second if each stream has this rate.
    pub fn due_bytes_per_s(&self, rate_hz: f64) -> f64 {
        self.due_bytes() * self.streams() as f64 * rate_hz
    }

    /// Streams of the source, each of which has its own account.
    pub fn streams(&self) -> usize {
        match self.live() {
            Some(scenario) => Chain::parts(scenario).channels,
            None => self.source.threads,
        }
    }

    /// Elements that can be slowed, from source to sink. Those that work in another's threads have
    /// as many.
    pub fn parts(&self) -> Vec<PathPart> {
        let part = |name: &String, threads, can_be_left_out| PathPart {
            name: name.clone(),
            threads,
            can_be_left_out,
        };
        if self.is_live() {
            let streams = self.streams();
            let stages = self.stages.iter().map(|stage| part(&stage.name, streams, false));
            return std::iter::once(part(&self.source.name, streams, false))
                .chain(stages)
                .chain([part(&self.sink.name, self.sink.threads, false)])
                .collect();
        }
        let stages = self.stages.iter();
        let source =
            matches!(self.source.kind, SourceKind::Memory { .. } | SourceKind::Felix { .. });
        let sink = matches!(self.sink.kind, SinkKind::Read);
        std::iter::once(part(&self.source.name, self.source.threads, source))
            .chain(stages.map(|stage| part(&stage.name, stage.threads, !stage.kind.has_two_ends())))
            .chain([part(&self.sink.name, 1, sink)])
            .collect()
    }

    pub(crate) fn thread_count(&self) -> usize {
        self.elements().iter().map(|element| element.1).sum()
    }

    /// Fields that differ from the file with `times` times as many blocks between two threads, as
    /// [`Path::load_with`] takes them. A ring stays below 1 GiB. A card that is read out has its
    /// ring; there the reader looks `times` times as often, which empties the ring as far.
    pub fn with_more_buffers(&self, times: usize) -> Vec<String> {
        if let Some(scenario) = self.live() {
            let poll_us = scenario.reader.poll.0 as f64 / 1e3 / times as f64;
            return self.and_with(&format!("source.poll_us={poll_us}"));
        }
        let most = (MAX_RING_BYTES / self.block_bytes.max(1)).clamp(self.buffers, MAX_BUFFERS);
        let buffers = self.buffers.saturating_mul(times).min(most.max(self.buffers));
        self.and_with(&format!("buffers={buffers}"))
    }

    /// Fields that differ from the file, and one more.
    pub(crate) fn and_with(&self, setting: &str) -> Vec<String> {
        self.with.iter().cloned().chain([setting.to_owned()]).collect()
    }

    /// Rate of each stream for one block of the whole path every `ns`. It is in triggers for a card
    /// that is read out, each of which makes a part of a block, or several.
    pub fn rate_every(&self, ns: f64) -> f64 {
        let due = self.block_bytes as f64 / self.due_bytes();
        1e9 / ns * due / self.streams() as f64
    }

    pub fn is_emulated(&self) -> bool {
        match &self.source.kind {
            SourceKind::Digitizer { devices, .. } => {
                devices.iter().any(|device| device.starts_with("emu:"))
            }
            SourceKind::Etherbone { address, count } => {
                Times::request(address, *count).is_emulated()
            }
            SourceKind::Felix { .. } | SourceKind::Card { .. } => true,
            SourceKind::Memory { .. } | SourceKind::File { .. } => false,
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        if let SourceKind::Card { chosen, scenario } = &self.source.kind {
            let file = chosen.replayed_bytes();
            return file.saturating_add(scenario.memory_bytes(Chain::parts(scenario)));
        }
        let blocks = |element_bytes: usize, lanes: usize| {
            daqmeter_sys::memory::buffers_bytes(self.buffers as u64, element_bytes as u64)
                .saturating_mul(lanes as u64)
        };
        let widest = self.stages.iter().map(|stage| stage.threads);
        let widest = widest.chain([self.source.threads]).max().unwrap_or(1);
        let stages = self.stages.iter().map(|stage| blocks(stage.out_bytes, widest));
        let span = match &self.source.kind {
            SourceKind::Memory { span_bytes } | SourceKind::Felix { span_bytes, .. } => *span_bytes,
            SourceKind::File { .. }
            | SourceKind::Digitizer { .. }
            | SourceKind::Etherbone { .. }
            | SourceKind::Card { .. } => 0,
        };
        let all = stages.chain([blocks(self.source.out_bytes, widest), span as u64]);
        all.fold(0, u64::saturating_add)
    }
}

fn brings(each: Brings) -> String {
    match each {
        Brings::BytesPerS(rate) => format!("{} MB/s", show_mb_per_s(rate)),
        Brings::EventsPerS(rate) => format!("{} events/s", significant(rate, 4)),
    }
}

fn place(threads: usize, cpus: &[u32]) -> String {
    let threads = match threads {
        0 => "in the threads of to-host".to_owned(),
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    };
    if cpus.is_empty() {
        return threads;
    }
    let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
    format!("{threads}, CPU {}", cpus.join(","))
}

/// Blocks per second of a rate that is written in blocks (`14Hz`) or bytes (`1GB/s`).
pub(crate) fn parse_rate(text: &str, block_bytes: f64) -> Result<f64, String> {
    if let Some(bytes) = text.strip_suffix("/s") {
        let bytes =
            daqmeter_record::units::parse_bytes(bytes).map_err(|error| error.to_string())?;
        return Ok(bytes as f64 / block_bytes);
    }
    daqmeter_record::units::parse_rate_hz(text)
        .map_err(|error| format!("{error}; or bytes, such as 500MB/s"))
}

/// FNV-1a, 64 bits (draft-eastlake-fnv, section 2): two files with one digest are one path.
pub(crate) fn digest(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

pub(crate) fn function(number: u64) -> Option<Function> {
    Function::CONVERSIONS.into_iter().find(|function| function.number() == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_blocks_or_bytes() {
        assert_eq!(parse_rate("14Hz", 1000.0), Ok(14.0));
        assert_eq!(parse_rate("1MB/s", 1000.0), Ok(1000.0));
        assert!(parse_rate("fast", 1000.0).is_err());
    }

    #[test]
    fn digests_are_those_of_the_draft_s_test_vectors() {
        assert_eq!(digest(""), "cbf29ce484222325");
        assert_eq!(digest("foobar"), "85944171f73967e8");
    }
}
