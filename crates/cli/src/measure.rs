//! Options and bench of every verb that measures: campaign's runner, and a recorder.

use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_campaign::{Runner, ab};
use daqmeter_harness::{Context, CpuList, Request, Settings, StepPlan, StopFlag, Tally, ordered};
use daqmeter_record::conditions::Taken;
use daqmeter_record::units::significant;
use daqmeter_record::{EngineInfo, Order, Outcome, Role, RunRecord, Workload};

use crate::arguments::{check_cpus, duration};
use crate::context::context;
use crate::interrupt;
use crate::metrics::Metrics;
use crate::output::{Failure, tell};
use crate::pmu::chosen::Observed;
use crate::progress::Forecast;
use crate::recorder::{Recorder, Recording};
use crate::start;

/// Options of every verb that measures.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) recording: Recording,
    /// CPUs for the threads, one each: 0,1 or 0-3
    #[arg(long, value_name = "CPUS", help_heading = "Placement")]
    pub(crate) pin: Option<CpuList>,
    #[command(flatten)]
    pub(crate) metrics: Metrics,
    /// Also count this group or these events, every 100 ms: block, net@10ms
    #[arg(long, value_name = "GROUP[@TIME]", help_heading = "Output", hide_short_help = true)]
    pub(crate) observe: Option<String>,
    /// Wait until other programs leave the CPUs idle; exit with 2 if they do not in this time
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Placement", hide_short_help = true)]
    pub(crate) wait_idle: Option<Duration>,
    /// Start at this time, at most 24 h ahead: 14:30 (UTC), +20s or 2026-11-30T14:30:00Z
    #[arg(long, value_name = "TIME", value_parser = start::time, help_heading = "Placement", hide_short_help = true)]
    pub(crate) at: Option<Duration>,
}

/// Time over which the use of the CPUs is looked at.
const IDLE_LOOK: Duration = Duration::from_millis(500);

impl Common {
    /// Waits until other programs use little of the CPUs.
    fn wait_until_idle(&self, context: &Context, stop: &StopFlag) -> Result<(), Failure> {
        let Some(within) = self.wait_idle else { return Ok(()) };
        let begin = Instant::now();
        loop {
            let look = context.open_record("", EngineInfo::default(), Workload::default());
            std::thread::sleep(IDLE_LOOK);
            let record = look.so_far(Tally::default(), Vec::new());
            let taken = Taken::from(&[record], None);
            if taken.is_little() || stop.is_set() {
                return Ok(());
            }
            if begin.elapsed() >= within {
                let by = significant(taken.by_programs + taken.by_hypervisor, 2);
                let of = taken.cpus;
                return Err(Failure::refused(format!(
                    "the host is not idle: after {} s others still use {by} of {of} CPUs",
                    within.as_secs_f64()
                )));
            }
        }
    }

    /// CPUs for the threads; an empty list leaves them free.
    pub(crate) fn pins(&self) -> Vec<u32> {
        self.pin.clone().unwrap_or_default().0
    }
}

pub(crate) struct Bench {
    pub(crate) runner: Runner,
    pub(crate) recorder: Recorder,
}

impl Bench {
    pub(crate) fn new(common: &Common) -> Result<Bench, Failure> {
        check_cpus("--pin", &common.pins())?;
        let observed = common.observe.as_deref().map(Observed::understand).transpose()?;
        let mut recorder = Recorder::new(&common.recording)?;
        recorder.metrics = common.metrics.served(|_| {})?;
        let mut runner = Runner::new(context(common.recording.label.as_deref()));
        runner.is_bare = ab::is_side();
        if let Some(observed) = observed {
            runner.observe(move || observed.observer());
        }
        runner.stop = interrupt::flag();
        recorder.stop = runner.stop.clone();
        common.wait_until_idle(&runner.context, &runner.stop)?;
        if let Some(at) = common.at {
            let start = start::wait_until(at, &runner.stop, common.recording.quiet)?;
            runner.context.start = Some(start);
        }
        let (engine, workload) = (EngineInfo::default(), Workload::default());
        recorder.whole = Some(runner.context.open_record("", engine, workload));
        Ok(Bench { runner, recorder })
    }

    /// Measures one point, unless a signal came, and records it.
    pub(crate) fn measure<R: Request>(
        &mut self,
        request: &R,
        settings: &Settings,
        order: Option<Order>,
    ) -> Result<(), Failure> {
        if self.runner.stop.is_set() {
            return Ok(());
        }
        request.check()?;
        let job = request.job()?;
        self.recorder.begin(&job.workload);
        // A number of blocks may end it before.
        let time =
            job.workload.float("seconds").ok().filter(|_| job.workload.int("blocks").is_err());
        let time = time.map(Duration::from_secs_f64);
        self.recorder.expect(Forecast::points(1, time));
        // A first point that cannot be opened is a wrong request: nothing was measured yet.
        let mut record = match order.as_ref().is_some_and(|order| order.position > 0) {
            true => self.runner.one_of_several(&job, settings),
            false => self.runner.measured(&job, settings)?,
        };
        record.order = order;
        self.recorder.take(record)
    }

    /// Measures all points in random order within the time, which the remaining ones share: those
    /// that need more have fewer repetitions. Points are left out only if even these do not fit.
    pub(crate) fn measure_all<R: Request>(
        &mut self,
        requests: Vec<R>,
        settings: &Settings,
        time: Duration,
    ) -> Result<(), Failure> {
        const USUAL_S: f64 = 0.15;
        let usual = Duration::from_secs_f64(USUAL_S * requests.len() as f64).min(time);
        let forecast = Forecast::points(requests.len(), Some(usual));
        self.recorder.expect(Forecast { most: Some(time), ..forecast });
        let began = Instant::now();
        for (order, request) in ordered(requests, 1) {
            let left = time.saturating_sub(began.elapsed());
            let (points, of) = (order.of - order.position, order.of);
            if left.is_zero() && !self.runner.stop.is_set() {
                tell(&format!(
                    "daqmeter: no time for {points} of {of} points: use a longer --time"
                ));
                break;
            }
            // Half of the time is for preparation and verification.
            let within = Some(left.div_f64(2.0 * points as f64));
            self.measure(&request, &Settings { within, ..settings.clone() }, Some(order))?;
        }
        Ok(())
    }

    /// Measures one point of a search.
    pub(crate) fn probe<R: Request>(
        &mut self,
        request: &R,
        study: &str,
        pins: &[u32],
    ) -> Result<RunRecord, Failure> {
        let settings = self.runner.settings(StepPlan::ByStage(1), study, pins);
        self.measure(request, &Settings { role: Role::Probe, ..settings }, None)?;
        self.recorder.written()?;
        self.done(self.recorder.records.last().cloned())
    }

    /// Returns the record of a point that was measured to its end.
    pub(crate) fn done(&self, record: Option<RunRecord>) -> Result<RunRecord, Failure> {
        if self.runner.stop.is_set() {
            return Err(Failure::interrupted());
        }
        let record = record.ok_or("nothing was measured")?;
        match &record.outcome {
            Outcome::Ok => Ok(record),
            other => Err(Failure::tool(other.reason().unwrap_or("failed"))),
        }
    }
}
