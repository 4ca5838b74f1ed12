//! Limits of the stages of a run: given, measured just before the run, or measured once for many
//! points.
//!
//! A limit is a rate by the definition of a stage's rate, sustained, see
//! [`daqmeter_stats::sustained`]. A limit engine that failed its verification gives no limit.

use std::collections::BTreeSet;

use daqmeter_record::{Limit, LimitBasis, RunRecord, Stage};
use daqmeter_stats::{Rate, sustained};

use crate::settings::{Settings, StepPlan, cpu_list};
use crate::{Engine, Fault, Job, LimitSpec, Session};

/// Measures one point of a limit's engine, without limits and observers.
pub(crate) type Alone<'a> = dyn FnMut(&Job, &Settings) -> Result<RunRecord, Fault> + 'a;

/// Finds every distinct limit of the sessions' stages, with one lane per session, and reports those
/// that are missing.
pub(crate) fn limits(
    engines: &[Engine],
    sessions: &[Box<dyn Session>],
    settings: &Settings,
    alone: &mut Alone<'_>,
) -> Result<(Vec<Limit>, Vec<String>), Fault> {
    let (mut limits, mut warnings, mut known) = (Vec::new(), Vec::new(), BTreeSet::new());
    let stages = sessions.iter().flat_map(|session| session.stages());
    for spec in stages.filter_map(|stage| stage.limit) {
        let name = spec.name().to_owned();
        if settings.stop.is_set() || !known.insert(name.clone()) {
            continue;
        }
        match found(engines, spec, sessions.len(), settings, alone)? {
            Some(Ok(limit)) => limits.push(limit),
            Some(Err(why)) => warnings.push(format!(
                "the limit `{name}` could not be measured ({why}): stages are not compared with it"
            )),
            None => {}
        }
    }
    Ok((limits, warnings))
}

/// Finds one limit. `None` if no engine measures limits of its kind, with a reason if the engine
/// failed.
fn found(
    engines: &[Engine],
    spec: LimitSpec,
    lanes: usize,
    settings: &Settings,
    alone: &mut Alone<'_>,
) -> Result<Option<Result<Limit, String>>, Fault> {
    let (name, how, workload, scale) = match spec {
        LimitSpec::Given(limit) => return Ok(Some(Ok(limit))),
        LimitSpec::Measured { name, how, workload, scale } => (name, how, workload, scale),
    };
    let Some(engine) = engines.iter().find(|engine| engine.name == workload.kind) else {
        return Ok(None);
    };
    let has_lanes = engine.parameters().iter().any(|parameter| parameter.name == "lanes");
    let workload = if has_lanes { workload.with("lanes", lanes as u64) } else { workload };
    let job = engine.parse(&workload)?;
    let key = format!("{} on {}", job.workload, cpu_list(&settings.pin));
    let rate = settings.limits.rate(key, || {
        let plan = StepPlan::Timed(settings.limits.time);
        let settings = Settings { plan, profile_hz: None, ..settings.clone() };
        Ok(best_rate(&alone(&job, &settings)?))
    })?;
    Ok(Some(rate.map(|rate| {
        let rate = rate.times(scale);
        let mut limit = Limit::given(name, rate.per_s, how);
        limit.basis = LimitBasis::Sustained;
        (limit.low_bytes_per_s, limit.high_bytes_per_s) = rate.interval.unzip();
        limit
    })))
}

/// Returns the limit in the record of a limit engine. It is the fastest stage, as the mean over the
/// lanes of their sustained rates.
///
/// # Errors
/// Returns the reason if the work of the record was not done and verified.
fn best_rate(record: &RunRecord) -> Result<Rate, String> {
    if let Some(reason) = record.outcome.reason() {
        return Err(reason.to_owned());
    }
    let stages = record.lanes.iter().map(|lane| lane.stages.len()).min().unwrap_or(0);
    let of = |stage: &Stage| sustained(stage.bytes_per_sample(), &stage.sample_ns);
    let rate = |at: usize| {
        let rates: Option<Vec<Rate>> =
            record.lanes.iter().map(|lane| of(&lane.stages[at])).collect();
        Rate::mean_of(&rates?)
    };
    let best = (0..stages).filter_map(rate).max_by(|a, b| a.per_s.total_cmp(&b.per_s));
    best.ok_or_else(|| "it moved nothing".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use daqmeter_record::{EngineInfo, Lane, Outcome, Workload};
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::fixtures::Fake;
    use crate::{Context, Limits, Request, StageSpec, measure};

    /// Copies eight bytes; leaves wrong ones where a test asks for them.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
    struct Plain {
        wrong: bool,
    }

    impl Request for Plain {
        const KIND: &'static str = "plain";
        const DESCRIPTION: &'static str = "copies for a test";

        fn example() -> Plain {
            Plain { wrong: false }
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

    /// Runs an engine whose limit is that of another, which may fail its verification.
    fn run(wrong: bool) -> RunRecord {
        let spec = LimitSpec::Measured {
            name: "plain".into(),
            how: "a test".into(),
            workload: Plain { wrong }.workload(),
            scale: 2.0,
        };
        let job = Job::untyped(Workload::new("work"), "test", move || {
            Ok(vec![session(Some(spec.clone()), false)])
        });
        let limits = Limits::new(Duration::from_micros(200));
        let settings = Settings { limits, ..Settings::new(StepPlan::ByStage(3), "test") };
        let engines = [Engine::of::<Plain>()];
        measure(&job, &settings, &Context::default(), &engines, &mut []).unwrap()
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
        assert!(
            record.warnings[0].contains("the limit `plain` could not be measured")
                && record.warnings[0].contains("byte 3 differs")
        );
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
}
