//! Files of records on the command line: files, or folders of them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use daqmeter_record::RunRecord;

use crate::output::{Failure, read_parts, tell};

pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<RunRecord>, Failure> {
    let files = files_of(paths)?;
    if files.is_empty() {
        return Err(Failure::refused(format!(
            "{}: no .jsonl file in this folder or below",
            shown(paths)
        )));
    }
    let mut records = Vec::new();
    for file in &files {
        // A named file must hold something; one of a folder may be of a run without a point yet.
        let may_be_empty = !paths.contains(file);
        if may_be_empty && std::fs::metadata(file).is_ok_and(|about| about.len() == 0) {
            tell(&format!("daqmeter: {}: is empty, left out", file.display()));
            continue;
        }
        read_parts(file, |part| {
            records.extend(part);
            ControlFlow::Continue(())
        })?;
    }
    if records.is_empty() {
        return Err(Failure::refused(format!(
            "{}: none of {} files holds a record that this daqmeter can read",
            shown(paths),
            files.len()
        )));
    }
    Ok(records)
}

pub(crate) fn shown(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

/// Returns named files, and the .jsonl files of named folders in order of their names.
pub(crate) fn files_of(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    listed(paths, Links::Followed)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Followed,
    KeptBelow,
}

/// [`files_of`] with a choice of links. Only regular files of folders count, since a pipe would
/// block.
pub(crate) fn listed(paths: &[PathBuf], links: Links) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Found { files: Vec::new(), links, root: PathBuf::new(), entries: 0 };
    for path in paths {
        if path.is_dir() {
            found.root = path.canonicalize().map_err(|error| unreadable(path, &error))?;
            found.collect(path, 0)?;
        } else {
            found.files.push(path.clone());
        }
    }
    Ok(found.files)
}

fn unreadable(folder: &Path, error: &std::io::Error) -> Failure {
    Failure::refused(format!("cannot read {}: {error}", folder.display()))
}

struct Found {
    files: Vec<PathBuf>,
    links: Links,
    root: PathBuf,
    entries: usize,
}

impl Found {
    fn collect(&mut self, folder: &Path, depth: usize) -> Result<(), Failure> {
        /// Largest depth of folders; a deeper one is a link that leads back.
        const MAX_DEPTH: usize = 8;
        /// Largest number of entries: a folder of records has some thousands, / has millions.
        const MAX_ENTRIES: usize = 100_000;
        let entries = std::fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
        let mut entries: Vec<PathBuf> =
            entries.take(MAX_ENTRIES + 1).filter_map(|entry| Some(entry.ok()?.path())).collect();
        self.entries += entries.len();
        if self.entries > MAX_ENTRIES {
            let shown = self.root.display();
            return Err(Failure::refused(format!(
                "{shown}: more than {MAX_ENTRIES} entries in this folder and below; name a folder of records"
            )));
        }
        entries.sort();
        for entry in entries {
            if self.is_folder(&entry) && depth < MAX_DEPTH {
                self.collect(&entry, depth + 1)?;
            } else if entry.extension().is_some_and(|extension| extension == "jsonl")
                && self.is_wanted(&entry)
            {
                self.files.push(entry);
            }
        }
        Ok(())
    }

    fn is_folder(&self, entry: &Path) -> bool {
        entry.is_dir() && (self.links == Links::Followed || !entry.is_symlink())
    }

    fn is_wanted(&self, entry: &Path) -> bool {
        let stays = || entry.canonicalize().is_ok_and(|target| target.starts_with(&self.root));
        entry.is_file() && (self.links == Links::Followed || stays())
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{EngineInfo, Workload};

    use super::*;

    /// Regression: one empty file in a folder made `history` refuse all others.
    #[test]
    fn an_empty_file_of_a_folder_is_left_out_and_one_that_was_named_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (empty, full) = (folder.path().join("a.jsonl"), folder.path().join("b.jsonl"));
        std::fs::write(&empty, "").unwrap();
        let line = |failure: Failure| failure.line().to_owned();
        let record = RunRecord::new(EngineInfo::default(), Workload::new("null"));
        let none = read_all(&[folder.path().to_owned()]).map_err(line);
        assert!(none.unwrap_err().contains("none of 1 files holds a record"));
        std::fs::write(&full, daqmeter_record::jsonl::to_line(&record)).unwrap();
        let found = read_all(&[folder.path().to_owned()]).map_err(line);
        assert_eq!(found.unwrap().len(), 1);
        let refused = read_all(std::slice::from_ref(&empty)).map_err(line);
        assert!(refused.unwrap_err().contains("a.jsonl: holds no record"));
    }

    #[test]
    fn what_is_served_stays_below_its_folder_and_is_a_regular_file() {
        let (outside, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = |name: &str| folder.path().join(name);
        std::fs::create_dir(place("sub")).unwrap();
        for file in [place("a.jsonl"), place("sub/b.jsonl"), outside.path().join("secret.jsonl")] {
            std::fs::write(file, "").unwrap();
        }
        let link =
            |target: &Path, name: &str| std::os::unix::fs::symlink(target, place(name)).unwrap();
        link(Path::new("/dev/zero"), "zero.jsonl");
        link(&outside.path().join("secret.jsonl"), "link.jsonl");
        link(outside.path(), "folder");
        link(&place("a.jsonl"), "same.jsonl");
        let _socket = std::os::unix::net::UnixListener::bind(place("socket.jsonl")).unwrap();
        let names = |links| -> Vec<String> {
            let found = listed(&[folder.path().to_owned()], links)
                .map_err(|failure| failure.line().to_owned());
            let name =
                |path: &PathBuf| path.strip_prefix(folder.path()).unwrap().display().to_string();
            found.unwrap().iter().map(name).collect()
        };
        assert_eq!(names(Links::KeptBelow), ["a.jsonl", "same.jsonl", "sub/b.jsonl"]);
        let followed =
            ["a.jsonl", "folder/secret.jsonl", "link.jsonl", "same.jsonl", "sub/b.jsonl"];
        assert_eq!(names(Links::Followed), followed);
    }
}
