//! Rows of perf's output as observations in intervals.

use daqmeter_record::Observations;
use daqmeter_record::observed::{EventStatus, ObservedEvent};

use super::rows::{Row, Table};

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

/// The observations that rows are of.
pub(super) fn build(table: &Table, interval_s: f64) -> Observations {
    let mut ends: Vec<Option<f64>> = table.rows.iter().map(|row| row.time).collect();
    ends.dedup();
    let ends: Vec<f64> = ends
        .iter()
        .map(|end| end.or(table.elapsed).unwrap_or(0.0))
        .collect();
    let has_stamps = table.rows.iter().any(|row| row.time.is_some());
    let begin = if has_stamps {
        begin_of(&ends, table.has_title, interval_s)
    } else {
        0.0
    };
    let mut events = Events::default();
    let mut before = (None, begin);
    for row in &table.rows {
        if events.interval == 0 || before.0 != row.time {
            let begin = if events.interval == 0 {
                begin
            } else {
                ends[events.interval - 1]
            };
            before = (row.time, begin);
            events.next_interval();
        }
        events.take(row, ends[events.interval - 1] - before.1);
    }
    events.finish();
    Observations {
        what: "perf stat".to_owned(),
        begin_ns: ns(begin),
        end_ns: ends.into_iter().map(ns).collect(),
        events: events
            .events
            .into_iter()
            .map(|event| event.observed)
            .collect(),
        ..Observations::default()
    }
}

/// When the first interval began: at 0, unless the rows are from the middle of an output. Then it is as long as the others.
fn begin_of(ends: &[f64], has_title: bool, interval_s: f64) -> f64 {
    let Some(first) = ends.first() else {
        return 0.0;
    };
    let mut lengths: Vec<f64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The last interval of an output may be shorter.
    if lengths.len() > 1 {
        lengths.pop();
    }
    lengths.sort_by(f64::total_cmp);
    let length = match lengths.as_slice() {
        [] => interval_s,
        // Whether the second is a short last one: then it hardly divides the first.
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
    if length <= 0.0 || *first <= 1.5 * length {
        0.0
    } else {
        first - length
    }
}

/// Events in the order of their first row.
#[derive(Default)]
struct Events {
    events: Vec<Event>,
    /// Number of the interval that is being read, from 1.
    interval: usize,
}

struct Event {
    observed: ObservedEvent,
    /// The same event may be there several times (in groups): its number among them.
    nth: usize,
    /// Decimals of its values: one scale for all intervals, the finest seen.
    decimals: usize,
}

impl Events {
    fn next_interval(&mut self) {
        self.interval += 1;
        self.fill(self.interval - 1);
    }

    fn finish(&mut self) {
        self.fill(self.interval);
    }

    /// Intervals in which an event was not printed were not counted.
    fn fill(&mut self, intervals: usize) {
        for event in &mut self.events {
            event.observed.count.resize(intervals, 0);
            event.observed.enabled_ns.resize(intervals, 0);
            event.observed.running_ns.resize(intervals, 0);
        }
    }

    /// The event of a row: the first of its name that has no value in this interval.
    fn of(&mut self, row: &Row) -> &mut Event {
        let same = self
            .events
            .iter()
            .filter(|event| event.observed.name == row.event);
        let nth = same
            .filter(|event| event.observed.count.len() == self.interval)
            .count();
        let found = self
            .events
            .iter()
            .position(|event| event.observed.name == row.event && event.nth == nth);
        let at = found.unwrap_or_else(|| {
            self.events.push(Event {
                observed: blank(row),
                nth,
                decimals: 0,
            });
            self.fill_last();
            self.events.len() - 1
        });
        &mut self.events[at]
    }

    fn fill_last(&mut self) {
        let before = self.interval - 1;
        if let Some(event) = self.events.last_mut() {
            event.observed.count = vec![0; before];
            event.observed.enabled_ns = vec![0; before];
            event.observed.running_ns = vec![0; before];
        }
    }

    fn take(&mut self, row: &Row, passed: f64) {
        let event = self.of(row);
        if !row.is_supported {
            event.observed.status = EventStatus::NotSupported("perf could not open it".to_owned());
        }
        event.count(row);
        let share = row.share.map_or(1.0, |percent| percent / 100.0);
        let enabled = match row.running_ns {
            Some(running) if share > 0.0 => running as f64 / share / NS,
            _ => passed,
        };
        let is_counted = row.value.is_some();
        let observed = &mut event.observed;
        observed
            .enabled_ns
            .push(ns(enabled).max(u64::from(is_counted)));
        let running = if is_counted {
            ns(enabled * share).max(1)
        } else {
            0
        };
        observed.running_ns.push(running);
    }
}

impl Event {
    /// Adds a value, on the scale of the finest so far.
    fn count(&mut self, row: &Row) {
        let value = row.value.unwrap_or_default();
        let tens = |decimals: usize| {
            let decimals = u32::try_from(decimals).unwrap_or(u32::MAX);
            10_u64.checked_pow(decimals).unwrap_or(u64::MAX)
        };
        if value.decimals > self.decimals {
            let factor = tens(value.decimals - self.decimals);
            for count in &mut self.observed.count {
                *count = count.saturating_mul(factor);
            }
            self.decimals = value.decimals;
            self.observed.scale = 10_f64.powi(-i32::try_from(value.decimals).unwrap_or(0));
        }
        let factor = tens(self.decimals - value.decimals);
        self.observed
            .count
            .push(value.digits.saturating_mul(factor));
    }
}

fn blank(row: &Row) -> ObservedEvent {
    let pmu = row.event.split_once('/').map_or("", |(pmu, _)| pmu);
    ObservedEvent {
        name: row.event.clone(),
        pmu: pmu.to_owned(),
        unit: row.unit.clone(),
        scale: 1.0,
        places: 1,
        is_scaled: true,
        ..ObservedEvent::default()
    }
}
