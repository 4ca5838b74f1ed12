//! Every engine.

use std::collections::HashMap;
use std::sync::Arc;

use daqmeter_copy::{CopyEngine, MemoryEngine, PlainEngine, PollutionEngine};
use daqmeter_digitizer::{ConvertEngine, DigitizerEngine};
use daqmeter_etherbone::{EtherboneEngine, PingPongEngine};
use daqmeter_harness::{CardFamily, Engine, NullEngine};
use daqmeter_hostio::{BlockEngine, StreamEngine};
use daqmeter_path::{PathEngine, ReadoutEngine};
use daqmeter_readout::DecodeEngine;
use daqmeter_record::{RunRecord, Workload};

/// Every engine, for a host with a last-level cache of that size.
pub fn engines(last_level_bytes: u64) -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(NullEngine),
        Box::new(MemoryEngine),
        Box::new(PlainEngine),
        Box::new(CopyEngine),
        Box::new(PollutionEngine),
        Box::new(ConvertEngine { last_level_bytes }),
        Box::new(DigitizerEngine { last_level_bytes }),
        Box::new(PingPongEngine),
        Box::new(EtherboneEngine),
        Box::new(BlockEngine),
        Box::new(StreamEngine),
        Box::new(DecodeEngine),
        Box::new(ReadoutEngine),
        Box::new(PathEngine::new(last_level_bytes)),
    ]
}

/// Writes each request as its engine writes it today, so that equal requests of older records, of plans and of the command line
/// have equal keys. What no engine here can read stays as it is.
pub fn write_requests_as_today(records: &mut [RunRecord]) {
    RequestsAsToday::default().write(records);
}

/// [`write_requests_as_today`] for records that come part by part.
pub struct RequestsAsToday {
    engines: Vec<Box<dyn Engine>>,
    /// Records that ask the same share what they ask: each is written anew once. What was asked is kept with it, so that its place
    /// in memory stays its own.
    known: HashMap<*const Workload, (Arc<Workload>, Option<Arc<Workload>>)>,
}

impl Default for RequestsAsToday {
    fn default() -> RequestsAsToday {
        RequestsAsToday { engines: engines(0), known: HashMap::new() }
    }
}

impl RequestsAsToday {
    /// Writes what these records asked as today.
    pub fn write(&mut self, records: &mut [RunRecord]) {
        let engines = &self.engines;
        let today = |workload: &Workload| {
            let engine = engines.iter().find(|engine| engine.name() == workload.kind);
            engine.and_then(|engine| engine.canonical(workload))
        };
        for record in records {
            let asked = &record.workload;
            let (_, canonical) = self
                .known
                .entry(Arc::as_ptr(asked))
                .or_insert_with(|| (Arc::clone(asked), today(asked).map(Arc::new)));
            if let Some(workload) = canonical {
                record.workload = Arc::clone(workload);
            }
        }
    }
}

/// The cards that the engines know, for the facts about a host.
pub fn card_families() -> Vec<CardFamily> {
    let digitizers = daqmeter_digitizer::devices::FAMILIES.iter();
    digitizers.map(|family| family.cards()).chain([daqmeter_readout::card::FAMILY]).collect()
}

#[cfg(test)]
mod tests {
    use daqmeter_harness::{MAX_LANES, Request, TypedEngine};
    use daqmeter_record::workload::NOT_IN_KEY;
    use daqmeter_record::{EngineInfo, Param, Workload};

    use super::*;

    /// What a sweep, a slip of the pen or an attack may say.
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

    /// A workload that opens, or is refused in one line; what opens takes memory in proportion and describes itself.
    fn opens_or_is_refused(engine: &dyn Engine, workload: &Workload) {
        let bytes = engine.memory_bytes(workload);
        if bytes.is_some_and(|bytes| engine.name() == "readout" && bytes > 256 << 20) {
            return;
        }
        match engine.open(workload) {
            Ok(sessions) => {
                assert!(!sessions.is_empty() && sessions.len() as u64 <= MAX_LANES, "{workload}");
                assert!(sessions.iter().all(|session| !session.stages().is_empty()), "{workload}");
            }
            Err(fault) => {
                assert!(!fault.0.is_empty() && !fault.0.contains('\n'), "{workload}: {}", fault.0)
            }
        }
    }

    #[test]
    fn equal_requests_of_older_records_and_of_today_are_one_point() {
        let record = |workload| {
            let info = EngineInfo { name: "convert".into(), ..EngineInfo::default() };
            RunRecord::new(info, workload)
        };
        let today = TypedEngine::example(&ConvertEngine::default());
        let older = today.workload().with("threads", 1_u64);
        let unknown = Workload::new("of another time").with("size", 1_u64);
        let mut records = [record(older.clone()), record(unknown.clone())];
        assert_ne!(older.key(), today.workload().key());
        // In parts as at once: records of several parts share what they asked.
        let mut parts = records.clone();
        let mut requests = RequestsAsToday::default();
        parts.chunks_mut(1).for_each(|part| requests.write(part));
        write_requests_as_today(&mut records);
        assert_eq!(parts, records);
        assert_eq!(*records[0].workload, today.workload());
        assert_eq!(*records[1].workload, unknown);
    }

    /// Products of parameters wrapped, and lanes were made by the thousand million.
    #[test]
    fn every_parameter_of_every_engine_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let scenario = folder.path().join("small.toml");
        std::fs::write(&scenario, "[card]\nlinks = 1\nring = \"1MiB\"\nblocks = \"live\"\n")
            .unwrap();
        for engine in engines(32 << 20) {
            let mut example = engine.example();
            if example.params.contains_key("scenario") {
                example = example.with("scenario", scenario.display().to_string());
            }
            for parameter in engine.parameters() {
                for value in extremes() {
                    opens_or_is_refused(
                        engine.as_ref(),
                        &example.clone().with(&parameter.name, value),
                    );
                }
            }
        }
    }

    /// Whether a parameter's name says that it is how long or how often was measured, or what was.
    fn is_extent_or_result(name: &str) -> bool {
        let extents =
            ["seconds", "duration", "passes", "reads", "reps", "repetitions", "time", "budget"];
        let results = ["_bytes_per_s", "_per_op", "_rate", "median_ns", "limit"];
        extents.iter().any(|word| name.split('_').any(|part| part == *word))
            || results.iter().any(|end| name.ends_with(end) || name.starts_with(end))
    }

    #[test]
    fn no_engine_has_how_long_or_what_was_measured_in_the_key_of_its_points() {
        for engine in engines(32 << 20) {
            for parameter in
                engine.parameters().iter().filter(|parameter| is_extent_or_result(&parameter.name))
            {
                let of = engine.name();
                assert!(
                    NOT_IN_KEY.contains(&parameter.name.as_str()),
                    "{of}: {} is in the key",
                    parameter.name
                );
            }
        }
        for (name, _) in crate::SHIPPED {
            for point in crate::Plan::load(name).unwrap().points {
                let key = point.workload.key();
                let words = key.split(' ').filter_map(|word| Some(word.split_once('=')?.0));
                let wrong: Vec<&str> = words.filter(|word| is_extent_or_result(word)).collect();
                assert!(wrong.is_empty(), "{name}: {wrong:?} in {key}");
            }
        }
    }

    #[test]
    fn every_engine_names_all_parameters_of_its_example() {
        for engine in engines(32 << 20) {
            let known: Vec<String> =
                engine.parameters().into_iter().map(|parameter| parameter.name).collect();
            for name in engine.example().params.keys() {
                assert!(known.contains(name), "{}: {name}", engine.name());
            }
            assert_eq!(
                engine.example().kind,
                engine.name(),
                "workloads are named after their engine"
            );
        }
    }
}
