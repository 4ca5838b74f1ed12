//! The interface to the SIS8300 drivers: ioctl numbers, structures and calls.
//!
//! Three unrelated kernel interfaces share the device name. The numbers of the ESS driver
//! (`sis8300drv`) and of Struck's own differ in the encoded *size*, which tells them apart before
//! any access. Source: the drivers' public headers; numbers are restated in the reference of the
//! digitizer part, sections 2.1 to 2.3.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use crate::memory::Mapping;
use crate::{SysError, ioctl, ioctl_command};

/// `_IOWR` of the drivers' type.
const fn iowr(number: u32, bytes: usize) -> u32 {
    ioctl_command(3, 's' as u32, number, bytes)
}

/// Reads a register: ESS, Struck and slac-epics alike.
pub const REG_READ: u32 = iowr(0, 8);
pub const REG_WRITE: u32 = iowr(1, 8);
/// Waits for an interrupt (ESS driver).
pub const WAIT_IRQ: u32 = iowr(2, 12);
/// Releases a waiting thread (ESS driver).
pub const RELEASE_IRQ: u32 = iowr(3, 12);
/// Waits in Struck's driver: the ESS driver's number with a structure of 8 bytes.
pub const STRUCK_WAIT_USER: u32 = iowr(2, 8);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RegisterAccess {
    /// Word offset (byte offset divided by four).
    offset: u32,
    data: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IrqWait {
    /// Limit in milliseconds; 0 waits for ever.
    timeout_ms: u32,
    /// 0: DAQ done, 1: user.
    kind: u32,
    /// Out: 0 fired, 1 released, 2 timeout, 3 error.
    status: u32,
}

const _: () = assert!(size_of::<RegisterAccess>() == 8 && size_of::<IrqWait>() == 12);
const _: () = assert!(REG_READ == 0xC008_7300 && REG_WRITE == 0xC008_7301);
const _: () = assert!(
    WAIT_IRQ == 0xC00C_7302 && RELEASE_IRQ == 0xC00C_7303 && STRUCK_WAIT_USER == 0xC008_7302
);

/// Reads a register.
///
/// # Errors
/// ENODEV when the card is gone, ENOTTY or EINVAL for another driver.
pub fn read_register(file: &File, offset: u32) -> Result<u32, SysError> {
    let mut access = RegisterAccess { offset, data: 0 };
    ioctl(file, REG_READ, &raw mut access, "read a register (REG_READ)")?;
    Ok(access.data)
}

pub fn write_register(file: &File, offset: u32, data: u32) -> Result<(), SysError> {
    let mut access = RegisterAccess { offset, data };
    ioctl(file, REG_WRITE, &raw mut access, "write a register (REG_WRITE)")
}

pub fn wait_irq(file: &File, timeout_ms: u32, kind: u32) -> Result<u32, SysError> {
    let mut wait = IrqWait { timeout_ms, kind, status: 0 };
    ioctl(file, WAIT_IRQ, &raw mut wait, "wait for an interrupt (WAIT_IRQ)")?;
    Ok(wait.status)
}

/// Releases a waiting thread. Has no effect without one, so it also identifies the ESS driver.
///
/// # Errors
/// As [`read_register`].
pub fn release_irq(file: &File) -> Result<(), SysError> {
    let mut wait = IrqWait::default();
    ioctl(file, RELEASE_IRQ, &raw mut wait, "release a waiter (RELEASE_IRQ)")
}

/// A mapping of the driver's DMA buffer (ESS driver, access mode 1): a `read` to its start
/// transfers without a copy. No reference exists during a read, because the card writes it.
#[derive(Debug)]
pub struct DmaBuffer(Mapping);

impl DmaBuffer {
    /// Requests a contiguous buffer of `bytes`, mapped for reading and writing. The driver needs
    /// only PROT_READ, but a FUSE file refuses to read into a mapping without write access.
    ///
    /// # Errors
    /// ENOMEM without a contiguous buffer of that size (usually 4 MiB at most), ENODEV without
    /// mmap.
    pub fn map(file: &File, bytes: usize) -> Result<DmaBuffer, SysError> {
        let call = format!("map a DMA buffer of {bytes} bytes");
        Mapping::shared(file.as_fd(), bytes, call).map(DmaBuffer)
    }

    /// Reads `bytes` at the card offset into the start of the mapping; returns the bytes delivered.
    pub fn read_into(
        &mut self,
        file: &File,
        card_offset: u64,
        bytes: usize,
    ) -> Result<usize, SysError> {
        assert!(bytes <= self.0.bytes, "{bytes} bytes into a DMA buffer of {}", self.0.bytes);
        let offset =
            libc::off_t::try_from(card_offset).expect("card memory is far below 2^63 bytes");
        // The driver knows lseek + read only: its read() uses and advances the file position.
        // SAFETY: plain calls on an open descriptor; the buffer has `bytes` bytes.
        let got = unsafe {
            libc::lseek(file.as_raw_fd(), offset, libc::SEEK_SET);
            libc::read(file.as_raw_fd(), self.0.start.as_ptr().cast(), bytes)
        };
        usize::try_from(got)
            .map_err(|_| SysError::last(format!("read {bytes} bytes at {card_offset:#x}")))
    }

    /// Borrows the samples of the last read. The card does not write while `&self` is held.
    pub fn samples(&self, len: usize) -> &[u16] {
        assert!(len <= self.0.bytes / 2, "{len} samples of a DMA buffer of {} bytes", self.0.bytes);
        // SAFETY: within the mapping, page-aligned; `read_into` needs `&mut self`, so no transfer
        // runs meanwhile.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), len) }
    }
}
