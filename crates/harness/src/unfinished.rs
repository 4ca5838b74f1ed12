//! Unfinished records: the samples of a long point so far, kept before the point ends.
//!
//! The waiting thread asks. A lane hands its samples over between two of them, outside the time of
//! both. A point that ends within [`FIRST`] is not asked.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use daqmeter_record::{Lane, Outcome, RunRecord, Stage};
use daqmeter_sys::clock;

const FIRST: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_secs(5);
const ANSWERS: Duration = Duration::from_millis(200);
/// Divisor of the time for the cost of unfinished records. After a slow one the next one waits
/// longer.
const COST: u32 = 200;
const UNFINISHED: &str = "unfinished: written while the run went on; what came later is missing";

type Take = dyn Fn(&RunRecord) + Send + Sync;

#[derive(Clone, Default)]
pub struct Unfinished(Option<Arc<Take>>);

impl fmt::Debug for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unfinished").field(&self.0.is_some()).finish()
    }
}

impl Unfinished {
    /// Makes a receiver that calls `take` with each unfinished record, in the thread that measures.
    pub fn new(take: impl Fn(&RunRecord) + Send + Sync + 'static) -> Unfinished {
        Unfinished(Some(Arc::new(take)))
    }

    pub(crate) fn handover(&self, lanes: usize) -> Option<Handover> {
        let take = self.0.clone()?;
        Some(Handover {
            take,
            asked: AtomicU64::new(0),
            lanes: (0..lanes).map(|_| Mutex::default()).collect(),
        })
    }
}

pub(crate) struct Handover {
    take: Arc<Take>,
    asked: AtomicU64,
    lanes: Vec<Mutex<Vec<Stage>>>,
}

impl Handover {
    pub(crate) fn open_question(&self, answered: u64) -> Option<u64> {
        let asked = self.asked.load(Ordering::Relaxed);
        (asked != answered).then_some(asked)
    }

    pub(crate) fn put(&self, lane: usize, at: usize, stage: Stage) {
        let mut stages = self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner);
        let len = stages.len().max(at + 1);
        stages.resize_with(len, Stage::default);
        stages[at] = stage;
    }

    pub(crate) fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn record(
        &self,
        blank: &RunRecord,
        lanes: &[Lane],
        origin_ns: u64,
    ) -> Option<RunRecord> {
        let unfinished = Outcome::Failed(UNFINISHED.to_owned());
        let stages = |lane: &Mutex<Vec<Stage>>| {
            let stages = lane.lock().unwrap_or_else(PoisonError::into_inner);
            stages.clone()
        };
        let lanes: Vec<Lane> = lanes
            .iter()
            .zip(&self.lanes)
            .map(|(lane, given)| Lane {
                stages: stages(given),
                outcome: unfinished.clone(),
                ..lane.clone()
            })
            .collect();
        let mut all = lanes.iter().flat_map(|lane| &lane.stages);
        if all.all(|stage| stage.sample_ns.is_empty()) {
            return None;
        }
        let mut record = blank.clone();
        record.wall_ns = clock::monotonic_ns().saturating_sub(origin_ns);
        (record.origin_ns, record.outcome, record.lanes) = (origin_ns, unfinished, lanes);
        Some(record)
    }
}

pub(crate) struct Questions<'a> {
    handover: &'a Handover,
    blank: &'a RunRecord,
    lanes: &'a [Lane],
    origin_ns: u64,
    next: Cell<Instant>,
    is_asked: Cell<bool>,
}

impl<'a> Questions<'a> {
    pub(crate) fn new(
        handover: &'a Handover,
        blank: &'a RunRecord,
        lanes: &'a [Lane],
        origin_ns: u64,
    ) -> Questions<'a> {
        Questions {
            handover,
            blank,
            lanes,
            origin_ns,
            next: Cell::new(Instant::now() + FIRST),
            is_asked: Cell::new(false),
        }
    }

    pub(crate) fn due_in(&self) -> Duration {
        self.next.get().saturating_duration_since(Instant::now())
    }

    pub(crate) fn look(&self) {
        if self.due_in() > Duration::ZERO {
            return;
        }
        let began = Instant::now();
        if self.is_asked.replace(!self.is_asked.get()) {
            self.take();
            let took = began.elapsed();
            self.next.set(Instant::now() + EVERY.max(took * COST));
        } else {
            self.handover.ask();
            self.next.set(began + ANSWERS);
        }
    }

    fn take(&self) {
        let record = self.handover.record(self.blank, self.lanes, self.origin_ns);
        if let Some(record) = record {
            (self.handover.take)(&record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lanes_hand_over_becomes_a_record_that_says_that_it_is_unfinished() {
        let (send, receive) = std::sync::mpsc::channel();
        let unfinished = Unfinished::new(move |record| send.send(record.clone()).unwrap());
        let handover = unfinished.handover(2).unwrap();
        let lanes = ["a", "b"].map(|device| Lane { device: device.into(), ..Lane::default() });
        let blank = RunRecord::default();
        let questions = Questions::new(&handover, &blank, &lanes, 0);
        let look_now = || {
            questions.next.set(Instant::now());
            questions.look();
        };
        assert_eq!(handover.open_question(0), None);
        look_now();
        assert_eq!(handover.open_question(0), Some(1));
        assert_eq!(handover.open_question(1), None);
        look_now();
        assert!(receive.try_recv().is_err(), "no sample, no record");
        let stage = Stage { sample_ns: vec![7, 8], ..Stage::default() };
        handover.put(1, 1, stage);
        look_now();
        look_now();
        let record = receive.try_recv().unwrap();
        assert_eq!(record.lanes[1].stages[1].sample_ns, [7, 8]);
        assert!(record.lanes[0].stages.is_empty());
        assert!(record.outcome.reason().unwrap().starts_with("unfinished"));
        assert!(questions.due_in() > EVERY / 2);
    }

    #[test]
    fn lanes_are_not_asked_without_a_receiver() {
        assert!(Unfinished::default().handover(3).is_none());
    }
}
