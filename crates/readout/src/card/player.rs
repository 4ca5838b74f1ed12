//! A card that plays a recorded file: its next block, its position, and its accounts.

use std::sync::Arc;

use daqmeter_wire::felix::block::HEADER_BYTES;

use super::Card;
use super::channel::{Channel, Filler};
use crate::accounts::CardElink;
use crate::recorded::{Playback, Recorded};
use crate::scenario::ElinkSpec;

#[derive(Debug)]
pub(crate) struct Player {
    pub(super) file: Arc<Recorded>,
    loops: bool,
    /// Next block, and the number of turns done.
    pub(super) next: usize,
    pub(super) turns: u64,
    pub(super) accepted: u64,
    pub(super) fifo_lost: u64,
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

    /// Accepted trigger, counted from 1, that completes the next block; `None` at the end.
    pub(super) fn next_completion(&self) -> Option<u64> {
        let block = self.file.blocks.get(self.next)?;
        Some(self.turns * self.file.triggers + block.due)
    }

    pub(super) fn is_due(&self) -> bool {
        self.next_completion().is_some_and(|due| due <= self.accepted)
    }

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

    /// The accounts of the channel's E-links. A chunk whose trigger was accepted and whose block
    /// was not complete waits; it counts as held back. A trigger for which the file has no chunk
    /// counts as a deficit.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    pub blocks: u64,
    pub of: u64,
    /// Chunks given whose bytes are not those that an emulator makes.
    pub wrong: u64,
}

impl Channel {
    pub(super) fn player(&self) -> Option<&Player> {
        match &self.filler {
            Filler::Recorded(player) => Some(player),
            Filler::Live(_) | Filler::Replay(_) => None,
        }
    }

    /// Gives the blocks that the accepted triggers completed, as far as the FIFO takes them, until
    /// the ring holds `most_bytes`.
    pub(super) fn play(&mut self, now_ns: u64, most_bytes: usize) {
        let Channel { dma, filler, .. } = self;
        let Filler::Recorded(player) = filler else {
            return;
        };
        while dma.fifo_room() > 0 && dma.producer.filled() < most_bytes && player.is_due() {
            let (head, block) = player.take();
            dma.push_as(now_ns, head, block);
        }
    }

    pub(super) fn owes_blocks(&self) -> bool {
        self.player().is_some_and(Player::is_due)
    }
}

impl Card {
    pub fn played(&self) -> Option<Played> {
        let player = self.channels[0].player()?;
        let of = player.file.blocks.len() as u64;
        Some(Played { blocks: player.turns * of + player.next as u64, of, wrong: player.wrong })
    }

    pub(super) fn is_played(&self) -> bool {
        let player = self.channels[0].player();
        player.is_some_and(|player| player.next_completion().is_none())
    }

    /// Plays the file as fast as the host releases. The ring is kept half full, below the mark of
    /// BUSY.
    pub(super) fn advance_flat_out(&mut self, now_ns: u64) {
        let half = self.channels[0].dma.producer.ring_bytes() / 2;
        let block_bytes = self.scenario.card.block.0;
        let below_mark = self.marks[0].high.saturating_sub(block_bytes);
        let most = half.min(below_mark).max(1);
        while let Some(next) = self.next_completion() {
            let dma = &self.channels[0].dma;
            let is_full = !dma.is_empty() || dma.producer.filled() >= most;
            let wanted = next.saturating_sub(self.accepted).min(self.source.left());
            let is_over = self.source.is_over(now_ns);
            if is_full || is_over || self.line.asserted().is_some() {
                return;
            }
            self.source.issue(wanted);
            self.accept(wanted);
            let channel = &mut self.channels[0];
            channel.play(now_ns, most);
            channel.dma.drain(now_ns);
        }
    }
}
