//! Work of one lane in short slices, to measure two sides alternately: see `daqmeter_campaign::ab`.
//!
//! A slice is a fixed number of operations between two readings of the clock, short against the
//! scheduler's own slices if the operation allows it. Each slice reports a loss of the CPU.

use std::time::Duration;

use daqmeter_record::{Ledger, Slice};
use daqmeter_sys::{clock, probe};

use crate::guarded::guarded;
use crate::slicer::{Seen, column};
use crate::{Fault, Job, Session, StageSpec, StopFlag, check_fits};

const MAX_OPERATIONS: u64 = 1 << 30;
/// Divisor of a slice's operations for those before the clock starts: the other side has just used
/// the caches.
const WARM_SHARE: u64 = 8;
/// SlicedWork without a loss of the CPU before the number of operations is accepted; it grows up to
/// four times with each.
const MIN_MEASURED: usize = 8;
/// Time of the search after which a slice that lost its CPU counts, too.
const MAX_SEARCH_NS: u64 = 500_000_000;

pub struct SlicedWork {
    session: Box<dyn Session>,
    stages: Vec<StageSpec>,
    /// True if the chain of the probes counts cycles here.
    has_probe: bool,
}

impl SlicedWork {
    /// Opens, prepares and verifies the work in this thread.
    ///
    /// # Errors
    /// Fails if the work cannot begin, needs more than one lane, or cannot be cut into slices.
    pub fn open(job: &Job, stop: &StopFlag) -> Result<SlicedWork, Fault> {
        let session = only_session(job)?;
        let stages = session.stages();
        let mut slices = SlicedWork { session, stages, has_probe: probe::counts_cycles() };
        slices.guarded("preparation", |session| {
            session.set_stop_flag(stop);
            session.prepare()?;
            session.verify()?;
            session.begin();
            Ok(())
        })?;
        Ok(slices)
    }

    fn guarded<T>(
        &mut self,
        what: &str,
        work: impl FnOnce(&mut dyn Session) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        guarded(what, || work(self.session.as_mut())).flatten()
    }

    pub fn stages(&self) -> Vec<String> {
        self.stages.iter().map(|stage| stage.name.clone()).collect()
    }

    /// Returns the operations of a stage for about that time, after a warm-up of ten times as long:
    /// whole batches, at least one.
    pub fn operations(&mut self, stage: usize, time: Duration) -> Result<u64, Fault> {
        let batch = self.stages[stage].batch.max(1);
        if self.stages[stage].is_separate() {
            return Ok(1);
        }
        let wanted_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (mut operations, mut measured) = (batch, 0);
        let begin = clock::monotonic_ns();
        loop {
            let slice = self.slice(stage, operations)?;
            let waited_ns = clock::monotonic_ns() - begin;
            // A slice that lost its CPU does not measure the work, unless all do.
            if !slice.is_lost || waited_ns > MAX_SEARCH_NS {
                operations = fitting(slice.ns, operations, wanted_ns, batch);
                measured += 1;
            }
            let is_long = operations == batch && slice.ns >= wanted_ns;
            if waited_ns > wanted_ns.saturating_mul(10) && (is_long || measured >= MIN_MEASURED) {
                return Ok(operations);
            }
        }
    }

    /// Works a slice, with the probes after it.
    pub fn slice(&mut self, stage: usize, operations: u64) -> Result<Slice, Fault> {
        let has_probe = self.has_probe;
        let spec = &self.stages[stage];
        let (before_sample, is_device_timed) = (spec.before_sample, spec.device_timed);
        let warm = warming(operations, spec.batch.max(1));
        if before_sample {
            self.guarded("making ready", |session| session.before_sample(stage))?;
        }
        self.guarded("a slice", |session| {
            if warm > 0 && !before_sample && !is_device_timed {
                session.step(stage, warm)?;
            }
            let before = Seen::now();
            let begin = clock::monotonic_ns();
            session.step(stage, operations)?;
            let wall_ns = clock::monotonic_ns() - begin;
            let probe = has_probe.then(probe::probe);
            let with_probe_ns = probe.map_or(wall_ns, |probe| probe.end_ns - begin);
            let is_lost = before.is_disturbed(Seen::now(), with_probe_ns);
            let device = is_device_timed.then(|| session.device_time());
            let device = device.map(|time| time.after_ns.saturating_sub(time.before_ns));
            Ok(Slice {
                operations,
                ns: device.unwrap_or(wall_ns),
                chain_ns: probe.map(|probe| column(probe.chain_ns)),
                sibling_ns: probe.map(|probe| column(probe.sibling_ns)),
                is_lost,
            })
        })
    }

    pub fn verify(&mut self) -> Result<(), Fault> {
        self.guarded("verification", |session| session.verify())?;
        let tally = self.guarded("the accounts", |session| Ok(session.tally()))?;
        let open = tally.ledgers.iter().find(|ledger| !ledger.closes());
        let fault = |open: &Ledger| format!("the ledger of {} does not close", open.unit);
        open.map_or(Ok(()), |ledger| Err(Fault::new(fault(ledger))))
    }
}

/// Checks that work can be measured in turns, without preparing it.
///
/// # Errors
/// Gives the reason: it lacks something, works on a real device, has several lanes, or cannot be
/// repeated.
pub fn check(job: &Job) -> Result<(), Fault> {
    only_session(job).map(|_| ())
}

fn only_session(job: &Job) -> Result<Box<dyn Session>, Fault> {
    if job.owns_device {
        return Err(Fault::new(format!(
            "{} is a real device whose state belongs to one process at a time; it cannot be measured in turns: use daqmeter run and cmp",
            job.target
        )));
    }
    // Both sides are open together.
    check_fits(job.memory_bytes.map(|bytes| bytes.saturating_mul(2)))?;
    let mut sessions = guarded("opening", || job.open()).flatten()?;
    let count = sessions.len();
    let (Some(session), true) = (sessions.pop(), count == 1) else {
        return Err(Fault::new(format!(
            "it has {count} lanes, which run together; only work of one lane can be measured in turns"
        )));
    };
    match session.stages().iter().find(|stage| stage.once) {
        None => Ok(session),
        Some(stage) => Err(Fault::new(format!(
            "its stage `{}` runs once and cannot be cut into slices",
            stage.name
        ))),
    }
}

/// Returns the operations before the clock starts, in whole batches: at least one if a slice has
/// several.
fn warming(operations: u64, batch: u64) -> u64 {
    if operations <= batch {
        return 0;
    }
    (operations / WARM_SHARE / batch).max(1) * batch
}

/// Returns the operations for the wanted time, if `operations` took `ns`. The number grows step by
/// step, because the first slice or a disturbed one measures badly.
fn fitting(ns: u64, operations: u64, wanted_ns: u64, batch: u64) -> u64 {
    let fitting = u128::from(operations) * u128::from(wanted_ns) / u128::from(ns.max(1));
    let fitting = u64::try_from(fitting).unwrap_or(u64::MAX);
    fitting.min(operations.saturating_mul(4)).clamp(batch, MAX_OPERATIONS.max(batch)) / batch
        * batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NullRequest, Request};

    #[test]
    fn slices_last_about_as_long_as_asked_and_say_what_they_did() {
        let job = NullRequest {}.job().unwrap();
        let mut slices = SlicedWork::open(&job, &StopFlag::default()).unwrap();
        assert_eq!(slices.stages(), ["null"]);
        let operations = slices.operations(0, Duration::from_micros(200)).unwrap();
        assert!(operations > 1000, "{operations}");
        assert!(slices.slice(0, operations).unwrap().ns > 0);
        slices.verify().unwrap();
    }

    #[test]
    fn operations_fit_into_the_time_in_whole_batches_and_grow_step_by_step() {
        for (ns, operations, batch, wanted) in [
            (1000, 1, 1, 4),
            (1000, 100, 1, 400),
            (500_000, 100, 1, 200),
            (4_000_000, 100, 1, 25),
            (4_000_000, 100, 10, 20),
            (40_000_000, 10, 10, 10),
            (0, MAX_OPERATIONS, 1, MAX_OPERATIONS),
            (u64::MAX, 1, 1, 1),
        ] {
            assert_eq!(fitting(ns, operations, 1_000_000, batch), wanted, "{ns} {operations}");
        }
    }

    #[test]
    fn a_slice_of_several_operations_warms_the_caches_first() {
        for (operations, batch, wanted) in [
            (1, 1, 0),
            (2, 1, 1),
            (9, 1, 1),
            (800, 1, 100),
            (10, 10, 0),
            (20, 10, 10),
            (800, 10, 100),
        ] {
            assert_eq!(warming(operations, batch), wanted, "{operations} {batch}");
        }
    }
}
