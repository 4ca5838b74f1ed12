//! A streaming device behind its driver.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};

use daqmeter_harness::{Fault, StopFlag};
use daqmeter_sys::host::Files;

use crate::devices::board::{Board, Identity};
use crate::devices::pcie::{PcieLink, device_numbers};

/// `ESPIPE`: the device has no offsets.
const NOT_SEEKABLE: i32 = 29;

#[derive(Debug)]
pub(super) struct Channel {
    identity: Identity,
    file: File,
    link: Option<PcieLink>,
    seekable: bool,
    stop: StopFlag,
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
        let (major, minor) = device_numbers(metadata.rdev());
        Ok(Channel {
            identity: Identity {
                device: device.to_owned(),
                model: "streaming device",
                memory_bytes: None,
                emulated: false,
                triggered: false,
                writable: false,
            },
            link: PcieLink::of(&Files::default(), major, minor),
            file,
            seekable: true,
            stop: StopFlag::default(),
        })
    }

    fn read_some(&mut self, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
        if !self.seekable {
            return self.file.read(into);
        }
        match self.file.read_at(into, offset) {
            Err(error) if error.raw_os_error() == Some(NOT_SEEKABLE) => {
                self.seekable = false;
                self.file.read(into)
            }
            read => read,
        }
    }
}

impl Board for Channel {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, Fault> {
        let mut done = 0;
        // A read may come in parts; only the end of the data ends it.
        while done < into.len() {
            match self.read_some(offset + done as u64, &mut into[done..]) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::new(format!("{}: {error}", self.identity.device))),
            }
            if done < into.len() && self.stop.is_set() {
                return Err(Fault::interrupted());
            }
        }
        Ok(done)
    }

    fn heed(&mut self, stop: &StopFlag) {
        self.stop = stop.clone();
    }

    fn known_limit(&self) -> Option<(f64, String)> {
        let link = self.link?;
        Some((link.bytes_per_s(), link.to_string()))
    }
}
