//! Pages of a subscriber: the one being filled, the waiting ones, those not acknowledged.

use std::collections::VecDeque;
use std::io::IoSlice;

use daqmeter_wire::felix::page::{FelixFrame, FrameKind, PageWriter, Status};

use super::blocks::Context;
use crate::accounts::SubscriptionAccount;
use crate::port::Port;
use crate::transport::{PageOutlet, Sent};

/// Pages on their way to a subscriber who has not acknowledged them: sockets hold far fewer.
pub(super) const MAX_PENDING: usize = 4096;
/// Places in the ring for which a page of blocks has room at first.
const SPANS: usize = 256;
pub(super) const SPANS_BYTES: usize = SPANS * size_of::<(u64, usize)>();

/// Chunks in a page: clean, truncated, flagged.
pub(super) type ByStatus = [u32; 3];

#[derive(Debug)]
pub(super) struct Booked {
    pub(super) all: Vec<ByStatus>,
    /// Those of them that the account of the E-link counts with another subscriber. Usually empty.
    copies: Vec<ByStatus>,
}

impl Booked {
    fn new(elinks: usize) -> Booked {
        Booked { all: vec![ByStatus::default(); elinks], copies: Vec::new() }
    }

    pub(super) fn add(&mut self, at: usize, chunks: ByStatus, is_copy: bool) {
        add(&mut self.all[at], chunks);
        if is_copy {
            self.copies.resize(self.all.len(), ByStatus::default());
            add(&mut self.copies[at], chunks);
        }
    }

    pub(super) fn clear(&mut self) {
        self.all.fill(ByStatus::default());
        self.copies.clear();
    }

    /// For each E-link: all chunks, and those that its own account counts here.
    pub(super) fn counts(&self) -> impl Iterator<Item = (ByStatus, ByStatus)> {
        let copies = self.copies.iter().copied().chain(std::iter::repeat(ByStatus::default()));
        self.all
            .iter()
            .zip(copies)
            .map(|(all, copies)| (*all, [0, 1, 2].map(|at| all[at] - copies[at])))
    }
}

fn add(sum: &mut ByStatus, chunks: ByStatus) {
    for (sum, count) in sum.iter_mut().zip(chunks) {
        *sum += count;
    }
}

pub(super) fn status_index(status: Status) -> usize {
    match status {
        status if status.is_clean() => 0,
        Status(bits) if bits & Status::CARD_TRUNCATED != 0 => 1,
        Status(_) => 2,
    }
}

fn send(
    outlet: &mut dyn PageOutlet,
    port: &Port,
    dest: usize,
    frame: &FelixFrame,
    body: &[IoSlice<'_>],
) -> Sent {
    match &port.watch {
        None => outlet.send(dest, frame, body),
        Some(watch) => watch.send(frame.body_bytes, || outlet.send(dest, frame, body)),
    }
}

#[derive(Debug)]
pub(super) struct Page {
    pub(super) bytes: Vec<u8>,
    pub(super) writer: PageWriter,
    /// Zero-copy mode: positions in the stream of ring bytes, and lengths.
    pub(super) spans: Vec<(u64, usize)>,
    pub(super) span_bytes: usize,
    pub(super) blocks: u32,
    pub(super) birth_ns: u64,
    pub(super) opened_ns: u64,
    /// Bytes of the ring before the page's first block.
    pub(super) position: u64,
    pub(super) sequence: u64,
    pub(super) booked: Booked,
}

impl Page {
    pub(super) fn new(bytes: usize, elinks: usize) -> Page {
        Page {
            bytes: vec![0; bytes],
            writer: PageWriter::default(),
            spans: Vec::with_capacity(SPANS),
            span_bytes: 0,
            blocks: 0,
            birth_ns: 0,
            opened_ns: 0,
            position: 0,
            sequence: 0,
            booked: Booked::new(elinks),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writer.count() == 0 && self.blocks == 0
    }

    pub(super) fn clear(&mut self) {
        self.writer = PageWriter::default();
        self.spans.clear();
        (self.span_bytes, self.blocks) = (0, 0);
        self.booked.clear();
    }

    pub(super) fn frame(&self) -> FelixFrame {
        let (kind, bytes, count) = if self.blocks > 0 {
            (FrameKind::Blocks, self.span_bytes, self.blocks)
        } else {
            (FrameKind::Messages, self.writer.used(), self.writer.count())
        };
        let body_bytes = u32::try_from(bytes).expect("a page is at most 2 MiB and one block");
        FelixFrame { kind, body_bytes, count, sequence: self.sequence, birth_ns: self.birth_ns }
    }
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) sequence: u64,
    pub(super) position: u64,
    pub(super) booked: Booked,
}

#[derive(Debug)]
pub(super) struct Dest {
    pub(super) number: usize,
    pub(super) receiver: u64,
    pub(super) page: Page,
    pub(super) queue: VecDeque<Page>,
    pub(super) pool: Vec<Page>,
    pub(super) pending: VecDeque<Pending>,
    pub(super) spare: Vec<Booked>,
    pub(super) sequence: u64,
    pub(super) heard_ns: u64,
    pub(super) accounts: Vec<SubscriptionAccount>,
}

impl Dest {
    pub(super) fn owes(&self) -> bool {
        !self.page.is_empty() || !self.queue.is_empty() || !self.pending.is_empty()
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
    }

    /// Sends the pages that the destination takes. True if it took any bytes.
    pub(super) fn pump(
        &mut self,
        outlet: &mut dyn PageOutlet,
        port: &Port,
        released: u64,
        now_ns: u64,
    ) -> bool {
        let mut went = false;
        while let Some(page) = self.queue.front().filter(|_| self.pending.len() < MAX_PENDING) {
            let frame = page.frame();
            let sent = if page.blocks > 0 {
                let mut parts = Vec::with_capacity(2 * page.spans.len());
                for &(position, length) in &page.spans {
                    let skip = usize::try_from(position - released).expect("within the ring");
                    let [first, second] = port.consumer().spans(skip);
                    let in_first = length.min(first.len());
                    parts.push(IoSlice::new(&first[..in_first]));
                    if in_first < length {
                        parts.push(IoSlice::new(&second[..length - in_first]));
                    }
                }
                send(outlet, port, self.number, &frame, &parts)
            } else {
                let body = [IoSlice::new(&page.bytes[..page.writer.used()])];
                send(outlet, port, self.number, &frame, &body)
            };
            if sent != Sent::Done {
                break;
            }
            went = true;
            let mut page = self.queue.pop_front().expect("the front was there");
            if self.pending.is_empty() {
                self.heard_ns = now_ns;
            }
            let spare = self.spare.pop().unwrap_or_else(|| Booked::new(page.booked.all.len()));
            let booked = std::mem::replace(&mut page.booked, spare);
            self.pending.push_back(Pending {
                sequence: page.sequence,
                position: page.position,
                booked,
            });
            page.clear();
            self.pool.push(page);
        }
        went
    }

    pub(super) fn acknowledged(&self) -> Option<u64> {
        let open = (!self.page.is_empty()).then_some(self.page.position);
        let queued = || self.queue.front().map(|page| page.position).or(open);
        self.pending.front().map(|page| page.position).or_else(queued)
    }

    pub(super) fn needs_from(&self) -> Option<u64> {
        let pages = self.queue.iter().chain([&self.page]);
        pages.filter_map(|page| page.spans.first()).map(|span| span.0).min()
    }
}
