//! Lanes of a run: a thread for each session, which meet before and after the timed steps.
//!
//! Any failure of a session or an observer, even a panic, becomes an outcome in the record. A
//! failed lane stops no other lane, and no thread waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use daqmeter_record::{Lane, Outcome, RunRecord};
use daqmeter_sys::perf::Sampler;
use daqmeter_sys::{affinity, clock};

use crate::barrier::{Barrier, Participant};
use crate::conditions::Conditions;
use crate::guarded::guarded;
use crate::placement::pin;
use crate::sample::{Sampled, Sampling};
use crate::{Context, Fault, Observer, Session, Settings, Tally};

#[derive(Default)]
pub(crate) struct LaneDone {
    pub(crate) lane: Lane,
    pub(crate) tally: Tally,
    /// Samples of its profile, if it has one.
    pub(crate) pointers: Option<Vec<u64>>,
    pub(crate) does_not_fit: bool,
}

impl LaneDone {
    fn without(lane: Lane, fault: Fault) -> LaneDone {
        let does_not_fit = fault.does_not_fit();
        LaneDone {
            lane: Lane { outcome: Outcome::Failed(fault.0), ..lane },
            does_not_fit,
            ..LaneDone::default()
        }
    }
}

#[derive(Default)]
pub(crate) struct Ran {
    pub(crate) lanes: Vec<LaneDone>,
    pub(crate) faults: Vec<String>,
}

#[derive(Clone, Copy)]
pub(crate) struct Running<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) context: &'a Context,
    pub(crate) processes: bool,
    /// Makes the thread of the lane with that index; tests make one that cannot be started.
    pub(crate) thread: fn(usize) -> thread::Builder,
}

pub(crate) fn lane_thread(index: usize) -> thread::Builder {
    thread::Builder::new().name(format!("lane-{index}"))
}

pub(crate) fn run_lanes(
    sessions: Vec<Box<dyn Session>>,
    running: Running,
    observers: &mut [Box<dyn Observer>],
    record: &mut RunRecord,
) -> Ran {
    let (barrier, rounds) = (Barrier::default(), Barrier::default());
    let origin_ns = AtomicU64::new(0);
    let mut observing = Observing { observers, faults: Vec::new() };
    observing.each(|observer| observer.arm());
    thread::scope(|scope| {
        // This thread joins first and waits last. On unwinding, it leaves the barrier before the
        // scope waits for the lanes.
        let own = barrier.join();
        let (mut threads, is_alone) = (Vec::new(), sessions.len() == 1);
        for (index, session) in sessions.into_iter().enumerate() {
            let mut runner = LaneRunner::new(index, session, running, &rounds);
            runner.in_one |= !is_alone;
            let (lane, participant, origin_ns) = (runner.lane.clone(), barrier.join(), &origin_ns);
            // If the thread cannot be started, the closure is dropped, and with it the participant.
            let work = move || runner.run(&participant, origin_ns);
            let started = match own.is_called_off() {
                true => {
                    Err("its thread was not started because another lane's thread could not start"
                        .to_owned())
                }
                false => (running.thread)(index)
                    .spawn_scoped(scope, work)
                    .map_err(|error| format!("cannot start its thread: {error}")),
            };
            if started.is_err() {
                own.call_off();
            }
            threads.push((lane, started));
        }
        // Ends once all lanes are ready.
        own.wait();
        observing.observe(&own, &origin_ns, running.processes, record);
        let lanes =
            threads.into_iter().map(|(lane, started)| match started.map(|thread| thread.join()) {
                Ok(Ok(done)) => done,
                Ok(Err(_)) => LaneDone::without(
                    lane,
                    Fault::new("its thread panicked: a bug in daqmeter, please report it"),
                ),
                Err(why) => LaneDone::without(lane, Fault::too_large(why)),
            });
        Ran { lanes: lanes.collect(), faults: observing.faults }
    })
}

/// Observers of a run. Their panics are its faults.
struct Observing<'a> {
    observers: &'a mut [Box<dyn Observer>],
    faults: Vec<String>,
}

impl Observing<'_> {
    fn each<T>(&mut self, call: impl Fn(&mut dyn Observer) -> T) -> Vec<T> {
        let called = self.observers.iter_mut();
        let called = called.map(|observer| guarded("an observer", || call(observer.as_mut())));
        called.filter_map(|done| done.map_err(|fault| self.faults.push(fault.0)).ok()).collect()
    }

    /// Runs from the release of the lanes to the last end, with the accounts of the host.
    fn observe(
        &mut self,
        own: &Participant<'_>,
        origin: &AtomicU64,
        processes: bool,
        record: &mut RunRecord,
    ) {
        let conditions = Conditions::before(processes);
        self.each(|observer| observer.start());
        let origin_ns = clock::monotonic_ns();
        origin.store(origin_ns, Ordering::Release);
        own.wait();
        own.wait();
        record.wall_ns = clock::monotonic_ns() - origin_ns;
        record.origin_ns = origin_ns;
        record.counters = self.each(|observer| observer.stop()).concat();
        let sections = self.each(|observer| observer.sections(origin_ns));
        sections.into_iter().for_each(|found| record.sections.add(found));
        record.warnings.extend(self.each(|observer| observer.trouble()).into_iter().flatten());
        conditions.after(record);
        // The lanes now verify and tally; their CPU time no longer counts.
        own.wait();
    }
}

/// Session whose panics are faults. After a panic its state is unknown, and it is dropped.
struct Guarded(Option<Box<dyn Session>>);

impl Guarded {
    fn call<T>(
        &mut self,
        what: &str,
        work: impl FnOnce(&mut dyn Session) -> T,
    ) -> Result<T, Fault> {
        let session = self.0.as_mut().ok_or_else(|| Fault::new("panicked before"))?;
        let done = guarded(what, || work(session.as_mut()));
        if done.is_err() {
            // Its lane has failed by this panic.
            let _ = self.end();
        }
        done
    }

    fn end(&mut self) -> Result<(), Fault> {
        let session = self.0.take();
        guarded("the session's end", move || drop(session))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Its lane has already failed.
        let _ = self.end();
    }
}

struct LaneRunner<'a> {
    index: usize,
    session: Guarded,
    lane: Lane,
    running: Running<'a>,
    /// Barrier of the timed rounds, until the lane's last one.
    round: Option<Participant<'a>>,
    in_one: bool,
}

type Stages = Vec<Sampled>;

impl<'a> LaneRunner<'a> {
    fn new(
        index: usize,
        session: Box<dyn Session>,
        running: Running<'a>,
        rounds: &'a Barrier,
    ) -> LaneRunner<'a> {
        let pin = &running.settings.pin;
        let requested_cpu = pin.get(index % pin.len().max(1)).copied();
        let mut session = Guarded(Some(session));
        let device = session
            .call("device", |session| session.device())
            .unwrap_or_else(|_| format!("lane {index}"));
        let emulated =
            session.call("is_emulated", |session| session.is_emulated()).unwrap_or_default();
        LaneRunner {
            index,
            session,
            lane: Lane { device, emulated, requested_cpu, ..Lane::default() },
            running,
            round: Some(rounds.join()),
            in_one: running.settings.in_one,
        }
    }

    fn sample<T>(
        &mut self,
        what: &str,
        work: impl FnOnce(&mut Sampling<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let (Running { settings, context, .. }, in_one) = (self.running, self.in_one);
        let round = self.round.as_ref().expect("held to the end of the timed steps");
        let sampling = |session: &mut dyn Session| {
            work(&mut Sampling { session, settings, context, round, in_one })
        };
        self.session.call(what, sampling).flatten()
    }

    /// Runs the lane's whole life. A failed lane still waits at every round of the barrier.
    fn run(mut self, barrier: &Participant, origin_ns: &AtomicU64) -> LaneDone {
        let mut warnings = Vec::new();
        let ready = self.make_ready();
        let mut sampler = self.sampler(&mut warnings);
        barrier.wait();
        barrier.wait();
        let timed = ready.and_then(|stages| match barrier.is_called_off() {
            true => {
                Err(Fault::too_large("not run, because another lane's thread could not be started"))
            }
            false => self.timed(stages, origin_ns, sampler.as_ref()),
        });
        self.round = None;
        let (pointers, lost) = sampler.as_mut().map(Sampler::stop).unzip();
        barrier.wait();
        barrier.wait();
        if let Some(lost @ 1..) = lost {
            let lane = self.index;
            let full = "samples were lost because the buffer was full";
            warnings.push(format!("profile of lane {lane}: {lost} {full}"));
        }
        self.account(timed, warnings, pointers)
    }

    fn make_ready(&mut self) -> Result<Stages, Fault> {
        self.lane.requested_cpu.map_or(Ok(()), pin)?;
        self.lane.allowed_cpus = affinity::allowed_cpus()?;
        let settings = self.running.settings;
        self.session.call("set_stop_flag", |session| session.set_stop_flag(&settings.stop))?;
        self.session.call("preparation", |session| session.prepare()).flatten()?;
        let go_on = || if settings.stop.is_set() { Err(Fault::interrupted()) } else { Ok(()) };
        go_on()?;
        let verified = self.session.call("verification", |session| session.verify()).flatten();
        verified.map_err(|fault| fault.context("verification before the run"))?;
        go_on()?;
        self.sample("the warm-up", |sampling| sampling.plan())
    }

    /// Runs the timed steps. Samples before a fault or a panic are kept.
    fn timed(
        &mut self,
        mut stages: Stages,
        origin_ns: &AtomicU64,
        sampler: Option<&Sampler>,
    ) -> Result<(), Fault> {
        let origin_ns = origin_ns.load(Ordering::Acquire);
        self.session.call("begin", |session| session.begin())?;
        if let Some(sampler) = sampler {
            sampler.start();
        }
        let mut seen = Vec::new();
        let take = |sampling: &mut Sampling<'_>| sampling.take(&mut stages, origin_ns, &mut seen);
        let ended = self.sample("a timed step", take);
        self.lane.seen_cpus = seen;
        self.lane.stages = stages.into_iter().map(Sampled::stage).collect();
        ended
    }

    fn account(
        mut self,
        timed: Result<(), Fault>,
        warnings: Vec<String>,
        pointers: Option<Vec<u64>>,
    ) -> LaneDone {
        let verified = timed.and_then(|()| {
            let verified = self.session.call("verification", |session| session.verify()).flatten();
            verified.map_err(|fault| fault.context("verification after the run"))
        });
        let mut tally = Tally::default();
        let tallied = self.session.call("tally", |session| tally = session.tally());
        let ended = self.session.end();
        let mut lane = self.lane;
        let mut does_not_fit = false;
        if let Err(fault) = verified.and(tallied).and(ended) {
            does_not_fit = fault.does_not_fit();
            let named = format!("{}: ", lane.device);
            lane.outcome = Outcome::Failed(fault.0.replace(&named, ""));
        }
        if let Some(stage) = lane.stages.first_mut() {
            stage.carried_bytes = tally.carried_bytes;
        }
        lane.numa_node = tally.numa_node;
        lane.seen_cpus.sort_unstable();
        tally.warnings.splice(0..0, warnings);
        LaneDone { lane, tally, pointers, does_not_fit }
    }

    fn sampler(&self, warnings: &mut Vec<String>) -> Option<Sampler> {
        let sampler = Sampler::of_this_thread(self.running.settings.profile_hz?);
        warnings.extend(match &sampler {
            Ok(sampler) if sampler.sees_kernel => None,
            Ok(_) => Some(
                "the profile has user mode only: set kernel.perf_event_paranoid to 1 or run as root".to_owned(),
            ),
            Err(error) => Some(format!(
                "profile waived: {error}; set kernel.perf_event_paranoid to 2 or lower"
            )),
        });
        sampler.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use daqmeter_record::{Counter, Workload};

    use super::*;
    use crate::conclude::conclude;
    use crate::{StageSpec, StepPlan, StopFlag};

    /// Panics in the call of that name, without a message on stderr.
    struct Panics {
        lane: usize,
        at: &'static str,
        verified: bool,
    }

    impl Panics {
        fn in_(&self, call: &'static str) {
            if self.lane == 1 && self.at == call {
                resume_unwind(Box::new("for this test"));
            }
        }
    }

    impl Session for Panics {
        fn device(&self) -> String {
            self.in_("device");
            format!("test{}", self.lane)
        }
        fn stages(&self) -> Vec<StageSpec> {
            self.in_("stages");
            vec![StageSpec { before_sample: true, ..StageSpec::new("work", 1, 1) }]
        }
        fn set_stop_flag(&mut self, _: &StopFlag) {
            self.in_("set_stop_flag");
        }
        fn prepare(&mut self) -> Result<(), Fault> {
            self.in_("prepare");
            Ok(())
        }
        fn verify(&mut self) -> Result<(), Fault> {
            self.in_(if self.verified { "verify after" } else { "verify before" });
            self.verified = true;
            Ok(())
        }
        fn begin(&mut self) {
            self.in_("begin");
        }
        fn before_sample(&mut self, _: usize) -> Result<(), Fault> {
            self.in_("before_sample");
            Ok(())
        }
        fn step(&mut self, _: usize, _: u64) -> Result<(), Fault> {
            self.in_("step");
            Ok(())
        }
        fn tally(&mut self) -> Tally {
            self.in_("tally");
            Tally::default()
        }
    }

    impl Drop for Panics {
        fn drop(&mut self) {
            self.in_("drop");
        }
    }

    /// Counts nothing, and panics in the call of that name.
    struct BadObserver(&'static str);

    impl BadObserver {
        fn in_(&self, call: &'static str) {
            if self.0 == call {
                resume_unwind(Box::new("for this test"));
            }
        }
    }

    impl Observer for BadObserver {
        fn arm(&mut self) {
            self.in_("arm");
        }
        fn start(&mut self) {
            self.in_("start");
        }
        fn stop(&mut self) -> Vec<Counter> {
            self.in_("stop");
            vec![]
        }
        fn trouble(&mut self) -> Option<String> {
            self.in_("trouble");
            None
        }
    }

    fn ends(
        at: &'static str,
        observer: &'static str,
        thread: fn(usize) -> thread::Builder,
    ) -> RunRecord {
        let (send, receive) = channel();
        thread::spawn(move || {
            let context = crate::conformance::context();
            let settings = Settings::new(StepPlan::ByStage(3), "test");
            let running =
                Running { settings: &settings, context: &context, processes: true, thread };
            let mut record = context.blank_record(Default::default(), Workload::new("test"));
            let lane = |lane| Box::new(Panics { lane, at, verified: false }) as Box<dyn Session>;
            let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(BadObserver(observer))];
            let ran = run_lanes((0..3).map(lane).collect(), running, &mut observers, &mut record);
            conclude(&mut record, ran, &settings, &context);
            // A failed test no longer receives it.
            let _ = send.send(record);
        });
        receive
            .recv_timeout(Duration::from_secs(60))
            .unwrap_or_else(|_| panic!("{at}{observer}: the run does not end"))
    }

    #[test]
    fn a_lane_that_panics_anywhere_fails_and_the_others_finish() {
        let calls = [
            ("device", "test0"),
            ("stages", "the warm-up panicked: for this test"),
            ("set_stop_flag", "set_stop_flag panicked: for this test"),
            ("prepare", "preparation panicked: for this test"),
            ("verify before", "verification panicked: for this test"),
            ("begin", "begin panicked: for this test"),
            ("before_sample", "a timed step panicked: for this test"),
            ("step", "a timed step panicked: for this test"),
            ("verify after", "verification panicked: for this test"),
            ("tally", "tally panicked: for this test"),
            ("drop", "the session's end panicked: for this test"),
        ];
        for (at, wanted) in calls {
            let record = ends(at, "", lane_thread);
            let outcomes: Vec<_> = record.lanes.iter().map(|lane| lane.outcome.clone()).collect();
            assert!(outcomes[0] == Outcome::Ok && outcomes[2] == Outcome::Ok, "{at}: {outcomes:?}");
            assert_eq!(record.lanes[2].stages[0].sample_ns.len(), 3, "{at}");
            let reason =
                outcomes[1].reason().unwrap_or_else(|| panic!("{at}: lane 1 is not failed"));
            assert!(at == "device" || reason.contains(wanted), "{at}: {reason}");
            assert!(matches!(record.outcome, Outcome::Failed(_)), "{at}: {:?}", record.outcome);
        }
    }

    #[test]
    fn an_observer_that_panics_fails_the_run_but_the_lanes_are_kept() {
        for call in ["arm", "start", "stop", "trouble"] {
            let record = ends("", call, lane_thread);
            assert!(record.lanes.iter().all(|lane| lane.outcome == Outcome::Ok), "{call}");
            assert!(
                record.outcome.reason().unwrap_or_default().contains("an observer panicked"),
                "{call}"
            );
        }
    }

    #[test]
    fn a_thread_that_cannot_be_started_fails_its_lane_and_the_others_are_not_run() {
        // No host has an address space for such a stack.
        let huge = |index| {
            if index == 1 { lane_thread(index).stack_size(1 << 60) } else { lane_thread(index) }
        };
        for at in ["", "drop"] {
            let record = ends(at, "", huge);
            let reasons: Vec<&str> =
                record.lanes.iter().map(|lane| lane.outcome.reason().unwrap_or("ok")).collect();
            assert!(reasons[0].starts_with("not run"), "{reasons:?}");
            assert!(reasons[1].starts_with("cannot start its thread"), "{reasons:?}");
            assert!(reasons[2].starts_with("its thread was not started"), "{reasons:?}");
            assert!(
                record
                    .lanes
                    .iter()
                    .all(|lane| lane.stages.iter().all(|stage| stage.sample_ns.is_empty()))
            );
        }
    }
}
