//! Files of records on the command line: files, or folders of them.

use std::path::{Path, PathBuf};

use daqmeter_record::RunRecord;
use daqmeter_record::units::joined;

use crate::output::{Failure, read_file, tell};

pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<RunRecord>, Failure> {
    let files = files_of(paths)?;
    let mut records = Vec::new();
    for file in &files {
        // A named file must hold something; one of a folder may be of a run without a point yet.
        let may_be_empty = !paths.contains(file);
        if may_be_empty && std::fs::metadata(file).is_ok_and(|about| about.len() == 0) {
            tell(&format!("daqmeter: {}: skipped, the file is empty", file.display()));
            continue;
        }
        let read = read_file(file)?;
        if read.is_empty() {
            let file = file.display();
            return Err(format!("{file}: holds no record that this daqmeter can read").into());
        }
        records.extend(read);
    }
    if records.is_empty() {
        let (shown, files) = (shown(paths), files.len());
        return Err(Failure::refused(format!(
            "{shown}: none of {files} .jsonl files holds a record that this daqmeter can read"
        )));
    }
    Ok(records)
}

/// Reads the studies whose name contains the text, of `--study`; all without one.
pub(crate) fn read_study(paths: &[PathBuf], text: Option<&str>) -> Result<Vec<RunRecord>, Failure> {
    let mut records = read_all(paths)?;
    let Some(wanted) = text else { return Ok(records) };
    let mut studies: Vec<String> = records.iter().map(|record| record.study.to_string()).collect();
    records.retain(|record| record.study.contains(wanted));
    if records.is_empty() {
        studies.dedup();
        let studies = studies.join(", ");
        return Err(format!("no study contains `{wanted}`; there are: {studies}").into());
    }
    Ok(records)
}

pub(crate) fn shown(paths: &[PathBuf]) -> String {
    joined(paths.iter().map(|path| path.display().to_string()), ", ").unwrap_or_default()
}

/// Returns named files, and the regular .jsonl files of named folders in order of their names.
pub(crate) fn files_of(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    files_below(paths, &|path| path.extension().is_some_and(|ending| ending == "jsonl"))
}

/// Returns named files, and the wanted regular files of named folders in order of their names.
pub(crate) fn files_below(
    paths: &[PathBuf],
    is_wanted: &dyn Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => found.extend(regular_files(path)?.into_iter().filter(|path| is_wanted(path))),
            false => found.push(path.clone()),
        }
    }
    Ok(found)
}

/// Returns the files of a folder and of the folders in it, in the order of their names.
pub(crate) fn regular_files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    /// Largest depth of folders; a deeper one is a link that leads back.
    const MAX_DEPTH: usize = 8;
    /// Largest number of entries: a folder of records has some thousands, / has millions.
    const MAX_ENTRIES: usize = 100_000;
    let (mut files, mut entries, mut left) = (Vec::new(), 0, vec![(folder.to_owned(), 0)]);
    while let Some((path, depth)) = left.pop() {
        if path.is_dir() && depth <= MAX_DEPTH {
            let shown = path.display();
            let listed = std::fs::read_dir(&path)
                .map_err(|error| format!("cannot read {shown}: {error}"))?;
            let listed = listed.take(MAX_ENTRIES + 1).filter_map(|entry| Some(entry.ok()?.path()));
            let mut listed: Vec<PathBuf> = listed.collect();
            entries += listed.len();
            if entries > MAX_ENTRIES {
                return Err(Failure::refused(format!(
                    "{shown}: more than {MAX_ENTRIES} files: name a folder of records"
                )));
            }
            // The last one is looked at first.
            listed.sort_by(|a, b| b.cmp(a));
            left.extend(listed.into_iter().map(|path| (path, depth + 1)));
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
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
        let line = |failure: Failure| failure.line;
        let record = RunRecord::new(EngineInfo::default(), Workload::new("null"));
        let none = read_all(&[folder.path().to_owned()]).map_err(line);
        assert!(none.unwrap_err().contains("none of 1 .jsonl files holds a record"));
        std::fs::write(&full, daqmeter_record::jsonl::to_line(&record)).unwrap();
        let found = read_all(&[folder.path().to_owned()]).map_err(line);
        assert_eq!(found.unwrap().len(), 1);
        let refused = read_all(std::slice::from_ref(&empty)).map_err(line);
        assert!(refused.unwrap_err().contains("a.jsonl: holds no record"));
    }

    #[test]
    fn regular_files_of_a_folder_and_below_are_found_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        std::fs::create_dir(place("sub")).unwrap();
        for name in ["sub/b.jsonl", "a.jsonl", "c.txt"] {
            std::fs::write(place(name), "").unwrap();
        }
        std::os::unix::fs::symlink("/dev/zero", place("zero.jsonl")).unwrap();
        std::os::unix::fs::symlink(folder.path(), place("sub/back")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place("socket.jsonl")).unwrap();
        let found = files_of(&[folder.path().to_owned()]).map_err(|failure| failure.line);
        let found = found.unwrap();
        assert_eq!(found[..1], [place("a.jsonl")]);
        assert!(found.iter().all(|file| file.ends_with("a.jsonl") || file.ends_with("b.jsonl")));
    }
}
