//! The LiteX dialect: one record per packet, an 8-byte header despite widths of 32/32, flags always
//! 0, all byte lanes enabled. It has no config space and no errors, and writes are unanswered.

use super::message::{MAGIC, VERSION};
use super::record::put;
use super::{EbLayout, EbRecord, RecordFlags, RecordHeader, WireError, need};

pub const HEADER_BYTES: usize = 8;
pub const PROBE_BYTES: usize = 12;

const REQUEST: [u8; 4] = [0x4e, 0x6f, 0x10, 0x44];
const PROBE: [u8; 4] = [0x4e, 0x6f, 0x11, 0x44];

/// Returns the probe that LiteX's CommUDP sends.
pub fn probe() -> [u8; PROBE_BYTES] {
    let mut bytes = [0; PROBE_BYTES];
    bytes[..4].copy_from_slice(&PROBE);
    bytes
}

pub fn answer_probe(packet: &[u8]) -> Option<[u8; PROBE_BYTES]> {
    let mut answer: [u8; PROBE_BYTES] = packet.try_into().ok()?;
    let asked = answer[..4] == PROBE && answer[4..] == [0; 8];
    answer[2] = VERSION << 4 | 0x02;
    asked.then_some(answer)
}

pub fn recognise(bytes: &[u8]) -> Option<bool> {
    let magic = MAGIC.to_be_bytes();
    let same = |part: &[u8], at: usize| {
        bytes.iter().skip(at).zip(part).all(|(found, wanted)| found == wanted)
    };
    if !same(&magic, 0) || bytes.len() > 3 && bytes[3] != 0x44 || !same(&[0; 5], 4) {
        return Some(false);
    }
    // An empty record would be padding of the other dialect; here a record always enables bytes.
    if bytes.len() < 12 { None } else { Some(bytes[9] != 0 && (bytes[10] != 0 || bytes[11] != 0)) }
}

/// Splits a packet into its one record and the rest (empty in a datagram).
pub fn split(bytes: &[u8]) -> Result<(EbRecord<'_>, &[u8]), WireError> {
    need(bytes, HEADER_BYTES)?;
    super::EbHeader::parse(bytes)?;
    EbRecord::split(EbLayout::L32, &bytes[HEADER_BYTES..]).map_err(|error| match error {
        WireError::Truncated { wanted, found } => {
            WireError::Truncated { wanted: wanted + HEADER_BYTES, found: found + HEADER_BYTES }
        }
        other => other,
    })
}

/// Writes a packet of one record: values to the words from `base` on, or the addresses of a read
/// with an answer to `base`. Returns its bytes.
pub fn emit(write: bool, base: u64, values: &[u64], out: &mut [u8]) -> Result<usize, WireError> {
    let count = u8::try_from(values.len()).ok().filter(|count| *count > 0);
    let count = count.ok_or(WireError::Overflow)?;
    let (writes, reads) = if write { (count, 0) } else { (0, count) };
    let header = RecordHeader { flags: RecordFlags(0), select: 0x0F, writes, reads };
    let length = HEADER_BYTES + EbLayout::L32.header_bytes() + header.body_bytes(EbLayout::L32);
    let out = out.get_mut(..length).ok_or(WireError::Overflow)?;
    out[..4].copy_from_slice(&REQUEST);
    out[4..8].fill(0);
    out[8..12].copy_from_slice(&header.emit());
    let words = core::iter::once(&base).chain(values);
    out[12..].chunks_exact_mut(4).zip(words).for_each(|(out, word)| put(out, 4, *word));
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_read_is_the_20_bytes_of_wishbone_tool() {
        let mut out = [0xAA; 64];
        let length = emit(false, 0, &[0xf000_0000], &mut out).unwrap();
        let wanted = [0x4e, 0x6f, 0x10, 0x44, 0, 0, 0, 0, 0, 0x0f, 0, 1, 0, 0, 0, 0, 0xf0, 0, 0, 0];
        assert_eq!(out[..length], wanted);
        assert_eq!(recognise(&wanted), Some(true));
        let (record, rest) = split(&wanted).unwrap();
        assert!(rest.is_empty());
        assert_eq!(record.read_block().unwrap().1.next(), Some(0xf000_0000));
    }

    #[test]
    fn the_other_dialect_and_its_probe_are_not_taken_for_this_one() {
        // A checked read, a write, and one after a word of padding, of the C master.
        for other in [
            &[0x4e, 0x6f, 0x10, 0x44, 0xa0, 0x0f, 0, 1, 0, 0, 0x80, 0][..],
            &[0x4e, 0x6f, 0x10, 0x88, 0, 0, 0, 0, 0xa0, 0xff, 0, 1],
            &[0x4e, 0x6f, 0x10, 0x44, 0, 0, 0, 0, 0xa8, 0x0f, 0, 1],
            &[0x4e, 0x6f, 0x10, 0x44, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(recognise(other), Some(false), "{other:x?}");
        }
        assert_eq!(recognise(&[0x4e, 0x6f, 0x10, 0x44, 0, 0]), None);
        assert_eq!(answer_probe(&probe()).unwrap()[..4], [0x4e, 0x6f, 0x12, 0x44]);
        assert_eq!(answer_probe(&probe()[..8]), None);
        assert_eq!(answer_probe(&[0x4e, 0x6f, 0x11, 0x44, 0, 0, 0, 1, 0, 0, 0, 0]), None);
    }

    #[test]
    fn truncated_packets_say_what_they_need() {
        let mut out = [0; 64];
        let length = emit(true, 4, &[1, 2], &mut out).unwrap();
        for cut in 0..length {
            assert!(split(&out[..cut]).is_err());
        }
        for wrong in [&[][..], &[0; 256]] {
            assert_eq!(emit(true, 0, wrong, &mut [0; 2000]), Err(WireError::Overflow));
        }
        assert_eq!(emit(true, 0, &[0; 255], &mut [0; 100]), Err(WireError::Overflow));
        assert_eq!(split(&out[..14]), Err(WireError::Truncated { wanted: length, found: 14 }));
    }
}
