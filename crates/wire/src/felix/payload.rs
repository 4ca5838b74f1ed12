//! Payload of chunks: the emulator's pattern, the trigger system's messages, and the identifiers of
//! streams.

use super::block::Elink;
use super::{le16, le32};

/// Header of the chunks of a card's own emulator; the bytes 0, 1, 2 and so on follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmulatorHeader {
    pub length: u16,
    /// Counter of the events, 8 bits.
    pub event: u8,
    pub elink_index: u8,
    /// Width of the E-link: 2, 4, 8 or 16 bits.
    pub width: u8,
}

const EMULATOR_HEADER_BYTES: usize = 8;

impl EmulatorHeader {
    pub fn emit(self) -> [u8; EMULATOR_HEADER_BYTES] {
        let [high, low] = self.length.to_be_bytes();
        [0xAA, high, low, self.event, self.elink_index, 0xBB, 0xAA, self.width]
    }

    pub fn fill(self, chunk: &mut [u8]) {
        let header = self.emit();
        let head = header.len().min(chunk.len());
        chunk[..head].copy_from_slice(&header[..head]);
        for (place, byte) in chunk[head..].iter_mut().zip((0..=255_u8).cycle()) {
            *place = byte;
        }
    }

    /// Tests marks, length and pattern, as far as a chunk goes. Chunks of 64 KiB and more state
    /// their length modulo 2^16.
    #[inline]
    pub fn is_in(chunk: &[u8]) -> bool {
        let [.., high, low] = chunk.len().to_be_bytes();
        let head = [(0, 0xAA), (1, high), (2, low), (5, 0xBB), (6, 0xAA)];
        let is_there =
            |(at, wanted): &(usize, u8)| chunk.get(*at).is_none_or(|found| found == wanted);
        let mut pattern = chunk.iter().skip(EMULATOR_HEADER_BYTES).zip((0..=255_u8).cycle());
        head.iter().all(is_there) && pattern.all(|(found, wanted)| *found == wanted)
    }
}

/// A message of the trigger system towards the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttc {
    /// Format 1 (20 bytes, without the counter of accepts) or 2 (26 bytes).
    pub format: u8,
    /// Bunch crossing, 12 bits.
    pub bcid: u16,
    /// Number of the accepted trigger since the last reset, 24 bits.
    pub l1id: u32,
    pub ecr: u8,
    pub orbit: u32,
    pub trigger_type: u16,
    /// Number of the level-0 trigger; its low 24 bits are the L1ID.
    pub l0id: u32,
    /// Accepts since the start, 48 bits; 0 in format 1.
    pub accepts: u64,
}

/// LHC: bunch crossings in an orbit.
pub const BUNCHES_PER_ORBIT: u16 = 3564;
pub const TTC_BYTES: usize = 26;
pub(crate) const TTC_FORMAT1_BYTES: usize = 20;

impl Ttc {
    /// Returns the bytes of format 2; the first 20 of them are format 1.
    pub fn emit(self) -> [u8; TTC_BYTES] {
        let mut out = [0; TTC_BYTES];
        let length = if self.format == 1 { TTC_FORMAT1_BYTES } else { TTC_BYTES };
        out[0] = self.format;
        out[1] = length.to_le_bytes()[0];
        out[2..4].copy_from_slice(&(self.bcid & 0xFFF).to_le_bytes());
        out[4..7].copy_from_slice(&self.l1id.to_le_bytes()[..3]);
        out[7] = self.ecr;
        out[8..12].copy_from_slice(&self.orbit.to_le_bytes());
        out[12..14].copy_from_slice(&self.trigger_type.to_le_bytes());
        out[16..20].copy_from_slice(&self.l0id.to_le_bytes());
        if self.format != 1 {
            out[20..].copy_from_slice(&self.accepts.to_le_bytes()[..6]);
        }
        out
    }

    pub fn parse(bytes: &[u8]) -> Option<Ttc> {
        let wanted = match bytes.first()? {
            1 => TTC_FORMAT1_BYTES,
            2 => TTC_BYTES,
            _ => return None,
        };
        if bytes.len() != wanted || usize::from(bytes[1]) != wanted {
            return None;
        }
        let is_long = wanted == TTC_BYTES;
        let accepts =
            if is_long { u64::from(le16(bytes, 24)) << 32 | u64::from(le32(bytes, 20)) } else { 0 };
        Some(Ttc {
            format: bytes[0],
            bcid: le16(bytes, 2) & 0xFFF,
            l1id: le32(bytes, 4) & 0xFF_FFFF,
            ecr: bytes[7],
            orbit: le32(bytes, 8),
            trigger_type: le16(bytes, 12),
            l0id: le32(bytes, 16),
            accepts,
        })
    }

    pub fn is_consistent(&self) -> bool {
        self.l0id & 0xFF_FFFF == self.l1id
    }
}

/// Number of a stream in the whole experiment: 64 bits. The bits of virtual links, of streams to
/// the card, of the protocol and of streams within an E-link are 0, and are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fid {
    /// Detector, 8 bits.
    pub detector: u8,
    /// Connector, 16 bits.
    pub connector: u16,
    /// Link, 13 bits.
    pub link: u16,
    /// E-link, 6 bits.
    pub elink: u8,
}

const FID_VERSION: u64 = 1;

impl Fid {
    /// Returns the fid of an E-link of a detector's connector, from the card.
    pub fn of_elink(detector: u8, connector: u16, elink: Elink) -> Fid {
        Fid { detector, connector, link: elink.link().into(), elink: elink.index() }
    }

    pub fn to_u64(self) -> u64 {
        FID_VERSION << 60
            | u64::from(self.detector) << 52
            | u64::from(self.connector) << 36
            | u64::from(self.link & 0x1FFF) << 22
            | u64::from(self.elink & 0x3F) << 16
    }

    /// Reads the number; `None` for another version.
    pub fn of_u64(number: u64) -> Option<Fid> {
        if number >> 60 != FID_VERSION {
            return None;
        }
        let field = |shift: u32| (number >> shift).to_le_bytes();
        let wide = |shift| le16(&field(shift), 0);
        Some(Fid {
            detector: field(52)[0],
            connector: wide(36),
            link: wide(22) & 0x1FFF,
            elink: field(16)[0] & 0x3F,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_emulator_s_pattern_is_found_and_one_wrong_byte_too() {
        let mut chunk = [0; 300];
        let header = EmulatorHeader { length: 300, event: 7, elink_index: 12, width: 8 };
        header.fill(&mut chunk);
        assert_eq!(chunk[..10], [0xAA, 1, 44, 7, 12, 0xBB, 0xAA, 8, 0, 1]);
        assert!(EmulatorHeader::is_in(&chunk) && EmulatorHeader::is_in(&[]));
        assert!(!EmulatorHeader::is_in(&chunk[..299]));
        chunk[200] ^= 1;
        assert!(!EmulatorHeader::is_in(&chunk));
    }

    #[test]
    fn trigger_messages_lie_as_the_tools_expect_them() {
        let ttc = Ttc {
            format: 2,
            bcid: 0xABC,
            l1id: 0x12_3456,
            ecr: 9,
            orbit: 0x0102_0304,
            trigger_type: 0x55AA,
            l0id: 0x0912_3456,
            accepts: 0x0000_A1B2_C3D4_E5F6 & 0xFFFF_FFFF_FFFF,
        };
        let bytes = ttc.emit();
        assert_eq!(bytes[..8], [2, 26, 0xBC, 0x0A, 0x56, 0x34, 0x12, 9]);
        assert_eq!(bytes[8..14], [4, 3, 2, 1, 0xAA, 0x55]);
        assert_eq!(Ttc::parse(&bytes), Some(ttc));
        assert!(ttc.is_consistent());
        let short = Ttc { format: 1, accepts: 0, ..ttc };
        assert_eq!(Ttc::parse(&short.emit()[..20]), Some(short));
        assert_eq!(Ttc::parse(&short.emit()), None);
        assert_eq!(Ttc::parse(&bytes[..25]), None);
        assert_eq!(Ttc::parse(&[]), None);
    }

    proptest! {
        #[test]
        fn fids_of_version_1_are_read_back(number: u64) {
            // Without the bits between connector and link, and those below the E-link.
            let kept = number & !(1 << 35 | 0xFFFF) & (u64::MAX >> 4) | FID_VERSION << 60;
            prop_assert_eq!(Fid::of_u64(number & (u64::MAX >> 4) | FID_VERSION << 60).unwrap().to_u64(), kept);
            prop_assert_eq!(Fid::of_u64(kept ^ 1 << 61), None);
        }
    }

    #[test]
    fn an_e_link_s_fid_names_link_and_index() {
        let fid = Fid::of_elink(0, 0, Elink::of_link(1, 28));
        assert_eq!(fid.to_u64(), 0x1000_0000_005C_0000);
    }
}
