//! Every engine.

use daqmeter_copy::{CopyRequest, MemoryRequest, PlainRequest, PollutionRequest};
use daqmeter_digitizer::{ConvertRequest, DigitizerRequest};
use daqmeter_etherbone::{EtherboneRequest, PingPongRequest};
use daqmeter_harness::{Context, Engine, NullRequest};
use daqmeter_hostio::{BlockRequest, StreamRequest};
use daqmeter_kernels::Isa;
use daqmeter_path::{PathRequest, ReadoutRequest};
use daqmeter_readout::DecodeRequest;
use daqmeter_record::Tool;

pub static ENGINES: [Engine; 14] = [
    Engine::of::<NullRequest>(),
    Engine::of::<MemoryRequest>(),
    Engine::of::<PlainRequest>(),
    Engine::of::<CopyRequest>(),
    Engine::of::<PollutionRequest>(),
    Engine::of::<ConvertRequest>(),
    Engine::of::<DigitizerRequest>(),
    Engine::of::<PingPongRequest>(),
    Engine::of::<EtherboneRequest>(),
    Engine::of::<BlockRequest>(),
    Engine::of::<StreamRequest>(),
    Engine::of::<DecodeRequest>(),
    Engine::of::<ReadoutRequest>(),
    Engine::of::<PathRequest>(),
];

/// Returns the engine of that name.
///
/// # Errors
/// Names the existing engines.
pub fn engine(name: &str) -> Result<&'static Engine, String> {
    ENGINES.iter().find(|engine| engine.name == name).ok_or_else(|| {
        let names: Vec<&str> = ENGINES.iter().map(|engine| engine.name).collect();
        format!("`{name}` is not an engine; there are: {}", names.join(", "))
    })
}

/// Gathers the facts that every record has, with the cards of all engines.
pub fn context(tool: Tool, command: String) -> Context {
    let digitizers = daqmeter_digitizer::devices::FAMILIES.iter().map(|family| family.cards);
    let isa = Isa::available().map(|isa| isa.name().to_owned()).collect();
    Context::gather(tool, command, isa, digitizers.chain([daqmeter_readout::card::FAMILY]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use daqmeter_harness::{MAX_LANES, Session, StepPlan};
    use daqmeter_record::workload::NOT_IN_KEY;
    use daqmeter_record::{EngineInfo, Lane, Param, RunRecord, Stage, Workload};

    use super::*;
    use crate::PlannedPoint;

    fn extremes() -> Vec<Param> {
        let powers = [0, 1, 6, 16, 31, 32, 40, 57, 58, 62, 63].map(|power| 1_u64 << power);
        let around =
            powers.into_iter().flat_map(|value| [value - 1, value, value + 1]).chain([u64::MAX]);
        let floats = [-1.0, 0.0, 1e-300, 1e300, f64::INFINITY, f64::NAN].map(Param::Float);
        around
            .map(Param::Int)
            .chain(floats)
            .chain([Param::Flag(true), Param::Text("x".to_owned())])
            .collect()
    }

    /// Opens a workload, or checks that it is refused in one line. An open one takes memory in
    /// proportion, and describes itself.
    fn opens_or_is_refused(engine: &Engine, workload: &Workload) {
        let opened = engine.parse(workload).and_then(|job| {
            let is_large = job.memory_bytes.is_some_and(|bytes| bytes > 256 << 20);
            if engine.name == "readout" && is_large { Ok(None) } else { job.open().map(Some) }
        });
        match opened {
            Ok(None) => {}
            Ok(Some(sessions)) => {
                assert!(!sessions.is_empty() && sessions.len() as u64 <= MAX_LANES, "{workload}");
                assert!(sessions.iter().all(|session| !session.stages().is_empty()), "{workload}");
            }
            Err(fault) => {
                assert!(!fault.0.is_empty() && !fault.0.contains('\n'), "{workload}: {}", fault.0)
            }
        }
    }

    /// Regression: products of parameters wrapped, and lanes were made by the thousand million.
    #[test]
    fn every_parameter_of_every_engine_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let scenario = folder.path().join("small.toml");
        std::fs::write(&scenario, "[card]\nlinks = 1\nring = \"1MiB\"\nblocks = \"live\"\n")
            .unwrap();
        for engine in &ENGINES {
            let mut example = engine.example();
            if example.params.contains_key("scenario") {
                example = example.with("scenario", scenario.display().to_string());
            }
            for parameter in engine.parameters() {
                for value in extremes() {
                    opens_or_is_refused(engine, &example.clone().with(&parameter.name, value));
                }
            }
        }
    }

    /// A request is one thing from the command line, from a plan, from a record and from `ab`.
    #[test]
    fn an_example_is_a_request_a_workload_a_point_of_a_plan_and_runs() {
        let runner = crate::Runner::new(Context::default());
        for engine in &ENGINES {
            let example = engine.example();
            assert_eq!(engine.canonical(&example), Ok(example.clone()));
            let text = example.to_string();
            let of_ab = crate::ab::PointRequest::parse(&text).unwrap();
            assert_eq!(engine.canonical(&of_ab.workload), Ok(example.clone()), "{text}");
            let point = crate::Plan::parse(&of_ab.plan(), "ab").unwrap().points.remove(0);
            assert_eq!(point.workload.key(), example.key(), "{text}");
            let record = runner.quietly(&engine.parse(&point.workload).unwrap(), "test");
            assert_eq!(record.unwrap().workload, example.into(), "{text}");
        }
    }

    /// Regression: in a plan without `passes` of the sweep all waits came before the first read.
    #[test]
    fn a_triggered_read_out_has_a_wait_before_each_read_in_any_plan() {
        let runner = crate::Runner::new(Context::default());
        let workload = Workload::new("digitizer")
            .with("devices", "emu:l0")
            .with("samples", 320_u64)
            .with("completion", "interrupt")
            .with("trigger_rate_hz", 200.0);
        let digitizer = engine("digitizer").unwrap();
        for steps in [StepPlan::ByStage(9), StepPlan::Timed(std::time::Duration::from_millis(5))] {
            let settings = runner.settings(steps, "test", &[]);
            let job = digitizer.parse(&workload.clone().with("passes", 4_u64)).unwrap();
            let record = runner.measured(&job, &settings).unwrap();
            let reads = record.lanes[0].stages.iter().map(|stage| stage.sample_ns.len());
            assert_eq!(Vec::from_iter(reads), [4, 4], "{:?}", record.lanes[0].stages);
            let refused = runner.measured(&digitizer.parse(&workload).unwrap(), &settings);
            let refused = refused.unwrap_err().0;
            assert!(refused.contains("`passes` is 0; the number of events"), "{refused}");
        }
    }

    /// Makes a record of a point with the stages that it would measure, unless its memory is large
    /// or a card would have to be made.
    fn unmeasured(point: &PlannedPoint) -> RunRecord {
        let info = EngineInfo { name: point.engine.clone(), ..EngineInfo::default() };
        let job = engine(&point.engine).unwrap().parse(&point.workload).unwrap();
        let is_small = job.memory_bytes.is_some_and(|bytes| bytes <= 256 << 20)
            && !["readout", "path"].contains(&point.engine.as_str());
        let sessions = if is_small { job.open().unwrap_or_default() } else { Vec::new() };
        let stage = |name| Stage { name, ..Stage::default() };
        let lane = |session: &dyn Session| Lane {
            device: session.device(),
            stages: session.stages().into_iter().map(|spec| stage(spec.name)).collect(),
            ..Lane::default()
        };
        let mut record = RunRecord::new(info, job.workload);
        record.lanes = sessions.iter().map(|session| lane(&**session)).collect();
        record.study.clone_from(&point.study);
        record
    }

    #[test]
    fn points_of_shipped_plans_have_short_names_of_their_own() {
        for plan in crate::SHIPPED_PLANS.names() {
            let mut points = crate::Plan::load(plan).unwrap().points;
            let mut known = BTreeSet::new();
            points.retain(|point| known.insert((point.study.clone(), point.workload.key())));
            let records: Vec<RunRecord> = points.iter().map(unmeasured).collect();
            let frame = daqmeter_report::export::stages(&records);
            let column = |wanted: &str| {
                let column = frame.columns.iter().find(|column| column.name == wanted).unwrap();
                column.cells().map(ToString::to_string).collect::<Vec<_>>()
            };
            let names = column("name");
            let identity = ["study", "workload", "device", "stage"].map(column);
            let points: BTreeSet<_> =
                (0..names.len()).map(|at| identity.each_ref().map(|of| &of[at])).collect();
            assert!(
                names.iter().collect::<BTreeSet<_>>().len() >= points.len(),
                "{plan}: {names:?}"
            );
            let is_long = |name: &&String| name.chars().count() > 60;
            let is_for_people = ["quick", "survey", "survey-short", "copies"].contains(&plan);
            let long = names.iter().find(|name| is_for_people && is_long(name));
            assert_eq!(long, None, "{plan}");
            assert!(names.iter().all(|name| !name.contains(['_', '=', '#'])), "{plan}: {names:?}");
        }
    }

    /// Returns true for parameters that hold a time, a count or a result of the measurement.
    fn is_extent_or_result(name: &str) -> bool {
        let extents =
            ["seconds", "duration", "passes", "reads", "reps", "repetitions", "time", "budget"];
        let results = ["_bytes_per_s", "_per_op", "_rate", "median_ns", "limit"];
        extents.iter().any(|word| name.split('_').any(|part| part == *word))
            || results.iter().any(|end| name.ends_with(end) || name.starts_with(end))
    }

    #[test]
    fn no_engine_has_how_long_or_what_was_measured_in_the_key_of_its_points() {
        for engine in &ENGINES {
            let names = engine.parameters().into_iter().map(|parameter| parameter.name);
            let mut extents = names.filter(|name| is_extent_or_result(name));
            let wrong = extents.find(|name| !NOT_IN_KEY.contains(&name.as_str()));
            assert_eq!(wrong, None, "{} has it in the key", engine.name);
        }
        for name in crate::SHIPPED_PLANS.names() {
            for point in crate::Plan::load(name).unwrap().points {
                let key = point.workload.key();
                let words = key.split(' ').filter_map(|word| Some(word.split_once('=')?.0));
                let wrong: Vec<&str> = words.filter(|word| is_extent_or_result(word)).collect();
                assert!(wrong.is_empty(), "{name}: {wrong:?} in {key}");
            }
        }
    }
}
