//! The receiver: subscribes, checks every fragment, and reports received and missing data, and
//! times.
//!
//! It stands for a software read-out driver. A publisher that goes away is asked again until it
//! comes back or the time is over. The subscription then names the last page received. `streams`
//! checks.

mod report;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::sleep_until;
use daqmeter_wire::felix::page::{FRAME_BYTES, FelixFrame, FrameKind};
use daqmeter_wire::felix::payload::Fid;
use daqmeter_wire::felix::{BlockFormat, Elink};

use self::streams::{Streams, own_ledgers, refuse_large_sum};
use crate::accounts::{FinalAccount, not_received};
use crate::chain::Slowed;
use crate::falls::{Falls, Judged, judge};
use crate::fragment::FragmentFaults;
use crate::peer::from_peer;
use crate::scenario::Publish;
use crate::transport::{PageInlet, PageTransport, Subscription, TransportError};

pub use report::{Report, StreamReport};

const ACKNOWLEDGE_EACH: u64 = 8;
/// Time since the last data within which data flows.
const FLOWS_NS: u64 = 1_000_000;
/// Sleep of a receiver that has nothing to do while data flows. Each further one in a row is twice
/// as long as the one before. In the longest one 1 GB/s brings less than the initial buffer of a
/// socket (128 KiB).
const NAP_NS: u64 = 15_000;
const MAX_NAP_NS: u64 = 60_000;
/// Time after which a lost publisher is asked again.
const RETRY_NS: u64 = 200_000_000;

pub fn elink_of(tag: u64) -> Option<Elink> {
    let fid = Fid::of_u64(tag)?;
    Some(Elink::of_link(u8::try_from(fid.link).ok()?, fid.elink))
}

/// Finds the address of the publisher of these tags: publishers come back at other places.
pub type LookUp = Arc<dyn Fn(&[u64]) -> Option<String> + Send + Sync>;

type Attempt = (Publish, Result<Box<dyn PageInlet>, TransportError>);

#[derive(Default)]
struct Publisher {
    settings: Publish,
    tags: Vec<u64>,
    /// True if the tags are all tags of the publisher.
    has_all: bool,
    inlet: Option<Box<dyn PageInlet>>,
    /// Attempt in a thread of its own, which does not keep the other publishers waiting.
    attempt: Option<mpsc::Receiver<Attempt>>,
    stream: u64,
    last_page: u64,
    retry_ns: u64,
    format: Option<BlockFormat>,
    ended: bool,
}

pub struct Receiver {
    id: u64,
    transport: Arc<dyn PageTransport>,
    publishers: Vec<Publisher>,
    streams: Streams,
    report: Report,
    first_ns: u64,
    last_ns: u64,
    nap_ns: u64,
    notes: Vec<String>,
    /// Delay after each page, which emulates a slow consumer.
    pub delay: Duration,
    pub look_up: Option<LookUp>,
    pub(crate) slowed: Option<Slowed>,
}

impl Receiver {
    /// Connects to publishers: the address of each, and the tags wanted from it (all if there are
    /// none). Ends soon when `quit` is true.
    pub fn connect(
        transport: Box<dyn PageTransport>,
        publishers: &[(Publish, Vec<u64>)],
        quit: &dyn Fn() -> bool,
    ) -> Result<Receiver, TransportError> {
        let mut receiver = Receiver {
            // Time and place make the number of each receiver.
            id: monotonic_ns().rotate_left(20) ^ u64::from(std::process::id()) << 44,
            transport: transport.into(),
            publishers: Vec::new(),
            streams: Streams::default(),
            report: Report::default(),
            first_ns: 0,
            last_ns: 0,
            nap_ns: NAP_NS,
            notes: Vec::new(),
            delay: Duration::ZERO,
            look_up: None,
            slowed: None,
        };
        for (settings, tags) in publishers {
            let (settings, tags) = (settings.clone(), tags.clone());
            let mut publisher = Publisher { settings, tags, ..Publisher::default() };
            let subscription = publisher.subscription(receiver.id);
            let inlet = receiver.transport.subscribe(&publisher.settings, &subscription, quit)?;
            publisher.adopt(inlet, &mut receiver.streams);
            receiver.publishers.push(publisher);
        }
        Ok(receiver)
    }

    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    pub fn has_data(&self) -> bool {
        self.report.pages > 0
    }

    pub fn report(&self) -> Report {
        let ledgers = &self.report.ledgers;
        let ledger = |tag: u64| ledgers.iter().rev().find(|(of, _)| *of == tag);
        let each = self.streams.all.iter().zip(self.judged_falls());
        let streams = each
            .map(|(stream, falls)| stream.report(falls, ledger(stream.tag).map(|(_, own)| own)));
        let mut streams: Vec<StreamReport> = streams.collect();
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
        Report { streams, span_ns, ..self.report.clone() }
    }

    fn judged_falls(&self) -> Vec<Judged> {
        let Streams { all, places, .. } = &self.streams;
        let mut judged = vec![Judged::default(); all.len()];
        for publisher in &self.publishers {
            let tags = publisher.tags.iter();
            let own: Vec<usize> = tags.filter_map(|tag| places.get(tag).copied()).collect();
            let falls: Vec<&Falls> = own.iter().map(|at| &all[*at].falls).collect();
            for (at, falls) in own.iter().zip(judge(&falls, publisher.has_all)) {
                judged[*at] = falls;
            }
        }
        judged
    }

    /// Receives until every publisher has ended, or the flag is set. A publisher that stays away
    /// for longer than `patience` ends it, too.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        patience: Duration,
        mut each: impl FnMut(&mut Receiver),
    ) -> Report {
        daqmeter_sys::wait::without_timer_slack();
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let mut told_ns = monotonic_ns();
        let mut heard_ns = told_ns;
        while !stop.load(Ordering::Relaxed) && self.publishers.iter().any(|one| !one.ended) {
            let now_ns = monotonic_ns();
            let worked = self.turn(now_ns);
            if worked || self.publishers.iter().any(|one| one.inlet.is_some()) {
                heard_ns = now_ns;
            } else if now_ns.saturating_sub(heard_ns) > patience_ns {
                self.notes.push("no publisher came back".to_owned());
                break;
            }
            if now_ns >= told_ns + 100_000_000 {
                told_ns = now_ns;
                each(self);
            }
        }
        each(self);
        self.report()
    }

    /// Looks once at every publisher; returns true if data came.
    fn turn(&mut self, now_ns: u64) -> bool {
        let alone = self.publishers.len() == 1;
        let mut worked = false;
        for at in 0..self.publishers.len() {
            // With several publishers none may be waited for; while data flows, a short sleep is
            // cheaper for the sender than being woken by each of its pages.
            let flows = now_ns.saturating_sub(self.last_ns) < FLOWS_NS;
            let wait = if alone && !flows { Duration::from_millis(50) } else { Duration::ZERO };
            match self.take(at, wait, now_ns) {
                Ok(came) => worked |= came,
                Err(TransportError::Refused { address, why }) => {
                    // Another attempt would be refused again.
                    (self.publishers[at].inlet, self.publishers[at].ended) = (None, true);
                    self.report.refused.push(format!("{address} refuses: {why}"));
                }
                Err(error) => {
                    let retry_ns = now_ns + RETRY_NS;
                    (self.publishers[at].inlet, self.publishers[at].retry_ns) = (None, retry_ns);
                    self.report.lost += 1;
                    self.notes.push(format!("{error}; trying again"));
                }
            }
        }
        if worked {
            self.nap_ns = NAP_NS;
        } else if !alone || now_ns.saturating_sub(self.last_ns) < FLOWS_NS {
            sleep_until(monotonic_ns() + self.nap_ns);
            self.nap_ns = (2 * self.nap_ns).min(MAX_NAP_NS);
        }
        worked
    }

    /// Takes a few pages of one publisher; returns true if data came.
    fn take(&mut self, at: usize, wait: Duration, now_ns: u64) -> Result<bool, TransportError> {
        let publisher = &mut self.publishers[at];
        if publisher.ended {
            return Ok(false);
        }
        if publisher.inlet.is_none() {
            let (transport, look_up) = (&self.transport, self.look_up.as_ref());
            publisher.reach(self.id, transport, look_up, &mut self.streams, now_ns)?;
        }
        // The inlet is taken out, because its pages are lent from it. A failed one is not put back.
        let Some(mut inlet) = publisher.inlet.take() else {
            if self.publishers.len() == 1 {
                sleep_until(monotonic_ns() + 1_000_000);
            }
            return Ok(false);
        };
        let took = self.take_pages(at, inlet.as_mut(), wait)?;
        let publisher = &mut self.publishers[at];
        if took > 0 {
            // A publisher that has ended needs it, too, to count the last pages. One that is gone
            // has ended.
            let said = inlet.acknowledge(publisher.last_page);
            if !publisher.ended {
                said?;
            }
        }
        if !publisher.ended {
            publisher.inlet = Some(inlet);
        }
        Ok(took > 0)
    }

    /// Takes pages until the next publisher has its turn; returns their number. Pages before an
    /// error count, and the last one is named when the publisher is back.
    fn take_pages(
        &mut self,
        at: usize,
        inlet: &mut dyn PageInlet,
        mut wait: Duration,
    ) -> Result<u64, TransportError> {
        let mut took = 0;
        while took < ACKNOWLEDGE_EACH && !self.publishers[at].ended {
            let Some((frame, body)) = inlet.receive(wait)? else { break };
            wait = Duration::ZERO;
            if let Some(slowed) = &self.slowed {
                slowed(frame.body_bytes);
            }
            let publisher = &mut self.publishers[at];
            if frame.kind == FrameKind::Account {
                self.take_account(at, body);
                continue;
            }
            publisher.last_page = frame.sequence;
            let (format, tags) = (publisher.format, &publisher.tags);
            let good = self.streams.page(self.report.pages, frame.kind, body, format, tags);
            self.count_page(&frame, good);
            took += 1;
            if !self.delay.is_zero() {
                std::thread::sleep(self.delay);
            }
        }
        Ok(took)
    }

    fn take_account(&mut self, at: usize, body: &[u8]) {
        let publisher = &mut self.publishers[at];
        publisher.ended = true;
        let read = from_peer::<FinalAccount>(body).and_then(|account| {
            if account.card_is_lost {
                return Ok((account, Vec::new()));
            }
            let ledgers = own_ledgers(&account, self.id, &publisher.tags, &self.streams);
            refuse_large_sum(self.report.ledgers.iter().chain(&ledgers))?;
            Ok((account, ledgers))
        });
        match read {
            Ok((account, ledgers)) => {
                self.report.ledgers.extend(ledgers);
                self.report.accounts.push(account);
            }
            Err(why) => {
                self.report.bad_pages += 1;
                let address = &publisher.settings.address;
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

impl Publisher {
    fn subscription(&self, receiver: u64) -> Subscription {
        let Publisher { stream, last_page, tags, .. } = self;
        Subscription { receiver, stream: *stream, last_page: *last_page, tags: tags.clone() }
    }

    /// Takes the next step to reach a lost publisher. Fails if it is back and refuses.
    fn reach(
        &mut self,
        receiver: u64,
        transport: &Arc<dyn PageTransport>,
        look_up: Option<&LookUp>,
        streams: &mut Streams,
        now_ns: u64,
    ) -> Result<(), TransportError> {
        let Some(attempt) = &self.attempt else {
            if now_ns >= self.retry_ns {
                self.retry_ns = now_ns + RETRY_NS;
                self.attempt = self.begin_attempt(receiver, transport.clone(), look_up.cloned());
            }
            return Ok(());
        };
        let ended = attempt.try_recv();
        if matches!(ended, Err(mpsc::TryRecvError::Empty)) {
            return Ok(());
        }
        self.attempt = None;
        match ended {
            Ok((settings, Ok(inlet))) => {
                self.settings = settings;
                self.adopt(inlet, streams);
                Ok(())
            }
            Ok((_, Err(error @ TransportError::Refused { .. }))) => Err(error),
            // Not there yet: the next attempt tells.
            _ => Ok(()),
        }
    }

    /// Resolves and connects in a thread of its own. `None` if the host has no thread for it.
    fn begin_attempt(
        &self,
        receiver: u64,
        transport: Arc<dyn PageTransport>,
        look_up: Option<LookUp>,
    ) -> Option<mpsc::Receiver<Attempt>> {
        let (ended, attempt) = mpsc::sync_channel(1);
        let (subscription, mut settings) = (self.subscription(receiver), self.settings.clone());
        let work = move || {
            if let Some(address) = look_up.and_then(|look_up| look_up(&subscription.tags)) {
                settings.address = address;
            }
            let made = transport.subscribe(&settings, &subscription, &|| false);
            // A receiver that has ended meanwhile does not take it.
            let _ = ended.send((settings, made));
        };
        let thread = std::thread::Builder::new().name("receiver-connect".to_owned());
        thread.spawn(work).ok().map(|_| attempt)
    }

    fn adopt(&mut self, inlet: Box<dyn PageInlet>, streams: &mut Streams) {
        let hello = inlet.hello();
        let is_new = hello.stream != self.stream;
        if is_new {
            (self.stream, self.last_page) = (hello.stream, 0);
        }
        let kib = u8::try_from(hello.block_bytes / 1024).unwrap_or(0);
        self.format = BlockFormat::of_magic(hello.magic, kib);
        if self.tags.is_empty() {
            self.tags.clone_from(&hello.tags);
        }
        let tags: HashSet<u64> = self.tags.iter().copied().collect();
        self.has_all = hello.tags.iter().all(|tag| tags.contains(tag));
        streams.offer(&self.tags, is_new);
        self.inlet = Some(inlet);
    }
}
