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
    use super::*;

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
