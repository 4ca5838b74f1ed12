//! Blocks into pages: chunks are copied.

use daqmeter_wire::felix::Subchunk;
use daqmeter_wire::felix::block::FelixHeader;
use daqmeter_wire::felix::decoder::{BlockParts, ChunkPart, ChunkRun};
use daqmeter_wire::felix::page::{PageChunk, Status};

use super::dest::{Context, Dest, status_index};
use super::elink::ElinkState;

/// Copies the chunks of a block to the subscribers that have room for all of them. The hot path:
/// chunks of a run are copied as one.
pub(super) fn copy_chunks(
    elink: &mut ElinkState,
    dests: &mut [Option<Dest>],
    header: FelixHeader,
    found: &BlockParts<'_>,
    block: &[u8],
    context: &Context,
) {
    dests.iter_mut().flatten().for_each(|dest| dest.takes = false);
    for number in &elink.subscribers {
        if let Some(dest) = &mut dests[*number] {
            dest.takes = dest.pool.len() >= context.sizes.block_pages;
            dest.open(context);
        }
    }
    elink.reassembler.begin(header);
    let mut copying = Copying { elink, dests, block, context };
    for (index, subchunk) in found.before.iter().enumerate() {
        copying.subchunk(subchunk, index == 0);
    }
    if let Some(run) = found.run {
        copying.run(run, found.before.is_empty());
    }
    for subchunk in found.behind {
        copying.subchunk(subchunk, false);
    }
}

struct Copying<'a> {
    elink: &'a mut ElinkState,
    dests: &'a mut [Option<Dest>],
    block: &'a [u8],
    context: &'a Context,
}

impl Copying<'_> {
    #[inline]
    fn subchunk(&mut self, subchunk: &Subchunk, begins_block: bool) {
        let ElinkState { spec, reassembler, partial, .. } = &mut *self.elink;
        let Some(part) = reassembler.part(subchunk, begins_block) else { return };
        let (source, status) = (self.block, Status::of_flags(part.flags));
        let chunk = if part.begins && part.ends {
            PageChunk { source, begin: part.begin, length: part.length, status }
        } else {
            let Some(whole) = pieced(partial, part, source, self.context.sizes.page_bytes) else {
                return;
            };
            PageChunk::whole(whole, status)
        };
        for dest in self.dests.iter_mut().flatten().filter(|dest| dest.takes) {
            push(dest, spec.tag, &chunk, self.context);
        }
    }

    #[inline]
    fn run(&mut self, mut run: ChunkRun, begins_block: bool) {
        if !self.elink.reassembler.take_run(&run) {
            // It breaks the chunk that is open.
            self.subchunk(&run.first(), begins_block);
            run = run.skip(1);
            self.elink.reassembler.take_run(&run);
        }
        let (tag, source) = (self.elink.spec.tag, self.block);
        for dest in self.dests.iter_mut().flatten().filter(|dest| dest.takes) {
            let mut left = run;
            while left.count > 0 {
                let page = &mut dest.page;
                let mut pushed = page.writer.push_run(&mut page.bytes, tag, source, &left);
                page.booked[self.context.at][0] +=
                    u32::try_from(pushed).expect("a block has fewer chunks");
                if pushed == 0 {
                    // The first of its tag or of a page, or one that is not laid out as in a page.
                    let (begin, length, status) = (left.begin(), left.length(), Status::default());
                    push(dest, tag, &PageChunk { source, begin, length, status }, self.context);
                    pushed = 1;
                }
                left = left.skip(pushed);
            }
        }
    }
}

/// Adds a part of a chunk to those before it; returns the chunk with its last part.
fn pieced<'a>(
    partial: &'a mut Vec<u8>,
    part: ChunkPart,
    block: &[u8],
    longest: usize,
) -> Option<&'a [u8]> {
    if part.begins {
        partial.clear();
    }
    // An endless chunk must not take endless memory. One that is too long already fits no page, and
    // is dropped when it ends.
    if partial.len() <= longest {
        partial.extend_from_slice(&block[part.begin..part.begin + part.length]);
    }
    part.ends.then_some(partial)
}

/// Copies a chunk into a destination's page, or the next, and books it. A chunk without a next
/// page, or longer than any page, is dropped.
#[inline]
fn push(dest: &mut Dest, tag: u64, chunk: &PageChunk<'_>, context: &Context) {
    let copied = |dest: &mut Dest| dest.page.writer.push(&mut dest.page.bytes, tag, chunk);
    let fits = copied(dest) || {
        let is_next = dest.roll();
        dest.open(context);
        is_next && copied(dest)
    };
    if fits {
        dest.page.booked[context.at][status_index(chunk.status)] += 1;
    } else {
        dest.accounts[context.at].outcomes.dropped += 1;
    }
}
