//! Blocks into pages: chunks are copied.

use daqmeter_wire::felix::Subchunk;
use daqmeter_wire::felix::block::FelixHeader;
use daqmeter_wire::felix::decoder::{BlockParts, ChunkPart, ChunkRun};
use daqmeter_wire::felix::page::Status;

use super::dest::{Context, Dest, status_index};
use super::elink::ElinkState;

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
    let dest = dests[*only].as_mut();
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
    let ElinkState { spec, reassembler, subscribers, partial, .. } = elink;
    for dest in dests.iter_mut().flatten() {
        dest.takes = dest.pool.len() >= context.sizes.block_pages;
    }
    reassembler.block(header, found, |part| {
        let Some(chunk) = whole(partial, part, block, context.sizes.page_bytes) else {
            return;
        };
        for number in &*subscribers {
            let Some(dest) = &mut dests[*number] else {
                continue;
            };
            if dest.takes {
                push(dest, spec.tag, &chunk, context);
            } else {
                dest.accounts[context.at].outcomes.dropped += 1;
            }
        }
    });
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
        let longest = self.context.sizes.page_bytes;
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
        push(self.dest, tag, chunk, self.context);
    }

    fn book(&mut self) {
        let clean = std::mem::take(&mut self.clean);
        self.dest.page.booked[self.context.at][0] += clean;
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

/// Copies a chunk into a destination's page, or the next, and books it. A chunk without a next
/// page, or longer than any page, is dropped.
fn push(dest: &mut Dest, tag: u64, chunk: &Chunk<'_>, context: &Context) {
    let Chunk { source, begin, length, status } = *chunk;
    let fits = |dest: &mut Dest| {
        dest.open(context);
        dest.page.writer.push(&mut dest.page.bytes, tag, status, source, begin, length)
    };
    if fits(dest) || dest.roll() && fits(dest) {
        dest.page.booked[context.at][status_index(status)] += 1;
    } else {
        dest.accounts[context.at].outcomes.dropped += 1;
    }
}
