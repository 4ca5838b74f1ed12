//! The engine that does nothing: what it measures is the tool itself.

use std::hint::black_box;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Fault, Request, Session, StageSpec, Tally, TypedEngine};

/// Counts operations and nothing else. Its time per operation is daqmeter's own cost, shown in every report.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullEngine;

struct NullSession {
    done: u64,
}

/// Nothing can be asked of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NullRequest {}

impl Request for NullRequest {
    const KIND: &'static str = "null";
}

impl TypedEngine for NullEngine {
    type Request = NullRequest;

    fn description(&self) -> &'static str {
        "does nothing: measures the tool itself"
    }

    fn target(&self, _request: &NullRequest) -> String {
        "nothing".to_owned()
    }

    fn example(&self) -> NullRequest {
        NullRequest {}
    }

    fn open(&self, _request: &NullRequest) -> Result<Vec<Box<dyn Session>>, Fault> {
        Ok(vec![Box::new(NullSession { done: 0 })])
    }
}

impl Session for NullSession {
    fn device(&self) -> String {
        "none".to_owned()
    }

    fn stages(&self) -> Vec<StageSpec> {
        vec![StageSpec::new("null", 0, 0)]
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn step(&mut self, _stage: usize, operations: u64) -> Result<(), Fault> {
        for _ in 0..operations {
            // The counter is opaque to the optimiser, or the loop would become one addition.
            self.done = black_box(self.done).wrapping_add(1);
        }
        Ok(())
    }

    fn verify(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn begin(&mut self) {
        self.done = 0;
    }

    fn tally(&mut self) -> Tally {
        Tally {
            counters: vec![daqmeter_record::Counter::count("null-operations", self.done)],
            ..Tally::default()
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn null_conforms() {
        crate::conformance::run(&super::NullEngine);
    }
}
