//! Pages of a subscriber: the one being filled, the waiting ones, those not acknowledged.

use std::collections::VecDeque;

use daqmeter_wire::felix::BlockFormat;
use daqmeter_wire::felix::decoder::most_subchunks;
use daqmeter_wire::felix::page::{FelixFrame, FrameKind, MAX_MESSAGE_OVERHEAD, PageWriter, Status};

use crate::accounts::{Outcomes, SubscriptionAccount};
use crate::port::Port;
use crate::scenario::{ElinkSpec, ReaderSettings as Settings};
use crate::transport::{PageOutlet, Sent, Subscription};

/// Pages on their way to a subscriber who has not acknowledged them: sockets hold far fewer.
const MAX_PENDING: usize = 4096;

/// Chunks: clean, truncated, flagged.
pub(super) type ByStatus = [u32; 3];

/// Chunks in a page by the place of their E-link.
type Booked = Vec<ByStatus>;

pub(super) fn status_index(status: Status) -> usize {
    match status {
        status if status.is_clean() => 0,
        Status(bits) if bits & Status::CARD_TRUNCATED != 0 => 1,
        Status(_) => 2,
    }
}

/// Sizes that decide the memory of a subscriber.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) page_bytes: usize,
    /// Pages that a block may need. Two pages in a row hold more than one could.
    pub(super) block_pages: usize,
    /// Pages that may wait to be sent.
    pool_pages: usize,
}

impl Sizes {
    pub(super) fn new(format: BlockFormat, settings: &Settings, elinks: &[ElinkSpec]) -> Sizes {
        let longest = elinks.iter().map(|elink| elink.payload_bytes).max().unwrap_or(0);
        // The longest chunk must fit, and short ones are copied with what follows them.
        let page_bytes = settings.page.0.max(longest + MAX_MESSAGE_OVERHEAD) + 64;
        // A header and a status for each chunk, and a tag.
        let messages = format.block_bytes + 5 * most_subchunks(format) + MAX_MESSAGE_OVERHEAD;
        let block_pages = 2 + 2 * (longest + messages) / page_bytes;
        Sizes { page_bytes, block_pages, pool_pages: settings.pages.max(block_pages) + 2 }
    }
}

/// The block in work: its reader, times and place.
pub(super) struct Context {
    pub(super) at: usize,
    pub(super) now_ns: u64,
    pub(super) birth_ns: u64,
    pub(super) position: u64,
    pub(super) sizes: Sizes,
}

/// Most bytes of a subscriber of all these E-links: pages, and records of pages on their way.
pub(crate) fn subscriber_bytes(
    format: BlockFormat,
    settings: &Settings,
    elinks: &[ElinkSpec],
) -> u64 {
    let sizes = Sizes::new(format, settings, elinks);
    let booked = size_of::<Booked>() + elinks.len() * size_of::<ByStatus>();
    let pages = (sizes.pool_pages + 1) * (sizes.page_bytes + booked);
    (pages + MAX_PENDING * (size_of::<Pending>() + booked)) as u64
}

#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) bytes: Vec<u8>,
    pub(super) writer: PageWriter,
    birth_ns: u64,
    pub(super) opened_ns: u64,
    /// Bytes of the ring before the page's first block.
    position: u64,
    sequence: u64,
    pub(super) booked: Booked,
}

impl Page {
    fn new(bytes: usize, elinks: usize) -> Page {
        let booked = vec![ByStatus::default(); elinks];
        Page { bytes: vec![0; bytes], booked, ..Page::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writer.count() == 0
    }

    fn send(&self, number: usize, outlet: &mut dyn PageOutlet, port: &Port) -> Sent {
        let used = self.writer.used();
        let body_bytes = u32::try_from(used).expect("a page is at most 2 MiB and one chunk");
        let (count, sequence, birth_ns) = (self.writer.count(), self.sequence, self.birth_ns);
        let control = FelixFrame::control(FrameKind::Messages, body_bytes);
        let frame = FelixFrame { count, sequence, birth_ns, ..control };
        let mut send = || outlet.send(number, &frame, &self.bytes[..used]);
        match &port.slowed {
            None => send(),
            Some(slowed) => slowed.send(frame.body_bytes, send),
        }
    }
}

#[derive(Debug)]
struct Pending {
    sequence: u64,
    position: u64,
    booked: Booked,
}

/// Subscriber, whose number is that of the transport.
#[derive(Debug)]
pub(super) struct Dest {
    number: usize,
    pub(super) page: Page,
    queue: VecDeque<Page>,
    pub(super) pool: Vec<Page>,
    pending: VecDeque<Pending>,
    spare: Vec<Booked>,
    sequence: u64,
    pub(super) heard_ns: u64,
    pub(super) accounts: Vec<SubscriptionAccount>,
    /// True if it gets the chunks of the block at hand: it has room for all of them.
    pub(super) takes: bool,
}

impl Dest {
    pub(super) fn new(
        number: usize,
        subscription: &Subscription,
        sizes: Sizes,
        tags: impl Iterator<Item = u64>,
        now_ns: u64,
    ) -> Dest {
        let receiver = subscription.receiver;
        let account = |tag| SubscriptionAccount { receiver, tag, ..Default::default() };
        let accounts: Vec<_> = tags.map(account).collect();
        let page = || Page::new(sizes.page_bytes, accounts.len());
        Dest {
            number,
            page: page(),
            queue: VecDeque::with_capacity(sizes.pool_pages + 1),
            pool: (0..sizes.pool_pages).map(|_| page()).collect(),
            pending: VecDeque::with_capacity(MAX_PENDING),
            spare: Vec::with_capacity(MAX_PENDING),
            sequence: 0,
            heard_ns: now_ns,
            accounts,
            takes: false,
        }
    }

    pub(super) fn owes(&self) -> bool {
        !self.page.is_empty() || self.is_owed()
    }

    /// True if pages wait for their transport or for their acknowledgement.
    pub(super) fn is_owed(&self) -> bool {
        self.has_queue() || !self.pending.is_empty()
    }

    pub(super) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn is_silent(&self, now_ns: u64, dead_after_ns: u64) -> bool {
        !self.pending.is_empty() && now_ns.saturating_sub(self.heard_ns) > dead_after_ns
    }

    /// Moves the current page to the queue. False if there is no other.
    pub(super) fn roll(&mut self) -> bool {
        if self.page.is_empty() {
            return true;
        }
        let Some(next) = self.pool.pop() else {
            return false;
        };
        let mut full = std::mem::replace(&mut self.page, next);
        self.sequence += 1;
        full.sequence = self.sequence;
        self.queue.push_back(full);
        true
    }

    pub(super) fn open(&mut self, context: &Context) {
        if self.page.is_empty() {
            self.page.opened_ns = context.now_ns;
            self.page.birth_ns = context.birth_ns;
            self.page.position = context.position;
        }
        self.page.birth_ns = self.page.birth_ns.min(context.birth_ns);
    }

    /// Sends the pages that the destination takes.
    pub(super) fn pump(&mut self, outlet: &mut dyn PageOutlet, port: &Port, now_ns: u64) {
        while let Some(page) = self.queue.front()
            && self.pending.len() < MAX_PENDING
            && page.send(self.number, outlet, port) == Sent::Done
        {
            let mut page = self.queue.pop_front().expect("the front was there");
            if self.pending.is_empty() {
                self.heard_ns = now_ns;
            }
            let spare = self.spare.pop();
            let spare = spare.unwrap_or_else(|| vec![ByStatus::default(); self.accounts.len()]);
            let booked = std::mem::replace(&mut page.booked, spare);
            let (sequence, position) = (page.sequence, page.position);
            self.pending.push_back(Pending { sequence, position, booked });
            page.writer = PageWriter::default();
            self.pool.push(page);
        }
    }

    /// Books pages up to this number as delivered.
    pub(super) fn acknowledge(&mut self, sequence: u64, now_ns: u64) {
        while let Some(mut page) = self.pending.pop_front_if(|page| page.sequence <= sequence) {
            // A repeated acknowledgement does not count as a sign of life.
            self.heard_ns = now_ns;
            book(&mut self.accounts, &page.booked, Outcomes::deliver);
            page.booked.fill(ByStatus::default());
            self.spare.push(page.booked);
        }
    }

    /// Books all that was not acknowledged as lost. The first of the queue may have gone in part;
    /// no page of it has arrived whole.
    pub(super) fn lose(&mut self) {
        let pages = self.queue.iter().chain([&self.page]).map(|page| &page.booked);
        for booked in self.pending.iter().map(|page| &page.booked).chain(pages) {
            book(&mut self.accounts, booked, |outcomes, chunks| {
                outcomes.network_lost += chunks.iter().copied().map(u64::from).sum::<u64>();
            });
        }
    }

    /// Position in the ring of the first block that is not acknowledged.
    pub(super) fn acknowledged(&self) -> Option<u64> {
        let open = (!self.page.is_empty()).then_some(self.page.position);
        let queued = || self.queue.front().map(|page| page.position).or(open);
        self.pending.front().map(|page| page.position).or_else(queued)
    }
}

fn book(
    accounts: &mut [SubscriptionAccount],
    booked: &Booked,
    outcome: fn(&mut Outcomes, ByStatus),
) {
    for (account, chunks) in accounts.iter_mut().zip(booked) {
        outcome(&mut account.outcomes, *chunks);
    }
}
