//! Sinks: a consumer that reads each byte once, and a file. `remote.rs` has the receiver on another host.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use daqmeter_harness::Fault;
use daqmeter_sys::host::DIRECT;

use crate::cut::Cuts;
use crate::definition::{Path, SinkKind};
use crate::element::{Block, Checked, Label, Sink};
use crate::remote::Remote;
use crate::stages::of_card;
use crate::sum::sum;

/// The sink of a path.
pub(crate) fn sink(path: &Path, cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
    let block_bytes = path
        .stages
        .last()
        .map_or(path.source.out_bytes, |stage| stage.out_bytes);
    Ok(match &path.sink.kind {
        SinkKind::Read => Box::new(ReadOnce),
        SinkKind::Remote { to, over } => {
            Box::new(Remote::new(to.clone(), over.clone(), cuts.clone()))
        }
        SinkKind::Receiver => return Err(of_card()),
        SinkKind::File {
            path,
            span_bytes,
            direct,
        } => Box::new(Written {
            path: path.clone(),
            direct: *direct,
            block_bytes,
            slots: vec![None; (span_bytes / block_bytes).max(1)],
            next: 0,
            file: None,
        }),
    })
}

struct ReadOnce;

impl Sink for ReadOnce {
    fn prepare(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn take(&mut self, block: &Block, _expected: Option<u64>) -> Result<Option<u64>, Fault> {
        Ok(Some(sum(block.bytes())))
    }
}

/// A file that is made, filled from its beginning again and again, read back, and removed.
struct Written {
    path: String,
    /// Past the page cache.
    direct: bool,
    block_bytes: usize,
    /// What was written last at each place.
    slots: Vec<Option<Label>>,
    next: usize,
    file: Option<File>,
}

impl Written {
    fn failed(&self, what: &str, error: &std::io::Error) -> Fault {
        Fault::new(format!("{what} {}: {error}", self.path))
    }

    fn file(&self) -> Result<&File, Fault> {
        self.file
            .as_ref()
            .ok_or_else(|| Fault::new(format!("{} is not open", self.path)))
    }
}

impl Sink for Written {
    fn prepare(&mut self) -> Result<(), Fault> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        if self.direct {
            options.custom_flags(DIRECT);
        }
        match options.open(&self.path) {
            Ok(file) => self.file = Some(file),
            Err(error) if self.direct && error.kind() == std::io::ErrorKind::InvalidInput => {
                // It is made before it is refused.
                let _ = std::fs::remove_file(&self.path);
                return Err(Fault::new(format!(
                    "{}: its file system writes nothing past the page cache: leave out `direct`",
                    self.path
                )));
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Fault::new(format!(
                    "{} exists: name a file that does not, it is removed after the run",
                    self.path
                )));
            }
            Err(error) => return Err(self.failed("make", &error)),
        }
        Ok(())
    }

    fn take(&mut self, block: &Block, _expected: Option<u64>) -> Result<Option<u64>, Fault> {
        let at = (self.next * self.block_bytes) as u64;
        let written = self.file()?.write_all_at(block.bytes(), at);
        written.map_err(|error| self.failed("write", &error))?;
        self.slots[self.next] = Some(block.label);
        self.next = (self.next + 1) % self.slots.len();
        Ok(None)
    }

    fn check(&mut self, expected: &[u64]) -> Result<Checked, Fault> {
        let mut checked = 0;
        let mut bytes = vec![0; self.block_bytes];
        // Through the page cache, which direct writes leave coherent: open(2).
        let written = File::open(&self.path).map_err(|error| self.failed("read back", &error))?;
        for (slot, label) in self.slots.iter().enumerate() {
            let Some(label) = label else { continue };
            let Some(&wanted) = label.key.and_then(|key| expected.get(key)) else {
                continue;
            };
            let at = (slot * self.block_bytes) as u64;
            let bytes = &mut bytes[..label.bytes];
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
        Ok(Checked {
            verified: checked,
            ..Checked::default()
        })
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if self.file.is_some() {
            // We made it; when it is gone already, that is what is wanted.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
