//! `daqmeter pmu stat --from`: perf's output as tables, records and a page, or in another of
//! perf's formats.
//!
//! Rows from a pipe are shown and recorded as they come; those of a file are shown at its end.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use daqmeter_harness::next_line;
use daqmeter_pmu::MetricGroup;
use daqmeter_pmu::count::{error_of, totals};
use daqmeter_pmu::groups::Metric;
use daqmeter_pmu::perf_format::{self, PerfReader};
use daqmeter_record::{EngineInfo, Observations, RunRecord, Workload};
use daqmeter_report::pmu::tables;

use super::stat::{Arguments, Parts, finish};
use crate::interrupt;
use crate::output::{Failure, emit, tell};
use crate::recorder::{Recorder, Recording};

/// Time without a line after which the current interval counts as whole: perf prints all rows of
/// one at once.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for the last rows after Ctrl-C: perf gets it, too, prints them and ends.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn run(path: &Path, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut groups = Vec::new();
    for name in &arguments.wanted.groups {
        groups.push(MetricGroup::find(name).map_err(Failure::refused)?);
    }
    let source = Source::open(path)?;
    let mut recorder = Recorder::new(&arguments.written.recording)?;
    let stop = interrupt::flag();
    let mut import = Import {
        shown: path.display().to_string(),
        arguments,
        groups,
        metrics: None,
        reader: PerfReader::new(arguments.interval),
        printed: 0,
        parts: Parts::new(),
        blank: blank(&arguments.written.recording),
        recorder: &mut recorder,
    };
    let read = import.read(&source, &stop);
    import.end(read)
}

fn blank(recording: &Recording) -> RunRecord {
    let info = EngineInfo { name: "pmu".into(), target: "perf stat".into(), emulated: false };
    let mut record =
        recording.context().blank_record(info, Workload::new("pmu").with("what", "perf stat"));
    record.study = "pmu/perf".into();
    record
}

/// Lines, read by a thread of their own, since a pipe may be silent for long.
struct Source {
    lines: Receiver<io::Result<Vec<u8>>>,
    is_stream: bool,
}

impl Source {
    fn open(path: &Path) -> Result<Source, Failure> {
        let shown = path.display();
        let refused = |error| Failure::refused(format!("cannot read {shown}: {error}"));
        let (source, place): (Box<dyn Read + Send>, &Path) = if path.as_os_str() == "-" {
            (Box::new(io::stdin()), "/dev/stdin".as_ref())
        } else {
            (Box::new(File::open(path).map_err(refused)?), path)
        };
        let is_stream = !place.metadata().is_ok_and(|about| about.is_file());
        let (send, lines) = sync_channel(1024);
        std::thread::spawn(move || {
            let (mut source, mut line) = (BufReader::new(source), Vec::new());
            loop {
                let read = match next_line(&mut source, &mut line) {
                    Ok(false) => return,
                    Ok(true) => Ok(std::mem::take(&mut line)),
                    Err(error) => Err(error),
                };
                let is_last = read.is_err();
                if send.send(read).is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Source { lines, is_stream })
    }
}

struct Import<'a> {
    shown: String,
    arguments: &'a Arguments,
    groups: Vec<MetricGroup>,
    metrics: Option<Vec<Metric>>,
    reader: PerfReader,
    printed: usize,
    parts: Parts,
    blank: RunRecord,
    recorder: &'a mut Recorder,
}

impl Import<'_> {
    fn read(&mut self, source: &Source, stop: &AtomicBool) -> Result<(), Failure> {
        let mut asked: Option<Instant> = None;
        loop {
            match source.lines.recv_timeout(PAUSE) {
                Ok(Ok(line)) => {
                    let taken = self.reader.line(&line);
                    taken.map_err(|error| self.refused(&error))?;
                }
                Ok(Err(error)) => {
                    return Err(Failure::refused(format!("cannot read {}: {error}", self.shown)));
                }
                Err(RecvTimeoutError::Timeout) if source.is_stream => {
                    self.reader.pause().map_err(|error| self.refused(&error))?;
                    let all = self.reader.observed().end_ns.len();
                    self.print(all)?;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if source.is_stream {
                self.print(self.reader.complete())?;
                self.record_part()?;
            }
            if stop.load(Ordering::Relaxed)
                && asked.get_or_insert_with(Instant::now).elapsed() > PATIENCE
            {
                break;
            }
        }
        self.reader.end().map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &impl std::fmt::Display) -> Failure {
        Failure::refused(format!("{}: {error}", self.shown))
    }

    fn compute(&mut self, to: usize) -> Result<(), Failure> {
        let observed = self.reader.observed();
        if self.metrics.is_none() {
            let mut metrics = Vec::new();
            for group in &self.groups {
                let found = group.metrics_of(&observed.events);
                metrics.extend(
                    found.map_err(|error| Failure::refused(format!("{}: {error}", self.shown)))?,
                );
                for missing in group.not_computed(&observed.events) {
                    tell(&format!("daqmeter: {}: {missing}", self.shown));
                }
            }
            observed.metrics = metrics.iter().map(Metric::blank).collect();
            warn_of(observed, &self.shown);
            self.metrics = Some(metrics);
        }
        for (number, metric) in self.metrics.iter().flatten().enumerate() {
            // The rows of the last interval may have been incomplete.
            let first = observed.metrics[number].values.len().saturating_sub(1);
            observed.metrics[number].values.truncate(first);
            for at in first..to {
                let value = metric.value(observed, at);
                observed.metrics[number].values.push(value);
            }
        }
        Ok(())
    }

    fn print(&mut self, to: usize) -> Result<(), Failure> {
        if to <= self.printed {
            return Ok(());
        }
        self.compute(to)?;
        let written = &self.arguments.written;
        let observed = self.reader.observed();
        for at in self.printed..to {
            let text = match written.perf_format() {
                _ if written.recording.json => String::new(),
                Some(format) => perf_format::emit_interval(observed, at, format),
                None => tables::interval(observed, at, written.bytes.into(), error_of),
            };
            emit(&text)?;
        }
        self.printed = to;
        Ok(())
    }

    fn record_part(&mut self) -> Result<(), Failure> {
        let complete = self.reader.complete();
        if complete > self.parts.written && self.parts.is_due() {
            let record = self.record(complete);
            self.recorder.take(record)?;
        }
        Ok(())
    }

    /// Returns the record with the intervals before `to` that are in no record yet.
    fn record(&mut self, to: usize) -> RunRecord {
        let observed = self.reader.observed();
        let mut record = self.blank.clone();
        record.counters = totals(observed);
        let part = self.parts.next(observed, to);
        record.observed = Some(Box::new(part));
        record
    }

    fn end(mut self, read: Result<(), Failure>) -> Result<ExitCode, Failure> {
        if let Err(failure) = read {
            let _ = self.reader.end();
            if self.reader.observed().end_ns.is_empty() {
                return Err(failure);
            }
            self.show_all()?;
            return Err(failure);
        }
        self.show_all()
    }

    fn show_all(&mut self) -> Result<ExitCode, Failure> {
        let all = self.reader.complete();
        self.print(all)?;
        self.compute(all)?;
        let record = self.record(all);
        finish(record, self.reader.observed(), self.arguments, false, self.recorder)
    }
}

fn warn_of(observed: &Observations, shown: &str) {
    if observed.begin_ns > 0 {
        tell(&format!(
            "daqmeter: {shown} does not begin at 0: its first interval is taken to be {:.3} s long",
            observed.seconds(0)
        ));
    }
    if observed.total_seconds() == 0.0 {
        tell(&format!(
            "daqmeter: {shown} has no times, so that no rate is known: count with perf stat -I, or give the length of the run by -I"
        ));
    }
    warn_of_ignored_nodes(observed);
}

fn warn_of_ignored_nodes(observed: &Observations) {
    let is_ignored = |name: &&str| {
        name.contains("nodeid=") && !name.contains("bynodeid=1") && name.starts_with("arm_cmn")
    };
    let names = observed.events.iter().map(|event| event.name.as_str());
    let ignored: Vec<&str> = names.filter(is_ignored).collect();
    if let Some(name) = ignored.first() {
        tell(&format!(
            "daqmeter: warning: {} event(s) such as `{name}` name a node without bynodeid=1: mainline's driver ignored it and counted all nodes of the type",
            ignored.len()
        ));
    }
}
