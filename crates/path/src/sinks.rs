//! Sinks: a consumer that reads each byte once, and a file. `remote.rs` has the receiver on another
//! host.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use daqmeter_harness::Fault;
use daqmeter_sys::host::DIRECT;

use crate::cancel::Cuts;
use crate::definition::Path;
use crate::element::{Block, Sink, of_card};
use crate::kinds::SinkKind;
use crate::remote::Remote;
use crate::sum::sum;

pub(crate) fn sink(path: &Path, cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
    let block_bytes = path.sink_bytes();
    Ok(match &path.sink.kind {
        SinkKind::Read {} => Box::new(ReadOnce),
        kind @ (SinkKind::Tcp { to, .. } | SinkKind::Udp { to, .. }) => {
            Box::new(Remote::new(to.clone(), kind.clone(), cuts.clone()))
        }
        SinkKind::Receiver { .. } => return Err(of_card()),
        SinkKind::File { path, max, direct } => Box::new(Written {
            path: path.clone(),
            direct: *direct,
            block_bytes,
            slots: vec![None; (max.0 / block_bytes).max(1)],
            next: 0,
            file: None,
        }),
    })
}

struct ReadOnce;

impl Sink for ReadOnce {
    fn take(&mut self, block: &Block, _expected: Option<u64>) -> Result<Option<u64>, Fault> {
        Ok(Some(sum(block.bytes())))
    }
}

/// A file that is made, filled from its beginning again and again, read back, and removed.
struct Written {
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

impl Written {
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

impl Sink for Written {
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
