//! Values that follow from a scenario's fields.

use daqmeter_wire::felix::encoder::blocks_of;
use daqmeter_wire::felix::payload::{Fid, TTC_BYTES};
use daqmeter_wire::felix::{BlockFormat, Elink};

use super::ScenarioError;
use super::spec::{BlockSource, ByteSize, Generation, Mode, Scenario};
use crate::pattern::Pattern;
use crate::recorded::Playback;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElinkSpec {
    pub elink: Elink,
    pub payload_bytes: usize,
    pub deficit: f64,
    pub tag: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounts {
    pub channels: usize,
    pub subscribers: usize,
    pub receptions: usize,
}

impl Scenario {
    pub fn format(&self) -> Option<BlockFormat> {
        let block = self.card.block.0;
        let kib = u8::try_from(block / 1024).ok().filter(|_| block.is_multiple_of(1024))?;
        match self.card.format {
            Generation::Phase2 => BlockFormat::phase2(kib),
            Generation::Phase1Wide => BlockFormat::phase1_wide(kib),
            Generation::Phase1 => (kib == 1).then_some(BlockFormat::PHASE1),
        }
    }

    pub fn link_elinks(&self) -> Vec<u8> {
        match (self.card.elinks.is_empty(), self.card.mode) {
            (false, _) => self.card.elinks.clone(),
            (true, Mode::Gbt) => (2..10).map(|path| path * 4).collect(),
            (true, Mode::Full) => vec![0],
        }
    }

    pub fn elinks(&self, device: u16, channel: u16) -> Vec<ElinkSpec> {
        let of = |elink: Elink, payload_bytes, deficit| ElinkSpec {
            elink,
            payload_bytes,
            deficit,
            tag: Fid::of_elink(0, device, elink).to_u64(),
        };
        if let Some(playback) = &self.recorded {
            let elinks = playback.tape.elinks.iter();
            let recorded = elinks.map(|one| of(one.elink, one.longest.max(1), 0.0));
            return recorded.collect();
        }
        let card = &self.card;
        let mut elinks = Vec::new();
        for link in 0..card.links {
            let deficit = card.deficits.get(usize::from(link)).copied().unwrap_or(0.0);
            let number = u16::from(link) + channel * u16::from(card.links);
            let number = u8::try_from(number).unwrap_or(u8::MAX);
            let indices = self.link_elinks().into_iter();
            let elink = |index| of(Elink::of_link(number, index), card.payload.0, deficit);
            elinks.extend(indices.map(elink));
        }
        if card.ttc && channel == 0 {
            elinks.push(of(Elink::TTC, TTC_BYTES, 0.0));
        }
        elinks
    }

    /// Bytes that a trigger brings into each ring, blocks and trailers included.
    pub fn event_bytes(&self) -> f64 {
        const MANY: u64 = 1 << 20;
        if let Some(playback) = &self.recorded {
            return playback.tape.event_bytes();
        }
        let Some(format) = self.format() else {
            return 0.0;
        };
        let of = |spec: &ElinkSpec| {
            blocks_of(format, spec.payload_bytes, MANY) as f64 * (1.0 - spec.deficit)
        };
        self.elinks(0, 0).iter().map(of).sum::<f64>() * format.block_bytes as f64 / MANY as f64
    }

    /// True if blocks made once are shown again. Not with what differs from turn to turn: the
    /// trigger system's numbers, faults, deficits, and blocks closed by a timeout.
    pub fn replays(&self) -> bool {
        let card = &self.card;
        self.recorded.is_none()
            && card.blocks == BlockSource::Auto
            && !card.ttc
            && self.fault.is_empty()
            && card.deficits.iter().all(|deficit| *deficit == 0.0)
            && card.timeout.is_none()
    }

    pub fn is_flat_out(&self) -> bool {
        self.recorded.as_ref().is_some_and(|playback| !playback.is_paced)
    }

    pub(crate) fn external_busy(&self) -> Result<Option<Pattern>, ScenarioError> {
        let pattern = self.trigger.external_busy.as_deref().map(Pattern::parse).transpose();
        pattern.map_err(|what| ScenarioError(format!("trigger.external_busy: {what}")))
    }

    pub fn pointer_gap(&self) -> usize {
        self.card.pointer_gap.map_or(self.card.ring.0 / 8, |gap| gap.0)
    }

    /// Free bytes below which BUSY-by-DMA is asserted, and above which it is released.
    pub(crate) fn dma_thresholds(&self) -> (usize, usize) {
        let ring = self.card.ring.0;
        (
            self.busy.assert_below.map_or(ring / 32 * 7, |bytes| bytes.0),
            self.busy.release_above.map_or(ring / 4, |bytes| bytes.0),
        )
    }

    /// Bytes of the FIFO below which BUSY-by-FIFO is released, and above which it is asserted.
    pub(crate) fn fifo_thresholds(&self) -> (usize, usize) {
        let fifo = self.card.fifo.0;
        (fifo / 2, fifo / 4 * 3)
    }

    /// Makes a card of one channel that gives the blocks of a file. The scenario's links, trigger
    /// E-link and timeouts describe the making of blocks, and are not used. Fails if the file holds
    /// no blocks, or the scenario wants faults in them.
    pub(crate) fn replay(
        &mut self,
        path: &str,
        is_paced: bool,
        loops: bool,
    ) -> Result<(), ScenarioError> {
        let wrong = |what: String| ScenarioError(format!("replay: {path}: {what}"));
        if !self.fault.is_empty() {
            let what = "recorded blocks get no faults: take a scenario without [[fault]]";
            return Err(wrong(what.to_owned()));
        }
        let kib = u8::try_from(self.card.block.0 / 1024).unwrap_or(1);
        let playback = Playback::read(path, kib.clamp(1, 16)).map_err(wrong)?;
        let format = playback.tape.format;
        let card = &mut self.card;
        (card.devices, card.channels, card.links) = (1, 1, 1);
        (card.ttc, card.timeout) = (false, None);
        card.deficits.clear();
        card.block = ByteSize(format.block_bytes);
        card.format = match format.magic {
            0xABCD => Generation::Phase1,
            0xABCE => Generation::Phase1Wide,
            _ => Generation::Phase2,
        };
        self.recorded = Some(Playback { is_paced, loops, ..playback });
        Ok(())
    }
}
