//! The receiver: subscribes, checks every fragment, and reports received and missing data, and
//! times.
//!
//! It stands for a software read-out driver. A publisher that goes away has ended. `streams`
//! checks.

mod streams;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daqmeter_harness::Fault;
use daqmeter_record::Ledger;
use daqmeter_stats::LogHistogram;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::{sleep_until, without_timer_slack};
use daqmeter_wire::felix::Elink;
use daqmeter_wire::felix::page::{FRAME_BYTES, FelixFrame, FrameKind};
use daqmeter_wire::felix::payload::Fid;

use self::streams::{Streams, refuse_large_sum};
use crate::accounts::{FinalAccount, not_received};
use crate::fragment::FragmentFaults;
use crate::peer::from_peer;
use crate::scenario::Publish;
use crate::slowed::Slowed;
use crate::transport::{self, PageInlet, Subscribed, Subscription, TransportError};

const ACKNOWLEDGE_EACH: u64 = 8;
/// Time since the last data within which data flows.
const FLOWS_NS: u64 = 1_000_000;
/// Sleep of a receiver that has nothing to do while data flows. Each further one in a row is twice
/// as long as the one before. In the longest one 1 GB/s brings less than the initial buffer of a
/// socket (128 KiB).
const NAP_NS: u64 = 15_000;
const MAX_NAP_NS: u64 = 60_000;

pub fn elink_of(tag: u64) -> Option<Elink> {
    let fid = Fid::of_u64(tag)?;
    Some(Elink::of_link(u8::try_from(fid.link).ok()?, fid.elink))
}

/// Name of the E-link of a tag, such as `0x009`.
pub fn elink_name(tag: u64) -> String {
    elink_of(tag).map_or_else(|| format!("{tag:#x}"), |elink| format!("{:#05x}", elink.number()))
}

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

impl StreamReport {
    pub(crate) fn clean(&self) -> u64 {
        self.chunks - self.truncated - self.flagged
    }
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
    /// Share of a CPU that the receiver took, if it was measured.
    pub cpu: f64,
    /// Connections that broke before the publisher's account came.
    pub lost: u64,
    pub bad_pages: u64,
    pub refused: Vec<String>,
    /// Reason for which not all pages are kept.
    pub unkept: Option<String>,
    pub accounts: Vec<FinalAccount>,
    /// Addresses of publishers whose account did not come.
    pub without_account: Vec<String>,
    /// Ledger of each E-link of those publishers for this receiver alone. It has the receiver's own
    /// counts in place of the publisher's delivered ones, and does not close if they disagree.
    pub ledgers: Vec<(u64, Ledger)>,
}

impl Report {
    pub fn sum(&self, of: fn(&StreamReport) -> u64) -> u64 {
        self.streams.iter().map(of).sum()
    }

    pub fn chunks(&self) -> u64 {
        self.sum(|stream| stream.chunks)
    }

    pub fn faults(&self) -> FragmentFaults {
        let mut all = FragmentFaults::default();
        self.streams.iter().for_each(|stream| all += stream.faults);
        all
    }

    pub fn closes(&self) -> bool {
        self.ledgers.iter().all(|(_, ledger)| ledger.closes())
    }
}

/// Takes each page of a publisher as it came, for a recorder.
pub type PageKeeper = Box<dyn FnMut(usize, &FelixFrame, &[u8]) -> Result<(), Fault> + Send>;

struct Publisher {
    address: String,
    tags: Vec<u64>,
    /// `None` once the publisher has ended.
    inlet: Option<Box<dyn PageInlet>>,
    has_account: bool,
    /// Time at which it was last heard.
    heard_ns: u64,
}

#[derive(Default)]
pub struct Receiver {
    id: u64,
    publishers: Vec<Publisher>,
    streams: Streams,
    report: Report,
    first_ns: u64,
    last_ns: u64,
    /// Messages for the user that nothing has taken yet.
    pub notes: Vec<String>,
    /// Work at each page and account: an experiment, or a slow consumer.
    pub slowed: Option<Slowed>,
    pub keeper: Option<PageKeeper>,
}

impl Receiver {
    /// Connects to publishers: the address of each, and the tags wanted from it (all if there are
    /// none). Ends soon when `quit` is true.
    pub fn connect(
        publishers: &[(Publish, Vec<u64>)],
        quit: &dyn Fn() -> bool,
    ) -> Result<Receiver, TransportError> {
        let subscribe = |settings: &_, wanted: &_| transport::subscribe(settings, wanted, quit);
        Receiver::connect_by(publishers, subscribe)
    }

    /// Connects by a transport of the caller's, which subscribes to each publisher.
    pub fn connect_by(
        publishers: &[(Publish, Vec<u64>)],
        subscribe: impl Fn(&Publish, &Subscription) -> Result<Subscribed, TransportError>,
    ) -> Result<Receiver, TransportError> {
        // Time and place make the number of each receiver.
        let id = monotonic_ns().rotate_left(20) ^ u64::from(std::process::id()) << 44;
        let mut receiver = Receiver { id, ..Receiver::default() };
        for (settings, tags) in publishers {
            let subscription = Subscription { receiver: id, tags: tags.clone() };
            let (inlet, hello) = subscribe(settings, &subscription)?;
            let tags = if tags.is_empty() { hello.tags } else { tags.clone() };
            receiver.streams.offer(&tags);
            let address = settings.address.clone();
            let (inlet, heard_ns) = (Some(inlet), monotonic_ns());
            let publisher = Publisher { address, tags, inlet, has_account: false, heard_ns };
            receiver.publishers.push(publisher);
        }
        Ok(receiver)
    }

    /// Takes a page that was kept, with its frame before it.
    ///
    /// # Errors
    /// No such page.
    pub fn take_kept(&mut self, page: &[u8]) -> Result<(), String> {
        let (head, body) = page.split_first_chunk().ok_or("shorter than a frame")?;
        let frame = FelixFrame::parse(head).map_err(|error| error.to_string())?;
        self.streams.takes_all = true;
        let good = self.streams.page(body);
        // Its times were those of the run.
        self.count_page(&FelixFrame { birth_ns: 0, ..frame }, good);
        self.last_ns = self.first_ns;
        Ok(())
    }

    /// Addresses of the publishers.
    pub fn addresses(&self) -> Vec<String> {
        self.publishers.iter().map(|one| one.address.clone()).collect()
    }

    pub fn has_data(&self) -> bool {
        self.report.pages > 0
    }

    /// Returns the address of the publisher that has not ended and is silent for the longest, and
    /// that time.
    pub fn silent(&self) -> Option<(&str, Duration)> {
        let open = self.publishers.iter().filter(|one| one.inlet.is_some());
        let longest = open.min_by_key(|one| one.heard_ns)?;
        let silent_ns = monotonic_ns().saturating_sub(longest.heard_ns);
        Some((&longest.address, Duration::from_nanos(silent_ns)))
    }

    pub fn report(&self) -> Report {
        let ledgers = &self.report.ledgers;
        let ledger = |tag: u64| ledgers.iter().find(|(of, _)| *of == tag).map(|(_, own)| own);
        let mut streams = self.streams.reports(ledger);
        // The other E-links received nothing at all.
        let silent = ledgers.iter().filter_map(|(tag, ledger)| {
            let missing = not_received(ledger);
            let is_silent = missing > 0 && !self.streams.places.contains_key(tag);
            let faults = FragmentFaults { missing, ..FragmentFaults::default() };
            is_silent.then(|| StreamReport { tag: *tag, faults, ..StreamReport::default() })
        });
        streams.extend(silent);
        streams.sort_by_key(|stream| stream.tag);
        let span_ns = self.last_ns.saturating_sub(self.first_ns);
        let without = self.publishers.iter().filter(|one| !one.has_account);
        let without_account = without.map(|one| one.address.clone()).collect();
        Report { streams, span_ns, without_account, ..self.report.clone() }
    }

    /// Receives until every publisher has ended, or the flag is set. `each` is called every 100 ms
    /// or so.
    pub fn run(&mut self, stop: &AtomicBool, mut each: impl FnMut(&mut Receiver)) -> Report {
        without_timer_slack();
        let mut told_ns = monotonic_ns();
        let mut nap_ns = NAP_NS;
        while !stop.load(Ordering::Relaxed) && self.publishers.iter().any(|one| one.inlet.is_some())
        {
            let now_ns = monotonic_ns();
            // With several publishers none may be waited for; while data flows, a short sleep is
            // cheaper for the sender than being woken by each of its pages.
            let flows = now_ns.saturating_sub(self.last_ns) < FLOWS_NS;
            let waits = self.publishers.len() == 1 && !flows;
            let wait = if waits { Duration::from_millis(50) } else { Duration::ZERO };
            if self.turn(wait) {
                nap_ns = NAP_NS;
            } else if !waits {
                sleep_until(monotonic_ns() + nap_ns);
                nap_ns = (2 * nap_ns).min(MAX_NAP_NS);
            }
            if now_ns >= told_ns + 100_000_000 {
                told_ns = now_ns;
                each(self);
            }
        }
        each(self);
        self.report()
    }

    /// Looks once at every publisher, and waits for each for this time at most; returns true if it
    /// took a page.
    pub(crate) fn turn(&mut self, wait: Duration) -> bool {
        let mut worked = false;
        for at in 0..self.publishers.len() {
            // The inlet is taken out, because its pages are lent from it.
            let Some(mut inlet) = self.publishers[at].inlet.take() else { continue };
            match self.take_pages(at, inlet.as_mut(), wait) {
                Ok((took, ended)) => {
                    worked |= took;
                    self.publishers[at].inlet = (!ended).then_some(inlet);
                }
                Err(TransportError::Refused(why)) => self.report.refused.push(why),
                Err(error) => {
                    self.report.lost += 1;
                    self.notes.push(error.to_string());
                }
            }
        }
        worked
    }

    /// Takes and acknowledges pages until the next publisher has its turn; returns true if there
    /// were any, and true if the publisher has ended.
    fn take_pages(
        &mut self,
        at: usize,
        inlet: &mut dyn PageInlet,
        mut wait: Duration,
    ) -> Result<(bool, bool), TransportError> {
        let (mut took, mut last_page, mut ended) = (0, 0, false);
        while took < ACKNOWLEDGE_EACH && !ended {
            let Some((frame, body)) = inlet.receive(wait)? else { break };
            wait = Duration::ZERO;
            if let Some(slowed) = &self.slowed {
                slowed(frame.body_bytes);
            }
            if frame.kind == FrameKind::Account {
                self.take_account(at, body);
                ended = true;
                continue;
            }
            if let Some(Err(fault)) = self.keeper.as_mut().map(|keep| keep(at, &frame, body)) {
                self.keeper = None;
                self.report.unkept = Some(fault.0);
            }
            let good = frame.kind == FrameKind::Messages && self.streams.page(body);
            self.count_page(&frame, good);
            self.publishers[at].heard_ns = self.last_ns;
            (took, last_page) = (took + 1, frame.sequence);
        }
        if took > 0 {
            // A publisher that has ended needs it, too, to count the last pages. One that is gone
            // has ended.
            let said = inlet.acknowledge(last_page);
            if !ended {
                said?;
            }
        }
        Ok((took > 0, ended))
    }

    fn take_account(&mut self, at: usize, body: &[u8]) {
        let Publisher { address, tags, .. } = &self.publishers[at];
        let read = from_peer::<FinalAccount>(body).and_then(|account| {
            if account.card_is_lost {
                return Ok((account, Vec::new()));
            }
            let ledgers = self.streams.own_ledgers(&account, self.id, tags);
            refuse_large_sum(self.report.ledgers.iter().chain(&ledgers))?;
            Ok((account, ledgers))
        });
        match read {
            Ok((account, ledgers)) => {
                self.report.ledgers.extend(ledgers);
                self.report.accounts.push(account);
                self.publishers[at].has_account = true;
            }
            Err(why) => {
                self.report.bad_pages += 1;
                self.notes.push(format!(
                    "{address}: its account is refused: {why}; what came from it is kept"
                ));
            }
        }
    }

    fn count_page(&mut self, frame: &FelixFrame, good: bool) {
        let now_ns = monotonic_ns();
        if self.first_ns == 0 {
            self.first_ns = now_ns;
        }
        self.last_ns = now_ns;
        self.report.bad_pages += u64::from(!good);
        self.report.pages += 1;
        self.report.bytes += u64::from(frame.body_bytes) + FRAME_BYTES as u64;
        if frame.birth_ns > 0 {
            self.report.latency_ns.add(now_ns.saturating_sub(frame.birth_ns));
        }
    }
}
