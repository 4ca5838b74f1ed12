use std::convert::Infallible;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use daqmeter_harness::Observer;
use daqmeter_record::{Counter, Observations, Sections};

use crate::count::{Count, Pause, Selection, totals};
use crate::source::Opener;

/// Counts a set of events around every point, in intervals. Its own thread sleeps in between.
pub struct PmuObserver<O: Opener + Send> {
    selection: Selection,
    interval: Duration,
    opener: O,
    armed: Option<Count>,
    running: Option<(Sender<()>, JoinHandle<Count>)>,
    last: Option<Observations>,
    trouble: Option<String>,
}

impl<O: Opener + Send> PmuObserver<O> {
    pub fn new(selection: Selection, interval: Duration, opener: O) -> Self {
        PmuObserver {
            selection,
            interval,
            opener,
            armed: None,
            running: None,
            last: None,
            trouble: None,
        }
    }
}

impl<O: Opener + Send> Observer for PmuObserver<O> {
    fn arm(&mut self) {
        self.running = None;
        match Count::open(&self.selection, &mut self.opener) {
            Ok(count) => self.armed = Some(count),
            Err(refused) => self.trouble = Some(refused.to_string()),
        }
    }

    fn start(&mut self) {
        let Some(mut count) = self.armed.take() else {
            return;
        };
        count.begin(0);
        let (stop, stopped) = channel();
        let interval = self.interval;
        let work = move || {
            let pause = |left| match stopped.recv_timeout(left) {
                Err(RecvTimeoutError::Timeout) => Ok(Pause::Continue),
                _ => Ok::<_, Infallible>(Pause::EndCount),
            };
            let Ok(()) = count.run(Some(interval), pause, |_| Ok(true));
            count
        };
        match std::thread::Builder::new().name("observe".to_owned()).spawn(work) {
            Ok(thread) => self.running = Some((stop, thread)),
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    fn stop(&mut self) -> Vec<Counter> {
        self.last = self.running.take().and_then(|(stop, thread)| {
            drop(stop);
            thread.join().ok().map(|count| count.observed)
        });
        self.last.as_ref().map(totals).unwrap_or_default()
    }

    fn sections(&mut self, origin_ns: u64) -> Sections {
        let Some(mut observed) = self.last.take() else {
            return Sections::default();
        };
        observed.begin_ns = observed.begin_ns.saturating_sub(origin_ns);
        observed.end_ns.iter_mut().for_each(|end| *end = end.saturating_sub(origin_ns));
        Sections { observed: Some(Box::new(observed)), ..Sections::default() }
    }

    fn trouble(&mut self) -> Option<String> {
        self.trouble.take().map(|why| format!("no counters were read: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventSet, PmuEvent};
    use crate::source::fake::Script;
    use daqmeter_sys::perf::Reading;

    fn observer(readings: Vec<Reading>) -> PmuObserver<Script> {
        let set = EventSet { groups: vec![vec![PmuEvent::new("a", "x")]], warnings: vec![] };
        let script = Script { readings: vec![("a".into(), readings)] };
        let selection = Selection { set, ..Selection::default() };
        PmuObserver::new(selection, Duration::from_secs(3600), script)
    }

    #[test]
    fn a_point_shorter_than_an_interval_has_one() {
        let reading = |value| Reading { value, enabled_ns: value, running_ns: value };
        let mut observer = observer(vec![reading(10), reading(25)]);
        for _ in 0..2 {
            observer.arm();
            observer.start();
            let counters = observer.stop();
            assert_eq!((counters.len(), counters[0].value, counters[0].share), (1, 15.0, 1.0));
            let observed = observer.sections(0).observed.unwrap();
            assert_eq!(
                (observed.end_ns.len(), observed.events[0].count.as_slice()),
                (1, &[15][..])
            );
        }
    }

    #[test]
    fn what_cannot_be_opened_is_told_and_the_measurement_goes_on() {
        let mut observer = observer(vec![]);
        observer.opener.readings.clear();
        observer.arm();
        observer.start();
        assert!(observer.stop().is_empty() && observer.sections(0) == Sections::default());
        assert!(observer.trouble().unwrap().contains("not in the script"));
    }
}
