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
    /// The CPU that it was pinned to, and the kernel confirmed.
    pub pinned: Option<u32>,
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
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Done {
    /// Each reader, in the order of the channels.
    pub readers: Vec<ReaderDone>,
    /// Each receiver.
    pub receivers: Vec<(Report, Load)>,
    /// Ledger of each E-link: the card's counts against the receivers'.
    pub ledgers: Vec<(u64, Ledger)>,
    /// Facts of the transport for the record.
    pub facts: Vec<(String, String)>,
}

impl Done {
    /// Triggers issued.
    pub fn issued(&self) -> u64 {
        self.readers
            .first()
            .map_or(0, |reader| reader.account.card.issued)
    }

    /// Issued per second, over the time that triggers came.
    pub fn trigger_rate_hz(&self) -> f64 {
        let ns = self.readers.first().map_or(0, |reader| reader.card_ns);
        self.issued() as f64 / (ns.max(1) as f64 * 1e-9)
    }

    /// Share of the time with BUSY.
    pub fn dead_share(&self) -> f64 {
        let Some(reader) = self.readers.first() else {
            return 0.0;
        };
        reader.dead[2].ns as f64 / reader.card_ns.max(1) as f64
    }

    /// Chunks that were issued and not delivered, for whatever reason but that the source did not give them.
    pub fn lost(&self) -> u64 {
        let of = |ledger: &Ledger| ledger.lost() - ledger.not_given();
        self.ledgers.iter().map(|(_, ledger)| of(ledger)).sum()
    }

    /// Whether every E-link's account closes, and that of every subscription.
    pub fn closes(&self) -> bool {
        self.ledgers.iter().all(|(_, ledger)| ledger.closes())
            && self.readers.iter().all(|one| one.account.closes())
    }

    /// The most that was in a ring, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.readers
            .iter()
            .map(|reader| reader.stats.peak_bytes)
            .max()
            .unwrap_or(0)
    }

    /// All E-links' ledgers added up.
    pub fn ledger(&self) -> Ledger {
        let mut all = Ledger::new("triggers");
        for (_, ledger) in &self.ledgers {
            all.add(ledger);
        }
        all.unit = "triggers x E-links".to_owned();
        all
    }
}

/// The card's and the readers' counts with what the receivers had.
pub fn joined(readers: &[ReaderDone], receivers: &[(Report, Load)]) -> Vec<(u64, Ledger)> {
    let mut ledgers = Vec::new();
    for reader in readers {
        for (at, counts) in reader
            .account
            .card
            .elinks
            .iter()
            .zip(&reader.account.readers)
        {
            let mut ledger = ledger(&reader.account.card, at, counts);
            let streams = receivers.iter().flat_map(|(report, _)| &report.streams);
            let had = streams.filter(|stream| stream.tag == at.tag);
            ledger.delivered = had
                .map(|stream| stream.chunks - stream.truncated - stream.flagged)
                .sum();
            ledgers.push((at.tag, ledger));
        }
    }
    ledgers
}
