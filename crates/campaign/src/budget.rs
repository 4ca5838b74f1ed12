//! Time of a plan: a moment after which no point begins, or an amount that its points share.

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::point::PlannedPoint;

/// How a budget is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Spend {
    /// Each point takes its own time; no point is begun after the budget. Where the first
    /// measurements of all points do not fit, these are shorter.
    #[default]
    Stop,
    /// Times of points are shares of the budget, so that every one is measured where it suffices
    /// for the shortest that makes sense; after it none is begun.
    Share,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// `None` has no end.
    pub time: Option<Duration>,
    pub spend: Spend,
}

const LIMIT_TIME: Duration = Duration::from_millis(40);
const LIMIT_TIMES: (Duration, Duration) = (Duration::from_millis(8), Duration::from_millis(150));
/// Seconds of a point beside its steps, for the forecast: 176 points of 10 ms took 8.5 s.
const BESIDE_S: f64 = 0.04;
/// Denominator of a limit's share of the budget: 40 ms of a minute.
const LIMIT_PART: f64 = 1500.0;

impl Budget {
    pub(crate) fn limit_time(&self) -> Duration {
        match self.shared() {
            Some(whole) => whole.div_f64(LIMIT_PART).clamp(LIMIT_TIMES.0, LIMIT_TIMES.1),
            None => LIMIT_TIME,
        }
    }

    fn shared(&self) -> Option<Duration> {
        self.time.filter(|_| self.spend == Spend::Share)
    }

    /// Returns about the time of all points; `None` if only a measurement can say it.
    pub(crate) fn forecast(&self, points: &[PlannedPoint]) -> Option<Duration> {
        let is_known = points.iter().all(|point| point.nominal_s() > 0.0);
        let each = points.iter().map(|point| point.nominal_s() + BESIDE_S);
        let own = Duration::try_from_secs_f64(each.sum()).ok().filter(|_| is_known);
        self.shared().or(own.map(|own| own.min(self.time.unwrap_or(own))))
    }

    /// Begins with these points, of which a shared budget has each, and another one the first
    /// measurement of each.
    pub(crate) fn begin<'a>(&self, points: impl Iterator<Item = &'a PlannedPoint>) -> Clock {
        let shared = self.shared();
        let nominal_s: Vec<f64> = points.map(PlannedPoint::nominal_s).collect();
        Clock {
            began: Instant::now(),
            end: shared.map(|whole| whole.mul_f64(1.0 - Clock::KEPT)).or(self.time),
            scale: if shared.is_some() { Clock::SCALE } else { (0.0, 1.0) },
            left: nominal_s.len() as f64,
            left_nominal_s: nominal_s.iter().sum(),
            done: 0.0,
            beside_s: 0.0,
            asked_s: 0.0,
            timed_s: 0.0,
        }
    }
}

/// Time of a plan. It is shared before each point, by the times of the points so far.
pub(crate) struct Clock {
    began: Instant,
    end: Option<Duration>,
    /// Smallest and largest factor on the time of a point.
    scale: (f64, f64),
    left: f64,
    left_nominal_s: f64,
    done: f64,
    /// Seconds of the finished points beside their timed parts.
    beside_s: f64,
    asked_s: f64,
    timed_s: f64,
}

impl Clock {
    const KEPT: f64 = 0.06;
    const SCALE: (f64, f64) = (0.02, 20.0);
    /// Seconds of preparation that are assumed before the first point.
    const GUESS_S: f64 = 0.12;

    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.began.elapsed() > end)
    }

    pub(crate) fn share(&self, point: &PlannedPoint) -> PlannedPoint {
        let times = self.scale(self.began.elapsed());
        times.map_or_else(|| point.clone(), |times| point.stretched(times))
    }

    /// Returns the time of one of the remaining points; `None` if the time has no end.
    pub(crate) fn each(&self) -> Option<Duration> {
        let left = self.end?.saturating_sub(self.began.elapsed());
        Some(left.div_f64(self.left.max(1.0)))
    }

    /// Returns the factor on the times of the remaining points; `None` if the time has no end. A
    /// point of several stages takes its time for each of them.
    fn scale(&self, elapsed: Duration) -> Option<f64> {
        let end_s = self.end?.as_secs_f64();
        let each_s = if self.done > 0.0 { self.beside_s / self.done } else { Self::GUESS_S };
        let is_known = self.timed_s > 0.0 && self.asked_s > 0.0;
        let stages = if is_known { self.timed_s / self.asked_s } else { 1.0 };
        let left_s = end_s - elapsed.as_secs_f64() - each_s * self.left;
        let nominal_s = (stages * self.left_nominal_s).max(1e-3);
        Some((left_s / nominal_s).clamp(self.scale.0, self.scale.1))
    }

    /// Counts a finished point: the time that it was asked to last, its whole time, and its timed
    /// part.
    pub(crate) fn spent(&mut self, point: &PlannedPoint, asked_s: f64, took_s: f64, timed_s: f64) {
        self.left -= 1.0;
        self.left_nominal_s -= point.nominal_s();
        self.done += 1.0;
        self.beside_s += (took_s - timed_s).max(0.0);
        if timed_s > 0.0 {
            self.asked_s += asked_s;
            self.timed_s += timed_s;
        }
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::StepPlan;
    use daqmeter_record::Workload;

    use super::*;

    fn point(engine: &str, ms: u64) -> PlannedPoint {
        PlannedPoint {
            study: "s".to_owned(),
            engine: engine.to_owned(),
            workload: Workload::new(engine),
            steps: StepPlan::Timed(Duration::from_millis(ms)),
            takes: None,
            extent: None,
            pin: Vec::new(),
            profile_hz: None,
            place: Default::default(),
            source: "p.toml".into(),
        }
    }

    #[test]
    fn what_a_point_took_beyond_its_share_is_missing_from_the_others() {
        let points = [(); 3].map(|()| point("null", 1000));
        let budget = Budget { time: Some(Duration::from_secs(10)), spend: Spend::Share };
        let mut clock = budget.begin(points.iter());
        // 9.4 s less three guesses of 0.12 s, for 3 s of nominal time.
        assert!((clock.scale(Duration::ZERO).unwrap() - 9.04 / 3.0).abs() < 1e-9);
        // Four stages for a second each, and a second of preparation.
        clock.spent(&points[0], 1.0, 5.0, 4.0);
        let left = clock.scale(Duration::from_secs(5)).unwrap();
        assert!((left - (4.4 - 2.0) / 8.0).abs() < 1e-9, "{left}");
        // Time is over: a point that still begins is short.
        assert_eq!(clock.scale(Duration::from_secs(60)), Some(0.02));
    }

    #[test]
    fn points_that_fit_last_as_long_as_they_say_and_others_are_shorter() {
        let time = Some(Duration::from_secs(10));
        let scale = |ms, time| {
            let budget = Budget { time, spend: Spend::Stop };
            budget.begin([(); 3].map(|()| point("null", ms)).iter()).scale(Duration::ZERO)
        };
        assert_eq!((scale(1000, None), scale(1000, time)), (None, Some(1.0)));
        // 10 s less three guesses of 0.12 s, for 300 s.
        assert!((scale(100_000, time).unwrap() - 9.64 / 300.0).abs() < 1e-9);
        let forecast = |time| Budget { time, spend: Spend::Stop }.forecast(&[point("null", 1960)]);
        let forecasts = [None, Some(Duration::from_secs(1))].map(forecast);
        assert_eq!(forecasts, [2, 1].map(|seconds| Some(Duration::from_secs(seconds))));
    }

    #[test]
    fn a_share_changes_how_long_a_point_lasts_and_not_what_it_is() {
        let mut passes = point("digitizer", 1);
        passes.steps = StepPlan::ByPass(28);
        passes.extent = Some("passes".to_owned());
        passes.workload = passes.workload.with("passes", 28_u64);
        let shorter = passes.stretched(0.5);
        assert_eq!(shorter.steps, StepPlan::ByPass(14));
        assert_eq!(shorter.workload.int("passes"), Ok(14));
        assert_eq!(passes.stretched(0.0001).steps, StepPlan::ByPass(MIN));
        let mut chain = point("readout", 1);
        chain.steps = StepPlan::ByStage(1);
        chain.extent = Some("seconds".to_owned());
        chain.workload = chain.workload.with("seconds", 0.5);
        assert_eq!(chain.stretched(2.0).workload.float("seconds"), Ok(1.0));
        assert_eq!(chain.stretched(2.0).steps, StepPlan::ByStage(1));
        assert_eq!(chain.stretched(2.0).workload.key(), chain.workload.key());
        let timed = point("null", 100).stretched(2.0);
        assert_eq!(timed.steps, StepPlan::Timed(Duration::from_millis(200)));
    }

    /// Fewer passes say nothing about the end of a wait.
    const MIN: u64 = 4;

    #[test]
    fn limits_take_their_part_of_a_shared_budget() {
        let limit_ms = |spend, seconds| {
            let time = Some(Duration::from_secs(seconds));
            Budget { time, spend }.limit_time().as_millis()
        };
        assert_eq!(limit_ms(Spend::Share, 60), 40);
        assert_eq!((limit_ms(Spend::Share, 1), limit_ms(Spend::Share, 900)), (8, 150));
        assert_eq!(limit_ms(Spend::Stop, 900), 40);
    }
}
