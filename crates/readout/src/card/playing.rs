//! A channel and its card while they play a recorded file: at the trigger rate, or as fast as the host takes it.

use super::Card;
use super::channel::{Channel, Filler};
use super::player::Player;

/// How far a card has played its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// Blocks given so far, in all turns.
    pub blocks: u64,
    /// Blocks of one turn.
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

    /// Gives the blocks that the accepted triggers have completed, as far as the FIFO takes them, until the ring holds so much.
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

    /// Whether blocks are complete that found no room until now.
    pub(super) fn owes_blocks(&self) -> bool {
        self.player().is_some_and(Player::is_due)
    }

    fn accept_played(&mut self, triggers: u64) {
        if let Filler::Recorded(player) = &mut self.filler {
            player.accepted += triggers;
        }
    }

    fn lose_played(&mut self) {
        if let Filler::Recorded(player) = &mut self.filler {
            player.fifo_lost += 1;
        }
    }
}

impl Card {
    /// How far it has played a recorded file; none where its blocks are its own.
    pub fn played(&self) -> Option<Played> {
        let player = self.channels[0].player()?;
        let of = player.file.blocks.len() as u64;
        Some(Played { blocks: player.turns * of + player.next as u64, of, wrong: player.wrong })
    }

    /// Whether it has given all of a file that is not repeated.
    pub(super) fn is_played(&self) -> bool {
        let player = self.channels[0].player();
        player.is_some_and(|player| player.next_completion().is_none())
    }

    /// The trigger that completes the next block of the file.
    fn next_played(&self) -> Option<u64> {
        self.channels[0].player()?.next_completion()
    }

    /// The file at the trigger rate.
    pub(super) fn advance_paced(&mut self, now_ns: u64) {
        while let Some(next) = self.next_played() {
            if let Some(goes_on) = self.stopped_by_busy(now_ns) {
                if goes_on {
                    continue;
                }
                return;
            }
            let wanted = next.saturating_sub(self.accepted).max(1);
            let at_ns = self.source.ahead(wanted);
            if at_ns > now_ns {
                let due = self.source.due(now_ns).min(wanted - 1);
                self.source.issue(due);
                self.accept_file(due);
                return;
            }
            self.source.issue(wanted);
            let channel = &mut self.channels[0];
            if channel.dma.fifo_room() == 0 {
                // A full FIFO and no BUSY: the event finds no room anywhere, and the file waits.
                channel.lose_played();
                self.accept_file(wanted - 1);
                self.settle(at_ns);
                continue;
            }
            self.accept_file(wanted);
            let channel = &mut self.channels[0];
            channel.play(at_ns, usize::MAX);
            channel.dma.drain(at_ns);
            self.update_busy(at_ns);
        }
    }

    /// The file as fast as the host releases: the ring is kept half full, below the mark of BUSY.
    pub(super) fn advance_flat_out(&mut self, now_ns: u64) {
        let half = self.channels[0].dma.producer.ring_bytes() / 2;
        let block_bytes = self.scenario.card.block.0;
        let below_mark = self.marks[0].high.saturating_sub(block_bytes);
        let most = half.min(below_mark).max(1);
        while let Some(next) = self.next_played() {
            let dma = &self.channels[0].dma;
            let is_full = !dma.is_empty() || dma.producer.filled() >= most;
            let wanted = next.saturating_sub(self.accepted).min(self.source.left());
            let is_over = self.source.is_over(now_ns);
            if is_full || is_over || self.line.asserted().is_some() {
                return;
            }
            self.source.issue(wanted);
            self.accept_file(wanted);
            let channel = &mut self.channels[0];
            channel.play(now_ns, most);
            channel.dma.drain(now_ns);
        }
    }

    fn accept_file(&mut self, triggers: u64) {
        self.accepted += triggers;
        self.channels[0].accept_played(triggers);
    }
}
