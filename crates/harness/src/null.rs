//! The engine that does nothing: what it measures is the tool itself.

use std::hint::black_box;

use daqmeter_record::Workload;

use crate::{Availability, Engine, Fault, Session, StageSpec, Tally};

/// Counts operations and nothing else. Its time per operation is daqmeter's own cost, shown in every report.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullEngine;

struct NullSession {
    done: u64,
}

impl Engine for NullEngine {
    fn name(&self) -> &'static str {
        "null"
    }

    fn description(&self) -> &'static str {
        "does nothing: measures the tool itself"
    }

    fn probe(&self) -> Availability {
        Availability::Ready
    }

    fn target(&self, _workload: &Workload) -> String {
        "nothing".to_owned()
    }

    fn example(&self) -> Workload {
        Workload::new("null")
    }

    fn open(&self, _workload: &Workload) -> Result<Vec<Box<dyn Session>>, Fault> {
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
            counters: vec![daqmeter_record::Counter::count(
                "null-operations",
                self.done,
            )],
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
