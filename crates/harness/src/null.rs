//! Engine without work, which measures the tool itself.

use std::hint::black_box;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Fault, Job, Request, Session, StageSpec, Tally};

struct NullSession {
    done: u64,
}

/// Counts operations and nothing else. Its time per operation is daqmeter's own cost, shown in
/// every report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NullRequest {}

impl NullRequest {
    pub fn session() -> Box<dyn Session> {
        Box::new(NullSession { done: 0 })
    }
}

impl Request for NullRequest {
    const KIND: &'static str = "null";
    const DESCRIPTION: &'static str = "does nothing: measures the measurement overhead";

    fn example() -> NullRequest {
        NullRequest {}
    }

    fn job(&self) -> Result<Job, Fault> {
        Ok(Job::new(self, "nothing", |_| Ok(vec![NullRequest::session()])))
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
            // `black_box` hides the counter from the optimiser, or the loop would become one
            // addition.
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
    use crate::Request;

    #[test]
    fn null_conforms() {
        crate::conformance::run(&super::NullRequest {}.job().unwrap());
    }
}
