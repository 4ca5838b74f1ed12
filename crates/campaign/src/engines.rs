//! Every engine.

use daqmeter_copy::{CopyEngine, MemoryEngine, PollutionEngine};
use daqmeter_digitizer::{ConvertEngine, DigitizerEngine};
use daqmeter_etherbone::{EtherboneEngine, PingPongEngine};
use daqmeter_harness::{Engine, NullEngine};
use daqmeter_hostio::{BlockEngine, StreamEngine};
use daqmeter_readout::{DecodeEngine, ReadoutEngine};

/// Every engine, for a host with a last-level cache of that size.
pub fn engines(last_level_bytes: u64) -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(NullEngine),
        Box::new(MemoryEngine),
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
    ]
}

#[cfg(test)]
mod tests {
    use daqmeter_record::workload::NOT_IN_KEY;

    use super::*;

    /// Whether a parameter's name says that it is how long or how often was measured, or what was.
    fn is_extent_or_result(name: &str) -> bool {
        let extents = ["seconds", "duration", "passes", "reads", "reps", "repetitions", "time", "budget"];
        let results = ["_bytes_per_s", "_per_op", "_rate", "median_ns", "limit"];
        extents.iter().any(|word| name.split('_').any(|part| part == *word))
            || results.iter().any(|end| name.ends_with(end) || name.starts_with(end))
    }

    #[test]
    fn no_engine_has_how_long_or_what_was_measured_in_the_key_of_its_points() {
        for engine in engines(32 << 20) {
            for parameter in engine.parameters().iter().filter(|parameter| is_extent_or_result(parameter.name)) {
                let of = engine.name();
                assert!(NOT_IN_KEY.contains(&parameter.name), "{of}: {} is in the key", parameter.name);
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
            let known: Vec<&str> = engine.parameters().iter().map(|parameter| parameter.name).collect();
            for name in engine.example().params.keys() {
                assert!(known.contains(&name.as_str()), "{}: {name}", engine.name());
            }
            assert_eq!(engine.example().kind, engine.name(), "workloads are named after their engine");
        }
    }
}
