//! Interface of all boards. Registers, ioctls and bus numbers are in the families' folders.

use std::fs::{File, TryLockError};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_sys::host::Files;

use super::pcie::PcieLink;

/// Prefix of emulated boards: `emu:l0`, `emu:l2-1`, `emu:ku0`.
pub const EMULATED_PREFIX: &str = "emu:";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub device: String,
    pub model: &'static str,
    /// Size of the sample memory; `None` for a stream or an unknown size.
    pub memory_bytes: Option<u64>,
    pub emulated: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TriggerAccount {
    pub issued: u64,
    pub taken: u64,
    pub not_armed: u64,
    pub sampling: u64,
    /// Number of the trigger that was taken last, by the source's count.
    pub last_taken: u64,
}

/// A digitizer board, driven by one thread. Its [`Identity`] states its limits in advance.
pub trait Board: Send {
    fn identity(&self) -> &Identity;

    /// Returns the commands of a board that can be triggered and written.
    ///
    /// # Errors
    /// It only streams.
    fn commands(&mut self) -> Result<&mut dyn BoardCommands, Fault> {
        Err(self.cannot("be triggered"))
    }

    /// Waits for the interrupt that ends an acquisition. Returns false on timeout, and possibly
    /// after the end with a driver that loses interrupts: callers then check
    /// [`BoardCommands::is_done`].
    fn wait(&mut self, _timeout: Duration) -> Result<bool, Fault> {
        Err(self.cannot("be triggered"))
    }

    /// Reads samples from a byte offset; returns the bytes delivered. Offset and length are
    /// multiples of 32 bytes.
    ///
    /// # Errors
    /// The board is gone or the range is not in its memory.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, Fault>;

    /// Maps a buffer for reads without a copy.
    ///
    /// # Errors
    /// The driver has no contiguous buffer of that size.
    fn map(&mut self, _bytes: usize) -> Result<(), Fault> {
        Err(self.cannot("be mapped: use -B 0"))
    }

    fn read_mapped(&mut self, _offset: u64, _bytes: usize) -> Result<usize, Fault> {
        Err(self.cannot("be mapped: use -B 0"))
    }

    fn mapped(&self, _samples: usize) -> &[u16] {
        &[]
    }

    fn set_stop_flag(&mut self, _stop: &StopFlag) {}

    /// Sets the external trigger of an emulated board; real boards are triggered from outside.
    fn set_trigger_rate(&mut self, _rate_hz: f64) {}

    fn begin_account(&mut self) {}

    /// Returns triggers at the source; `None` if the board cannot count them.
    fn trigger_account(&mut self) -> Option<TriggerAccount> {
        None
    }

    /// Returns the expected sample at an index from offset 0; `None` if unknown.
    fn expected_sample(&self, _index: u64) -> Option<u16> {
        None
    }

    /// Returns the limit of this board's read rate, if known without measuring, and its reason.
    fn known_limit(&self) -> Option<(f64, String)> {
        None
    }

    fn cannot(&self, what: &str) -> Fault {
        let identity = self.identity();
        Fault::new(format!("{}: {} cannot {what}", identity.device, identity.model))
    }
}

/// Commands of a board with an external trigger and a memory that can be written.
pub trait BoardCommands: Board {
    /// Prepares acquisitions of `samples` over all channels, each started by the external trigger.
    ///
    /// # Errors
    /// The board is gone or cannot hold the samples.
    fn configure(&mut self, samples: u64) -> Result<(), Fault>;

    fn arm(&mut self) -> Result<(), Fault>;

    fn is_done(&mut self) -> Result<bool, Fault>;

    fn disarm(&mut self) -> Result<(), Fault>;

    /// Writes the board's memory and protects it again; returns the bytes taken. Length and offset
    /// are multiples of 64 bytes.
    ///
    /// # Errors
    /// As [`Board::read`].
    fn write(&mut self, offset: u64, from: &[u8]) -> Result<usize, Fault>;
}

/// The node of a real board: its identity, the lock that it is held by, and its link.
#[derive(Debug)]
pub(super) struct BoardNode {
    pub(super) identity: Identity,
    pub(super) file: File,
    pub(super) stop: StopFlag,
    link: Option<PcieLink>,
    _lock: Option<UnixDatagram>,
}

impl BoardNode {
    /// Takes an open device, unless another program has it.
    pub(super) fn of(
        device: &str,
        file: File,
        model: &'static str,
        memory_bytes: Option<u64>,
    ) -> Result<BoardNode, Fault> {
        let _lock = lock(device, &file)?;
        let device = device.to_owned();
        let identity = Identity { device, model, memory_bytes, emulated: false };
        let rdev = file.metadata().map_or(0, |metadata| metadata.rdev());
        let link = PcieLink::of(&Files::default(), rdev);
        Ok(BoardNode { identity, file, stop: StopFlag::default(), link, _lock })
    }

    pub(super) fn known_limit(&self) -> Option<(f64, String)> {
        let link = self.link?;
        Some((link.bytes_per_s(), link.to_string()))
    }
}

/// Holds a board for one thread of one program, until the file and the result are dropped. Links to
/// it have the same inode, and other nodes of a character device the same number.
fn lock(device: &str, file: &File) -> Result<Option<UnixDatagram>, Fault> {
    let about = file.metadata().ok().filter(|about| about.file_type().is_char_device());
    let by_number = about.map(|about| hold(about.rdev()));
    let is_taken = matches!(file.try_lock(), Err(TryLockError::WouldBlock))
        || matches!(&by_number, Some(Err(error)) if error.kind() == io::ErrorKind::AddrInUse);
    if is_taken {
        return Err(Fault::new(format!(
            "{device}: another program has this board, or it was named before by another name"
        )));
    }
    Ok(by_number.and_then(Result::ok))
}

/// Holds a device number: a socket without a file, whose name is free again when its program ends.
fn hold(number: u64) -> io::Result<UnixDatagram> {
    let name = format!("daqmeter-board-{number:x}");
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Fills `into` by reads at an offset, which may come in parts; only the end of the data ends it
/// earlier.
pub(super) fn read_in_parts(
    device: &str,
    into: &mut [u8],
    stop: &StopFlag,
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
) -> Result<usize, Fault> {
    let mut done = 0;
    while done < into.len() {
        match read(done as u64, &mut into[done..]) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::new(format!("{device}: {error}"))),
        }
        if done < into.len() && stop.is_set() {
            return Err(Fault::interrupted());
        }
    }
    Ok(done)
}

/// Samples and bytes of a card's memory are far below the address space.
pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("at most 2^31 bytes, checked with the request")
}

/// Returns the 16-bit sample at an index of an emulated board's memory.
#[allow(clippy::cast_possible_truncation, reason = "a hash keeps the bits it wants")]
pub fn pattern_sample(index: u64) -> u16 {
    // Multiplicative hashing: neighbours and equal places of different channels all differ.
    (((index as u32).wrapping_mul(0x9E37_79B1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two programs had one board, each by a node of its own: an inode is of a node.
    #[test]
    fn a_device_number_has_one_holder_until_it_is_dropped() {
        let number = u64::from(std::process::id()) << 32;
        let first = hold(number).unwrap();
        assert_eq!(hold(number).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        hold(number + 1).unwrap();
        drop(first);
        hold(number).unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert!(lock("/dev/full", &full).unwrap().is_some());
    }
}
