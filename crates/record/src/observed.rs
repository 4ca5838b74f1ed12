//! Counters over time: what was counted in each interval, raw, with the times for which it really counted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Mesh;

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
    #[serde(default)]
    pub metrics: Vec<ObservedMetric>,
    /// The meshes that the events' nodes are on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub meshes: Vec<Mesh>,
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
    /// Times in seconds and values, in the order of time; without those that were not measured.
    pub fn points_s(&self) -> impl Iterator<Item = (f64, f64)> {
        let points = self.times_ns.iter().zip(&self.values);
        points.filter_map(|(&ns, value)| Some((ns as f64 * 1e-9, (*value)?)))
    }
}

/// How an event could be counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventStatus {
    /// It was opened; an interval in which it never ran has a running time of zero.
    #[default]
    Counted,
    /// It could not be opened, for this reason.
    NotSupported(String),
}

/// One event of one PMU. All vectors have one entry per interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObservedEvent {
    /// The event as it was asked for.
    pub name: String,
    /// PMU that counts it; several instances are added up.
    pub pmu: String,
    /// NodeID, for an event of one node of a mesh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<u16>,
    /// Kind of that node, e.g. `HN-F`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_kind: String,
    /// Unit of the value, empty for a plain count.
    #[serde(default)]
    pub unit: String,
    /// Factor from the raw count to the unit.
    #[serde(default = "one")]
    pub scale: f64,
    /// CPUs or instances that are added up.
    #[serde(default)]
    pub places: u32,
    /// Whether it was counted at all.
    #[serde(default)]
    pub status: EventStatus,
    /// True when the counts come from a program that had scaled them already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_scaled: bool,
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
    /// What must be known to believe it.
    pub caveat: String,
    /// Value in each interval; none where an event that it needs did not count.
    pub values: Vec<Option<f64>>,
}

fn one() -> f64 {
    1.0
}

impl ObservedEvent {
    /// Share of the interval for which it counted; none when it was never enabled.
    pub fn share(&self, interval: usize) -> Option<f64> {
        let (enabled, running) = (
            *self.enabled_ns.get(interval)?,
            *self.running_ns.get(interval)?,
        );
        (enabled > 0).then(|| running as f64 / enabled as f64)
    }

    /// The count of an interval in its unit, scaled to the whole interval; none when it did not run.
    pub fn scaled(&self, interval: usize) -> Option<f64> {
        let share = self.share(interval).filter(|share| *share > 0.0)?;
        let by = if self.is_scaled { 1.0 } else { share };
        Some(*self.count.get(interval)? as f64 / by * self.scale)
    }

    /// Length of an interval as the counters themselves saw it, in seconds: free of the time between reading the clock and
    /// reading the counter.
    pub fn seconds(&self, interval: usize) -> Option<f64> {
        let enabled = *self.enabled_ns.get(interval)? as f64 * 1e-9 / f64::from(self.places.max(1));
        (enabled > 0.0).then_some(enabled)
    }

    /// The whole run as one interval: raw count, enabled and running time.
    pub fn total(&self) -> (u64, u64, u64) {
        (
            self.count.iter().sum(),
            self.enabled_ns.iter().sum(),
            self.running_ns.iter().sum(),
        )
    }

    /// Count of the whole run, scaled, and its share.
    pub fn total_scaled(&self) -> Option<(f64, f64)> {
        let (count, enabled, running) = self.total();
        let share = running as f64 / enabled as f64;
        let by = if self.is_scaled { 1.0 } else { share };
        (running > 0).then(|| (count as f64 / by * self.scale, share))
    }
}

impl Observations {
    /// One interval by itself, still on the time axis of the whole.
    #[must_use]
    pub fn only(&self, interval: usize) -> Observations {
        let of = |values: &Vec<u64>| {
            values
                .get(interval)
                .copied()
                .into_iter()
                .collect::<Vec<u64>>()
        };
        let event = |event: &ObservedEvent| ObservedEvent {
            name: event.name.clone(),
            pmu: event.pmu.clone(),
            node_kind: event.node_kind.clone(),
            unit: event.unit.clone(),
            status: event.status.clone(),
            count: of(&event.count),
            enabled_ns: of(&event.enabled_ns),
            running_ns: of(&event.running_ns),
            ..*event
        };
        let metric = |metric: &ObservedMetric| ObservedMetric {
            name: metric.name.clone(),
            unit: metric.unit.clone(),
            caveat: metric.caveat.clone(),
            values: metric.values.get(interval).copied().into_iter().collect(),
        };
        Observations {
            what: self.what.clone(),
            end_ns: of(&self.end_ns),
            begin_ns: self.begin_ns,
            events: self.events.iter().map(event).collect(),
            metrics: self.metrics.iter().map(metric).collect(),
            meshes: self.meshes.clone(),
        }
    }

    /// Length of an interval in seconds.
    pub fn seconds(&self, interval: usize) -> f64 {
        let before = if interval == 0 {
            Some(&self.begin_ns)
        } else {
            self.end_ns.get(interval - 1)
        };
        match (before, self.end_ns.get(interval)) {
            (Some(before), Some(after)) => after.saturating_sub(*before) as f64 * 1e-9,
            _ => 0.0,
        }
    }

    /// Length of all intervals in seconds.
    pub fn total_seconds(&self) -> f64 {
        self.end_ns
            .last()
            .map_or(0.0, |end| end.saturating_sub(self.begin_ns) as f64 * 1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
