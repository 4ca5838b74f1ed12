//! The dialect of LiteX, LiteEth, wishbone-tool and libeb-c: the same magic, but not compatible.
//!
//! The message header always has 8 bytes although widths are 32/32, one record per packet, flags always 0, all byte lanes
//! enabled, no config space, no errors, writes unanswered.

use super::message::{MAGIC, VERSION};
use super::{EbBlock, EbLayout, EbRecord, RecordFlags, RecordRepr, WireError, need};

/// Bytes of the message header.
pub const HEADER_BYTES: usize = 8;
/// Bytes of the probe: header, four zeros, and what LiteX takes for a record.
pub const PROBE_BYTES: usize = 12;

const REQUEST: [u8; 4] = [0x4e, 0x6f, 0x10, 0x44];
const PROBE: [u8; 4] = [0x4e, 0x6f, 0x11, 0x44];

/// The probe that LiteX's CommUDP sends.
pub fn probe() -> [u8; PROBE_BYTES] {
    let mut bytes = [0; PROBE_BYTES];
    bytes[..4].copy_from_slice(&PROBE);
    bytes
}

/// The answer to a probe, if this is one: the same packet with the response bit instead of the request bit.
pub fn answer_probe(packet: &[u8]) -> Option<[u8; PROBE_BYTES]> {
    let mut answer: [u8; PROBE_BYTES] = packet.try_into().ok()?;
    let asked = answer[..4] == PROBE && answer[4..] == [0; 8];
    answer[2] = VERSION << 4 | 0x02;
    asked.then_some(answer)
}

/// Whether bytes that begin with a message header go on in this dialect. None when there are too few to tell; 12 always do.
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

/// A packet: its one record, and what follows it (nothing in a datagram).
///
/// # Errors
/// When it is truncated or its header is another.
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

/// Writes a packet to the front of the buffer and returns its length. A request has addresses in `read`; an answer has the
/// values in `write`, with the return address as its base.
///
/// # Errors
/// When it does not fit, or a block is empty or longer than 255.
pub fn emit(
    select: u8,
    write: Option<EbBlock<'_>>,
    read: Option<EbBlock<'_>>,
    out: &mut [u8],
) -> Result<usize, WireError> {
    let record = RecordRepr { flags: RecordFlags(0), select, write, read };
    if out.len() < HEADER_BYTES {
        return Err(WireError::Overflow);
    }
    let length = record.emit(EbLayout::L32, &mut out[HEADER_BYTES..])?;
    out[..4].copy_from_slice(&REQUEST);
    out[4..HEADER_BYTES].fill(0);
    Ok(HEADER_BYTES + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_read_is_the_20_bytes_of_wishbone_tool() {
        let mut out = [0xAA; 64];
        let read = Some(EbBlock { base: 0, values: &[0xf000_0000] });
        let length = emit(0x0F, None, read, &mut out).unwrap();
        let wanted = [0x4e, 0x6f, 0x10, 0x44, 0, 0, 0, 0, 0, 0x0f, 0, 1, 0, 0, 0, 0, 0xf0, 0, 0, 0];
        assert_eq!(out[..length], wanted);
        assert_eq!(recognise(&wanted), Some(true));
        let (record, rest) = split(&wanted).unwrap();
        assert!(rest.is_empty());
        assert_eq!(record.read_block().unwrap().1.next(), Some(0xf000_0000));
    }

    #[test]
    fn the_other_dialect_is_not_taken_for_this_one() {
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
    }

    #[test]
    fn only_the_probe_of_twelve_bytes_is_answered() {
        let asked = probe();
        let answer = answer_probe(&asked).unwrap();
        assert_eq!(answer[..4], [0x4e, 0x6f, 0x12, 0x44]);
        assert_eq!(answer_probe(&asked[..8]), None);
        assert_eq!(answer_probe(&[0x4e, 0x6f, 0x11, 0x44, 0, 0, 0, 1, 0, 0, 0, 0]), None);
    }

    #[test]
    fn truncated_packets_say_what_they_need() {
        let mut out = [0; 64];
        let length =
            emit(0x0F, Some(EbBlock { base: 4, values: &[1, 2] }), None, &mut out).unwrap();
        for cut in 0..length {
            assert!(split(&out[..cut]).is_err());
        }
        assert_eq!(split(&out[..14]), Err(WireError::Truncated { wanted: length, found: 14 }));
    }
}
