//! Block headers, E-links, trailers.

/// Bytes of a block header.
pub const HEADER_BYTES: usize = 4;
/// The smallest block, and the unit of the others.
pub(crate) const BLOCK_UNIT_BYTES: usize = 1024;

/// An E-link: a serial stream inside a link, 11 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Elink(u16);

impl Elink {
    /// The E-link that carries the trigger system's own messages.
    pub const TTC: Elink = Elink(0x600);
    /// Highest number.
    pub const MOST: u16 = 0x7FF;

    /// From its number, of which 11 bits count.
    pub const fn new(number: u16) -> Elink {
        Elink(number & Elink::MOST)
    }

    /// From link (0 to 31) and index within the link (0 to 63): egroup times 8 plus epath.
    pub const fn of_link(link: u8, index: u8) -> Elink {
        Elink(((link & 0x1F) as u16) << 6 | (index & 0x3F) as u16)
    }

    /// The number.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The link, 0 to 31.
    pub const fn link(self) -> u8 {
        (self.0 >> 6).to_be_bytes()[1]
    }

    /// Index within the link, 0 to 63.
    pub const fn index(self) -> u8 {
        (self.0 & 0x3F) as u8
    }
}

/// `01-28`: link and index, as the tools of Phase II print them.
impl core::fmt::Display for Elink {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:02}-{:02}", self.link(), self.index())
    }
}

/// Width of the trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrailerWidth {
    /// 16 bits: 10 bits of length, no busy flag.
    W16,
    /// 32 bits: 16 bits of length.
    W32,
}

impl TrailerWidth {
    /// Bytes: 2 or 4. Payloads are padded to a multiple of it.
    pub const fn bytes(self) -> usize {
        match self {
            TrailerWidth::W16 => 2,
            TrailerWidth::W32 => 4,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockFormat {
    /// Second half of the header.
    pub magic: u16,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Width of the trailers.
    pub trailer: TrailerWidth,
}

impl BlockFormat {
    /// Phase I: 1 KiB, 16-bit trailers, magic ABCD.
    pub const PHASE1: BlockFormat =
        BlockFormat { magic: 0xABCD, block_bytes: BLOCK_UNIT_BYTES, trailer: TrailerWidth::W16 };

    /// Phase II: 1 to 16 KiB, 32-bit trailers; the size is in the magic.
    pub const fn phase2(kib: u8) -> Option<BlockFormat> {
        if kib == 0 || kib > 16 {
            return None;
        }
        let code = kib as u16 - 1;
        let magic = 0xC0CE | code << 8;
        Some(BlockFormat {
            magic,
            block_bytes: kib as usize * BLOCK_UNIT_BYTES,
            trailer: TrailerWidth::W32,
        })
    }

    /// Phase I firmware with 32-bit trailers, magic ABCE; the size is known from a register only.
    pub const fn phase1_wide(kib: u8) -> Option<BlockFormat> {
        match BlockFormat::phase2(kib) {
            Some(format) => Some(BlockFormat { magic: 0xABCE, ..format }),
            None => None,
        }
    }

    /// From the magic; the size of ABCE blocks must be told.
    pub const fn of_magic(magic: u16, abce_kib: u8) -> Option<BlockFormat> {
        match magic {
            0xABCD => Some(BlockFormat::PHASE1),
            0xABCE => BlockFormat::phase1_wide(abce_kib),
            magic if magic & 0xF0FF == 0xC0CE => BlockFormat::phase2((magic >> 8 & 0xF) as u8 + 1),
            _ => None,
        }
    }

    /// Bytes between the header and the end.
    pub const fn body_bytes(self) -> usize {
        self.block_bytes - HEADER_BYTES
    }

    /// A length padded to whole trailers.
    pub const fn padded(self, length: usize) -> usize {
        // Trailers have 2 or 4 bytes: no division.
        let last = self.trailer.bytes() - 1;
        (length + last) & !last
    }
}

/// The first four bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FelixHeader {
    /// Whose data it holds.
    pub elink: Elink,
    /// Counts the blocks of the E-link, 0 to 31.
    pub sequence: u8,
    /// Generation and size.
    pub magic: u16,
}

impl FelixHeader {
    /// From four bytes, little-endian.
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> FelixHeader {
        let low = u16::from_le_bytes([bytes[0], bytes[1]]);
        let magic = u16::from_le_bytes([bytes[2], bytes[3]]);
        FelixHeader { elink: Elink::new(low), sequence: low.to_be_bytes()[0] >> 3, magic }
    }

    /// The four bytes.
    pub fn emit(self) -> [u8; HEADER_BYTES] {
        let low = (u16::from(self.sequence & 0x1F) << 11 | self.elink.number()).to_le_bytes();
        let magic = self.magic.to_le_bytes();
        [low[0], low[1], magic[0], magic[1]]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SubchunkKind {
    /// Filler without payload, whatever its length says.
    Null = 0,
    /// A chunk begins and goes on in the E-link's next block.
    First = 1,
    /// A chunk that began earlier ends.
    Last = 2,
    /// A whole chunk.
    Both = 3,
    /// The inside of a chunk.
    Middle = 4,
    /// The block was closed by a timeout; data only with the truncation flag.
    Timeout = 5,
    /// Not defined: always an error.
    Undefined = 6,
    /// A marker without payload.
    OutOfBand = 7,
}

impl SubchunkKind {
    /// From three bits.
    pub(crate) const fn of_bits(bits: u8) -> SubchunkKind {
        use SubchunkKind::*;
        match bits & 7 {
            0 => Null,
            1 => First,
            2 => Last,
            3 => Both,
            4 => Middle,
            5 => Timeout,
            6 => Undefined,
            _ => OutOfBand,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChunkFlags {
    /// The card cut it off.
    pub truncated: bool,
    /// The card found an error.
    pub error: bool,
    pub crc: bool,
    /// The sender was busy; 32-bit trailers only.
    pub busy: bool,
}

impl ChunkFlags {
    /// The flags that either has.
    pub(crate) fn with(self, other: ChunkFlags) -> ChunkFlags {
        ChunkFlags {
            truncated: self.truncated | other.truncated,
            error: self.error | other.error,
            crc: self.crc | other.crc,
            busy: self.busy | other.busy,
        }
    }
}

/// The end of a subchunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub kind: SubchunkKind,
    pub flags: ChunkFlags,
    /// Bytes of payload, without padding.
    pub length: u16,
}

impl Trailer {
    /// From the word before the end, of which a 16-bit trailer is the low half.
    #[inline]
    pub(crate) fn of_word(word: u32, width: TrailerWidth) -> Trailer {
        let bit = |bit: u32| word >> bit & 1 == 1;
        let bytes = word.to_be_bytes();
        match width {
            TrailerWidth::W32 => Trailer {
                kind: SubchunkKind::of_bits(bytes[0] >> 5),
                flags: ChunkFlags {
                    truncated: bit(28),
                    error: bit(27),
                    crc: bit(26),
                    busy: bit(25),
                },
                length: u16::from_be_bytes([bytes[2], bytes[3]]),
            },
            TrailerWidth::W16 => Trailer {
                kind: SubchunkKind::of_bits(bytes[2] >> 5),
                flags: ChunkFlags { truncated: bit(12), error: bit(11), crc: bit(10), busy: false },
                length: u16::from_be_bytes([bytes[2], bytes[3]]) & 0x3FF,
            },
        }
    }

    /// The word; of a 16-bit trailer the low half counts.
    pub fn word(self, width: TrailerWidth) -> u32 {
        let flag = |on: bool, bit: u32| u32::from(on) << bit;
        let (kind, flags, length) = (self.kind as u32, self.flags, u32::from(self.length));
        match width {
            TrailerWidth::W32 => {
                kind << 29
                    | flag(flags.truncated, 28)
                    | flag(flags.error, 27)
                    | flag(flags.crc, 26)
                    | flag(flags.busy, 25)
                    | length
            }
            TrailerWidth::W16 => {
                kind << 13
                    | flag(flags.truncated, 12)
                    | flag(flags.error, 11)
                    | flag(flags.crc, 10)
                    | length & 0x3FF
            }
        }
    }

    /// Fillers have none, whatever their length says, and a timeout only when it cut a chunk off.
    #[inline]
    pub fn carries_data(&self) -> bool {
        match self.kind {
            SubchunkKind::First
            | SubchunkKind::Last
            | SubchunkKind::Both
            | SubchunkKind::Middle => true,
            SubchunkKind::Timeout => self.flags.truncated,
            SubchunkKind::Null | SubchunkKind::OutOfBand | SubchunkKind::Undefined => false,
        }
    }
}

/// Why bytes are not a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Not as many bytes as the format says.
    #[error("{found} bytes instead of a block of {wanted}")]
    Size {
        /// Bytes that there are.
        found: usize,
        /// Bytes of a block.
        wanted: usize,
    },
    /// The header does not have the format's magic.
    #[error("block id {0:#06x} is not that of this format")]
    Magic(u16),
    /// The payload that ends here would begin before the body does.
    #[error("the trailer at {at:#x} claims {length} bytes, more than there are before it")]
    Length {
        /// Offset of the trailer in the block.
        at: usize,
        length: u16,
    },
    /// A trailer of undefined type.
    #[error("the trailer at {at:#x} has the undefined type 6")]
    Undefined {
        /// Offset of the trailer in the block.
        at: usize,
    },
    /// More subchunks than the caller made room for.
    #[error("more subchunks than there is room for")]
    Room,
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::string::ToString;

    #[test]
    fn e_links_are_numbered_by_link_egroup_and_epath() {
        let elink = Elink::new(0x05C);
        assert_eq!((elink.link(), elink.index()), (1, 3 * 8 + 4), "group 3, path 4");
        assert_eq!(elink.to_string(), "01-28");
        assert_eq!(Elink::of_link(1, 28), elink);
        assert_eq!(Elink::TTC.link(), 24);
        assert_eq!(Elink::new(0xFFFF).number(), 2047);
    }

    #[test]
    fn headers_are_one_little_endian_word() {
        let header = FelixHeader { elink: Elink::new(0x5C), sequence: 31, magic: 0xC0CE };
        assert_eq!(u32::from_le_bytes(header.emit()), 0xC0CE << 16 | 31 << 11 | 0x5C);
        for word in [0_u32, 0xC0CE_F85C, 0xABCD_0600, u32::MAX] {
            assert_eq!(FelixHeader::parse(word.to_le_bytes()).emit(), word.to_le_bytes());
        }
    }

    #[test]
    fn every_magic_gives_its_size_and_trailer() {
        let of = |magic| {
            BlockFormat::of_magic(magic, 2)
                .map(|format| (format.block_bytes / 1024, format.trailer.bytes()))
        };
        for (magic, wanted) in [
            (0xABCD, Some((1, 2))),
            (0xABCE, Some((2, 4))),
            (0xC0CE, Some((1, 4))),
            (0xC1CE, Some((2, 4))),
            (0xC3CE, Some((4, 4))),
            (0xC7CE, Some((8, 4))),
            (0xCFCE, Some((16, 4))),
            (0xC0CF, None),
            (0, None),
        ] {
            assert_eq!(of(magic), wanted, "{magic:#x}");
        }
        assert_eq!(BlockFormat::phase2(17), None);
        assert_eq!(BlockFormat::of_magic(0xABCE, 0), None);
    }

    #[test]
    fn trailers_are_read_back_in_both_widths() {
        use TrailerWidth::{W16, W32};
        for (bits, flags) in (0..8).flat_map(|bits| (0..16_u8).map(move |flags| (bits, flags))) {
            let bit = |at: u8| flags >> at & 1 == 1;
            let flags = ChunkFlags { truncated: bit(0), error: bit(1), crc: bit(2), busy: bit(3) };
            let trailer = Trailer { kind: SubchunkKind::of_bits(bits), flags, length: 0x3A5 };
            assert_eq!(Trailer::of_word(trailer.word(W32), W32), trailer);
            let narrow = Trailer { flags: ChunkFlags { busy: false, ..flags }, ..trailer };
            assert_eq!(Trailer::of_word(trailer.word(W16), W16), narrow);
        }
        let both = Trailer { kind: SubchunkKind::Both, flags: ChunkFlags::default(), length: 24 };
        assert_eq!((both.word(W32), both.word(W16)), (0x6000_0018, 0x6018));
    }
}
