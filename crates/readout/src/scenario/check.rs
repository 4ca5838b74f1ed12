//! Checks that the parts of a scenario go together. Every number has bounds, before anything is
//! allocated.

use std::ops::RangeInclusive;

use daqmeter_record::units::{show_bytes, show_ns, significant};
use daqmeter_record::written::ByteSize;
use daqmeter_sys::net::check_congestion;

use super::spec::{Mode, Scenario};

/// Longest chunk: a page must hold it.
const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// E-links of a channel: 24 links with 32 of them. The words beside a ring have an account of each.
pub(crate) const MAX_ELINKS: usize = 24 * 32;
/// Channels of a card: 8 of each of 64 devices.
pub(crate) const MAX_CHANNELS: usize = 64 * 8;
/// Largest ring: real cards are given 1 to 16 GiB for each channel.
const MAX_RING_BYTES: u64 = 64 << 30;
/// Largest output FIFO of a channel: real ones have some MiB.
const MAX_FIFO_BYTES: u64 = 1 << 30;
/// A slower DMA would need minutes to empty the FIFO at the end of a run.
const DMA_BYTES_PER_S: RangeInclusive<u64> = 64 << 10..=1 << 40;
/// Time after the last trigger within which the FIFO must be empty.
const MAX_DRAIN_S: usize = 60;
/// Rates: one trigger in a quarter of an hour, and one per nanosecond, which is the clock's unit.
const RATE_HZ: RangeInclusive<f64> = 1e-3..=1e9;
/// Signals are looked at between polls, and must end a run within two seconds.
const MAX_POLL_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3_600_000_000_000;
const MAX_NAME: usize = 255;

type Show = fn(u64) -> String;

fn wrong(field: &str, what: impl std::fmt::Display) -> String {
    format!("{field}: {what}")
}

impl Scenario {
    pub fn check(&self) -> Result<(), String> {
        let (card, publish) = (&self.card, &self.publish);
        for (field, text) in [
            ("name", &self.name),
            ("publish.address", &publish.address),
            ("publish.congestion", &publish.congestion),
        ] {
            if text.len() > MAX_NAME || text.chars().any(char::is_control) {
                let what = format!("has control characters, or more than {MAX_NAME} bytes");
                return Err(wrong(field, what));
            }
        }
        if self.format().is_none() {
            let what = format!("{} bytes; 1KiB to 16KiB, in Phase I 1KiB", card.block.0);
            return Err(wrong("card.block", what));
        }
        for (field, value, allowed, show) in self.numbers() {
            if let Some(value) = value.filter(|value| !allowed.contains(value)) {
                let [value, least, greatest] = [value, *allowed.start(), *allowed.end()].map(show);
                return Err(wrong(field, format!("{value}; {least} to {greatest}")));
            }
        }
        self.check_rules()?;
        check_congestion(&publish.congestion).map_err(|what| wrong("publish.congestion", what))
    }

    /// Every whole number with its bounds. Those of one field may depend on another that was
    /// checked before it.
    fn numbers(&self) -> [(&'static str, Option<u64>, RangeInclusive<u64>, Show); 17] {
        let (bytes, count): (Show, Show) = (show_bytes, |count| count.to_string());
        let (time, rate): (Show, Show) =
            (|ns| show_ns(ns as f64), |bytes| format!("{}/s", show_bytes(bytes)));
        let (card, busy, reader, publish) = (&self.card, &self.busy, &self.reader, &self.publish);
        let [ring, block] = [card.ring.0 as u64, card.block.0 as u64];
        let gap = 0..=(ring / 2).saturating_sub(1);
        let in_ring = 0..=ring.saturating_sub(1);
        let of = |size: Option<ByteSize>| size.map(|size| size.0 as u64);
        [
            ("card.devices", Some(card.devices.into()), 1..=64, count),
            ("card.channels", Some(card.channels.into()), 1..=8, count),
            ("card.links", Some(card.links.into()), 1..=24, count),
            ("card.payload", of(Some(card.payload)), 1..=MAX_PAYLOAD_BYTES as u64, bytes),
            ("card.ring", Some(ring), 64 * block..=MAX_RING_BYTES, bytes),
            ("card.pointer_gap", Some(self.pointer_gap() as u64), gap, bytes),
            ("card.fifo", of(Some(card.fifo)), 4 * block..=MAX_FIFO_BYTES, bytes),
            ("reader.poll", Some(reader.poll.0), 0..=MAX_POLL_NS, time),
            ("reader.page", of(Some(reader.page)), 4096..=2 << 20, bytes),
            ("reader.pages", Some(reader.pages as u64), 2..=4096, count),
            ("reader.timeout", Some(reader.timeout.0), 0..=1_000_000_000, time),
            ("publish.dead_after", Some(publish.dead_after.0), 100_000_000..=HOUR_NS, time),
            ("publish.max_subscribers", Some(publish.max_subscribers as u64), 1..=256, count),
            ("card.dma_rate", of(card.dma_rate), DMA_BYTES_PER_S, rate),
            ("busy.assert_below", of(busy.assert_below), in_ring.clone(), bytes),
            ("busy.release_above", of(busy.release_above), in_ring, bytes),
            ("card.timeout", card.timeout.map(|timeout| timeout.0), 1_000..=HOUR_NS, time),
        ]
    }

    /// Checks the other rules, for numbers within their bounds.
    fn check_rules(&self) -> Result<(), String> {
        let (card, rate) = (&self.card, self.trigger.rate.0);
        let what = || format!("{} MHz; 0, or 0.001 Hz to 1000 MHz", significant(rate / 1e6, 4));
        rule(rate == 0.0 || RATE_HZ.contains(&rate), "trigger.rate", what)?;
        let own = self.trigger.times.as_ref().map_or(rate, |times| times.rate_hz());
        let what = || format!("{rate:?} Hz; the times in the file have {own:?} Hz: leave it out");
        rule((rate - own).abs() <= own * 1e-9, "trigger.rate", what)?;
        let are_intervals = self.busy.outside.as_ref().is_none_or(|it| it.is_of_intervals());
        let what = || "an interval has a begin and an end: an even number of times".to_owned();
        rule(are_intervals, "busy.outside", what)?;
        let what = || "is for mode = \"full\"".to_owned();
        rule(!card.xoff || card.mode == Mode::Full, "card.xoff", what)?;
        let (links, channels) = (u16::from(card.links), card.channels);
        let what = || format!("{links} x {channels} channels; a device has 1 to 24 links");
        rule(links * channels <= 24, "card.links", what)?;
        let mut indices = self.link_elinks();
        let count = indices.len();
        indices.sort_unstable();
        indices.dedup();
        let are_indices = indices.len() == count && indices.iter().all(|index| *index <= 63);
        rule(are_indices, "card.elinks", || "indices of a link are 0 to 63, each once".to_owned())?;
        let what = || format!("{count} E-links; a link in FULL mode has one");
        rule(card.mode == Mode::Gbt || count == 1, "card.elinks", what)?;
        let all = count * usize::from(card.links) + usize::from(card.ttc);
        let what = || format!("{all} E-links in a channel; at most {MAX_ELINKS}");
        rule(all <= MAX_ELINKS, "card.elinks", what)?;
        let drain_s = card.dma_rate.map_or(0, |rate| card.fifo.0 / rate.0);
        rule(drain_s < MAX_DRAIN_S, "card.dma_rate", || {
            format!(
                "emptying the FIFO would take {drain_s} s; at most {MAX_DRAIN_S} s, so take a smaller card.fifo"
            )
        })?;
        let (assert, release) = self.dma_thresholds();
        rule(assert <= release && release < card.ring.0, "busy.release_above", || {
            "busy.assert_below <= busy.release_above < card.ring is wanted (free bytes)".to_owned()
        })?;
        let are_shares = card.deficits.iter().all(|deficit| (0.0..1.0).contains(deficit));
        let what = || format!("{:?}; a share from 0 to below 1 for each link", card.deficits);
        rule(are_shares && card.deficits.len() <= links.into(), "card.deficits", what)?;
        let elinks = self.elinks(0, 0);
        for (at, fault) in self.fault.iter().enumerate() {
            let what = || "0; every first is 1".to_owned();
            rule(fault.every > 0, &format!("fault[{at}].every"), what)?;
            let is_known = |number: u16| elinks.iter().any(|known| known.elink.number() == number);
            let number = fault.elink.unwrap_or_default();
            let what = || format!("{number:#05x} is not an E-link of the first channel");
            rule(fault.elink.is_none_or(is_known), &format!("fault[{at}].elink"), what)?;
        }
        Ok(())
    }
}

fn rule(holds: bool, field: &str, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(wrong(field, what())) }
}
