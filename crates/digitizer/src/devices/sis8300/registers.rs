//! A board's verbs on its registers, the same for the real ones and the emulated.

use daqmeter_harness::Fault;

use super::regs;

/// A board's registers, and its DMA for writing.
pub trait Registers {
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

    /// One DMA write to card memory, of a length and at an offset that the board allows (a power of two, at least 64 bytes; an offset in multiples of 64); returns the bytes taken.
    ///
    /// # Errors
    /// When the board is gone, or its memory is protected.
    fn dma_write(&mut self, card_offset: u64, from: &[u8]) -> Result<usize, Fault>;
}

/// All ten channels, packed one behind the other, `samples` in all, started by MLVDS line 0. The sampling clock is left
/// as it is: its chip is not in the documented register list.
pub(super) fn configure(board: &mut impl Registers, samples: u64) -> Result<(), Fault> {
    // Even numbers of blocks only (KU), at least two.
    let channel_blocks = samples
        .div_ceil(u64::from(regs::CHANNELS))
        .div_ceil(regs::BLOCK_SAMPLES);
    let channel_blocks = channel_blocks.next_multiple_of(2).max(2);
    let to_register = |blocks: u64| {
        u32::try_from(blocks).map_err(|_| {
            Fault::new(format!(
                "{samples} samples do not fit the board's length register"
            ))
        })
    };
    for channel in 0..regs::CHANNELS {
        let first_block = to_register(channel_blocks * u64::from(channel))?;
        board.write_register(regs::CHANNEL_ADDRESS + channel, first_block)?;
    }
    board.write_register(regs::SAMPLE_LENGTH, to_register(channel_blocks - 1)?)?;
    board.write_register(regs::MLVDS, 1 << 8)?;
    board.write_register(regs::IRQ_ENABLE, regs::IRQ_DAQ_DONE)?;
    board.write_register(regs::SAMPLE_CONTROL, regs::EXTERNAL_TRIGGER)
}

pub(super) fn arm(board: &mut impl Registers) -> Result<(), Fault> {
    board.write_register(regs::ACQUISITION, regs::ACQUISITION_ARM)
}

pub(super) fn disarm(board: &mut impl Registers) -> Result<(), Fault> {
    board.write_register(regs::ACQUISITION, regs::ACQUISITION_RESET)
}

pub(super) fn is_done(board: &mut impl Registers) -> Result<bool, Fault> {
    let status = board.read_register(regs::ACQUISITION)?;
    Ok(status & (regs::STATUS_SAMPLING | regs::STATUS_ARMED) == 0)
}

/// Writes card memory in as many DMA writes as it takes. Whatever becomes of them, the memory is protected again.
pub(super) fn write(
    board: &mut impl Registers,
    card_offset: u64,
    from: &[u8],
) -> Result<usize, Fault> {
    board.write_register(regs::MEMORY_WRITE_ENABLE, 1)?;
    let written = dma_writes(board, card_offset, from);
    let protected = board.write_register(regs::MEMORY_WRITE_ENABLE, 0);
    let taken = written?;
    protected?;
    Ok(taken)
}

fn dma_writes(board: &mut impl Registers, card_offset: u64, from: &[u8]) -> Result<usize, Fault> {
    let mut taken = 0;
    for part in from.chunks(regs::WRITE_BYTES) {
        let bytes = board.dma_write(card_offset + taken as u64, part)?;
        taken += bytes;
        if bytes < part.len() {
            break;
        }
    }
    Ok(taken)
}
