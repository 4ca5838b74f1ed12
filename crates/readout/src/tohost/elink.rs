//! The reader's state of one E-link, and its subscribers.

use daqmeter_wire::felix::Reassembler;
use daqmeter_wire::felix::block::FelixHeader;

use super::dest::{Booked, ByStatus, Dest};
use crate::accounts::{ReaderElink, SubscriptionAccount};
use crate::repeats::Repeats;
use crate::scenario::ElinkSpec;

#[derive(Debug)]
pub(super) struct ElinkState {
    pub(super) spec: ElinkSpec,
    pub(super) reassembler: Reassembler,
    /// The account of the E-link follows the first; each has an account of its own besides.
    pub(super) subscribers: Vec<Subscriber>,
    pub(super) partial: Vec<u8>,
    repeats: Repeats,
    pub(super) account: ReaderElink,
}

#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) place: usize,
    pub(super) missed: Missed,
    pub(super) skipped: u64,
    pub(super) takes: bool,
}

impl Subscriber {
    pub(super) fn new(place: usize, missed: Missed) -> Subscriber {
        Subscriber { place, missed, skipped: 0, takes: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    Nothing,
    Before,
    Dropped,
}

impl ElinkState {
    pub(super) fn new(spec: ElinkSpec, longest: usize) -> ElinkState {
        ElinkState {
            spec,
            reassembler: Reassembler::new(),
            subscribers: Vec::with_capacity(8),
            partial: Vec::with_capacity(longest),
            repeats: Repeats::new(),
            account: ReaderElink::default(),
        }
    }

    pub(super) fn is_repeated(&mut self, header: FelixHeader, block: &[u8]) -> bool {
        self.repeats.is_repeated(&self.reassembler, header, block)
    }

    pub(super) fn is_full(&self, dests: &[Option<Dest>], wanted: usize) -> bool {
        self.subscribers
            .iter()
            .any(|one| dests[one.place].as_ref().is_some_and(|dest| dest.pool.len() < wanted))
    }

    /// Books the chunks that the decoder found since then as offered to every subscriber. Their
    /// delivery or loss is counted elsewhere.
    pub(super) fn offer(
        &mut self,
        dests: &mut [Option<Dest>],
        at: usize,
        ended_before: u64,
    ) -> u64 {
        let chunks = self.reassembler.counts.ended() - ended_before;
        self.account.chunks += chunks;
        for subscriber in &self.subscribers {
            if let Some(dest) = &mut dests[subscriber.place] {
                dest.accounts[at].offered += chunks;
            }
        }
        chunks
    }
}

/// Books chunks of an acknowledged page in the accounts of its subscriber and of the E-links.
pub(super) fn deliver(
    elinks: &mut [ElinkState],
    accounts: &mut [SubscriptionAccount],
    booked: &Booked,
) {
    for ((elink, account), (all, own)) in elinks.iter_mut().zip(accounts).zip(booked.counts()) {
        elink.account.outcomes.deliver(own);
        account.outcomes.deliver(all);
    }
}

pub(super) fn lose(
    elinks: &mut [ElinkState],
    accounts: &mut [SubscriptionAccount],
    booked: &Booked,
) {
    let count = |chunks: ByStatus| chunks.iter().copied().map(u64::from).sum::<u64>();
    for ((elink, account), (all, own)) in elinks.iter_mut().zip(accounts).zip(booked.counts()) {
        elink.account.outcomes.network_lost += count(own);
        account.outcomes.network_lost += count(all);
    }
}
