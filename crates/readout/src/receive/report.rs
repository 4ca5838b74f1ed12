//! Report of a receiver: each E-link, all pages, and the accounts of the publishers.

use daqmeter_record::Ledger;
use daqmeter_stats::LogHistogram;

use crate::accounts::FinalAccount;
use crate::fragment::FragmentFaults;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StreamReport {
    pub tag: u64,
    pub chunks: u64,
    pub bytes: u64,
    pub truncated: u64,
    pub flagged: u64,
    /// Faults of the chunks. Those missing are taken from the publisher's account, if there is one
    /// that closes: the counters wrap.
    pub faults: FragmentFaults,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub streams: Vec<StreamReport>,
    pub pages: u64,
    /// Bytes of the pages, frames included.
    pub bytes: u64,
    /// Time between the first page and the last, in ns.
    pub span_ns: u64,
    /// From the oldest trigger of a page to its receipt, in ns, once per page.
    pub latency_ns: LogHistogram,
    pub lost: u64,
    pub bad_pages: u64,
    pub refused: Vec<String>,
    pub accounts: Vec<FinalAccount>,
    /// Ledger of each E-link of those publishers for this receiver alone. It has the receiver's own
    /// counts in place of the publisher's delivered ones, and does not close if they disagree.
    pub ledgers: Vec<(u64, Ledger)>,
}

impl Report {
    pub fn chunks(&self) -> u64 {
        self.streams.iter().map(|stream| stream.chunks).sum()
    }

    pub fn faults(&self) -> FragmentFaults {
        let mut all = FragmentFaults::default();
        for stream in &self.streams {
            all.add(&stream.faults);
        }
        all
    }

    pub fn closes(&self) -> bool {
        self.ledgers.iter().all(|(_, ledger)| ledger.closes())
    }
}
