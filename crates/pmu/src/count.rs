//! Counting in intervals: a set of events is opened, and its counters are read at each end.

use std::ops::Range;
use std::time::{Duration, Instant};

use daqmeter_record::observed::{EventStatus, ObservedEvent, ObservedMetric};
use daqmeter_record::{Counter, Mesh, Observations};
use daqmeter_sys::clock;
use daqmeter_sys::perf::Reading;

use crate::event::{EventSet, PmuEvent};
use crate::groups::by_place;
use crate::mesh::nodes;
use crate::source::{Counters, Opener, Refused};

/// Longest time between two readings. The cycle counter of an arm-cmn wraps after 2^39 cycles, 122
/// s at 4.5 GHz. A driver without an interrupt for it sees a wrap only if it reads sooner
/// (drivers/perf/arm-cmn.c, `CMN_CC_INIT`).
const MAX_UNREAD: Duration = Duration::from_secs(60);

/// Events to count, named `what` in records, with their rates and the meshes of their nodes.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub what: String,
    pub set: EventSet,
    pub metrics: Vec<ObservedMetric>,
    pub meshes: Vec<Mesh>,
}

/// Counters of a group; `None` where the driver refused them.
type OpenGroup = Option<Box<dyn Counters>>;

pub struct Count {
    groups: Vec<(Range<usize>, OpenGroup)>,
    before: Vec<Reading>,
    now: Vec<Reading>,
    pub observed: Observations,
    origin_ns: u64,
    read_ns: u64,
    pub refused: Vec<Refused>,
}

/// Result of a pause within an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    Continue,
    EndInterval,
    EndCount,
}

impl Count {
    /// Opens the events. Single events that cannot be opened are recorded as not supported.
    ///
    /// # Errors
    /// Refuses a group of which a member cannot be opened, and events of which none can.
    pub fn open(selection: &Selection, opener: &mut dyn Opener) -> Result<Count, Refused> {
        let Selection { what, set, metrics, meshes } = selection;
        let mut events: Vec<ObservedEvent> = Vec::new();
        let (mut groups, mut refused) = (Vec::new(), Vec::new());
        for group in &set.groups {
            let first = events.len();
            events.extend(group.iter().map(blank));
            let counters = match opener.open(group) {
                Ok(counters) => Some(counters),
                Err(refused) if group.len() > 1 => return Err(refused),
                Err(why) => {
                    events[first].status = EventStatus::NotSupported(why.reason.clone());
                    refused.push(why);
                    None
                }
            };
            groups.push((first..events.len(), counters));
        }
        if let Some(why) = refused.first()
            && groups.iter().all(|(_, counters)| counters.is_none())
        {
            return Err(why.clone());
        }
        let readings = vec![Reading::default(); events.len()];
        let metrics = metrics.iter().flat_map(|metric| by_place(metric.clone(), &events));
        Ok(Count {
            groups,
            before: readings.clone(),
            now: readings,
            observed: Observations {
                what: what.clone(),
                metrics: metrics.collect(),
                meshes: meshes.clone(),
                events,
                ..Observations::default()
            },
            origin_ns: 0,
            read_ns: 0,
            refused,
        })
    }

    fn read(&mut self) {
        self.read_ns = clock::monotonic_ns();
        for (events, counters) in &mut self.groups {
            if let Some(counters) = counters {
                counters.read(&mut self.now[events.clone()]);
            }
        }
    }

    /// Begins the first interval; times are relative to `origin_ns` of `CLOCK_MONOTONIC`.
    pub fn begin(&mut self, origin_ns: u64) {
        self.read();
        self.origin_ns = origin_ns;
        self.observed.begin_ns = self.read_ns.saturating_sub(origin_ns);
        self.before.clone_from(&self.now);
    }

    /// Counts until `pause` ends the count, or `each` returns false after an interval. `pause` may
    /// wait up to the time that it gets; without a length it also ends each interval, and an
    /// interval that the end of the count cuts short is left out.
    pub fn run<E>(
        &mut self,
        length: Option<Duration>,
        mut pause: impl FnMut(Duration) -> Result<Pause, E>,
        mut each: impl FnMut(&Observations) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut due = Instant::now();
        loop {
            // Deadlines instead of pauses keep intervals from drifting.
            due += length.unwrap_or_default();
            let ended = loop {
                self.keep_up();
                let left = due.saturating_duration_since(Instant::now());
                if length.is_some() && left.is_zero() {
                    break Pause::EndInterval;
                }
                match pause(length.map_or(MAX_UNREAD, |_| left.min(MAX_UNREAD)))? {
                    Pause::Continue => {}
                    ended => break ended,
                }
            };
            let is_over = ended == Pause::EndCount;
            if is_over && length.is_none() {
                return Ok(());
            }
            self.interval();
            if !each(&self.observed)? || is_over {
                return Ok(());
            }
        }
    }

    fn keep_up(&mut self) {
        if u128::from(clock::monotonic_ns().saturating_sub(self.read_ns)) >= MAX_UNREAD.as_nanos() {
            self.read();
        }
    }

    pub fn interval(&mut self) {
        self.read();
        self.observed.end_ns.push(self.read_ns.saturating_sub(self.origin_ns));
        let readings = self.before.iter_mut().zip(&self.now);
        for (event, (before, now)) in self.observed.events.iter_mut().zip(readings) {
            // Counts of one-way counters wrap, times do not. A CPU that went away may take its
            // part with it.
            event.count.push(now.value.wrapping_sub(before.value));
            event.enabled_ns.push(now.enabled_ns.saturating_sub(before.enabled_ns));
            event.running_ns.push(now.running_ns.saturating_sub(before.running_ns));
            *before = *now;
        }
        self.observed.fill_metrics();
    }
}

pub fn totals(observed: &Observations) -> Vec<Counter> {
    let counter = |event: &ObservedEvent| {
        let (value, share) = event.total_scaled()?;
        let (name, unit) = (event.name.as_str().into(), event.unit.as_str().into());
        Some(Counter { name, value, unit, share })
    };
    observed.events.iter().filter_map(counter).collect()
}

fn blank(event: &PmuEvent) -> ObservedEvent {
    let on_node = event.on_mesh.as_ref().filter(|on| on.node_id.is_some());
    let kind = on_node.map(|on| nodes::name_of(on.type_code).unwrap_or("XP"));
    ObservedEvent {
        name: event.name.clone(),
        pmu: event.pmu.clone(),
        node_id: on_node.and_then(|on| on.node_id),
        node_kind: kind.unwrap_or_default().to_owned(),
        unit: event.unit.clone(),
        scale: event.scale,
        places: event.places(),
        ..ObservedEvent::default()
    }
    .at(&event.place, "")
}

/// Estimates the error of a scaled count: a count over the share s of the time is a sample of it.
/// perf rounds the values that it scales to a unit.
pub fn error_of(event: &ObservedEvent, interval: usize) -> Option<f64> {
    let share = event.share(interval).filter(|share| *share > 0.0)?;
    let rounding = if event.is_scaled && event.scale < 1.0 { event.scale / 2.0 } else { 0.0 };
    if share >= 0.9999 {
        return Some(rounding);
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
    let factor = 1.96 + 2.4 / freedom + 5.9 / (freedom * freedom);
    Some(factor * grain.max(scatter).sqrt() + rounding)
}

pub fn total_error_of(event: &ObservedEvent) -> Option<f64> {
    let counted = (0..event.count.len()).filter(|at| event.scaled(*at).is_some());
    let squares: Option<f64> = counted.map(|at| Some(error_of(event, at)?.powi(2))).sum();
    Some(squares?.sqrt())
}

/// Warns of events that took turns. Bursts at the pace of the turns always meet the turns of the
/// same events: their scaled counts are wrong and may not scatter.
pub fn turns_warning(observed: &Observations) -> Option<String> {
    let took_turns = |event: &&ObservedEvent| {
        let (_, enabled, running) = event.total();
        running > 0 && (running as f64) < 0.99 * enabled as f64
    };
    let first = observed.events.iter().find(took_turns)?;
    let count = observed.events.iter().filter(took_turns).count();
    Some(format!(
        "{count} event(s) such as `{}` took turns: bursts that keep step with the turns make their counts wrong; count fewer \
         events at a time (daqmeter pmu stat --plan), or compare with another perf_event_mux_interval_ms",
        first.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Script;

    fn selection(groups: &[&[&str]]) -> Selection {
        let group = |names: &&[&str]| names.iter().map(|name| PmuEvent::new(name, "x")).collect();
        let set = EventSet { groups: groups.iter().map(group).collect(), warnings: vec![] };
        Selection { set, ..Selection::default() }
    }

    fn reading(value: u64, enabled_ns: u64, running_ns: u64) -> Reading {
        Reading { value, enabled_ns, running_ns }
    }

    #[test]
    fn each_interval_holds_what_passed_in_it() {
        let rows = vec![reading(u64::MAX - 1, 10, 10), reading(5, 110, 60), reading(5, 210, 60)];
        let mut script = Script { readings: vec![("a".into(), rows)] };
        let mut count = Count::open(&selection(&[&["a"], &["b"]]), &mut script).unwrap();
        assert_eq!(count.refused[0].event, "b");
        count.begin(0);
        count.interval();
        count.interval();
        let observed = count.observed;
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
    }

    #[test]
    fn an_interval_longer_than_a_counters_wrap_loses_nothing() {
        let now = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
        let mut script = Script { readings: vec![("a".into(), vec![])] };
        let mut count = Count::open(&selection(&[&["a"]]), &mut script).unwrap();
        count.groups[0].1 = Some(Box::new(Narrow { bits: 8, seen: 0, total: 0, now: now.clone() }));
        count.begin(0);
        for step in 1..=10 {
            now.store(step * 200, std::sync::atomic::Ordering::Relaxed);
            count.read_ns = count.read_ns.saturating_sub(60_000_000_000);
            count.keep_up();
        }
        count.interval();
        assert_eq!(count.observed.events[0].count, [2000]);
    }

    #[test]
    fn a_group_that_is_refused_ends_it_and_so_does_a_set_of_which_nothing_opens() {
        let mut script = Script { readings: vec![("a".into(), vec![])] };
        let refused = Count::open(&selection(&[&["a", "b"]]), &mut script).err();
        assert_eq!(refused.map(|refused| refused.event).as_deref(), Some("b"));
        assert!(Count::open(&selection(&[&["b"]]), &mut script).is_err());
    }

    #[test]
    fn a_count_ends_with_its_last_interval_or_at_a_step() {
        let mut script = Script { readings: vec![("a".into(), vec![])] };
        let mut count = Count::open(&selection(&[&["a"]]), &mut script).unwrap();
        count.begin(0);
        let mut steps = [Pause::EndInterval, Pause::Continue, Pause::EndCount].into_iter();
        let step = |_| Ok::<_, ()>(steps.next().unwrap());
        count.run(None, step, |_| Ok(true)).unwrap();
        assert_eq!(count.observed.end_ns.len(), 1);
        let pause = |left| {
            std::thread::sleep(left);
            Ok::<_, ()>(Pause::Continue)
        };
        let short = Some(Duration::from_micros(1));
        count.run(short, pause, |observed| Ok(observed.end_ns.len() < 4)).unwrap();
        assert_eq!(count.observed.end_ns.len(), 4);
        count.run(Some(MAX_UNREAD), |_| Ok::<_, ()>(Pause::EndCount), |_| Ok(true)).unwrap();
        assert_eq!(count.observed.end_ns.len(), 5);
    }

    #[test]
    fn the_error_of_a_scaled_count_covers_the_truth_for_even_and_for_bursty_loads() {
        // A load in 50 slices an interval, of which every third is counted; the events of a slice
        // are random.
        let mut random = daqmeter_stats::Random::new(1);
        for burst in [0.0, 0.9] {
            let (mut covered, mut told) = (0, 0);
            for _ in 0..100 {
                let (mut event, mut truth) =
                    (ObservedEvent { scale: 1.0, ..ObservedEvent::default() }, Vec::new());
                for _ in 0..20 {
                    let (mut all, mut seen, mut ran) = (0.0, 0.0, 0);
                    for slice in 0..50 {
                        let rate =
                            if random.uniform() < burst { 0.0 } else { 1000.0 / (1.0 - burst) };
                        // A count around the rate, with the scatter of a Poisson process.
                        let here = (rate + random.normal() * rate.sqrt()).max(0.0).round();
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
    fn events_that_took_turns_are_warned_of() {
        let warning = |running| {
            let event = ObservedEvent {
                enabled_ns: vec![100],
                running_ns: vec![running],
                ..ObservedEvent::default()
            };
            turns_warning(&Observations { events: vec![event], ..Observations::default() })
        };
        assert_eq!(warning(100), None);
        assert!(warning(50).unwrap().contains("keep step with the turns"));
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
