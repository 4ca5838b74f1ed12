use super::{EbLayout, WireError, be16, be32, be64, need};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecordFlags(pub u8);

impl RecordFlags {
    /// The answer goes to the asker's config space.
    pub const BCA: RecordFlags = RecordFlags(0x80);
    /// Read from config space.
    pub const RCA: RecordFlags = RecordFlags(0x40);
    /// All values of the answer go to one address.
    pub const RFF: RecordFlags = RecordFlags(0x20);
    pub const CYC: RecordFlags = RecordFlags(0x08);
    /// Write to config space.
    pub const WCA: RecordFlags = RecordFlags(0x04);
    /// Write all values to one address.
    pub const WFF: RecordFlags = RecordFlags(0x02);

    pub const fn has(self, other: RecordFlags) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub const fn with(self, other: RecordFlags) -> RecordFlags {
        RecordFlags(self.0 | other.0)
    }

    #[must_use]
    pub const fn with_if(self, on: bool, other: RecordFlags) -> RecordFlags {
        if on { self.with(other) } else { self }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHeader {
    pub flags: RecordFlags,
    /// Byte enables, bit 0 for the least significant lane.
    pub select: u8,
    pub writes: u8,
    pub reads: u8,
}

impl RecordHeader {
    #[inline]
    pub fn parse(bytes: [u8; 4]) -> RecordHeader {
        RecordHeader {
            flags: RecordFlags(bytes[0]),
            select: bytes[1],
            writes: bytes[2],
            reads: bytes[3],
        }
    }

    #[inline]
    pub fn emit(self) -> [u8; 4] {
        [self.flags.0, self.select, self.writes, self.reads]
    }

    /// Counts the bytes of the two blocks.
    #[inline]
    pub fn body_bytes(self, layout: EbLayout) -> usize {
        (block(self.writes) + block(self.reads)) * layout.value_bytes()
    }

    /// Returns true for a record without operations; the HDL slave pads its answers with them. It
    /// ends a cycle like any other, if CYC is set.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.writes == 0 && self.reads == 0
    }
}

/// Counts a block's values and its base address.
#[inline]
fn block(values: u8) -> usize {
    if values == 0 { 0 } else { 1 + usize::from(values) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EbRecord<'a> {
    pub header: RecordHeader,
    value_bytes: usize,
    body: &'a [u8],
}

impl<'a> EbRecord<'a> {
    #[inline]
    pub fn split(layout: EbLayout, bytes: &'a [u8]) -> Result<(EbRecord<'a>, &'a [u8]), WireError> {
        let header_bytes = layout.header_bytes();
        need(bytes, header_bytes)?;
        let header = RecordHeader::parse([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let wanted = header_bytes + header.body_bytes(layout);
        need(bytes, wanted)?;
        let record = EbRecord {
            header,
            value_bytes: layout.value_bytes(),
            body: &bytes[header_bytes..wanted],
        };
        Ok((record, &bytes[wanted..]))
    }

    fn write_block_bytes(&self) -> usize {
        block(self.header.writes) * self.value_bytes
    }

    /// Returns the base address and the written values.
    #[inline]
    pub fn write_block(&self) -> Option<(u64, Values<'a>)> {
        self.block(&self.body[..self.write_block_bytes()])
    }

    #[inline]
    pub fn read_block(&self) -> Option<(u64, Values<'a>)> {
        self.block(&self.body[self.write_block_bytes()..])
    }

    #[inline(always)]
    fn block(&self, bytes: &'a [u8]) -> Option<(u64, Values<'a>)> {
        let mut values = Values { bytes, size: self.value_bytes };
        let base = values.next()?;
        Some((base, values))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values<'a> {
    bytes: &'a [u8],
    size: usize,
}

impl Iterator for Values<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.bytes.len() < self.size {
            return None;
        }
        let value = match self.size {
            2 => u64::from(be16(self.bytes, 0)),
            4 => u64::from(be32(self.bytes, 0)),
            _ => be64(self.bytes, 0),
        };
        self.bytes = &self.bytes[self.size..];
        Some(value)
    }

    /// One loop per size: `for_each`, `extend` and others run here, without a branch per value.
    #[inline]
    fn fold<B, F: FnMut(B, u64) -> B>(self, init: B, mut f: F) -> B {
        match self.size {
            2 => self
                .bytes
                .chunks_exact(2)
                .fold(init, |state, bytes| f(state, u64::from(be16(bytes, 0)))),
            4 => self
                .bytes
                .chunks_exact(4)
                .fold(init, |state, bytes| f(state, u64::from(be32(bytes, 0)))),
            _ => self.bytes.chunks_exact(8).fold(init, |state, bytes| f(state, be64(bytes, 0))),
        }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.bytes.len() / self.size;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Values<'_> {}

#[inline]
pub(crate) fn put(out: &mut [u8], size: usize, value: u64) {
    let bytes = value.to_be_bytes();
    match size {
        2 => out[..2].copy_from_slice(&bytes[6..]),
        4 => out[..4].copy_from_slice(&bytes[4..]),
        _ => out[..8].copy_from_slice(&bytes),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writes_come_before_reads_each_after_its_base() {
        let bytes = [
            0xe8, 0x0f, 1, 1, 0, 1, 0, 0, 0x11, 0x22, 0x33, 0x44, 0, 0, 0x80, 0x01, 0, 0, 0, 4,
            0xEE,
        ];
        let (record, rest) = EbRecord::split(EbLayout::L32, &bytes).unwrap();
        assert_eq!(rest, [0xEE]);
        let (base, values) = record.write_block().unwrap();
        assert_eq!((base, values.collect::<Vec<_>>()), (0x10000, vec![0x1122_3344]));
        let (back, addresses) = record.read_block().unwrap();
        assert_eq!((back, addresses.collect::<Vec<_>>()), (0x8001, vec![4]));
    }

    #[test]
    fn an_all_zero_word_is_a_record_without_operations() {
        let (record, rest) = EbRecord::split(EbLayout::L32, &[0, 0, 0, 0]).unwrap();
        assert!(record.header.is_empty() && rest.is_empty());
        assert!(record.write_block().is_none() && record.read_block().is_none());
    }

    #[test]
    fn a_count_beyond_the_bytes_is_refused_with_what_is_needed() {
        let bytes = [0xa8, 0x0f, 0, 255, 0, 0, 0x80, 0];
        let error = EbRecord::split(EbLayout::L32, &bytes).unwrap_err();
        assert_eq!(error, WireError::Truncated { wanted: 4 + 256 * 4, found: 8 });
    }

    proptest! {
        /// Records written word by word from the specification are compared with the view.
        #[test]
        fn what_is_laid_out_is_found(
            at in 0..16_usize, flags: u8, select: u8,
            written in prop::collection::vec(any::<u64>(), 0..256),
            read in prop::collection::vec(any::<u64>(), 0..256),
        ) {
            let layout = EbLayout::all().nth(at).unwrap();
            let size = layout.value_bytes();
            let mask = u64::MAX >> (64 - 8 * size);
            let mut bytes = Vec::from([flags, select, 0, 0]);
            bytes.resize(layout.header_bytes(), 0);
            let blocks = [written, read].map(|values| if values.len() == 1 { Vec::new() } else { values });
            for (count, values) in blocks.iter().enumerate() {
                bytes[2 + count] = u8::try_from(values.len().saturating_sub(1)).unwrap();
                bytes.extend(values.iter().flat_map(|value| value.to_be_bytes()[8 - size..].to_vec()));
            }
            let (record, rest) = EbRecord::split(layout, &bytes).unwrap();
            prop_assert!(rest.is_empty());
            prop_assert_eq!((record.header.flags.0, record.header.select), (flags, select));
            for (found, wanted) in [record.write_block(), record.read_block()].into_iter().zip(&blocks) {
                let wanted: Vec<u64> = wanted.iter().map(|value| value & mask).collect();
                let Some((base, values)) = found else {
                    prop_assert!(wanted.is_empty());
                    continue;
                };
                prop_assert_eq!(base, wanted[0]);
                prop_assert_eq!(&values.collect::<Vec<_>>(), &wanted[1..]);
                prop_assert_eq!(values.fold(0_u64, u64::wrapping_add), wanted[1..].iter().copied().fold(0, u64::wrapping_add));
            }
            for cut in 0..bytes.len() {
                prop_assert!(EbRecord::split(layout, &bytes[..cut]).is_err());
            }
        }
    }
}
