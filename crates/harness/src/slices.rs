//! One lane's work in short slices, for measuring two sides in turns: see `daqmeter_campaign::ab`.
//!
//! A slice is a fixed number of operations between two readings of the clock, short against the scheduler's own slices where the
//! operation allows it. Each slice says whether something took the CPU away meanwhile.

use std::time::Duration;

use daqmeter_record::Workload;
use daqmeter_sys::{affinity, clock, cpu_time};

use crate::guarded::guarded;
use crate::{Availability, Engine, Fault, Session, StageSpec, StopFlag};

/// Most operations of a slice.
const MAX_OPERATIONS: u64 = 1 << 30;

/// A session that is prepared, and worked slice by slice.
pub struct Slices {
    session: Box<dyn Session>,
    stages: Vec<StageSpec>,
}

/// What one slice took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Time of all its operations.
    pub ns: u64,
    /// How many they were.
    pub operations: u64,
    /// The thread lost its CPU to another, or was moved to another CPU.
    pub disturbed: bool,
}

impl Slices {
    /// Opens, prepares and verifies the work in this thread.
    ///
    /// # Errors
    /// When the work cannot begin, needs more than one lane, or cannot be cut into slices.
    pub fn open(
        engine: &dyn Engine,
        workload: &Workload,
        stop: &StopFlag,
    ) -> Result<Slices, Fault> {
        if let Availability::Waived(reason) = engine.probe_for(workload) {
            return Err(Fault::new(reason));
        }
        let mut sessions = guarded("opening", || engine.open(workload)).flatten()?;
        let count = sessions.len();
        let (Some(session), true) = (sessions.pop(), count == 1) else {
            return Err(Fault::new(format!(
                "{workload} has {count} lanes, which run together; only work of one lane can be measured in turns"
            )));
        };
        let stages = session.stages();
        let mut slices = Slices { session, stages };
        if let Some(stage) = slices.stages.iter().find(|stage| stage.once) {
            return Err(Fault::new(format!(
                "stage `{}` of {} runs once and cannot be cut into slices",
                stage.name, workload.kind
            )));
        }
        slices.guarded("preparation", |session| {
            session.heed(stop);
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

    /// Names of the stages, in order.
    pub fn stages(&self) -> Vec<String> {
        self.stages.iter().map(|stage| stage.name.clone()).collect()
    }

    /// How many operations of a stage take about that time, after a warm-up of ten times as long: whole batches, at least one.
    ///
    /// # Errors
    /// When the work fails.
    pub fn operations(&mut self, stage: usize, time: Duration) -> Result<u64, Fault> {
        let wanted_ns = time.as_nanos() as f64;
        let batch = self.stages[stage].batch.max(1);
        if self.stages[stage].fresh || self.stages[stage].device_timed {
            return Ok(1);
        }
        let mut operations = batch;
        let begin = clock::monotonic_ns();
        loop {
            let slice = self.slice(stage, operations)?;
            let op_ns = slice.ns.max(1) as f64 / operations as f64;
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "clamped to a sane range"
            )]
            let fitting = (wanted_ns / op_ns).clamp(1.0, MAX_OPERATIONS as f64) as u64;
            // A slice that was disturbed, or the first, is no measure: it grows step by step.
            operations = fitting.min(operations.saturating_mul(4)).max(batch) / batch * batch;
            if clock::monotonic_ns() - begin > 10 * time.as_nanos() as u64 {
                return Ok(operations);
            }
        }
    }

    /// Does one slice of a stage.
    ///
    /// # Errors
    /// When the work fails.
    pub fn slice(&mut self, stage: usize, operations: u64) -> Result<Slice, Fault> {
        if self.stages[stage].fresh {
            self.guarded("making ready", |session| session.freshen(stage))?;
        }
        let is_device_timed = self.stages[stage].device_timed;
        self.guarded("a slice", |session| {
            let (cpu, before) = (affinity::current_cpu(), cpu_time::of_thread().preemptions);
            let begin = clock::monotonic_ns();
            session.step(stage, operations)?;
            let mut ns = clock::monotonic_ns() - begin;
            if is_device_timed {
                let time = session.device_time();
                ns = time.after_ns.saturating_sub(time.before_ns);
            }
            let preempted = cpu_time::of_thread().preemptions != before;
            Ok(Slice {
                ns,
                operations,
                disturbed: preempted || affinity::current_cpu() != cpu,
            })
        })
    }

    /// Checks the bytes that the last slice left.
    ///
    /// # Errors
    /// When they are wrong.
    pub fn verify(&mut self) -> Result<(), Fault> {
        self.guarded("verification", |session| session.verify())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NullEngine;

    #[test]
    fn slices_last_about_as_long_as_asked_and_say_what_they_did() {
        let mut slices =
            Slices::open(&NullEngine, &NullEngine.example(), &StopFlag::default()).unwrap();
        assert_eq!(slices.stages(), ["null"]);
        let operations = slices.operations(0, Duration::from_micros(200)).unwrap();
        assert!(operations > 1000, "{operations}");
        let slice = slices.slice(0, operations).unwrap();
        assert!(slice.ns > 0 && slice.operations == operations);
        slices.verify().unwrap();
    }
}
