//! Observers count around the timed region.

use daqmeter_record::{Counter, Sections};
use daqmeter_sys::perf::{EVENTS, Event, OpenCounter, Reading, open_counter};
use daqmeter_sys::{SysError, cpu_time};

pub trait Observer: Send {
    fn arm(&mut self) {}

    fn start(&mut self);

    fn stop(&mut self) -> Vec<Counter>;

    /// Returns sections of the record, with times relative to the release of the lanes; called once
    /// after [`Observer::stop`].
    fn sections(&mut self, _origin_ns: u64) -> Sections {
        Sections::default()
    }

    fn trouble(&mut self) -> Option<String> {
        None
    }
}

/// Counters of `perf_event_open` of all our threads. Events that the host lacks are left out.
struct PerfObserver {
    source: fn(Event) -> Result<Box<dyn OpenCounter>, SysError>,
    open: Vec<(&'static str, Box<dyn OpenCounter>, Option<Reading>)>,
}

impl Observer for PerfObserver {
    fn arm(&mut self) {
        // Threads inherit the counters that are open at their start.
        let open = |event: &Event| Some((event.name, (self.source)(*event).ok()?, None));
        self.open = EVENTS.iter().filter_map(open).collect();
    }

    fn start(&mut self) {
        for (_, counter, before) in &mut self.open {
            *before = counter.read();
        }
    }

    fn stop(&mut self) -> Vec<Counter> {
        let read = |(name, mut counter, before): (&str, Box<dyn OpenCounter>, Option<Reading>)| {
            let (value, share) = counter.read()?.since(before?).scaled()?;
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
    let counters = PerfObserver { source: open_counter, open: Vec::new() };
    vec![Box::new(UsageObserver::default()), Box::new(counters)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const READINGS: [(&str, [Reading; 2]); 2] = [
        (
            "cycles",
            [
                Reading { value: 100, enabled_ns: 10, running_ns: 10 },
                Reading { value: 300, enabled_ns: 30, running_ns: 20 },
            ],
        ),
        (
            "instructions",
            [
                Reading { value: 0, enabled_ns: 0, running_ns: 0 },
                Reading { value: 0, enabled_ns: 9, running_ns: 0 },
            ],
        ),
    ];

    struct FakeCounter(std::array::IntoIter<Reading, 2>);

    impl OpenCounter for FakeCounter {
        fn read(&mut self) -> Option<Reading> {
            self.0.next()
        }
    }

    fn fake(event: Event) -> Result<Box<dyn OpenCounter>, SysError> {
        let absent = || SysError {
            call: event.name.to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        let known = READINGS.into_iter().find(|(name, _)| *name == event.name);
        let (_, readings) = known.ok_or_else(absent)?;
        Ok(Box::new(FakeCounter(readings.into_iter())))
    }

    #[test]
    fn only_what_passed_between_start_and_stop_counts_and_shares_are_kept() {
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
