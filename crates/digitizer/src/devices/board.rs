//! What every board does, in the words of an acquisition, and what a family of boards says of
//! itself. BoardRegisters, ioctls and numbers on buses are in the families' folders.

use std::path::Path;
use std::time::Duration;

use daqmeter_harness::{CardFamily, Fault, StopFlag};

use crate::serve::ServedBoard;

/// Prefix of emulated boards: `emu:l0`, `emu:l2-1`, `emu:ku0`.
pub const EMULATED_PREFIX: &str = "emu:";

/// Who a board is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Device path or emulated name, as the user gave it.
    pub device: String,
    /// Product name.
    pub model: &'static str,
    /// Which kernel interface drives it.
    pub interface: &'static str,
    /// Size of the sample memory; none where the board streams or does not say.
    pub memory_bytes: Option<u64>,
    /// True for boards that do not exist.
    pub emulated: bool,
    /// Whether a trigger starts its acquisitions, which are waited for.
    pub triggered: bool,
    /// Whether its memory can be written.
    pub writable: bool,
    /// Whether the same samples can be read again until the next acquisition. A stream's are gone.
    pub repeatable: bool,
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

/// A digitizer board. One thread drives one board. What a board cannot do, its [`Identity`] says
/// before it is asked.
pub trait Board: Send {
    /// Who it is.
    fn identity(&self) -> &Identity;

    /// Prepares acquisitions of `samples` over all channels, each started by the external trigger.
    ///
    /// # Errors
    /// When the board is gone or cannot hold so many.
    fn configure(&mut self, _samples: u64) -> Result<(), Fault> {
        Err(self.cannot("be triggered"))
    }

    /// Waits for the next trigger from now on.
    ///
    /// # Errors
    /// When the board is gone.
    fn arm(&mut self) -> Result<(), Fault> {
        Err(self.cannot("be triggered"))
    }

    /// Looks whether the acquisition is over.
    ///
    /// # Errors
    /// When the board is gone.
    fn is_done(&mut self) -> Result<bool, Fault> {
        Err(self.cannot("be triggered"))
    }

    /// Waits for the interrupt that ends an acquisition; false on timeout. May return false
    /// although the acquisition is over (a driver that loses interrupts): callers look then.
    ///
    /// # Errors
    /// When the board is gone.
    fn wait(&mut self, _timeout: Duration) -> Result<bool, Fault> {
        Err(self.cannot("be triggered"))
    }

    /// Gives up the acquisition under way.
    ///
    /// # Errors
    /// When the board is gone.
    fn disarm(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// Reads samples from a byte offset; returns the bytes delivered. Offset and length are
    /// multiples of 32 bytes.
    ///
    /// # Errors
    /// When the board is gone or the range is not in its memory.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, Fault>;

    /// Writes the board's memory, which is protected again afterwards; returns the bytes taken.
    /// Length and offset are multiples of 64 bytes.
    ///
    /// # Errors
    /// As [`Board::read`].
    fn write(&mut self, _offset: u64, _from: &[u8]) -> Result<usize, Fault> {
        Err(self.cannot("be written"))
    }

    /// Maps a buffer for reads without a copy.
    ///
    /// # Errors
    /// When the driver has no contiguous buffer of that size.
    fn map(&mut self, _bytes: usize) -> Result<(), Fault> {
        Err(self.cannot("be mapped: use -B 0"))
    }

    /// Reads samples into the start of the mapped buffer.
    ///
    /// # Errors
    /// As [`Board::read`].
    fn read_mapped(&mut self, _offset: u64, _bytes: usize) -> Result<usize, Fault> {
        Err(self.cannot("be mapped: use -B 0"))
    }

    /// The samples that the last [`Board::read_mapped`] left.
    fn mapped(&self, _samples: usize) -> &[u16] {
        &[]
    }

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

    /// What a sample must be, by its index from offset 0; none where nobody knows.
    fn expected_sample(&self, _index: u64) -> Option<u16> {
        None
    }

    /// The rate that reads of this board cannot exceed, where it is known without measuring, and
    /// why.
    fn known_limit(&self) -> Option<(f64, String)> {
        None
    }

    /// The fault of a board that is asked for what it has not.
    fn cannot(&self, what: &str) -> Fault {
        let identity = self.identity();
        Fault::new(format!("{}: {} cannot {what}", identity.device, identity.model))
    }
}

/// How emulated boards behave.
#[derive(Clone, Debug)]
pub struct Emulation {
    /// Their timing: a shipped name or a TOML file.
    pub profile: String,
    /// Otherwise they go as fast as memory.
    pub paced: bool,
}

/// What was found behind a node in /dev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFound {
    /// Driver.
    pub driver: String,
    /// Identification, or why the node is not used.
    pub about: String,
}

/// A family of boards: one folder, real and emulated members.
pub trait BoardFamily: Sync {
    /// Name in lists.
    fn name(&self) -> &'static str;

    /// Whether a device belongs to it, by its path or emulated name (`emu:...`).
    fn claims(&self, device: &str) -> bool;

    /// Opens the devices of one request that belong to it; emulated ones share what boards of one
    /// crate share.
    ///
    /// # Errors
    /// When one is not there, or not understood.
    fn open(&self, devices: &[&str], emulation: &Emulation) -> Result<Vec<Box<dyn Board>>, Fault>;

    /// How it is known on the PCI bus and in /dev.
    fn cards(&self) -> CardFamily;

    /// What stands behind a node in /dev, found out without changing anything.
    fn describe(&self, node: &str) -> NodeFound;

    /// Emulated members: names as they are typed, and what they do.
    fn emulated(&self) -> Vec<(String, String)>;

    /// What to do where no board of it is found.
    fn remedy(&self) -> &'static str;

    /// Serves an emulated member as a file that answers as the driver does.
    ///
    /// # Errors
    /// When there is no such member, or FUSE is missing or forbidden.
    fn serve(
        &self,
        device: &str,
        path: &Path,
        emulation: &Emulation,
        rate_hz: Option<f64>,
    ) -> Result<ServedBoard, Fault>;
}

/// The 16-bit sample at an index of an emulated board's memory.
#[allow(clippy::cast_possible_truncation, reason = "a hash keeps the bits it wants")]
pub fn pattern_sample(index: u64) -> u16 {
    // Multiplicative hashing: neighbours and equal places of different channels all differ.
    (((index as u32).wrapping_mul(0x9E37_79B1)) >> 16) as u16
}
