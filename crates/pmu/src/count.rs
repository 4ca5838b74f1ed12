//! Counting in intervals: a set of events is opened, and its counters are read at each end.

use std::time::Duration;

use daqmeter_record::observed::{EventStatus, ObservedEvent};
use daqmeter_record::{Counter, Mesh, Observations};
use daqmeter_sys::clock;
use daqmeter_sys::perf::Reading;

use crate::event::{EventSet, OnMesh, PmuEvent};
use crate::groups::Metric;
use crate::mesh::nodes;
use crate::source::{Counters, Opener, Refused};

/// Longest time between two readings. The cycle counter of an arm-cmn wraps after 2^39 cycles, 122
/// s at 4.5 GHz. A driver without an interrupt for it sees a wrap only if it reads sooner
/// (drivers/perf/arm-cmn.c, `CMN_CC_INIT`).
pub const MAX_UNREAD: Duration = Duration::from_secs(60);
const MAX_UNREAD_NS: u64 = 60_000_000_000;

pub struct Count {
    open: Vec<OpenGroup>,
    observed: Observations,
    metrics: Vec<Metric>,
    origin_ns: u64,
    read_ns: u64,
    pub refused: Vec<Refused>,
}

struct OpenGroup {
    first: usize,
    counters: Option<Box<dyn Counters>>,
    before: Vec<Reading>,
    now: Vec<Reading>,
}

impl Count {
    pub fn open(set: &EventSet, what: &str, opener: &mut dyn Opener) -> Result<Count, Refused> {
        let mut count = Count {
            open: Vec::new(),
            observed: Observations { what: what.to_owned(), ..Observations::default() },
            metrics: Vec::new(),
            origin_ns: 0,
            read_ns: 0,
            refused: Vec::new(),
        };
        for group in &set.groups {
            let first = count.observed.events.len();
            count.observed.events.extend(group.iter().map(blank));
            let (counters, places) = match opener.open(group) {
                Ok(counters) => {
                    let places = counters.places();
                    (Some(counters), places)
                }
                Err(refused) if group.len() > 1 => return Err(refused),
                Err(refused) => {
                    count.observed.events[first].status =
                        EventStatus::NotSupported(refused.reason.clone());
                    count.refused.push(refused);
                    (None, vec![0])
                }
            };
            for (event, places) in count.observed.events[first..].iter_mut().zip(places) {
                event.places = places;
            }
            let blank = vec![Reading::default(); group.len()];
            count.open.push(OpenGroup { first, counters, before: blank.clone(), now: blank });
        }
        match count.refused.first() {
            Some(refused) if count.open.iter().all(|group| group.counters.is_none()) => {
                Err(refused.clone())
            }
            _ => Ok(count),
        }
    }

    #[must_use]
    pub fn with(mut self, metrics: Vec<Metric>, meshes: Vec<Mesh>) -> Count {
        self.observed.metrics = metrics.iter().map(Metric::blank).collect();
        self.metrics = metrics;
        self.observed.meshes = meshes;
        self
    }

    /// Begins the first interval; times are relative to `origin_ns` of `CLOCK_MONOTONIC`.
    pub fn begin(&mut self, origin_ns: u64) {
        self.origin_ns = origin_ns;
        self.read_ns = clock::monotonic_ns();
        self.observed.begin_ns = self.read_ns.saturating_sub(origin_ns);
        for group in &mut self.open {
            if let Some(counters) = &mut group.counters {
                counters.read(&mut group.before);
            }
        }
    }

    pub fn keep_up(&mut self) {
        let now_ns = clock::monotonic_ns();
        if now_ns.saturating_sub(self.read_ns) < MAX_UNREAD_NS {
            return;
        }
        self.read_ns = now_ns;
        for group in &mut self.open {
            if let Some(counters) = &mut group.counters {
                counters.read(&mut group.now);
            }
        }
    }

    pub fn interval(&mut self) {
        self.read_ns = clock::monotonic_ns();
        self.observed.end_ns.push(self.read_ns.saturating_sub(self.origin_ns));
        for group in &mut self.open {
            if let Some(counters) = &mut group.counters {
                counters.read(&mut group.now);
            }
            for (at, (before, now)) in group.before.iter_mut().zip(&group.now).enumerate() {
                let event = &mut self.observed.events[group.first + at];
                // Counts of one-way counters wrap, times do not. A CPU that went away may take its
                // part with it.
                event.count.push(now.value.wrapping_sub(before.value));
                event.enabled_ns.push(now.enabled_ns.saturating_sub(before.enabled_ns));
                event.running_ns.push(now.running_ns.saturating_sub(before.running_ns));
                *before = *now;
            }
        }
        let at = self.observed.end_ns.len() - 1;
        for (number, metric) in self.metrics.iter().enumerate() {
            let value = metric.value(&self.observed, at);
            self.observed.metrics[number].values.push(value);
        }
    }

    pub fn observed(&self) -> &Observations {
        &self.observed
    }

    pub fn finish(self) -> Observations {
        self.observed
    }
}

pub fn totals(observed: &Observations) -> Vec<Counter> {
    let counter = |event: &ObservedEvent| {
        let (value, share) = event.total_scaled()?;
        Some(Counter {
            name: event.name.as_str().into(),
            value,
            unit: event.unit.as_str().into(),
            share,
        })
    };
    observed.events.iter().filter_map(counter).collect()
}

fn kind_of(on: &OnMesh) -> String {
    nodes::name_of(on.type_code).unwrap_or("XP").to_owned()
}

fn blank(event: &PmuEvent) -> ObservedEvent {
    ObservedEvent {
        name: event.name.clone(),
        pmu: event.pmu.clone(),
        node_id: event.on_mesh.as_ref().and_then(|on| on.node_id),
        node_kind: event
            .on_mesh
            .as_ref()
            .filter(|on| on.node_id.is_some())
            .map_or(String::new(), kind_of),
        unit: event.unit.clone(),
        scale: event.scale,
        ..ObservedEvent::default()
    }
}

/// Estimates the error of a scaled count: a count over the share s of the time is a sample of it.
pub fn error_of(event: &ObservedEvent, interval: usize) -> Option<f64> {
    let share = event.share(interval).filter(|share| *share > 0.0)?;
    if share >= 0.9999 {
        return Some(0.0);
    }
    // Only the intervals around it count: a run of hours holds many loads.
    const AROUND: usize = 32;
    let around = interval.saturating_sub(AROUND)..(interval + AROUND).min(event.count.len());
    let values: Vec<f64> = around.filter_map(|at| event.scaled(at)).collect();
    if values.len() < 3 {
        return None;
    }
    // Counts before scaling; counts of another program are scaled already.
    let seen = if event.is_scaled { share } else { 1.0 };
    let count = *event.count.get(interval)? as f64 * seen;
    let grain = count * (1.0 - share) / (share * share) * event.scale * event.scale;
    let differences: f64 = values.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum();
    let scatter = differences / (2.0 * (values.len() - 1) as f64);
    // Student's factor for few intervals, 1.96 for many.
    let freedom = (values.len() - 1) as f64;
    Some((1.96 + 2.4 / freedom + 5.9 / (freedom * freedom)) * grain.max(scatter).sqrt())
}

pub fn total_error_of(event: &ObservedEvent) -> Option<f64> {
    let errors: Option<Vec<f64>> = (0..event.count.len())
        .filter(|at| event.scaled(*at).is_some())
        .map(|at| error_of(event, at))
        .collect();
    Some(errors?.iter().map(|error| error * error).sum::<f64>().sqrt())
}

/// Ratio of scaled counts between intervals that points to bursts.
const BURSTY: f64 = 4.0;

/// Warns of bursts at the pace of the turns, which always meet the turns of the same events. Their
/// scaled counts are wrong and do not scatter, so this cannot be detected in full.
pub fn turns_warning(observed: &Observations) -> Option<String> {
    let took_turns = |event: &&ObservedEvent| {
        let (_, enabled, running) = event.total();
        running > 0 && (running as f64) < 0.99 * enabled as f64
    };
    let turning: Vec<&ObservedEvent> = observed.events.iter().filter(took_turns).collect();
    let factor = |event: &&ObservedEvent| {
        let values: Vec<f64> = (0..event.count.len()).filter_map(|at| event.scaled(at)).collect();
        let (least, most) = values.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), value| {
            (least.min(*value), most.max(*value))
        });
        (values.len() >= 4 && most >= 100.0).then(|| most / least.max(1.0))
    };
    let bursty = turning.iter().find(|event| factor(event).is_some_and(|factor| factor > BURSTY));
    let advice = "count fewer events at a time (daqmeter pmu plan), or compare with another perf_event_mux_interval_ms";
    match (bursty, turning.first()) {
        (Some(event), _) => Some(format!(
            "`{}` took turns, and its intervals differ by more than a factor of {BURSTY}: bursts may keep step with the turns, and \
             the scaled counts may be far off; {advice}",
            event.name
        )),
        (None, Some(event)) => Some(format!(
            "{} event(s) such as `{}` took turns: bursts that keep step with the turns would make their counts wrong, and cannot \
             be seen in them; {advice}",
            turning.len(),
            event.name
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Script;

    pub(crate) fn event(name: &str) -> PmuEvent {
        PmuEvent::new(name, "x")
    }

    fn reading(value: u64, enabled_ns: u64, running_ns: u64) -> Reading {
        Reading { value, enabled_ns, running_ns }
    }

    #[test]
    fn each_interval_holds_what_passed_in_it() {
        let rows = vec![reading(u64::MAX - 1, 10, 10), reading(5, 110, 60), reading(5, 210, 60)];
        let mut script = Script { readings: vec![("a".into(), rows)] };
        let set = EventSet { groups: vec![vec![event("a")], vec![event("b")]], warnings: vec![] };
        let mut count = Count::open(&set, "test", &mut script).unwrap();
        assert_eq!(count.refused[0].event, "b");
        count.begin(0);
        count.interval();
        count.interval();
        let observed = count.finish();
        let a = &observed.events[0];
        assert_eq!(
            (a.count.as_slice(), a.enabled_ns.as_slice(), a.running_ns.as_slice()),
            (&[7, 0][..], &[100, 100][..], &[50, 0][..])
        );
        assert_eq!((a.scaled(0), a.scaled(1)), (Some(14.0), None), "not counted is not zero");
        assert!(matches!(observed.events[1].status, EventStatus::NotSupported(_)));
        assert_eq!(observed.end_ns.len(), 2);
    }

    /// A counter of few bits, which its driver adds up at each reading.
    struct Narrow {
        bits: u32,
        seen: u64,
        total: u64,
        now: std::sync::Arc<std::sync::atomic::AtomicU64>,
    }

    impl Counters for Narrow {
        fn read(&mut self, into: &mut [Reading]) {
            let now = self.now.load(std::sync::atomic::Ordering::Relaxed);
            self.total += now.wrapping_sub(self.seen) & ((1 << self.bits) - 1);
            self.seen = now;
            into[0] = reading(self.total, now.max(1), now.max(1));
        }

        fn places(&self) -> Vec<u32> {
            vec![1]
        }
    }

    #[test]
    fn an_interval_longer_than_a_counters_wrap_loses_nothing() {
        let now = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
        let mut script = Script { readings: vec![("a".into(), vec![])] };
        let set = EventSet { groups: vec![vec![event("a")]], warnings: vec![] };
        let mut count = Count::open(&set, "test", &mut script).unwrap();
        count.open[0].counters =
            Some(Box::new(Narrow { bits: 8, seen: 0, total: 0, now: now.clone() }));
        count.begin(0);
        for step in 1..=10 {
            now.store(step * 200, std::sync::atomic::Ordering::Relaxed);
            count.read_ns = count.read_ns.saturating_sub(MAX_UNREAD_NS);
            count.keep_up();
        }
        count.interval();
        assert_eq!(count.observed().events[0].count, [2000]);
    }

    #[test]
    fn a_group_that_is_refused_ends_it_and_so_does_a_set_of_which_nothing_opens() {
        let mut script = Script { readings: vec![("a".into(), vec![])] };
        let group = EventSet { groups: vec![vec![event("a"), event("b")]], warnings: vec![] };
        assert_eq!(
            Count::open(&group, "", &mut script).err().map(|refused| refused.member),
            Some(1)
        );
        let alone = EventSet { groups: vec![vec![event("b")]], warnings: vec![] };
        assert!(Count::open(&alone, "", &mut script).is_err());
    }

    #[test]
    fn the_error_of_a_scaled_count_covers_the_truth_for_even_and_for_bursty_loads() {
        // A load in 50 slices an interval, of which every third is counted; the events of a slice
        // are random.
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        for burst in [0.0, 0.9] {
            let (mut covered, mut told) = (0, 0);
            for _ in 0..100 {
                let (mut event, mut truth) =
                    (ObservedEvent { scale: 1.0, ..ObservedEvent::default() }, Vec::new());
                for _ in 0..20 {
                    let (mut all, mut seen, mut ran) = (0.0, 0.0, 0);
                    for slice in 0..50 {
                        let rate = if random() < burst { 0.0 } else { 1000.0 / (1.0 - burst) };
                        // A count around the rate, with the scatter of a Poisson process.
                        let noise: f64 = (0..12).map(|_| random()).sum::<f64>() - 6.0;
                        let here = (rate + noise * rate.sqrt()).max(0.0).round();
                        all += here;
                        if slice % 3 == 0 {
                            seen += here;
                            ran += 1;
                        }
                    }
                    truth.push(all);
                    event.count.push(format!("{seen:.0}").parse().unwrap());
                    event.enabled_ns.push(50);
                    event.running_ns.push(ran);
                }
                for (at, truth) in truth.iter().enumerate() {
                    let error = error_of(&event, at).unwrap();
                    told += 1;
                    covered += u32::from((event.scaled(at).unwrap() - truth).abs() <= error);
                }
            }
            let share = f64::from(covered) / f64::from(told);
            assert!(share > 0.93, "burst {burst}: {share}");
        }
    }

    #[test]
    fn bursts_in_step_with_the_turns_are_warned_of() {
        let observed = |count: Vec<u64>, running: u64| Observations {
            events: vec![ObservedEvent {
                name: "a".into(),
                scale: 1.0,
                enabled_ns: vec![100; count.len()],
                running_ns: vec![running; count.len()],
                count,
                ..ObservedEvent::default()
            }],
            ..Observations::default()
        };
        assert_eq!(turns_warning(&observed(vec![5000, 0, 4000, 0], 100)), None);
        let even = turns_warning(&observed(vec![5000, 4800, 5100, 5000], 50)).unwrap();
        assert!(even.contains("cannot be seen in them"), "{even}");
        let bursts = turns_warning(&observed(vec![5000, 40, 5100, 5000], 50)).unwrap();
        assert!(bursts.contains("factor of 4"), "{bursts}");
    }

    #[test]
    fn what_ran_all_the_time_has_no_error_and_too_few_intervals_tell_none() {
        let whole = ObservedEvent {
            count: vec![5; 4],
            enabled_ns: vec![10; 4],
            running_ns: vec![10; 4],
            ..Default::default()
        };
        assert_eq!(error_of(&whole, 0), Some(0.0));
        let few = ObservedEvent {
            count: vec![5; 2],
            enabled_ns: vec![10; 2],
            running_ns: vec![5; 2],
            ..Default::default()
        };
        assert_eq!(error_of(&few, 0), None);
    }
}
