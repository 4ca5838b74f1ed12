//! Further rounds for points whose slices were all beside a busy sibling or without their CPU.

use std::time::Duration;

use daqmeter_record::RunRecord;
use daqmeter_stats::{Level, SliceTime, least_sibling};

use crate::point::PlannedPoint;

/// Fewest repetitions in the plan: it does not compare points with fewer.
const MIN_REPETITIONS: usize = 4;
/// Maximum time of all rounds, in times of the plan.
const MAX_TIMES: u32 = 2;

/// Slices of the repetitions of each point, by stage.
#[derive(Default)]
pub(crate) struct Again {
    points: Vec<RepeatedPoint>,
    due: Vec<usize>,
    end: Option<Duration>,
}

struct RepeatedPoint {
    /// Index of one of its repetitions in the plan.
    at: usize,
    repetitions: usize,
    stages: Vec<Vec<Vec<SliceTime>>>,
}

impl Again {
    /// Keeps the slices of a record of the point with that index.
    pub(crate) fn add(&mut self, points: &[PlannedPoint], at: usize, record: &RunRecord) {
        let key = |at: usize| (&points[at].study, &points[at].workload, &points[at].pin);
        let place = self.points.iter().position(|known| key(known.at) == key(at));
        let place = place.unwrap_or_else(|| {
            self.points.push(RepeatedPoint { at, repetitions: 0, stages: Vec::new() });
            self.points.len() - 1
        });
        let known = &mut self.points[place];
        known.repetitions += 1;
        for (at, stage) in record.lanes.iter().flat_map(|lane| &lane.stages).enumerate() {
            if known.stages.len() == at {
                known.stages.push(Vec::new());
            }
            if !stage.slices.is_empty() {
                known.stages[at].push(stage.slices().collect());
            }
        }
    }

    /// Returns the index of the next point to measure once more, until none needs it or twice the
    /// time of the plan is over.
    pub(crate) fn next(&mut self, elapsed: Duration) -> Option<usize> {
        let end = *self.end.get_or_insert(elapsed * MAX_TIMES);
        if self.due.is_empty() {
            let slices =
                self.points.iter().flat_map(|point| point.stages.iter().flatten().flatten());
            let least = least_sibling(slices);
            let is_shared = |stage: &Vec<Vec<SliceTime>>| {
                Level::of(stage, least, true).is_some_and(|level| level.is_shared)
            };
            let shared = self.points.iter().filter(|point| {
                point.repetitions >= MIN_REPETITIONS && point.stages.iter().any(is_shared)
            });
            self.due = shared.map(|point| point.at).collect();
        }
        if elapsed < end { self.due.pop() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use daqmeter_record::{Lane, Slices, Stage};

    use super::*;
    use crate::Plan;

    const PLAN: &str = "title = 't'\nrepetitions = 6\n[[sweep]]\nstudy = 'a'\nengine = 'null'\n[[sweep]]\nstudy = 'b'\nengine = 'null'\n";

    /// A repetition of ten slices whose sibling was idle or busy.
    fn repetition(is_busy: bool) -> RunRecord {
        let sibling_ns = vec![if is_busy { 2900 } else { 1500 }; 10];
        let [samples, gap_ns, chain_ns] = [1, 9000, 3000].map(|value| vec![value; 10]);
        let slices = Slices { samples, gap_ns, chain_ns, sibling_ns, lost: Vec::new() };
        let stage =
            Stage { ops_per_sample: 1, sample_ns: vec![300_000; 10], slices, ..Stage::default() };
        let mut record = RunRecord::default();
        record.lanes.push(Lane { stages: vec![stage], ..Lane::default() });
        record
    }

    #[test]
    fn rounds_go_on_for_points_that_were_always_shared_for_the_time_of_the_plan() {
        let points = Plan::parse(PLAN, "p.toml").unwrap().points;
        let mut again = Again::default();
        for (at, point) in points.iter().enumerate() {
            again.add(&points, at, &repetition(point.study == "b"));
        }
        let second = Duration::from_secs(1);
        for _ in 0..5 {
            let at = again.next(second).unwrap();
            assert_eq!(points[at].study, "b");
            again.add(&points, at, &repetition(false));
        }
        assert_eq!(again.next(second), None, "five repetitions are enough");
        let mut busy = Again::default();
        (0..points.len()).for_each(|at| busy.add(&points, at, &repetition(at % 2 == 0)));
        assert!(busy.next(second).is_some());
        assert_eq!(busy.next(2 * second), None);
    }
}
