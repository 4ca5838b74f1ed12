//! Blocks as files: the output of a card into its rings, without waiting for it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use daqmeter_record::units::whole;

use crate::card::{Card, CardState, ChannelId};
use crate::scenario::{BusySettings, Scenario};

const SMALL_RING_BYTES: usize = 1 << 20;

const MAX_STEP_BYTES: usize = 4 << 20;

/// Carries a channel of a card through `triggers` triggers, in simulated time, and hands over the
/// bytes of its ring, whole blocks. BUSY stops nothing, because the ring is emptied in time.
/// Returns false if it was stopped.
pub fn record(
    scenario: &Scenario,
    id: ChannelId,
    triggers: u64,
    stop: &AtomicBool,
    mut out: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<bool> {
    let mut scenario = scenario.clone();
    if scenario.card.ring.0 > SMALL_RING_BYTES && Card::fits(&scenario, SMALL_RING_BYTES) {
        // The output is independent of the ring, and a small one stays in the cache.
        scenario.card.ring.0 = SMALL_RING_BYTES;
        let outside = scenario.busy.outside.take();
        scenario.busy = BusySettings { outside, ..BusySettings::default() };
        scenario.card.pointer_gap = None;
    }
    if scenario.trigger.rate.0 == 0.0 {
        let what = "trigger.rate: 0 Hz; without triggers there is nothing to record";
        return Err(io::Error::other(what));
    }
    let (mut card, mut rings) = Card::of_channels(&scenario, &[id]).map_err(io::Error::other)?;
    let mut ring = rings.remove(0);
    card.source.limit(None, Some(triggers));
    card.start(0);
    // Steps that fill a small part of the ring, which stays in the cache.
    let per_trigger: usize =
        scenario.elinks(0, 0).iter().map(|elink| elink.payload_bytes + 8).sum();
    let step = ((card.scenario().card.ring.0 / 4).min(MAX_STEP_BYTES) / per_trigger.max(1)).max(1);
    let step_ns = whole(step as f64 * card.source.period_ns).max(1);
    let mut now_ns = 0;
    loop {
        let finished = card.state() == CardState::Finished;
        let mut bytes = 0;
        for span in ring.spans(0) {
            if !span.is_empty() {
                out(span)?;
                bytes += span.len();
            }
        }
        ring.release(bytes);
        if finished || stop.load(Ordering::Relaxed) {
            return Ok(finished);
        }
        now_ns += step_ns;
        card.advance(now_ns);
    }
}
