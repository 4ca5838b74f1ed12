//! Commands of the SIS8300 drivers: ioctl numbers and their words.
//!
//! Three unrelated kernel interfaces share the device name. The numbers of the ESS driver
//! (`sis8300drv`) and of Struck's own differ in the encoded *size*, which tells them apart before
//! any access. Source: the drivers' public headers.

use std::fs::File;

use daqmeter_sys::{SysError, ioctl_command, ioctl_words};

/// `_IOWR` of the drivers' type, with an argument of these words.
const fn iowr(number: u32, words: usize) -> u32 {
    ioctl_command(3, 's' as u32, number, 4 * words)
}

/// Reads a register: ESS, Struck and slac-epics alike. Word offset (byte offset divided by four),
/// and value.
pub(super) const REG_READ: u32 = iowr(0, 2);
pub(super) const REG_WRITE: u32 = iowr(1, 2);
/// Waits for an interrupt (ESS driver). Limit in milliseconds, where 0 waits for ever; 0 for DAQ
/// done and 1 for user; out: 0 fired, 1 released, 2 timeout, 3 error.
pub(super) const WAIT_IRQ: u32 = iowr(2, 3);
/// Releases a waiting thread (ESS driver). Words as in [`WAIT_IRQ`].
pub(super) const RELEASE_IRQ: u32 = iowr(3, 3);
/// Waits in Struck's driver: the ESS driver's number with a structure of 8 bytes.
pub(super) const STRUCK_WAIT_USER: u32 = iowr(2, 2);

const _: () = assert!(REG_READ == 0xC008_7300 && REG_WRITE == 0xC008_7301);
const _: () = assert!(
    WAIT_IRQ == 0xC00C_7302 && RELEASE_IRQ == 0xC00C_7303 && STRUCK_WAIT_USER == 0xC008_7302
);

/// Reads a register.
///
/// # Errors
/// ENODEV when the card is gone, ENOTTY or EINVAL for another driver.
pub(super) fn read_register(file: &File, offset: u32) -> Result<u32, SysError> {
    let mut access = [offset, 0];
    ioctl_words(file, REG_READ, &mut access, "read a register (REG_READ)")?;
    Ok(access[1])
}

pub(super) fn write_register(file: &File, offset: u32, data: u32) -> Result<(), SysError> {
    ioctl_words(file, REG_WRITE, &mut [offset, data], "write a register (REG_WRITE)")
}

pub(super) fn wait_irq(file: &File, timeout_ms: u32, kind: u32) -> Result<u32, SysError> {
    let mut wait = [timeout_ms, kind, 0];
    ioctl_words(file, WAIT_IRQ, &mut wait, "wait for an interrupt (WAIT_IRQ)")?;
    Ok(wait[2])
}

/// Releases a waiting thread. Has no effect without one, so it also identifies the ESS driver.
///
/// # Errors
/// As [`read_register`].
pub(super) fn release_irq(file: &File) -> Result<(), SysError> {
    ioctl_words(file, RELEASE_IRQ, &mut [0; 3], "release a waiter (RELEASE_IRQ)")
}
