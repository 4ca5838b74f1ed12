//! Rate of memory beside a path: as many threads as the path has read past the cache, measured in
//! turn with its runs.

use std::time::Duration;

use daqmeter_copy::MemoryRequest;
use daqmeter_harness::{Request, StepPlan};
use daqmeter_record::{Outcome, PathRun, RunRecord};

use crate::measure::Bench;

/// Runs of the path for each measurement of memory: its first touch of memory takes longer than a
/// run.
const RUNS: u32 = 8;
/// Time of a measurement, which reads its memory once at least.
const TIME: Duration = Duration::from_millis(20);
const FOOTPRINT: u64 = 2;

#[derive(Default)]
pub(super) struct Ceiling {
    bytes_per_s: Option<f64>,
    runs: u32,
}

impl Ceiling {
    pub(super) fn put_into(&mut self, run: &mut PathRun, bench: &Bench) {
        let threads = run.threads.len();
        let Some(memory) = &mut run.memory else {
            return;
        };
        if memory.bytes_per_block.iter().all(|bytes| *bytes == 0.0) {
            return;
        }
        if self.runs.is_multiple_of(RUNS) {
            self.bytes_per_s = measured(bench, threads);
        }
        self.runs += 1;
        memory.ceiling_bytes_per_s = self.bytes_per_s;
    }
}

/// Returns `None` for a failed measurement, such as for lack of memory: the path is then explained
/// without it.
fn measured(bench: &Bench, threads: usize) -> Option<f64> {
    let host = &bench.runner.context.host;
    let lanes = threads.min(host.allowed_cpus.len()).max(1);
    let read_bytes = FOOTPRINT * host.last_level_cache_bytes() / lanes as u64;
    let request = MemoryRequest { lanes, ..MemoryRequest::new(read_bytes, 1, 0) };
    let settings = bench.runner.settings(StepPlan::Timed(TIME), "path/memory", &[]);
    let record = bench.runner.quietly(MemoryRequest::KIND, &request.workload(), &settings);
    record.ok().as_ref().and_then(rate)
}

fn rate(record: &RunRecord) -> Option<f64> {
    let ways = record.lanes.iter().map(|lane| lane.stages.len()).min()?;
    let together = |way: usize| -> f64 {
        let lanes = record.lanes.iter();
        lanes.map(|lane| lane.stages[way].rate_bytes_per_s()).sum()
    };
    let fastest = (0..ways).map(together).fold(0.0, f64::max);
    (record.outcome == Outcome::Ok && fastest > 0.0).then_some(fastest)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{Lane, Stage};

    use super::*;

    #[test]
    fn lanes_add_up_and_the_fastest_way_counts() {
        let stage = |bytes_per_op| Stage {
            bytes_per_op,
            ops_per_sample: 1,
            sample_ns: vec![1_000_000_000],
            ..Stage::default()
        };
        let lane = || Lane { stages: vec![stage(100), stage(300)], ..Lane::default() };
        let mut record = RunRecord::default();
        record.lanes = vec![lane(), lane()];
        assert_eq!(rate(&record), Some(600.0));
        record.outcome = Outcome::Failed("bytes differ".to_owned());
        assert_eq!(rate(&record), None);
    }
}
