//! A board behind the ESS driver (`sis8300drv`): register ioctls, lseek and read, mmap, WAIT_IRQ.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_sys::host::Files;
use daqmeter_sys::memory::DriverBuffer;

use super::commands;
use super::registers::BoardRegisters;
use super::regs::{self, Model, is_dma_write};
use crate::devices::board::{Board, BoardCommands, Identity, lock, read_in_parts};
use crate::devices::pcie::PcieLink;

#[derive(Debug)]
pub struct EssBoard {
    identity: Identity,
    file: File,
    _lock: Option<UnixDatagram>,
    dma: Option<DriverBuffer>,
    link: Option<PcieLink>,
    stop: StopFlag,
}

const FIRED: u32 = 0;
const TIMEOUT: u32 = 2;
const DAQ_DONE: u32 = 0;

impl EssBoard {
    pub(super) fn new(device: &str, file: File, model: Model) -> Result<EssBoard, Fault> {
        let _lock = lock(device, &file)?;
        let options = commands::read_register(&file, regs::OPTIONS)?;
        let identity = Identity {
            device: device.to_owned(),
            model: model.name,
            memory_bytes: Some(model.memory_bytes(options)),
            emulated: false,
        };
        let rdev = file.metadata().map_or(0, |metadata| metadata.rdev());
        let link = PcieLink::of(&Files::default(), rdev);
        Ok(EssBoard { identity, file, _lock, dma: None, link, stop: StopFlag::default() })
    }

    fn gone(&self, error: impl std::fmt::Display) -> Fault {
        Fault::new(format!("{}: {error}", self.identity.device))
    }
}

impl BoardRegisters for EssBoard {
    fn read_register(&mut self, offset: u32) -> Result<u32, Fault> {
        commands::read_register(&self.file, offset).map_err(|error| self.gone(error))
    }

    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), Fault> {
        commands::write_register(&self.file, offset, value).map_err(|error| self.gone(error))
    }

    fn stop_flag(&self) -> &StopFlag {
        &self.stop
    }

    fn dma_write(&mut self, card_offset: u64, from: &[u8]) -> Result<usize, Fault> {
        if !is_dma_write(card_offset, from.len()) {
            let asked = format!("{} bytes to {card_offset:#x}", from.len());
            return Err(self.gone(format!(
                "{asked}: the board writes 64, 128, 256, ... bytes to a multiple of 64"
            )));
        }
        self.file.seek(SeekFrom::Start(card_offset)).map_err(|error| self.gone(error))?;
        // One call is one DMA write. The rest of a partial write is not sent, because its length
        // may be invalid for the board.
        loop {
            match self.file.write(from) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                done => return done.map_err(|error| self.gone(error)),
            }
        }
    }
}

impl Board for EssBoard {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn commands(&mut self) -> Result<&mut dyn BoardCommands, Fault> {
        Ok(self)
    }

    fn read(&mut self, card_offset: u64, into: &mut [u8]) -> Result<usize, Fault> {
        // The driver has no pread: its read() starts at the position of lseek.
        self.file.seek(SeekFrom::Start(card_offset)).map_err(|error| self.gone(error))?;
        read_in_parts(&self.identity.device, into, &self.stop, |_, part| self.file.read(part))
    }

    fn map(&mut self, bytes: usize) -> Result<(), Fault> {
        let rounded = bytes.next_multiple_of(4096);
        let mapped = DriverBuffer::map(&self.file, rounded).map_err(|error| {
            self.gone(format!(
                "{error}; access mode 1 needs one contiguous buffer: lower -S or use -B 0"
            ))
        })?;
        self.dma = Some(mapped);
        Ok(())
    }

    fn read_mapped(&mut self, card_offset: u64, bytes: usize) -> Result<usize, Fault> {
        let dma = self.dma.as_mut().expect("mapped before the first read");
        dma.read_into(&self.file, card_offset, bytes).map_err(|error| self.gone(error))
    }

    fn mapped(&self, samples: usize) -> &[u16] {
        self.dma.as_ref().expect("mapped before the first read").samples(samples)
    }

    fn wait(&mut self, timeout: Duration) -> Result<bool, Fault> {
        // Zero would wait for ever.
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        match commands::wait_irq(&self.file, timeout_ms, DAQ_DONE) {
            Ok(FIRED) => Ok(true),
            Ok(TIMEOUT) => Ok(false),
            Ok(status) => {
                Err(self.gone(format!("waiting for DAQ done: the driver says status {status}")))
            }
            Err(error) => Err(self.gone(error)),
        }
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn known_limit(&self) -> Option<(f64, String)> {
        let link = self.link?;
        Some((link.bytes_per_s(), link.to_string()))
    }
}
