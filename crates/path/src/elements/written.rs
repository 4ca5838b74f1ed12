//! Sink `file`: written to a file of at most `max` bytes, from its beginning again when it is full.
//! `direct` bypasses the page cache.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use daqmeter_harness::{Fault, Problem};
use daqmeter_hostio::SECTOR_BYTES;
use daqmeter_record::written::ByteSize;
use daqmeter_sys::host::DIRECT;
use serde::Deserialize;

use crate::cancel::Cuts;
use crate::definition::flow::{Flow, Place, SPAN_BYTES, bytes, unless};
use crate::definition::kind::{Facts, SinkElement};
use crate::element::{Block, Sink};
use crate::sum::sum;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    path: String,
    #[serde(default = "bytes::<{ 256 << 20 }>")]
    max: ByteSize,
    #[serde(default)]
    direct: bool,
}

impl SinkElement for Written {
    fn check(&mut self, _place: &Place, flow: &mut Flow) -> Result<Facts, Fault> {
        let bytes = flow.bytes;
        let problem = format_args!(
            "blocks of {bytes} bytes come; multiples of {SECTOR_BYTES} are wanted past the page cache"
        );
        unless(!self.direct || bytes.is_multiple_of(SECTOR_BYTES), "direct", problem)?;
        Problem::unless_within("max", self.max.0, SPAN_BYTES)?;
        self.max.0 = self.max.0.max(bytes);
        let direct = if self.direct { ", direct" } else { "" };
        // The file is not there before the run; its folder is.
        let folder = Path::new(&self.path).parent().and_then(Path::to_str).unwrap_or_default();
        let folder = if folder.is_empty() { "." } else { folder };
        let devices = self.direct.then(|| folder.to_owned()).into_iter().collect();
        let text = format!("file {}{direct}", self.path);
        Ok(Facts { devices, is_outside: true, ..Facts::of(text) })
    }

    fn sink(&self, block_bytes: usize, _cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
        Ok(Box::new(RingFile {
            path: self.path.clone(),
            direct: self.direct,
            block_bytes,
            slots: vec![None; (self.max.0 / block_bytes).max(1)],
            next: 0,
            file: None,
        }))
    }
}

/// A file that is made, filled from its beginning again and again, read back, and removed.
struct RingFile {
    path: String,
    direct: bool,
    block_bytes: usize,
    /// Bytes and sum of the latest block at each place, if they are known.
    slots: Vec<Option<(usize, u64)>>,
    next: usize,
    file: Option<Made>,
}

/// File that this path created, and a second handle past the page cache if that is requested.
struct Made {
    file: File,
    direct: Option<File>,
}

impl RingFile {
    fn failed(&self, what: &str, error: &std::io::Error) -> Fault {
        Fault::new(format!("{what} {}: {error}", self.path))
    }

    fn file(&self) -> Result<&Made, Fault> {
        self.file.as_ref().ok_or_else(|| Fault::new(format!("{} is not open", self.path)))
    }

    fn opened_direct(&self) -> Result<File, Fault> {
        let mut options = OpenOptions::new();
        let opened = options.write(true).custom_flags(DIRECT).open(&self.path);
        opened.map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => Fault::new(format!(
                "{}: its file system writes nothing past the page cache: leave out `direct`",
                self.path
            )),
            _ => self.failed("open", &error),
        })
    }
}

impl Sink for RingFile {
    fn prepare(&mut self) -> Result<(), Fault> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(&self.path);
        let file = file.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Fault::new(format!(
                "{} exists: name a file that does not, it is removed after the run",
                self.path
            )),
            _ => self.failed("make", &error),
        })?;
        let direct = if self.direct { self.opened_direct().map(Some) } else { Ok(None) };
        // Without its name it is gone with the run, however that ends, and nobody else's file is
        // ever read or removed.
        std::fs::remove_file(&self.path).map_err(|error| self.failed("remove", &error))?;
        self.file = Some(Made { file, direct: direct? });
        Ok(())
    }

    fn take(&mut self, block: &Block, expected: Option<u64>) -> Result<Option<u64>, Fault> {
        let at = (self.next * self.block_bytes) as u64;
        let made = self.file()?;
        let to = made.direct.as_ref().unwrap_or(&made.file);
        let written = to.write_all_at(block.bytes(), at);
        written.map_err(|error| self.failed("write", &error))?;
        self.slots[self.next] = expected.map(|sum| (block.label.bytes, sum));
        self.next = (self.next + 1) % self.slots.len();
        Ok(None)
    }

    /// Reads the file through the page cache, which direct writes leave coherent: open(2).
    fn check(&mut self) -> Result<u64, Fault> {
        let mut checked = 0;
        let mut bytes = vec![0; self.block_bytes];
        let written = &self.file()?.file;
        for (slot, known) in self.slots.iter().enumerate() {
            let &Some((block_bytes, wanted)) = known else { continue };
            let at = (slot * self.block_bytes) as u64;
            let bytes = &mut bytes[..block_bytes];
            let read = written.read_exact_at(bytes, at);
            read.map_err(|error| self.failed("read back", &error))?;
            if sum(bytes) != wanted {
                return Err(Fault::new(format!(
                    "{}: the block at {at} is not what was written",
                    self.path
                )));
            }
            checked += 1;
        }
        Ok(checked)
    }
}
