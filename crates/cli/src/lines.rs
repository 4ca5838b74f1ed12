//! A file that lines are appended to during a run. Another program may remove, replace or shorten
//! it meanwhile. This is detected at the end, and no measured line is lost.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use daqmeter_record::jsonl;

use crate::failure::Failure;
use crate::named::Appended;

#[derive(Debug)]
pub(crate) struct Lines {
    path: PathBuf,
    file: File,
    bytes: u64,
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
        let bytes = file.metadata().map_or(0, |known| known.len());
        Ok(Lines { path: path.to_path_buf(), file, bytes })
    }

    /// Appends a line, which is on its way to the disk when this returns.
    pub(crate) fn write(&mut self, line: &[u8]) -> Result<(), Failure> {
        let written = self.file.write_all(line);
        written.map_err(|error| {
            let path = self.path.display();
            Failure::refused(format!("cannot write {path}: {error}; the lines before are complete"))
        })?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Fails if another program removed, replaced or shortened the file. `lines` are all of this
    /// run, and go to a new file then, which the error names.
    pub(crate) fn finish(&self, lines: impl FnOnce() -> Vec<u8>) -> Result<(), Failure> {
        const TRIES: usize = 100;
        let path = self.path.display();
        let refused = |error| Failure::refused(format!("cannot write {path}: {error}"));
        let own = self.file.metadata().map_err(refused)?;
        let is_same =
            |named: std::fs::Metadata| (named.dev(), named.ino()) == (own.dev(), own.ino());
        if !own.is_file() || (self.path.metadata().is_ok_and(is_same) && own.len() >= self.bytes) {
            return Ok(());
        }
        let numbered = (0..TRIES).map(|number| match number {
            0 => self.path.clone(),
            number => PathBuf::from(format!("{path}.{number}")),
        });
        let create = |place: &PathBuf| OpenOptions::new().write(true).create_new(true).open(place);
        let made = numbered.filter_map(|place| Some((create(&place).ok()?, place))).next();
        let (mut file, place) = made.ok_or_else(|| refused(io::ErrorKind::AlreadyExists.into()))?;
        file.write_all(&lines()).map_err(refused)?;
        Err(Failure::refused(format!(
            "{path} was removed, replaced or shortened while it was written: all lines of this run are in {}",
            place.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn lines_of_a_file_that_is_taken_away_go_to_another_and_it_is_said() {
        type Spoil = fn(&Path);
        let cases: [(Spoil, &str, Option<&str>); 4] = [
            (|_| (), "r.jsonl", None),
            (|path| std::fs::remove_file(path).unwrap(), "r.jsonl", Some("r.jsonl")),
            (
                |path| {
                    std::fs::write(path.with_extension("new"), "another's\n").unwrap();
                    std::fs::rename(path.with_extension("new"), path).unwrap();
                },
                "r.jsonl.1",
                Some("r.jsonl.1"),
            ),
            (|path| std::fs::write(path, "").unwrap(), "r.jsonl.1", Some("r.jsonl.1")),
        ];
        for (spoil, place, said) in cases {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("r.jsonl");
            std::fs::write(&path, "").unwrap();
            let mut lines = Lines::open(&Appended::at(&path)).unwrap();
            lines.write(b"1\n").unwrap();
            spoil(&path);
            lines.write(b"2\n").unwrap();
            let ended = lines.finish(|| b"1\n2\n".to_vec());
            assert_eq!(std::fs::read_to_string(folder.path().join(place)).unwrap(), "1\n2\n");
            match said {
                None => assert!(ended.is_ok()),
                Some(said) => assert!(ended.unwrap_err().line().ends_with(said)),
            }
        }
    }

    #[test]
    fn a_file_of_another_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let named = Appended::at(folder.path().join("r"));
        let _first = Lines::open(&named).unwrap();
        assert!(Lines::open(&named).unwrap_err().line().contains("another run"));
    }
}
