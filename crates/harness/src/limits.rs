//! Limits of the stages of a run: given, or measured before the run and after it. The best of the
//! measurements counts: a host is slower at times, and never faster than its limit.
//!
//! A limit is a rate by the definition of a stage's rate, sustained, see [`Stage::rate`]. Before
//! the run it is measured with all lanes, and after it with as many as did the stage at one time:
//! lanes that wait for their boards seldom work together. A limit engine that failed its
//! verification gives no limit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use daqmeter_record::{Limit, LimitBasis, RunRecord, Stage};
use daqmeter_stats::{Rate, share};

use crate::settings::{Settings, StepPlan, cpu_list};
use crate::{Engine, Fault, Job, LimitSpec, Session, locked};

/// Rate of a limit by one measurement, or the reason for which there is none.
type Measured = Result<Rate, String>;

/// Maximum number of measurements of a limit, each for half of the limits' time: before and after
/// its first run, and again if a stage is above it. Of ten boards 6 of 6 runs were above a limit
/// that was measured once.
const MAX_MEASUREMENTS: usize = 4;

/// Limits of an invocation, which points of equal placement share. Clones have the same.
#[derive(Clone, Debug)]
pub struct Limits {
    pub time: Duration,
    known: Arc<Mutex<BTreeMap<String, Vec<Measured>>>>,
}

impl Limits {
    /// Time of a limit's measurements outside of plans.
    pub const USUAL_TIME: Duration = Duration::from_millis(150);

    /// Measures each limit before its first run and after it, for half of `time` each.
    pub fn new(time: Duration) -> Self {
        Limits { time, known: Arc::default() }
    }

    /// Returns the best rate of a limit, with one more measurement if fewer than `most` were made.
    /// A failure is kept, too, and not tried again.
    fn rate(
        &self,
        key: String,
        most: usize,
        measure: impl FnOnce() -> Result<Measured, Fault>,
    ) -> Result<Measured, Fault> {
        let known = || locked(&self.known);
        let mut rates = known().get(&key).cloned().unwrap_or_default();
        if rates.len() < most && rates.iter().all(Result::is_ok) {
            rates.push(measure()?);
            known().insert(key, rates.clone());
        }
        Ok(best(&rates).expect("at least one measurement"))
    }
}

/// Returns the highest rate, or the first failure; `None` if nothing was measured.
fn best(rates: &[Measured]) -> Option<Measured> {
    let rates: Result<Vec<Rate>, String> = rates.iter().cloned().collect();
    rates.map(|rates| rates.into_iter().max_by(|a, b| a.per_s.total_cmp(&b.per_s))).transpose()
}

/// Limits that the stages of a run name, with their measurements.
pub(crate) struct Sought<'a> {
    engines: &'a [Engine],
    settings: &'a Settings,
    /// Measures one point of a limit's engine, without limits and observers.
    alone: &'a dyn Fn(&Job, &Settings) -> Result<RunRecord, Fault>,
    all: Vec<(LimitSpec, Vec<Measured>)>,
}

impl<'a> Sought<'a> {
    /// Measures each limit with as many lanes as sessions, unless an earlier point did.
    pub(crate) fn before(
        engines: &'a [Engine],
        sessions: &[Box<dyn Session>],
        settings: &'a Settings,
        alone: &'a dyn Fn(&Job, &Settings) -> Result<RunRecord, Fault>,
    ) -> Result<Sought<'a>, Fault> {
        let mut sought = Sought { engines, settings, alone, all: Vec::new() };
        for spec in sessions.iter().flat_map(|all| all.stages()).filter_map(|stage| stage.limit) {
            if sought.all.iter().all(|(known, _)| known.name() != spec.name()) {
                sought.all.push((spec, Vec::new()));
                sought.measure(sought.all.len() - 1, sessions.len(), 1)?;
            }
        }
        Ok(sought)
    }

    /// Measures each limit once more, and again while a stage is above it.
    pub(crate) fn after(&mut self, record: &RunRecord) -> Result<(), Fault> {
        for at in 0..self.all.len() {
            let lanes = at_once(&stages(record, self.all[at].0.name()));
            for most in 2..=MAX_MEASUREMENTS {
                self.measure(at, lanes, most)?;
                let limit = self.limit(at).and_then(Result::ok);
                if limit.is_none_or(|limit| !is_exceeded(record, &limit)) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn measure(&mut self, at: usize, lanes: usize, most: usize) -> Result<(), Fault> {
        let Sought { engines, settings, alone, all } = self;
        let (LimitSpec::Measured { workload, .. }, rates) = &mut all[at] else { return Ok(()) };
        let engine = engines.iter().find(|engine| engine.name == workload.kind);
        let Some(engine) = engine.filter(|_| !settings.stop.is_set()) else { return Ok(()) };
        let mut workload = workload.clone();
        if engine.parameters().iter().any(|parameter| parameter.name == "lanes") {
            workload = workload.with("lanes", lanes as u64);
        }
        let job = engine.parse(&workload)?;
        let key = format!("{} on {}", job.workload, cpu_list(&settings.pin));
        rates.push(settings.limits.rate(key, most, || {
            let plan = StepPlan::Timed(settings.limits.time / 2);
            let settings = Settings { plan, profile_hz: None, ..Settings::clone(settings) };
            Ok(best_rate(&alone(&job, &settings)?))
        })?);
        Ok(())
    }

    /// Returns a limit, or the reason for which there is none; `None` if nothing measured it.
    fn limit(&self, at: usize) -> Option<Result<Limit, String>> {
        let (spec, rates) = &self.all[at];
        let (name, how, scale) = match spec {
            LimitSpec::Given(limit) => return Some(Ok(limit.clone())),
            LimitSpec::Measured { name, how, scale, .. } => (name, how, scale),
        };
        Some(best(rates)?.map(|rate| {
            let rate = rate.times(*scale);
            let (low_bytes_per_s, high_bytes_per_s) = rate.interval.unzip();
            let basis = LimitBasis::Sustained;
            let limit = Limit::given(name, rate.per_s, how);
            Limit { basis, low_bytes_per_s, high_bytes_per_s, ..limit }
        }))
    }

    /// Writes the limits into the record, and warnings of those that are missing.
    pub(crate) fn book(&self, record: &mut RunRecord) {
        for (at, (spec, _)) in self.all.iter().enumerate() {
            match self.limit(at) {
                Some(Ok(limit)) => record.limits.push(limit),
                Some(Err(why)) => record.warnings.push(format!(
                    "the limit `{}` could not be measured ({why}): stages are not compared with it",
                    spec.name()
                )),
                None => {}
            }
        }
    }
}

fn stages<'a>(record: &'a RunRecord, limit: &str) -> Vec<&'a Stage> {
    let all = record.lanes.iter().flat_map(|lane| &lane.stages);
    all.filter(|stage| stage.limit.as_deref() == Some(limit)).collect()
}

fn is_exceeded(record: &RunRecord, limit: &Limit) -> bool {
    let rates = stages(record, &limit.name).into_iter().filter_map(Stage::rate);
    rates.filter_map(|rate| share(rate, limit.rate())).any(|share| share.is_above)
}

/// Returns the number of lanes that did these stages at one time, 1 at least: the sum of their
/// times over the time from the first begin to the last end.
fn at_once(stages: &[&Stage]) -> usize {
    let first_ns = stages.iter().map(|stage| stage.start_ns).min().unwrap_or(0);
    let last_ns = stages.iter().map(|stage| stage.end_ns).max().unwrap_or(0);
    let own_ns: u128 =
        stages.iter().flat_map(|stage| &stage.sample_ns).map(|ns| u128::from(*ns)).sum();
    let all_ns = u128::from(last_ns.saturating_sub(first_ns)).max(1);
    usize::try_from((own_ns + all_ns / 2) / all_ns).unwrap_or(1).clamp(1, stages.len().max(1))
}

/// Returns the limit in the record of a limit engine. It is the fastest stage, as the mean over the
/// lanes of their sustained rates.
///
/// # Errors
/// Returns the reason if the work of the record was not done and verified.
pub fn best_rate(record: &RunRecord) -> Result<Rate, String> {
    if let Some(reason) = record.outcome.reason() {
        return Err(reason.to_owned());
    }
    let stages = record.lanes.iter().map(|lane| lane.stages.len()).min().unwrap_or(0);
    let rate = |at: usize| {
        let rates = record.lanes.iter().map(|lane| lane.stages[at].rate());
        Rate::mean_of(&rates.collect::<Option<Vec<Rate>>>()?).map(Ok)
    };
    let rates: Vec<Measured> = (0..stages).filter_map(rate).collect();
    best(&rates).unwrap_or_else(|| Err("it moved nothing".to_owned()))
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{EngineInfo, Lane, Outcome, Workload};
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::fixtures::Fake;
    use crate::{Context, Request, StageSpec, measure};

    /// Copies eight bytes; leaves wrong ones where a test asks for them.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    struct Plain {
        wrong: bool,
        #[serde(default)]
        lanes: u64,
    }

    impl Request for Plain {
        const KIND: &'static str = "plain";
        const DESCRIPTION: &'static str = "copies for a test";

        fn example() -> Plain {
            Plain { wrong: false, lanes: 1 }
        }

        fn job(&self) -> Result<Job, Fault> {
            Ok(Job::new(self, "test", |request| Ok(vec![session(None, request.wrong)])))
        }
    }

    fn session(limit: Option<LimitSpec>, wrong: bool) -> Box<dyn Session> {
        let step = |operations| {
            std::hint::black_box((0..operations).sum::<u64>());
            Ok(())
        };
        let verified = if wrong { Err(Fault::new("byte 3 differs")) } else { Ok(()) };
        Box::new(Fake {
            stage: StageSpec { limit, ..StageSpec::new("work", 8, 8) },
            step,
            verified,
        })
    }

    fn spec(wrong: bool) -> LimitSpec {
        LimitSpec::Measured {
            name: "plain".into(),
            how: "a test".into(),
            workload: Plain { wrong, lanes: 1 }.workload(),
            scale: 2.0,
        }
    }

    /// Runs an engine whose limit is that of another, which may fail its verification.
    fn run(wrong: bool) -> RunRecord {
        let spec = spec(wrong);
        let job = Job::untyped(Workload::new("work"), "test", move || {
            Ok(vec![session(Some(spec.clone()), false)])
        });
        let limits = Limits::new(Duration::from_micros(200));
        let settings = Settings { limits, ..Settings::new(StepPlan::ByStage(3), "test") };
        let engines = [Engine::of::<Plain>()];
        measure(&job, &settings, &Context::default(), &engines, &mut []).unwrap()
    }

    #[test]
    fn a_shared_limit_is_the_best_of_its_measurements_which_are_few() {
        let shared = Limits::new(Duration::from_millis(1));
        let wrong = || Err("bytes differ".to_owned());
        for (key, most, next, best) in [
            ("a on 0", 1, Ok(2.0), Ok(2.0)),
            ("a on 0", 1, Ok(9.0), Ok(2.0)),
            ("a on 0", 3, Ok(4.0), Ok(4.0)),
            ("a on 0", 3, Ok(3.0), Ok(4.0)),
            ("a on 0", 3, Ok(9.0), Ok(4.0)),
            ("a on 1", 1, Ok(1.0), Ok(1.0)),
            ("a on 1", 2, wrong(), wrong()),
            ("a on 1", 9, Ok(5.0), wrong()),
        ] {
            let found = shared.clone().rate(key.into(), most, || Ok(next.map(Rate::exactly)));
            assert_eq!(found, Ok(best.map(Rate::exactly)), "{key} {most}");
        }
    }

    #[test]
    fn a_limit_has_its_definition_and_its_interval() {
        let limit = run(false).limits.remove(0);
        assert_eq!((limit.name.as_str(), limit.basis), ("plain", LimitBasis::Sustained));
        let (low, high) = (limit.low_bytes_per_s.unwrap(), limit.high_bytes_per_s.unwrap());
        assert!(
            0.0 < low && low <= limit.rate_bytes_per_s && limit.rate_bytes_per_s <= high,
            "{limit:?}"
        );
    }

    #[test]
    fn a_limit_engine_that_fails_its_verification_gives_no_limit_and_the_record_says_so() {
        let record = run(true);
        assert_eq!((record.limits.len(), &record.outcome), (0, &Outcome::Ok));
        let warning = record.warnings.last().unwrap();
        assert!(warning.contains("the limit `plain` could not be measured"), "{warning}");
        assert!(warning.contains("byte 3 differs"), "{warning}");
    }

    fn record(lanes: &[&[(u64, &[u64])]]) -> RunRecord {
        let mut record = RunRecord::new(EngineInfo::default(), Workload::default());
        let stage = |(bytes_per_op, ns): &(u64, &[u64])| Stage {
            bytes_per_op: *bytes_per_op,
            ops_per_sample: 1,
            sample_ns: ns.to_vec(),
            ..Stage::default()
        };
        record.lanes = lanes
            .iter()
            .map(|stages| Lane { stages: stages.iter().map(stage).collect(), ..Lane::default() })
            .collect();
        record
    }

    #[test]
    fn the_best_is_the_fastest_stage_over_all_its_time_as_the_mean_over_the_lanes() {
        // The second stage is faster at its median, and slower over all its time.
        let of_one = record(&[&[(8, &[2, 2, 2]), (8, &[1, 1, 100]), (0, &[1])]]);
        assert_eq!(best_rate(&of_one).unwrap().per_s, 4e9);
        let of_two = record(&[&[(8, &[2])], &[(8, &[4])]]);
        assert_eq!(best_rate(&of_two).unwrap().per_s, 3e9);
        assert!(best_rate(&record(&[])).is_err() && best_rate(&record(&[&[(8, &[])]])).is_err());
        let mut failed = of_one;
        failed.outcome = Outcome::Failed("bytes differ".into());
        assert_eq!(best_rate(&failed), Err("bytes differ".to_owned()));
    }

    /// Two lanes whose stages take 10 ns each, the second from `begin_ns` on, at 16 GB/s.
    fn limited(begin_ns: u64) -> RunRecord {
        let mut run = record(&[&[(160, &[10])], &[(160, &[10])]]);
        for (lane, start_ns) in run.lanes.iter_mut().zip([0, begin_ns]) {
            let stage = &mut lane.stages[0];
            (stage.start_ns, stage.end_ns) = (start_ns, start_ns + 10);
            stage.limit = Some("plain".into());
        }
        run
    }

    /// Regression: a limit was measured once, before, with lanes that hindered one another. Ten
    /// boards that take turns were above it in 6 of 6 runs.
    #[test]
    fn a_limit_is_the_best_of_its_measurements_with_as_many_lanes_as_work_at_a_time() {
        // Begin of the second lane, rates of the measurements at half the stages' scale, the lanes
        // that they ask for, and the best.
        for (begin_ns, rates, lanes, best) in [
            (10, &[3, 9][..], &[2, 1][..], 9.0),
            (10, &[9, 3], &[2, 1], 9.0),
            (0, &[3, 9], &[2, 2], 9.0),
            (10, &[3, 4, 8, 9], &[2, 1, 1], 8.0),
            (10, &[3, 4, 5, 6, 9], &[2, 1, 1, 1], 6.0),
        ] {
            let settings = Settings::new(StepPlan::ByStage(3), "test");
            let (engines, asked) = ([Engine::of::<Plain>()], std::cell::RefCell::default());
            let alone = |job: &Job, _: &Settings| {
                let asked: &mut Vec<u64> = &mut asked.borrow_mut();
                asked.push(job.workload.int("lanes").unwrap());
                Ok(record(&[&[(rates[asked.len() - 1], &[1])]]))
            };
            let sessions = [(); 2].map(|()| session(Some(spec(false)), false));
            let mut sought = Sought::before(&engines, &sessions, &settings, &alone).unwrap();
            let mut run = limited(begin_ns);
            sought.after(&run).unwrap();
            sought.book(&mut run);
            assert_eq!(run.limits[0].rate_bytes_per_s, best * 2e9, "{rates:?}");
            assert_eq!(asked.take(), lanes, "{rates:?}");
        }
    }

    #[test]
    fn lanes_that_work_at_a_time_are_counted_by_their_time() {
        for (begin_ns, lanes) in [(0, 2), (4, 1), (10, 1), (1000, 1)] {
            let run = limited(begin_ns);
            assert_eq!(at_once(&stages(&run, "plain")), lanes, "{begin_ns}");
        }
        assert_eq!(at_once(&[]), 1);
    }
}
