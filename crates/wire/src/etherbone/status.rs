//! Errors of operations: a shift register that the slave fills and the master reads.

use super::Width;

/// Config register 0: each bus operation shifts one bit in at the least significant end, 1 for an
/// error. Config operations shift nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorRegister(pub u64);

impl ErrorRegister {
    pub fn shift_in(&mut self, error: bool) {
        self.0 = self.0 << 1 | u64::from(error);
    }
}

pub const fn covered(port: Width) -> usize {
    port.bits() as usize
}

/// Returns the config address of the low part of the register that a port can read: 7, 6, 4, 0 for
/// 8 to 64 bits.
pub const fn address(port: Width) -> u64 {
    8 - port.bytes() as u64
}

pub fn failed(status: u64, index: usize, of: usize) -> bool {
    index < of && of - 1 - index < 64 && status >> (of - 1 - index) & 1 == 1
}
