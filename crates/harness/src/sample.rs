//! Sampling of one lane's stages: operations per sample, warming up, the timed steps.
//!
//! Only this file and `lanes.rs` read the clock around work. Timed steps allocate
//! nothing: sample vectors have their room beforehand. Consecutive samples share their time stamp,
//! so one reading of the clock is the whole cost per sample.

use std::time::Duration;

use daqmeter_record::units::whole;
use daqmeter_record::{CpuTime, Stage};
use daqmeter_sys::{affinity, clock, cpu_time};

use crate::barrier::Participant;
use crate::settings::{Settings, StepPlan};
use crate::slicer::Slicer;
use crate::{Context, DeviceTime, Fault, Session, StageSpec};

/// Most samples of a stage. Beyond it each sample covers several operations, which limits memory.
/// 65,536 samples are 512 KiB.
pub const MAX_SAMPLES: u64 = 1 << 16;
/// Least time of a sample over the clock's cost and resolution, which then stay below 0.1 % of it.
const SAMPLE_OVER_CLOCK: f64 = 1000.0;
/// Longest time without a look at the stop flag: short against the 2 s in which a signal ends a
/// run.
const LOOK_EVERY_NS: u64 = 50_000_000;
pub const INTERRUPTED: &str = "interrupted";

/// Operations of a sample in a hundred that are done once more and not counted, to test
/// comparisons: `--cfg daqmeter_slower="3"`.
const SLOWER_PERCENT: u64 = if cfg!(daqmeter_slower = "3") {
    3
} else if cfg!(daqmeter_slower = "10") {
    10
} else {
    0
};

/// Returns how many operations were done once more in that many samples.
fn again(samples: u64, operations: u64) -> u64 {
    samples * operations * SLOWER_PERCENT / 100
}
/// Untimed operations before each round of a stage whose output is compared: caches, TLBs and
/// branch predictors are then as within a round. METHODOLOGY.md has the measurement.
const UNTIMED: u64 = 4;
/// Samples whose lines are touched before a round: 16 KiB with their starts.
const TOUCHED: usize = 1024;
/// Fewest samples of a stage whose time is over.
const FEWEST: u64 = 3;
/// Samples that decide the number of comparisons of a stage in one piece: 17.
const COMPARED: u64 = 300;

pub(crate) struct Sampling<'a> {
    pub(crate) session: &'a mut dyn Session,
    pub(crate) settings: &'a Settings,
    pub(crate) context: &'a Context,
    /// Barrier of all lanes, before and after each round.
    pub(crate) round: &'a Participant<'a>,
    /// True if a stage has one timed round: other lanes work at the same time, or it is asked.
    pub(crate) in_one: bool,
}

/// Samples of a stage that are taken one after another.
struct Series<'a> {
    at: usize,
    sampled: &'a mut Sampled,
    stride: Stride,
    slicer: Option<Slicer>,
    begin_ns: u64,
    last_ns: u64,
    count: u64,
    most: u64,
    budget_ns: u64,
}

impl Series<'_> {
    fn is_over(&self) -> bool {
        self.count >= self.most
            || (self.last_ns - self.begin_ns >= self.budget_ns && self.count >= FEWEST)
    }
}

pub(crate) struct Sampled {
    spec: StageSpec,
    stage: Stage,
    /// Time of the release of the lanes.
    origin_ns: u64,
    /// Operations that the last sample lacks, if passes share samples.
    lacks: u64,
    /// Number of times that CPU time was booked.
    booked: u64,
}

/// Operations of one sample that were done, and their time.
struct Taken {
    operations: u64,
    from_ns: u64,
    to_ns: u64,
}

/// Makes room on pages that are present.
fn present(most: usize) -> Vec<u64> {
    let mut room = vec![1; most];
    room.clear();
    room
}

impl Sampled {
    /// Brings the lines of the next samples into the cache: a store to a line in memory made each
    /// eighth copy of 64 B longer by 140 of 210 ns.
    fn touch(&mut self) {
        for times in [&mut self.stage.sample_ns, &mut self.stage.sample_start_ns] {
            let (len, room) = (times.len(), times.capacity());
            times.resize(room.min(len + TOUCHED), 0);
            times.truncate(len);
        }
    }

    fn keep(&mut self, taken: &Taken) {
        let start_ns = taken.from_ns.saturating_sub(self.origin_ns);
        let stage = &mut self.stage;
        if stage.sample_ns.is_empty() {
            stage.start_ns = start_ns;
        }
        stage.end_ns = taken.to_ns.saturating_sub(self.origin_ns);
        if self.spec.has_gaps() {
            stage.sample_start_ns.push(start_ns);
        }
        stage.sample_ns.push(taken.to_ns.saturating_sub(taken.from_ns));
    }

    fn book_cpu(&mut self, before: cpu_time::Usage) {
        let after = cpu_time::of_thread();
        self.booked += 1;
        self.stage.cpu.user_ns += after.user_ns.saturating_sub(before.user_ns);
        self.stage.cpu.system_ns += after.system_ns.saturating_sub(before.system_ns);
    }

    /// Returns the stage without an incomplete last sample, which is not comparable with the
    /// others. A single sample is kept and covers the operations done.
    pub(crate) fn stage(self) -> Stage {
        let mut stage = self.stage;
        if stage.sample_ns.iter().sum::<u64>() < self.booked * cpu_time::MIN_SPAN_NS {
            stage.cpu = CpuTime::default();
        }
        match (self.lacks, stage.sample_ns.len()) {
            (0, _) => {}
            (lacks, 1) => stage.ops_per_sample -= lacks,
            _ => drop(stage.sample_ns.pop()),
        }
        stage
    }
}

impl Sampling<'_> {
    pub(crate) fn plan(&mut self) -> Result<Vec<Sampled>, Fault> {
        let specs = self.session.stages();
        specs.into_iter().enumerate().map(|(at, spec)| self.plan_stage(at, spec)).collect()
    }

    fn plan_stage(&mut self, at: usize, spec: StageSpec) -> Result<Sampled, Fault> {
        let (ops_per_sample, samples) = match self.settings.plan {
            StepPlan::Timed(_) if spec.once || spec.is_separate() => (1, MAX_SAMPLES),
            _ if spec.once => (1, 1),
            StepPlan::ByStage(operations) | StepPlan::ByPass(operations) if spec.is_separate() => {
                (1, operations)
            }
            StepPlan::ByStage(operations) => exact(operations, spec.batch),
            StepPlan::ByPass(passes) => exact(passes, 1),
            StepPlan::Timed(budget) => self.calibrate(at, budget, spec.batch)?,
        };
        let room = usize::try_from(samples.min(MAX_SAMPLES)).expect("at most MAX_SAMPLES");
        let slices = Slicer::room(self.settings.plan, room, self.context);
        let stage = Stage {
            name: spec.name.as_str().into(),
            ops_per_sample,
            bytes_per_op: spec.bytes_per_op,
            traffic_bytes_per_op: spec.traffic_bytes_per_op,
            limit: spec.limit.as_ref().map(|limit| limit.name().into()),
            sample_ns: present(room),
            sample_start_ns: present(if spec.has_gaps() { room } else { 0 }),
            slices,
            ..Stage::default()
        };
        Ok(Sampled { spec, stage, origin_ns: 0, lacks: 0, booked: 0 })
    }

    /// Warms up for a tenth of the budget, then chooses operations per sample. A sample is one
    /// operation if that is long against the clock's cost and resolution, else a slice. It is a
    /// number of whole batches, within the limit on samples.
    fn calibrate(&mut self, at: usize, budget: Duration, batch: u64) -> Result<(u64, u64), Fault> {
        let warm_up_ns = as_ns(budget) / 10;
        let mut stride = Stride::of(batch);
        let begin = clock::monotonic_ns();
        let (mut operations, mut before) = (0_u64, begin);
        let elapsed_ns = loop {
            let done =
                stride.operations.min((1 << 30) / stride.whole * stride.whole).max(stride.whole);
            self.session.step(at, done)?;
            operations += done;
            let now = clock::monotonic_ns();
            if now - begin >= warm_up_ns || self.settings.stop.is_set() {
                break now - begin;
            }
            stride.took(now - before);
            before = now;
        };
        let op_ns = (elapsed_ns as f64 / operations as f64).max(1e-3);
        let clock = &self.context.clock;
        let least_ns = SAMPLE_OVER_CLOCK * clock.resolution_ns.max(clock.overhead_ns);
        let slice_ns = Slicer::length_ns(self.settings.plan) as f64;
        let sample_ns = if op_ns < least_ns { slice_ns.max(least_ns) } else { op_ns };
        let fewest_for_memory = as_ns(budget) as f64 / op_ns / MAX_SAMPLES as f64;
        let ops_per_sample =
            whole((sample_ns / op_ns).max(fewest_for_memory).ceil().clamp(1.0, 1e15));
        Ok((ops_per_sample.next_multiple_of(batch.max(1)), MAX_SAMPLES))
    }

    /// Takes the samples of all stages, in the order of the plan. Samples before a fault stay in
    /// the stages.
    pub(crate) fn take(
        &mut self,
        stages: &mut [Sampled],
        origin_ns: u64,
        seen: &mut Vec<u32>,
    ) -> Result<(), Fault> {
        stages.iter_mut().for_each(|sampled| sampled.origin_ns = origin_ns);
        if let StepPlan::ByPass(passes) = self.settings.plan {
            return self.passes(stages, passes, seen);
        }
        for (at, sampled) in stages.iter_mut().enumerate() {
            let most = match self.settings.plan {
                StepPlan::ByStage(_) if sampled.spec.once => 1,
                StepPlan::ByStage(operations) => operations.div_ceil(sampled.stage.ops_per_sample),
                _ => MAX_SAMPLES,
            };
            note_cpu(seen);
            self.samples(at, sampled, most)?;
            note_cpu(seen);
            self.check_stop(sampled.stage.sample_ns.len() as u64, most)?;
        }
        Ok(())
    }

    fn passes(
        &mut self,
        stages: &mut [Sampled],
        passes: u64,
        seen: &mut Vec<u32>,
    ) -> Result<(), Fault> {
        for pass in 0..passes {
            for (at, sampled) in stages.iter_mut().enumerate() {
                if sampled.spec.once && pass > 0 {
                    continue;
                }
                note_cpu(seen);
                match sampled.spec.is_separate() {
                    true => self.samples(at, sampled, 1)?,
                    false => self.one_pass(at, sampled)?,
                }
            }
            self.check_stop(pass + 1, passes)?;
        }
        Ok(())
    }

    /// Takes up to `most` samples, for at most the plan's time (but three), and books the CPU time.
    /// A stage whose output is compared is taken in rounds.
    fn samples(&mut self, at: usize, sampled: &mut Sampled, most: u64) -> Result<(), Fault> {
        let Settings { plan, within, in_one, .. } = *self.settings;
        let budget_ns = if let StepPlan::Timed(budget) = plan { as_ns(budget) } else { u64::MAX };
        // Calibrated samples are short; those of an exact plan may have any number of operations.
        let (is_short, whole) =
            (budget_ns / MAX_SAMPLES < LOOK_EVERY_NS, sampled.stage.ops_per_sample);
        let stride = if is_short { whole } else { sampled.spec.batch.min(whole) };
        sampled.touch();
        let is_checked = sampled.spec.checked;
        let begin_ns = clock::monotonic_ns();
        let slicer = Slicer::begin(plan, self.context, begin_ns);
        let mut series = Series {
            at,
            sampled,
            stride: Stride::of(stride),
            // Its probes would lie between the first and the last sample.
            slicer: (!in_one).then_some(slicer),
            begin_ns,
            last_ns: begin_ns,
            count: 0,
            most,
            budget_ns: within.map_or(budget_ns, |within| {
                // Half of the time is for comparisons.
                let share = if is_checked { 2 } else { 1 };
                budget_ns.min(as_ns(within) / share)
            }),
        };
        let ended = match is_checked {
            true => self.rounds(&mut series),
            false => self.round(&mut series, most),
        };
        if let Some(slicer) = series.slicer {
            slicer.end(&mut series.sampled.stage.slices);
        }
        ended
    }

    /// Takes samples in rounds, which all lanes begin and end together. Between two rounds no lane
    /// works, and each compares its output. Alone, rounds end after 1, 2, 3, 5, 7, 10, 14 samples
    /// and so on, each later by 3/8: for all periods up to 7 these meet each remainder within 300
    /// samples, so that a periodic fault is found. In one piece, the first round has all samples,
    /// and the others only untimed operations.
    fn rounds(&mut self, series: &mut Series<'_>) -> Result<(), Fault> {
        let within_ns = self.settings.within.map_or(u64::MAX, as_ns);
        let mut until = 0;
        loop {
            let is_late = clock::monotonic_ns() - series.begin_ns > within_ns;
            until = if is_late { until.max(FEWEST) } else { until + until * 3 / 8 + 1 };
            self.round.wait();
            series.sampled.touch();
            for _ in 0..UNTIMED {
                if !self.settings.stop.is_set() {
                    self.session.step(series.at, 1)?;
                }
            }
            self.round.meet();
            self.round(series, if self.in_one { series.most } else { until })?;
            if series.is_over() && clock::monotonic_ns() - series.begin_ns > within_ns {
                self.round.set_late();
            }
            self.round.wait();
            if self.settings.stop.is_set() {
                return Ok(());
            }
            self.session.check_sample(series.at)?;
            let compared = if self.in_one { series.most.min(COMPARED) } else { series.count };
            if self.round.is_late() || series.is_over() && until >= compared {
                return Ok(());
            }
            series.last_ns = clock::monotonic_ns();
        }
    }

    /// Takes samples one after another until there are `end`.
    fn round(&mut self, series: &mut Series<'_>, end: u64) -> Result<(), Fault> {
        let cpu_before = cpu_time::of_thread();
        let ended = self.consecutive(series, end);
        series.sampled.book_cpu(cpu_before);
        ended
    }

    fn consecutive(&mut self, series: &mut Series<'_>, end: u64) -> Result<(), Fault> {
        let is_separate = series.sampled.spec.is_separate();
        let whole = series.sampled.stage.ops_per_sample;
        series.last_ns = clock::monotonic_ns();
        while series.count < end && !series.is_over() && !self.settings.stop.is_set() {
            let (taken, ended) = match is_separate {
                true => self.separate_sample(series),
                false => self.sample(series, whole),
            };
            let is_kept = self.session.sampled(taken.from_ns, taken.to_ns);
            if taken.operations < whole {
                // The lane was stopped, or it failed. A partial sample is kept only if it is the
                // only one.
                if is_kept && series.count == 0 && taken.operations > 0 {
                    series.sampled.stage.ops_per_sample = taken.operations;
                    series.sampled.keep(&taken);
                }
                return ended;
            }
            series.count += 1;
            if !is_kept {
                let skipped = series.slicer.as_mut().map(Slicer::skip);
                series.last_ns = skipped.unwrap_or_else(clock::monotonic_ns);
                continue;
            }
            series.sampled.keep(&taken);
            series.last_ns = if is_separate { clock::monotonic_ns() } else { taken.to_ns };
            if let Some(slicer) = &mut series.slicer {
                series.last_ns = slicer.sampled(&mut series.sampled.stage.slices, series.last_ns);
            }
        }
        Ok(())
    }

    /// Does the operations of one sample in calls short enough for the stop flag: fewer than all
    /// after a stop or a fault.
    fn sample(&mut self, series: &mut Series<'_>, whole: u64) -> (Taken, Result<(), Fault>) {
        let Series { at, ref mut stride, last_ns: from_ns, .. } = *series;
        let taken = |operations, to_ns| Taken { operations, from_ns, to_ns };
        if whole <= stride.operations {
            let more = again(series.count + 1, whole) - again(series.count, whole);
            let ended = self.session.step(at, whole + more);
            let done = if ended.is_ok() { whole } else { 0 };
            return (taken(done, clock::monotonic_ns()), ended);
        }
        let (mut done, mut before) = (0, clock::monotonic_ns());
        while done < whole && (done == 0 || !self.settings.stop.is_set()) {
            let now = stride.operations.min(whole - done);
            if let Err(fault) = self.session.step(at, now) {
                return (taken(done, before), Err(fault));
            }
            done += now;
            let after = clock::monotonic_ns();
            stride.took(after - before);
            before = after;
        }
        (taken(done, before), Ok(()))
    }

    /// Takes a sample of one operation: prepared before, or timed by the device.
    fn separate_sample(&mut self, series: &Series<'_>) -> (Taken, Result<(), Fault>) {
        let (at, spec) = (series.at, &series.sampled.spec);
        let mut ended = if spec.before_sample { self.session.before_sample(at) } else { Ok(()) };
        let from_ns = clock::monotonic_ns();
        ended = ended.and_then(|()| self.session.step(at, 1));
        let to_ns = clock::monotonic_ns();
        let operations = u64::from(ended.is_ok());
        let host = DeviceTime { before_ns: from_ns, after_ns: to_ns };
        let time = if spec.device_timed { self.session.device_time() } else { host };
        (Taken { operations, from_ns: time.before_ns, to_ns: time.after_ns }, ended)
    }

    /// Does one operation of a by-pass plan. With more than [`MAX_SAMPLES`] passes, consecutive
    /// ones share a sample.
    fn one_pass(&mut self, at: usize, sampled: &mut Sampled) -> Result<(), Fault> {
        let cpu_before = cpu_time::of_thread();
        let from_ns = clock::monotonic_ns();
        let slicer = Slicer::begin(self.settings.plan, self.context, from_ns);
        let result = self.session.step(at, 1);
        let to_ns = clock::monotonic_ns();
        sampled.book_cpu(cpu_before);
        let is_kept = self.session.sampled(from_ns, to_ns);
        let Sampled { stage, lacks, origin_ns, .. } = sampled;
        if stage.sample_ns.is_empty() {
            stage.start_ns = from_ns.saturating_sub(*origin_ns);
        }
        stage.end_ns = to_ns.saturating_sub(*origin_ns);
        result?;
        match stage.sample_ns.last_mut() {
            _ if !is_kept => {}
            Some(last) if *lacks > 0 => {
                *last += to_ns - from_ns;
                *lacks -= 1;
            }
            _ => {
                stage.sample_ns.push(to_ns - from_ns);
                *lacks = stage.ops_per_sample - 1;
                slicer.passed(stage, to_ns);
            }
        }
        Ok(())
    }

    fn check_stop(&self, done: u64, of: u64) -> Result<(), Fault> {
        if self.settings.stop.is_set() && done < of {
            return Err(Fault::new(format!("{INTERRUPTED} after {done} samples")));
        }
        Ok(())
    }
}

/// Notes the CPU of this thread, once.
fn note_cpu(seen: &mut Vec<u32>) {
    seen.extend(affinity::current_cpu().filter(|cpu| !seen.contains(cpu)));
}

/// Operations of one call of [`Session::step`]: whole batches that last about half of
/// [`LOOK_EVERY_NS`].
struct Stride {
    operations: u64,
    whole: u64,
}

impl Stride {
    fn of(whole: u64) -> Stride {
        let whole = whole.max(1);
        Stride { operations: whole, whole }
    }

    fn took(&mut self, ns: u64) {
        if ns < LOOK_EVERY_NS / 4 {
            self.operations = self.operations.saturating_mul(2);
        } else if ns > LOOK_EVERY_NS {
            self.operations = (self.operations / 2).next_multiple_of(self.whole);
        }
    }
}

/// Returns operations per sample and number of samples for exactly that number of operations: whole
/// batches, if they divide it.
fn exact(operations: u64, batch: u64) -> (u64, u64) {
    let whole = batch.clamp(1, operations.max(1));
    let batch = if operations.is_multiple_of(whole) { whole } else { 1 };
    let ops_per_sample = batch * (operations / batch).div_ceil(MAX_SAMPLES).max(1);
    (ops_per_sample, operations.div_ceil(ops_per_sample))
}

fn as_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::barrier::Barrier;
    use crate::fixtures::Fake;

    fn sampled(
        settings: &Settings,
        spec: StageSpec,
        step: impl FnMut(u64) -> Result<(), Fault> + Send,
    ) -> (Result<(), Fault>, Stage) {
        let mut session = Fake { stage: spec, step, verified: Ok(()) };
        let (context, barrier) = (&Context::default(), Barrier::default());
        let round = &barrier.join();
        let mut sampling =
            Sampling { session: &mut session, settings, context, round, in_one: false };
        let mut stages = sampling.plan().unwrap();
        let room = stages[0].stage.sample_ns.capacity();
        let taken = sampling.take(&mut stages, 0, &mut Vec::new());
        assert_eq!(stages[0].stage.sample_ns.capacity(), room, "samples allocate nothing");
        (taken, stages.remove(0).stage())
    }

    /// Regression: 9 of the 10 slowest of 300 copies followed a comparison.
    #[test]
    fn no_sample_follows_a_comparison_and_no_lane_works_during_one() {
        /// Does one operation after a comparison slowly; the others take no time.
        struct Spoilt<'a> {
            is_cold: bool,
            own: u64,
            of_all: &'a AtomicU64,
            compared: Vec<(u64, u64)>,
        }
        impl Session for Spoilt<'_> {
            fn device(&self) -> String {
                "test".to_owned()
            }
            fn stages(&self) -> Vec<StageSpec> {
                vec![StageSpec { checked: true, ..StageSpec::new("work", 1, 1) }]
            }
            fn prepare(&mut self) -> Result<(), Fault> {
                Ok(())
            }
            fn step(&mut self, _: usize, operations: u64) -> Result<(), Fault> {
                let until = clock::monotonic_ns() + 200_000;
                while std::mem::take(&mut self.is_cold) && clock::monotonic_ns() < until {
                    self.is_cold = clock::monotonic_ns() < until;
                }
                self.own += operations;
                self.of_all.fetch_add(operations, Ordering::Relaxed);
                Ok(())
            }
            fn check_sample(&mut self, _: usize) -> Result<(), Fault> {
                self.is_cold = true;
                self.compared.push((self.own, self.of_all.load(Ordering::Relaxed)));
                Ok(())
            }
            fn verify(&mut self) -> Result<(), Fault> {
                Ok(())
            }
            fn tally(&mut self) -> crate::Tally {
                crate::Tally::default()
            }
        }
        let (settings, context) =
            (&Settings::new(StepPlan::ByStage(300), "test"), &Context::default());
        for lanes in [1, 3] {
            let (barrier, of_all) = (&Barrier::default(), &AtomicU64::new(0));
            let lane = |round: &Participant<'_>| {
                let compared = Vec::new();
                let mut session = Spoilt { is_cold: true, own: 0, of_all, compared };
                let in_one = lanes > 1;
                let mut sampling =
                    Sampling { session: &mut session, settings, context, round, in_one };
                let mut stages = sampling.plan().unwrap();
                sampling.take(&mut stages, 0, &mut Vec::new()).unwrap();
                (stages.remove(0).stage(), session.compared)
            };
            let ended: Vec<_> = std::thread::scope(|scope| {
                let rounds: Vec<_> = (0..lanes).map(|_| barrier.join()).collect();
                let threads = rounds.into_iter().map(|round| scope.spawn(move || lane(&round)));
                let threads: Vec<_> = threads.collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for (stage, compared) in ended {
                let slow = stage.sample_ns.iter().filter(|ns| **ns >= 200_000).count();
                assert!(slow < 4, "{slow} samples followed a comparison");
                assert_eq!((stage.sample_ns.len(), compared.len()), (300, 17));
                assert!(compared.iter().all(|(own, all)| *all == lanes * own), "{compared:?}");
            }
        }
    }

    #[test]
    fn nothing_lies_between_the_samples_of_a_stage_in_one_piece() {
        let settings = Settings { in_one: true, ..Settings::new(StepPlan::ByStage(9), "test") };
        let spin = |_| {
            let until = clock::monotonic_ns() + 1_000_000;
            while clock::monotonic_ns() < until {}
            Ok(())
        };
        let (_, stage) = sampled(&settings, batches_of(1), spin);
        assert_eq!(stage.sample_ns.iter().sum::<u64>(), stage.end_ns - stage.start_ns);
    }

    /// By getrusage a thread that spun had 3.6 % of a CPU in its stage, or 1020 %.
    #[test]
    fn cpu_time_of_a_stage_is_its_own_and_that_of_a_short_one_is_unknown() {
        let cpu_ns = |plan, spin_ns: u64| {
            let settings = Settings::new(plan, "test");
            let (_, stage) = sampled(&settings, batches_of(1), |_| {
                let end_ns = clock::thread_cpu_ns() + spin_ns;
                while clock::thread_cpu_ns() < end_ns {}
                Ok(())
            });
            stage.cpu.total_ns()
        };
        for plan in [StepPlan::ByPass(28), StepPlan::ByStage(28)] {
            let found_ns = cpu_ns(plan, 200_000);
            assert!((28 * 200_000..28 * 300_000).contains(&found_ns), "{plan:?}: {found_ns}");
        }
        // A host that takes the CPU away meanwhile makes a stage long.
        assert!((0..5).any(|_| cpu_ns(StepPlan::ByPass(28), 0) == 0));
    }

    fn batches_of(batch: u64) -> StageSpec {
        StageSpec { batch, ..StageSpec::new("work", 1, 1) }
    }

    /// Regression: it had room for one sample in a plan by time, which takes many.
    #[test]
    fn a_stage_that_runs_once_has_room_for_all_samples_of_a_plan() {
        let once = StageSpec { once: true, ..batches_of(1) };
        for (plan, wanted) in [
            (StepPlan::Timed(Duration::ZERO), 3),
            (StepPlan::ByStage(9), 1),
            (StepPlan::ByPass(9), 1),
        ] {
            let settings = Settings::new(plan, "test");
            let (_, stage) = sampled(&settings, once.clone(), |_| Ok(()));
            assert_eq!((stage.sample_ns.len(), stage.ops_per_sample), (wanted, 1), "{plan:?}");
        }
    }

    #[test]
    fn a_number_of_operations_ends_after_its_time_with_three() {
        for (within, samples) in [(None, 50), (Some(Duration::ZERO), 3)] {
            let settings = Settings { within, ..Settings::new(StepPlan::ByStage(50), "test") };
            let (taken, stage) = sampled(&settings, batches_of(1), |_| Ok(()));
            assert_eq!((taken, stage.sample_ns.len()), (Ok(()), samples));
        }
    }

    /// Sets the stop flag after `at` operations, and refuses any after it.
    fn stopped(plan: StepPlan, at: u64) -> (Result<(), Fault>, u64, Stage) {
        let settings = Settings::new(plan, "test");
        let (stop, mut done) = (settings.stop.clone(), 0);
        let (taken, stage) = sampled(&settings, batches_of(5), |operations| {
            if stop.is_set() || operations > 10 * at {
                return Err(Fault::new(format!("{operations} operations at once after {done}")));
            }
            done += operations;
            if done >= at {
                stop.set();
            }
            Ok(())
        });
        (taken, done, stage)
    }

    #[test]
    fn a_stop_is_seen_within_a_sample_and_what_was_done_of_it_is_kept() {
        // Each of its samples would be 2^48 operations.
        let (taken, done, stage) = stopped(StepPlan::ByStage(u64::MAX), 10_000);
        assert_eq!(taken.unwrap_err().0, "interrupted after 1 samples");
        assert!((10_000..100_000).contains(&done), "{done}");
        assert_eq!((stage.ops_per_sample, stage.sample_ns.len()), (done, 1));
        assert!(done.is_multiple_of(5), "whole batches");
    }

    /// Regression: the rate was ten times too high for 100 passes that share a sample of 1000.
    #[test]
    fn passes_that_were_not_done_are_in_no_sample() {
        let (_, done, stage) = stopped(StepPlan::ByPass(MAX_SAMPLES * 1000), 100);
        assert_eq!((done, stage.ops_per_sample), (100, 100));
        assert_eq!(stage.sample_ns.len(), 1);
        let (_, done, stage) = stopped(StepPlan::ByPass(MAX_SAMPLES * 30), 100);
        assert_eq!((done, stage.ops_per_sample), (100, 30));
        assert_eq!(stage.sample_ns.len(), 3);
    }

    /// Regression: no sample was left of 453 reads of 10^9.
    #[test]
    fn what_was_done_before_an_operation_that_was_cut_short_is_kept() {
        let mut done = 0;
        let settings = Settings::new(StepPlan::ByStage(1 << 40), "test");
        let (taken, stage) = sampled(&settings, batches_of(1), |operations| {
            if done > 1000 {
                return Err(Fault::interrupted());
            }
            done += operations;
            Ok(())
        });
        assert_eq!(taken, Err(Fault::interrupted()));
        assert_eq!((stage.ops_per_sample, stage.sample_ns.len()), (done, 1));
    }

    #[test]
    fn a_stop_is_seen_while_warming_up() {
        let (taken, done, stage) = stopped(StepPlan::Timed(Duration::from_secs(36_000)), 10_000);
        assert_eq!(taken.unwrap_err().0, "interrupted after 0 samples");
        assert!((10_000..100_000).contains(&done) && stage.sample_ns.is_empty(), "{done}");
    }

    #[test]
    fn calls_grow_while_they_are_short_and_shrink_when_they_are_long() {
        let mut stride = Stride::of(3);
        stride.took(10);
        stride.took(10);
        assert_eq!(stride.operations, 12);
        stride.took(LOOK_EVERY_NS / 2);
        assert_eq!(stride.operations, 12);
        stride.took(2 * LOOK_EVERY_NS);
        assert_eq!(stride.operations, 6);
        (0..9).for_each(|_| stride.took(u64::MAX));
        assert_eq!(stride.operations, 3, "never less than a batch");
    }
}
