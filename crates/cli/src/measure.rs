//! Options and bench of every verb that measures: campaign's runner, and a recorder.

use clap::Args;
use daqmeter_campaign::{Runner, ab};
use daqmeter_harness::{CpuList, Request, Settings, StepPlan};
use daqmeter_record::{Order, Outcome, Role, RunRecord};

use crate::context::context;
use crate::interrupt;
use crate::metrics::Metrics;
use crate::output::Failure;
use crate::pmu::chosen::Observed;
use crate::recorder::{Recorder, Recording};

/// Options of every verb that measures.
#[derive(Debug, Clone, Args)]
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
}

impl Common {
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
    pub(crate) fn new(common: &Common, points: usize) -> Result<Bench, Failure> {
        let observed = common.observe.as_deref().map(Observed::understand).transpose()?;
        let mut recorder = Recorder::new(&common.recording)?;
        recorder.metrics = common.metrics.served()?;
        recorder.expect(points);
        let mut runner = Runner::new(context());
        runner.is_bare = ab::is_side();
        if let Some(observed) = observed {
            runner.observe(move || observed.observer());
        }
        runner.stop = interrupt::flag();
        recorder.stop = runner.stop.clone();
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
        self.recorder.begin(&settings.study, R::KIND);
        request.check()?;
        let job = request.job()?;
        // A first point that cannot be opened is a wrong request: nothing was measured yet.
        let mut record = match order.as_ref().is_some_and(|order| order.position > 0) {
            true => self.runner.one_of_several(&job, settings),
            false => self.runner.measured(&job, settings)?,
        };
        record.order = order;
        self.recorder.take(record)
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
