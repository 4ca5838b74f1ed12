//! Block starts in bytes that are damaged.

use daqmeter_wire::felix::BlockFormat;
use daqmeter_wire::felix::block::{FelixHeader, HEADER_BYTES};

/// Bytes without any block start that are kept while one is looked for.
pub(super) const MAX_LOOK_AHEAD: usize = 16 << 20;
/// Bytes at the beginning within which the first good block must begin.
const MAX_BEFORE_FIRST: usize = 1 << 20;
const FOLLOWERS: usize = 3;
/// Followers that must begin at their places: 16 bits by themselves are found in any bytes.
const MIN_FOLLOWERS: usize = 2;
/// Followers at the very beginning, where a block is expected.
const MIN_FOLLOWERS_OF_FIRST: usize = 1;

pub(super) enum Recognised {
    As(BlockFormat),
    Unknown,
    No,
}

/// The format of the first block that others follow. The first one itself may be spoilt.
pub(super) fn recognise(bytes: &[u8], abce_kib: u8, last: bool) -> Recognised {
    let format_at = |at: usize| {
        let head = bytes.get(at..)?.first_chunk::<HEADER_BYTES>()?;
        BlockFormat::of_magic(FelixHeader::parse(*head).magic, abce_kib)
    };
    for at in 0..bytes.len().min(MAX_BEFORE_FIRST) {
        let Some(format) = format_at(at) else {
            continue;
        };
        match is_followed(bytes, at, format, last) {
            Some(true) => return Recognised::As(format),
            Some(false) => {}
            None => return Recognised::Unknown,
        }
    }
    if !last && bytes.len() < MAX_BEFORE_FIRST {
        return Recognised::Unknown;
    }
    // No start is followed by others: the first is believed if it is one.
    format_at(0).map_or(Recognised::No, Recognised::As)
}

fn is_followed(bytes: &[u8], at: usize, format: BlockFormat, last: bool) -> Option<bool> {
    let size = format.block_bytes;
    if !last && at + FOLLOWERS * size + HEADER_BYTES > bytes.len() {
        return None;
    }
    let magic = format.magic.to_le_bytes();
    let starts = |place: &usize| bytes.get(place + 2..place + HEADER_BYTES) == Some(&magic[..]);
    let found = (1..=FOLLOWERS).map(|nth| at + nth * size).filter(starts).count();
    let wanted = if at == 0 { MIN_FOLLOWERS_OF_FIRST } else { MIN_FOLLOWERS };
    Some(found >= wanted || at + (found + 1) * size == bytes.len())
}

pub(super) enum Next {
    At(usize),
    Unknown,
    None,
}

/// Next place at which a block begins and another follows, or the bytes end.
pub(super) fn next_start(bytes: &[u8], format: BlockFormat, last: bool) -> Next {
    let magic = format.magic.to_le_bytes();
    let starts = |at: usize| bytes.get(at + 2..at + HEADER_BYTES) == Some(&magic[..]);
    for at in (1..bytes.len()).filter(|at| starts(*at)) {
        let follower = at + format.block_bytes;
        if follower + HEADER_BYTES > bytes.len() {
            return if last { Next::At(at) } else { Next::Unknown };
        }
        if starts(follower) {
            return Next::At(at);
        }
    }
    if last { Next::None } else { Next::Unknown }
}

/// Format of a whole file's bytes, and the places of its blocks, bad starts included, as the
/// checker counts them. `None` without any block.
pub(crate) fn places(bytes: &[u8], abce_kib: u8) -> Option<(BlockFormat, Vec<usize>)> {
    let Recognised::As(format) = recognise(bytes, abce_kib, true) else {
        return None;
    };
    let size = format.block_bytes;
    let (mut at, mut places) = (0, Vec::with_capacity(bytes.len() / size));
    while let Some(head) =
        bytes[at..].first_chunk::<HEADER_BYTES>().filter(|_| bytes.len() - at >= size)
    {
        let step = match FelixHeader::parse(*head).magic == format.magic {
            true => size,
            false => match next_start(&bytes[at..], format, true) {
                Next::At(skip) => skip,
                Next::Unknown | Next::None => bytes.len() - at,
            },
        };
        // Whole blocks until the next start: their starts are bad. Else bytes are missing or added.
        if step.is_multiple_of(size) {
            places.extend((at..at + step).step_by(size));
        }
        at += step;
    }
    Some((format, places))
}
