//! Registers of the SIS8300 family, by 32-bit word offset. Sources: Struck SIS8300-KU, -L and -L2
//! user manuals (register chapters), restated in the project's reference, section 2.4.

use daqmeter_harness::Fault;

/// Bits 31:16 model, 15:8 firmware version, 7:0 revision.
pub(crate) const ID: u32 = 0x00;
/// Bits 15:0.
pub(crate) const SERIAL: u32 = 0x01;
pub(crate) const OPTIONS: u32 = 0x05;
/// Acquisition control (write) and status (read).
pub(crate) const ACQUISITION: u32 = 0x10;
pub(crate) const ACQUISITION_START: u32 = 1 << 0;
pub(crate) const ACQUISITION_ARM: u32 = 1 << 1;
pub(crate) const ACQUISITION_RESET: u32 = 1 << 2;
pub(crate) const STATUS_SAMPLING: u32 = 1 << 0;
pub(crate) const STATUS_ARMED: u32 = 1 << 1;
pub(crate) const STATUS_BUSY: u32 = 1 << 4;
/// Card memory is ready; reset value of the register.
pub(crate) const STATUS_MEMORY_READY: u32 = 1 << 7;
/// Bits 9:0 disable channels 10..1, bit 10 internal trigger, bit 11 external trigger.
pub(crate) const SAMPLE_CONTROL: u32 = 0x11;
pub(crate) const EXTERNAL_TRIGGER: u32 = 1 << 11;
/// Bits 15:8 trigger enable, 7:0 falling edge.
pub(crate) const MLVDS: u32 = 0x12;
/// First of ten: memory block (16 samples) at which a channel starts; its end after an acquisition.
pub(crate) const CHANNEL_ADDRESS: u32 = 0x120;
/// Samples per channel in blocks of 16, minus one.
pub(crate) const SAMPLE_LENGTH: u32 = 0x12A;
/// Interrupt enable (J/K: bit sets, bit + 16 clears).
pub(crate) const IRQ_ENABLE: u32 = 0x220;
pub(crate) const IRQ_DAQ_DONE: u32 = 1 << 14;
/// Value of every register of a card that no longer answers (PCIe: an unsupported request).
pub(crate) const OFF_THE_BUS: u32 = u32::MAX;
pub const MEMORY_WRITE_ENABLE: u32 = 0x230;

pub const CHANNELS: u32 = 10;
/// Samples in a memory block (256 bits).
pub(crate) const BLOCK_SAMPLES: u64 = 16;
/// Multiple for the samples of an acquisition: ten channels of whole pairs of blocks (KU). It is
/// read whole; with any other number the last channel would be cut.
pub(crate) const ACQUISITION_SAMPLES: u64 = CHANNELS as u64 * 2 * BLOCK_SAMPLES;

/// Granularity of the ESS driver's reads, in offset and length (reference, section 2.1).
pub(crate) const READ_UNIT_BYTES: u64 = 16;
/// Bytes of one DMA write: register 0x213 takes powers of two from 64 on, and the original writes
/// 64 at a time.
pub(crate) const WRITE_BYTES: usize = 64;

pub(crate) fn is_dma_read(card_offset: u64, bytes: usize) -> bool {
    card_offset.is_multiple_of(READ_UNIT_BYTES) && (bytes as u64).is_multiple_of(READ_UNIT_BYTES)
}

/// Refuses a DMA write that no board does.
pub(crate) fn check_dma_write(card_offset: u64, bytes: usize) -> Result<(), Fault> {
    let is_length = bytes >= WRITE_BYTES && bytes.is_power_of_two();
    if is_length && card_offset.is_multiple_of(WRITE_BYTES as u64) {
        return Ok(());
    }
    Err(Fault::new(format!(
        "{bytes} bytes to {card_offset:#x}: the board writes 64, 128, 256, ... bytes to a multiple of 64"
    )))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    pub code: u32,
    pub name: &'static str,
    /// Name in the profiles of crates.
    pub(crate) in_profiles: &'static str,
}

impl Model {
    const FIRST: Model = Model { code: 0x8300, name: "SIS8300", in_profiles: "8300" };
    pub const L: Model = Model { code: 0x8301, name: "SIS8300-L", in_profiles: "l" };
    pub(crate) const L2: Model = Model { code: 0x8302, name: "SIS8300-L2", in_profiles: "l2" };
    pub(crate) const KU: Model = Model { code: 0x8303, name: "SIS8300-KU", in_profiles: "ku" };
    const ALL: [Model; 4] = [Model::FIRST, Model::L, Model::L2, Model::KU];

    pub(crate) fn from_id(id: u32) -> Option<Model> {
        Model::ALL.into_iter().find(|model| model.code == id >> 16)
    }

    /// Returns the sample memory. The first model has 512 MiB, or 1 GiB with firmware option bit 8.
    pub fn memory_bytes(self, options: u32) -> u64 {
        match options & (1 << 8) {
            _ if self != Model::FIRST => 2 << 30,
            0 => 512 << 20,
            _ => 1 << 30,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_by_their_identification() {
        assert_eq!(Model::from_id(0x8303_1001), Some(Model::KU));
        assert_eq!(Model::from_id(0x8302_1809), Some(Model::L2));
        assert_eq!(Model::from_id(0xFFFF_FFFF), None);
        assert_eq!(Model::FIRST.memory_bytes(1 << 8), 1 << 30);
    }
}
