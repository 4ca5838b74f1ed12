//! A turn of the ring: blocks that the emulators make before the run, and that the card shows again
//! and again.
//!
//! A turn is a multiple of 256 triggers, so that the 8-bit event counters go on over its end; its
//! last blocks are closed by timeouts. Block sequence numbers are set when a block is shown.

use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};
use daqmeter_wire::felix::encoder::blocks_of;

use super::ChannelId;
use super::generator::emulators;
use crate::scenario::{ElinkSpec, Scenario};

/// Triggers of a turn are a multiple of this.
const EVENTS: u64 = 256;
/// Blocks that a FIFO without end has room for.
const PLENTY: usize = usize::MAX / 2;

#[derive(Clone, Copy, Debug)]
struct TapeBlock {
    header: FelixHeader,
    /// Place of its E-link.
    elink: u16,
    /// Triggers, from 1 in the turn: that of its first fragment, and the one that completes it.
    first: u64,
    due: u64,
}

#[derive(Debug)]
pub(super) struct Tape {
    blocks: Vec<TapeBlock>,
    /// Blocks of each E-link, by which its sequence numbers go on from turn to turn.
    elink_blocks: Vec<u64>,
    /// Triggers of one turn.
    triggers: u64,
    /// Next block, and the number of turns done.
    next: usize,
    turns: u64,
    /// True once the blocks that were open at the end were given.
    is_closed: bool,
}

/// A block that is shown: its header if it differs from the one in the ring, and the trigger of its
/// first fragment, from 1.
pub(super) struct Shown {
    pub(super) head: Option<[u8; HEADER_BYTES]>,
    pub(super) first: u64,
}

impl Tape {
    /// Makes as many triggers as fill the ring of a channel, with the ring's bytes. Fails if that
    /// does not hold 256.
    pub(super) fn made(scenario: &Scenario, id: ChannelId) -> Result<(Tape, Vec<u8>), String> {
        let ring_bytes = scenario.card.ring.0;
        let fits = |turns: &u64| made_bytes(scenario, id, turns * EVENTS) <= ring_bytes;
        let turns = (1..).take_while(fits).last().ok_or_else(|| {
            let needed = made_bytes(scenario, id, EVENTS);
            format!(
                "card.ring: {ring_bytes} bytes hold fewer than {EVENTS} triggers ({needed} bytes), which a replay needs; say blocks = \"live\""
            )
        })?;
        let triggers = turns * EVENTS;
        // The vectors are allocated at once: growing ones would hold up to twice the ring.
        let mut bytes = Vec::with_capacity(made_bytes(scenario, id, triggers));
        let mut blocks = Vec::with_capacity(bytes.capacity() / scenario.card.block.0);
        let mut elink_blocks = vec![0; scenario.elinks(id.device, id.channel).len()];
        made_blocks(scenario, id, triggers, |due, elink, block, first| {
            let place = u16::try_from(elink).expect("a channel has few E-links");
            // The end of the turn closes the blocks that are open.
            let (header, due) = (FelixHeader::of_block(block), due.unwrap_or(triggers));
            blocks.push(TapeBlock { header, elink: place, first, due });
            elink_blocks[elink] += 1;
            bytes.extend_from_slice(block);
        });
        let tape = Tape { blocks, elink_blocks, triggers, next: 0, turns: 0, is_closed: false };
        Ok((tape, bytes))
    }

    /// Accepted trigger, counted from 1, that completes the next block.
    pub(super) fn next_completion(&self) -> u64 {
        self.turns * self.triggers + self.blocks[self.next].due
    }

    /// Takes the next block if the accepted triggers completed it.
    pub(super) fn take(&mut self, accepted: u64) -> Option<Shown> {
        if self.next_completion() > accepted {
            return None;
        }
        let block = self.blocks[self.next];
        let first = self.turns * self.triggers + block.first;
        let head = (self.turns > 0).then(|| self.header_now(block.elink.into(), block.header));
        self.next += 1;
        if self.next == self.blocks.len() {
            (self.next, self.turns) = (0, self.turns + 1);
        }
        Some(Shown { head, first })
    }

    /// Header of an E-link's block as it looks in this turn.
    fn header_now(&self, elink: usize, header: FelixHeader) -> [u8; HEADER_BYTES] {
        let turned = u64::from(header.sequence) + self.turns * self.elink_blocks[elink];
        let sequence = u8::try_from(turned & 0x1F).expect("five bits");
        FelixHeader { sequence, ..header }.emit()
    }

    /// Gives the blocks that are open where the run ended, once, each with the trigger of its first
    /// fragment.
    pub(super) fn close(
        &mut self,
        scenario: &Scenario,
        id: ChannelId,
        accepted: u64,
        mut out: impl FnMut(&[u8], u64),
    ) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        let of_turn = accepted % self.triggers;
        made_blocks(scenario, id, of_turn, |due, elink, block, first| {
            if due.is_none() {
                let mut block = block.to_vec();
                let head = self.header_now(elink, FelixHeader::of_block(&block));
                block[..HEADER_BYTES].copy_from_slice(&head);
                out(&block, accepted - of_turn + first);
            }
        });
    }

    pub(super) fn open_blocks(&self) -> usize {
        if self.is_closed { 0 } else { self.elink_blocks.len() }
    }
}

fn made_bytes(scenario: &Scenario, id: ChannelId, triggers: u64) -> usize {
    let format = scenario.format().expect("the scenario was checked");
    let elinks = scenario.elinks(id.device, id.channel);
    let of = |spec: &ElinkSpec| blocks_of(format, spec.payload_bytes, triggers);
    let blocks: u64 = elinks.iter().map(of).sum();
    usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(format.block_bytes)
}

/// True if a ring holds the shortest turn of the first channel.
pub(super) fn fits(scenario: &Scenario, ring_bytes: usize) -> bool {
    made_bytes(scenario, ChannelId { device: 0, channel: 0 }, EVENTS) <= ring_bytes
}

/// Makes the blocks of the triggers: the trigger that completes each, `None` for those that are
/// open at the end; the place of the E-link; the block; and the trigger of its first fragment.
fn made_blocks(
    scenario: &Scenario,
    id: ChannelId,
    triggers: u64,
    mut out: impl FnMut(Option<u64>, usize, &[u8], u64),
) {
    let mut emulators = emulators(scenario, id);
    for trigger in 1..=triggers {
        for (at, emulator) in emulators.iter_mut().enumerate() {
            // The trigger's number stands for its time.
            emulator.trigger(trigger, trigger - 1, PLENTY, &mut |block, first| {
                out(Some(trigger), at, block, first)
            });
        }
    }
    for (at, emulator) in emulators.iter_mut().enumerate() {
        emulator.close(&mut |block, first| out(None, at, block, first));
    }
}
