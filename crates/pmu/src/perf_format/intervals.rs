//! Converter of perf's rows to observations in intervals.

use std::collections::HashMap;
use std::time::Duration;

use daqmeter_record::Observations;
use daqmeter_record::observed::{EventStatus, ObservedEvent};

use super::rows::{Lines, PerfError, Printed, Row};

const NS: f64 = 1e9;

fn ns(seconds: f64) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time stamp of a run, not negative"
    )]
    let ns = (seconds.max(0.0) * NS).round() as u64;
    ns
}

/// Most counts that are kept: events times intervals. 30 events each second for 12 days take 800
/// MB.
pub(super) const MAX_COUNTS: usize = 1 << 25;

/// Most intervals that wait until the start of the first is known.
const MAX_HELD: usize = 16;

#[derive(Debug, Default)]
pub struct PerfReader {
    lines: Lines,
    /// Seconds of an interval, if the user gave them.
    length_s: Option<f64>,
    /// Rows that wait until the start of the first interval is known, and their times.
    held: Vec<Row>,
    held_s: Vec<f64>,
    is_begun: bool,
    is_over: bool,
    has_stamps: bool,
    time: Option<f64>,
    observed: Observations,
    /// Decimals of the values of each event: one scale for all intervals, the finest seen.
    decimals: Vec<usize>,
    /// Events by name. A name may occur several times, in groups.
    by_name: HashMap<String, Vec<usize>>,
}

impl PerfReader {
    /// Creates a reader of an output with intervals of that length, 1 s by default. The length is
    /// used if the output does not give it. That is so for one stamp that does not begin at 0, and
    /// for a run without stamps and without a time.
    pub fn new(length: Option<Duration>) -> PerfReader {
        PerfReader {
            length_s: length.map(|length| length.as_secs_f64()),
            observed: Observations { what: "perf stat".to_owned(), ..Observations::default() },
            ..PerfReader::default()
        }
    }

    /// Takes a line, which may be in an older encoding.
    pub fn line(&mut self, line: &[u8]) -> Result<(), PerfError> {
        let latin1 = |line: &[u8]| line.iter().map(|byte| char::from(*byte)).collect();
        let line = std::str::from_utf8(line).map_or_else(|_| latin1(line), str::to_owned);
        let Some(row) = self.lines.row(&line)? else {
            return Ok(());
        };
        match row.time {
            // After intervals, --summary prints the whole run again, without a stamp.
            None if self.has_stamps => return Ok(()),
            Some(time)
                if !time.is_finite() || self.latest().is_some_and(|before| time < before) =>
            {
                let problem = "the time goes back: read one output at a time";
                return Err(self.lines.wrong(problem.to_owned(), &line));
            }
            Some(_) if !self.has_stamps => {
                self.has_stamps = true;
                self.held.clear();
            }
            _ => {}
        }
        if self.is_begun {
            return self.take(row);
        }
        if let Some(time) = row.time.filter(|time| self.held_s.last() != Some(time)) {
            self.held_s.push(time);
        }
        self.held.push(row);
        self.refuse_more_than(self.held.len())?;
        if self.held_s.len() > MAX_HELD {
            self.begin()?;
        }
        Ok(())
    }

    /// Takes the last interval as complete, because no line came for a while.
    pub fn pause(&mut self) -> Result<(), PerfError> {
        let is_first = |end: &f64| *end <= 1.5 * self.length_s.unwrap_or(1.0);
        let is_known = self.held_s.len() > 1 || self.held_s.first().is_some_and(is_first);
        if !self.is_begun && is_known {
            self.begin()?;
        }
        Ok(())
    }

    pub fn end(&mut self) -> Result<(), PerfError> {
        if !self.is_begun {
            if self.held.is_empty() {
                return Err(PerfError::Empty);
            }
            self.begin()?;
        }
        self.is_over = true;
        self.fill(self.observed.end_ns.len());
        Ok(())
    }

    /// Returns the observations that were read so far.
    pub fn observed(&mut self) -> &mut Observations {
        &mut self.observed
    }

    /// Counts the intervals with all rows read: those before the present one, and at the end all.
    pub fn complete(&self) -> usize {
        let all = self.observed.end_ns.len();
        if self.is_over { all } else { all.saturating_sub(1) }
    }

    fn latest(&self) -> Option<f64> {
        self.time.or(self.held_s.last().copied())
    }

    fn begin(&mut self) -> Result<(), PerfError> {
        let length_s = self.length_s.unwrap_or(1.0);
        self.is_begun = true;
        self.observed.begin_ns = ns(begin_of(&self.held_s, self.lines.has_title, length_s));
        let held = std::mem::take(&mut self.held);
        held.into_iter().try_for_each(|row| self.take(row))
    }

    fn take(&mut self, row: Row) -> Result<(), PerfError> {
        let end_s = row.time.or(self.lines.elapsed_s).or(self.length_s);
        if self.observed.end_ns.is_empty() || self.time != row.time {
            self.fill(self.observed.end_ns.len());
            self.observed.end_ns.push(ns(end_s.unwrap_or(0.0)));
            self.time = row.time;
        }
        let at = self.event_of(&row);
        let intervals = self.observed.end_ns.len();
        self.refuse_more_than(self.observed.events.len().saturating_mul(intervals))?;
        let passed_ns = ns(self.observed.seconds(intervals - 1));
        self.count(at, &row, passed_ns);
        Ok(())
    }

    fn refuse_more_than(&self, counts: usize) -> Result<(), PerfError> {
        if counts > MAX_COUNTS {
            return Err(PerfError::TooMany { line: self.lines.number, max: MAX_COUNTS });
        }
        Ok(())
    }

    fn fill(&mut self, intervals: usize) {
        for event in &mut self.observed.events {
            event.count.resize(intervals, 0);
            event.enabled_ns.resize(intervals, 0);
            event.running_ns.resize(intervals, 0);
        }
    }

    /// Finds the event of a row: the first of its name that has no value in this interval.
    fn event_of(&mut self, row: &Row) -> usize {
        let intervals = self.observed.end_ns.len();
        let events = &mut self.observed.events;
        let same = self.by_name.entry(row.event.clone()).or_default();
        let free = same.iter().find(|at| events[**at].count.len() < intervals);
        free.copied().unwrap_or_else(|| {
            same.push(events.len());
            events.push(blank(row, intervals - 1));
            self.decimals.push(0);
            events.len() - 1
        })
    }

    fn count(&mut self, at: usize, row: &Row, passed_ns: u64) {
        let event = &mut self.observed.events[at];
        if !row.is_supported {
            event.status = EventStatus::NotSupported("perf could not open it".to_owned());
        }
        add(event, &mut self.decimals[at], row.value.unwrap_or_default());
        let is_counted = row.value.is_some();
        let share = row.share.map_or(1.0, |percent| percent / 100.0);
        // perf adds up the times of CPUs and instances; -x and -j cut the share to whole percents.
        let (enabled, running) = match row.running_ns {
            Some(running) if share > 0.0 => (ns(running as f64 / share / NS), running),
            Some(running) => (running.max(passed_ns), running),
            None => (passed_ns, ns(passed_ns as f64 * share / NS)),
        };
        let least = u64::from(is_counted);
        event.enabled_ns.push(enabled.max(least));
        event.running_ns.push(if is_counted { running.max(1) } else { 0 });
    }
}

/// Returns the start of the first interval, from the length of the others.
fn begin_of(ends: &[f64], has_title: bool, interval_s: f64) -> f64 {
    let Some(first) = ends.first() else {
        return 0.0;
    };
    let mut lengths: Vec<f64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    if lengths.len() > 1 {
        lengths.pop();
    }
    lengths.sort_by(f64::total_cmp);
    let length = match lengths.as_slice() {
        [] => interval_s,
        // A short last interval hardly divides the first.
        [second] if ends.len() == 2 => {
            let times = first / second;
            if has_title || (times - times.round()).abs() > 0.02 {
                return 0.0;
            }
            *second
        }
        sorted => sorted[sorted.len() / 2],
    };
    // Stamps are late by up to some milliseconds, never by half an interval.
    if length <= 0.0 || *first <= 1.5 * length { 0.0 } else { first - length }
}

/// Adds a value, on the scale of the finest so far.
fn add(event: &mut ObservedEvent, decimals: &mut usize, value: Printed) {
    let tens = |decimals: usize| {
        let decimals = u32::try_from(decimals).unwrap_or(u32::MAX);
        10_u64.checked_pow(decimals).unwrap_or(u64::MAX)
    };
    if value.decimals > *decimals {
        let factor = tens(value.decimals - *decimals);
        for count in &mut event.count {
            *count = count.saturating_mul(factor);
        }
        *decimals = value.decimals;
        event.scale = 10_f64.powi(-i32::try_from(value.decimals).unwrap_or(0));
    }
    let factor = tens(*decimals - value.decimals);
    event.count.push(value.digits.saturating_mul(factor));
}

fn blank(row: &Row, before: usize) -> ObservedEvent {
    let pmu = row.event.split_once('/').map_or("", |(pmu, _)| pmu);
    ObservedEvent {
        name: row.event.clone(),
        pmu: pmu.to_owned(),
        unit: row.unit.clone(),
        scale: 1.0,
        places: 1,
        is_scaled: true,
        count: vec![0; before],
        enabled_ns: vec![0; before],
        running_ns: vec![0; before],
        ..ObservedEvent::default()
    }
}
