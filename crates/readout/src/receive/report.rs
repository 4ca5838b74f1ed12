//! Report of a receiver: each E-link, all pages, and the accounts of the publishers.

use daqmeter_record::Ledger;
use daqmeter_stats::LogHistogram;

use crate::accounts::FinalAccount;
use crate::fragment::FragmentFaults;

/// Account of one E-link, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StreamReport {
    pub tag: u64,
    pub chunks: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// Cut off by the card.
    pub truncated: u64,
    /// With an error or CRC flag.
    pub flagged: u64,
    /// Faults of the chunks. Those missing are taken from the publisher's account, if there is one
    /// that closes: the counters wrap.
    pub faults: FragmentFaults,
}

/// Account of a receiver.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Each E-link.
    pub streams: Vec<StreamReport>,
    pub pages: u64,
    /// Bytes of the pages, frames included.
    pub bytes: u64,
    /// Time between the first page and the last, in ns.
    pub span_ns: u64,
    /// From the oldest trigger of a page to its receipt, in ns, once per page.
    pub latency_ns: LogHistogram,
    /// Times that a publisher was lost.
    pub lost: u64,
    /// Bytes that could not be understood.
    pub bad_pages: u64,
    /// Publishers that refused the subscription, and why.
    pub refused: Vec<String>,
    /// Accounts of the publishers that have ended.
    pub accounts: Vec<FinalAccount>,
    /// The ledger of each E-link of those publishers for this receiver alone, with what it had in
    /// the place of what the publisher says was delivered: when they disagree, it does not close.
    pub ledgers: Vec<(u64, Ledger)>,
}

impl Report {
    /// Chunks of all E-links.
    pub fn chunks(&self) -> u64 {
        self.streams.iter().map(|stream| stream.chunks).sum()
    }

    /// Everything that was wrong with fragments.
    pub fn faults(&self) -> FragmentFaults {
        let mut all = FragmentFaults::default();
        for stream in &self.streams {
            all.add(&stream.faults);
        }
        all
    }

    /// True if every account that came closes.
    pub fn closes(&self) -> bool {
        self.ledgers.iter().all(|(_, ledger)| ledger.closes())
    }
}
