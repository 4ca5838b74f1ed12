//! A streaming device behind its driver.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt};

use daqmeter_harness::{Fault, StopFlag};

use crate::devices::board::{Board, BoardNode, Identity, read_in_parts};

/// `ESPIPE`: the device has no offsets.
const NOT_SEEKABLE: i32 = 29;

#[derive(Debug)]
pub(super) struct Channel {
    board: BoardNode,
    seekable: bool,
}

impl Channel {
    pub(super) fn open(device: &str, path: &str) -> Result<Channel, Fault> {
        let refuse = |why: &dyn std::fmt::Display| Fault::new(format!("{device}: {why}"));
        let metadata = fs::metadata(path).map_err(|error| refuse(&error))?;
        let kind = metadata.file_type();
        // Tests use regular files as devices, as FUSE does. Opening a FIFO would wait for its other
        // end.
        if !kind.is_char_device() && !kind.is_file() {
            return Err(refuse(&"not a character device"));
        }
        let file = File::open(path).map_err(|error| refuse(&error))?;
        let board = BoardNode::of(device, file, "streaming device", None)?;
        Ok(Channel { board, seekable: true })
    }
}

impl Board for Channel {
    fn identity(&self) -> &Identity {
        &self.board.identity
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, Fault> {
        let Channel { board: BoardNode { identity, file, stop, .. }, seekable } = self;
        read_in_parts(&identity.device, into, stop, |done, part| {
            if *seekable {
                match file.read_at(part, offset + done) {
                    Err(error) if error.raw_os_error() == Some(NOT_SEEKABLE) => *seekable = false,
                    read => return read,
                }
            }
            file.read(part)
        })
    }

    fn set_stop_flag(&mut self, stop: &StopFlag) {
        self.board.stop = stop.clone();
    }

    fn known_limit(&self) -> Option<(f64, String)> {
        self.board.known_limit()
    }
}
