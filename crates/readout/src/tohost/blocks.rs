//! Blocks into pages: chunks copied, or blocks lent from the ring.

use daqmeter_wire::felix::Subchunk;
use daqmeter_wire::felix::block::Header;
use daqmeter_wire::felix::decoder::Part;
use daqmeter_wire::felix::page::Status;

use super::ElinkState;
use super::dest::{Dest, Fates, fate_of};
use crate::scenario::Reader as Settings;

/// Whether a block is the one before it again. Remembers it otherwise.
pub(super) fn is_repeated(elink: &mut ElinkState, header: Header, block: &[u8]) -> bool {
    let mut fingerprint = [0; 48];
    fingerprint[..32].copy_from_slice(&block[..32]);
    fingerprint[32..].copy_from_slice(&block[block.len() - 16..]);
    let repeated = fingerprint == elink.fingerprint && elink.reassembler.is_last(header.sequence);
    elink.fingerprint = fingerprint;
    repeated
}

pub(super) struct Context {
    /// Place of the E-link.
    pub(super) at: usize,
    pub(super) now_ns: u64,
    pub(super) birth_ns: u64,
    /// Pages that a block may need.
    pub(super) wanted: usize,
}

/// Chunks of a block into the pages of their subscribers.
pub(super) fn copy_chunks(
    elink: &mut ElinkState,
    dests: &mut [Option<Dest>],
    header: Header,
    found: &[Subchunk],
    block: &[u8],
    context: &Context,
) {
    // The usual case by itself: one subscriber, who has room.
    if let [only] = elink.subscribers.as_slice()
        && let Some(dest) = dests[*only].as_mut().filter(|dest| dest.pool.len() >= context.wanted)
    {
        return copy_to_one(elink, dest, header, found, block, context);
    }
    let ElinkState { spec, reassembler, subscribers, partial, check, account, .. } = elink;
    reassembler.block(header, found, |part| {
        let Some(chunk) = whole(partial, part, block) else { return };
        account.chunks += 1;
        if let Some(check) = check {
            check.check(chunk.payload());
        }
        if subscribers.is_empty() {
            account.unsubscribed += 1;
        }
        for (order, place) in subscribers.iter().enumerate() {
            let Some(dest) = &mut dests[*place] else { continue };
            // The ledger follows the first subscriber; the others have copies.
            let counted = order == 0;
            if dest.pool.len() < context.wanted {
                account.dropped += u64::from(counted);
                continue;
            }
            push(dest, spec.tag, &chunk, context);
            dest.page.fates[context.at][fate_of(chunk.status)] += u32::from(counted);
        }
    });
}

/// The hot path: everything in one loop, and what is the same for most chunks counted once per block.
fn copy_to_one(
    elink: &mut ElinkState,
    dest: &mut Dest,
    header: Header,
    found: &[Subchunk],
    block: &[u8],
    context: &Context,
) {
    let ElinkState { spec, reassembler, partial, check, account, .. } = elink;
    dest.open(context.now_ns, context.birth_ns);
    reassembler.begin(header);
    let mut clean = 0;
    for (index, subchunk) in found.iter().enumerate() {
        let Some(part) = reassembler.part(subchunk, index == 0) else { continue };
        let Some(chunk) = whole(partial, part, block) else { continue };
        if let Some(check) = check {
            check.check(chunk.payload());
        }
        let Chunk { source, begin, length, status } = chunk;
        let page = &mut dest.page;
        if status.is_clean() && page.writer.push(&mut page.bytes, spec.tag, status, source, begin, length) {
            clean += 1;
            continue;
        }
        dest.page.fates[context.at][0] += clean;
        account.chunks += u64::from(clean) + 1;
        clean = 0;
        push(dest, spec.tag, &chunk, context);
        dest.page.fates[context.at][fate_of(status)] += 1;
    }
    dest.page.fates[context.at][0] += clean;
    account.chunks += u64::from(clean);
}

/// A chunk: bytes of a source that goes on behind them.
struct Chunk<'a> {
    source: &'a [u8],
    begin: usize,
    length: usize,
    status: Status,
}

impl Chunk<'_> {
    fn payload(&self) -> &[u8] {
        &self.source[self.begin..self.begin + self.length]
    }
}

/// The chunk that a part completes.
#[inline]
fn whole<'a>(partial: &'a mut Vec<u8>, part: Part, block: &'a [u8]) -> Option<Chunk<'a>> {
    if part.begins && part.ends {
        let status = Status::of_flags(part.flags);
        return Some(Chunk { source: block, begin: part.begin, length: part.length, status });
    }
    pieced(partial, part, block)
}

fn pieced<'a>(partial: &'a mut Vec<u8>, part: Part, block: &'a [u8]) -> Option<Chunk<'a>> {
    if part.begins {
        partial.clear();
    }
    partial.extend_from_slice(&block[part.begin..part.begin + part.length]);
    let (source, status) = (&partial[..], Status::of_flags(part.flags));
    part.ends.then_some(Chunk { source, begin: 0, length: source.len(), status })
}

/// A chunk into a destination's page, or the next.
fn push(dest: &mut Dest, tag: u64, chunk: &Chunk<'_>, context: &Context) {
    let Chunk { source, begin, length, status } = *chunk;
    dest.open(context.now_ns, context.birth_ns);
    if dest.page.writer.push(&mut dest.page.bytes, tag, status, source, begin, length) {
        return;
    }
    dest.roll();
    dest.open(context.now_ns, context.birth_ns);
    let pushed = dest.page.writer.push(&mut dest.page.bytes, tag, status, source, begin, length);
    debug_assert!(pushed, "an empty page takes the longest chunk");
}

/// A block as it is into the pages of its E-link's subscribers.
#[allow(clippy::too_many_arguments, reason = "as for copied chunks, and the block's position")]
pub(super) fn lend_block(
    elink: &mut ElinkState,
    dests: &mut [Option<Dest>],
    header: Header,
    found: &[Subchunk],
    block: &[u8],
    position: u64,
    context: &Context,
    settings: &Settings,
) {
    let ElinkState { reassembler, subscribers, partial, check, account, began_before, .. } = elink;
    let mut fates = Fates::default();
    let mut torn = 0;
    reassembler.block(header, found, |part| {
        let status = Status::of_flags(part.flags);
        if let Some(check) = check
            && let Some(chunk) = whole(partial, part, block)
        {
            check.check(chunk.payload());
        }
        if part.begins {
            *began_before = false;
        }
        if part.ends {
            account.chunks += 1;
            if *began_before {
                torn += 1;
            } else {
                fates[fate_of(status)] += 1;
            }
        }
    });
    account.unsubscribed += torn;
    let total: u64 = fates.iter().copied().map(u64::from).sum();
    if subscribers.is_empty() {
        account.unsubscribed += total;
    }
    for (order, place) in subscribers.iter().enumerate() {
        let Some(dest) = &mut dests[*place] else { continue };
        if dest.pool.is_empty() {
            account.dropped += if order == 0 { total } else { 0 };
            continue;
        }
        if dest.page.span_bytes + block.len() > settings.page.0 {
            dest.roll();
        }
        dest.open(context.now_ns, context.birth_ns);
        let page = &mut dest.page;
        match page.spans.last_mut() {
            Some((from, length)) if *from + *length as u64 == position => *length += block.len(),
            _ => page.spans.push((position, block.len())),
        }
        page.span_bytes += block.len();
        page.blocks += 1;
        if order == 0 {
            for (sum, fate) in page.fates[context.at].iter_mut().zip(fates) {
                *sum += fate;
            }
        }
    }
}
