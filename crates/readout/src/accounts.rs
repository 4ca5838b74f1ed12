//! What became of every trigger, per E-link, from the source to the receiver.
//!
//! The card counts at its own place, the reader at its, each acknowledgement at the receiver's: the ledger closes only when
//! they agree.

use daqmeter_record::Ledger;
use serde::{Deserialize, Serialize};

use crate::busy::DeadTime;

/// What the card counts for one E-link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardElink {
    /// Under which it is published.
    pub tag: u64,
    /// Its number in the device.
    pub elink: u16,
    /// Triggers for which the emulator made no fragment.
    pub deficit: u64,
    /// Events that the sender could not hold back any longer (XOFF).
    pub sender_lost: u64,
    /// Fragments that found no room in the FIFO at all.
    pub fifo_lost: u64,
    /// Fragments cut off there.
    pub truncated: u64,
    /// Whole chunks that were made unreadable by injected faults.
    pub fault_lost: u64,
    /// Chunks handed to the ring, those cut off included, those made unreadable not.
    pub chunks: u64,
}

/// What a card counts in all, seen from one of its channels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardAccount {
    /// Triggers that the source issued.
    pub issued: u64,
    /// Stopped by BUSY-by-DMA.
    pub vetoed_dma: u64,
    /// Stopped by BUSY-by-FIFO.
    pub vetoed_fifo: u64,
    /// The channel's E-links.
    pub elinks: Vec<CardElink>,
}

/// Dead time as it is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dead {
    /// Time with BUSY.
    pub ns: u64,
    /// Times that it was asserted.
    pub count: u64,
    /// Longest time.
    pub longest_ns: u64,
    /// Triggers stopped.
    pub vetoed: u64,
}

impl From<DeadTime> for Dead {
    fn from(dead: DeadTime) -> Self {
        Dead { ns: dead.ns, count: dead.count, longest_ns: dead.longest_ns, vetoed: dead.vetoed }
    }
}

/// What the reader counts for one E-link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderElink {
    /// Chunks read from the ring; the others are what became of them.
    pub chunks: u64,
    /// Nobody had subscribed.
    pub unsubscribed: u64,
    /// Dropped because the subscriber was slow.
    pub dropped: u64,
    /// Lost with a connection, never acknowledged.
    pub network_lost: u64,
    /// Acknowledged by the receiver, with nothing wrong.
    pub delivered: u64,
    /// Acknowledged, cut off by the card.
    pub delivered_truncated: u64,
    /// Acknowledged, with an error or CRC flag.
    pub delivered_flagged: u64,
}

/// Names of the losses, in the order of the path.
pub const LOSSES: [&str; 10] = [
    "stopped by BUSY-by-DMA",
    "stopped by BUSY-by-FIFO",
    "held back by XOFF too long",
    "emulator deficit",
    "FIFO truncation",
    "injected faults",
    "flagged error or CRC",
    "not subscribed",
    "dropped by reader",
    "network",
];

/// The ledger of one E-link in triggers: what the card counted against what the reader counted.
///
/// Where the two disagree about the chunks that passed the ring, the ledger does not close.
pub fn ledger(card: &CardAccount, at: &CardElink, reader: &ReaderElink) -> Ledger {
    let mut ledger = Ledger { issued: card.issued, delivered: reader.delivered, ..Ledger::new("triggers") };
    let counts = [
        card.vetoed_dma,
        card.vetoed_fifo,
        at.sender_lost,
        at.deficit,
        at.fifo_lost + reader.delivered_truncated,
        at.fault_lost,
        reader.delivered_flagged,
        reader.unsubscribed,
        reader.dropped,
        reader.network_lost,
    ];
    for (name, count) in LOSSES.into_iter().zip(counts) {
        ledger.lose(name, count);
    }
    ledger
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_when_card_and_reader_agree_and_not_when_one_chunk_is_missing() {
        let at =
            CardElink { deficit: 5, fifo_lost: 2, truncated: 1, fault_lost: 3, chunks: 85, ..CardElink::default() };
        let card = CardAccount { issued: 100, vetoed_dma: 4, vetoed_fifo: 1, elinks: vec![at] };
        let reader = ReaderElink {
            chunks: 85,
            unsubscribed: 10,
            dropped: 6,
            network_lost: 7,
            delivered: 59,
            delivered_truncated: 1,
            delivered_flagged: 2,
        };
        let closed = ledger(&card, &at, &reader);
        assert!(closed.closes(), "{closed}");
        assert_eq!((closed.losses["FIFO truncation"], closed.losses["network"]), (3, 7));
        let one_missing = ReaderElink { delivered: 58, ..reader };
        assert_eq!(ledger(&card, &at, &one_missing).gap(), 1);
    }
}
