//! Outputs: stdout for people and programs, stderr for progress and trouble, files for records.
//!
//! All printed text goes through [`emit`], [`tell`] or [`Failure::report`], and there through the
//! sanitiser. [`read_file`] and the recorder make the text of records printable.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use daqmeter_record::file::Replacement;
use daqmeter_record::observed::push_or_join;
use daqmeter_record::{RunRecord, jsonl, sanitise};
use daqmeter_report::table::plain;
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) use crate::failure::{CANNOT_TELL, Ended, FAILED, Failure, tell, tell_lines};
use crate::interrupt;
use crate::named::{Replaced, refuse_records};

/// Prints text to stdout, with escapes for control characters of terminals; JSON keeps its meaning.
/// A closed pipe (`| head`) ends the verb quietly, with the exit code of a filter.
pub(crate) fn emit(text: &str) -> Ended {
    emit_bytes(sanitise::lines(text).as_bytes())
}

/// Writes raw bytes to stdout.
pub(crate) fn emit_bytes(bytes: &[u8]) -> Ended {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::unread()),
        Err(error) => Err(format!("cannot write to stdout: {error}").into()),
    }
}

/// Writes each value as a line of JSON.
pub(crate) fn json_lines(values: &[impl Serialize]) -> Result<String, Failure> {
    let line = |value| Ok(serde_json::to_string(value)? + "\n");
    values.iter().map(line).collect()
}

/// Writer of rows below headings: a table for people, or JSON lines for programs.
pub(crate) type RowWriter = fn(&[&str], &mut dyn Iterator<Item = Vec<String>>) -> String;

pub(crate) fn row_writer(is_json: bool) -> RowWriter {
    if is_json { json_rows } else { |headings, rows| plain(headings, rows) }
}

/// Writes each row as a line of JSON, with fields that are named as its columns.
pub(crate) fn json_rows(headings: &[&str], rows: &mut dyn Iterator<Item = Vec<String>>) -> String {
    let name = |heading: &&str| heading.to_lowercase().replace([' ', '-'], "_");
    let cell = |(heading, text): (&&str, String)| {
        let name = name(heading);
        let is_number = name.ends_with("_us") || name == "missed";
        let number = is_number.then(|| text.parse().ok()).flatten();
        (name, number.map_or(Value::String(text), Value::Number))
    };
    let line = |row| json!(BTreeMap::from_iter(headings.iter().zip(row).map(cell))).to_string();
    rows.map(|row| line(row) + "\n").collect()
}

/// Columns for text: COLUMNS if it is set, else those of the terminal, else 100, which fits a
/// ticket and a mail. A narrower table than 40 is unreadable.
pub(crate) fn window_columns() -> usize {
    let set: Option<usize> = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let of_terminal = || daqmeter_sys::tty::columns(io::stdout().as_fd());
    set.filter(|columns| *columns > 0).or_else(of_terminal).unwrap_or(100).max(40)
}

pub(crate) fn write_file(path: &Replaced, text: &str) -> Result<(), Failure> {
    write_with(path, |sink| sink.write_all(text.as_bytes()))
}

/// Writes a file. It fails after the work, since the command line was checked before it.
pub(crate) fn write_with<E: Display>(
    path: &Replaced,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), Failure> {
    let failed =
        |error: &dyn Display| Failure::tool(format!("cannot write {}: {error}", path.display()));
    refuse_records(path)?;
    let mut file = Replacement::begin(path).map_err(|error| failed(&error))?;
    let beside = file.unfinished().map(Path::to_owned);
    interrupt::writing(beside, || {
        write(&mut file.sink).map_err(|error| failed(&error))?;
        file.commit().map_err(|error| failed(&error))
    })
}

/// Reads records from a file, or stdin for `-`, and reports unreadable lines.
pub(crate) fn read_file(path: &Path) -> Result<Vec<RunRecord>, Failure> {
    if path.as_os_str() == "-" {
        return read_records(io::stdin().lock(), path);
    }
    let file =
        File::open(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    read_records(io::BufReader::with_capacity(1 << 20, file), path)
}

/// Reads records, and reports unreadable lines under the name of the source.
pub(crate) fn read_records(source: impl BufRead, path: &Path) -> Result<Vec<RunRecord>, Failure> {
    const MAX_LINES_REPORTED: usize = 10;
    let shown = path.display();
    let (records, errors) = contents(source, path)?;
    for error in errors.iter().take(MAX_LINES_REPORTED) {
        tell(&format!("daqmeter: {shown}: {error}"));
    }
    if let more @ 1.. = errors.len().saturating_sub(MAX_LINES_REPORTED) {
        tell(&format!("daqmeter: {shown}: {more} more lines could not be read"));
    }
    Ok(records)
}

/// Reads records, and what is wrong with unreadable lines.
pub(crate) fn contents(
    source: impl BufRead,
    path: &Path,
) -> Result<(Vec<RunRecord>, Vec<String>), Failure> {
    let shown = path.display();
    let contents =
        jsonl::read_printable(source).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let jsonl::Contents { records: parts, errors } = contents;
    let mut records = Vec::new();
    parts.into_iter().for_each(|part| push_or_join(&mut records, part));
    Ok((records, errors.iter().map(ToString::to_string).collect()))
}
