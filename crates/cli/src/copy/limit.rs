//! What copies are held against: a plain copy of as many bytes, measured in the same run.

use std::collections::BTreeMap;
use std::time::Duration;

use daqmeter_copy::{Direction, Request};
use daqmeter_harness::limits::{best_rate, measured};
use daqmeter_harness::{Settings, StepPlan, limit_warnings};
use daqmeter_kernels::copy::CopyKernel;
use daqmeter_record::{Order, RunRecord, Workload};
use daqmeter_stats::Rate;

use crate::output::Failure;
use crate::run::Runner;

/// Time of each measurement of a limit.
const LIMIT_TIME: Duration = Duration::from_millis(4);

/// Far beyond the caches the rate does not depend on the size any more, but the time to prepare does.
const LARGEST_LIMIT: usize = 128 << 20;

/// What plain copies reach here, by the bytes of one copy: the limit that copies of as many lanes are held against. Each is
/// measured with the first point that needs it, so that no point waits for the limits of the others.
/// It goes into the records of the copies, not into their workloads: what was measured is not part of the question.
pub(crate) struct PlainCopies {
    lanes: usize,
    pin: Vec<u32>,
    rates: BTreeMap<u64, Option<Rate>>,
}

impl PlainCopies {
    /// Limits for copies by so many lanes on those CPUs.
    pub(crate) fn new(lanes: usize, pin: &[u32]) -> PlainCopies {
        PlainCopies {
            lanes,
            pin: pin.to_vec(),
            rates: BTreeMap::new(),
        }
    }

    /// Measures one point as [`Runner::point`] does, and adds its limit to the record.
    pub(crate) fn point(
        &mut self,
        runner: &mut Runner,
        engine: &str,
        workload: &Workload,
        settings: &Settings,
        order: Order,
    ) -> Result<(), Failure> {
        if runner.stop.is_set() {
            return Ok(());
        }
        let mut record = runner.measured(engine, workload, settings, Some(order))?;
        if record.engine.name == "copy" && record.lanes.len() == self.lanes {
            self.find(runner, record.workload.int("block_bytes").unwrap_or(0));
        }
        self.add_limit(&mut record);
        runner.keep(record)
    }

    /// Measures plain copies of so many bytes (128 MiB at most) with every kernel of this CPU, if that was not done before; the
    /// best counts. What was interrupted, or could not be measured, is no limit.
    fn find(&mut self, runner: &Runner, bytes: u64) {
        if self.rates.contains_key(&bytes) {
            return;
        }
        let settings = runner.settings(StepPlan::Timed(LIMIT_TIME), "copy/limit", &self.pin);
        let block_bytes =
            usize::try_from(bytes).map_or(LARGEST_LIMIT, |bytes| bytes.min(LARGEST_LIMIT));
        let mut best: Option<Rate> = None;
        for kernel in CopyKernel::available() {
            let mut request = Request::new(kernel.name(), Direction::To, block_bytes);
            request.lanes = self.lanes;
            let Ok(record) = runner.quietly("copy", &request.workload(), &settings) else {
                continue;
            };
            if runner.stop.is_set() {
                return;
            }
            // A kernel whose bytes did not check is no limit.
            let rate = best_rate(&record).ok();
            best = [best, rate]
                .into_iter()
                .flatten()
                .max_by(|a, b| a.per_s.total_cmp(&b.per_s));
        }
        self.rates.insert(bytes, best);
    }

    /// Adds the limit of as many bytes and lanes to the record of a copy.
    fn add_limit(&self, record: &mut RunRecord) {
        let bytes = record.workload.int("block_bytes").unwrap_or(0);
        let Some(rate) = self.rates.get(&bytes).copied().flatten() else {
            return;
        };
        if record.engine.name != "copy" || record.lanes.len() != self.lanes {
            return;
        }
        let name = format!("memcpy at {bytes} B");
        for stage in record
            .lanes
            .iter_mut()
            .filter_map(|lane| lane.stages.first_mut())
        {
            stage.limit = Some(name.clone());
        }
        let how = "a plain copy of as many bytes, 128 MiB at most, in the same run; the best of memcpy, rep movsb and \
                   vectors";
        record.limits.push(measured(name, rate, how.to_owned()));
        let warnings = limit_warnings(record);
        record.warnings.extend(warnings);
    }
}
