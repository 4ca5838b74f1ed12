//! What came of a chain.

use daqmeter_record::Ledger;

use crate::accounts::{Dead, FinalAccount, ledger};
use crate::receive::Report;
use crate::tohost::Stats;

/// CPU time of a thread over its work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Share of one CPU, 0 to 1.
    pub cpu: f64,
}

/// One reader's part.
#[derive(Clone, Debug)]
pub struct ReaderDone {
    /// What it counted.
    pub stats: Stats,
    /// Accounts, closed at the end.
    pub account: FinalAccount,
    /// Its CPU.
    pub load: Load,
    /// Time of the emulated card's work and of the publisher's in its thread; none where they were not watched.
    pub within: Option<(u64, u64)>,
    /// Trouble.
    pub notes: Vec<String>,
    /// Bytes of its ring.
    pub ring_bytes: usize,
    /// Dead time as the card saw it, as in [`crate::card::CardView`].
    pub dead: [Dead; 4],
    /// Time from start to end as the card saw it.
    pub card_ns: u64,
    /// Bytes in the ring, every 10 ms or so while triggers came: the card's time, the bytes.
    pub filling: Vec<(u64, u64)>,
    /// Bytes of the ring that no subscriber has acknowledged, at the same times.
    pub backlog: Vec<(u64, u64)>,
}

/// The card's and the readers' counts with what the receivers had.
pub fn joined(readers: &[ReaderDone], receivers: &[(Report, Load)]) -> Vec<(u64, Ledger)> {
    let mut ledgers = Vec::new();
    for reader in readers {
        for (at, counts) in reader.account.card.elinks.iter().zip(&reader.account.readers) {
            let mut ledger = ledger(&reader.account.card, at, counts);
            let streams = receivers.iter().flat_map(|(report, _)| &report.streams);
            let had = streams.filter(|stream| stream.tag == at.tag);
            ledger.delivered =
                had.map(|stream| stream.chunks - stream.truncated - stream.flagged).sum();
            ledgers.push((at.tag, ledger));
        }
    }
    ledgers
}
