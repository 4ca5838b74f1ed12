//! A file that lines are appended to during a run. Another program may remove, replace or shorten
//! it meanwhile. This is detected after each line, and no measured line is lost.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use daqmeter_record::jsonl;

use crate::failure::{Failure, tell};
use crate::named::Appended;

#[derive(Debug)]
pub(crate) struct Lines {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Offset of the line of an unfinished point. The next line replaces it.
    unfinished_at: Option<u64>,
    trouble: Option<String>,
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
        Ok(Lines { path: path.to_path_buf(), file, bytes, unfinished_at: None, trouble: None })
    }

    /// Appends a line, which is on its way to the disk when this returns. `before` are the earlier
    /// lines of this run.
    pub(crate) fn write(
        &mut self,
        line: &[u8],
        before: impl FnOnce() -> Vec<u8>,
    ) -> Result<(), Failure> {
        self.take_back().and_then(|()| self.follow(before)).map_err(|error| self.refused(error))?;
        let written = self.file.write_all(line).and_then(|()| self.file.flush());
        written.map_err(|error| self.refused(error))?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Writes the results so far of a point. A killed program leaves only this of the point. A pipe
    /// gets whole points only.
    pub(crate) fn write_unfinished(&mut self, line: &[u8]) -> io::Result<()> {
        if !self.file.metadata()?.is_file() {
            return Ok(());
        }
        self.take_back()?;
        let at = self.file.metadata()?.len();
        self.file.write_all(line)?;
        self.unfinished_at = Some(at);
        self.bytes = at + line.len() as u64;
        Ok(())
    }

    /// Removes the line of an unfinished point, unless another program changed the file since.
    fn take_back(&mut self) -> io::Result<()> {
        if let Some(at) = self.unfinished_at.take()
            && self.file.metadata()?.len() == self.bytes
        {
            self.file.set_len(at)?;
            self.bytes = at;
        }
        Ok(())
    }

    /// Fails if another program removed, replaced or shortened the file. The error line names the
    /// place of the run's lines.
    pub(crate) fn finish(&mut self, before: impl FnOnce() -> Vec<u8>) -> Result<(), Failure> {
        self.follow(before).map_err(|error| self.refused(error))?;
        match &self.trouble {
            None => Ok(()),
            Some(trouble) => Err(Failure::refused(trouble)),
        }
    }

    fn refused(&self, error: io::Error) -> Failure {
        Failure::refused(format!(
            "cannot write {}: {error}; the lines before are complete",
            self.path.display()
        ))
    }

    fn follow(&mut self, before: impl FnOnce() -> Vec<u8>) -> io::Result<()> {
        let own = self.file.metadata()?;
        if !own.is_file() {
            return Ok(());
        }
        let named = self.path.metadata();
        let is_there =
            named.is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino()));
        let path = self.path.display();
        if !is_there {
            let (place, mut file) = made_again(&self.path)?;
            self.file.seek(SeekFrom::Start(0))?;
            io::copy(&mut self.file, &mut file)?;
            let trouble = format!(
                "{path} was removed or replaced while it was written: all of its lines are in {}",
                place.display()
            );
            (self.path, self.file) = (place, file);
            self.troubled(trouble);
        } else if own.len() < self.bytes {
            let trouble = format!(
                "{path} was shortened while it was written: the lines of this run are written to it again"
            );
            self.file.write_all(&before())?;
            self.troubled(trouble);
        }
        self.bytes = self.file.metadata()?.len();
        Ok(())
    }

    fn troubled(&mut self, trouble: String) {
        tell(&format!("daqmeter: {trouble}"));
        self.trouble = Some(trouble);
    }
}

/// Makes a new file with that name. If it cannot be made, a number is appended to the name, or the
/// folder for temporary files is used.
fn made_again(path: &Path) -> io::Result<(PathBuf, File)> {
    const TRIES: usize = 100;
    let name = path.file_name().unwrap_or_default();
    let places = [path.to_owned(), std::env::temp_dir().join(name)];
    let numbered = places.iter().flat_map(|place| {
        (0..TRIES).map(move |number| match number {
            0 => place.clone(),
            number => {
                let mut numbered = place.clone().into_os_string();
                numbered.push(format!(".{number}"));
                PathBuf::from(numbered)
            }
        })
    });
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    for place in numbered {
        let made = OpenOptions::new().write(true).create_new(true).open(&place);
        match made {
            Ok(_) => return Ok((place.clone(), jsonl::append_to(&place)?)),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(spoil: impl Fn(&Path)) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        std::fs::write(&path, "old\n").unwrap();
        let named: Appended = path.to_str().unwrap().parse().unwrap();
        let mut lines = Lines::open(&named).unwrap();
        lines.write(b"1\n", Vec::new).unwrap();
        spoil(&path);
        lines.write(b"2\n", || b"1\n".to_vec()).unwrap();
        let said = lines.finish(Vec::new).unwrap_err();
        (folder, said.line().to_owned())
    }

    #[test]
    fn a_file_that_is_taken_away_is_made_again_and_it_is_said() {
        let read = |folder: &tempfile::TempDir, name: &str| {
            std::fs::read_to_string(folder.path().join(name)).unwrap()
        };
        let (folder, said) = after(|path| std::fs::remove_file(path).unwrap());
        assert_eq!(read(&folder, "r.jsonl"), "old\n1\n2\n");
        assert!(said.contains("was removed or replaced"), "{said}");
        let (folder, said) = after(|path| {
            std::fs::write(path.with_extension("new"), "another's\n").unwrap();
            std::fs::rename(path.with_extension("new"), path).unwrap();
        });
        assert_eq!(read(&folder, "r.jsonl"), "another's\n");
        assert_eq!(read(&folder, "r.jsonl.1"), "old\n1\n2\n");
        assert!(said.ends_with("r.jsonl.1"), "{said}");
        let (folder, said) = after(|path| std::fs::write(path, "").unwrap());
        assert_eq!(read(&folder, "r.jsonl"), "1\n2\n");
        assert!(said.contains("was shortened"), "{said}");
    }

    #[test]
    fn a_file_that_is_left_alone_ends_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let named: Appended = folder.path().join("r").to_str().unwrap().parse().unwrap();
        let mut lines = Lines::open(&named).unwrap();
        lines.write(b"1\n", Vec::new).unwrap();
        assert!(lines.finish(Vec::new).is_ok());
        assert!(Lines::open(&named).unwrap_err().line().contains("another run"));
    }
}
