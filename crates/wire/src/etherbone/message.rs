use super::{EbLayout, Widths, WireError, be16, be32, need};

/// First two bytes of every message: "No".
pub const MAGIC: u16 = 0x4E6F;
pub(crate) const VERSION: u8 = 1;
pub const PROBE_BYTES: usize = 8;

const NO_READS: u8 = 0x04;
const PROBE_RESPONSE: u8 = 0x02;
const PROBE_REQUEST: u8 = 0x01;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EbHeader {
    /// NR: no record of the message asks for an answer.
    pub no_reads: bool,
    pub probe_response: bool,
    pub probe_request: bool,
    /// Address widths: exactly one in a data message, all supported ones in a probe.
    pub address: Widths,
    /// Data widths, likewise.
    pub data: Widths,
}

impl EbHeader {
    pub fn of(layout: EbLayout, no_reads: bool) -> EbHeader {
        let (address, data) = (Widths::only(layout.address), Widths::only(layout.data));
        EbHeader { no_reads, probe_response: false, probe_request: false, address, data }
    }

    pub fn parse(bytes: &[u8]) -> Result<EbHeader, WireError> {
        need(bytes, 4)?;
        let magic = be16(bytes, 0);
        if magic != MAGIC {
            return Err(WireError::Magic(magic));
        }
        if bytes[2] >> 4 != VERSION {
            return Err(WireError::Version(bytes[2] >> 4));
        }
        Ok(EbHeader {
            no_reads: bytes[2] & NO_READS != 0,
            probe_response: bytes[2] & PROBE_RESPONSE != 0,
            probe_request: bytes[2] & PROBE_REQUEST != 0,
            address: Widths::from_nibble(bytes[3] >> 4),
            data: Widths::from_nibble(bytes[3]),
        })
    }

    pub fn emit(&self) -> [u8; 4] {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let flags = flag(self.no_reads, NO_READS)
            | flag(self.probe_response, PROBE_RESPONSE)
            | flag(self.probe_request, PROBE_REQUEST);
        let magic = MAGIC.to_be_bytes();
        [magic[0], magic[1], VERSION << 4 | flags, self.address.nibble() << 4 | self.data.nibble()]
    }

    pub fn layout(&self) -> Result<EbLayout, WireError> {
        match (self.address.single(), self.data.single()) {
            (Some(address), Some(data)) => Ok(EbLayout { address, data }),
            _ => Err(WireError::NotOneWidth(self.address, self.data)),
        }
    }
}

/// A probe with the supported widths, or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EbProbe {
    pub response: bool,
    pub address: Widths,
    pub data: Widths,
    /// Number chosen by the asking side and repeated in the answer.
    pub id: u32,
}

impl EbProbe {
    pub fn parse(bytes: &[u8]) -> Result<EbProbe, WireError> {
        let header = EbHeader::parse(bytes)?;
        if bytes.len() != PROBE_BYTES {
            return Err(WireError::ProbeLength(bytes.len()));
        }
        Ok(EbProbe {
            response: header.probe_response,
            address: header.address,
            data: header.data,
            id: be32(bytes, 4),
        })
    }

    /// Returns the eight bytes. An answer carries NR, too: it asks for nothing.
    pub fn emit(&self) -> [u8; PROBE_BYTES] {
        let header = EbHeader {
            no_reads: self.response,
            probe_response: self.response,
            probe_request: !self.response,
            address: self.address,
            data: self.data,
        };
        let mut bytes = [0; PROBE_BYTES];
        bytes[..4].copy_from_slice(&header.emit());
        bytes[4..].copy_from_slice(&self.id.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etherbone::Width;

    #[test]
    fn golden_probe_and_its_answer() {
        let asked = [0x4e, 0x6f, 0x11, 0x44, 0, 0, 0, 0x86];
        let probe = EbProbe::parse(&asked).unwrap();
        let w32 = Widths::only(Width::W32);
        assert_eq!(probe, EbProbe { response: false, address: w32, data: w32, id: 0x86 });
        assert_eq!(probe.emit(), asked);
        let answered = [0x4e, 0x6f, 0x16, 0xff, 0, 0, 0, 0x86];
        let answer = EbProbe { response: true, address: Widths::ALL, data: Widths::ALL, id: 0x86 };
        assert_eq!(answer.emit(), answered);
        assert_eq!(EbProbe::parse(&answered), Ok(answer));
    }

    #[test]
    fn impossible_probes_and_headers_are_refused_by_name() {
        let twelve = [0x4e, 0x6f, 0x11, 0x44, 0, 0, 0, 0, 0, 0, 0, 0];
        for length in [6, 12] {
            assert_eq!(EbProbe::parse(&twelve[..length]), Err(WireError::ProbeLength(length)));
        }
        for (bytes, error) in [
            (&[0x4e, 0x6f, 0x10][..], WireError::Truncated { wanted: 4, found: 3 }),
            (&[0x4e, 0x70, 0x10, 0x44], WireError::Magic(0x4e70)),
            (&[0x4e, 0x6f, 0x20, 0x44], WireError::Version(2)),
        ] {
            assert_eq!(EbHeader::parse(bytes), Err(error));
        }
        for widths in [0xc4, 0x40] {
            let header = EbHeader::parse(&[0x4e, 0x6f, 0x10, widths]).unwrap();
            assert!(matches!(header.layout(), Err(WireError::NotOneWidth(..))));
        }
    }

    #[test]
    fn a_message_with_64_bits_on_either_side_has_a_header_of_8_bytes() {
        let wide = EbHeader::parse(&[0x4e, 0x6f, 0x10, 0x84]).unwrap();
        assert_eq!((wide.layout().unwrap().header_bytes(), wide.no_reads), (8, false));
        let narrow = EbHeader::parse(&[0x4e, 0x6f, 0x14, 0x21, 1]).unwrap();
        assert_eq!((narrow.layout().unwrap().header_bytes(), narrow.no_reads), (4, true));
    }
}
