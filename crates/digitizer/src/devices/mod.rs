//! Boards: one trait, an emulated member and the real ones, each in a folder with the same file names.

pub mod emulated;
pub mod sis8300;

use std::sync::Arc;
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag};

use emulated::EmulatedCrate;

/// Prefix of emulated boards: `emu:l0`, `emu:l2-1`, `emu:ku0`.
pub const EMULATED_PREFIX: &str = "emu:";

/// Who a board is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Device path or emulated name, as the user gave it.
    pub device: String,
    /// Model by its identification register.
    pub model: sis8300::regs::Model,
    /// Firmware version and revision, register 0x00 bits 15:0.
    pub firmware: u16,
    /// Size of the sample memory.
    pub memory_bytes: u64,
    /// Which kernel interface drives it.
    pub interface: &'static str,
    /// True for boards that do not exist.
    pub emulated: bool,
}

/// Triggers as the source counted them since [`Board::begin_account`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TriggerAccount {
    /// Fired.
    pub issued: u64,
    /// That started an acquisition.
    pub taken: u64,
    /// That found the board not armed.
    pub not_armed: u64,
    /// That found it still sampling.
    pub sampling: u64,
}

/// A digitizer board with its registers, card memory and interrupt. One thread drives one board.
pub trait Board: Send {
    /// Who it is.
    fn identity(&self) -> &Identity;

    /// Reads a register by 32-bit word offset.
    ///
    /// # Errors
    /// When the board is gone.
    fn read_register(&mut self, offset: u32) -> Result<u32, Fault>;

    /// Writes a register.
    ///
    /// # Errors
    /// When the board is gone.
    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), Fault>;

    /// Reads card memory from a byte offset; returns the bytes delivered. Offset and length are multiples of
    /// [`READ_UNIT_BYTES`].
    ///
    /// # Errors
    /// When the board is gone or the range is not in its memory.
    fn read(&mut self, card_offset: u64, into: &mut [u8]) -> Result<usize, Fault>;

    /// Writes card memory by one DMA write, of a length and at an offset that [`is_dma_write`] allows; returns the bytes
    /// taken. [`write_memory`] writes more.
    ///
    /// # Errors
    /// As [`Board::read`].
    fn write(&mut self, card_offset: u64, from: &[u8]) -> Result<usize, Fault>;

    /// Maps a DMA buffer for reads without a copy (access mode 1).
    ///
    /// # Errors
    /// When the driver has no contiguous buffer of that size.
    fn map_dma(&mut self, bytes: usize) -> Result<(), Fault>;

    /// Reads card memory into the start of the DMA buffer.
    ///
    /// # Errors
    /// As [`Board::read`].
    fn read_mapped(&mut self, card_offset: u64, bytes: usize) -> Result<usize, Fault>;

    /// The samples that the last [`Board::read_mapped`] left.
    fn mapped(&self, samples: usize) -> &[u16];

    /// Waits for the DAQ-done interrupt; false on timeout. May return false although the DAQ is done (a driver that loses
    /// interrupts): callers look at the status register then.
    ///
    /// # Errors
    /// When the board is gone.
    fn wait_daq_done(&mut self, timeout: Duration) -> Result<bool, Fault>;

    /// Takes the flag that cuts a long transfer short, where the board can.
    fn heed(&mut self, _stop: &StopFlag) {}

    /// Sets the external trigger of an emulated board; real boards are triggered from outside.
    fn set_trigger_rate(&mut self, _rate_hz: f64) {}

    /// Starts the account of triggers at zero.
    fn begin_account(&mut self) {}

    /// Triggers at the source; none where the board cannot tell.
    fn trigger_account(&mut self) -> Option<TriggerAccount> {
        None
    }

    /// What a sample of card memory must be, by 16-bit index; none where nobody knows.
    fn expected_sample(&self, _index: u64) -> Option<u16> {
        None
    }

    /// The rate that reads of this board cannot exceed, where it is known without measuring, and why.
    fn known_limit(&self) -> Option<(f64, String)> {
        None
    }
}

/// The ESS driver reads multiples of this from multiples of this (reference, section 2.1).
pub const READ_UNIT_BYTES: u64 = 16;
/// Bytes of one DMA write: register 0x213 takes powers of two from 64 on, and the original writes 64 at a time.
pub const WRITE_BYTES: usize = 64;

/// Whether a board can do this as one read of its driver.
pub fn is_dma_read(card_offset: u64, bytes: usize) -> bool {
    card_offset.is_multiple_of(READ_UNIT_BYTES) && (bytes as u64).is_multiple_of(READ_UNIT_BYTES)
}

/// Whether a board can do this as one DMA write.
pub fn is_dma_write(card_offset: u64, bytes: usize) -> bool {
    bytes >= WRITE_BYTES
        && bytes.is_power_of_two()
        && card_offset.is_multiple_of(WRITE_BYTES as u64)
}

/// Writes card memory in as many DMA writes of [`WRITE_BYTES`] as it takes; returns the bytes taken.
///
/// # Errors
/// As [`Board::write`].
pub fn write_memory(board: &mut dyn Board, card_offset: u64, from: &[u8]) -> Result<usize, Fault> {
    let mut taken = 0;
    for part in from.chunks(WRITE_BYTES) {
        let bytes = board.write(card_offset + taken as u64, part)?;
        taken += bytes;
        if bytes < part.len() {
            break;
        }
    }
    Ok(taken)
}

/// Opens boards by name. Emulated ones share one crate, and so its uplink.
///
/// # Errors
/// When a device is not there, not a digitizer, or not understood.
pub fn open(device: &str, crate_: &Arc<EmulatedCrate>) -> Result<Box<dyn Board>, Fault> {
    match device.strip_prefix(EMULATED_PREFIX) {
        Some(name) => Ok(Box::new(crate_.board(device, name)?)),
        None => sis8300::open(device),
    }
}

/// Expands `emu:l0..4` to `emu:l0` ... `emu:l4`; anything else stays as it is.
///
/// # Errors
/// When the range has no end or runs backwards.
pub(crate) fn expand(device: &str) -> Result<Vec<String>, String> {
    let Some((first, last)) = device
        .strip_prefix(EMULATED_PREFIX)
        .and_then(|name| name.split_once(".."))
    else {
        return Ok(vec![device.to_owned()]);
    };
    let digits = first.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, first) = first.split_at(digits);
    let range = || -> Option<std::ops::RangeInclusive<u32>> {
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    match range().filter(|range| !range.is_empty() && range.end() - range.start() < 1000) {
        Some(range) => Ok(range
            .map(|n| format!("{EMULATED_PREFIX}{stem}{n}"))
            .collect()),
        None => Err(format!(
            "has `{device}`; a range of emulated boards is written emu:l0..4"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_emulated_boards_expand() {
        assert_eq!(expand("emu:l0..2").unwrap(), ["emu:l0", "emu:l1", "emu:l2"]);
        assert_eq!(expand("emu:l2-0..1").unwrap(), ["emu:l2-0", "emu:l2-1"]);
        assert_eq!(expand("/dev/sis8300-6").unwrap(), ["/dev/sis8300-6"]);
        for wrong in ["emu:l4..0", "emu:l..", "emu:l0..x", "emu:l0..4000"] {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
    }
}
