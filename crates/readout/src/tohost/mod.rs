//! The reader: blocks out of the ring, chunks into pages, pages to subscribers, the host pointer forward.
//!
//! One [`ToHost`] serves one DMA channel in one thread. [`ToHost::turn`] does what there is to do and never waits; [`ToHost::run`] turns
//! until the card has finished, and sleeps in between.

mod blocks;
mod dest;

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daqmeter_kernels::prefetch;
use daqmeter_sys::clock::monotonic_ns;
use daqmeter_sys::wait::{sleep_until, without_timer_slack};
use daqmeter_wire::felix::block::{HEADER_BYTES, Header};
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::page::{Frame, FrameKind, MAX_MESSAGE_OVERHEAD};
use daqmeter_wire::felix::{Elink, Format, Reassembler, Subchunk, subchunks};
use serde::{Deserialize, Serialize};

pub use crate::accounts::FinalAccount;
use crate::accounts::{ReaderElink, SubscriptionAccount};
use crate::card::{CardView, State};
use crate::fragment::FragmentCheck;
use crate::port::Port;
use crate::scenario::{Completion, ElinkSpec, OnSlow, Publish, Reader as Settings, ReaderMode};
use crate::transport::{Outlet, OutletEvent, Sent, Subscription};
use blocks::{Context, Missed, Subscriber, copy_chunks, is_repeated, lend_block};
use dest::{Booked, Dest, Fates, MAX_PENDING, Page, Pending, SPANS_BYTES};

/// Blocks after which the ring gets its bytes back and pages are sent.
const BATCH_BYTES: usize = 64 << 10;
/// Subscribers that owe acknowledgements are looked after so often.
const SERVICE_NS: u64 = 1_000_000;
/// And those that do not, and new ones.
const IDLE_SERVICE_NS: u64 = 20_000_000;
/// Who runs a reader is called so often.
const EACH_NS: u64 = 10_000_000;
/// A reader that waits for an interrupt looks after subscribers so often.
const INTERRUPT_SERVICE: Duration = Duration::from_millis(100);
/// Whether to stop is looked at so often in a sleep between two polls.
const SLICE_NS: u64 = 100_000_000;
/// Accounts are offered to subscribers for so long, and their going is waited for so long.
const FAREWELL_NS: u64 = 1_000_000_000;
/// Each of the waits of the end, of which there are up to four, takes so long at the most once the reader is asked to stop: below two seconds together.
const STOP_WITHIN_NS: u64 = 400_000_000;
/// Lost connections whose receivers may come back; the account of the oldest number is closed for a further one.
const MAX_DEPARTED: usize = 256;

/// Blocks are walked from their ends, which no hardware foresees: they are fetched so many ahead.
const PREFETCH_BLOCKS: usize = 2;

/// A block's beginning and end: enough to tell a repeated block from the 31st after it.
type Fingerprint = [u8; 48];

#[derive(Debug)]
struct ElinkState {
    spec: ElinkSpec,
    reassembler: Reassembler,
    /// The account of the E-link follows the first; each has an account of its own besides.
    subscribers: Vec<Subscriber>,
    /// The chunk at hand, as far as it is there.
    partial: Vec<u8>,
    check: Option<FragmentCheck>,
    fingerprint: Fingerprint,
    account: ReaderElink,
}

/// What a reader counts besides the accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Blocks read.
    pub blocks: u64,
    /// Bytes of the ring read.
    pub bytes: u64,
    /// Chunks read.
    pub chunks: u64,
    /// Times that it looked.
    pub polls: u64,
    /// Of which found something.
    pub busy_polls: u64,
    /// Blocks that could not be read.
    pub bad_blocks: u64,
    /// Blocks of E-links that the scenario does not have.
    pub unknown_blocks: u64,
    /// Blocks that came twice.
    pub duplicates: u64,
    /// Blocks missing by their numbers.
    pub missing_blocks: u64,
    /// Times that a slow subscriber stopped it.
    pub stalls: u64,
    /// Pages sent.
    pub pages: u64,
    /// Bytes of pages sent.
    pub page_bytes: u64,
    /// Most bytes that it found in the ring.
    pub peak_bytes: u64,
    /// Sum of what it found in the ring, over the polls that found something.
    pub found_bytes: u64,
    /// Fragments with a counter that does not follow (where it checks).
    pub jumps: u64,
    /// Subscribers now.
    pub subscribers: u64,
}

/// A reader of one DMA channel.
pub struct ToHost {
    port: Box<dyn Port>,
    outlet: Box<dyn Outlet>,
    settings: Settings,
    dead_after_ns: u64,
    max_subscribers: usize,
    /// What one subscriber may cost.
    subscriber_bytes: u64,
    format: Format,
    /// The card was told that this reader is ready.
    begun: bool,
    /// E-link number to place in `elinks`.
    places: Vec<u16>,
    elinks: Vec<ElinkState>,
    dests: Vec<Option<Dest>>,
    /// Lost connections, by receiver, until it comes back or the end.
    departed: BTreeMap<u64, Departed>,
    /// Accounts of subscriptions that have ended, by receiver and place of the E-link.
    ended: BTreeMap<(u64, usize), SubscriptionAccount>,
    room: Vec<Subchunk>,
    sizes: Sizes,
    /// Bytes of the ring read, and given back, since the start.
    read: u64,
    released: u64,
    serviced_ns: u64,
    events: Vec<OutletEvent>,
    /// Trouble, for people.
    notes: Vec<String>,
    stats: Stats,
}

/// What decides how many pages a block may need.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Bytes of a page of messages.
    page_bytes: usize,
    /// Bytes of payload of the longest chunk.
    longest: usize,
    /// Bytes of the messages that a block may become.
    messages_bytes: usize,
}

impl Sizes {
    fn new(format: Format, settings: &Settings, longest: usize) -> Sizes {
        Sizes {
            // The longest chunk must fit, and short ones are copied with what follows them.
            page_bytes: settings.page.0.max(longest + MAX_MESSAGE_OVERHEAD) + 64,
            longest,
            // A header and a status for each chunk, and a tag.
            messages_bytes: format.block_bytes + 5 * most_subchunks(format) + MAX_MESSAGE_OVERHEAD,
        }
    }

    /// Pages that a block may need when so many bytes of a chunk wait for their end: two pages in a row hold more than one could.
    fn pages_for(self, partial_bytes: usize) -> usize {
        2 + 2 * (partial_bytes.min(self.longest) + self.messages_bytes) / self.page_bytes
    }

    /// Pages that any block may need.
    fn max_pages(self) -> usize {
        self.pages_for(self.longest)
    }
}

/// A connection that was lost.
#[derive(Default)]
struct Departed {
    /// Pages that it had not acknowledged.
    pending: VecDeque<Pending>,
    /// What became of the others.
    accounts: Vec<SubscriptionAccount>,
}

/// Accounts of subscriptions that are kept apart: those of further receivers that have gone are added up.
const MAX_ENDED: usize = 4096;

const NOWHERE: u16 = u16::MAX;

impl ToHost {
    /// A reader for a channel with these E-links.
    pub fn new(
        port: Box<dyn Port>,
        outlet: Box<dyn Outlet>,
        settings: Settings,
        publish: &Publish,
        format: Format,
        elinks: &[ElinkSpec],
    ) -> ToHost {
        let mut places = vec![NOWHERE; usize::from(Elink::MOST) + 1];
        let mut states = Vec::new();
        let longest = elinks
            .iter()
            .map(|elink| elink.payload_bytes)
            .max()
            .unwrap_or(0);
        for (at, spec) in elinks.iter().enumerate() {
            places[usize::from(spec.elink.number())] =
                u16::try_from(at).expect("a channel has few E-links");
            states.push(ElinkState {
                spec: *spec,
                reassembler: Reassembler::new(),
                subscribers: Vec::with_capacity(8),
                partial: Vec::with_capacity(longest),
                check: settings
                    .l0id_check
                    .then(|| FragmentCheck::new(Some(spec.elink))),
                fingerprint: [0; 48],
                account: ReaderElink::default(),
            });
        }
        let spare = spare_pages(outlet.as_ref(), &settings);
        ToHost {
            port,
            outlet,
            settings,
            dead_after_ns: publish.dead_after.0,
            max_subscribers: publish.max_subscribers,
            subscriber_bytes: subscriber_bytes(
                format,
                &Settings {
                    pages: spare,
                    ..settings
                },
                elinks,
            ),
            format,
            begun: false,
            places,
            elinks: states,
            dests: Vec::new(),
            departed: BTreeMap::new(),
            ended: BTreeMap::new(),
            room: vec![Subchunk::default(); most_subchunks(format)],
            sizes: Sizes::new(format, &settings, longest),
            read: 0,
            released: 0,
            serviced_ns: 0,
            events: Vec::new(),
            notes: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Where receivers find it.
    pub fn address(&self) -> String {
        self.outlet.address()
    }

    /// What it counted.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// What the card says.
    pub fn card(&self) -> CardView {
        self.port.view()
    }

    /// What the card is doing, and the clock at its start.
    pub fn card_clock(&self) -> (State, u64) {
        (self.port.state(), self.port.start_ns())
    }

    /// Bytes in the ring now.
    pub fn filled_bytes(&self) -> usize {
        self.port.consumer().filled()
    }

    /// Bytes of the ring.
    pub fn ring_bytes(&self) -> usize {
        self.port.consumer().ring_bytes()
    }

    /// Takes the trouble that there was since the last time, for people.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// True when every E-link has a subscriber.
    pub fn is_subscribed(&self) -> bool {
        self.elinks
            .iter()
            .all(|elink| !elink.subscribers.is_empty())
    }

    /// The E-links that nobody has subscribed to.
    pub fn without_subscriber(&self) -> Vec<Elink> {
        self.elinks
            .iter()
            .filter(|elink| elink.subscribers.is_empty())
            .map(|elink| elink.spec.elink)
            .collect()
    }

    /// Whether it has said to the card that it is ready.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether the card went away before it had finished.
    pub fn card_is_lost(&self) -> bool {
        self.port.is_lost()
    }

    /// Does all there is to do; true when there was something.
    pub fn turn(&mut self) -> bool {
        let now_ns = monotonic_ns();
        self.port.refresh();
        if now_ns >= self.serviced_ns + IDLE_SERVICE_NS
            || now_ns >= self.serviced_ns + SERVICE_NS && self.is_owed()
        {
            self.serviced_ns = now_ns;
            self.serve(now_ns);
        }
        self.stats.polls += 1;
        let found = self.port.consumer().filled() as u64;
        self.stats.peak_bytes = self.stats.peak_bytes.max(found);
        let mut worked = false;
        while self.read_batch(now_ns) {
            worked = true;
            // Under full load the ring is never empty: subscribers are looked after all the same.
            if monotonic_ns() >= self.serviced_ns + SERVICE_NS {
                break;
            }
        }
        if worked {
            self.stats.busy_polls += 1;
            self.stats.found_bytes += found;
        }
        self.flush(now_ns, false);
        worked
    }

    /// Reads until the card has finished and all is delivered, or it is told to stop. `each` is called every 10 ms or so.
    ///
    /// Waits for subscribers of everything first where `wait` says so.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        wait: bool,
        mut each: impl FnMut(&mut ToHost),
    ) -> FinalAccount {
        without_timer_slack();
        let mut reported_ns = 0;
        while !stop.load(Ordering::Relaxed) {
            if !self.begun && (!wait || self.is_subscribed()) {
                self.begun = true;
                self.port.go();
            }
            let begin_ns = monotonic_ns();
            let worked = self.turn();
            if begin_ns >= reported_ns + EACH_NS {
                reported_ns = begin_ns;
                each(self);
            }
            if self.has_all() {
                break;
            }
            match self.settings.completion {
                _ if !self.begun => sleep_until(begin_ns + SERVICE_NS),
                Completion::Interrupt if !worked => self.port.wait(self.longest_wait()),
                Completion::Interrupt => {}
                // What came meanwhile waits for the next interval, unless that is over.
                Completion::Poll if self.settings.poll.0 > 0 => {
                    let until_ns = begin_ns + self.settings.poll.0;
                    let mut next_ns = begin_ns + SLICE_NS;
                    while next_ns < until_ns && !stop.load(Ordering::Relaxed) {
                        sleep_until(next_ns);
                        next_ns += SLICE_NS;
                        each(self);
                    }
                    if !stop.load(Ordering::Relaxed) {
                        sleep_until(until_ns);
                    }
                }
                Completion::Poll => {}
            }
        }
        if self.port.is_lost() {
            self.notes
                .push("the card's process ended before its triggers did: what it had not written is missing".into());
        }
        if stop.load(Ordering::Relaxed) {
            self.port.stop();
        }
        let account = self.conclude(stop);
        each(self);
        account
    }

    /// Whether the card has finished and all that it wrote was read. One that died may have left a part of a block.
    fn has_all(&self) -> bool {
        let filled = self.filled_bytes();
        let is_empty = filled == 0 || self.port.is_lost() && filled < self.format.block_bytes;
        self.port.state() == State::Finished && is_empty && self.released == self.read
    }

    /// Whether a subscriber has pages that it has not acknowledged.
    fn is_owed(&self) -> bool {
        self.dests
            .iter()
            .flatten()
            .any(|dest| !dest.pending.is_empty() || !dest.queue.is_empty())
    }

    /// How long a sleep may be: open pages must go in time.
    fn longest_wait(&self) -> Duration {
        let open = self
            .dests
            .iter()
            .flatten()
            .any(|dest| !dest.page.is_empty() || !dest.queue.is_empty());
        let timeout = Duration::from_nanos(self.settings.timeout.0.max(10_000));
        if open {
            timeout.min(INTERRUPT_SERVICE)
        } else {
            INTERRUPT_SERVICE
        }
    }

    /// Reads up to a batch of blocks; false when there is none, or a subscriber must be waited for.
    fn read_batch(&mut self, now_ns: u64) -> bool {
        self.port.take(BATCH_BYTES);
        let skip = usize::try_from(self.read - self.released).expect("within the ring");
        let ToHost {
            port,
            outlet,
            settings,
            format,
            places,
            elinks,
            dests,
            room,
            stats,
            sizes,
            ..
        } = self;
        let start_ns = port.start_ns();
        let consumer = port.consumer();
        let [first, second] = consumer.spans(skip);
        let available = if first.is_empty() { second } else { first };
        let block_bytes = format.block_bytes;
        let mut done = 0;
        let mut stalled = false;
        let mut ahead = available.chunks_exact(block_bytes).skip(PREFETCH_BLOCKS);
        for block in available
            .chunks_exact(block_bytes)
            .take((BATCH_BYTES / block_bytes).max(1))
        {
            if let Some(ahead) = ahead.next() {
                prefetch(ahead);
            }
            let head: [u8; HEADER_BYTES] = block[..HEADER_BYTES]
                .try_into()
                .expect("a block has a header");
            let header = Header::parse(head);
            let place = places[usize::from(header.elink.number())];
            let Some(elink) = elinks.get_mut(usize::from(place)) else {
                stats.unknown_blocks += 1;
                done += block_bytes;
                continue;
            };
            let wanted = sizes.pages_for(elink.partial.len());
            if settings.on_slow == OnSlow::Block && is_full(elink, dests, wanted) {
                for dest in dests.iter_mut().flatten() {
                    dest.pump(outlet.as_mut(), consumer, self.released, now_ns);
                }
                if is_full(elink, dests, wanted) {
                    stalled = true;
                    break;
                }
            }
            // Another process may say anything.
            let birth_ns = start_ns.saturating_add(consumer.birth(skip + done));
            let context = Context {
                at: usize::from(place),
                now_ns,
                birth_ns,
                wanted,
                longest: sizes.page_bytes,
            };
            match subchunks(*format, block, room) {
                Ok((header, found)) => {
                    if is_repeated(elink, header, block) {
                        stats.duplicates += 1;
                    } else {
                        let before = elink.reassembler.counts;
                        match settings.mode {
                            ReaderMode::Buffered => {
                                copy_chunks(elink, dests, header, found, block, &context)
                            }
                            ReaderMode::ZeroCopy => {
                                let position = self.read + done as u64;
                                lend_block(
                                    elink, dests, header, found, block, position, &context,
                                    settings,
                                );
                            }
                        }
                        stats.missing_blocks +=
                            elink.reassembler.counts.blocks_missing - before.blocks_missing;
                        stats.chunks += elink.offer(dests, context.at, before.ended());
                    }
                }
                Err(_) => {
                    stats.bad_blocks += 1;
                    elink.reassembler.bad_block();
                }
            }
            done += block_bytes;
            stats.blocks += 1;
        }
        stats.bytes += done as u64;
        stats.stalls += u64::from(stalled);
        self.read += done as u64;
        if done > 0 {
            let ToHost {
                port,
                outlet,
                dests,
                ..
            } = self;
            for dest in dests
                .iter_mut()
                .flatten()
                .filter(|dest| !dest.queue.is_empty())
            {
                dest.pump(outlet.as_mut(), port.consumer(), self.released, now_ns);
            }
            self.release();
        }
        done > 0
    }

    /// Gives the ring what nobody needs any more.
    fn release(&mut self) {
        let needed = self
            .dests
            .iter()
            .flatten()
            .filter_map(Dest::needs_from)
            .min()
            .unwrap_or(self.read);
        let bytes =
            usize::try_from(needed.min(self.read) - self.released).expect("within the ring");
        if bytes > 0 {
            self.port.release(bytes);
            self.released += bytes as u64;
        }
    }

    /// Sends pages that have waited long enough, or all of them.
    fn flush(&mut self, now_ns: u64, all: bool) {
        let ToHost {
            port,
            outlet,
            dests,
            settings,
            ..
        } = self;
        for dest in dests.iter_mut().flatten() {
            let due = all || now_ns.saturating_sub(dest.page.opened_ns) >= settings.timeout.0;
            if due && !dest.page.is_empty() {
                dest.roll();
            }
            if !dest.queue.is_empty() {
                dest.pump(outlet.as_mut(), port.consumer(), self.released, now_ns);
            }
        }
        self.release();
    }

    /// What subscribers did.
    fn serve(&mut self, now_ns: u64) {
        let mut events = std::mem::take(&mut self.events);
        self.outlet.poll(&mut events);
        for event in events.drain(..) {
            match event {
                OutletEvent::Subscribed { dest, subscription } => {
                    self.subscribe(dest, &subscription, now_ns)
                }
                OutletEvent::Acknowledged { dest, sequence } => {
                    self.acknowledge(dest, sequence, now_ns)
                }
                OutletEvent::Gone { dest, why } => self.depart(dest, why),
            }
        }
        self.events = events;
        let dead_after_ns = self.dead_after_ns;
        let dead = |dest: &&Dest| {
            !dest.pending.is_empty() && now_ns.saturating_sub(dest.heard_ns) > dead_after_ns
        };
        let silent: Vec<usize> = self
            .dests
            .iter()
            .flatten()
            .filter(dead)
            .map(|dest| dest.number)
            .collect();
        for number in silent {
            self.outlet.close(number);
            self.depart(
                number,
                format!(
                    "a subscriber acknowledged nothing for {} s",
                    dead_after_ns / 1_000_000_000
                ),
            );
        }
        self.stats.subscribers = self.dests.iter().flatten().count() as u64;
    }

    fn subscribe(&mut self, number: usize, subscription: &Subscription, now_ns: u64) {
        self.replace(subscription.receiver);
        if let Some(departed) = self.departed.remove(&subscription.receiver) {
            self.settle(subscription.receiver, departed, subscription.last_page);
        }
        let wanted = |tag: u64| subscription.tags.is_empty() || subscription.tags.contains(&tag);
        if let Some(why) = self.unknown(subscription).or_else(|| self.no_room()) {
            return self.refuse(number, &why);
        }
        let elinks = self.elinks.len();
        // Pages of blocks need no memory of their own.
        let bytes = if self.settings.mode == ReaderMode::Buffered {
            self.sizes.page_bytes
        } else {
            0
        };
        let spare_pages = spare_pages(self.outlet.as_ref(), &self.settings);
        let receiver = subscription.receiver;
        let account = |elink: &ElinkState| SubscriptionAccount {
            receiver,
            tag: elink.spec.tag,
            ..Default::default()
        };
        let dest = Dest {
            number,
            receiver,
            page: Page::new(bytes, elinks),
            queue: VecDeque::with_capacity(self.settings.pages + 4),
            pool: (0..spare_pages.max(self.sizes.max_pages()) + 2)
                .map(|_| Page::new(bytes, elinks))
                .collect(),
            pending: VecDeque::with_capacity(MAX_PENDING),
            spare: Vec::with_capacity(MAX_PENDING),
            sequence: subscription.last_page,
            heard_ns: now_ns,
            accounts: self.elinks.iter().map(account).collect(),
        };
        let at = self
            .dests
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.dests.len());
        if at == self.dests.len() {
            self.dests.push(None);
        }
        self.dests[at] = Some(dest);
        for elink in self
            .elinks
            .iter_mut()
            .filter(|elink| wanted(elink.spec.tag))
        {
            let missed = if elink.reassembler.is_open() {
                Missed::Before
            } else {
                Missed::Nothing
            };
            elink.subscribers.push(Subscriber::new(at, missed));
        }
    }

    /// What is wrong with the wanted tags.
    fn unknown(&self, subscription: &Subscription) -> Option<String> {
        let tags = &subscription.tags;
        if tags.len() > self.elinks.len() {
            return Some(format!(
                "{} E-links are wanted, {} are published here",
                tags.len(),
                self.elinks.len()
            ));
        }
        let is_known = |tag: &u64| self.elinks.iter().any(|elink| elink.spec.tag == *tag);
        let unknown = tags.iter().find(|tag| !is_known(tag))?;
        Some(format!("no E-link {unknown:#x} is published here"))
    }

    /// Why a further subscriber cannot be had.
    fn no_room(&self) -> Option<String> {
        let there = self.dests.iter().flatten().count();
        if !self.outlet.is_per_elink() && there >= self.max_subscribers {
            return Some(format!(
                "there are {there} subscribers already (publish.max_subscribers)"
            ));
        }
        // Pages of the others may not have been touched yet.
        let needed = self.subscriber_bytes.saturating_mul(there as u64 + 1);
        let free = daqmeter_sys::available::memory_bytes().filter(|free| *free < needed)?;
        Some(format!(
            "{} subscribers need {needed} bytes of memory, {free} are available",
            there + 1
        ))
    }

    fn refuse(&mut self, number: usize, why: &str) {
        let frame = Frame::control(FrameKind::Refused, u32::try_from(why.len()).unwrap_or(0));
        self.outlet
            .send(number, &frame, &[IoSlice::new(why.as_bytes())]);
        self.outlet.close(number);
        self.notes.push(format!("refused a subscriber: {why}"));
    }

    fn place(&self, number: usize) -> Option<usize> {
        self.dests
            .iter()
            .position(|dest| dest.as_ref().is_some_and(|dest| dest.number == number))
    }

    fn acknowledge(&mut self, number: usize, sequence: u64, now_ns: u64) {
        let Some(at) = self.place(number) else { return };
        let Some(dest) = &mut self.dests[at] else {
            return;
        };
        while let Some(mut page) = dest.pending.pop_front_if(|page| page.sequence <= sequence) {
            // One that repeats itself has said nothing.
            dest.heard_ns = now_ns;
            deliver(&mut self.elinks, &mut dest.accounts, &page.booked);
            page.booked.clear();
            dest.spare.push(page.booked);
        }
    }

    /// A connection is lost. What it had not acknowledged is kept apart: the receiver may come back and say.
    fn depart(&mut self, number: usize, why: String) {
        let Some(at) = self.place(number) else { return };
        let Some(mut dest) = self.dests[at].take() else {
            return;
        };
        self.notes.push(format!("subscriber lost: {why}"));
        for elink in &mut self.elinks {
            elink
                .subscribers
                .retain(|subscriber| subscriber.place != at);
        }
        if !dest.page.is_empty() {
            dest.queue.push_back(dest.page);
        }
        // The first of them may have gone in part; none has arrived whole.
        for page in dest.queue {
            lose(&mut self.elinks, &mut dest.accounts, &page.booked);
        }
        let departed = Departed {
            pending: dest.pending,
            accounts: dest.accounts,
        };
        if let Some(before) = self.departed.insert(dest.receiver, departed) {
            self.settle(dest.receiver, before, 0);
        }
        if self.departed.len() > MAX_DEPARTED
            && let Some((receiver, first)) = self.departed.pop_first()
        {
            self.settle(receiver, first, 0);
        }
    }

    /// A receiver that comes back before its lost connection was seen to be lost.
    fn replace(&mut self, receiver: u64) {
        let same = |dest: &&Dest| dest.receiver == receiver;
        let old: Vec<usize> = self
            .dests
            .iter()
            .flatten()
            .filter(same)
            .map(|dest| dest.number)
            .collect();
        for number in old {
            self.outlet.close(number);
            self.depart(
                number,
                "its receiver came back by another connection".to_owned(),
            );
        }
    }

    /// Pages of a lost connection, of which the receiver had those up to a number.
    fn settle(&mut self, receiver: u64, departed: Departed, last_page: u64) {
        let Departed {
            pending,
            mut accounts,
        } = departed;
        for page in pending {
            if page.sequence <= last_page {
                deliver(&mut self.elinks, &mut accounts, &page.booked);
            } else {
                lose(&mut self.elinks, &mut accounts, &page.booked);
            }
        }
        self.end(receiver, &accounts);
    }

    /// Keeps the accounts of subscriptions that have ended.
    fn end(&mut self, receiver: u64, accounts: &[SubscriptionAccount]) {
        for (at, account) in accounts
            .iter()
            .enumerate()
            .filter(|(_, account)| account.offered > 0)
        {
            let is_kept = self.ended.len() < MAX_ENDED || self.ended.contains_key(&(receiver, at));
            let receiver = if is_kept { receiver } else { 0 };
            let empty = SubscriptionAccount {
                receiver,
                tag: account.tag,
                ..Default::default()
            };
            self.ended
                .entry((receiver, at))
                .or_insert(empty)
                .add(account);
        }
    }

    /// All pages out, all acknowledgements in. Subscribers that are slow are waited for as long as they take something, unless the
    /// reader was asked to stop.
    fn drain(&mut self, stop: &AtomicBool) {
        let mut patience = Patience::new(self.dead_after_ns, stop);
        let mut before = (0, 0);
        loop {
            let now_ns = monotonic_ns();
            self.port.refresh();
            // A card that goes on without us is not read to its end: there is none.
            let ends = self.port.ends();
            while ends && self.read_batch(now_ns) && !patience.is_over(monotonic_ns()) {}
            self.flush(now_ns, true);
            self.serve(now_ns);
            let comes = ends
                && (self.port.state() == State::Running
                    || self.filled_bytes() >= self.format.block_bytes);
            if !comes && !self.dests.iter().flatten().any(Dest::owes) {
                break;
            }
            let progress = (
                self.read,
                self.dests
                    .iter()
                    .flatten()
                    .map(|dest| dest.heard_ns)
                    .max()
                    .unwrap_or(0),
            );
            if progress != before {
                before = progress;
                patience.renew(now_ns + self.dead_after_ns);
            }
            if patience.is_over(now_ns) {
                if !self.give_up() {
                    break;
                }
                // Without those who take nothing, what is left in the ring can be read.
                patience = Patience::new(self.dead_after_ns, stop);
            }
            sleep_until(now_ns + 100_000);
        }
    }

    /// Parts from subscribers that still owe acknowledgements. False when there is none.
    fn give_up(&mut self) -> bool {
        let left: Vec<usize> = self
            .dests
            .iter()
            .flatten()
            .filter(|dest| dest.owes())
            .map(|dest| dest.number)
            .collect();
        for number in &left {
            self.depart(*number, "took no more at the end".to_owned());
        }
        !left.is_empty()
    }

    /// Ends the accounts of all subscriptions.
    fn close_subscriptions(&mut self) -> Vec<SubscriptionAccount> {
        for (receiver, departed) in std::mem::take(&mut self.departed) {
            self.settle(receiver, departed, 0);
        }
        let dests = std::mem::take(&mut self.dests);
        dests
            .iter()
            .flatten()
            .for_each(|dest| self.end(dest.receiver, &dest.accounts));
        self.dests = dests;
        std::mem::take(&mut self.ended).into_values().collect()
    }

    /// All pages out, all acknowledgements in, accounts to the subscribers.
    fn conclude(&mut self, stop: &AtomicBool) -> FinalAccount {
        self.drain(stop);
        let subscriptions = self.close_subscriptions();
        let view = self.port.view();
        let readers: Vec<ReaderElink> = view
            .account
            .elinks
            .iter()
            .map(|card| {
                let same = self.elinks.iter().find(|elink| elink.spec.tag == card.tag);
                same.map_or(ReaderElink::default(), |elink| elink.account)
            })
            .collect();
        let account = FinalAccount {
            card: view.account,
            readers,
            subscriptions,
        };
        let body = serde_json::to_vec(&account).expect("plain data");
        let frame = Frame::control(
            FrameKind::Account,
            u32::try_from(body.len()).unwrap_or(u32::MAX),
        );
        let mut patience = Patience::new(FAREWELL_NS, stop);
        let mut waiting: Vec<usize> = self
            .dests
            .iter()
            .flatten()
            .map(|dest| dest.number)
            .collect();
        loop {
            waiting.retain(|number| {
                self.outlet.send(*number, &frame, &[IoSlice::new(&body)]) == Sent::Blocked
            });
            if waiting.is_empty() || patience.is_over(monotonic_ns()) {
                break;
            }
            sleep_until(monotonic_ns() + 100_000);
        }
        // Receivers close when they have the account; a connection closed by us with their acknowledgements unread would cut it off.
        let mut patience = Patience::new(FAREWELL_NS, stop);
        while self.dests.iter().flatten().next().is_some() && !patience.is_over(monotonic_ns()) {
            sleep_until(monotonic_ns() + 200_000);
            self.serve(monotonic_ns());
        }
        let closed = |note: &String| {
            note.starts_with("subscriber lost") && note.contains("closed by the receiver")
        };
        self.notes.retain(|note| !closed(note));
        for elink in &self.elinks {
            self.stats.jumps += elink.check.as_ref().map_or(0, |check| check.faults.jumps);
        }
        account
    }
}

/// A wait that has an end, which comes nearer when the reader is asked to stop.
struct Patience<'a> {
    end_ns: u64,
    stop: &'a AtomicBool,
    is_hurried: bool,
}

impl Patience<'_> {
    fn new(ns: u64, stop: &AtomicBool) -> Patience<'_> {
        Patience {
            end_ns: monotonic_ns().saturating_add(ns),
            stop,
            is_hurried: false,
        }
    }

    /// Lasts longer, unless it was asked to stop.
    fn renew(&mut self, end_ns: u64) {
        if !self.is_hurried {
            self.end_ns = end_ns;
        }
    }

    fn is_over(&mut self, now_ns: u64) -> bool {
        if !self.is_hurried && self.stop.load(Ordering::Relaxed) {
            self.is_hurried = true;
            self.end_ns = self.end_ns.min(now_ns + STOP_WITHIN_NS);
        }
        now_ns > self.end_ns
    }
}

/// Pages that may wait for a destination; one of a single E-link needs few.
fn spare_pages(outlet: &dyn Outlet, settings: &Settings) -> usize {
    if outlet.is_per_elink() {
        settings.pages.min(4)
    } else {
        settings.pages
    }
}

/// Bytes that a subscriber of all these E-links costs at the most: pages, and what is remembered of those on their way.
pub(crate) fn subscriber_bytes(format: Format, settings: &Settings, elinks: &[ElinkSpec]) -> u64 {
    let longest = elinks
        .iter()
        .map(|elink| elink.payload_bytes)
        .max()
        .unwrap_or(0);
    let sizes = Sizes::new(format, settings, longest);
    let booked = size_of::<Booked>() + elinks.len() * size_of::<Fates>();
    // Pages of blocks need no memory of their own.
    let body = if settings.mode == ReaderMode::Buffered {
        sizes.page_bytes
    } else {
        0
    };
    let pages = settings.pages.max(sizes.max_pages()) + 3;
    let pending = MAX_PENDING * (size_of::<Pending>() + booked);
    (pages * (body + SPANS_BYTES + booked) + pending) as u64
}

/// Whether a subscriber of the E-link has no room for what a block may need.
fn is_full(elink: &ElinkState, dests: &[Option<Dest>], wanted: usize) -> bool {
    elink.subscribers.iter().any(|one| {
        dests[one.place]
            .as_ref()
            .is_some_and(|dest| dest.pool.len() < wanted)
    })
}

impl ElinkState {
    /// Books the chunks that the decoder found since then as offered to every subscriber: not what was done with them, which is counted
    /// where it is done.
    fn offer(&mut self, dests: &mut [Option<Dest>], at: usize, ended_before: u64) -> u64 {
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

/// Chunks of a page that was acknowledged, into the accounts of its subscriber and of the E-links.
fn deliver(elinks: &mut [ElinkState], accounts: &mut [SubscriptionAccount], booked: &Booked) {
    for ((elink, account), (all, own)) in elinks.iter_mut().zip(accounts).zip(booked.fates()) {
        let ReaderElink {
            delivered,
            delivered_truncated,
            delivered_flagged,
            ..
        } = &mut elink.account;
        for (count, fate) in [delivered, delivered_truncated, delivered_flagged]
            .into_iter()
            .zip(own)
        {
            *count += u64::from(fate);
        }
        let SubscriptionAccount {
            delivered,
            delivered_truncated,
            delivered_flagged,
            ..
        } = account;
        for (count, fate) in [delivered, delivered_truncated, delivered_flagged]
            .into_iter()
            .zip(all)
        {
            *count += u64::from(fate);
        }
    }
}

/// Chunks of a page that was not.
fn lose(elinks: &mut [ElinkState], accounts: &mut [SubscriptionAccount], booked: &Booked) {
    let count = |fates: dest::Fates| fates.iter().copied().map(u64::from).sum::<u64>();
    for ((elink, account), (all, own)) in elinks.iter_mut().zip(accounts).zip(booked.fates()) {
        elink.account.network_lost += count(own);
        account.network_lost += count(all);
    }
}
