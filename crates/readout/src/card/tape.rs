//! Blocks that are there before the run, which the card gives again and again: those of a recorded
//! file, or a turn of the ring that was made by the emulators.
//!
//! A made turn is a multiple of 256 triggers, so that the 8-bit event counters go on over its end;
//! its last blocks are closed by timeouts. Block sequence numbers are set when a block is shown.

use std::fmt;
use std::sync::Arc;

use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};
use daqmeter_wire::felix::encoder::blocks_of;
use daqmeter_wire::felix::{BlockFormat, Elink};

use super::ChannelId;
use super::generator::emulators;
use crate::accounts::CardElink;
use crate::scenario::{ElinkSpec, Scenario, ScenarioError};

/// Triggers of a made turn are a multiple of this.
const EVENTS: u64 = 256;
/// Blocks that a FIFO without end has room for.
const PLENTY: usize = usize::MAX / 2;

#[derive(PartialEq)]
pub(crate) struct Tape {
    pub(crate) format: BlockFormat,
    pub(crate) bytes: Vec<u8>,
    pub(crate) blocks: Vec<TapeBlock>,
    pub(crate) elinks: Vec<TapeElink>,
    /// Triggers of one turn.
    pub(crate) triggers: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TapeBlock {
    pub(crate) header: FelixHeader,
    /// Place of its E-link.
    pub(crate) elink: u16,
    /// Triggers, from 1 in the turn: that of its first fragment, and the one that completes it.
    pub(crate) first: u64,
    pub(crate) due: u64,
    /// Chunks that end in it.
    pub(crate) chunks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TapeElink {
    pub(crate) elink: Elink,
    pub(crate) longest: usize,
    pub(crate) chunks: u64,
    /// Blocks by which the sequence numbers go on from turn to turn.
    pub(crate) blocks: u64,
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.blocks.len())
    }
}

impl Tape {
    /// Makes as many triggers as fill the ring of a channel. Fails if that does not hold 256.
    pub(super) fn made(scenario: &Scenario, id: ChannelId) -> Result<Tape, ScenarioError> {
        let ring_bytes = scenario.card.ring.0;
        let fits = |turns: &u64| made_bytes(scenario, id, turns * EVENTS) <= ring_bytes;
        let turns = (1..).take_while(fits).last().ok_or_else(|| {
            let needed = made_bytes(scenario, id, EVENTS);
            ScenarioError(format!(
                "card.ring: {ring_bytes} bytes hold fewer than {EVENTS} triggers ({needed} bytes), which a replay needs; say blocks = \"live\""
            ))
        })?;
        Ok(Tape::of_triggers(scenario, id, turns * EVENTS))
    }

    fn of_triggers(scenario: &Scenario, id: ChannelId, triggers: u64) -> Tape {
        let specs = scenario.elinks(id.device, id.channel);
        let elink = |spec: &ElinkSpec| TapeElink {
            elink: spec.elink,
            longest: spec.payload_bytes,
            chunks: triggers,
            blocks: 0,
        };
        // The vectors are allocated at once: growing ones would hold up to twice the ring.
        let bytes = made_bytes(scenario, id, triggers);
        let mut tape = Tape {
            format: scenario.format().expect("the scenario was checked"),
            bytes: Vec::with_capacity(bytes),
            blocks: Vec::with_capacity(bytes / scenario.card.block.0),
            elinks: specs.iter().map(elink).collect(),
            triggers,
        };
        made_blocks(scenario, id, triggers, |due, elink, block, first| match due {
            due @ 1.. => tape.take(due, elink, block, first),
            // It is closed by the end of the turn.
            0 => tape.take(triggers, elink, block, first),
        });
        tape
    }

    fn take(&mut self, due: u64, elink: usize, block: &[u8], first: u64) {
        self.blocks.push(TapeBlock {
            header: header(block),
            elink: u16::try_from(elink).expect("a channel has few E-links"),
            first,
            due,
            chunks: 0,
        });
        self.elinks[elink].blocks += 1;
        self.bytes.extend_from_slice(block);
    }

    pub(crate) fn event_bytes(&self) -> f64 {
        self.bytes.len() as f64 / self.triggers.max(1) as f64
    }

    /// Header of an E-link's block as it looks in a turn.
    fn header_in(&self, elink: usize, header: FelixHeader, turns: u64) -> [u8; HEADER_BYTES] {
        let turned = u64::from(header.sequence) + turns * self.elinks[elink].blocks;
        let sequence = u8::try_from(turned & 0x1F).expect("five bits");
        FelixHeader { sequence, ..header }.emit()
    }
}

pub(crate) fn header(block: &[u8]) -> FelixHeader {
    let head = block.first_chunk::<HEADER_BYTES>();
    FelixHeader::parse(*head.expect("a block has a header"))
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

/// Makes the blocks of so many triggers: the trigger that completes each, 0 for those that are open
/// at the end; the place of the E-link; the block; and the trigger of its first fragment.
fn made_blocks(
    scenario: &Scenario,
    id: ChannelId,
    triggers: u64,
    mut out: impl FnMut(u64, usize, &[u8], u64),
) {
    let mut emulators = emulators(scenario, id);
    for trigger in 1..=triggers {
        for (at, emulator) in emulators.iter_mut().enumerate() {
            // The trigger's number stands for its time.
            emulator.trigger(trigger, trigger - 1, PLENTY, &mut |block, first| {
                out(trigger, at, block, first)
            });
        }
    }
    for (at, emulator) in emulators.iter_mut().enumerate() {
        emulator.close(&mut |block, first| out(0, at, block, first));
    }
}

/// A tape that is played: its next block, its position, and its accounts.
#[derive(Debug)]
pub(super) struct Player {
    pub(super) tape: Arc<Tape>,
    /// True if the ring holds a made turn already; else the blocks are copied to it.
    in_ring: bool,
    loops: bool,
    /// Next block, and the number of turns done.
    next: usize,
    turns: u64,
    pub(super) accepted: u64,
    pub(super) fifo_lost: u64,
    in_turn: Vec<u64>,
    /// True once the blocks that were open at the end were given.
    is_closed: bool,
}

/// A block that is given: its header if it is another than in memory, its bytes unless the ring has
/// them, and the number of triggers from its first fragment to its last.
pub(super) struct Given<'a> {
    pub(super) head: Option<[u8; HEADER_BYTES]>,
    pub(super) block: Option<&'a [u8]>,
    pub(super) spans: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    pub blocks: u64,
    pub of: u64,
    /// True if all its chunks are those of emulators.
    pub is_emulated: bool,
}

impl Player {
    pub(super) fn new(tape: Arc<Tape>, in_ring: bool, loops: bool) -> Player {
        let in_turn = vec![0; tape.elinks.len()];
        let (next, turns, accepted, fifo_lost, is_closed) = (0, 0, 0, 0, false);
        Player { tape, in_ring, loops, next, turns, accepted, fifo_lost, in_turn, is_closed }
    }

    pub(super) fn played(&self, is_emulated: bool) -> Played {
        let of = self.tape.blocks.len() as u64;
        Played { blocks: self.turns * of + self.next as u64, of, is_emulated }
    }

    /// Accepted trigger, counted from 1, that completes the next block; `None` at the end.
    pub(super) fn next_completion(&self) -> Option<u64> {
        let block = self.tape.blocks.get(self.next)?;
        Some(self.turns * self.tape.triggers + block.due)
    }

    pub(super) fn is_due(&self) -> bool {
        self.next_completion().is_some_and(|due| due <= self.accepted)
    }

    pub(super) fn take(&mut self) -> Given<'_> {
        let (at, turns) = (self.next, self.turns);
        let block = self.tape.blocks[at];
        let place = usize::from(block.elink);
        self.in_turn[place] += u64::from(block.chunks);
        self.next += 1;
        if self.next == self.tape.blocks.len() && self.loops {
            self.in_turn.fill(0);
            self.next = 0;
            self.turns += 1;
        }
        let size = self.tape.format.block_bytes;
        Given {
            head: (turns > 0).then(|| self.tape.header_in(place, block.header, turns)),
            block: (!self.in_ring).then(|| &self.tape.bytes[at * size..(at + 1) * size]),
            spans: block.due - block.first,
        }
    }

    /// Gives the blocks of a made turn that are open where the run ended, once.
    pub(super) fn close(&mut self, scenario: &Scenario, id: ChannelId, mut out: impl FnMut(&[u8])) {
        if !self.in_ring || std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        let (turns, open) =
            (self.accepted / self.tape.triggers, self.accepted % self.tape.triggers);
        made_blocks(scenario, id, open, |due, elink, block, _| {
            if due == 0 {
                let mut block = block.to_vec();
                let head = self.tape.header_in(elink, header(&block), turns);
                block[..HEADER_BYTES].copy_from_slice(&head);
                out(&block);
            }
        });
    }

    /// The accounts of the channel's E-links. A chunk of a file whose trigger was accepted and
    /// whose block was not complete waits; it counts as held back. A trigger for which the file has
    /// no chunk counts as a deficit.
    pub(super) fn accounts(&self, specs: &[ElinkSpec]) -> Vec<CardElink> {
        let in_turn = self.accepted.saturating_sub(self.turns * self.tape.triggers);
        let each = specs.iter().zip(&self.tape.elinks).zip(&self.in_turn);
        each.map(|((spec, elink), given)| {
            let (chunks, waiting) = match self.in_ring {
                true => (self.accepted, 0),
                false => (
                    self.turns * elink.chunks + given,
                    in_turn.min(elink.chunks).saturating_sub(*given),
                ),
            };
            CardElink {
                tag: spec.tag,
                elink: spec.elink.number(),
                deficit: self.accepted.saturating_sub(chunks + waiting),
                sender_lost: waiting,
                fifo_lost: self.fifo_lost,
                chunks,
                ..CardElink::default()
            }
        })
        .collect()
    }
}

/// Blocks of a file in so many turns, as the ring gets them.
#[cfg(test)]
pub(crate) fn shown(tape: &Arc<Tape>, turns: u64) -> Vec<Vec<u8>> {
    let mut player = Player::new(tape.clone(), false, true);
    let block = |_| {
        let given = player.take();
        let mut block = given.block.unwrap().to_vec();
        if let Some(head) = given.head {
            block[..HEADER_BYTES].copy_from_slice(&head);
        }
        block
    };
    (0..turns * tape.blocks.len() as u64).map(block).collect()
}
