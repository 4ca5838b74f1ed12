//! Observers count around the timed region.

use daqmeter_record::{Counter, Observations};
use daqmeter_sys::cpu_time;
use daqmeter_sys::perf::{CounterSource, EVENTS, Event, KernelCounters, OpenCounter, Reading};

pub trait Observer: Send {
    fn arm(&mut self) {}

    fn start(&mut self);

    fn stop(&mut self) -> Vec<Counter>;

    /// Returns counts over time relative to the release of the lanes; called once after
    /// [`Observer::stop`].
    fn observations(&mut self, _origin_ns: u64) -> Option<Observations> {
        None
    }

    fn trouble(&mut self) -> Option<String> {
        None
    }
}

/// Counters of `perf_event_open` of all our threads. Events that the host lacks are left out.
struct PerfObserver<S> {
    source: S,
    open: Vec<(&'static str, Box<dyn OpenCounter>, Reading)>,
}

impl<S: CounterSource> Observer for PerfObserver<S> {
    fn arm(&mut self) {
        // Threads inherit the counters that are open at their start.
        let open =
            |event: &Event| Some((event.name, self.source.open(*event).ok()?, Reading::default()));
        self.open = EVENTS.iter().filter_map(open).collect();
    }

    fn start(&mut self) {
        for (_, counter, before) in &mut self.open {
            *before = counter.read();
        }
    }

    fn stop(&mut self) -> Vec<Counter> {
        let read = |(name, mut counter, before): (&'static str, Box<dyn OpenCounter>, Reading)| {
            let after = counter.read();
            let passed = Reading {
                value: after.value.saturating_sub(before.value),
                enabled_ns: after.enabled_ns.saturating_sub(before.enabled_ns),
                running_ns: after.running_ns.saturating_sub(before.running_ns),
            };
            let (value, share) = passed.scaled()?;
            Some(Counter { name: name.into(), value, unit: String::new(), share })
        };
        std::mem::take(&mut self.open).into_iter().filter_map(read).collect()
    }
}

/// Page faults and context switches by getrusage, on every host and at any `perf_event_paranoid`.
#[derive(Debug, Default)]
struct UsageObserver {
    before: cpu_time::Usage,
}

impl Observer for UsageObserver {
    fn start(&mut self) {
        self.before = cpu_time::of_process();
    }

    fn stop(&mut self) -> Vec<Counter> {
        let (before, after) = (self.before, cpu_time::of_process());
        let faults = after.minor_faults.saturating_sub(before.minor_faults);
        let switches = after.context_switches.saturating_sub(before.context_switches);
        vec![Counter::count("minor-faults", faults), Counter::count("switches", switches)]
    }
}

pub fn standard() -> Vec<Box<dyn Observer>> {
    let counters = PerfObserver { source: KernelCounters, open: Vec::new() };
    vec![Box::new(UsageObserver::default()), Box::new(counters)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use daqmeter_sys::perf::Fake;

    #[test]
    fn only_what_passed_between_start_and_stop_counts_and_shares_are_kept() {
        let fake = Fake {
            readings: vec![
                (
                    "cycles",
                    Reading { value: 100, enabled_ns: 10, running_ns: 10 },
                    Reading { value: 300, enabled_ns: 30, running_ns: 20 },
                ),
                (
                    "instructions",
                    Reading::default(),
                    Reading { value: 0, enabled_ns: 9, running_ns: 0 },
                ),
            ],
        };
        let mut observer = PerfObserver { source: fake, open: Vec::new() };
        observer.arm();
        observer.start();
        let counters = observer.stop();
        assert_eq!(
            counters.len(),
            1,
            "an event that never ran is not counted, and not reported as zero"
        );
        assert_eq!((counters[0].value, counters[0].share), (400.0, 0.5));
    }
}
