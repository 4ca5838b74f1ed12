//! The receiver: subscribes, checks every fragment, and says what came, when, and what did not.
//!
//! It stands for a software read-out driver. A publisher that goes away is asked again until it comes back or the time is over;
//! the last page that was had from it is told then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daqmeter_record::Ledger;
use daqmeter_stats::LogHistogram;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::sleep_until;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::page::{FrameKind, Messages, Status};
use daqmeter_wire::felix::payload::Fid;
use daqmeter_wire::felix::{Elink, Format, Reassembler, Subchunk, subchunks};

use crate::fragment::{self, FragmentCheck};
use crate::scenario::Publish;
use crate::tohost::FinalAccount;
use crate::transport::{Inlet, Received, Subscription, Transport, TransportError};

/// Pages after which they are acknowledged.
const ACKNOWLEDGE_EACH: u64 = 8;
/// Data flows when some came within this time.
const FLOWS_NS: u64 = 1_000_000;
/// Sleep of a receiver that has nothing to do while data flows.
const NAP_NS: u64 = 15_000;
/// A lost publisher is asked again after this time.
const RETRY_NS: u64 = 200_000_000;

/// The E-link of a tag.
pub fn elink_of(tag: u64) -> Option<Elink> {
    let fid = Fid::of_u64(tag)?;
    Some(Elink::of_link(u8::try_from(fid.link).ok()?, fid.elink))
}

/// One publisher.
struct Source {
    settings: Publish,
    tags: Vec<u64>,
    inlet: Option<Box<dyn Inlet>>,
    stream: u64,
    last_page: u64,
    retry_ns: u64,
    format: Option<Format>,
    ended: bool,
}

/// What came of one E-link.
#[derive(Debug)]
struct Stream {
    tag: u64,
    check: FragmentCheck,
    chunks: u64,
    bytes: u64,
    truncated: u64,
    flagged: u64,
    /// Chunks with nothing wrong that came in earlier lives of its publisher.
    before: u64,
    /// For pages of blocks.
    reassembler: Reassembler,
    partial: Vec<u8>,
}

/// What came of one E-link, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StreamReport {
    /// Its tag.
    pub tag: u64,
    /// Chunks.
    pub chunks: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// Cut off by the card.
    pub truncated: u64,
    /// With an error or CRC flag.
    pub flagged: u64,
    /// What was wrong with them.
    pub faults: fragment::Faults,
}

/// What a receiver saw.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Each E-link.
    pub streams: Vec<StreamReport>,
    /// Pages.
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
    /// The ledger of each E-link of those publishers for this receiver alone, with what it had in the place of what the publisher says
    /// was delivered: when they disagree, it does not close.
    pub ledgers: Vec<(u64, Ledger)>,
}

impl Report {
    /// Chunks of all E-links.
    pub fn chunks(&self) -> u64 {
        self.streams.iter().map(|stream| stream.chunks).sum()
    }

    /// Everything that was wrong with fragments.
    pub fn faults(&self) -> fragment::Faults {
        let mut all = fragment::Faults::default();
        for stream in &self.streams {
            all.add(&stream.faults);
        }
        all
    }

    /// Whether every account that came closes.
    pub fn closes(&self) -> bool {
        self.ledgers.iter().all(|(_, ledger)| ledger.closes())
    }
}

/// A receiver of one or several publishers.
pub struct Receiver {
    id: u64,
    transport: Box<dyn Transport>,
    sources: Vec<Source>,
    streams: Vec<Stream>,
    places: HashMap<u64, usize>,
    room: Vec<Subchunk>,
    report: Report,
    first_ns: u64,
    last_ns: u64,
    /// Trouble, for people.
    notes: Vec<String>,
    /// Waits after each page, as a slow consumer does.
    pub dawdle: Duration,
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
        // Two receivers are never the same: time and place make the number.
        let id = monotonic_ns().rotate_left(20) ^ u64::from(std::process::id()) << 44;
        let mut receiver = Receiver {
            id,
            transport,
            sources: Vec::new(),
            streams: Vec::new(),
            places: HashMap::new(),
            room: Vec::new(),
            report: Report::default(),
            first_ns: 0,
            last_ns: 0,
            notes: Vec::new(),
            dawdle: Duration::ZERO,
        };
        for (settings, tags) in publishers {
            let mut source = Source {
                settings: settings.clone(),
                tags: tags.clone(),
                inlet: None,
                stream: 0,
                last_page: 0,
                retry_ns: 0,
                format: None,
                ended: false,
            };
            source.open(receiver.id, receiver.transport.as_ref())?;
            receiver.sources.push(source);
        }
        Ok(receiver)
    }

    /// Takes the trouble that there was since the last time, for people.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// What came so far.
    pub fn report(&self) -> Report {
        let streams = self.streams.iter().map(|stream| StreamReport {
            tag: stream.tag,
            chunks: stream.chunks,
            bytes: stream.bytes,
            truncated: stream.truncated,
            flagged: stream.flagged,
            faults: stream.check.faults,
        });
        let mut streams: Vec<StreamReport> = streams.collect();
        streams.sort_by_key(|stream| stream.tag);
        let span_ns = self.last_ns.saturating_sub(self.first_ns);
        Report { streams, span_ns, ..self.report.clone() }
    }

    /// Receives until every publisher has ended, or it is told to stop, or a lost one stays away for so long.
    pub fn run(&mut self, stop: &AtomicBool, patience: Duration, mut each: impl FnMut(&mut Receiver)) -> Report {
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
        if !worked && (!alone || now_ns.saturating_sub(self.last_ns) < FLOWS_NS) {
            sleep_until(monotonic_ns() + NAP_NS);
        }
        worked
    }

    fn take(&mut self, at: usize, wait: Duration, now_ns: u64) -> Result<bool, TransportError> {
        let Receiver { sources, streams, places, room, report, transport, dawdle, first_ns, last_ns, .. } = self;
        let source = &mut sources[at];
        if source.ended {
            return Ok(false);
        }
        if source.inlet.is_none() {
            if now_ns < source.retry_ns {
                sleep_until(monotonic_ns() + 1_000_000);
                return Ok(false);
            }
            source.retry_ns = now_ns + RETRY_NS;
            let life = source.stream;
            // Not there yet: the next try tells.
            if source.open(self.id, transport.as_ref()).is_err() {
                return Ok(false);
            }
            for tag in &source.tags {
                if let Some(at) = places.get(tag) {
                    streams[*at].reconnected(source.stream != life);
                }
            }
        }
        let mut took = 0;
        let (format, mut last_page) = (source.format, source.last_page);
        let Some(inlet) = &mut source.inlet else { return Ok(false) };
        let mut wait = wait;
        // A few pages before the next publisher gets its turn.
        while took < ACKNOWLEDGE_EACH {
            let (frame, body) = match inlet.receive(wait)? {
                Received::Frame(frame, body) => (frame, body),
                Received::Nothing => break,
            };
            wait = Duration::ZERO;
            let good = match frame.kind {
                FrameKind::Messages => messages(body, streams, places),
                FrameKind::Blocks => blocks(body, format, room, streams, places, source_key(&source.tags)),
                FrameKind::Account => {
                    match serde_json::from_slice::<FinalAccount>(body) {
                        Ok(account) => {
                            report.ledgers.extend(own_ledgers(&account, self.id, &source.tags, streams, places));
                            report.accounts.push(account);
                        }
                        Err(_) => report.bad_pages += 1,
                    }
                    source.ended = true;
                    break;
                }
                _ => false,
            };
            let now_ns = monotonic_ns();
            if *first_ns == 0 {
                *first_ns = now_ns;
            }
            *last_ns = now_ns;
            report.bad_pages += u64::from(!good);
            report.pages += 1;
            report.bytes += u64::from(frame.body_bytes) + daqmeter_wire::felix::page::FRAME_BYTES as u64;
            if frame.birth_ns > 0 {
                report.latency_ns.add(now_ns.saturating_sub(frame.birth_ns));
            }
            last_page = frame.sequence;
            took += 1;
            if !dawdle.is_zero() {
                std::thread::sleep(*dawdle);
            }
        }
        source.last_page = last_page;
        if took > 0 {
            // One that has ended needs it, too, to count the last pages; where it is gone already, it has.
            let said = inlet.acknowledge(source.last_page);
            if !source.ended {
                said?;
            }
        }
        if source.ended {
            source.inlet = None;
        }
        Ok(took > 0)
    }
}

/// Device of pages of blocks, whose headers have none: that of the tags that were asked for or offered.
fn source_key(tags: &[u64]) -> u64 {
    tags.first().copied().unwrap_or_default()
}

impl Source {
    fn open(&mut self, receiver: u64, transport: &dyn Transport) -> Result<(), TransportError> {
        let subscription = Subscription { receiver, last_page: 0, tags: self.tags.clone() };
        let (stream, last_page) = (self.stream, self.last_page);
        let last_page_of = |found: u64| if found == stream { last_page } else { 0 };
        let inlet = transport.subscribe(&self.settings, &subscription, &last_page_of)?;
        let hello = inlet.hello();
        if hello.stream != self.stream {
            (self.stream, self.last_page) = (hello.stream, 0);
        }
        let kib = u8::try_from(hello.block_bytes / 1024).unwrap_or(0);
        self.format = Format::of_magic(hello.magic, kib);
        if self.tags.is_empty() {
            self.tags.clone_from(&hello.tags);
        }
        self.inlet = Some(inlet);
        Ok(())
    }
}

fn stream_of<'a>(tag: u64, streams: &'a mut Vec<Stream>, places: &mut HashMap<u64, usize>) -> &'a mut Stream {
    let at = *places.entry(tag).or_insert_with(|| {
        streams.push(Stream {
            tag,
            check: FragmentCheck::new(elink_of(tag)),
            chunks: 0,
            bytes: 0,
            truncated: 0,
            flagged: 0,
            before: 0,
            reassembler: Reassembler::new(),
            partial: Vec::new(),
        });
        streams.len() - 1
    });
    &mut streams[at]
}

/// The ledgers of a publisher's E-links for this receiver, with what it had itself.
fn own_ledgers(
    account: &FinalAccount,
    receiver: u64,
    tags: &[u64],
    streams: &[Stream],
    places: &HashMap<u64, usize>,
) -> Vec<(u64, Ledger)> {
    let mut ledgers = Vec::new();
    for tag in tags {
        let Some(mut ledger) = account.ledger_for(receiver, *tag) else { continue };
        ledger.delivered = places.get(tag).map_or(0, |at| streams[*at].clean() - streams[*at].before);
        ledgers.push((*tag, ledger));
    }
    ledgers
}

impl Stream {
    /// Chunks with nothing wrong.
    fn clean(&self) -> u64 {
        self.chunks - self.truncated - self.flagged
    }

    /// Its publisher is there again: what was sent meanwhile is missing. A new life of it counts from its own beginning.
    fn reconnected(&mut self, is_new: bool) {
        self.reassembler = Reassembler::new();
        if is_new {
            self.before = self.clean();
            self.check.restart();
        } else {
            self.check.gap();
        }
    }

    #[inline]
    fn take(&mut self, payload: &[u8], status: Status) {
        self.chunks += 1;
        self.bytes += payload.len() as u64;
        if status.is_clean() {
            self.check.check(payload);
        } else {
            self.take_flagged(payload, status);
        }
    }

    fn take_flagged(&mut self, payload: &[u8], status: Status) {
        if status.0 & Status::CARD_TRUNCATED != 0 {
            self.truncated += 1;
            // Its bytes are what was left of it: only the counter is looked at.
            self.check.cut(payload);
        } else {
            self.flagged += 1;
            self.check.check(payload);
        }
    }
}

/// True when the page was good to its end.
fn messages(body: &[u8], streams: &mut Vec<Stream>, places: &mut HashMap<u64, usize>) -> bool {
    let mut messages = Messages::new(body).peekable();
    loop {
        // All messages of one tag in one go: a block's worth.
        let tag = match messages.peek() {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(message)) => message.tag,
        };
        let stream = stream_of(tag, streams, places);
        while let Some(Ok(message)) = messages.next_if(|next| matches!(next, Ok(message) if message.tag == tag)) {
            stream.take(message.payload, message.status);
        }
    }
}

/// True when every block could be read.
fn blocks(
    body: &[u8],
    format: Option<Format>,
    room: &mut Vec<Subchunk>,
    streams: &mut Vec<Stream>,
    places: &mut HashMap<u64, usize>,
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
                let stream = stream_of(tag, streams, places);
                // Borrowed apart, to hand chunks over while they are put together.
                let mut reassembler = std::mem::take(&mut stream.reassembler);
                let mut partial = std::mem::take(&mut stream.partial);
                reassembler.block(header, found, |part| {
                    let bytes = &block[part.begin..part.begin + part.length];
                    let status = Status::of_flags(part.flags);
                    if part.begins && part.ends {
                        return stream.take(bytes, status);
                    }
                    if part.begins {
                        partial.clear();
                    }
                    partial.extend_from_slice(bytes);
                    if part.ends {
                        stream.take(&partial, status);
                    }
                });
                (stream.reassembler, stream.partial) = (reassembler, partial);
            }
            Err(_) => good = false,
        }
    }
    good
}
