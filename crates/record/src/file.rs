//! Files that are replaced as a whole: written under a random name in the same folder, then
//! renamed. An interrupted write leaves the old file, and no other user can prepare the temporary
//! name.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

/// File during its writing. Without [`Replacement::commit`] the old file stays.
#[derive(Debug)]
pub struct Replacement {
    pub sink: BufWriter<File>,
    /// Temporary name and final name. `None` for devices and pipes, which are written directly.
    rename: Option<(TempPath, PathBuf)>,
}

impl Replacement {
    /// Begins to write the new content of `path`. An existing file keeps its permissions; for a
    /// link, the target is replaced.
    pub fn begin(path: &Path) -> io::Result<Replacement> {
        let known = fs::metadata(path).ok();
        if is_descriptor(path) || known.as_ref().is_some_and(|known| !known.is_file()) {
            // Appending adds to the content of the shell's redirection; devices and pipes ignore
            // it.
            let file = OpenOptions::new().append(true).open(path)?;
            return Ok(Replacement { sink: BufWriter::new(file), rename: None });
        }
        let target = if known.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
        let folder = target
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        // tempfile opens with O_EXCL; the umask applies to this mode, as it does to any new file.
        let new = Permissions::from_mode(0o666);
        let (file, beside) = tempfile::Builder::new()
            .prefix(".daqmeter-")
            .permissions(new)
            .tempfile_in(folder)
            // The temporary name in the error would not help the user.
            .map_err(|error| match error.kind() {
                kind @ io::ErrorKind::NotFound => {
                    io::Error::new(kind, "there is no folder for it, or none that takes files")
                }
                kind => io::Error::from(kind),
            })?
            .into_parts();
        if let Some(known) = known {
            file.set_permissions(known.permissions())?;
        }
        Ok(Replacement { sink: BufWriter::new(file), rename: Some((beside, target)) })
    }

    /// Returns the temporary file, to be removed if the program is ended; `None` if the file is
    /// written directly.
    pub fn unfinished(&self) -> Option<&Path> {
        self.rename.as_ref().map(|(beside, _)| beside.as_ref())
    }

    /// Moves the written file to its final name.
    ///
    /// # Errors
    /// When it cannot be written or renamed; the old file is left then.
    pub fn commit(self) -> io::Result<()> {
        let file = self.sink.into_inner().map_err(io::IntoInnerError::into_error)?;
        drop(file);
        self.rename
            .map_or(Ok(()), |(beside, target)| beside.persist(target).map_err(|error| error.error))
    }
}

pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut replacement = Replacement::begin(path)?;
    replacement.sink.write_all(bytes)?;
    replacement.commit()
}

/// Tests if the path names an open descriptor of this process: its target belongs to the process
/// that opened it.
pub fn is_descriptor(path: &Path) -> bool {
    path.starts_with("/dev/fd")
        || path.starts_with("/proc")
        || ["/dev/stdout", "/dev/stderr"].map(Path::new).contains(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_file_has_the_mode_of_any_new_file_and_an_old_one_keeps_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        File::create(place("any")).unwrap();
        replace(&place("new"), b"1").unwrap();
        assert_eq!(mode(&place("new")), mode(&place("any")));
        fs::set_permissions(place("any"), Permissions::from_mode(0o640)).unwrap();
        replace(&place("any"), b"2").unwrap();
        assert_eq!((mode(&place("any")), fs::read(place("any")).unwrap()), (0o640, b"2".to_vec()));
        assert_eq!(names(folder.path()), ["any", "new"]);
    }

    #[test]
    fn nothing_that_lies_beside_is_written_to_and_a_link_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        fs::write(place("victim"), "precious").unwrap();
        std::os::unix::fs::symlink(place("victim"), place("page.html.part")).unwrap();
        std::os::unix::fs::symlink(place("page.html"), place("link")).unwrap();
        replace(&place("page.html"), b"page").unwrap();
        replace(&place("link"), b"newer").unwrap();
        assert_eq!(fs::read(place("victim")).unwrap(), b"precious");
        assert!(place("link").is_symlink() && place("page.html.part").is_symlink());
        assert_eq!(fs::read(place("page.html")).unwrap(), b"newer");
    }

    #[test]
    fn what_is_not_finished_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        replace(&path, b"old").unwrap();
        let mut begun = Replacement::begin(&path).unwrap();
        begun.sink.write_all(b"new, but not whole").unwrap();
        drop(begun);
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"old".to_vec(), vec!["page.html".to_owned()])
        );
    }

    #[test]
    fn devices_and_pipes_are_written_directly() {
        let folder = tempfile::tempdir().unwrap();
        replace(Path::new("/dev/null"), b"gone").unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        replace(&pipe, b"through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert_eq!(names(folder.path()), ["pipe"]);
    }
}
