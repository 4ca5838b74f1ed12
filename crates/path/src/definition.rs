//! A checked path: its elements in order, with sizes and units that fit.

pub(crate) mod flow;
mod groups;
pub(crate) mod kind;
pub(crate) mod layout;
pub(crate) mod setting;

use std::sync::Arc;

use daqmeter_harness::{Fault, LimitSpec};
use daqmeter_readout::Scenario;
use daqmeter_readout::card::channel_ids;
use daqmeter_record::path::{Brings, End, PathRun, Served};
use daqmeter_record::units::{parse_bytes, parse_rate_hz};
use daqmeter_record::units::{plural, show_bytes, show_mb_per_s, significant};
use daqmeter_sys::memory::{Pages, buffers_bytes};

use crate::definition::flow::{PAGES, RING, SENT, Unit};
use crate::definition::kind::{Facts, Named, SinkElement, SourceElement, StageElement};
use crate::definition::layout::{Group, Layout};
use crate::definition::setting::Setting;

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
    /// Fields that are not as in the file.
    pub with: Vec<Setting>,
    pub text: String,
    /// Digest of the text, and of all files that it names and that do not ship.
    pub digest: String,
    pub(crate) pages: Pages,
    pub(crate) layout: Layout,
    /// True if the sink takes the blocks in the order of the source.
    pub(crate) is_ordered: bool,
    pub(crate) source: Arc<dyn SourceElement>,
    pub(crate) stages: Vec<Arc<dyn StageElement>>,
    pub(crate) sink: Arc<dyn SinkElement>,
    /// Places of all of them, from source to sink.
    pub(crate) elements: Vec<Element>,
    /// Scenario of a card that is read out live.
    pub(crate) scenario: Option<Box<Scenario>>,
}

/// An element in its place.
#[derive(Clone, Debug)]
pub(crate) struct Element {
    /// Name, with a number if another element has the same.
    pub(crate) name: String,
    pub(crate) cpus: Vec<u32>,
    pub(crate) out_bytes: usize,
    pub(crate) unit: Unit,
    pub(crate) facts: Facts,
}

/// Element that can be slowed.
#[derive(Clone, Debug, Default)]
pub struct PathPart {
    pub name: String,
    pub threads: usize,
    /// Bytes of a block that it takes in, or makes as the source; 0 for those of a card.
    pub bytes: usize,
    /// Plain work on these bytes, which is the limit of the part, and its rate once it is measured.
    pub limit: Option<LimitSpec>,
    pub limit_bytes_per_s: Option<f64>,
}

impl Path {
    pub(crate) fn live(&self) -> Option<&Scenario> {
        self.scenario.as_deref()
    }

    /// True if its source is a card that is read out live: triggers come at a rate.
    pub fn is_live(&self) -> bool {
        self.scenario.is_some()
    }

    /// True if the path may lose blocks at any rate, even with a source that waits for room.
    pub fn may_lose(&self) -> bool {
        self.elements.iter().any(|element| element.facts.may_lose)
    }

    /// True if its blocks go through sockets of the network.
    pub fn is_networked(&self) -> bool {
        self.elements.iter().any(|element| element.facts.is_networked())
    }

    pub fn line(&self) -> String {
        let parts: Vec<&str> = self.elements.iter().map(|one| one.facts.text.as_str()).collect();
        format!("{} -> {}", show_bytes(self.block_bytes as u64), parts.join(" -> "))
    }

    pub fn picture(&self) -> String {
        let mut out = format!("{}: {}\n", self.name, self.title);
        if !self.about.is_empty() {
            out.push_str(&format!("{}\n", self.about.trim_end()));
        }
        out.push_str(&format!("\n{}\n\n", self.conditions()));
        let last = self.elements.len() - 1;
        for (at, Element { cpus, out_bytes, unit, facts, .. }) in self.elements.iter().enumerate() {
            let Facts { text, is_emulated, .. } = facts;
            let emulated = is_emulated.then(|| "emulated".to_owned());
            let about: Vec<String> = self.place(at, cpus).into_iter().chain(emulated).collect();
            let about = about.join(", ");
            let about = if about.is_empty() { about } else { format!("  ({about})") };
            out.push_str(&format!("  {text}{about}\n"));
            let bytes = show_bytes(*out_bytes as u64);
            let behind = match *unit {
                _ if at == last => continue,
                RING => format!("a ring of {bytes} for each DMA channel"),
                PAGES => format!("pages of {bytes} at most"),
                SENT => "buffers of the network".to_owned(),
                unit => format!("{bytes} of {unit}, {} blocks", self.buffers),
            };
            out.push_str(&format!("    |  {behind}\n"));
        }
        out
    }

    /// CPUs of an element, and the threads of one of a card that is read out.
    fn place(&self, element: usize, cpus: &[u32]) -> Option<String> {
        let threads = self.is_live().then(|| match self.threads()[element] {
            0 => "in the threads of to-host".to_owned(),
            threads => plural(threads as u64, "thread"),
        });
        let all: Vec<String> = cpus.iter().map(u32::to_string).collect();
        let on = (!all.is_empty()).then(|| format!("CPU {}", all.join(",")));
        let place: Vec<String> = threads.into_iter().chain(on).collect();
        (!place.is_empty()).then(|| place.join(", "))
    }

    fn conditions(&self) -> String {
        let memory = show_bytes(self.memory_bytes());
        if let Some(scenario) = self.live() {
            let hz = significant(self.rate_hz.unwrap_or(scenario.trigger.rate.0), 4);
            let threads: usize = self.threads().iter().sum();
            return format!(
                "triggers at {hz} Hz; BUSY stops those for which a ring has no room; {threads} threads; {memory} of memory"
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
        let served = self.served.as_ref().map_or_else(String::new, |Served { name, each }| {
            let each = match each {
                Brings::BytesPerS(rate) => format!("{} MB/s", show_mb_per_s(*rate)),
                Brings::EventsPerS(rate) => format!("{} events/s", significant(*rate, 4)),
            };
            format!("; serves {name}, {each} each")
        });
        let pages = match self.pages {
            Pages::Transparent => String::new(),
            other => format!(" in {}", other.name()),
        };
        let layout = &self.layout;
        format!("{rate}; {loss}; layout {layout}; {memory} of blocks{pages}{served}")
    }

    /// Parses a rate in blocks (`14Hz`) or bytes (`500MB/s`) of one stream, as blocks per second.
    /// The rate of a card that is read out is in triggers.
    pub fn parse_rate(&self, text: &str) -> Result<f64, String> {
        parse_rate(text, self.due_bytes())
    }

    /// Bytes due at a rate: a block, or the bytes of a trigger in a ring of the card that is read
    /// out.
    pub fn due_bytes(&self) -> f64 {
        self.live().map_or(self.block_bytes as f64, Scenario::event_bytes)
    }

    /// Bytes that are due per second if each stream has this rate.
    pub(crate) fn due_bytes_per_s(&self, rate_hz: f64) -> f64 {
        self.due_bytes() * self.streams() as f64 * rate_hz
    }

    /// Payload bytes per second at its own rate; `None` without one.
    pub fn own_bytes_per_s(&self) -> Option<f64> {
        let own_hz = self.rate_hz.or(self.live().map(|scenario| scenario.trigger.rate.0));
        own_hz.map(|hz| self.due_bytes_per_s(hz))
    }

    /// Streams of the source, each of which has its own account.
    pub fn streams(&self) -> usize {
        match self.live() {
            Some(scenario) => channel_ids(scenario).len(),
            None => self.source_facts().boards.len().max(1),
        }
    }

    /// Receivers of a card that is read out.
    pub(crate) fn receivers(&self) -> usize {
        if self.is_live() { self.last().facts.receivers.unwrap_or(self.streams()) } else { 0 }
    }

    /// Threads of each element in a pipeline; a stage with two ends has one more. A card and its
    /// publisher work in those of their reader, and so do receivers if the layout is fused.
    pub(crate) fn threads(&self) -> Vec<usize> {
        match (self.is_live(), &self.layout) {
            (true, Layout::Fused(_)) => vec![0, self.streams(), 0, 0],
            (true, _) => vec![0, self.streams(), 0, self.receivers()],
            (false, _) => [&[self.streams()], &vec![1; self.stages.len() + 1][..]].concat(),
        }
    }

    /// Elements that can be slowed, from source to sink. Those that work in another's threads have
    /// as many.
    pub fn parts(&self) -> Vec<PathPart> {
        let threads = self.threads().into_iter().map(|threads| match threads {
            0 => self.streams(),
            threads => threads,
        });
        let part = |(at, (element, threads)): (usize, (&Element, usize))| PathPart {
            name: element.name.clone(),
            threads,
            bytes: if self.is_live() { 0 } else { self.elements[at.saturating_sub(1)].out_bytes },
            limit: element.facts.limit.clone(),
            limit_bytes_per_s: None,
        };
        self.elements.iter().zip(threads).enumerate().map(part).collect()
    }

    /// Stage of an element, if it is none of the ends.
    pub(crate) fn stage(&self, element: usize) -> Option<&dyn StageElement> {
        self.stages.get(element.checked_sub(1)?).map(Arc::as_ref)
    }

    /// Names of all elements, from source to sink.
    pub(crate) fn names(&self) -> Vec<String> {
        self.elements.iter().map(|element| element.name.clone()).collect()
    }

    pub(crate) fn source_facts(&self) -> &Facts {
        &self.elements[0].facts
    }

    /// The sink's place.
    pub(crate) fn last(&self) -> &Element {
        &self.elements[self.elements.len() - 1]
    }

    /// Elements with the threads that they had in a run: several elements may share one.
    pub fn parts_of(&self, run: &PathRun) -> Vec<PathPart> {
        let mut parts = self.parts();
        for (element, part) in parts.iter_mut().enumerate().filter(|_| !self.is_live()) {
            let own = run.threads.iter().filter(|one| one.part_of(element).is_some());
            part.threads = own.filter(|one| one.end != Some(End::In)).count();
        }
        parts
    }

    /// Tests if the fastest layout is looked for: by the choice, if there is one, or the file.
    pub fn is_auto(&self, chosen: Option<&Layout>) -> bool {
        *chosen.unwrap_or(&self.layout) == Layout::Auto
    }

    /// Bytes of a block at the sink.
    pub(crate) fn sink_bytes(&self) -> usize {
        self.elements[self.stages.len()].out_bytes
    }

    /// Returns the path with `times` times as many blocks between two threads. A ring stays below 1
    /// GiB. A card that is read out has its ring; there the reader looks `times` times as often,
    /// which empties the ring as far.
    #[must_use]
    pub fn with_more_buffers(&self, times: usize) -> Path {
        let mut path = self.clone();
        let setting = match &mut path.scenario {
            Some(scenario) => {
                scenario.reader.poll.0 /= times as u64;
                Setting::new("source.poll_us", scenario.reader.poll.0 as f64 / 1e3)
            }
            None => {
                let most = (MAX_RING_BYTES / self.block_bytes).clamp(self.buffers, MAX_BUFFERS);
                path.buffers = self.buffers.saturating_mul(times).min(most);
                Setting::new("buffers", i64::try_from(path.buffers).unwrap_or(i64::MAX))
            }
        };
        path.with.push(setting);
        path
    }

    /// Returns the path with a source that waits for room, unless it does.
    #[must_use]
    pub fn waiting(mut self) -> Path {
        if !std::mem::replace(&mut self.lossless, true) {
            self.with.push(Setting::new("lossless", true));
        }
        self
    }

    /// Returns the path with a sink that leaves nothing behind.
    #[must_use]
    pub fn trial(mut self) -> Path {
        self.sink = self.sink.trial().unwrap_or(self.sink);
        self
    }

    pub fn is_emulated(&self) -> bool {
        self.source_facts().is_emulated
    }

    /// Sources of its blocks, by their names.
    pub(crate) fn sources(&self) -> Result<Vec<Named>, Fault> {
        self.source.sources(&self.elements[0].name, self.block_bytes)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        if let Some(scenario) = self.live() {
            return scenario.memory_bytes();
        }
        // Checked when the path was read.
        let groups = self.groups(&self.layout).unwrap_or_default();
        let out_bytes = |element: usize| self.elements[element].out_bytes as u64;
        let behind = groups.iter().skip(1).map(|group| group.workers).chain([0]);
        let bytes = groups.iter().zip(behind).map(|(Group { elements, workers }, behind)| {
            let last = elements.end - 1;
            let rings = if behind == 0 { 0 } else { behind.max(*workers) as u64 };
            let ring_bytes = buffers_bytes(self.buffers as u64, out_bytes(last));
            let rooms =
                (elements.start..last).map(|at| buffers_bytes(*workers as u64, out_bytes(at)));
            let rooms = rooms.fold(0, u64::saturating_add);
            ring_bytes.saturating_mul(rings).saturating_add(rooms)
        });
        bytes.fold(self.source_facts().span_bytes as u64, u64::saturating_add)
    }
}

/// CPU of a thread among those of its element, which take turns.
pub(crate) fn cpu(cpus: &[u32], at: usize) -> Option<u32> {
    cpus.get(at % cpus.len().max(1)).copied()
}

/// Blocks per second of a rate that is written in blocks (`14Hz`) or bytes (`1GB/s`).
pub(crate) fn parse_rate(text: &str, block_bytes: f64) -> Result<f64, String> {
    let wrong =
        || format!("`{text}`: write blocks as in 14Hz, or bytes as in 300MB/s or 2.4Gbit/s");
    let Some(amount) = text.trim().strip_suffix("/s") else {
        let has_unit = text.trim_end().ends_with("Hz");
        return parse_rate_hz(text).ok().filter(|_| has_unit).ok_or_else(wrong);
    };
    let (bytes, per_byte) = match amount.strip_suffix("bit") {
        Some(prefix) => (format!("{prefix}B"), 8.0),
        None => (amount.to_owned(), 1.0),
    };
    // A number alone has no unit of bytes.
    let has_unit = bytes.ends_with('B');
    let bytes = parse_bytes(&bytes).ok().filter(|_| has_unit).ok_or_else(wrong)?;
    Ok(bytes as f64 / per_byte / block_bytes)
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
}
