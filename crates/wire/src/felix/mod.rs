//! FELIX: the blocks that a read-out card writes into host memory, and the chunks inside them.
//! A block holds data of one E-link: a 4-byte header, then subchunks. Each subchunk is a payload,
//! padding and a trailer with the length. Trailers come after their data, so a block is read from
//! its end backwards.
//! Begin with [`block`], then [`encoder`] and [`decoder`], which are inverses. [`payload`] has the
//! data of emulators and the trigger system; [`page`] has the transport between hosts.
//! Sources: the constants and parsers of the FELIX tools, confirmed by the block counts of a
//! published run (the study `readout`). It has 1 KiB blocks with 32-bit trailers, and the
//! last block of an E-link counts even if it is not full.

pub mod block;
pub mod decoder;
pub mod encoder;
pub mod page;
pub mod payload;
mod subchunks;

pub use block::{
    BlockError, BlockFormat, ChunkFlags, Elink, FelixHeader, SubchunkKind, Trailer, TrailerWidth,
};
pub use decoder::{ElinkCounts, Reassembler};
pub use encoder::Encoder;
pub use subchunks::{Subchunk, subchunks};

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from(le16(bytes, at + 2)) << 16 | u32::from(le16(bytes, at))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at + 4)) << 32 | u64::from(le32(bytes, at))
}

#[cfg(test)]
mod fixtures {
    use super::{BlockFormat, ChunkFlags, Elink, Encoder};

    pub(super) fn encode(format: BlockFormat, chunks: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut memory = vec![0; format.block_bytes];
        let mut blocks = Vec::new();
        let mut out = |block: &[u8]| blocks.push(block.to_vec());
        let mut encoder = Encoder::new(format, Elink::new(0x5C), &mut memory).unwrap();
        for chunk in chunks {
            encoder.chunk(chunk, ChunkFlags::default(), &mut out);
        }
        encoder.timeout(&mut out);
        blocks
    }

    pub(super) fn numbered(lengths: &[usize]) -> Vec<Vec<u8>> {
        let chunk = |(at, length): (usize, &usize)| vec![u8::try_from(at % 251).unwrap(); *length];
        lengths.iter().enumerate().map(chunk).collect()
    }
}
