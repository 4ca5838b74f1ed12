//! A board behind the ESS driver (`sis8300drv`): register ioctls, lseek and read, mmap, WAIT_IRQ.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_sys::memory::DriverBuffer;

use super::commands;
use super::registers::BoardRegisters;
use super::regs::{self, Model, check_dma_write};
use crate::devices::board::{Board, BoardCommands, BoardNode, Identity, read_in_parts};

#[derive(Debug)]
pub struct EssBoard {
    board: BoardNode,
    dma: Option<DriverBuffer>,
}

const FIRED: u32 = 0;
const TIMEOUT: u32 = 2;
const DAQ_DONE: u32 = 0;

impl EssBoard {
    pub(super) fn new(device: &str, file: File, model: Model) -> Result<EssBoard, Fault> {
        let options = commands::read_register(&file, regs::OPTIONS)?;
        let memory_bytes = Some(model.memory_bytes(options));
        let board = BoardNode::of(device, file, model.name, memory_bytes)?;
        Ok(EssBoard { board, dma: None })
    }

    fn gone(&self, error: impl std::fmt::Display) -> Fault {
        Fault::new(format!("{}: {error}", self.board.identity.device))
    }
}

impl BoardRegisters for EssBoard {
    fn read_register(&mut self, offset: u32) -> Result<u32, Fault> {
        commands::read_register(&self.board.file, offset).map_err(|error| self.gone(error))
    }

    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), Fault> {
        commands::write_register(&self.board.file, offset, value).map_err(|error| self.gone(error))
    }

    fn stop_flag(&self) -> &StopFlag {
        &self.board.stop
    }

    fn dma_write(&mut self, card_offset: u64, from: &[u8]) -> Result<usize, Fault> {
        check_dma_write(card_offset, from.len()).map_err(|wrong| self.gone(wrong))?;
        self.board.file.seek(SeekFrom::Start(card_offset)).map_err(|error| self.gone(error))?;
        // One call is one DMA write. The rest of a partial write is not sent, because its length
        // may be invalid for the board.
        loop {
            match self.board.file.write(from) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                done => return done.map_err(|error| self.gone(error)),
            }
        }
    }
}

impl Board for EssBoard {
    fn identity(&self) -> &Identity {
        &self.board.identity
    }

    fn commands(&mut self) -> Result<&mut dyn BoardCommands, Fault> {
        Ok(self)
    }

    fn read(&mut self, card_offset: u64, into: &mut [u8]) -> Result<usize, Fault> {
        // The driver has no pread: its read() starts at the position of lseek.
        self.board.file.seek(SeekFrom::Start(card_offset)).map_err(|error| self.gone(error))?;
        read_in_parts(&self.board.identity.device, into, &self.board.stop, |_, part| {
            self.board.file.read(part)
        })
    }

    fn map(&mut self, bytes: usize) -> Result<(), Fault> {
        let rounded = bytes.next_multiple_of(4096);
        let mapped = DriverBuffer::map(&self.board.file, rounded).map_err(|error| {
            self.gone(format!(
                "{error}; access mode 1 needs one contiguous buffer: lower -S or use -B 0"
            ))
        })?;
        self.dma = Some(mapped);
        Ok(())
    }

    fn read_mapped(&mut self, card_offset: u64, bytes: usize) -> Result<usize, Fault> {
        let dma = self.dma.as_mut().expect("mapped before the first read");
        dma.read_into(&self.board.file, card_offset, bytes).map_err(|error| self.gone(error))
    }

    fn mapped(&self, samples: usize) -> &[u16] {
        self.dma.as_ref().expect("mapped before the first read").samples(samples)
    }

    fn wait(&mut self, timeout: Duration) -> Result<bool, Fault> {
        // Zero would wait for ever.
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        match commands::wait_irq(&self.board.file, timeout_ms, DAQ_DONE) {
            Ok(FIRED) => Ok(true),
            Ok(TIMEOUT) => Ok(false),
            Ok(status) => {
                Err(self.gone(format!("waiting for DAQ done: the driver says status {status}")))
            }
            Err(error) => Err(self.gone(error)),
        }
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.board.stop = stop.clone();
    }

    fn known_limit(&self) -> Option<(f64, String)> {
        self.board.known_limit()
    }
}
