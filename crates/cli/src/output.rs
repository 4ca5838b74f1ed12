//! Outputs: stdout for people and programs, stderr for progress and trouble, files for records.
//!
//! All printed text goes through [`emit`], [`tell`] or [`Failure::report`], and there through the
//! sanitiser. [`read_parts`] and the recorder make the text of records printable.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use daqmeter_record::file::Replacement;
use daqmeter_record::observed::join_last;
use daqmeter_record::{RunRecord, jsonl, sanitise};

pub(crate) use crate::failure::{
    CANNOT_TELL, FAILED, Failure, INTERRUPTED, program_name, tell, tell_lines, tool_name,
};
use crate::interrupt;
use crate::named::{Replaced, refuse_records};

/// Prints text to stdout, with escapes for control characters of terminals; JSON keeps its meaning.
/// A closed pipe (`| head`) ends the verb quietly, with the exit code of a filter.
pub(crate) fn emit(text: &str) -> Result<ExitCode, Failure> {
    emit_as_it_is(&sanitise::lines(text))
}

pub(crate) fn emit_as_it_is(text: &str) -> Result<ExitCode, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::unread()),
        Err(error) => Err(Failure::refused(format!("cannot write to stdout: {error}"))),
    }
}

/// Columns of the window of stdout: COLUMNS if it is set, as for other programs; `None` for files
/// and pipes.
pub(crate) fn window_columns() -> Option<usize> {
    let stdout = io::stdout();
    let set = || std::env::var("COLUMNS").ok()?.parse().ok();
    let columns: Option<usize> = stdout
        .is_terminal()
        .then(|| set().or_else(|| daqmeter_sys::tty::columns(stdout.as_fd())))?;
    // A narrower table is unreadable.
    columns.map(|columns| columns.max(40))
}

pub(crate) fn write_file(path: &Replaced, text: &str) -> Result<(), Failure> {
    write_with(path, |sink| sink.write_all(text.as_bytes()))
}

pub(crate) fn write_with<T, E: Display>(
    path: &Replaced,
    write: impl FnOnce(&mut Replacement) -> Result<T, E>,
) -> Result<T, Failure> {
    let refused =
        |error: &dyn Display| Failure::refused(format!("cannot write {}: {error}", path.display()));
    refuse_records(path)?;
    let mut sink = Replacement::begin(path).map_err(|error| refused(&error))?;
    let beside = sink.unfinished().map(Path::to_owned);
    interrupt::writing(beside, || {
        let value = write(&mut sink).map_err(|error| refused(&error))?;
        sink.commit().map_err(|error| refused(&error))?;
        Ok(value)
    })
}

/// Reads records from a file, or stdin for `-`, in parts, and reports unreadable lines. Returns the
/// number of records.
pub(crate) fn read_parts(
    path: &Path,
    take: impl FnMut(Vec<RunRecord>) -> ControlFlow<()>,
) -> Result<usize, Failure> {
    match read_file_parts(path, take)? {
        0 => Err(Failure::refused(format!(
            "{}: holds no record that this daqmeter can read",
            path.display()
        ))),
        records => Ok(records),
    }
}

/// Reads one file, which may be empty, and reports unreadable lines.
pub(crate) fn read_file(path: &Path) -> Result<Vec<RunRecord>, Failure> {
    let mut records = Vec::new();
    read_file_parts(path, |part| {
        records.extend(part);
        ControlFlow::Continue(())
    })?;
    Ok(records)
}

fn read_file_parts(
    path: &Path,
    mut take: impl FnMut(Vec<RunRecord>) -> ControlFlow<()>,
) -> Result<usize, Failure> {
    const MAX_LINES_REPORTED: usize = 10;
    let shown = path.display();
    let refused = |error: io::Error| Failure::refused(format!("cannot read {shown}: {error}"));
    let (mut records, mut errors) = (0, Vec::new());
    // The last record is held back, since the next part of the file may continue it.
    let mut last = None;
    let each = |line: Result<RunRecord, jsonl::LineError>| {
        let record = match line {
            Ok(record) => record,
            Err(error) => {
                errors.push(error);
                return ControlFlow::Continue(());
            }
        };
        let mut joined: Vec<RunRecord> = last.take().into_iter().collect();
        joined.push(record);
        join_last(&mut joined);
        last = joined.pop();
        records += joined.len();
        take(joined)
    };
    if path.as_os_str() == "-" {
        jsonl::each_printable(io::stdin().lock(), each).map_err(refused)?;
    } else {
        let file = File::open(path).map_err(refused)?;
        jsonl::each_printable(io::BufReader::with_capacity(1 << 20, file), each)
            .map_err(refused)?;
    }
    if let Some(last) = last {
        records += 1;
        let _ = take(vec![last]);
    }
    for error in errors.iter().take(MAX_LINES_REPORTED) {
        tell(&format!("daqmeter: {shown}: {error}"));
    }
    if errors.len() > MAX_LINES_REPORTED {
        tell(&format!(
            "daqmeter: {shown}: {} more lines could not be read",
            errors.len() - MAX_LINES_REPORTED
        ));
    }
    Ok(records)
}
