//! Values that follow from a scenario's fields.

use daqmeter_record::written::Hertz;
use daqmeter_wire::felix::encoder::blocks_of;
use daqmeter_wire::felix::payload::{Fid, TTC_BYTES};
use daqmeter_wire::felix::{BlockFormat, Elink};

use super::spec::{BlockSource, Generation, Mode, Scenario};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElinkSpec {
    pub elink: Elink,
    pub payload_bytes: usize,
    pub deficit: f64,
    pub tag: u64,
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
        let Some(format) = self.format() else {
            return 0.0;
        };
        let of = |spec: &ElinkSpec| {
            blocks_of(format, spec.payload_bytes, MANY) as f64 * (1.0 - spec.deficit)
        };
        self.elinks(0, 0).iter().map(of).sum::<f64>() * format.block_bytes as f64 / MANY as f64
    }

    /// Takes over the mean rate of a file of times.
    pub(crate) fn take_rate(&mut self) {
        let trigger = &mut self.trigger;
        trigger.rate = trigger.times.as_ref().map_or(trigger.rate, |times| Hertz(times.rate_hz()));
    }

    /// True if blocks made once are shown again. Not with what differs from turn to turn: the
    /// trigger system's numbers, faults, deficits, and blocks closed by a timeout. Not with
    /// triggers that are judged one by one either.
    pub fn replays(&self) -> bool {
        let card = &self.card;
        card.blocks == BlockSource::Auto
            && self.trigger.times.is_none()
            && self.busy.outside.is_none()
            && !card.xoff
            && !card.ttc
            && self.fault.is_empty()
            && card.deficits.iter().all(|deficit| *deficit == 0.0)
            && card.timeout.is_none()
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
}
