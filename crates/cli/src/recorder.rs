//! Records of a verb: kept in a file as they are measured, shown as progress and metrics, and
//! printed at the end.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;
use daqmeter_campaign::{PlannedPoint, RunnerEvent};
use daqmeter_harness::{OpenRecord, StopFlag, Tally};
use daqmeter_record::conditions::{Taken, pinned};
use daqmeter_record::file::is_descriptor;
use daqmeter_record::observed::push_or_join;
use daqmeter_record::{Outcome, RunRecord, Workload, jsonl, sanitise};
use daqmeter_report::etherbone;
use daqmeter_report::table::{ALL, ask_columns, known_columns};
use daqmeter_report::{Frame, disturbed, headline, label};

use crate::kept;
use crate::metrics::Page;
use crate::named::{Appended, Replaced};
use crate::output::{Ended, FAILED, Failure, emit, tell, write_file};
use crate::progress::{Forecast, Progress};

/// Outputs of every verb that makes records.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Recording {
    /// Append records to this file, or in a folder
    ///
    /// They are JSON lines. In a folder, which is there or ends in /, the file is HOST.jsonl.
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Output")]
    pub(crate) records: Option<Appended>,
    /// Name of this host in records, instead of its own
    #[arg(long, value_name = "NAME", value_parser = crate::arguments::label, help_heading = "Output", hide_short_help = true)]
    pub(crate) label: Option<String>,
    /// Write a page
    #[arg(short, long, value_name = "FILE.html", help_heading = "Output")]
    pub(crate) output: Option<Replaced>,
    /// Print records (JSON lines) instead of tables
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Print only errors
    #[arg(short, long, conflicts_with = "json", help_heading = "Output")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) columns: Columns,
}

impl Recording {
    /// Returns the file of records; in a folder it is that of this host.
    pub(crate) fn file(&self) -> Result<Option<Appended>, Failure> {
        self.records.as_ref().map(|named| named.file(self.label.as_deref())).transpose()
    }
}

/// Columns of tables.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Columns {
    /// Print all rows, columns and notes, however many
    #[arg(long, help_heading = "Output")]
    all: bool,
    /// Columns of the table of stages, by heading or by name in exports; all: as --all
    #[arg(
        long = "columns",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(known_columns()),
        hide_possible_values = true,
        hide_short_help = true,
        help_heading = "Output"
    )]
    names: Option<Vec<String>>,
}

impl Columns {
    /// Applies to all tables that are printed later.
    pub(crate) fn apply(&self) {
        match (&self.names, self.all) {
            (_, true) => ask_columns(&[ALL.to_owned()]),
            (Some(names), false) => ask_columns(names),
            (None, false) => {}
        }
    }
}

pub(crate) struct Recorder {
    recording: Recording,
    file: Option<Lines>,
    /// Why the file has no more records, as on a full disk.
    unwritten: Option<Failure>,
    /// Set then, so that no more is measured.
    pub(crate) stop: StopFlag,
    pub(crate) progress: Progress,
    pub(crate) metrics: Option<Page>,
    pub(crate) records: Vec<RunRecord>,
    /// Accounts of the CPUs from the begin of the verb on: its points may be shorter than a tick.
    pub(crate) whole: Option<OpenRecord>,
}

impl Recorder {
    pub(crate) fn new(recording: &Recording) -> Result<Recorder, Failure> {
        recording.columns.apply();
        let label = recording.label.as_deref();
        let file = recording.records.as_ref().map(|file| Lines::open(file, label)).transpose()?;
        Ok(Recorder {
            recording: recording.clone(),
            file,
            unwritten: None,
            stop: StopFlag::default(),
            progress: Progress::begin(recording.quiet, recording.json),
            metrics: None,
            records: Vec::new(),
            whole: None,
        })
    }

    /// Takes the forecast of the whole verb.
    pub(crate) fn expect(&self, forecast: Forecast) {
        let is_first = self.progress.expect(forecast);
        if let Some(page) = self.metrics.as_ref().filter(|_| is_first || forecast.points > 1) {
            page.set("daqmeter_points_planned", &["run"], forecast.points as f64);
        }
    }

    pub(crate) fn begin(&self, asked: &Workload) {
        self.progress.begin_point(sanitise::text(&label(asked, "")).into_owned());
    }

    /// Takes one record. It is in the file when this returns, even after the reader of standard
    /// output has closed it. Where the file cannot be written, nothing more is measured, and
    /// [`Recorder::finish`] prints what was, and fails.
    pub(crate) fn take(&mut self, record: RunRecord) -> Result<(), Failure> {
        self.progress.took_point();
        if let Some(page) = &self.metrics {
            page.point(&record);
        }
        let line = jsonl::to_line(&record);
        if let Some(Err(failure)) = self.file.as_mut().map(|file| file.write(&line)) {
            self.file = None;
            self.unwritten = Some(failure);
            self.stop.set();
        }
        let printable = jsonl::reread(&line).unwrap_or_else(|error| {
            let problem = format!("this record cannot be read back: {error}; a bug in daqmeter");
            self.unwritten.get_or_insert(Failure::tool(problem));
            record
        });
        push_or_join(&mut self.records, printable);
        if let Some(Err(failure)) = self.records.last().map(kept::add_record) {
            self.unwritten.get_or_insert(failure);
        }
        if self.recording.json {
            emit(&String::from_utf8_lossy(&line))?;
        }
        Ok(())
    }

    /// Returns the failure to write the file of records.
    pub(crate) fn written(&mut self) -> Result<(), Failure> {
        self.unwritten.take().map_or(Ok(()), Err)?;
        self.file.as_ref().map_or(Ok(()), Lines::is_there)
    }

    /// Ends a verb that measured: prints its frame, unless records were printed, writes the page if
    /// it is requested, and returns the exit code.
    pub(crate) fn finish(&mut self, frame: impl FnOnce(&[RunRecord]) -> Frame) -> Ended {
        let disturbed = self.disturbed();
        self.end(|records| {
            let mut frame = frame(records);
            frame.answer.extend(headline(records));
            frame.text(disturbed)
        })
    }

    /// Says what disturbed the verb so far.
    pub(crate) fn disturbed(&self) -> Option<String> {
        match &self.whole {
            Some(whole) => {
                let whole = whole.so_far(Tally::default(), Vec::new());
                Taken::from(&[whole], pinned(&self.records).as_ref()).text()
            }
            None => disturbed(&self.records),
        }
    }

    /// Ends a verb as [`Recorder::finish`] does, with a screen of its own.
    pub(crate) fn end(&mut self, text: impl FnOnce(&[RunRecord]) -> String) -> Ended {
        let Recording { output, json, quiet, .. } = &self.recording;
        self.progress.end();
        let mut printed = Ok(ExitCode::SUCCESS);
        if !json && !quiet {
            printed = emit(&text(&self.records));
        }
        for record in self.records.iter().filter(|_| *quiet) {
            if let Outcome::Failed(reason) = &record.outcome {
                tell(&format!("daqmeter: {}: FAILED: {reason}", record.study));
            }
        }
        if let Some(path) = output {
            let page = daqmeter_report::page(&self.records);
            write_file(path, &page)?;
            if !quiet {
                tell(&format!("wrote {}", path.display()));
            }
        }
        // A page is complete even if the text could not be printed.
        printed?;
        self.written()?;
        Ok(code_of(&self.records))
    }

    /// Follows a run of planned points.
    pub(crate) fn follow(&mut self, event: RunnerEvent<'_>) -> Result<(), Failure> {
        match event {
            RunnerEvent::Planned { points, known, time, most } => {
                self.expect(Forecast { most, ..Forecast::points(points, time) });
                if known > 0 {
                    let all = points + known;
                    tell(&format!("daqmeter: {known} of {all} points are in the file already"));
                }
            }
            RunnerEvent::Begins(point) => self.begin(&point.workload),
            RunnerEvent::Measured(record) => self.take(*record)?,
            RunnerEvent::Refused(PlannedPoint { source, workload, .. }, fault) => {
                tell(&format!("daqmeter: {source}: {workload}: {fault}"));
            }
        }
        Ok(())
    }
}

/// A file that lines are appended to during a run, held against other writers.
#[derive(Debug)]
pub(crate) struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    pub(crate) fn open(named: &Appended, label: Option<&str>) -> Result<Lines, Failure> {
        let path = named.file(label)?;
        let file = jsonl::append_to(&path).map_err(|error| {
            let path = path.display();
            Failure::refused(match error.kind() {
                io::ErrorKind::WouldBlock => format!(
                    "{path} is being written by another run: name another file with --records"
                ),
                io::ErrorKind::InvalidData => format!("{path} {error}"),
                _ => format!("cannot write {path}: {error}"),
            })
        })?;
        Ok(Lines { path: path.to_path_buf(), file })
    }

    /// Appends a line, which is on its way to the disk when this returns.
    pub(crate) fn write(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.file.write_all(line).map_err(|error| {
            let path = self.path.display();
            Failure::tool(format!("cannot write {path}: {error}; earlier lines are complete"))
        })?;
        self.is_there()
    }

    /// Refuses a file that was removed, or moved away, since it was opened: its lines are lost, or
    /// are not where the user looks for them.
    fn is_there(&self) -> Result<(), Failure> {
        let known = self.file.metadata()?;
        let is_lost = known.is_file() && (known.nlink() == 0 || !self.path.exists());
        match is_lost && !is_descriptor(&self.path) {
            true => Err(Failure::tool(format!(
                "{} was removed during the run, with the records in it",
                self.path.display()
            ))),
            false => Ok(()),
        }
    }
}

/// Exit code of records: 1 if one of them failed, or lost cycles.
pub(crate) fn code_of(records: &[RunRecord]) -> ExitCode {
    let has_failed = |record: &RunRecord| {
        matches!(record.outcome, Outcome::Failed(_)) || etherbone::lost(record).is_some()
    };
    if records.iter().any(has_failed) { ExitCode::from(FAILED) } else { ExitCode::SUCCESS }
}
