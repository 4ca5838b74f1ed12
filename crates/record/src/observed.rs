//! Counters over time: raw counts of each interval, with the times during which they counted.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Mesh, RunRecord, border};

/// Everything that counters said during a run, on the run's own time axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observations {
    /// The group or the events that were asked for.
    pub what: String,
    /// End of each interval, relative to the record's origin (`origin_ns`).
    pub end_ns: Vec<u64>,
    /// Beginning of the first interval, on the same axis.
    pub begin_ns: u64,
    /// One entry for each event, in the order asked for.
    pub events: Vec<ObservedEvent>,
    /// Rates and ratios computed from the events.
    pub metrics: Vec<ObservedMetric>,
    /// The meshes that the events' nodes are on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub meshes: Vec<Mesh>,
    /// True when the intervals follow those of the record before; the first part has the meshes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continues: bool,
}

/// One quantity over time, as the engine that measured it saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeSeries {
    /// Name, e.g. `ring filling`.
    pub name: String,
    /// Unit of the values, e.g. `B`.
    pub unit: String,
    /// Time of each value since the source began: for a ring since its card began to send.
    pub times_ns: Vec<u64>,
    /// The values, as many as times; none where there was nothing to measure.
    pub values: Vec<Option<f64>>,
}

impl TimeSeries {
    /// Iterates over times in seconds and measured values, in the order of time.
    pub fn points_s(&self) -> impl Iterator<Item = (f64, f64)> {
        let points = self.times_ns.iter().zip(&self.values);
        points.filter_map(|(&ns, value)| Some((ns as f64 * 1e-9, (*value)?)))
    }
}

/// State of the counting of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventStatus {
    /// Opened; an interval in which it never ran has a running time of zero.
    #[default]
    Counted,
    /// Not opened, for this reason.
    NotSupported(String),
}

/// One event of one PMU. All vectors have one entry per interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObservedEvent {
    /// The event as it was asked for, behind its place and cgroup.
    pub name: String,
    /// Part of the machine that was counted, if it is not all: `S0`, `CPU3`, `arm_cmn_1`, a thread.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
    /// Control group that was counted, if it is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cgroup: String,
    /// PMU that counts it; several instances are added up.
    pub pmu: String,
    /// NodeID, for an event of one node of a mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<u16>,
    /// Kind of that node, e.g. `HN-F`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_kind: String,
    /// Unit of the value, empty for a plain count.
    pub unit: String,
    /// Factor from the raw count to the unit.
    pub scale: f64,
    /// CPUs or instances that are added up.
    pub places: u32,
    /// State of the counting.
    pub status: EventStatus,
    /// True when the counts come from a program that had scaled them already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_scaled: bool,
    /// Standard deviation of the mean in percent, if the counts are means of repeated runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deviation_percent: Option<f64>,
    /// Raw counts.
    pub count: Vec<u64>,
    /// Time for which the event was enabled, summed over the CPUs that count it.
    pub enabled_ns: Vec<u64>,
    /// Time for which it really counted.
    pub running_ns: Vec<u64>,
}

/// A rate or a ratio over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObservedMetric {
    /// Name, e.g. `memory`.
    pub name: String,
    /// Unit, e.g. `B/s`.
    pub unit: String,
    /// Reason to doubt the value.
    pub caveat: String,
    /// Value in each interval; none where an event that it needs did not count.
    pub values: Vec<Option<f64>>,
    /// Places in `events` of the counts that are added up.
    pub sum: Vec<usize>,
    /// Factor of the sum, e.g. bytes of a request.
    pub times: f64,
    /// Places in `events` of the denominator; none for a rate per second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub over: Vec<usize>,
}

impl ObservedMetric {
    /// Returns the metric of events that begin at a place.
    #[must_use]
    pub fn shifted(mut self, first: usize) -> ObservedMetric {
        self.sum.iter_mut().chain(&mut self.over).for_each(|at| *at += first);
        self
    }
}

/// A rate or a ratio over several intervals: sums over sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricTotal {
    /// Value; none without a count, without a time, or with a denominator of zero.
    pub value: Option<f64>,
    /// Number of intervals in which all its events counted.
    pub intervals: usize,
}

/// Adds a record to others, or joins it with the last one if both are parts of one count. A part
/// has the totals since the count began, and the intervals since the part before.
pub fn push_or_join(records: &mut Vec<RunRecord>, mut record: RunRecord) {
    if let Some(before) = records.last_mut().filter(|before| is_continued(before, &record))
        && let (Some(whole), Some(part)) =
            (before.sections.observed.take(), record.sections.observed.take())
    {
        record.sections.observed = Some(Box::new(whole.with(*part)));
        *before = record;
    } else {
        records.push(record);
    }
}

fn is_continued(before: &RunRecord, record: &RunRecord) -> bool {
    let (Some(whole), Some(part)) = (&before.sections.observed, &record.sections.observed) else {
        return false;
    };
    let names = |observed: &Observations| -> Vec<String> {
        observed.events.iter().map(|event| event.name.clone()).collect()
    };
    part.continues
        && (&before.run_id, &before.command) == (&record.run_id, &record.command)
        && whole.end_ns.last() == Some(&part.begin_ns)
        && names(whole) == names(part)
}

impl ObservedEvent {
    /// Returns the event as counted at a place and for a cgroup; either may be empty.
    #[must_use]
    pub fn at(self, place: &str, cgroup: &str) -> ObservedEvent {
        let words = [place, cgroup, &self.name].into_iter().filter(|word| !word.is_empty());
        let name = words.collect::<Vec<&str>>().join(" ");
        ObservedEvent { name, place: place.to_owned(), cgroup: cgroup.to_owned(), ..self }
    }

    /// Returns the name without place and cgroup.
    pub fn bare_name(&self) -> &str {
        let name = self.name.strip_prefix(self.place.as_str()).unwrap_or(&self.name).trim_start();
        name.strip_prefix(self.cgroup.as_str()).unwrap_or(name).trim_start()
    }

    /// Returns place and cgroup as they stand before the name.
    pub fn label(&self) -> &str {
        self.name[..self.name.len() - self.bare_name().len()].trim_end()
    }

    /// Returns the share of the interval during which it counted; `None` if it was never enabled.
    pub fn share(&self, interval: usize) -> Option<f64> {
        let (enabled, running) = (*self.enabled_ns.get(interval)?, *self.running_ns.get(interval)?);
        (enabled > 0).then(|| running as f64 / enabled as f64)
    }

    /// Returns the count of an interval in its unit, scaled to the whole interval; `None` if it did
    /// not run.
    pub fn scaled(&self, interval: usize) -> Option<f64> {
        Some(self.scaled_over(interval..interval + 1)?.0)
    }

    /// Returns the sums over intervals: raw count, enabled and running time.
    fn sums(&self, intervals: impl Iterator<Item = usize> + Clone) -> (u64, u64, u64) {
        let sum = |values: &[u64]| border::sum(intervals.clone().filter_map(|at| values.get(at)));
        (sum(&self.count), sum(&self.enabled_ns), sum(&self.running_ns))
    }

    /// Returns the whole run as one interval: raw count, enabled and running time.
    pub fn total(&self) -> (u64, u64, u64) {
        self.sums(0..self.enabled_ns.len())
    }

    /// Returns the scaled count of the whole run, and its share.
    pub fn total_scaled(&self) -> Option<(f64, f64)> {
        self.scaled_over(0..self.enabled_ns.len())
    }

    /// Returns the count of intervals together, scaled to their whole time, and its share.
    fn scaled_over(&self, intervals: impl Iterator<Item = usize> + Clone) -> Option<(f64, f64)> {
        let (count, enabled, running) = self.sums(intervals);
        let share = running as f64 / enabled as f64;
        let by = if self.is_scaled { 1.0 } else { share };
        (running > 0 && enabled > 0).then(|| (count as f64 / by * self.scale, share))
    }
}

impl Observations {
    /// Returns the intervals of a range; times stay relative to the whole run.
    #[must_use]
    pub fn part(&self, intervals: Range<usize>) -> Observations {
        fn of<T: Clone>(values: &[T], intervals: &Range<usize>) -> Vec<T> {
            let end = intervals.end.min(values.len());
            values[intervals.start.min(end)..end].to_vec()
        }
        let event = |event: &ObservedEvent| ObservedEvent {
            count: of(&event.count, &intervals),
            enabled_ns: of(&event.enabled_ns, &intervals),
            running_ns: of(&event.running_ns, &intervals),
            ..event.clone()
        };
        let metric = |metric: &ObservedMetric| ObservedMetric {
            values: of(&metric.values, &intervals),
            ..metric.clone()
        };
        let before = intervals.start.checked_sub(1);
        Observations {
            end_ns: of(&self.end_ns, &intervals),
            begin_ns: before.map_or(self.begin_ns, |before| self.end_ns[before]),
            events: self.events.iter().map(event).collect(),
            metrics: self.metrics.iter().map(metric).collect(),
            ..self.clone()
        }
    }

    /// Adds the intervals of the following part, which has equal events and metrics.
    fn with(mut self, part: Observations) -> Observations {
        self.end_ns.extend(part.end_ns);
        for (whole, part) in self.events.iter_mut().zip(part.events) {
            whole.status = part.status;
            whole.count.extend(part.count);
            whole.enabled_ns.extend(part.enabled_ns);
            whole.running_ns.extend(part.running_ns);
        }
        for (whole, part) in self.metrics.iter_mut().zip(part.metrics) {
            whole.values.extend(part.values);
        }
        self
    }

    /// Returns the length of an interval in seconds, as the counters of an event saw it. It
    /// excludes the time between reading the clock and reading the counter. For counts of another
    /// program, whose running times are sums over CPUs and instances, it is the time step of its
    /// output. `None` if neither is known.
    pub fn seconds_of(&self, event: &ObservedEvent, interval: usize) -> Option<f64> {
        let seconds = self.seconds_over(event, interval..interval + 1);
        (seconds > 0.0).then_some(seconds)
    }

    fn seconds_over(&self, event: &ObservedEvent, intervals: impl Iterator<Item = usize>) -> f64 {
        // The enabled time is the mean of the CPUs that count the event.
        let ns_per_s = 1e9 * f64::from(event.places.max(1));
        let one = |at| match event.is_scaled {
            true => self.seconds(at),
            false => event.enabled_ns.get(at).map_or(0.0, |ns| *ns as f64 / ns_per_s),
        };
        intervals.map(one).sum()
    }

    /// Returns the rate of an event in an interval, in its unit per second.
    pub fn rate_at(&self, event: &ObservedEvent, interval: usize) -> Option<f64> {
        self.rate_over(event, interval..interval + 1)
    }

    /// Returns the mean rate of an event over the intervals in which it counted, in its unit per
    /// second; `None` without a count or a time.
    pub fn rate_of(&self, event: &ObservedEvent) -> Option<f64> {
        self.rate_over(event, (0..self.end_ns.len()).filter(|at| event.scaled(*at).is_some()))
    }

    fn rate_over(
        &self,
        event: &ObservedEvent,
        intervals: impl Iterator<Item = usize> + Clone,
    ) -> Option<f64> {
        let seconds = self.seconds_over(event, intervals.clone());
        let (count, _) = event.scaled_over(intervals).filter(|_| seconds > 0.0)?;
        Some(count / seconds)
    }

    /// Computes each metric in the intervals that it has no value of.
    pub fn fill_metrics(&mut self) {
        for number in 0..self.metrics.len() {
            for at in self.metrics[number].values.len()..self.end_ns.len() {
                let value = self.metric_over(&self.metrics[number], at..at + 1).value;
                self.metrics[number].values.push(value);
            }
        }
    }

    /// Returns a rate or a ratio over those of the intervals in which all its events counted: sums
    /// over sums, since a mean of ratios weighs an idle interval like a busy one.
    pub fn metric_over(&self, metric: &ObservedMetric, intervals: Range<usize>) -> MetricTotal {
        let counts = |event: &usize, at: usize| self.events.get(*event)?.scaled(at);
        let all = |at: &usize| {
            metric.sum.iter().chain(&metric.over).all(|event| counts(event, *at).is_some())
        };
        let used: Vec<usize> = intervals.filter(all).collect();
        let count =
            |event: &usize| Some(self.events.get(*event)?.scaled_over(used.iter().copied())?.0);
        let rate = |event: &usize| self.rate_over(self.events.get(*event)?, used.iter().copied());
        let value = if metric.over.is_empty() {
            metric.sum.iter().map(rate).sum::<Option<f64>>()
        } else {
            let below: Option<f64> = metric.over.iter().map(count).sum();
            let above: Option<f64> = metric.sum.iter().map(count).sum();
            above.zip(below).filter(|(_, below)| *below > 0.0).map(|(above, below)| above / below)
        };
        MetricTotal { value: value.map(|value| value * metric.times), intervals: used.len() }
    }

    pub fn seconds(&self, interval: usize) -> f64 {
        let before =
            if interval == 0 { Some(&self.begin_ns) } else { self.end_ns.get(interval - 1) };
        match (before, self.end_ns.get(interval)) {
            (Some(before), Some(after)) => after.saturating_sub(*before) as f64 * 1e-9,
            _ => 0.0,
        }
    }

    pub fn total_seconds(&self) -> f64 {
        self.end_ns.last().map_or(0.0, |end| end.saturating_sub(self.begin_ns) as f64 * 1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sections;

    #[test]
    fn a_count_is_scaled_by_the_time_for_which_it_ran_and_never_invented() {
        let event = ObservedEvent {
            scale: 64.0,
            count: vec![50, 0, 0],
            enabled_ns: vec![100, 100, 0],
            running_ns: vec![50, 0, 0],
            ..ObservedEvent::default()
        };
        assert_eq!((event.scaled(0), event.share(0)), (Some(6400.0), Some(0.5)));
        assert_eq!((event.scaled(1), event.share(1)), (None, Some(0.0)));
        assert_eq!((event.scaled(2), event.share(2)), (None, None));
        assert_eq!(event.total_scaled(), Some((12800.0, 0.25)));
    }

    #[test]
    fn parts_of_a_count_are_joined_and_nothing_else() {
        let event = ObservedEvent {
            name: "a".into(),
            scale: 1.0,
            count: vec![1, 2, 3, 4],
            enabled_ns: vec![10; 4],
            running_ns: vec![10; 4],
            ..ObservedEvent::default()
        };
        let whole = Observations {
            begin_ns: 5,
            end_ns: vec![15, 25, 35, 45],
            events: vec![event],
            ..Observations::default()
        };
        let record = |observed: Observations, run: &str| RunRecord {
            run_id: run.into(),
            sections: Sections { observed: Some(Box::new(observed)), ..Sections::default() },
            ..RunRecord::default()
        };
        let next = |from, to| Observations { continues: true, ..whole.part(from..to) };
        assert_eq!(next(1, 3).begin_ns, 15);
        let mut records = Vec::new();
        for part in [whole.part(0..1), next(1, 3), next(3, 4)] {
            push_or_join(&mut records, record(part, "x"));
        }
        assert_eq!(records, [record(whole.clone(), "x")]);
        for other in
            [record(whole.part(1..2), "x"), record(next(1, 2), "y"), record(next(2, 3), "x")]
        {
            let mut records = vec![record(whole.part(0..1), "x")];
            push_or_join(&mut records, other);
            assert_eq!(records.len(), 2);
        }
    }

    #[test]
    fn a_rate_of_another_programs_counts_is_by_its_time_steps() {
        // perf adds up the times of two CPUs.
        let event = ObservedEvent {
            scale: 1.0,
            places: 1,
            is_scaled: true,
            count: vec![4879, 0],
            enabled_ns: vec![2_004_000_000, 0],
            running_ns: vec![2_004_000_000, 0],
            ..ObservedEvent::default()
        };
        let observed = Observations {
            end_ns: vec![1_002_000_000, 2_004_000_000],
            events: vec![event],
            ..Observations::default()
        };
        let event = &observed.events[0];
        assert_eq!(observed.seconds_of(event, 0), Some(1.002));
        assert_eq!(observed.rate_of(event), Some(4879.0 / 1.002), "the time in which it counted");
    }

    /// One idle interval, and one in which a part did not count, change no ratio and no rate.
    #[test]
    fn a_metric_of_a_run_is_sums_over_sums_of_what_counted() {
        let event = |count: [u64; 3], ran: [u64; 3]| ObservedEvent {
            scale: 1.0,
            count: count.to_vec(),
            enabled_ns: vec![1_000_000_000; 3],
            running_ns: ran.map(|ran| ran * 1_000_000_000).to_vec(),
            ..ObservedEvent::default()
        };
        let metric = |over: &[usize]| ObservedMetric {
            sum: vec![1],
            over: over.to_vec(),
            times: 2.0,
            ..ObservedMetric::default()
        };
        for (below, above, ran, ratio, rate) in [
            // The mean of the ratios is 0.5005.
            (
                [10, 1_000_000_000, 0],
                [10, 1_000_000, 0],
                [1, 1, 0],
                Some(0.002_000_02),
                1_000_010.0,
            ),
            ([0, 1000, 1000], [0, 5, 5], [1, 1, 1], Some(0.01), 10.0 * 2.0 / 3.0),
            ([0, 0, 1000], [0, 0, 5], [1, 1, 0], None, 0.0),
        ] {
            let observed = Observations {
                end_ns: vec![1_000_000_000, 2_000_000_000, 3_000_000_000],
                events: vec![event(below, [1; 3]), event(above, ran)],
                ..Observations::default()
            };
            let intervals = ran.iter().filter(|ran| **ran > 0).count();
            let found = observed.metric_over(&metric(&[0]), 0..3);
            assert_eq!(found.intervals, intervals);
            assert_eq!(found.value.is_some(), ratio.is_some());
            let off = found.value.unwrap_or(0.0) - ratio.unwrap_or(0.0);
            assert!(off.abs() < 1e-8, "{found:?}");
            let found = observed.metric_over(&metric(&[]), 0..3);
            assert!((found.value.unwrap() - rate).abs() < 1e-6, "{found:?}");
            assert_eq!(found.value, observed.rate_of(&observed.events[1]).map(|rate| rate * 2.0));
        }
        let missing = ObservedMetric { sum: vec![7], ..ObservedMetric::default() };
        let found = Observations::default().metric_over(&missing, 0..1);
        assert_eq!(found, MetricTotal { value: None, intervals: 0 });
    }

    #[test]
    fn intervals_have_the_length_that_passed() {
        let observed = Observations {
            begin_ns: 5,
            end_ns: vec![1_000_000_005, 2_000_250_048],
            ..Observations::default()
        };
        assert_eq!(observed.seconds(0), 1.0);
        assert!((observed.seconds(1) - 1.000_250_043).abs() < 1e-12);
        assert_eq!(observed.seconds(2), 0.0);
    }
}
