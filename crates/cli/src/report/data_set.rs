//! Records as one data set of many hosts: a Parquet file for each file of records and each host, in
//! folders `host=NAME`, which DuckDB, Polars, pyarrow and Dask read as a column.
//!
//! Files are read twice, because the columns of a part depend on all others, and one at a time,
//! because those of hundreds of hosts do not fit the memory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use daqmeter_record::groups::in_groups;
use daqmeter_record::{RunRecord, jsonl};
use daqmeter_report::export::{DataFrame, DataSet};
use daqmeter_report::formats::BinaryWriter;

use super::{Arguments, frames, wrote};
use crate::files::{files_of, read_all, regular_files};
use crate::named::Replaced;
use crate::output::{Ended, Failure, write_with};

pub(super) fn write(arguments: &Arguments, folder: &Replaced, write: BinaryWriter) -> Ended {
    let study = arguments.study.as_deref().unwrap_or_default();
    let is_wanted = |record: &RunRecord| record.study.contains(study);
    let (old, mut files) = (old_parts(folder)?, files_of(&arguments.files)?);
    // A file of a folder may be of a run without a point yet.
    let has_some = |file: &PathBuf| file.metadata().is_ok_and(|about| about.len() > 0);
    files.retain(|file| arguments.files.contains(file) || has_some(file));
    let mut set = DataSet::default();
    for file in &files {
        let mut records = first_reading(file)?;
        records.retain(is_wanted);
        set.add(&records);
    }
    let (mut stems, mut written) = (BTreeSet::new(), BTreeSet::new());
    for file in files {
        let mut stem = encoded(file.file_stem().unwrap_or_default().as_encoded_bytes());
        while !stems.insert(stem.clone()) {
            stem.push('-');
        }
        let wanted = read_all(&[file])?.into_iter().filter(is_wanted);
        for (host, records) in in_groups(wanted.map(|record| (record.host.label(), record))) {
            let rows = frames(arguments, &records, |own| set.stages(own));
            let Ok(rows) = rows else { continue };
            let host = folder.join(format!("host={}", encoded(host.as_bytes())));
            fs::create_dir_all(&host).map_err(|error| failed("make", &host, &error))?;
            let part = Replaced::at(host.join(format!("{stem}.parquet")));
            write_with(&part, |sink| write(Box::new(rows.map(DataFrame::without_host)), sink))?;
            written.insert(part.to_path_buf());
        }
    }
    if written.is_empty() {
        frames(arguments, &[], |own| set.stages(own)).map(drop)?;
    }
    for stale in old.iter().filter(|part| !written.contains(*part)) {
        fs::remove_file(stale).map_err(|error| failed("remove", stale, &error))?;
        // A folder with other parts stays.
        let _ = stale.parent().map(fs::remove_dir);
    }
    wrote(folder)
}

/// Returns the parts of the data set that a folder holds; refuses a folder with anything else.
fn old_parts(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let is_part = |file: &Path| {
        let (host, part) = file.strip_prefix(folder).ok()?.to_str()?.split_once('/')?;
        Some(host.starts_with("host=") && part.ends_with(".parquet") && !part.contains('/'))
    };
    let found = regular_files(folder)?;
    let Some(other) = found.iter().find(|file| is_part(file) != Some(true)) else {
        return Ok(found);
    };
    let why = "is no part of a data set, which replaces all in its folder: name another folder";
    Err(Failure::refused(format!("{} {why}", other.display())))
}

/// Reads a file that will be read again, which reports its unreadable lines.
fn first_reading(file: &Path) -> Result<Vec<RunRecord>, Failure> {
    if !file.is_file() {
        let why = "is no file of records: those of a data set are read twice";
        return Err(Failure::refused(format!("{} {why}", file.display())));
    }
    let read = File::open(file).and_then(|file| jsonl::read_printable(BufReader::new(file)));
    Ok(read.map_err(|error| failed("read", file, &error))?.records)
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::tool(format!("cannot {what} {}: {error}", path.display()))
}

/// Encodes a name as all readers decode it (RFC 3986, 2.1). They skip files that begin with `.` or
/// `_`.
fn encoded(name: &[u8]) -> String {
    let shown = |(at, byte): (usize, &u8)| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' => char::from(*byte).to_string(),
        b'.' | b'_' if at > 0 => char::from(*byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    name.iter().enumerate().map(shown).collect()
}
