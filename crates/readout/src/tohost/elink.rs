//! The reader's state of one E-link.

use daqmeter_wire::felix::Reassembler;
use daqmeter_wire::felix::block::FelixHeader;

use super::dest::Dest;
use crate::repeats::{Fingerprint, fingerprint};
use crate::scenario::ElinkSpec;

#[derive(Debug)]
pub(super) struct ElinkState {
    pub(super) spec: ElinkSpec,
    pub(super) reassembler: Reassembler,
    /// Numbers of its subscribers.
    pub(super) subscribers: Vec<usize>,
    pub(super) partial: Vec<u8>,
    /// Fingerprint of the block before.
    last: Fingerprint,
    pub(super) chunks: u64,
    /// Chunks for which there was no subscriber.
    pub(super) unsubscribed: u64,
}

impl ElinkState {
    pub(super) fn new(spec: ElinkSpec) -> ElinkState {
        ElinkState {
            spec,
            reassembler: Reassembler::new(),
            subscribers: Vec::with_capacity(8),
            partial: Vec::with_capacity(spec.payload_bytes),
            last: [0; 48],
            chunks: 0,
            unsubscribed: 0,
        }
    }

    /// Tests if a block comes for the second time in a row.
    pub(super) fn is_repeated(&mut self, header: FelixHeader, block: &[u8]) -> bool {
        let before = std::mem::replace(&mut self.last, fingerprint(block));
        before == self.last && self.reassembler.is_last(header.sequence)
    }

    pub(super) fn is_full(&self, dests: &[Option<Dest>], wanted: usize) -> bool {
        let is_full = |dest: &Dest| dest.pool.len() < wanted;
        self.subscribers.iter().any(|number| dests[*number].as_ref().is_some_and(is_full))
    }

    /// Books the chunks that the decoder found since then as offered to every subscriber, and as
    /// dropped for one without room for the block. Their delivery or loss is counted elsewhere.
    pub(super) fn offer(
        &mut self,
        dests: &mut [Option<Dest>],
        at: usize,
        ended_before: u64,
    ) -> u64 {
        let chunks = self.reassembler.counts.ended() - ended_before;
        self.chunks += chunks;
        if self.subscribers.is_empty() {
            self.unsubscribed += chunks;
        }
        for number in &self.subscribers {
            if let Some(dest) = &mut dests[*number] {
                dest.accounts[at].offered += chunks;
                dest.accounts[at].outcomes.dropped += if dest.takes { 0 } else { chunks };
            }
        }
        chunks
    }
}
