//! The receiver: subscribes, checks every fragment, and says what came, when, and what did not.
//!
//! It stands for a software read-out driver. A publisher that goes away is asked again until it comes back or the time is over;
//! the last page that was had from it is told then.

mod report;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use daqmeter_record::Ledger;
use daqmeter_record::border::MAX_WHOLE;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::sleep_until;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::page::{FRAME_BYTES, FelixFrame, FrameKind, Messages, Status};
use daqmeter_wire::felix::payload::Fid;
use daqmeter_wire::felix::{BlockFormat, Elink, Reassembler, Subchunk, subchunks};

use crate::accounts::{FinalAccount, not_received};
use crate::falls::{Falls, Judged, Span, judge};
use crate::fragment::{Faults, FragmentCheck};
use crate::peer::from_peer;
use crate::scenario::{MAX_PAYLOAD_BYTES, Publish};
use crate::strides::{MAX_ALIKE_BYTES, MIN_ALIKE, Strides};
use crate::transport::{Inlet, Received, Subscription, Transport, TransportError};

pub use report::{Report, StreamReport};

/// Pages after which they are acknowledged.
const ACKNOWLEDGE_EACH: u64 = 8;
/// Data flows when some came within this time.
const FLOWS_NS: u64 = 1_000_000;
/// Sleep of a receiver that has nothing to do while data flows. Each further one in a row is twice as long as the one before, up to a
/// time in which 1 GB/s brings less than a socket's buffer holds at first (128 KiB).
const NAP_NS: u64 = 15_000;
const MAX_NAP_NS: u64 = 60_000;
/// Bytes between the payloads of messages that are alike: the length.
const MESSAGE_WORD: usize = 4;
/// Messages that are taken as one at most: as many as a block has.
const MAX_ALIKE: usize = 256;
/// A lost publisher is asked again after this time.
const RETRY_NS: u64 = 200_000_000;

/// The E-link of a tag.
pub fn elink_of(tag: u64) -> Option<Elink> {
    let fid = Fid::of_u64(tag)?;
    Some(Elink::of_link(u8::try_from(fid.link).ok()?, fid.elink))
}

/// Where the publisher of these tags is now, if somebody knows: publishers come back at other places.
pub type LookUp = Arc<dyn Fn(&[u64]) -> Option<String> + Send + Sync>;

/// An attempt to reach a publisher: where, and what came of it.
type Attempt = (Publish, Result<Box<dyn Inlet>, TransportError>);

/// One publisher.
struct Source {
    settings: Publish,
    tags: Vec<u64>,
    /// True if the tags are all that the publisher offers.
    has_all: bool,
    inlet: Option<Box<dyn Inlet>>,
    /// An attempt is under way in a thread of its own: the other publishers are not kept waiting.
    attempt: Option<mpsc::Receiver<Attempt>>,
    stream: u64,
    last_page: u64,
    retry_ns: u64,
    format: Option<BlockFormat>,
    ended: bool,
}

/// What came of one E-link.
#[derive(Debug)]
struct Stream {
    tag: u64,
    check: FragmentCheck,
    falls: Falls,
    /// Span in which the current chunk began, in pages of blocks.
    began: Span,
    chunks: u64,
    bytes: u64,
    truncated: u64,
    flagged: u64,
    /// Counts from earlier lives of its publisher.
    before: Before,
    /// For pages of blocks.
    reassembler: Reassembler,
    partial: Vec<u8>,
}

/// Counts of one E-link from earlier lives of its publisher, which its account does not know.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    /// Chunks with nothing wrong.
    clean: u64,
    truncated: u64,
    faults: Faults,
}

/// A receiver of one or several publishers.
pub struct Receiver {
    id: u64,
    transport: Arc<dyn Transport>,
    sources: Vec<Source>,
    streams: Streams,
    room: Vec<Subchunk>,
    strides: Strides,
    report: Report,
    first_ns: u64,
    last_ns: u64,
    nap_ns: u64,
    /// Trouble, for people.
    notes: Vec<String>,
    /// Waits after each page, as a slow consumer does.
    pub dawdle: Duration,
    /// Asked before a lost publisher is tried again.
    pub look_up: Option<LookUp>,
}

impl Receiver {
    /// Connects to publishers: where each is, and the tags wanted from it (all where it is empty).
    ///
    /// # Errors
    /// When one of them is not there or refuses.
    pub fn connect(
        transport: Box<dyn Transport>,
        publishers: &[(Publish, Vec<u64>)],
    ) -> Result<Receiver, TransportError> {
        Receiver::connect_unless(transport, publishers, &|| false)
    }

    /// The same, given up soon when `quit` says so.
    ///
    /// # Errors
    /// As [`Receiver::connect`].
    pub fn connect_unless(
        transport: Box<dyn Transport>,
        publishers: &[(Publish, Vec<u64>)],
        quit: &dyn Fn() -> bool,
    ) -> Result<Receiver, TransportError> {
        // Two receivers are never the same: time and place make the number.
        let id = monotonic_ns().rotate_left(20) ^ u64::from(std::process::id()) << 44;
        let mut receiver = Receiver {
            id,
            transport: transport.into(),
            sources: Vec::new(),
            streams: Streams::default(),
            room: Vec::new(),
            strides: Strides::default(),
            report: Report::default(),
            first_ns: 0,
            last_ns: 0,
            nap_ns: NAP_NS,
            notes: Vec::new(),
            dawdle: Duration::ZERO,
            look_up: None,
        };
        for (settings, tags) in publishers {
            let mut source = Source {
                settings: settings.clone(),
                tags: tags.clone(),
                has_all: false,
                inlet: None,
                attempt: None,
                stream: 0,
                last_page: 0,
                retry_ns: 0,
                format: None,
                ended: false,
            };
            let inlet = source.request(receiver.id).make(
                receiver.transport.as_ref(),
                &source.settings,
                quit,
            )?;
            source.adopt(inlet, &mut receiver.streams);
            receiver.sources.push(source);
        }
        Ok(receiver)
    }

    /// Takes the trouble that there was since the last time, for people.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Whether anything came yet.
    pub fn has_data(&self) -> bool {
        self.report.pages > 0
    }

    /// What came so far.
    pub fn report(&self) -> Report {
        let ledgers = &self.report.ledgers;
        let ledger = |tag: u64| ledgers.iter().rev().find(|(of, _)| *of == tag);
        let each = self.streams.all.iter().zip(self.judged_falls());
        let streams = each.map(|(stream, falls)| {
            let ledger = ledger(stream.tag).map(|(_, ledger)| ledger);
            StreamReport {
                tag: stream.tag,
                chunks: stream.chunks,
                bytes: stream.bytes,
                truncated: stream.truncated,
                flagged: stream.flagged,
                faults: stream.faults(falls, ledger),
            }
        });
        let mut streams: Vec<StreamReport> = streams.collect();
        // From the other E-links nothing came at all.
        let silent = ledgers.iter().filter_map(|(tag, ledger)| {
            let missing = not_received(ledger);
            let is_silent = missing > 0 && !self.streams.places.contains_key(tag);
            is_silent.then(|| StreamReport {
                tag: *tag,
                chunks: 0,
                bytes: 0,
                truncated: 0,
                flagged: 0,
                faults: Faults { missing, ..Faults::default() },
            })
        });
        streams.extend(silent);
        streams.sort_by_key(|stream| stream.tag);
        let span_ns = self.last_ns.saturating_sub(self.first_ns);
        Report { streams, span_ns, ..self.report.clone() }
    }

    /// Judged falls of the counters, each judged by the E-links of the same publisher.
    fn judged_falls(&self) -> Vec<Judged> {
        let Streams { all, places, .. } = &self.streams;
        let mut judged = vec![Judged::default(); all.len()];
        for source in &self.sources {
            let tags = source.tags.iter();
            let own: Vec<usize> = tags.filter_map(|tag| places.get(tag).copied()).collect();
            let falls: Vec<&Falls> = own.iter().map(|at| &all[*at].falls).collect();
            for (at, falls) in own.iter().zip(judge(&falls, source.has_all)) {
                judged[*at] = falls;
            }
        }
        judged
    }

    /// Receives until every publisher has ended, or it is told to stop, or a lost one stays away for so long.
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
        while !stop.load(Ordering::Relaxed) && self.sources.iter().any(|source| !source.ended) {
            let now_ns = monotonic_ns();
            let worked = self.turn(now_ns);
            if worked || self.sources.iter().any(|source| source.inlet.is_some()) {
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

    /// One look at every publisher; true when something came.
    fn turn(&mut self, now_ns: u64) -> bool {
        let alone = self.sources.len() == 1;
        let mut worked = false;
        for at in 0..self.sources.len() {
            // With several publishers none may be waited for; while data flows, a short sleep is cheaper for the sender than
            // being woken by each of its pages.
            let flows = now_ns.saturating_sub(self.last_ns) < FLOWS_NS;
            let wait = if alone && !flows { Duration::from_millis(50) } else { Duration::ZERO };
            match self.take(at, wait, now_ns) {
                Ok(came) => worked |= came,
                Err(TransportError::Refused { address, why }) => {
                    // Asking again would change nothing.
                    self.sources[at].inlet = None;
                    self.sources[at].ended = true;
                    self.report.refused.push(format!("{address} refuses: {why}"));
                }
                Err(error) => {
                    let source = &mut self.sources[at];
                    source.inlet = None;
                    source.retry_ns = now_ns + RETRY_NS;
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

    /// A few pages of one publisher; true when something came.
    fn take(&mut self, at: usize, wait: Duration, now_ns: u64) -> Result<bool, TransportError> {
        if self.sources[at].ended || !self.is_connected(at, now_ns)? {
            return Ok(false);
        }
        // Taken out: what it received is lent from it. One that failed is not put back.
        let Some(mut inlet) = self.sources[at].inlet.take() else {
            return Ok(false);
        };
        let took = self.take_pages(at, inlet.as_mut(), wait)?;
        let source = &mut self.sources[at];
        if took > 0 {
            // One that has ended needs it, too, to count the last pages; where it is gone already, it has.
            let said = inlet.acknowledge(source.last_page);
            if !source.ended {
                said?;
            }
        }
        if !source.ended {
            source.inlet = Some(inlet);
        }
        Ok(took > 0)
    }

    /// Whether there is a connection; where there is none, the next step of making one is taken.
    fn is_connected(&mut self, at: usize, now_ns: u64) -> Result<bool, TransportError> {
        let alone = self.sources.len() == 1;
        let source = &mut self.sources[at];
        let (transport, look_up) = (&self.transport, self.look_up.as_ref());
        if source.inlet.is_some()
            || source.is_reached(self.id, transport, look_up, &mut self.streams, now_ns)?
        {
            return Ok(true);
        }
        if alone {
            sleep_until(monotonic_ns() + 1_000_000);
        }
        Ok(false)
    }

    /// Pages until the next publisher gets its turn: how many. What came before an error is counted, and its last page is told
    /// when the publisher is back.
    fn take_pages(
        &mut self,
        at: usize,
        inlet: &mut dyn Inlet,
        mut wait: Duration,
    ) -> Result<u64, TransportError> {
        let mut took = 0;
        while took < ACKNOWLEDGE_EACH && !self.sources[at].ended {
            let Received::Frame(frame, body) = inlet.receive(wait)? else {
                break;
            };
            wait = Duration::ZERO;
            if frame.kind == FrameKind::Account {
                self.take_account(at, body);
                continue;
            }
            let good = self.take_page(at, frame.kind, body);
            self.count_page(&frame, good);
            self.sources[at].last_page = frame.sequence;
            took += 1;
            if !self.dawdle.is_zero() {
                std::thread::sleep(self.dawdle);
            }
        }
        Ok(took)
    }

    /// The publisher has ended, and says what became of everything.
    fn take_account(&mut self, at: usize, body: &[u8]) {
        let source = &mut self.sources[at];
        source.ended = true;
        let read = from_peer::<FinalAccount>(body).and_then(|account| {
            if account.card_is_lost {
                return Ok((account, Vec::new()));
            }
            let ledgers = own_ledgers(&account, self.id, &source.tags, &self.streams);
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
                self.notes.push(format!(
                    "{}: its account is refused: {why}; what came from it is kept",
                    source.settings.address
                ));
            }
        }
    }

    /// True when the page was good.
    fn take_page(&mut self, at: usize, kind: FrameKind, body: &[u8]) -> bool {
        let (source, streams) = (&self.sources[at], &mut self.streams);
        streams.page = self.report.pages;
        match kind {
            FrameKind::Messages => messages(body, streams, &mut self.strides),
            FrameKind::Blocks => {
                blocks(body, source.format, &mut self.room, streams, source_key(&source.tags))
            }
            _ => false,
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
            let age_ns = now_ns.saturating_sub(frame.birth_ns);
            self.report.latency_ns.add(age_ns);
        }
    }
}

/// Device of pages of blocks, whose headers have none: that of the tags that were asked for or offered.
fn source_key(tags: &[u64]) -> u64 {
    tags.first().copied().unwrap_or_default()
}

/// What a receiver says when it comes, or comes back.
struct Request {
    subscription: Subscription,
    /// The stream that it had, and the last page of it.
    had: (u64, u64),
}

impl Request {
    fn make(
        &self,
        transport: &dyn Transport,
        settings: &Publish,
        quit: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Inlet>, TransportError> {
        let (stream, last_page) = self.had;
        let last_page_of = |found: u64| if found == stream { last_page } else { 0 };
        transport.subscribe(settings, &self.subscription, &last_page_of, quit)
    }
}

impl Source {
    fn request(&self, receiver: u64) -> Request {
        let subscription = Subscription { receiver, last_page: 0, tags: self.tags.clone() };
        Request { subscription, had: (self.stream, self.last_page) }
    }

    /// Tries again to reach a publisher that is lost; true when it is back.
    ///
    /// # Errors
    /// When it is back and refuses.
    fn is_reached(
        &mut self,
        receiver: u64,
        transport: &Arc<dyn Transport>,
        look_up: Option<&LookUp>,
        streams: &mut Streams,
        now_ns: u64,
    ) -> Result<bool, TransportError> {
        let Some(attempt) = &self.attempt else {
            if now_ns >= self.retry_ns {
                self.retry_ns = now_ns + RETRY_NS;
                self.attempt = self.begin_attempt(receiver, transport.clone(), look_up.cloned());
            }
            return Ok(false);
        };
        let (settings, result) = match attempt.try_recv() {
            Ok(ended) => ended,
            Err(mpsc::TryRecvError::Empty) => return Ok(false),
            Err(mpsc::TryRecvError::Disconnected) => {
                self.attempt = None;
                return Ok(false);
            }
        };
        self.attempt = None;
        match result {
            Ok(inlet) => {
                self.settings = settings;
                self.adopt(inlet, streams);
                Ok(true)
            }
            Err(error @ TransportError::Refused { .. }) => Err(error),
            // Not there yet: the next attempt tells.
            Err(_) => Ok(false),
        }
    }

    /// In a thread of its own: names are resolved and connections made there. None where the host has no thread for it.
    fn begin_attempt(
        &self,
        receiver: u64,
        transport: Arc<dyn Transport>,
        look_up: Option<LookUp>,
    ) -> Option<mpsc::Receiver<Attempt>> {
        let (ended, attempt) = mpsc::sync_channel(1);
        let (request, mut settings) = (self.request(receiver), self.settings.clone());
        let work = move || {
            if let Some(address) = look_up.and_then(|look_up| look_up(&request.subscription.tags)) {
                settings.address = address;
            }
            let made = request.make(transport.as_ref(), &settings, &|| false);
            // A receiver that has ended meanwhile wants it no more.
            let _ = ended.send((settings, made));
        };
        std::thread::Builder::new()
            .name("receiver-connect".to_owned())
            .spawn(work)
            .ok()
            .map(|_| attempt)
    }

    fn adopt(&mut self, inlet: Box<dyn Inlet>, streams: &mut Streams) {
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
        for tag in &self.tags {
            streams.offered.insert(*tag);
            if let Some(at) = streams.places.get(tag) {
                streams.all[*at].reconnected(is_new);
            }
        }
        self.inlet = Some(inlet);
    }
}

/// The E-links that came, and those that may come: a publisher cannot make more of them than it offers.
#[derive(Debug, Default)]
struct Streams {
    all: Vec<Stream>,
    places: HashMap<u64, usize>,
    offered: HashSet<u64>,
    /// Number of the current page.
    page: u64,
}

impl Streams {
    /// Stream of a tag in the current page. `None` for a tag that was not offered.
    fn of(&mut self, tag: u64) -> Option<&mut Stream> {
        let at = self.place_of(tag)?;
        Some(&mut self.all[at])
    }

    fn place_of(&mut self, tag: u64) -> Option<usize> {
        let at = match self.places.get(&tag) {
            Some(at) => *at,
            None => self.begin(tag)?,
        };
        self.all[at].falls.at(self.page);
        Some(at)
    }

    fn begin(&mut self, tag: u64) -> Option<usize> {
        if !self.offered.contains(&tag) {
            return None;
        }
        self.all.push(Stream {
            tag,
            check: FragmentCheck::new(elink_of(tag)),
            falls: Falls::default(),
            began: Span::default(),
            chunks: 0,
            bytes: 0,
            truncated: 0,
            flagged: 0,
            before: Before::default(),
            reassembler: Reassembler::new(),
            partial: Vec::new(),
        });
        self.places.insert(tag, self.all.len() - 1);
        Some(self.all.len() - 1)
    }
}

/// The ledgers of a publisher's E-links for this receiver, with what it had itself.
fn own_ledgers(
    account: &FinalAccount,
    receiver: u64,
    tags: &[u64],
    streams: &Streams,
) -> Vec<(u64, Ledger)> {
    let mut ledgers = Vec::new();
    for tag in tags {
        let Some(mut ledger) = account.ledger_for(receiver, *tag) else {
            continue;
        };
        let had = |at: &usize| streams.all[*at].clean() - streams.all[*at].before.clean;
        ledger.delivered = streams.places.get(tag).map_or(0, had);
        ledgers.push((*tag, ledger));
    }
    ledgers
}

/// Refuses ledgers whose numbers together are beyond any run: all sums of them have 64 bits.
fn refuse_large_sum<'a>(ledgers: impl Iterator<Item = &'a (u64, Ledger)>) -> Result<(), String> {
    const MAX_SUM: u64 = MAX_WHOLE << 10;
    let counts = ledgers.flat_map(|(_, ledger)| [ledger.issued, ledger.delivered, ledger.lost()]);
    let sum = counts.map(u128::from).sum::<u128>();
    match sum <= u128::from(MAX_SUM) {
        true => Ok(()),
        false => Err(format!(
            "the numbers of its E-links add up to {sum}; the largest sum taken is {MAX_SUM}"
        )),
    }
}

impl Stream {
    /// Chunks with nothing wrong.
    fn clean(&self) -> u64 {
        self.chunks - self.truncated - self.flagged
    }

    /// Faults of the stream. An account that closes states what did not come, and that nothing came
    /// twice. Without a loss, a counter that fell was reset by the source.
    fn faults(&self, falls: Judged, ledger: Option<&Ledger>) -> Faults {
        let counted = self.check.faults.judged(falls);
        let Some(ledger) = ledger.filter(|ledger| ledger.closes()) else {
            return counted;
        };
        let before = self.before;
        let lost = not_received(ledger);
        let missing = lost.saturating_sub(self.truncated - before.truncated);
        let known = Faults { missing: before.faults.missing + missing, ..counted };
        if before.clean > 0 {
            // The account does not cover falls in an earlier life.
            return known;
        }
        let known = Faults { falls: 0, falls_missing: 0, ..known };
        match lost {
            0 => Faults { resets: counted.resets + counted.falls, ..known },
            _ => Faults { duplicates: 0, out_of_order: 0, resets: 0, ..known },
        }
    }

    /// Its publisher is there again: what was sent meanwhile is missing. A new life of it counts from its own beginning.
    fn reconnected(&mut self, is_new: bool) {
        self.reassembler = Reassembler::new();
        if is_new {
            self.before = Before {
                clean: self.clean(),
                truncated: self.truncated,
                faults: self.check.faults,
            };
            self.check.restart();
        } else {
            self.check.gap();
        }
    }

    /// Takes so many fragments of a length with nothing wrong, which follow the one that the bytes begin with.
    #[inline]
    fn take_alike(&mut self, count: usize, length: usize, bytes: &[u8], strides: &mut Strides) {
        self.chunks += count as u64;
        self.bytes += (count * length) as u64;
        let stride = length + MESSAGE_WORD;
        if count >= MIN_ALIKE
            && strides.of(stride).holds(bytes)
            && self.check.is_repeated(&bytes[..length], count)
        {
            return;
        }
        let mut at = 1;
        while at <= count {
            let begins = (at..=count).map(|nth| nth * stride);
            at += self.check.usual(bytes, begins, length);
            if at <= count {
                self.check(&bytes[at * stride..][..length], self.falls.span());
                at += 1;
            }
        }
    }

    #[inline]
    fn take(&mut self, payload: &[u8], status: Status, span: Span) {
        self.chunks += 1;
        self.bytes += payload.len() as u64;
        if status.is_clean() {
            self.check(payload, span);
        } else {
            self.take_flagged(payload, status, span);
        }
    }

    #[inline]
    fn check(&mut self, payload: &[u8], span: Span) {
        if let Some(finding) = self.check.check(payload) {
            self.falls.keep(finding, span);
        }
    }

    fn take_flagged(&mut self, payload: &[u8], status: Status, span: Span) {
        if status.0 & Status::CARD_TRUNCATED != 0 {
            self.truncated += 1;
            // Its bytes are what was left of it: only the counter is looked at.
            if let Some(finding) = self.check.cut(payload) {
                self.falls.keep(finding, span);
            }
        } else {
            self.flagged += 1;
            self.check(payload, span);
        }
    }
}

/// True when the page was good to its end, and had nothing in it that was not offered.
fn messages(body: &[u8], streams: &mut Streams, strides: &mut Strides) -> bool {
    let mut messages = Messages::new(body);
    let (mut good, mut tag, mut place) = (true, None, None);
    while let Some(message) = messages.next() {
        let Ok(message) = message else { return false };
        // Messages of one tag come in a row: a block's worth.
        if tag.replace(message.tag) != Some(message.tag) {
            place = streams.place_of(message.tag);
        }
        let Some(place) = place else {
            good = false;
            continue;
        };
        let stream = &mut streams.all[place];
        stream.take(message.payload, message.status, stream.falls.span());
        if message.status.is_clean() {
            let length = message.payload.len();
            let most = (MAX_ALIKE_BYTES / (length + MESSAGE_WORD)).saturating_sub(1);
            let (count, bytes) = messages.take_alike(most.min(MAX_ALIKE));
            stream.take_alike(count, length, bytes, strides);
        }
    }
    good
}

/// True when every block could be read.
fn blocks(
    body: &[u8],
    format: Option<BlockFormat>,
    room: &mut Vec<Subchunk>,
    streams: &mut Streams,
    key: u64,
) -> bool {
    let Some(format) = format else { return false };
    room.resize(most_subchunks(format), Subchunk::default());
    let connector = Fid::of_u64(key).map_or(0, |fid| fid.connector);
    let mut good = body.len().is_multiple_of(format.block_bytes);
    for block in body.chunks_exact(format.block_bytes) {
        match subchunks(format, block, room) {
            Ok((header, found)) => {
                let tag = Fid::of_elink(0, connector, header.elink).to_u64();
                let Some(stream) = streams.of(tag) else {
                    good = false;
                    continue;
                };
                // Borrowed apart, to hand chunks over while they are put together.
                let mut reassembler = std::mem::take(&mut stream.reassembler);
                let mut partial = std::mem::take(&mut stream.partial);
                reassembler.block(header, found, |part| {
                    let bytes = &block[part.begin..part.begin + part.length];
                    let status = Status::of_flags(part.flags);
                    if part.begins {
                        stream.began = stream.falls.span();
                    }
                    if part.begins && part.ends {
                        return stream.take(bytes, status, stream.began);
                    }
                    if part.begins {
                        partial.clear();
                    }
                    // No card makes longer ones: a chunk without end is not kept.
                    if partial.len() + bytes.len() > MAX_PAYLOAD_BYTES {
                        good = false;
                        return;
                    }
                    partial.extend_from_slice(bytes);
                    if part.ends {
                        stream.take(&partial, status, stream.began);
                    }
                });
                (stream.reassembler, stream.partial) = (reassembler, partial);
            }
            Err(_) => good = false,
        }
    }
    good
}
