//! Blocks into pages: chunks copied, or blocks lent from the ring.

use daqmeter_wire::felix::Subchunk;
use daqmeter_wire::felix::block::FelixHeader;
use daqmeter_wire::felix::decoder::{BlockParts, ChunkPart, ChunkRun};
use daqmeter_wire::felix::page::Status;

use super::dest::{ByStatus, Dest, status_index};
use super::elink::{ElinkState, Missed, Subscriber};
use crate::scenario::ReaderSettings as Settings;

pub(super) struct Context {
    pub(super) at: usize,
    pub(super) now_ns: u64,
    pub(super) birth_ns: u64,
    pub(super) position: u64,
    pub(super) wanted: usize,
    /// Longest chunk that any page takes: no more of a longer one is kept.
    pub(super) longest: usize,
}

/// The only subscriber of an E-link, if it has room for all of a block: the usual case.
#[inline]
pub(super) fn only_one<'a>(
    elink: &ElinkState,
    dests: &'a mut [Option<Dest>],
    wanted: usize,
) -> Option<&'a mut Dest> {
    let [only] = elink.subscribers.as_slice() else {
        return None;
    };
    let dest = dests[only.place].as_mut();
    dest.filter(|dest| dest.pool.len() >= wanted)
}

pub(super) fn copy_chunks(
    elink: &mut ElinkState,
    dests: &mut [Option<Dest>],
    header: FelixHeader,
    found: &[Subchunk],
    block: &[u8],
    context: &Context,
) {
    let ElinkState { spec, reassembler, subscribers, partial, account, .. } = elink;
    for subscriber in subscribers.iter_mut() {
        subscriber.takes =
            dests[subscriber.place].as_ref().is_some_and(|dest| dest.pool.len() >= context.wanted);
    }
    reassembler.block(header, found, |part| {
        let Some(chunk) = whole(partial, part, block, context.longest) else {
            return;
        };
        if subscribers.is_empty() {
            account.outcomes.unsubscribed += 1;
        }
        for (order, subscriber) in subscribers.iter().enumerate() {
            let Some(dest) = &mut dests[subscriber.place] else {
                continue;
            };
            // The account of the E-link follows the first subscriber; each has an account of its
            // own besides.
            let is_copy = order > 0;
            if subscriber.takes && push(dest, spec.tag, &chunk, context) {
                dest.page.booked.add(context.at, one(chunk.status), is_copy);
            } else {
                dest.accounts[context.at].outcomes.dropped += 1;
                account.outcomes.dropped += u64::from(!is_copy);
            }
        }
    });
}

fn one(status: Status) -> ByStatus {
    let mut chunks = ByStatus::default();
    chunks[status_index(status)] = 1;
    chunks
}

/// The hot path: chunks of a run are copied as one, and common values are counted once per block.
pub(super) fn copy_to_one(
    elink: &mut ElinkState,
    dest: &mut Dest,
    header: FelixHeader,
    found: &BlockParts<'_>,
    block: &[u8],
    context: &Context,
) {
    dest.open(context);
    elink.reassembler.begin(header);
    let mut copying = Copying { elink, dest, block, context, clean: 0 };
    for (index, subchunk) in found.before.iter().enumerate() {
        copying.subchunk(subchunk, index == 0);
    }
    if let Some(run) = found.run {
        copying.run(run, found.before.is_empty());
    }
    for subchunk in found.behind {
        copying.subchunk(subchunk, false);
    }
    copying.book();
}

struct Copying<'a> {
    elink: &'a mut ElinkState,
    dest: &'a mut Dest,
    block: &'a [u8],
    context: &'a Context,
    /// Chunks with nothing wrong that are in the page at hand and not booked.
    clean: u32,
}

impl Copying<'_> {
    #[inline]
    fn subchunk(&mut self, subchunk: &Subchunk, begins_block: bool) {
        let Some(part) = self.elink.reassembler.part(subchunk, begins_block) else {
            return;
        };
        let longest = self.context.longest;
        // The partial chunk is taken out, because completed chunks are lent from it.
        let mut partial = std::mem::take(&mut self.elink.partial);
        if let Some(chunk) = whole(&mut partial, part, self.block, longest) {
            self.chunk(&chunk);
        }
        self.elink.partial = partial;
    }

    #[inline]
    fn run(&mut self, mut run: ChunkRun, begins_block: bool) {
        if !self.elink.reassembler.take_run(&run) {
            // It breaks the chunk that is open.
            self.subchunk(&run.first(), begins_block);
            run = run.skip(1);
            self.elink.reassembler.take_run(&run);
        }
        while run.count > 0 {
            let (page, tag) = (&mut self.dest.page, self.elink.spec.tag);
            let mut pushed = page.writer.push_run(&mut page.bytes, tag, self.block, &run);
            self.clean += u32::try_from(pushed).expect("a block has fewer chunks");
            if pushed == 0 {
                // The first of its tag or of a page, or one that is not laid out as in a page.
                self.chunk(&Chunk {
                    source: self.block,
                    begin: run.begin(),
                    length: run.length(),
                    status: Status::default(),
                });
                pushed = 1;
            }
            run = run.skip(pushed);
        }
    }

    #[inline]
    fn chunk(&mut self, chunk: &Chunk<'_>) {
        let Chunk { source, begin, length, status } = *chunk;
        let (page, tag) = (&mut self.dest.page, self.elink.spec.tag);
        if status.is_clean()
            && page.writer.push(&mut page.bytes, tag, status, source, begin, length)
        {
            self.clean += 1;
            return;
        }
        self.book();
        let at = self.context.at;
        if push(self.dest, tag, chunk, self.context) {
            self.dest.page.booked.add(at, one(status), false);
        } else {
            self.dest.accounts[at].outcomes.dropped += 1;
            self.elink.account.outcomes.dropped += 1;
        }
    }

    fn book(&mut self) {
        let clean = std::mem::take(&mut self.clean);
        self.dest.page.booked.all[self.context.at][0] += clean;
    }
}

/// Chunk at the beginning of bytes that go on behind it.
struct Chunk<'a> {
    source: &'a [u8],
    begin: usize,
    length: usize,
    status: Status,
}

#[inline]
fn whole<'a>(
    partial: &'a mut Vec<u8>,
    part: ChunkPart,
    block: &'a [u8],
    longest: usize,
) -> Option<Chunk<'a>> {
    if part.begins && part.ends {
        let status = Status::of_flags(part.flags);
        return Some(Chunk { source: block, begin: part.begin, length: part.length, status });
    }
    pieced(partial, part, block, longest)
}

fn pieced<'a>(
    partial: &'a mut Vec<u8>,
    part: ChunkPart,
    block: &'a [u8],
    longest: usize,
) -> Option<Chunk<'a>> {
    if part.begins {
        partial.clear();
    }
    // An endless chunk must not take endless memory. One that is too long already fits no page, and
    // is dropped when it ends.
    if partial.len() <= longest {
        partial.extend_from_slice(&block[part.begin..part.begin + part.length]);
    }
    let (source, status) = (&partial[..], Status::of_flags(part.flags));
    part.ends.then_some(Chunk { source, begin: 0, length: source.len(), status })
}

/// Copies a chunk into a destination's page, or the next. False without a next one, or for a chunk
/// longer than any page.
fn push(dest: &mut Dest, tag: u64, chunk: &Chunk<'_>, context: &Context) -> bool {
    let Chunk { source, begin, length, status } = *chunk;
    dest.open(context);
    if dest.page.writer.push(&mut dest.page.bytes, tag, status, source, begin, length) {
        return true;
    }
    if !dest.roll() {
        return false;
    }
    dest.open(context);
    dest.page.writer.push(&mut dest.page.bytes, tag, status, source, begin, length)
}

#[derive(Default)]
struct Held {
    whole: ByStatus,
    tail: Option<ByStatus>,
    opens: bool,
}

fn held(elink: &mut ElinkState, header: FelixHeader, found: &[Subchunk]) -> Held {
    let mut held = Held::default();
    elink.reassembler.block(header, found, |part| {
        let status = Status::of_flags(part.flags);
        held.opens |= part.begins;
        match (part.ends, held.opens) {
            (true, true) => held.whole[status_index(status)] += 1,
            (true, false) => held.tail = Some(one(status)),
            (false, _) => {}
        }
        held.opens &= !part.ends;
    });
    held
}

pub(super) fn lend_block(
    elink: &mut ElinkState,
    dests: &mut [Option<Dest>],
    header: FelixHeader,
    found: &[Subchunk],
    block: &[u8],
    context: &Context,
    settings: &Settings,
) {
    let held = held(elink, header, found);
    let is_open = elink.reassembler.is_open();
    let ElinkState { subscribers, account, .. } = elink;
    let count = |chunks: ByStatus| chunks.iter().copied().map(u64::from).sum::<u64>();
    if subscribers.is_empty() {
        account.outcomes.unsubscribed += count(held.whole) + held.tail.map_or(0, count);
    }
    for (order, subscriber) in subscribers.iter_mut().enumerate() {
        let Some(dest) = &mut dests[subscriber.place] else {
            continue;
        };
        let is_copy = order > 0;
        let takes = subscriber.takes_block(dest);
        let at = context.at;
        let mut dropped = 0;
        if takes {
            lend(dest, block.len(), context, settings.page.0);
            dest.page.booked.add(at, held.whole, is_copy);
        } else {
            dropped += count(held.whole);
        }
        match (held.tail, subscriber.missed) {
            (Some(chunks), Missed::Nothing) if takes => dest.page.booked.add(at, chunks, is_copy),
            (Some(_), Missed::Before) => {
                dest.accounts[at].outcomes.unsubscribed += 1;
                account.outcomes.unsubscribed += u64::from(!is_copy);
            }
            (Some(_), _) => dropped += 1,
            (None, _) => {}
        }
        dest.accounts[at].outcomes.dropped += dropped;
        account.outcomes.dropped += if is_copy { 0 } else { dropped };
        subscriber.missed = match (is_open, held.opens, takes) {
            (false, ..) | (true, true, true) => Missed::Nothing,
            (true, true, false) => Missed::Dropped,
            (true, false, false) if subscriber.missed == Missed::Nothing => Missed::Dropped,
            (true, false, _) => subscriber.missed,
        };
    }
}

const SEQUENCES: u64 = 32;

impl Subscriber {
    fn takes_block(&mut self, dest: &Dest) -> bool {
        // A gap of a whole turn of the sequence numbers would not be seen: one more is dropped.
        let hidden = self.skipped > 0 && self.skipped.is_multiple_of(SEQUENCES);
        let takes = !dest.pool.is_empty() && !hidden;
        self.skipped = if takes { 0 } else { self.skipped + 1 };
        takes
    }
}

fn lend(dest: &mut Dest, length: usize, context: &Context, page_bytes: usize) {
    let position = context.position;
    if dest.page.span_bytes + length > page_bytes {
        dest.roll();
    }
    dest.open(context);
    let page = &mut dest.page;
    match page.spans.last_mut() {
        Some((from, before)) if *from + *before as u64 == position => *before += length,
        _ => page.spans.push((position, length)),
    }
    page.span_bytes += length;
    page.blocks += 1;
}
