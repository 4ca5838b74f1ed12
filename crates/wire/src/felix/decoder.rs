//! Decoder of an E-link's subchunks into chunks. No length is trusted; a bad block loses only
//! itself.

use super::block::{ChunkFlags, FelixHeader, SubchunkKind, Trailer};
pub use super::subchunks::{BlockParts, ChunkRun, Subchunk, most_subchunks, parts, subchunks};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElinkCounts {
    pub blocks: u64,
    pub blocks_missing: u64,
    /// Subchunks by kind, in the order of their numbers.
    pub subchunks: [u64; 8],
    /// Whole chunks: BOTH, or ended by LAST.
    pub chunks: u64,
    /// Chunks cut off by a timeout: fcheck counts them as chunks, fdaqm does not.
    pub chunks_timed_out: u64,
    /// Chunks with the truncation flag; the next counts are of the other flags.
    pub truncated: u64,
    pub errors: u64,
    pub crc_errors: u64,
    pub busy: u64,
    /// Chunks with a missing part: cut off by a gap, or by the beginning of another.
    pub chunks_broken: u64,
    /// MIDDLE or LAST without a beginning and without a gap that explains it.
    pub orphans: u64,
}

impl ElinkCounts {
    pub fn ended(&self) -> u64 {
        self.chunks + self.chunks_timed_out
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPart {
    pub begins: bool,
    pub ends: bool,
    pub begin: usize,
    pub length: usize,
    /// Faults of the chunk so far; in its last part, those of any of its parts.
    pub flags: ChunkFlags,
}

/// Reassembles the chunks of one E-link over its blocks. It holds no payload: it gives the place of
/// each part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reassembler {
    next_sequence: Option<u8>,
    open: bool,
    /// True if the beginning may be missing: at the start, and after a gap.
    after_gap: bool,
    flags: ChunkFlags,
    pub counts: ElinkCounts,
}

impl Reassembler {
    pub fn new() -> Reassembler {
        Reassembler { after_gap: true, ..Reassembler::default() }
    }

    /// Skips an unreadable block: the open chunk is broken, and its sequence number is not counted
    /// as missing again.
    pub fn bad_block(&mut self) {
        self.next_sequence = self.next_sequence.map(|next| (next + 1) & 0x1F);
        self.gap();
    }

    pub fn is_last(&self, sequence: u8) -> bool {
        self.next_sequence == Some((sequence + 1) & 0x1F)
    }

    pub fn is_open(&self) -> bool {
        self.open
    }

    fn gap(&mut self) {
        self.counts.chunks_broken += u64::from(self.open);
        self.open = false;
        self.after_gap = true;
    }

    pub fn begin(&mut self, header: FelixHeader) {
        self.counts.blocks += 1;
        let missing =
            self.next_sequence.map_or(0, |next| header.sequence.wrapping_sub(next) & 0x1F);
        if missing > 0 {
            self.counts.blocks_missing += u64::from(missing);
            self.gap();
        }
        self.next_sequence = Some((header.sequence + 1) & 0x1F);
    }

    #[inline]
    pub fn take_run(&mut self, run: &ChunkRun) -> bool {
        if !self.open {
            self.plain(run.count as u64);
        }
        !self.open
    }

    #[inline]
    fn plain(&mut self, count: u64) {
        // The hot path: 64-bit counters of chunks cannot overflow.
        let ElinkCounts { subchunks, chunks, .. } = &mut self.counts;
        let both = &mut subchunks[SubchunkKind::Both as usize];
        *both = both.wrapping_add(count);
        *chunks = chunks.wrapping_add(count);
        self.after_gap = false;
    }

    #[inline]
    pub fn part(&mut self, subchunk: &Subchunk, first_of_block: bool) -> Option<ChunkPart> {
        if subchunk.is_plain() && !self.open {
            let (begin, length) = (subchunk.begin(), subchunk.plain_length());
            self.plain(1);
            return Some(ChunkPart {
                begins: true,
                ends: true,
                begin,
                length,
                flags: ChunkFlags::default(),
            });
        }
        self.part_of_any(subchunk, first_of_block)
    }

    fn part_of_any(&mut self, subchunk: &Subchunk, first_of_block: bool) -> Option<ChunkPart> {
        let trailer = subchunk.trailer();
        self.counts.subchunks[trailer.kind as usize] += 1;
        let (begins, ends) = self.role(trailer, first_of_block)?;
        self.book(trailer);
        self.flags = match begins {
            true => trailer.flags,
            false => self.flags.with(trailer.flags),
        };
        let range = subchunk.range();
        Some(ChunkPart { begins, ends, begin: range.start, length: range.len(), flags: self.flags })
    }

    fn role(&mut self, trailer: Trailer, first_of_block: bool) -> Option<(bool, bool)> {
        let role = match trailer.kind {
            SubchunkKind::Both => {
                self.counts.chunks_broken += u64::from(self.open);
                self.open = false;
                self.counts.chunks += 1;
                (true, true)
            }
            SubchunkKind::First => {
                self.counts.chunks_broken += u64::from(self.open);
                self.open = true;
                (true, false)
            }
            SubchunkKind::Middle | SubchunkKind::Last if !self.open => {
                self.counts.orphans += u64::from(!self.after_gap);
                return None;
            }
            SubchunkKind::Middle => (false, false),
            SubchunkKind::Last => {
                self.open = false;
                self.counts.chunks += 1;
                (false, true)
            }
            SubchunkKind::Timeout if trailer.flags.truncated => {
                let ends_open = self.open && first_of_block;
                self.counts.chunks_broken += u64::from(self.open && !first_of_block);
                self.open = false;
                self.counts.chunks_timed_out += 1;
                (!ends_open, true)
            }
            SubchunkKind::Null
            | SubchunkKind::Timeout
            | SubchunkKind::OutOfBand
            | SubchunkKind::Undefined => return None,
        };
        self.after_gap = false;
        Some(role)
    }

    fn book(&mut self, trailer: Trailer) {
        self.counts.truncated += u64::from(trailer.flags.truncated);
        self.counts.errors += u64::from(trailer.flags.error);
        self.counts.crc_errors += u64::from(trailer.flags.crc);
        self.counts.busy += u64::from(trailer.flags.busy);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::block::{BlockError, BlockFormat, HEADER_BYTES, TrailerWidth};
    use super::*;
    use crate::felix::Elink;
    use crate::felix::fixtures::{encode, numbered};

    const KIB: BlockFormat = BlockFormat::phase2(1).unwrap();

    fn formats() -> [BlockFormat; 4] {
        [
            KIB,
            BlockFormat::PHASE1,
            BlockFormat::phase1_wide(2).unwrap(),
            BlockFormat::phase2(16).unwrap(),
        ]
    }

    fn parts_of(
        reassembler: &mut Reassembler,
        (header, found): (FelixHeader, &[Subchunk]),
    ) -> Vec<ChunkPart> {
        reassembler.begin(header);
        let found = found.iter().enumerate();
        found.filter_map(|(at, subchunk)| reassembler.part(subchunk, at == 0)).collect()
    }

    fn decode(format: BlockFormat, blocks: &[Vec<u8>]) -> (Vec<Vec<u8>>, ElinkCounts, usize) {
        let mut room = vec![Subchunk::default(); most_subchunks(format)];
        let mut reassembler = Reassembler::new();
        let mut chunks = Vec::new();
        let (mut open, mut payload_bytes) = (Vec::new(), 0);
        for block in blocks {
            match subchunks(format, block, &mut room) {
                Ok(found) => parts_of(&mut reassembler, found).iter().for_each(|part| {
                    if part.begins {
                        open.clear();
                    }
                    open.extend_from_slice(&block[part.begin..part.begin + part.length]);
                    payload_bytes += part.length;
                    if part.ends {
                        chunks.push(core::mem::take(&mut open));
                    }
                }),
                Err(_) => reassembler.bad_block(),
            }
        }
        (chunks, reassembler.counts, payload_bytes)
    }

    #[test]
    fn a_chunk_over_three_blocks_has_a_first_a_middle_and_a_last_and_the_flags_of_all() {
        let chunks = numbered(&[2500]);
        let mut blocks = encode(KIB, &chunks);
        let (found, counts, payload_bytes) = decode(KIB, &blocks);
        assert_eq!(found, chunks);
        assert_eq!(counts.subchunks, [0, 1, 1, 0, 1, 1, 0, 0]);
        assert_eq!((counts.blocks, counts.chunks, payload_bytes), (3, 1, 2500));
        *blocks[0].last_mut().unwrap() |= 1 << 3;
        let (mut room, mut ended) = (vec![Subchunk::default(); most_subchunks(KIB)], Vec::new());
        let mut reassembler = Reassembler::new();
        for block in &blocks {
            let parts = parts_of(&mut reassembler, subchunks(KIB, block, &mut room).unwrap());
            ended.extend(parts.iter().filter(|part| part.ends).map(|part| part.flags.error));
        }
        assert_eq!(ended, [true]);
    }

    #[test]
    fn a_lost_block_costs_its_chunks_and_is_counted_once() {
        let chunks = numbered(&[500; 40]);
        let blocks = encode(KIB, &chunks);
        for lost in 1..blocks.len() - 1 {
            let mut rest = blocks.clone();
            rest.remove(lost);
            let (found, counts, _) = decode(KIB, &rest);
            assert_eq!((counts.blocks_missing, counts.orphans), (1, 0), "block {lost}");
            assert!(
                found.iter().all(|chunk| chunks.contains(chunk)),
                "nothing is joined that does not belong together"
            );
            assert!(found.len() >= 36 && found.len() < 40);
        }
    }

    #[test]
    fn a_spoilt_block_is_refused_by_name_and_the_next_one_is_read() {
        let blocks = encode(KIB, &numbered(&[24; 300]));
        let spoilt = |at: usize, word: u32, bytes: usize| {
            let mut block = blocks[2].clone();
            block[at..at + 4].copy_from_slice(&word.to_le_bytes());
            block.truncate(bytes);
            block
        };
        for (block, error) in [
            (spoilt(1020, 0xC000_0000, 1024), BlockError::Undefined { at: 1020 }),
            (spoilt(1020, 0x6000_03FD, 1024), BlockError::Length { at: 1020, length: 0x3FD }),
            (spoilt(0, 0xC000_0000, 1024), BlockError::Magic(0xC000)),
            (spoilt(0, 0, 1000), BlockError::Size { found: 1000, wanted: 1024 }),
        ] {
            let mut room = vec![Subchunk::default(); most_subchunks(KIB)];
            assert_eq!(subchunks(KIB, &block, &mut room), Err(error));
            let mut all = blocks.clone();
            all[2] = block;
            let (_, counts, _) = decode(KIB, &all);
            assert_eq!((counts.blocks_missing, counts.orphans), (0, 0));
            assert!(counts.chunks > 250);
        }
    }

    fn single(kind: SubchunkKind, truncated: bool, length: u16) -> Trailer {
        Trailer { kind, flags: ChunkFlags { truncated, ..ChunkFlags::default() }, length }
    }

    /// Makes a block of the given trailers, each with its payload before it; the first payload is
    /// stretched to fill the block.
    fn by_hand(sequence: u8, trailers: &[Trailer]) -> Vec<u8> {
        let mut block =
            FelixHeader { elink: Elink::new(1), sequence, magic: KIB.magic }.emit().to_vec();
        let taken: usize = trailers
            .iter()
            .map(|trailer| 4 + usize::from(trailer.length).next_multiple_of(4))
            .sum();
        let mut stretch = 1020 - taken;
        for trailer in trailers {
            // Filler before the first: NULL trailers.
            while stretch > 0 {
                block.extend([0; 4]);
                stretch -= 4;
            }
            block.resize(block.len() + usize::from(trailer.length).next_multiple_of(4), 0xAA);
            block.extend(trailer.word(TrailerWidth::W32).to_le_bytes());
        }
        block
    }

    #[test]
    fn markers_timeouts_and_violations_of_the_order_are_counted_by_kind() {
        use SubchunkKind::{Both, First, Last, Timeout};
        let one = |sequence, kind, length| by_hand(sequence, &[single(kind, false, length)]);
        let full = |sequence, kind| one(sequence, kind, 1016);
        let after_both =
            |truncated| by_hand(0, &[single(Both, false, 8), single(Timeout, truncated, 8)]);
        let ends = by_hand(1, &[single(Timeout, true, 1016)]);
        // A NULL and an OUT-OF-BAND with an invalid length carry no payload.
        let mut marked = one(0, Both, 8);
        marked[4..8].copy_from_slice(&0x0000_FFFF_u32.to_le_bytes());
        marked[8..12].copy_from_slice(&0xE000_1234_u32.to_le_bytes());
        // Wanted: chunks, timed out, broken, orphans, bytes of payload.
        for (blocks, wanted) in [
            (vec![marked], [1, 0, 0, 0, 8]),
            (vec![full(0, First), ends], [0, 1, 0, 0, 2032]),
            (vec![after_both(true)], [1, 1, 0, 0, 16]),
            (vec![after_both(false)], [1, 0, 0, 0, 8]),
            (vec![full(0, First), full(1, First), full(2, Last)], [1, 0, 1, 0, 3048]),
            (vec![full(0, Both), full(1, Last)], [1, 0, 0, 1, 1016]),
            // At the start, and after a gap, a LAST may have lost its beginning.
            (vec![full(7, Last), full(8, Both)], [1, 0, 0, 0, 1016]),
            (vec![full(0, Both), full(2, Last)], [1, 0, 0, 0, 1016]),
        ] {
            let (_, counts, payload_bytes) = decode(KIB, &blocks);
            let ElinkCounts { chunks, chunks_timed_out, chunks_broken, orphans, .. } = counts;
            let found = [chunks, chunks_timed_out, chunks_broken, orphans, payload_bytes as u64];
            assert_eq!(found, wanted);
        }
    }

    /// Returns the subchunks of a block from its end, one by one, as a slow reference.
    fn one_by_one(block: &[u8], width: TrailerWidth) -> Result<Vec<(Trailer, usize)>, BlockError> {
        let (mut end, mut found) = (block.len(), Vec::new());
        while end > HEADER_BYTES {
            let at = end - width.bytes();
            let word = match width {
                TrailerWidth::W32 => u32::from_le_bytes(block[at..end].try_into().unwrap()),
                TrailerWidth::W16 => u16::from_le_bytes(block[at..end].try_into().unwrap()).into(),
            };
            let trailer = Trailer::of_word(word, width);
            let length = match trailer.kind {
                SubchunkKind::Undefined => return Err(BlockError::Undefined { at }),
                SubchunkKind::Null | SubchunkKind::OutOfBand => 0,
                _ => trailer.length,
            };
            let extent = usize::from(length).next_multiple_of(width.bytes());
            end = at
                .checked_sub(extent)
                .filter(|begin| *begin >= HEADER_BYTES)
                .ok_or(BlockError::Length { at, length })?;
            found.insert(0, (trailer, end));
        }
        Ok(found)
    }

    fn walked(format: BlockFormat, block: &[u8]) -> Result<Vec<(Trailer, usize)>, BlockError> {
        let mut room = vec![Subchunk::default(); most_subchunks(format)];
        let by_parts = parts(format, block, &mut room).map(|(_, parts)| expanded(parts));
        let (_, found) = subchunks(format, block, &mut room)?;
        assert_eq!(by_parts.as_deref(), Ok(found));
        let seen = |found: &Subchunk| (found.trailer(), found.begin());
        Ok(found.iter().map(seen).collect())
    }

    fn expanded(parts: BlockParts<'_>) -> Vec<Subchunk> {
        let run = parts.run.iter();
        let run = run.flat_map(|run| (0..run.count).map(|at| run.skip(at).first()));
        let before = parts.before.iter().copied();
        before.chain(run).chain(parts.behind.iter().copied()).collect()
    }

    proptest! {
        /// Few different lengths make trailers repeat, and one changed byte cuts a run anywhere.
        #[test]
        fn runs_of_equal_trailers_are_walked_as_one_by_one(
            which in 0..4_usize,
            lengths in prop::collection::vec(prop_oneof![Just(0_usize), Just(24), Just(26), 0..400_usize], 1..200),
            at in 4..1024_usize, byte: u8,
        ) {
            let format = formats()[which];
            for mut block in encode(format, &numbered(&lengths)) {
                prop_assert_eq!(walked(format, &block), one_by_one(&block, format.trailer));
                block[at] = byte;
                prop_assert_eq!(walked(format, &block), one_by_one(&block, format.trailer));
                let at = block.len() - at % 64 - 1;
                block[at] = byte;
                prop_assert_eq!(walked(format, &block), one_by_one(&block, format.trailer));
            }
        }

        #[test]
        fn a_run_counts_what_its_parts_count(lengths in prop::collection::vec(prop_oneof![Just(24_usize), 0..600_usize], 1..200)) {
            let mut room = vec![Subchunk::default(); most_subchunks(KIB)];
            let (mut by_run, mut by_part) = (Reassembler::new(), Reassembler::new());
            for block in encode(KIB, &numbered(&lengths)) {
                let (header, found) = subchunks(KIB, &block, &mut room).unwrap();
                parts_of(&mut by_part, (header, found));
                by_run.begin(header);
                let (_, parts) = parts(KIB, &block, &mut room).unwrap();
                for (at, one) in parts.before.iter().enumerate() {
                    by_run.part(one, at == 0);
                }
                if let Some(run) = parts.run
                    && !by_run.take_run(&run)
                {
                    by_run.part(&run.first(), parts.before.is_empty());
                    prop_assert!(by_run.take_run(&run.skip(1)));
                }
                for one in parts.behind {
                    by_run.part(one, false);
                }
            }
            prop_assert_eq!(by_run, by_part);
        }

        #[test]
        fn what_is_encoded_is_decoded(which in 0..4_usize, lengths in prop::collection::vec(prop_oneof![0..64_usize, 900..1100_usize, 0..20_000_usize], 0..60)) {
            let format = formats()[which];
            let chunks = numbered(&lengths);
            let (found, counts, _) = decode(format, &encode(format, &chunks));
            prop_assert_eq!(found, chunks);
            prop_assert_eq!((counts.chunks_broken, counts.orphans, counts.blocks_missing), (0, 0, 0));
        }
    }
}
