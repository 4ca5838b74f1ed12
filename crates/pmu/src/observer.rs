use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use daqmeter_harness::Observer;
use daqmeter_record::{Counter, Mesh, Observations};

use crate::count::{Count, MAX_UNREAD, totals};
use crate::event::EventSet;
use crate::groups::Metric;
use crate::source::Opener;

/// Counts a set of events around every point, in intervals. Its own thread sleeps in between.
pub struct PmuObserver<O: Opener + Send> {
    what: String,
    set: EventSet,
    metrics: Vec<Metric>,
    meshes: Vec<Mesh>,
    interval: Duration,
    opener: O,
    running: Option<Running>,
    last: Option<Observations>,
    trouble: Option<String>,
}

struct Running {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    count: Option<Count>,
    is_over: bool,
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<O: Opener + Send> PmuObserver<O> {
    /// Makes an observer of the set, named `what` in records, with the given interval.
    pub fn new(
        what: &str,
        set: EventSet,
        metrics: Vec<Metric>,
        meshes: Vec<Mesh>,
        interval: Duration,
        opener: O,
    ) -> Self {
        PmuObserver {
            what: what.to_owned(),
            set,
            metrics,
            meshes,
            interval,
            opener,
            running: None,
            last: None,
            trouble: None,
        }
    }
}

impl<O: Opener + Send> Observer for PmuObserver<O> {
    fn counts_all(&self) -> bool {
        true
    }

    fn arm(&mut self) {
        self.running = None;
        match Count::open(&self.set, &self.what, &mut self.opener) {
            Ok(count) => {
                let count = Some(count.with(self.metrics.clone(), self.meshes.clone()));
                let shared = Shared {
                    state: Mutex::new(State { count, is_over: false }),
                    changed: Condvar::new(),
                };
                self.running = Some(Running { shared: Arc::new(shared), thread: None });
            }
            Err(refused) => self.trouble = Some(refused.to_string()),
        }
    }

    fn start(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        if let Some(count) = &mut lock(&running.shared).count {
            count.begin(0);
        }
        let (shared, interval) = (running.shared.clone(), self.interval);
        let work = move || {
            let mut state = lock(&shared);
            let mut began = Instant::now();
            while !state.is_over {
                let left = interval.saturating_sub(began.elapsed());
                let (woken, _) = shared
                    .changed
                    .wait_timeout(state, left.min(MAX_UNREAD))
                    .unwrap_or_else(PoisonError::into_inner);
                state = woken;
                let is_whole = began.elapsed() >= interval;
                match &mut *state {
                    State { is_over: true, .. } | State { count: None, .. } => {}
                    State { count: Some(count), .. } if is_whole => {
                        count.interval();
                        began = Instant::now();
                    }
                    State { count: Some(count), .. } => count.keep_up(),
                }
            }
        };
        running.thread = std::thread::Builder::new().name("observe".to_owned()).spawn(work).ok();
    }

    fn stop(&mut self) -> Vec<Counter> {
        let Some(mut running) = self.running.take() else {
            return Vec::new();
        };
        let count = {
            let mut state = lock(&running.shared);
            state.is_over = true;
            if let Some(count) = &mut state.count {
                count.interval();
            }
            state.count.take()
        };
        running.shared.changed.notify_all();
        if let Some(thread) = running.thread.take() {
            let _ = thread.join();
        }
        self.last = count.map(Count::finish);
        self.last.as_ref().map(totals).unwrap_or_default()
    }

    fn observations(&mut self, origin_ns: u64) -> Option<Observations> {
        let mut observed = self.last.take()?;
        observed.begin_ns = observed.begin_ns.saturating_sub(origin_ns);
        observed.end_ns.iter_mut().for_each(|end| *end = end.saturating_sub(origin_ns));
        Some(observed)
    }

    fn trouble(&mut self) -> Option<String> {
        self.trouble.take().map(|why| format!("nothing was observed: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::PmuEvent;
    use crate::source::fake::Script;
    use daqmeter_sys::perf::Reading;

    fn observer(readings: Vec<Reading>) -> PmuObserver<Script> {
        let set = EventSet { groups: vec![vec![PmuEvent::new("a", "x")]], warnings: vec![] };
        let script = Script { readings: vec![("a".into(), readings)] };
        PmuObserver::new("test", set, vec![], vec![], Duration::from_secs(3600), script)
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
            let observed = observer.observations(0).unwrap();
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
        assert!(observer.stop().is_empty() && observer.observations(0).is_none());
        assert!(observer.trouble().unwrap().contains("not in the script"));
    }
}
