//! Blocks made once, to be replayed: one turn of the ring.
//!
//! A lap is a multiple of 256 triggers, so that the 8-bit event counters go on over its end; its
//! last blocks are closed by timeouts. Block sequence numbers are set when a block is shown again.

use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};

use super::generator::{Made, Room, emulators};
use crate::scenario::{Scenario, ScenarioError};

/// Triggers of a lap are a multiple of this.
const EVENTS: u64 = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct LapBlock {
    pub(crate) header: FelixHeader,
    pub(crate) emulator: u16,
    /// The trigger of its first fragment, counted from 1 in the lap.
    pub(crate) first_trigger: u64,
    pub(crate) complete_at: u64,
}

#[derive(Debug)]
pub(crate) struct Lap {
    pub(crate) triggers: u64,
    pub(crate) blocks: Vec<LapBlock>,
    pub(crate) blocks_of: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

const PLENTY: Room = Room { blocks: usize::MAX / 2 };

impl Lap {
    pub(crate) fn make(
        scenario: &Scenario,
        device: u16,
        channel: u16,
    ) -> Result<Lap, ScenarioError> {
        let ring_bytes = scenario.card.ring.0;
        let (blocks, _) = Lap::blocks(scenario, device, channel, EVENTS);
        let block_bytes = scenario.card.block.0;
        // The blocks that are closed early weigh less in a longer lap: the first guess is short,
        // the rest by steps.
        let fits = |triggers| {
            Lap::blocks(scenario, device, channel, triggers).0 * block_bytes <= ring_bytes
        };
        if blocks * block_bytes > ring_bytes {
            return Err(ScenarioError(format!(
                "card.ring: {ring_bytes} bytes hold fewer than {EVENTS} triggers ({} bytes), which a replay needs; say blocks = \"live\"",
                blocks * block_bytes
            )));
        }
        let (mut low, mut high) = (1_u64, 2_u64);
        while fits(high * EVENTS) {
            (low, high) = (high, high * 2);
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle * EVENTS) {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(Lap::of_triggers(scenario, device, channel, low * EVENTS))
    }

    pub(crate) fn fits(scenario: &Scenario, ring_bytes: usize) -> bool {
        Lap::blocks(scenario, 0, 0, EVENTS).0 * scenario.card.block.0 <= ring_bytes
    }

    fn blocks(scenario: &Scenario, device: u16, channel: u16, triggers: u64) -> (usize, usize) {
        let format = scenario.format().expect("the scenario was checked");
        let elinks = scenario.elinks(device, channel);
        let of = |spec: &crate::scenario::ElinkSpec| {
            daqmeter_wire::felix::encoder::blocks_of(format, spec.payload_bytes, triggers)
        };
        let blocks: u64 = elinks.iter().map(of).sum();
        (usize::try_from(blocks).unwrap_or(usize::MAX), elinks.len())
    }

    pub(crate) fn of_triggers(
        scenario: &Scenario,
        device: u16,
        channel: u16,
        triggers: u64,
    ) -> Lap {
        let mut emulators = emulators(scenario, device, channel);
        // The vector is allocated at once: a growing one would hold up to twice the ring.
        let (blocks, _) = Lap::blocks(scenario, device, channel, triggers);
        let mut lap = Lap {
            triggers,
            blocks: Vec::with_capacity(blocks),
            blocks_of: vec![0; emulators.len()],
            bytes: Vec::with_capacity(blocks * scenario.card.block.0),
        };
        for trigger in 1..=triggers {
            for (at, emulator) in emulators.iter_mut().enumerate() {
                // The trigger's number stands for its time.
                emulator
                    .trigger(trigger, trigger - 1, PLENTY, &mut |made| lap.take(at, trigger, made));
            }
        }
        for (at, emulator) in emulators.iter_mut().enumerate() {
            emulator.close(&mut |made| lap.take(at, triggers, made));
        }
        lap
    }

    fn take(&mut self, emulator: usize, trigger: u64, made: Made<'_>) {
        let head: [u8; HEADER_BYTES] =
            made.block[..HEADER_BYTES].try_into().expect("a block has a header");
        self.blocks.push(LapBlock {
            header: FelixHeader::parse(head),
            emulator: u16::try_from(emulator).expect("a channel has few E-links"),
            first_trigger: made.birth_ns,
            complete_at: trigger,
        });
        self.blocks_of[emulator] += 1;
        self.bytes.extend_from_slice(made.block);
    }

    /// Open blocks after this number of triggers of a lap, which a run that ends there has not
    /// shown.
    pub(crate) fn open_blocks(
        scenario: &Scenario,
        device: u16,
        channel: u16,
        triggers: u64,
        mut out: impl FnMut(usize, FelixHeader, &[u8]),
    ) {
        let mut emulators = emulators(scenario, device, channel);
        for trigger in 1..=triggers {
            for emulator in &mut emulators {
                emulator.trigger(trigger, trigger - 1, PLENTY, &mut |_| {});
            }
        }
        for (at, emulator) in emulators.iter_mut().enumerate() {
            emulator.close(&mut |made| {
                let head: [u8; HEADER_BYTES] =
                    made.block[..HEADER_BYTES].try_into().expect("a block has a header");
                out(at, FelixHeader::parse(head), made.block);
            });
        }
    }
}
