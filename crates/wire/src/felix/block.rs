use super::le16;

pub const HEADER_BYTES: usize = 4;
/// The smallest block, and the unit of the others.
pub(crate) const BLOCK_UNIT_BYTES: usize = 1024;

/// An E-link: a serial stream inside a link, 11 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Elink(u16);

impl Elink {
    pub const TTC: Elink = Elink(0x600);
    pub const MAX: u16 = 0x7FF;

    /// Takes the low 11 bits of the number.
    pub const fn new(number: u16) -> Elink {
        Elink(number & Elink::MAX)
    }

    /// Takes link (0 to 31) and index within the link (0 to 63): egroup times 8 plus epath.
    pub const fn of_link(link: u8, index: u8) -> Elink {
        Elink(((link & 0x1F) as u16) << 6 | (index & 0x3F) as u16)
    }

    pub const fn number(self) -> u16 {
        self.0
    }

    pub const fn link(self) -> u8 {
        (self.0 >> 6).to_be_bytes()[1]
    }

    pub const fn index(self) -> u8 {
        (self.0 & 0x3F) as u8
    }
}

/// Prints link and index, like `01-28`, as the tools of Phase II do.
impl core::fmt::Display for Elink {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:02}-{:02}", self.link(), self.index())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrailerWidth {
    /// Trailers of 16 bits: 10 bits of length, no busy flag.
    W16 = 2,
    /// Trailers of 32 bits: 16 bits of length.
    W32 = 4,
}

impl TrailerWidth {
    /// Returns the bytes: 2 or 4. Payloads are padded to a multiple of it.
    pub const fn bytes(self) -> usize {
        self as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockFormat {
    pub magic: u16,
    pub block_bytes: usize,
    pub trailer: TrailerWidth,
}

impl BlockFormat {
    /// Format of Phase I: 1 KiB, 16-bit trailers, magic ABCD.
    pub const PHASE1: BlockFormat =
        BlockFormat { magic: 0xABCD, block_bytes: BLOCK_UNIT_BYTES, trailer: TrailerWidth::W16 };

    /// Returns a format of Phase II: 1 to 16 KiB, 32-bit trailers; the size is in the magic.
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

    /// Returns the format of Phase I firmware with 32-bit trailers, magic ABCE; the size is known
    /// from a register only.
    pub fn phase1_wide(kib: u8) -> Option<BlockFormat> {
        BlockFormat::phase2(kib).map(|format| BlockFormat { magic: 0xABCE, ..format })
    }

    /// Returns the format of a magic; the size of ABCE blocks must be given.
    pub fn of_magic(magic: u16, abce_kib: u8) -> Option<BlockFormat> {
        match magic {
            0xABCD => Some(BlockFormat::PHASE1),
            0xABCE => BlockFormat::phase1_wide(abce_kib),
            magic if magic & 0xF0FF == 0xC0CE => BlockFormat::phase2((magic >> 8 & 0xF) as u8 + 1),
            _ => None,
        }
    }

    pub const fn body_bytes(self) -> usize {
        self.block_bytes - HEADER_BYTES
    }

    /// Pads a length to whole trailers.
    pub const fn padded(self, length: usize) -> usize {
        // Trailers have 2 or 4 bytes: a mask replaces the division.
        let last = self.trailer.bytes() - 1;
        (length + last) & !last
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FelixHeader {
    pub elink: Elink,
    /// Counter of the blocks of the E-link, 0 to 31.
    pub sequence: u8,
    pub magic: u16,
}

impl FelixHeader {
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> FelixHeader {
        let (low, magic) = (le16(&bytes, 0), le16(&bytes, 2));
        FelixHeader { elink: Elink::new(low), sequence: low.to_be_bytes()[0] >> 3, magic }
    }

    /// Parses the header of a block.
    ///
    /// # Panics
    /// When the block is shorter than a header.
    #[inline]
    pub fn of_block(block: &[u8]) -> FelixHeader {
        FelixHeader::parse(*block.first_chunk().expect("a block has a header"))
    }

    pub fn emit(self) -> [u8; HEADER_BYTES] {
        let low = (u16::from(self.sequence & 0x1F) << 11 | self.elink.number()).to_le_bytes();
        let magic = self.magic.to_le_bytes();
        [low[0], low[1], magic[0], magic[1]]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SubchunkKind {
    /// Filler without payload, whatever its length.
    Null = 0,
    /// Start of a chunk that goes on in the E-link's next block.
    First = 1,
    /// End of a chunk that began earlier.
    Last = 2,
    Both = 3,
    Middle = 4,
    /// Mark of a block closed by a timeout; data only with the truncation flag.
    Timeout = 5,
    Undefined = 6,
    /// Marker without payload.
    OutOfBand = 7,
}

impl SubchunkKind {
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
    pub truncated: bool,
    pub error: bool,
    pub crc: bool,
    /// True if the sender was busy; 32-bit trailers only.
    pub busy: bool,
}

impl ChunkFlags {
    pub(crate) fn with(self, other: ChunkFlags) -> ChunkFlags {
        ChunkFlags {
            truncated: self.truncated | other.truncated,
            error: self.error | other.error,
            crc: self.crc | other.crc,
            busy: self.busy | other.busy,
        }
    }
}

/// Length in a trailer of 16 bits.
const NARROW_LENGTH: u16 = 0x3FF;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub kind: SubchunkKind,
    pub flags: ChunkFlags,
    pub length: u16,
}

impl Trailer {
    // The high half of a wide trailer has the fields of a narrow one and the busy flag.
    #[inline]
    pub(crate) fn of_word(word: u32, width: TrailerWidth) -> Trailer {
        let (head, is_wide, mask) = match width {
            TrailerWidth::W32 => (word >> 16, true, u16::MAX),
            TrailerWidth::W16 => (word, false, NARROW_LENGTH),
        };
        let bit = |bit: u32| head >> bit & 1 == 1;
        let bytes = word.to_be_bytes();
        Trailer {
            kind: SubchunkKind::of_bits(head.to_be_bytes()[2] >> 5),
            flags: ChunkFlags {
                truncated: bit(12),
                error: bit(11),
                crc: bit(10),
                busy: is_wide && bit(9),
            },
            length: u16::from_be_bytes([bytes[2], bytes[3]]) & mask,
        }
    }

    /// Returns the word; only the low half of a 16-bit trailer counts.
    pub fn word(self, width: TrailerWidth) -> u32 {
        let flag = |on: bool, bit: u32| u32::from(on) << bit;
        let flags = self.flags;
        let head = (self.kind as u32) << 13
            | flag(flags.truncated, 12)
            | flag(flags.error, 11)
            | flag(flags.crc, 10);
        match width {
            TrailerWidth::W32 => (head | flag(flags.busy, 9)) << 16 | u32::from(self.length),
            TrailerWidth::W16 => head | u32::from(self.length & NARROW_LENGTH),
        }
    }

    /// Returns false for fillers, whatever their length, and for a timeout unless it cut a chunk
    /// off.
    #[inline]
    pub fn carries_data(&self) -> bool {
        use SubchunkKind::*;
        matches!(self.kind, First | Last | Both | Middle)
            || self.kind == Timeout && self.flags.truncated
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    #[error("{found} bytes instead of a block of {wanted}")]
    Size {
        /// Bytes given.
        found: usize,
        wanted: usize,
    },
    #[error("block id {0:#06x} is not that of this format")]
    Magic(u16),
    /// The payload of this trailer would begin before the body does.
    #[error("the trailer at {at:#x} claims {length} bytes, more than there are before it")]
    Length {
        /// Offset of the trailer in the block.
        at: usize,
        length: u16,
    },
    #[error("the trailer at {at:#x} has the undefined type 6")]
    Undefined {
        /// Offset of the trailer in the block.
        at: usize,
    },
    #[error("more subchunks than there is room for")]
    Room,
}

#[cfg(test)]
mod tests {
    use super::*;

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
