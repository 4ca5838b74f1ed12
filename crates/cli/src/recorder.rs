//! Records of a verb: kept in a file as they are measured, shown as progress and metrics, and
//! printed at the end.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::Args;
use daqmeter_campaign::{PlannedPoint, Watch};
use daqmeter_harness::progress::{Look, Phase};
use daqmeter_harness::{Context, Refusal};
use daqmeter_record::observed::join_last;
use daqmeter_record::{Outcome, RunRecord, jsonl, sanitise};
use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;
use crate::lines::Lines;
use crate::metrics::Page;
use crate::named::{Appended, Replaced};
use crate::output::{FAILED, Failure, emit, tell, write_file};

/// Outputs of every verb that makes records.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Recording {
    /// Append every record to this file (JSON lines), as it is measured
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Output")]
    pub(crate) records: Option<Appended>,
    /// Page to write
    #[arg(short, long, value_name = "FILE.html", help_heading = "Output")]
    pub(crate) output: Option<Replaced>,
    /// Print records (JSON lines) instead of tables
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Print nothing but what went wrong
    #[arg(short, long, conflicts_with = "json", help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Name of this host in the records [default: its node name]
    #[arg(long, value_name = "TEXT", hide_short_help = true, help_heading = "Output")]
    pub(crate) label: Option<String>,
}

impl Recording {
    pub(crate) fn context(&self) -> Context {
        let mut context = crate::measure::context();
        if let Some(label) = &self.label {
            Arc::make_mut(&mut context.host).name.clone_from(label);
        }
        context
    }
}

pub(crate) struct Recorder {
    recording: Recording,
    file: Option<Arc<Mutex<Lines>>>,
    pub(crate) progress: ProgressBar,
    pub(crate) metrics: Option<Page>,
    pub(crate) records: Vec<RunRecord>,
}

impl Recorder {
    pub(crate) fn new(recording: &Recording) -> Result<Recorder, Failure> {
        let file = recording.records.as_ref().map(Lines::open).transpose()?;
        Ok(Recorder {
            recording: recording.clone(),
            file: file.map(|file| Arc::new(Mutex::new(file))),
            progress: progress_bar(0, !recording.json && !recording.quiet),
            metrics: None,
            records: Vec::new(),
        })
    }

    /// Returns the action that keeps the samples so far of a long point in the file of records, and
    /// shows them on the page of metrics.
    pub(crate) fn unfinished(&self) -> Option<impl Fn(&RunRecord) + Send + Sync + 'static> {
        let (file, page) = (self.file.clone(), self.metrics.clone());
        (file.is_some() || page.is_some()).then_some(move |record: &RunRecord| {
            if let Some(file) = &file {
                // An error of the file is reported with the record of the ended point.
                let _ = locked(file).write_unfinished(&jsonl::to_line(record));
            }
            if let Some(page) = &page {
                page.so_far(record);
            }
        })
    }

    pub(crate) fn expect(&self, points: usize) {
        self.progress.set_length(points as u64);
        if let Some(page) = &self.metrics {
            page.set("daqmeter_points_planned", "run", points as f64);
        }
    }

    pub(crate) fn begin(&self, study: &str, engine: &str) {
        self.progress.set_prefix(format!("{} {engine}", sanitise::text(study)));
        self.progress.set_message("");
    }

    /// Takes one record. It is in the file when this returns, even after the reader of standard
    /// output has closed it.
    pub(crate) fn take(&mut self, record: RunRecord) -> Result<(), Failure> {
        self.progress.inc(1);
        if let Some(page) = &self.metrics {
            page.point(&record);
        }
        let line = jsonl::to_line(&record);
        let written = self.file.as_ref().map_or(Ok(()), |file| locked(file).write(&line));
        self.records.push(jsonl::printable(record));
        join_last(&mut self.records);
        if self.recording.json {
            emit(&String::from_utf8_lossy(&line))?;
        }
        written
    }

    /// Ends a verb that measured: prints its text unless records were printed, writes the page if
    /// it is requested, and returns the exit code.
    pub(crate) fn finish(
        &self,
        text: impl FnOnce(&[RunRecord]) -> String,
    ) -> Result<ExitCode, Failure> {
        let Recording { output, json, quiet, .. } = &self.recording;
        self.progress.finish_and_clear();
        if !json && !quiet {
            let stamp = daqmeter_report::table::stamp(&self.records);
            // The stamp comes first, since the last line of some verbs is their verdict.
            emit(&(stamp + &text(&self.records)))?;
        }
        let failed = self.records.iter().filter_map(|record| match &record.outcome {
            Outcome::Failed(reason) => Some((&record.study, reason)),
            _ => None,
        });
        for (study, reason) in failed.clone().filter(|_| *quiet) {
            tell(&format!("daqmeter: {study}: FAILED: {reason}"));
        }
        if let Some(path) = output {
            let page = daqmeter_report::page(&self.records).map_err(Failure::refused)?;
            write_file(path, &page)?;
            if !quiet {
                tell(&format!("wrote {}", path.display()));
            }
        }
        self.check_file()?;
        let code = if failed.count() > 0 { ExitCode::from(FAILED) } else { ExitCode::SUCCESS };
        Ok(interrupt::exit_code(code))
    }

    pub(crate) fn check_file(&self) -> Result<(), Failure> {
        let lines = || self.records.iter().flat_map(jsonl::to_line).collect();
        self.file.as_ref().map_or(Ok(()), |file| locked(file).finish(lines))
    }
}

impl Watch for Recorder {
    type Error = Failure;

    fn planned(&mut self, points: usize, known: usize) {
        self.expect(points);
        if known > 0 {
            let all = points + known;
            tell(&format!("daqmeter: {known} of {all} points are in the file already"));
        }
    }

    fn begins(&mut self, point: &PlannedPoint) -> Result<(), Failure> {
        self.begin(&point.study, &point.engine);
        Ok(())
    }

    fn record(&mut self, record: RunRecord) -> Result<(), Failure> {
        self.take(record)
    }

    fn refused(&mut self, point: &PlannedPoint, refusal: Refusal) -> Result<(), Failure> {
        let PlannedPoint { source, workload, .. } = point;
        tell(&format!("daqmeter: {source}: {workload}: {refusal}"));
        Ok(())
    }
}

fn locked(file: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn progress_bar(points: usize, is_wanted: bool) -> ProgressBar {
    let progress = if is_wanted && std::io::stderr().is_terminal() {
        ProgressBar::new(points as u64)
    } else {
        ProgressBar::hidden()
    };
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {prefix} {wide_msg}")
        .expect("a constant template");
    progress.with_style(style)
}

pub(crate) fn look_text(look: &Look) -> String {
    let of = |done: usize| match look.lanes {
        1 => String::new(),
        lanes => format!(", {done} of {lanes} lanes"),
    };
    let phase = match look.phase {
        Phase::Preparing(ready) => format!("preparing{}", of(ready)),
        Phase::Timed => "timed steps".to_owned(),
        Phase::Ending(ended) => format!("checking{}", of(ended)),
    };
    match &look.limit {
        Some(name) => format!("limit {}: {phase}", sanitise::text(name)),
        None => phase,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;

    use super::*;

    #[test]
    fn a_long_point_says_in_words_what_it_is_at() {
        for (limit, phase, lanes, text) in [
            (None, Phase::Preparing(12), 1000, "preparing, 12 of 1000 lanes"),
            (None, Phase::Preparing(0), 1, "preparing"),
            (None, Phase::Timed, 4, "timed steps"),
            (None, Phase::Ending(3), 4, "checking, 3 of 4 lanes"),
            (Some("link\u{1b}"), Phase::Timed, 4, "limit link\\u001b: timed steps"),
        ] {
            let limit = limit.map(str::to_owned);
            assert_eq!(look_text(&Look { limit, phase, lanes }), text);
        }
    }

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
        let records = Some(Appended::at(&path));
        let mut recorder = Recorder::new(&Recording { records, ..Recording::default() }).unwrap();
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
