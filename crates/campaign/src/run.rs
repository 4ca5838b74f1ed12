//! The only runner: measures points one after the other, and hands each record over before the next
//! point begins.
//!
//! Begin with [`Runner::run`]. Nothing here prints or writes: the caller keeps the records and
//! shows the progress ([`RunnerEvent`]).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use daqmeter_harness::{
    Context, Fault, Job, Limits, Observer, Settings, StepPlan, StopFlag, failed, guarded, measure,
    observe,
};
use daqmeter_record::RunRecord;

use crate::budget::{Budget, Spend};
use crate::engines::{ENGINES, engine};
use crate::point::PlannedPoint;
use crate::resume::left_to_measure;

/// Progress of a run. An error of its taker gives up the further points.
#[derive(Debug)]
pub enum RunnerEvent<'a> {
    /// Numbers of points to measure and of measured ones, about the time of those to measure, and
    /// the longest, before the first point.
    Planned {
        points: usize,
        known: usize,
        time: Option<Duration>,
        most: Option<Duration>,
    },
    Begins(&'a PlannedPoint),
    /// Record of a point. The receiver of the event writes it before it returns, if it is kept.
    Measured(Box<RunRecord>),
    /// A point that could not be measured.
    Refused(&'a PlannedPoint, Fault),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    pub points: usize,
    /// Number of points that began: fewer after a signal, or when the budget was over.
    pub begun: usize,
    /// Number of different points, and of those that did not begin once.
    pub different: usize,
    pub left_out: usize,
    pub refused: usize,
    pub timed_s: f64,
    /// Seconds in points as a whole: limits, preparation, timed steps, verification.
    pub measuring_s: f64,
}

impl Done {
    pub fn is_complete(&self) -> bool {
        self.begun == self.points
    }
}

type NewObserver = Box<dyn Fn() -> Box<dyn Observer> + Send + Sync>;

pub struct Runner {
    pub context: Context,
    pub stop: StopFlag,
    pub limits: Limits,
    /// Measures no limits.
    pub is_bare: bool,
    observers: Vec<NewObserver>,
}

impl Runner {
    pub fn new(context: Context) -> Runner {
        Runner {
            context,
            stop: StopFlag::default(),
            limits: Limits::new(Limits::USUAL_TIME),
            is_bare: false,
            observers: Vec::new(),
        }
    }

    pub fn observe(&mut self, new: impl Fn() -> Box<dyn Observer> + Send + Sync + 'static) {
        self.observers.push(Box::new(new));
    }

    pub fn settings(&self, steps: StepPlan, study: &str, pin: &[u32]) -> Settings {
        Settings {
            pin: pin.to_vec(),
            stop: self.stop.clone(),
            limits: self.limits.clone(),
            ..Settings::new(steps, study)
        }
    }

    /// Measures one point of several: one that cannot be opened is a failed record, too, and costs
    /// no other.
    pub fn one_of_several(&self, job: &Job, settings: &Settings) -> RunRecord {
        self.measured(job, settings)
            .unwrap_or_else(|fault| failed(job, settings, &self.context, fault))
    }

    /// Measures one point. A panic makes it a failed record.
    pub fn measured(&self, job: &Job, settings: &Settings) -> Result<RunRecord, Fault> {
        let load = job.load.iter().map(|new| new());
        let own = self.observers.iter().map(|new| new());
        let mut observers: Vec<_> = load.chain(observe::standard()).chain(own).collect();
        let limits = if self.is_bare { &[][..] } else { &ENGINES };
        guarded("the point", || measure(job, settings, &self.context, limits, &mut observers))
            .unwrap_or_else(|panic| Ok(failed(job, settings, &self.context, panic)))
    }

    /// Measures without limits and observers, for a record that is only looked at.
    pub fn quietly(&self, job: &Job, study: &str) -> Result<RunRecord, Fault> {
        let settings = self.settings(StepPlan::ByStage(1), study, &[]);
        guarded("the point", || measure(job, &settings, &self.context, &[], &mut [])).flatten()
    }

    /// Measures the points in their order until the budget is over or a signal came. Points with a
    /// common limit share it. Points of known records are not measured again, if these are of this
    /// host and this build.
    pub fn run<E>(
        &mut self,
        points: Vec<PlannedPoint>,
        budget: Budget,
        known: &[RunRecord],
        mut take: impl FnMut(RunnerEvent<'_>) -> Result<(), E>,
    ) -> Result<Done, E> {
        self.limits = Limits::new(budget.limit_time());
        let all = points.len();
        let Context { host, tool, .. } = &self.context;
        let points = left_to_measure(points, known, host, tool);
        let (known, time, most) = (all - points.len(), budget.forecast(&points), budget.time);
        take(RunnerEvent::Planned { points: points.len(), known, time, most })?;
        let is_first = first_of_each(&points);
        let different = is_first.iter().filter(|is_first| **is_first).count();
        let mut done =
            Done { points: points.len(), different, left_out: different, ..Done::default() };
        // Repetitions take what the first measurements leave.
        let is_timed = |at: usize| is_first[at] || budget.spend == Spend::Share;
        let timed = points.iter().enumerate().filter(|(at, _)| is_timed(*at));
        let mut clock = budget.begin(timed.map(|(_, point)| point));
        for (at, point) in points.iter().enumerate() {
            if self.stop.is_set() || clock.is_over() {
                break;
            }
            take(RunnerEvent::Begins(point))?;
            let shared = if is_timed(at) { clock.share(point) } else { point.clone() };
            let begin = Instant::now();
            let mut timed_s = 0.0;
            match self.planned(&shared, clock.each()) {
                Ok(record) => {
                    timed_s = record.wall_ns as f64 * 1e-9;
                    take(RunnerEvent::Measured(Box::new(record)))?;
                }
                Err(fault) => {
                    done.refused += 1;
                    take(RunnerEvent::Refused(&shared, fault))?;
                }
            }
            let took_s = begin.elapsed().as_secs_f64();
            if is_timed(at) {
                clock.spent(point, shared.nominal_s(), took_s, timed_s.min(took_s));
            }
            done.begun += 1;
            done.left_out -= usize::from(is_first[at]);
            done.timed_s += timed_s.min(took_s);
            done.measuring_s += took_s;
        }
        Ok(done)
    }

    fn planned(&self, point: &PlannedPoint, within: Option<Duration>) -> Result<RunRecord, Fault> {
        let settings = Settings {
            within,
            profile_hz: point.profile_hz,
            waive: true,
            ..self.settings(point.steps, &point.study, &point.pin)
        };
        let engine = engine(&point.engine).map_err(Fault::new)?;
        let job = guarded("the request", || engine.parse(&point.workload)).flatten()?;
        let mut record = self.one_of_several(&job, &settings);
        record.order = Some(point.place.clone());
        Ok(record)
    }
}

/// Tells of each point if it is the first with its parameters.
fn first_of_each(points: &[PlannedPoint]) -> Vec<bool> {
    let mut known = HashSet::new();
    let key = |point: &PlannedPoint| (point.study.clone(), point.workload.key(), point.pin.clone());
    points.iter().map(|point| known.insert(key(point))).collect()
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::{NullRequest, Request as _, Session, StageSpec, Tally};
    use daqmeter_record::{Host, Outcome};

    use super::*;
    use crate::Plan;

    #[derive(Default)]
    struct Kept {
        planned: (usize, usize),
        records: Vec<RunRecord>,
        refused: Vec<String>,
        stop: Option<(usize, StopFlag)>,
    }

    impl Kept {
        fn take(&mut self, event: RunnerEvent<'_>) {
            match event {
                RunnerEvent::Planned { points, known, .. } => self.planned = (points, known),
                RunnerEvent::Begins(_) => {}
                RunnerEvent::Measured(record) => self.records.push(*record),
                RunnerEvent::Refused(point, fault) => {
                    self.refused.push(format!("{}: {fault}", point.source));
                }
            }
            if self.stop.as_ref().is_some_and(|(after, _)| *after == self.records.len()) {
                self.stop.as_ref().unwrap().1.set();
            }
        }
    }

    fn runner() -> Runner {
        let allowed_cpus = daqmeter_sys::affinity::allowed_cpus().unwrap();
        let host = Host { allowed_cpus, ..Host::default() };
        Runner::new(Context { host: host.into(), ..Context::default() })
    }

    const PLAN: &str = "
title = 't'
order = 'given'
time = '1ms'
[[sweep]]
study = 'a'
engine = 'null'
[[sweep]]
study = 'b'
engine = 'convert'
workload = { samples = 100, function = 77 }
[[sweep]]
study = 'c'
engine = 'null'
repetitions = 3
";

    fn run(budget: Budget, known: &[RunRecord], watch: &mut Kept) -> Done {
        let mut runner = runner();
        if let Some((_, stop)) = &watch.stop {
            runner.stop = stop.clone();
        }
        let points = Plan::parse(PLAN, "p.toml").unwrap().points;
        let take = |event: RunnerEvent<'_>| {
            watch.take(event);
            Ok::<_, std::convert::Infallible>(())
        };
        let Ok(done) = runner.run(points, budget, known, take);
        done
    }

    #[test]
    fn points_are_measured_in_order_and_a_refused_one_costs_no_other() {
        let mut kept = Kept::default();
        let done = run(Budget::default(), &[], &mut kept);
        assert_eq!((done.points, done.begun, done.refused), (5, 5, 1));
        assert!(done.is_complete() && done.timed_s > 0.0 && done.timed_s <= done.measuring_s);
        let studies: Vec<&str> = kept.records.iter().map(|r| r.study.as_str()).collect();
        assert_eq!(studies, ["a", "c", "c", "c"]);
        assert!(kept.refused[0].starts_with("p.toml:10: sweep 2: "), "{:?}", kept.refused);
        let order = kept.records[1].order.clone().unwrap();
        assert_eq!((order.position, order.of), (2, 5));
        assert!(kept.records.iter().all(|record| record.outcome == Outcome::Ok));
    }

    /// Fails, or panics, in the call of that name.
    struct Faulty(&'static str);

    impl Faulty {
        fn in_(&self, call: &str) -> Result<(), Fault> {
            assert!(self.0 != call, "a panic in {call}");
            Ok(())
        }
    }

    impl Session for Faulty {
        fn device(&self) -> String {
            "faulty".into()
        }
        fn stages(&self) -> Vec<StageSpec> {
            vec![StageSpec::new("work", 1, 1)]
        }
        fn prepare(&mut self) -> Result<(), Fault> {
            Ok(())
        }
        fn step(&mut self, _: usize, _: u64) -> Result<(), Fault> {
            self.in_("step")
        }
        fn verify(&mut self) -> Result<(), Fault> {
            self.in_("verify")
        }
        fn tally(&mut self) -> Tally {
            Tally::default()
        }
    }

    /// Regression: EBUSY at one point ended a campaign after 12 of 28 points.
    #[test]
    fn a_point_that_cannot_be_opened_or_panics_fails_alone_and_names_the_place() {
        let runner = runner();
        for (at, says) in [
            ("busy", "Device or resource busy"),
            ("open", "run.rs:"),
            ("step", "run.rs:"),
            ("verify", "run.rs:"),
        ] {
            let opener = move || {
                Faulty(at).in_("open")?;
                match at {
                    "busy" => Err(Fault::new("Device or resource busy")),
                    _ => Ok(vec![Box::new(Faulty(at)) as Box<dyn Session>]),
                }
            };
            let null = || NullRequest {}.job().unwrap();
            let jobs = [null(), Job { opener: Box::new(opener), ..null() }, null()];
            let settings = runner.settings(StepPlan::ByStage(3), "test", &[]);
            let first = runner.measured(&jobs[1], &settings);
            assert_eq!(first.is_err(), at == "busy", "{first:?}");
            let records = jobs.map(|job| runner.one_of_several(&job, &settings));
            let [before, failed, after] = records.map(|record| record.outcome);
            assert_eq!((before, after), (Outcome::Ok, Outcome::Ok), "{at}");
            assert!(matches!(&failed, Outcome::Failed(why) if why.contains(says)), "{failed:?}");
        }
    }

    #[test]
    fn the_first_measurement_of_each_point_is_known_from_its_repetitions() {
        let points = Plan::parse(PLAN, "p.toml").unwrap().points;
        assert_eq!(first_of_each(&points), [true, true, true, false, false]);
        let done = run(Budget::default(), &[], &mut Kept::default());
        assert_eq!((done.different, done.left_out), (3, 0));
    }

    #[test]
    fn what_is_known_is_not_measured_again() {
        let mut first = Kept::default();
        run(Budget::default(), &[], &mut first);
        let mut second = Kept::default();
        let done = run(Budget::default(), &first.records[..3], &mut second);
        assert_eq!((second.planned, done.points), ((2, 3), 2));
        assert_eq!(second.records.len(), 1);
    }

    #[test]
    fn no_point_is_begun_after_a_signal_or_after_the_budget() {
        let mut kept = Kept { stop: Some((2, StopFlag::default())), ..Kept::default() };
        let done = run(Budget::default(), &[], &mut kept);
        assert_eq!((kept.records.len(), done.begun, done.is_complete()), (2, 3, false));
        let budget = |spend| Budget { time: Some(Duration::ZERO), spend };
        // A shared budget ends the run, too: the record is kept, and the missing points are
        // reported.
        for spend in [Spend::Stop, Spend::Share] {
            let done = run(budget(spend), &[], &mut Kept::default());
            assert_eq!((done.begun, done.is_complete()), (0, false), "{spend:?}");
            assert_eq!((done.different, done.left_out), (3, 3), "{spend:?}");
        }
    }
}
