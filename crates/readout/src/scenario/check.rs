//! Checks that the parts of a scenario go together. Every number has bounds, and products are
//! compared with the memory there is, before anything is allocated.

use std::ops::RangeInclusive;

use daqmeter_record::units::{show_bytes, show_ns};
use daqmeter_sys::host::Files;

use super::place::Wrong;
use super::spec::{
    BlockSource, ByteSize as Size, Mode, Nanos, Scenario, ScenarioError, TriggerKind,
};
use crate::card::words::MAX_ELINKS;
use crate::memory::huge_pool_bytes;

/// Longest chunk: a page must hold it.
pub(crate) const MAX_PAYLOAD_BYTES: usize = crate::recorded::MAX_CHUNK_BYTES;
/// Largest ring: real cards are given 1 to 16 GiB for each channel.
const MAX_RING_BYTES: u64 = 64 << 30;
/// Largest output FIFO of a channel: real ones have some MiB.
const MAX_FIFO_BYTES: u64 = 1 << 30;
/// A slower DMA would need minutes to empty the FIFO at the end of a run.
const DMA_BYTES_PER_S: RangeInclusive<u64> = 64 << 10..=1 << 40;
/// Time after the last trigger within which the FIFO must be empty.
const MAX_DRAIN_S: u64 = 60;
/// Rates: one trigger in a quarter of an hour, and one per nanosecond, which is the clock's unit.
const RATE_HZ: RangeInclusive<f64> = 1e-3..=1e9;
/// Signals are looked at between polls, and must end a run within two seconds.
const MAX_POLL_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3_600_000_000_000;
const MAX_NAME: usize = 255;
/// `[[fault]]` tables: each kind with each E-link of a channel would be fewer.
const MAX_FAULTS: usize = 1024;

#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    BytesPerS,
    Time,
    Count,
}

impl Unit {
    fn show(self, value: u64) -> String {
        match self {
            Unit::Bytes => show_bytes(value),
            Unit::BytesPerS => format!("{}/s", show_bytes(value)),
            Unit::Time => show_ns(value as f64),
            Unit::Count => value.to_string(),
        }
    }
}

/// Number of a scenario and its bounds. A field that is not set has none.
struct Number {
    field: &'static str,
    value: Option<u64>,
    allowed: RangeInclusive<u64>,
    unit: Unit,
}

impl Number {
    fn check(&self) -> Result<(), Wrong> {
        match self.value {
            Some(value) if !self.allowed.contains(&value) => {
                let [value, least, greatest] = [value, *self.allowed.start(), *self.allowed.end()]
                    .map(|number| self.unit.show(number));
                Err(Wrong::new(self.field, format!("{value}; {least} to {greatest}")))
            }
            _ => Ok(()),
        }
    }
}

impl From<Size> for u64 {
    fn from(size: Size) -> u64 {
        size.0 as u64
    }
}

impl From<Nanos> for u64 {
    fn from(time: Nanos) -> u64 {
        time.0
    }
}

fn number(
    field: &'static str,
    value: impl Into<u64>,
    allowed: RangeInclusive<u64>,
    unit: Unit,
) -> Number {
    optional(field, Some(value), allowed, unit)
}

fn optional(
    field: &'static str,
    value: Option<impl Into<u64>>,
    allowed: RangeInclusive<u64>,
    unit: Unit,
) -> Number {
    Number { field, value: value.map(Into::into), allowed, unit }
}

type Checked = Result<(), Wrong>;

fn ensure(holds: bool, field: &str, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Wrong::new(field, what())) }
}

impl Scenario {
    pub fn check(&self) -> Result<(), ScenarioError> {
        self.find_wrong().map_err(|wrong| ScenarioError(wrong.to_string()))
    }

    pub(super) fn find_wrong(&self) -> Checked {
        self.check_texts()?;
        self.check_format()?;
        self.numbers().try_for_each(|number| number.check())?;
        self.check_trigger()?;
        self.check_elinks()?;
        self.check_card()?;
        self.check_busy()?;
        self.check_links()?;
        self.check_faults()?;
        self.check_publish()
    }

    /// Every number with its bounds. Those of one field may depend on another that was checked
    /// before it.
    fn numbers(&self) -> impl Iterator<Item = Number> {
        let card = self.card_numbers().into_iter();
        card.chain(self.busy_numbers()).chain(self.reader_numbers())
    }

    fn card_numbers(&self) -> Vec<Number> {
        use Unit::{Bytes, BytesPerS, Count, Time};
        let card = &self.card;
        let [ring, block] = [card.ring, card.block].map(|size| size.0 as u64);
        let payload = 1..=MAX_PAYLOAD_BYTES as u64;
        let gap = 0..=(ring / 2).saturating_sub(1);
        vec![
            number("card.devices", u64::from(card.devices), 1..=64, Count),
            number("card.channels", u64::from(card.channels), 1..=8, Count),
            number("card.links", u64::from(card.links), 1..=24, Count),
            number("card.payload", card.payload, payload, Bytes),
            number("card.ring", ring, 64 * block..=MAX_RING_BYTES, Bytes),
            optional("card.pointer_gap", card.pointer_gap, gap, Bytes),
            number("card.fifo", card.fifo, 4 * block..=MAX_FIFO_BYTES, Bytes),
            optional("card.dma_rate", card.dma_rate, DMA_BYTES_PER_S, BytesPerS),
            optional("card.timeout", card.timeout, 1_000..=HOUR_NS, Time),
        ]
    }

    fn busy_numbers(&self) -> [Number; 2] {
        use Unit::Bytes;
        let busy = &self.busy;
        let in_ring = 0..=(self.card.ring.0 as u64).saturating_sub(1);
        [
            optional("busy.assert_below", busy.assert_below, in_ring.clone(), Bytes),
            optional("busy.release_above", busy.release_above, in_ring, Bytes),
        ]
    }

    fn reader_numbers(&self) -> [Number; 6] {
        use Unit::{Bytes, Count, Time};
        let (reader, publish) = (&self.reader, &self.publish);
        let subscribers = publish.max_subscribers as u64;
        [
            number("reader.poll", reader.poll, 0..=MAX_POLL_NS, Time),
            number("reader.page", reader.page, 4096..=2 << 20, Bytes),
            number("reader.pages", reader.pages as u64, 2..=4096, Count),
            number("reader.timeout", reader.timeout, 0..=1_000_000_000, Time),
            number("publish.dead_after", publish.dead_after, 100_000_000..=HOUR_NS, Time),
            number("publish.max_subscribers", subscribers, 1..=256, Count),
        ]
    }

    fn check_texts(&self) -> Checked {
        let publish = &self.publish;
        let texts = [
            ("name", self.name.as_str()),
            ("trigger.file", self.trigger.file.as_deref().unwrap_or("")),
            ("trigger.external_busy", self.trigger.external_busy.as_deref().unwrap_or("")),
            ("publish.address", &publish.address),
            ("publish.congestion", &publish.congestion),
        ];
        texts.iter().try_for_each(|(field, text)| {
            ensure(text.len() <= MAX_NAME, field, || format!("longer than {MAX_NAME} bytes"))?;
            ensure(!text.chars().any(char::is_control), field, || {
                "has control characters".to_owned()
            })
        })
    }

    fn check_format(&self) -> Checked {
        ensure(self.format().is_some(), "card.block", || {
            format!("{} bytes; blocks are 1KiB to 16KiB, Phase I ones 1KiB", self.card.block.0)
        })
    }

    fn check_trigger(&self) -> Checked {
        let trigger = &self.trigger;
        let rate = trigger.rate.0;
        ensure(RATE_HZ.contains(&rate), "trigger.rate", || {
            format!("{rate:?} Hz; 0.001 Hz to 1000 MHz")
        })?;
        let is_missing = trigger.source == TriggerKind::Times && trigger.file.is_none();
        ensure(!is_missing, "trigger.file", || "source = \"times\" needs one".to_owned())
    }

    fn check_elinks(&self) -> Checked {
        let card = &self.card;
        let all = u32::from(card.links) * u32::from(card.channels);
        ensure(all <= 24, "card.links", || {
            format!("{} x {} channels; a device has 1 to 24 links", card.links, card.channels)
        })?;
        let mut indices = self.link_elinks();
        let count = indices.len();
        indices.sort_unstable();
        indices.dedup();
        let are_indices = indices.len() == count && indices.last().is_none_or(|index| *index <= 63);
        ensure(are_indices, "card.elinks", || {
            "indices of a link are 0 to 63, each once".to_owned()
        })?;
        ensure(card.mode == Mode::Gbt || count == 1, "card.elinks", || {
            format!("{count} E-links; a link in FULL mode has one")
        })?;
        let of_channel = count * usize::from(card.links) + usize::from(card.ttc);
        ensure(of_channel <= MAX_ELINKS, "card.elinks", || {
            format!("{of_channel} E-links in a channel; at most {MAX_ELINKS}")
        })
    }

    fn check_card(&self) -> Checked {
        let card = &self.card;
        ensure(self.pointer_gap() < card.ring.0 / 2, "card.pointer_gap", || {
            "not less than half of the ring, so that no wrap would be seen".to_owned()
        })?;
        let drain_s = card.dma_rate.map_or(0, |rate| card.fifo.0 / rate.0) as u64;
        ensure(drain_s < MAX_DRAIN_S, "card.dma_rate", || {
            format!(
                "emptying the FIFO would take {drain_s} s; at most {MAX_DRAIN_S} s, so take a smaller card.fifo"
            )
        })?;
        if card.huge_pages == Some(true) {
            let rings = u64::from(card.devices) * u64::from(card.channels) * card.ring.0 as u64;
            let pool = huge_pool_bytes(&Files::default());
            ensure(rings <= pool, "card.huge_pages", || {
                let [rings, pool] = [rings, pool].map(show_bytes);
                format!(
                    "the rings need {rings}, the pool has {pool} free; raise vm.nr_hugepages, or leave it out"
                )
            })?;
        }
        match self.why_not_replayed() {
            Some(why) if card.blocks == BlockSource::Replay => {
                Err(Wrong::new("card.blocks", format!("{why} cannot be replayed; say live")))
            }
            _ => Ok(()),
        }
    }

    fn check_busy(&self) -> Checked {
        let ((assert, release), ring) = (self.dma_thresholds(), self.card.ring.0);
        let field = if self.busy.assert_below.is_some() {
            "busy.assert_below"
        } else {
            "busy.release_above"
        };
        ensure(assert <= release && release < ring, field, || {
            "assert_below <= release_above < card.ring is needed (bytes that are free)".to_owned()
        })
    }

    fn check_links(&self) -> Checked {
        for (at, link) in self.link.iter().enumerate() {
            let field = |name: &str| format!("link[{at}].{name}");
            ensure(link.link < self.card.links, &field("link"), || {
                format!("{}; a channel has links 0 to {}", link.link, self.card.links - 1)
            })?;
            let is_again = self.link[..at].iter().any(|before| before.link == link.link);
            ensure(!is_again, &field("link"), || {
                format!("link {} has a [[link]] already", link.link)
            })?;
            ensure((0.0..1.0).contains(&link.deficit), &field("deficit"), || {
                format!("{}; a share from 0 to below 1", link.deficit)
            })?;
            let is_chunk =
                link.payload.is_none_or(|bytes| (1..=MAX_PAYLOAD_BYTES).contains(&bytes.0));
            ensure(is_chunk, &field("payload"), || "1B to 1MiB".to_owned())?;
        }
        Ok(())
    }

    fn check_faults(&self) -> Checked {
        ensure(self.fault.len() <= MAX_FAULTS, "fault", || {
            format!("more than {MAX_FAULTS} of them")
        })?;
        let elinks = self.elinks(0, 0);
        for (at, fault) in self.fault.iter().enumerate() {
            ensure(fault.every > 0, &format!("fault[{at}].every"), || {
                "0; every first is 1".to_owned()
            })?;
            let is_known = fault
                .elink
                .is_none_or(|elink| elinks.iter().any(|known| known.elink.number() == elink));
            ensure(is_known, &format!("fault[{at}].elink"), || {
                format!(
                    "{:#05x} is not an E-link of the first channel",
                    fault.elink.unwrap_or_default()
                )
            })?;
        }
        Ok(())
    }

    fn check_publish(&self) -> Checked {
        let publish = &self.publish;
        let name = &publish.transport;
        ensure(["tcp", "zenoh"].contains(&name.as_str()), "publish.transport", || {
            format!("`{}`; tcp or zenoh", name.escape_default())
        })?;
        check_congestion(&publish.congestion).map_err(|what| Wrong::new("publish.congestion", what))
    }
}

pub fn check_congestion(name: &str) -> Result<(), String> {
    /// `TCP_CA_NAME_MAX` of linux/tcp.h less the final zero: the kernel cuts longer ones.
    const MAX_BYTES: usize = 15;
    if matches!(name, "default" | "reno") {
        return Ok(());
    }
    if name.len() > MAX_BYTES {
        return Err(format!("`{}` is longer than {MAX_BYTES} bytes", name.escape_default()));
    }
    let Ok(socket) = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
    else {
        return Ok(());
    };
    socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
        let there = Files::default().text("proc/sys/net/ipv4/tcp_available_congestion_control");
        let there = there.unwrap_or_else(|| "reno".to_owned());
        format!(
            "`{}` cannot be had here ({error}); this host has: {there}, or default",
            name.escape_default()
        )
    })
}

#[cfg(test)]
mod tests;
