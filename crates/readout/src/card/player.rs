//! A recorded file as what a channel gives: which block is next, and the accounts.

use std::sync::Arc;

use daqmeter_wire::felix::block::HEADER_BYTES;

use crate::accounts::CardElink;
use crate::recorded::{Playback, Recorded};
use crate::scenario::ElinkSpec;

/// Where a file is.
#[derive(Debug)]
pub(crate) struct Player {
    pub(super) file: Arc<Recorded>,
    loops: bool,
    /// The next block, and how many turns were.
    pub(super) next: usize,
    pub(super) turns: u64,
    /// Triggers accepted so far.
    pub(super) accepted: u64,
    /// Triggers for which there was no room.
    pub(super) fifo_lost: u64,
    /// Chunks of this turn so far, of each E-link.
    in_turn: Vec<u64>,
    /// Chunks so far whose bytes no emulator makes.
    pub(super) wrong: u64,
}

impl Player {
    pub(super) fn new(playback: &Playback) -> Player {
        Player {
            file: playback.file.clone(),
            loops: playback.loops,
            next: 0,
            turns: 0,
            accepted: 0,
            fifo_lost: 0,
            in_turn: vec![0; playback.file.elinks.len()],
            wrong: 0,
        }
    }

    /// The accepted trigger, counted from 1, that completes the next block; none at the end.
    pub(super) fn next_completion(&self) -> Option<u64> {
        let block = self.file.blocks.get(self.next)?;
        Some(self.turns * self.file.triggers + block.due)
    }

    /// Whether the accepted triggers have completed the next block.
    pub(super) fn is_due(&self) -> bool {
        self.next_completion().is_some_and(|due| due <= self.accepted)
    }

    /// The next block and its header.
    pub(super) fn take(&mut self) -> ([u8; HEADER_BYTES], &[u8]) {
        let (at, turns) = (self.next, self.turns);
        let block = self.file.blocks[at];
        if let Some(place) = block.elink {
            self.in_turn[usize::from(place)] += u64::from(block.chunks);
        }
        self.wrong += u64::from(block.wrong);
        self.next += 1;
        if self.next == self.file.blocks.len() && self.loops {
            self.in_turn.fill(0);
            self.next = 0;
            self.turns += 1;
        }
        self.file.block(at, turns)
    }

    /// The accounts of the channel's E-links. A chunk whose trigger was accepted and whose block was not complete waits; it counts as
    /// held back. A trigger for which the file has no chunk counts as a deficit.
    pub(super) fn accounts(&self, specs: &[ElinkSpec]) -> Vec<CardElink> {
        let in_turn = self.accepted.saturating_sub(self.turns * self.file.triggers);
        let each = specs.iter().zip(&self.file.elinks).zip(&self.in_turn);
        each.map(|((spec, elink), given)| {
            let chunks = self.turns * elink.chunks + given;
            let waiting = in_turn.min(elink.chunks).saturating_sub(*given);
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
