//! A file that lines are appended to during a run, held against other writers.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use daqmeter_record::jsonl;

use crate::failure::Failure;
use crate::named::Appended;

#[derive(Debug)]
pub(crate) struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    pub(crate) fn open(path: &Appended) -> Result<Lines, Failure> {
        let file = jsonl::append_to(path).map_err(|error| {
            let path = path.display();
            Failure::refused(match error.kind() {
                io::ErrorKind::WouldBlock => format!(
                    "{path} is being written by another run: name another file with --records"
                ),
                _ => format!("cannot write {path}: {error}"),
            })
        })?;
        Ok(Lines { path: path.to_path_buf(), file })
    }

    /// Appends a line, which is on its way to the disk when this returns.
    pub(crate) fn write(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.file.write_all(line).map_err(|error| {
            let path = self.path.display();
            Failure::refused(format!("cannot write {path}: {error}; the lines before are complete"))
        })
    }
}
