//! Sinks: a consumer that reads each byte once, and a file. `remote.rs` has the receiver on another
//! host.

use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use daqmeter_harness::Fault;
use daqmeter_sys::host::DIRECT;

use crate::cancel::Cuts;
use crate::definition::{Path, SinkKind};
use crate::element::{Block, Label, Sink};
use crate::remote::Remote;
use crate::stages::of_card;
use crate::sum::sum;

pub(crate) fn sink(path: &Path, cuts: &Cuts) -> Result<Box<dyn Sink>, Fault> {
    let block_bytes = path.stages.last().map_or(path.source.out_bytes, |stage| stage.out_bytes);
    Ok(match &path.sink.kind {
        SinkKind::Read => Box::new(ReadOnce),
        SinkKind::Remote { to, over } => {
            Box::new(Remote::new(to.clone(), over.clone(), cuts.clone()))
        }
        SinkKind::Receiver => return Err(of_card()),
        SinkKind::File { path, span_bytes, direct } => Box::new(Written {
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
    direct: bool,
    block_bytes: usize,
    /// Label of the latest block at each place.
    slots: Vec<Option<Label>>,
    next: usize,
    file: Option<Made>,
}

/// File that this path created. Another file may take its name meanwhile; that one is neither read
/// nor removed.
struct Made {
    path: String,
    file: File,
    /// Second handle past the page cache, if that is requested.
    direct: Option<File>,
}

fn identity(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

impl Made {
    fn new(path: &str) -> std::io::Result<Made> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(path)?;
        Ok(Made { path: path.to_owned(), file, direct: None })
    }

    /// True if the name still belongs to this file.
    fn has_its_name(&self) -> bool {
        let named = std::fs::symlink_metadata(&self.path);
        let both = self.file.metadata().ok().zip(named.ok());
        both.is_some_and(|(own, named)| identity(&own) == identity(&named))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.has_its_name() {
            // The file may be gone already. In a read-only folder it stays.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Written {
    fn failed(&self, what: &str, error: &std::io::Error) -> Fault {
        Fault::new(format!("{what} {}: {error}", self.path))
    }

    fn file(&self) -> Result<&Made, Fault> {
        self.file.as_ref().ok_or_else(|| Fault::new(format!("{} is not open", self.path)))
    }

    fn opened_direct(&self, made: &Made) -> Result<File, Fault> {
        let mut options = OpenOptions::new();
        let opened = options.write(true).custom_flags(DIRECT).open(&self.path);
        match opened {
            Ok(file) if made.has_its_name() => Ok(file),
            Err(error) if error.kind() == ErrorKind::InvalidInput => Err(Fault::new(format!(
                "{}: its file system writes nothing past the page cache: leave out `direct`",
                self.path
            ))),
            Err(error) => Err(self.failed("open", &error)),
            Ok(_) => Err(Fault::new(format!(
                "{}: another file has this name now: name one that nothing else writes",
                self.path
            ))),
        }
    }
}

impl Sink for Written {
    fn prepare(&mut self) -> Result<(), Fault> {
        let mut made = Made::new(&self.path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Fault::new(format!(
                "{} exists: name a file that does not, it is removed after the run",
                self.path
            )),
            _ => self.failed("make", &error),
        })?;
        if self.direct {
            made.direct = Some(self.opened_direct(&made)?);
        }
        self.file = Some(made);
        Ok(())
    }

    fn take(&mut self, block: &Block, _expected: Option<u64>) -> Result<Option<u64>, Fault> {
        let at = (self.next * self.block_bytes) as u64;
        let made = self.file()?;
        let to = made.direct.as_ref().unwrap_or(&made.file);
        let written = to.write_all_at(block.bytes(), at);
        written.map_err(|error| self.failed("write", &error))?;
        self.slots[self.next] = Some(block.label);
        self.next = (self.next + 1) % self.slots.len();
        Ok(None)
    }

    /// Reads the file through the page cache, which direct writes leave coherent: open(2).
    fn check(&mut self, expected: &[u64]) -> Result<u64, Fault> {
        let mut checked = 0;
        let mut bytes = vec![0; self.block_bytes];
        let written = &self.file()?.file;
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
        Ok(checked)
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_sys::memory::{Buffer, Pages};

    use super::*;

    fn written(path: &std::path::Path, direct: bool) -> Written {
        Written {
            path: path.to_str().unwrap().to_owned(),
            direct,
            block_bytes: 4096,
            slots: vec![None; 4],
            next: 0,
            file: None,
        }
    }

    /// The file with this name at the end was removed, even if it was another one.
    #[test]
    fn a_file_that_takes_the_name_during_a_run_is_neither_read_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut block = Block {
            buffer: Buffer::new(4096, Pages::Base).unwrap(),
            label: Label { bytes: 4096, key: Some(0), ..Label::default() },
        };
        block.buffer.slice_mut::<u8>(4096).fill(7);
        let expected = [sum(block.bytes())];
        for direct in [false, true] {
            let mut sink = written(&path, direct);
            match sink.prepare() {
                Ok(()) => {}
                // Not every file system writes past the page cache.
                Err(fault) if direct && fault.0.contains("leave out `direct`") => continue,
                Err(fault) => panic!("{fault}"),
            }
            sink.take(&block, None).unwrap();
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, "another's").unwrap();
            assert_eq!(sink.check(&expected).unwrap(), 1);
            drop(sink);
            assert_eq!(std::fs::read(&path).unwrap(), b"another's");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
