//! Block starts in bytes that are damaged.

use daqmeter_wire::felix::BlockFormat;
use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};

/// Bytes without any block start that are kept while one is looked for.
const MAX_LOOK_AHEAD: usize = 16 << 20;
/// Bytes at the beginning within which the first good block must begin.
const MAX_BEFORE_FIRST: usize = 1 << 20;
const FOLLOWERS: usize = 3;
/// Followers that must begin at their places: 16 bits by themselves are found in any bytes.
const MIN_FOLLOWERS: usize = 2;
/// Followers at the very beginning, where a block is expected.
const MIN_FOLLOWERS_OF_FIRST: usize = 1;

/// Largest block, in KiB.
const MAX_KIB: u8 = 16;

/// Formats that a block here may have, the smallest first: blocks of 0xABCE do not state their
/// size.
fn formats_at(bytes: &[u8], at: usize) -> impl Iterator<Item = BlockFormat> + Clone {
    let head = bytes.get(at..).and_then(|rest| rest.first_chunk::<HEADER_BYTES>());
    let magic = head.map(|head| FelixHeader::parse(*head).magic);
    let sizes = 1..=if magic == Some(0xABCE) { MAX_KIB } else { 1 };
    sizes.filter_map(move |kib| BlockFormat::of_magic(magic?, kib))
}

fn starts(bytes: &[u8], at: usize, format: BlockFormat) -> bool {
    bytes.get(at + 2..at + HEADER_BYTES) == Some(&format.magic.to_le_bytes()[..])
}

/// The format of the first block that others follow. The first one itself may be spoilt. `None` if
/// more bytes are needed, `Some(None)` if these are no blocks.
pub(super) fn recognise(bytes: &[u8], last: bool) -> Option<Option<BlockFormat>> {
    for at in 0..bytes.len().min(MAX_BEFORE_FIRST) {
        let formats = formats_at(bytes, at);
        let most = formats.clone().map(|format| format.block_bytes).max();
        if !last && most.is_some_and(|most| at + FOLLOWERS * most + HEADER_BYTES > bytes.len()) {
            return None;
        }
        let followers = |format: BlockFormat| {
            let places = (1..=FOLLOWERS).map(|nth| at + nth * format.block_bytes);
            places.filter(|place| starts(bytes, *place, format)).count()
        };
        // A part of the size, or a fraction of it, meets one start in three at most.
        let is_sure = |format: &BlockFormat| {
            let found = followers(*format);
            found >= MIN_FOLLOWERS || at + (found + 1) * format.block_bytes == bytes.len()
        };
        let may_be = |format: &BlockFormat| at == 0 && followers(*format) >= MIN_FOLLOWERS_OF_FIRST;
        let found = formats.clone().find(is_sure).or_else(|| formats.clone().find(may_be));
        if found.is_some() {
            return Some(found);
        }
    }
    // No start is followed by others: the first is believed if it is one.
    let is_enough = last || bytes.len() >= MAX_BEFORE_FIRST;
    is_enough.then(|| formats_at(bytes, 0).next())
}

/// Bytes up to a place at which a block begins or the bytes end.
pub(super) enum Piece {
    Block(FelixHeader),
    /// Whole blocks, whose starts are bad.
    BadStarts,
    /// Bytes that are missing or added.
    NoBlock,
}

/// The next piece and its length; `None` if more bytes are needed, or fewer than a block are left.
#[inline]
pub(super) fn next_piece(bytes: &[u8], format: BlockFormat, last: bool) -> Option<(Piece, usize)> {
    let header = FelixHeader::parse(*bytes.first_chunk::<HEADER_BYTES>()?);
    let size = format.block_bytes;
    if bytes.len() < size {
        return None;
    }
    if header.magic == format.magic {
        return Some((Piece::Block(header), size));
    }
    let length = match next_start(bytes, format, last) {
        Some(at) => at,
        None if !last && bytes.len() < MAX_LOOK_AHEAD => return None,
        None => bytes.len(),
    };
    let piece = if length.is_multiple_of(size) { Piece::BadStarts } else { Piece::NoBlock };
    Some((piece, length))
}

/// Next place at which a block begins and another follows, or the bytes end.
fn next_start(bytes: &[u8], format: BlockFormat, last: bool) -> Option<usize> {
    for at in (1..bytes.len()).filter(|at| starts(bytes, *at, format)) {
        let follower = at + format.block_bytes;
        if follower + HEADER_BYTES > bytes.len() {
            return last.then_some(at);
        }
        if starts(bytes, follower, format) {
            return Some(at);
        }
    }
    None
}
