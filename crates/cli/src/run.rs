//! What every measuring verb shares: the context, Ctrl-C, progress, and running points one after the other.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use daqmeter_campaign::{card_families, engines};
use daqmeter_copy::{HEAVY, HeavyLoad};
use daqmeter_harness::{Context, Engine, Limits, Refusal, Settings, StopFlag, measure, observe};
use daqmeter_kernels::Isa;
use daqmeter_record::{Order, RunRecord, Tool, Workload, sanitise};
use indicatif::{ProgressBar, ProgressStyle};

use crate::arguments::cpu_list;
use crate::interrupt;
use crate::metrics::{Metrics, Page};
use crate::output::{Failure, Recorder, progress_wanted};
use crate::pmu::Observed;

/// Options of every verb that measures.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// Append every record to this file (JSON lines), as it is measured
    #[arg(long, value_name = "FILE.jsonl", help_heading = "Output")]
    pub(crate) out: Option<PathBuf>,
    /// Print records (JSON lines) instead of tables
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// CPUs to pin threads to, in turn: 0,1 or 0-3
    #[arg(long, value_name = "CPUS", value_parser = cpu_list, help_heading = "Placement")]
    pub(crate) pin: Option<CpuList>,
    #[command(flatten)]
    pub(crate) metrics: Metrics,
    /// Count a group or events meanwhile, each 100 ms: block, net@10ms
    #[arg(long, value_name = "GROUP[@TIME]", help_heading = "Output")]
    pub(crate) observe: Option<String>,
}

/// CPUs in the order in which threads get them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuList(pub(crate) Vec<u32>);

/// Runs points and keeps their records.
pub(crate) struct Runner {
    pub(crate) context: Context,
    pub(crate) recorder: Recorder,
    pub(crate) stop: StopFlag,
    /// How limits are measured.
    pub(crate) limits: Limits,
    progress: ProgressBar,
    engines: Vec<Box<dyn Engine>>,
    observed: Option<Observed>,
    metrics: Option<Page>,
}

/// What the records say of this program.
pub(crate) fn tool() -> Tool {
    Tool {
        name: "daqmeter".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        git_revision: env!("DAQMETER_GIT_REVISION").to_owned(),
        profile: if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        }
        .to_owned(),
    }
}

/// What is known of this host and this invocation.
pub(crate) fn context() -> Context {
    let isa = Isa::available().map(|isa| isa.name().to_owned()).collect();
    Context::gather(tool(), command_line(), isa).with_cards(&card_families())
}

/// The command line as typed, with quotes where a shell needs them, so that it can be pasted.
fn command_line() -> String {
    let quoted = |argument: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    };
    let arguments = std::env::args_os()
        .skip(1)
        .map(|argument| quoted(argument.to_string_lossy().into_owned()));
    std::iter::once("daqmeter".to_owned())
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The first signal sets the flag; `interrupt` says what else signals do.
pub(crate) fn on_ctrl_c(stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let asked = stop.clone();
    interrupt::on_signal(move || asked.store(true, Ordering::Relaxed));
    Ok(())
}

impl Runner {
    /// Gathers the context; from now on a signal lets the sample at hand finish.
    pub(crate) fn new(common: &Common, points: usize) -> Result<Runner, Failure> {
        let observed = common
            .observe
            .as_deref()
            .map(Observed::understand)
            .transpose()?;
        let recorder = Recorder::new(common.out.as_deref(), common.json)?;
        let metrics = common.metrics.served()?;
        let context = context();
        let stop = StopFlag::default();
        let asked = stop.clone();
        interrupt::on_signal(move || asked.set());
        let progress = if progress_wanted() && !common.json {
            ProgressBar::new(points as u64)
        } else {
            ProgressBar::hidden()
        };
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {wide_msg}")
            .expect("a constant template");
        progress.set_style(style);
        let engines = engines(context.host.last_level_cache_bytes());
        Ok(Runner {
            context,
            recorder,
            stop,
            limits: Limits::default(),
            progress,
            engines,
            observed,
            metrics,
        })
    }

    /// Settings for a study, with this runner's stop flag.
    pub(crate) fn settings(
        &self,
        plan: daqmeter_harness::StepPlan,
        study: &str,
        pin: &[u32],
    ) -> Settings {
        Settings {
            pin: pin.to_vec(),
            stop: self.stop.clone(),
            limits: self.limits.clone(),
            ..Settings::new(plan, study)
        }
    }

    /// Measures one point with its limits and keeps the record. Does nothing once interrupted.
    pub(crate) fn point(
        &mut self,
        engine: &str,
        workload: &Workload,
        settings: &Settings,
        order: Option<Order>,
    ) -> Result<(), Failure> {
        if self.stop.is_set() {
            return Ok(());
        }
        let record = self.measured(engine, workload, settings, order)?;
        self.keep(record)
    }

    /// Measures one point with its limits.
    pub(crate) fn measured(
        &mut self,
        engine: &str,
        workload: &Workload,
        settings: &Settings,
        order: Option<Order>,
    ) -> Result<RunRecord, Refusal> {
        self.progress
            .set_message(format!("{} {}", sanitise::text(&settings.study), engine));
        let named = |name: &str| {
            self.engines
                .iter()
                .find(|candidate| candidate.name() == name)
                .map(Box::as_ref)
        };
        let found = named(engine).expect("verbs name engines that exist");
        let mut observers = observe::standard();
        if workload.text("load") == Ok(HEAVY) {
            observers.insert(0, Box::new(HeavyLoad::default()));
        }
        if let Some(observed) = &self.observed {
            observers.push(observed.observer());
        }
        let engines: Vec<&dyn Engine> = self.engines.iter().map(Box::as_ref).collect();
        let mut record = measure(
            found,
            workload,
            settings,
            &self.context,
            &engines,
            &mut observers,
        )?;
        record.order = order;
        Ok(record)
    }

    /// Takes the record of a point.
    pub(crate) fn keep(&mut self, record: RunRecord) -> Result<(), Failure> {
        self.progress.inc(1);
        if let Some(page) = &self.metrics {
            page.point(&record);
        }
        self.recorder.take(record)
    }

    /// Counts a group meanwhile, if this host has it and nothing else was asked for.
    pub(crate) fn observe_if_there(&mut self, group: &str) {
        if self.observed.is_none() {
            self.observed = Observed::understand(group).ok();
        }
    }

    /// Measures something whose record is only looked at: the limits that points are then held against.
    pub(crate) fn quietly(
        &self,
        engine: &str,
        workload: &Workload,
        settings: &Settings,
    ) -> Result<RunRecord, Failure> {
        let found = self
            .engines
            .iter()
            .find(|candidate| candidate.name() == engine);
        let found = found.expect("verbs name engines that exist").as_ref();
        Ok(measure(
            found,
            workload,
            settings,
            &self.context,
            &[],
            &mut [],
        )?)
    }

    /// Says how many points there will be.
    pub(crate) fn expect(&self, points: usize) {
        self.progress.set_length(points as u64);
        if let Some(page) = &self.metrics {
            page.set("daqmeter_points_planned", "run", points as f64);
        }
    }

    /// Clears the progress line.
    pub(crate) fn finish(&self) {
        self.progress.finish_and_clear();
    }
}
