//! A board's operations on its registers, equal for real and emulated boards.

use daqmeter_harness::{Fault, StopFlag};

use super::regs;
use crate::devices::board::{Board, BoardCommands};

pub trait BoardRegisters {
    fn read_register(&mut self, offset: u32) -> Result<u32, Fault>;

    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), Fault>;

    fn stop_flag(&self) -> &StopFlag;

    /// Does one DMA write to card memory; returns the bytes taken. Lengths are powers of two from
    /// 64 bytes on, offsets multiples of 64.
    ///
    /// # Errors
    /// The board is gone, or its memory is protected.
    fn dma_write(&mut self, card_offset: u64, from: &[u8]) -> Result<usize, Fault>;
}

impl<B: BoardRegisters + Board> BoardCommands for B {
    /// Sets up all ten channels, packed, `samples` in all, started by MLVDS line 0. The sampling
    /// clock stays unchanged: its chip is not in the documented register list.
    fn configure(&mut self, samples: u64) -> Result<(), Fault> {
        if samples == 0 || !samples.is_multiple_of(regs::ACQUISITION_SAMPLES) {
            return Err(self.cannot(&format!(
                "acquire {} bytes: its ten channels have a stride of whole pairs of blocks, and the last would be cut: \
                 take a multiple of {} bytes",
                samples.saturating_mul(2),
                2 * regs::ACQUISITION_SAMPLES
            )));
        }
        let channel_blocks = samples / u64::from(regs::CHANNELS) / regs::BLOCK_SAMPLES;
        let to_register = |blocks: u64| {
            u32::try_from(blocks).map_err(|_| {
                Fault::new(format!("{samples} samples do not fit the board's length register"))
            })
        };
        for channel in 0..regs::CHANNELS {
            let first_block = to_register(channel_blocks * u64::from(channel))?;
            self.write_register(regs::CHANNEL_ADDRESS + channel, first_block)?;
        }
        self.write_register(regs::SAMPLE_LENGTH, to_register(channel_blocks - 1)?)?;
        self.write_register(regs::MLVDS, 1 << 8)?;
        self.write_register(regs::IRQ_ENABLE, regs::IRQ_DAQ_DONE)?;
        self.write_register(regs::SAMPLE_CONTROL, regs::EXTERNAL_TRIGGER)
    }

    fn arm(&mut self) -> Result<(), Fault> {
        self.write_register(regs::ACQUISITION, regs::ACQUISITION_ARM)
    }

    fn is_done(&mut self) -> Result<bool, Fault> {
        let status = self.read_register(regs::ACQUISITION)?;
        let gone = || self.cannot("be read: all bits of its status are 1: it is off the bus");
        done(status).ok_or_else(gone)
    }

    fn disarm(&mut self) -> Result<(), Fault> {
        self.write_register(regs::ACQUISITION, regs::ACQUISITION_RESET)
    }

    fn write(&mut self, card_offset: u64, from: &[u8]) -> Result<usize, Fault> {
        write(self, card_offset, from)
    }
}

/// Tests if a board is neither armed nor sampling; `None` if it no longer answers.
fn done(status: u32) -> Option<bool> {
    let busy = regs::STATUS_SAMPLING | regs::STATUS_ARMED;
    (status != regs::OFF_THE_BUS).then_some(status & busy == 0)
}

/// Writes card memory by DMA writes. Protects the memory again afterwards, even after an error or a
/// signal.
fn write(board: &mut impl BoardRegisters, card_offset: u64, from: &[u8]) -> Result<usize, Fault> {
    board.write_register(regs::MEMORY_WRITE_ENABLE, 1)?;
    let written = dma_writes(board, card_offset, from);
    let protected = board.write_register(regs::MEMORY_WRITE_ENABLE, 0);
    let taken = written?;
    protected?;
    Ok(taken)
}

fn dma_writes(
    board: &mut impl BoardRegisters,
    card_offset: u64,
    from: &[u8],
) -> Result<usize, Fault> {
    let mut taken = 0;
    for part in from.chunks(regs::WRITE_BYTES) {
        if board.stop_flag().is_set() {
            return Err(Fault::interrupted());
        }
        let bytes = board.dma_write(card_offset + taken as u64, part)?;
        taken += bytes;
        if bytes < part.len() {
            break;
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A board that sets the flag at its second DMA write and keeps the values written to register
    /// 0x230.
    #[derive(Default)]
    struct Stopping {
        stop: StopFlag,
        writes: u64,
        enable: Vec<u32>,
    }

    impl BoardRegisters for Stopping {
        fn read_register(&mut self, _: u32) -> Result<u32, Fault> {
            unreachable!("nothing is read here")
        }
        fn write_register(&mut self, offset: u32, value: u32) -> Result<(), Fault> {
            assert_eq!(offset, regs::MEMORY_WRITE_ENABLE);
            self.enable.push(value);
            Ok(())
        }
        fn stop_flag(&self) -> &StopFlag {
            &self.stop
        }
        fn dma_write(&mut self, _: u64, from: &[u8]) -> Result<usize, Fault> {
            self.writes += 1;
            if self.writes == 2 {
                self.stop.set();
            }
            Ok(from.len())
        }
    }

    /// Such a card was waited for: "no trigger within 1000 ms: is the trigger connected?".
    #[test]
    fn a_card_off_the_bus_is_never_done() {
        assert_eq!(
            [0x80, 0x81, 0x82, u32::MAX].map(done),
            [Some(true), Some(false), Some(false), None]
        );
    }

    /// Regression: a write longer than the grace period after Ctrl-C ended with unprotected memory.
    #[test]
    fn a_write_ends_soon_after_a_signal_and_the_memory_is_protected_again() {
        let mut board = Stopping::default();
        let ended = write(&mut board, 0, &[1; 64_000]);
        assert_eq!(ended, Err(Fault::interrupted()));
        assert_eq!((board.writes, &board.enable[..]), (2, &[1, 0][..]));
    }
}
