//! Blocks that come twice in a row, known by their bytes.

use daqmeter_wire::felix::Reassembler;
use daqmeter_wire::felix::block::FelixHeader;

/// A block's beginning and end: enough to tell a repeated block from the 31st after it.
pub(crate) type Fingerprint = [u8; 48];

#[inline]
pub(crate) fn fingerprint(block: &[u8]) -> Fingerprint {
    let mut fingerprint = [0; 48];
    fingerprint[..32].copy_from_slice(&block[..32]);
    fingerprint[32..].copy_from_slice(&block[block.len() - 16..]);
    fingerprint
}

#[derive(Debug)]
pub(crate) struct Repeats {
    last: Fingerprint,
}

impl Repeats {
    pub(crate) fn new() -> Repeats {
        Repeats { last: [0; 48] }
    }

    pub(crate) fn is_repeated(
        &mut self,
        reassembler: &Reassembler,
        header: FelixHeader,
        block: &[u8],
    ) -> bool {
        let fingerprint = fingerprint(block);
        let repeated = fingerprint == self.last && reassembler.is_last(header.sequence);
        self.last = fingerprint;
        repeated
    }
}
