//! Outputs: stdout for people and programs, stderr for progress and trouble, files for records.
//!
//! All printed text goes through [`emit`], [`tell`] or [`Failure::report`], and there through the
//! sanitiser. [`read_parts`] and [`Recorder`] make the text of records printable.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daqmeter_record::file::Replacement;
use daqmeter_record::observed::join_last;
use daqmeter_record::{Outcome, RunRecord, jsonl, sanitise};

pub(crate) use crate::failure::{
    CANNOT_TELL, FAILED, Failure, INTERRUPTED, program_name, tell, tell_lines, tool_name,
};
use crate::interrupt;
use crate::lines::Lines;
use crate::named::{Appended, Replaced, refuse_records};

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

/// True when stderr is a terminal, where progress may be drawn.
pub(crate) fn progress_wanted() -> bool {
    io::stderr().is_terminal()
}

#[derive(Debug)]
pub(crate) struct Recorder {
    file: Option<Arc<Mutex<Lines>>>,
    json: bool,
    pub(crate) quiet: bool,
    pub(crate) records: Vec<RunRecord>,
}

impl Recorder {
    pub(crate) fn new(out: Option<&Appended>, json: bool) -> Result<Recorder, Failure> {
        let file = out.map(|path| Ok::<_, Failure>(Arc::new(Mutex::new(Lines::open(path)?))));
        Ok(Recorder { file: file.transpose()?, json, quiet: false, records: Vec::new() })
    }

    pub(crate) fn unfinished(&self) -> Option<impl Fn(&RunRecord) + Send + Sync + 'static> {
        let file = self.file.clone()?;
        Some(move |record: &RunRecord| {
            // An error of the file is reported with the record of the ended point.
            let _ = locked(&file).write_unfinished(&jsonl::to_line(record));
        })
    }

    pub(crate) fn of(records: Vec<RunRecord>, json: bool, quiet: bool) -> Recorder {
        Recorder { file: None, json, quiet, records }
    }

    /// Takes one record. It is in the file when this returns, even after the reader of standard
    /// output has closed it.
    pub(crate) fn take(&mut self, record: RunRecord) -> Result<(), Failure> {
        let line = jsonl::to_line(&record);
        let records = &self.records;
        let written = self
            .file
            .as_ref()
            .map_or(Ok(()), |file| locked(file).write(&line, || lines_of(records)));
        self.records.push(jsonl::printable(record));
        join_last(&mut self.records);
        let printed = match self.json {
            true => emit(&String::from_utf8_lossy(&line)).map(drop),
            false => Ok(()),
        };
        written.and(printed)
    }

    /// Ends a verb that measured: prints its text unless records were printed, writes the page if
    /// it is requested, and returns the exit code.
    pub(crate) fn finish(
        &mut self,
        page: Option<&Replaced>,
        interrupted: bool,
        text: impl FnOnce(&[RunRecord]) -> String,
    ) -> Result<ExitCode, Failure> {
        if !self.json && !self.quiet {
            let stamp = daqmeter_report::table::stamp(&self.records);
            // The stamp comes first, since the last line of some verbs is their verdict.
            emit(&(stamp + &text(&self.records)))?;
        }
        if self.quiet {
            self.records.iter().for_each(tell_failure);
        }
        if let Some(path) = page {
            let page = daqmeter_report::page(&self.records).map_err(Failure::refused)?;
            write_file(path, &page)?;
            if !self.quiet {
                tell(&format!("wrote {}", path.display()));
            }
        }
        self.check_file()?;
        Ok(self.exit_code(interrupted))
    }

    pub(crate) fn check_file(&mut self) -> Result<(), Failure> {
        let records = &self.records;
        let file = self.file.as_ref();
        file.map_or(Ok(()), |file| locked(file).finish(|| lines_of(records)))
    }

    pub(crate) fn exit_code(&self, interrupted: bool) -> ExitCode {
        let failed = self.records.iter().any(|record| matches!(record.outcome, Outcome::Failed(_)));
        match (interrupted, failed) {
            (true, _) => ExitCode::from(INTERRUPTED),
            (false, true) => ExitCode::from(FAILED),
            (false, false) => ExitCode::SUCCESS,
        }
    }
}

fn lines_of(records: &[RunRecord]) -> Vec<u8> {
    records.iter().flat_map(jsonl::to_line).collect()
}

fn locked(file: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell_failure(record: &RunRecord) {
    if let Outcome::Failed(reason) = &record.outcome {
        let study = sanitise::text(&record.study);
        tell(&format!("daqmeter: {study}: FAILED: {}", sanitise::text(reason)));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: all samples of a run of hours were lost when it was killed.
    #[test]
    fn a_point_that_goes_on_is_in_the_file_until_its_whole_record_takes_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records.jsonl");
        let of = |study: &str| {
            let mut record = RunRecord::default();
            record.study = study.into();
            record
        };
        let kept = || {
            let file = io::BufReader::new(File::open(&path).unwrap());
            let contents = jsonl::read(file).unwrap();
            assert_eq!(contents.errors.len(), 0);
            let studies = contents.records.iter().map(|record| record.study.to_string());
            studies.collect::<Vec<_>>().join(" ")
        };
        let mut recorder = Recorder::new(Some(&Appended::at(&path)), false).unwrap();
        let unfinished = recorder.unfinished().unwrap();
        recorder.take(of("one")).unwrap();
        unfinished(&of("two:1"));
        assert_eq!(kept(), "one two:1");
        unfinished(&of("two:2"));
        assert_eq!(kept(), "one two:2");
        recorder.take(of("two")).unwrap();
        recorder.take(of("three")).unwrap();
        assert_eq!(kept(), "one two three");
    }
}
