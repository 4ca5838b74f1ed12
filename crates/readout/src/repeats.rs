//! Blocks that come twice in a row, known by their bytes.

/// A block's beginning and end: enough to tell a repeated block from the 31st after it.
pub(crate) type Fingerprint = [u8; 48];

#[inline]
pub(crate) fn fingerprint(block: &[u8]) -> Fingerprint {
    let mut fingerprint = [0; 48];
    fingerprint[..32].copy_from_slice(&block[..32]);
    fingerprint[32..].copy_from_slice(&block[block.len() - 16..]);
    fingerprint
}
