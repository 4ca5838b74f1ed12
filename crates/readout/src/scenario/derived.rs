//! Values that follow from a scenario's fields.

use daqmeter_sys::memory::Pages;
use daqmeter_wire::felix::encoder::blocks_of;
use daqmeter_wire::felix::payload::{Fid, TTC_BYTES};
use daqmeter_wire::felix::{BlockFormat, Elink};

use super::spec::{BlockSource, ElinkSpec, Generation, Mode, Scenario, ScenarioError, TriggerKind};
use crate::pattern::Pattern;
use crate::recorded::RecordedElink;

impl Scenario {
    pub fn format(&self) -> Option<BlockFormat> {
        let kib = u8::try_from(self.card.block.0 / 1024)
            .ok()
            .filter(|_| self.card.block.0.is_multiple_of(1024))?;
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
        if let Some(playback) = &self.recorded {
            let elinks = playback.file.elinks.iter();
            return elinks.map(|elink| recorded_elink(device, elink)).collect();
        }
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
            let payload = own.and_then(|own| own.payload).unwrap_or(self.card.payload).0;
            let number = u8::try_from(u16::from(link) + channel * u16::from(self.card.links))
                .unwrap_or(u8::MAX);
            let deficit = own.map_or(0.0, |own| own.deficit);
            for index in self.link_elinks() {
                elinks.push(of(Elink::of_link(number, index), link, payload, deficit, false));
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
        if let Some(playback) = &self.recorded {
            return playback.file.event_bytes();
        }
        let Some(format) = self.format() else {
            return 0.0;
        };
        let of = |spec: &ElinkSpec| {
            blocks_of(format, spec.payload_bytes, MANY) as f64 * (1.0 - spec.deficit)
        };
        self.elinks(0, 0).iter().map(of).sum::<f64>() * format.block_bytes as f64 / MANY as f64
    }

    pub(crate) fn why_not_replayed(&self) -> Option<&'static str> {
        match self {
            _ if self.trigger.source == TriggerKind::Times => {
                Some("triggers whose numbers the chunks carry")
            }
            _ if self.card.ttc => Some("the trigger system's E-link, whose numbers grow,"),
            _ if !self.fault.is_empty() => Some("faults"),
            _ if self.link.iter().any(|link| link.deficit > 0.0) => Some("a link with a deficit"),
            _ if self.card.timeout.is_some() => Some("blocks closed by a timeout"),
            _ => None,
        }
    }

    pub fn replays(&self) -> bool {
        self.recorded.is_none()
            && self.card.blocks != BlockSource::Live
            && self.why_not_replayed().is_none()
    }

    pub fn is_flat_out(&self) -> bool {
        self.recorded.as_ref().is_some_and(|playback| !playback.is_paced)
    }

    pub fn has_rate(&self) -> bool {
        !self.is_flat_out() && self.trigger.source != TriggerKind::Times
    }

    pub(crate) fn external_busy(&self) -> Result<Pattern, ScenarioError> {
        let text = self.trigger.external_busy.as_deref();
        let pattern = text.map_or(Ok(Pattern::default()), Pattern::read);
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

    pub(crate) fn ring_pages(&self) -> Pages {
        if self.card.huge_pages != Some(false) { Pages::HugeTlb } else { Pages::Base }
    }
}

fn recorded_elink(device: u16, recorded: &RecordedElink) -> ElinkSpec {
    let elink = recorded.elink;
    ElinkSpec {
        elink,
        link: elink.link(),
        payload_bytes: recorded.longest.max(1),
        deficit: 0.0,
        is_ttc: elink == Elink::TTC,
        tag: Fid::of_elink(0, device, elink).to_u64(),
    }
}
