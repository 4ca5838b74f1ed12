//! Encoder of chunks into blocks, as the card's firmware packs them.

use super::block::{
    BlockError, BlockFormat, ChunkFlags, Elink, FelixHeader, HEADER_BYTES, SubchunkKind, Trailer,
};

/// Function that takes each full block.
pub type BlockOut<'a> = &'a mut dyn FnMut(&[u8]);

#[derive(Debug)]
pub struct Encoder<B> {
    format: BlockFormat,
    elink: Elink,
    sequence: u8,
    block: B,
    used: usize,
}

impl<B: AsMut<[u8]>> Encoder<B> {
    pub fn new(format: BlockFormat, elink: Elink, mut block: B) -> Result<Encoder<B>, BlockError> {
        let found = block.as_mut().len();
        if found != format.block_bytes {
            return Err(BlockError::Size { found, wanted: format.block_bytes });
        }
        Ok(Encoder { format, elink, sequence: 0, block, used: HEADER_BYTES })
    }

    pub fn room(&self) -> usize {
        self.format.block_bytes - self.used
    }

    pub fn is_empty(&self) -> bool {
        self.used == HEADER_BYTES
    }

    /// Packs a chunk over as many blocks as it needs. The flags are those of its end.
    pub fn chunk(&mut self, payload: &[u8], flags: ChunkFlags, out: BlockOut<'_>) {
        let trailer_bytes = self.format.trailer.bytes();
        if self.format.padded(payload.len()) + trailer_bytes <= self.room() {
            self.put(SubchunkKind::Both, payload, flags, out);
            return;
        }
        if self.room() == trailer_bytes {
            // The block has no room for a byte of it. An empty FIRST would also do, but counts
            // could not tell it apart.
            self.put(SubchunkKind::Null, &[], ChunkFlags::default(), out);
            self.chunk(payload, flags, out);
            return;
        }
        let (first, mut rest) = payload.split_at(self.room() - trailer_bytes);
        self.put(SubchunkKind::First, first, ChunkFlags::default(), out);
        let most = self.format.body_bytes() - trailer_bytes;
        while rest.len() > most {
            let (middle, after) = rest.split_at(most);
            self.put(SubchunkKind::Middle, middle, ChunkFlags::default(), out);
            rest = after;
        }
        self.put(SubchunkKind::Last, rest, flags, out);
    }

    pub fn out_of_band(&mut self, out: BlockOut<'_>) {
        self.put(SubchunkKind::OutOfBand, &[], ChunkFlags::default(), out);
    }

    /// Closes the present block, as the firmware does after a while without data. An empty block
    /// stays.
    pub fn timeout(&mut self, out: BlockOut<'_>) {
        if self.is_empty() {
            return;
        }
        let unused = self.room() - self.format.trailer.bytes();
        let end = self.used + unused;
        self.block.as_mut()[self.used..end].fill(0);
        self.used = end;
        let length = u16::try_from(unused).expect("a block has at most 16 KiB");
        let (kind, flags) = (SubchunkKind::Timeout, ChunkFlags::default());
        self.trailer(Trailer { kind, flags, length }, out);
    }

    fn put(&mut self, kind: SubchunkKind, payload: &[u8], flags: ChunkFlags, out: BlockOut<'_>) {
        let padded = self.format.padded(payload.len());
        let (data, pad) =
            self.block.as_mut()[self.used..self.used + padded].split_at_mut(payload.len());
        data.copy_from_slice(payload);
        pad.fill(0);
        self.used += padded;
        let length = u16::try_from(payload.len()).expect("a block has at most 16 KiB");
        self.trailer(Trailer { kind, flags, length }, out);
    }

    /// Writes a trailer, and hands over a full block.
    fn trailer(&mut self, trailer: Trailer, out: BlockOut<'_>) {
        let bytes = self.format.trailer.bytes();
        let word = trailer.word(self.format.trailer).to_le_bytes();
        let block = self.block.as_mut();
        block[self.used..self.used + bytes].copy_from_slice(&word[..bytes]);
        self.used += bytes;
        if self.used == block.len() {
            let header = FelixHeader {
                elink: self.elink,
                sequence: self.sequence,
                magic: self.format.magic,
            };
            block[..HEADER_BYTES].copy_from_slice(&header.emit());
            out(block);
            self.sequence = (self.sequence + 1) & 0x1F;
            self.used = HEADER_BYTES;
        }
    }
}

/// Computes the number of blocks. The packing repeats as soon as a chunk ends where an earlier one
/// did, which Brent's algorithm finds (BIT 20, 1980, section 2): a mark that moves ahead by powers
/// of two.
pub fn blocks_of(format: BlockFormat, length: usize, chunks: u64) -> u64 {
    let (mut used, mut blocks, mut done) = (0, 0, 0);
    let (mut mark, mut reach) = ((used, blocks, done), 1);
    while done < chunks {
        let filled;
        (used, filled) = after_chunk(format, length, used);
        (blocks, done) = (blocks + filled, done + 1);
        let period = done - mark.2;
        if used == mark.0 {
            let periods = (chunks - done) / period;
            blocks += periods * (blocks - mark.1);
            done += periods * period;
        }
        if period == reach {
            (mark, reach) = ((used, blocks, done), 2 * reach);
        }
    }
    blocks + u64::from(used > 0)
}

/// Returns the state after a chunk, by the steps of [`Encoder::chunk`].
fn after_chunk(format: BlockFormat, length: usize, used: usize) -> (usize, u64) {
    let (body, trailer) = (format.body_bytes(), format.trailer.bytes());
    let room = body - used;
    let (used, filled) = if format.padded(length) + trailer <= room {
        (used + format.padded(length) + trailer, 0)
    } else if room == trailer {
        let (used, filled) = after_chunk(format, length, 0);
        return (used, filled + 1);
    } else {
        let rest = length - (room - trailer);
        let middles = (rest - 1) / (body - trailer);
        (format.padded(rest - middles * (body - trailer)) + trailer, 1 + middles as u64)
    };
    if used == body { (0, filled + 1) } else { (used, filled) }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::felix::fixtures::{encode, numbered};

    const KIB: BlockFormat = BlockFormat::phase2(1).unwrap();

    #[test]
    fn published_packings_of_short_chunks() {
        for (length, chunks, blocks) in
            [(16, 51, 1), (20, 127, 3), (24, 109, 3), (28, 127, 4), (32, 113, 4), (26, 127, 4)]
        {
            assert_eq!(blocks_of(KIB, length, chunks), blocks, "{length} bytes");
            // The block has no room for one more chunk; four bytes that are left take a NULL.
            assert_eq!(blocks_of(KIB, length, chunks + 1), blocks + 1, "{length} bytes");
        }
    }

    #[test]
    fn arithmetic_and_encoder_agree_for_every_length_and_format() {
        for format in [KIB, BlockFormat::PHASE1, BlockFormat::phase2(4).unwrap()] {
            for length in
                (0..100).chain([1000, 1011, 1012, 1013, 1016, 1017, 1020, 1021, 2032, 5000, 9999])
            {
                for chunks in [1, 2, 3, 60] {
                    let blocks = encode(format, &vec![vec![0; length]; chunks]).len() as u64;
                    let counted = blocks_of(format, length, chunks as u64);
                    assert_eq!(counted, blocks, "{format:?} {length} x {chunks}");
                }
            }
        }
    }

    #[test]
    fn sequence_numbers_count_from_0_and_wrap_after_31() {
        let blocks = encode(KIB, &numbered(&[1016; 40]));
        for (at, block) in blocks.iter().enumerate() {
            let header = FelixHeader::parse(block[..4].try_into().unwrap());
            assert_eq!((usize::from(header.sequence), header.magic), (at % 32, 0xC0CE));
        }
    }

    #[test]
    fn memory_that_is_no_block_is_refused() {
        assert!(matches!(
            Encoder::new(KIB, Elink::TTC, [0_u8; 100]),
            Err(BlockError::Size { found: 100, wanted: 1024 })
        ));
    }
}
