//! Subchunks of a block, from its end backwards. No length is trusted.

use super::block::{
    BlockError, BlockFormat, FelixHeader, HEADER_BYTES, SubchunkKind, Trailer, TrailerWidth,
};

pub const fn most_subchunks(format: BlockFormat) -> usize {
    format.body_bytes() / format.trailer.bytes()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subchunk {
    word: u32,
    begin: u16,
    narrow: bool,
}

impl Subchunk {
    #[inline]
    pub fn trailer(&self) -> Trailer {
        Trailer::of_word(self.word, if self.narrow { TrailerWidth::W16 } else { TrailerWidth::W32 })
    }

    /// Returns true for a whole chunk without faults, the usual case.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        is_plain(self.word, self.narrow)
    }

    #[inline]
    pub(super) fn plain_length(&self) -> usize {
        (self.word & if self.narrow { 0x3FF } else { 0xFFFF }) as usize
    }

    #[inline]
    pub fn begin(&self) -> usize {
        usize::from(self.begin)
    }

    #[inline]
    pub fn range(&self) -> core::ops::Range<usize> {
        let trailer = self.trailer();
        let begin = usize::from(self.begin);
        begin..begin + if trailer.carries_data() { usize::from(trailer.length) } else { 0 }
    }
}

/// Whole chunks of one length without faults, one after the other in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRun {
    pub(super) first: Subchunk,
    pub count: usize,
    pub stride: usize,
}

impl ChunkRun {
    #[inline]
    pub fn begin(&self) -> usize {
        self.first.begin()
    }

    #[inline]
    pub fn length(&self) -> usize {
        self.first.plain_length()
    }

    #[inline]
    pub fn first(&self) -> Subchunk {
        self.first
    }

    #[inline]
    #[must_use]
    pub fn skip(self, skipped: usize) -> ChunkRun {
        let begin = self.begin() + skipped * self.stride;
        ChunkRun {
            first: Subchunk {
                begin: u16::try_from(begin).expect("a block has at most 16 KiB"),
                ..self.first
            },
            count: self.count - skipped,
            stride: self.stride,
        }
    }
}

/// Subchunks of a block in their order, with a run given as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockParts<'room> {
    pub before: &'room [Subchunk],
    pub run: Option<ChunkRun>,
    pub behind: &'room [Subchunk],
}

/// Finds the subchunks of a block, from its end backwards, and returns them in their order as the
/// last ones of `room`.
#[inline]
pub fn subchunks<'room>(
    format: BlockFormat,
    block: &[u8],
    room: &'room mut [Subchunk],
) -> Result<(FelixHeader, &'room [Subchunk]), BlockError> {
    let header = header(format, block)?;
    // One loop per width: this is the reader's hot loop.
    let walked = match format.trailer {
        TrailerWidth::W32 => walk::<4, true>(block, room)?,
        TrailerWidth::W16 => walk::<2, true>(block, room)?,
    };
    Ok((header, &room[walked.first..]))
}

#[inline]
pub fn parts<'room>(
    format: BlockFormat,
    block: &[u8],
    room: &'room mut [Subchunk],
) -> Result<(FelixHeader, BlockParts<'room>), BlockError> {
    let header = header(format, block)?;
    let walked = match format.trailer {
        TrailerWidth::W32 => walk::<4, false>(block, room)?,
        TrailerWidth::W16 => walk::<2, false>(block, room)?,
    };
    let (before, behind) = room[walked.first..].split_at(walked.behind - walked.first);
    let parts = BlockParts { before, run: walked.run, behind };
    Ok((header, parts))
}

#[inline]
fn header(format: BlockFormat, block: &[u8]) -> Result<FelixHeader, BlockError> {
    if block.len() != format.block_bytes {
        return Err(BlockError::Size { found: block.len(), wanted: format.block_bytes });
    }
    let header = FelixHeader::of_block(block);
    if header.magic != format.magic {
        return Err(BlockError::Magic(header.magic));
    }
    Ok(header)
}

/// Chunks from a block's end that may begin a run: a part of a chunk may come before it.
const FIRST_FEW: usize = 3;

struct Walked {
    first: usize,
    behind: usize,
    run: Option<ChunkRun>,
}

/// Fills the room from its end, with the chunks of a run where they are wanted.
#[inline]
fn walk<const TRAILER: usize, const WITH_RUN: bool>(
    block: &[u8],
    room: &mut [Subchunk],
) -> Result<Walked, BlockError> {
    let (mut end, mut place) = (block.len(), room.len());
    let (mut before, mut run, mut behind) = (0, None, place);
    for _ in 0..FIRST_FEW {
        if end <= HEADER_BYTES {
            break;
        }
        let (word, stride) = step::<TRAILER>(block, room, &mut end, &mut place)?;
        if word == core::mem::replace(&mut before, word) && is_plain(word, TRAILER == 2) {
            let mut found = run_before::<TRAILER>(block, word, end, stride);
            end = end.wrapping_sub(found.count.wrapping_mul(stride));
            if WITH_RUN {
                let behind = place;
                place = place.checked_sub(found.count).ok_or(BlockError::Room)?;
                note_run(&mut room[place..behind], &found);
            } else {
                // The two chunks found one by one belong to the run.
                (place, found.count) = (place + 2, found.count + 2);
            }
            (run, behind) = (Some(found), place);
            break;
        }
    }
    // Blocks of few chunks are bound by the number of instructions: a search for runs here, too,
    // costs them a fifth.
    while end > HEADER_BYTES {
        step::<TRAILER>(block, room, &mut end, &mut place)?;
    }
    Ok(Walked { first: place, behind, run })
}

/// Returns the whole chunks before `end` that end with this trailer.
#[inline(always)]
fn run_before<const TRAILER: usize>(
    block: &[u8],
    word: u32,
    end: usize,
    stride: usize,
) -> ChunkRun {
    let (mut begin, mut count) = (end, 0_usize);
    while begin.wrapping_sub(HEADER_BYTES) >= stride && word_before::<TRAILER>(block, begin) == word
    {
        begin = begin.wrapping_sub(stride);
        count = count.wrapping_add(1);
    }
    ChunkRun {
        first: Subchunk {
            word,
            begin: u16::try_from(begin).expect("a block has at most 16 KiB"),
            narrow: TRAILER == 2,
        },
        count,
        stride,
    }
}

#[inline(always)]
fn note_run(room: &mut [Subchunk], run: &ChunkRun) {
    #[allow(clippy::cast_possible_truncation, reason = "within a block")]
    let stride = run.stride as u16;
    let mut begin = run.first.begin;
    for place in room {
        *place = Subchunk { begin, ..run.first };
        begin = begin.wrapping_add(stride);
    }
}

/// Finds the next subchunk from the end. Returns its trailer and its bytes, including the trailer.
#[inline(always)]
fn step<const TRAILER: usize>(
    block: &[u8],
    room: &mut [Subchunk],
    end: &mut usize,
    place: &mut usize,
) -> Result<(u32, usize), BlockError> {
    let word = word_before::<TRAILER>(block, *end);
    let stride = extent::<TRAILER>(word, *end)?.wrapping_add(TRAILER);
    *end = end.wrapping_sub(stride);
    note::<TRAILER>(room, place, word, *end)?;
    Ok((word, stride))
}

/// Returns the bytes of a subchunk before its trailer, which ends at `end`.
/// Ends are whole trailers from the block's end on, which the extents keep: no difference is
/// negative, and no sum leaves the block. Checking each of them for overflow costs a tenth of the
/// loop; the slices' bounds would still catch a wrong one.
#[inline(always)]
fn extent<const TRAILER: usize>(word: u32, end: usize) -> Result<usize, BlockError> {
    let width = if TRAILER == 4 { TrailerWidth::W32 } else { TrailerWidth::W16 };
    let at = end.wrapping_sub(TRAILER);
    let padded = |length: u16| usize::from(length).wrapping_add(TRAILER - 1) & !(TRAILER - 1);
    let plain = is_plain(word, TRAILER == 2);
    let trailer = Trailer::of_word(word, width);
    let extent = match trailer.kind {
        _ if plain => padded(trailer.length),
        SubchunkKind::Null | SubchunkKind::OutOfBand => 0,
        SubchunkKind::Undefined => return Err(BlockError::Undefined { at }),
        // The bytes of a timeout are skipped even if they are not data.
        _ => padded(trailer.length),
    };
    if extent > at.saturating_sub(HEADER_BYTES) {
        return Err(BlockError::Length { at, length: trailer.length });
    }
    Ok(extent)
}

#[inline(always)]
fn note<const TRAILER: usize>(
    room: &mut [Subchunk],
    place: &mut usize,
    word: u32,
    begin: usize,
) -> Result<(), BlockError> {
    *place = place.checked_sub(1).ok_or(BlockError::Room)?;
    room[*place] = Subchunk {
        word,
        begin: u16::try_from(begin).expect("a block has at most 16 KiB"),
        narrow: TRAILER == 2,
    };
    Ok(())
}

/// Reads the trailer that ends at `end` by one load; single bytes take four.
#[inline]
fn word_before<const TRAILER: usize>(block: &[u8], end: usize) -> u32 {
    let bytes = &block[end.wrapping_sub(TRAILER)..end];
    match TRAILER {
        4 => u32::from_le_bytes(bytes.try_into().expect("four bytes")),
        _ => u32::from(u16::from_le_bytes(bytes.try_into().expect("two bytes"))),
    }
}

#[inline]
fn is_plain(word: u32, narrow: bool) -> bool {
    match narrow {
        true => word >> 10 == 3 << 3,
        false => word >> 25 == 3 << 4,
    }
}
