//! Common parts of every measuring verb: the context, Ctrl-C, progress, and running points one
//! after the other.

use std::ops::{Deref, DerefMut};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use daqmeter_campaign::{self as campaign, Done, Options, PlannedPoint, Watch, card_families};
use daqmeter_harness::progress::{Look, Phase};
use daqmeter_harness::{Context, Progress, Refusal, Settings, Unfinished};
use daqmeter_kernels::Isa;
use daqmeter_record::{Order, RunRecord, Tool, Workload, sanitise};
use indicatif::{ProgressBar, ProgressStyle};

use crate::arguments::{CpuList, cpu_list};
use crate::interrupt;
use crate::metrics::{Metrics, Page};
use crate::named::{Appended, Replaced};
use crate::output::{Failure, Recorder, progress_wanted, tell};
use crate::pmu::chosen::Observed;

/// Options of every verb that measures.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// Append every record to this file (JSON lines), as it is measured
    #[arg(long = "records", alias = "out", value_name = "FILE.jsonl", help_heading = "Output")]
    pub(crate) out: Option<Appended>,
    /// Print records (JSON lines) instead of tables
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Print nothing but what went wrong
    #[arg(short, long, conflicts_with = "json", help_heading = "Output")]
    pub(crate) quiet: bool,
    /// CPUs to pin threads to, in turn: 0,1 or 0-3
    #[arg(long, value_name = "CPUS", value_parser = cpu_list, help_heading = "Placement")]
    pub(crate) pin: Option<CpuList>,
    /// Name of this host in the records [default: its node name]
    #[arg(long, value_name = "TEXT", hide_short_help = true, help_heading = "Output")]
    pub(crate) label: Option<String>,
    #[command(flatten)]
    pub(crate) metrics: Metrics,
    /// Count a group or events meanwhile, each 100 ms: block, net@10ms
    #[arg(long, value_name = "GROUP[@TIME]", help_heading = "Output")]
    pub(crate) observe: Option<String>,
}

impl Common {
    pub(crate) fn context(&self) -> Context {
        context_as(self.label.as_ref())
    }

    /// CPUs for the threads; an empty list leaves them free.
    pub(crate) fn pins(&self) -> Vec<u32> {
        self.pin.clone().map_or(Vec::new(), |list| list.0)
    }
}

pub(crate) struct Runner {
    campaign: campaign::Runner,
    pub(crate) recorder: Recorder,
    progress: ProgressBar,
    metrics: Option<Page>,
}

/// Build profile of this program. It names an unusual C library, whose memcpy is measured, too.
const PROFILE: &str = match (cfg!(debug_assertions), cfg!(target_env = "musl")) {
    (true, _) => "debug",
    (false, false) => "release",
    (false, true) => "release, musl",
};

pub(crate) fn tool() -> Tool {
    Tool {
        name: "daqmeter".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        git_revision: env!("DAQMETER_GIT_REVISION").into(),
        profile: PROFILE.into(),
    }
}

pub(crate) fn context() -> Context {
    let isa = Isa::available().map(|isa| isa.name().to_owned()).collect();
    Context::gather(tool(), command_line(), isa).with_cards(&card_families())
}

pub(crate) fn context_as(label: Option<&String>) -> Context {
    let mut context = context();
    if let Some(label) = label {
        Arc::make_mut(&mut context.host).name.clone_from(label);
    }
    context
}

/// Returns the command line as typed, with quotes where a shell needs them.
fn command_line() -> String {
    let quoted = |argument: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    };
    let arguments =
        std::env::args_os().skip(1).map(|argument| quoted(argument.to_string_lossy().into_owned()));
    std::iter::once("daqmeter".into()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Sets the flag at the first signal; `interrupt` has the other effects of signals.
pub(crate) fn on_ctrl_c(stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let asked = stop.clone();
    interrupt::on_signal(move || asked.store(true, Ordering::Relaxed));
    Ok(())
}

impl Deref for Runner {
    type Target = campaign::Runner;

    fn deref(&self) -> &campaign::Runner {
        &self.campaign
    }
}

impl DerefMut for Runner {
    fn deref_mut(&mut self) -> &mut campaign::Runner {
        &mut self.campaign
    }
}

impl Runner {
    pub(crate) fn new(common: &Common, points: usize) -> Result<Runner, Failure> {
        let observed = common.observe.as_deref().map(Observed::understand);
        let observed = observed.transpose()?;
        let mut recorder = Recorder::new(common.out.as_ref(), common.json)?;
        recorder.quiet = common.quiet;
        let metrics = common.metrics.served()?;
        let mut campaign = campaign::Runner::new(common.context());
        if let Some(observed) = observed {
            campaign.observe(move || observed.observer());
        }
        let asked = campaign.stop.clone();
        interrupt::on_signal(move || asked.set());
        let progress = progress_bar(points, !common.json && !common.quiet);
        campaign.progress = within_points(&progress);
        campaign.unfinished = unfinished(&recorder, metrics.as_ref());
        expect(&progress, metrics.as_ref(), points);
        Ok(Runner { campaign, recorder, progress, metrics })
    }

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
        let message = format!("{} {engine}", sanitise::text(&settings.study));
        begin_point(&self.progress, message);
        let mut record = self.measured(engine, workload, settings)?;
        record.order = order;
        self.keep(record)
    }

    pub(crate) fn plan(
        &mut self,
        points: Vec<PlannedPoint>,
        options: Options<'_>,
    ) -> Result<Done, Failure> {
        let Runner { campaign, recorder, progress, metrics } = self;
        let mut screen = Screen { recorder, progress, metrics: metrics.as_ref() };
        campaign.run(points, options, &mut screen)
    }

    pub(crate) fn metrics(&self) -> Option<&Page> {
        self.metrics.as_ref()
    }

    pub(crate) fn keep(&mut self, record: RunRecord) -> Result<(), Failure> {
        let Runner { recorder, progress, metrics, .. } = self;
        keep(recorder, progress, metrics.as_ref(), record)
    }

    pub(crate) fn observe_if_there(&mut self, groups: &[&str]) {
        if self.is_observed() {
            return;
        }
        let mut found = groups.iter().filter_map(|group| Observed::understand(group).ok());
        if let Some(observed) = found.next() {
            self.campaign.observe(move || observed.observer());
        }
    }

    pub(crate) fn expect(&self, points: usize) {
        expect(&self.progress, self.metrics.as_ref(), points);
    }

    pub(crate) fn finish(&self) {
        self.progress.finish_and_clear();
    }

    pub(crate) fn conclude(
        &mut self,
        page: Option<&Replaced>,
        text: impl FnOnce(&[RunRecord]) -> String,
    ) -> Result<ExitCode, Failure> {
        self.finish();
        self.recorder.finish(page, self.stop.is_set(), text)
    }
}

pub(crate) fn progress_bar(points: usize, is_wanted: bool) -> ProgressBar {
    let progress = if is_wanted && progress_wanted() {
        ProgressBar::new(points as u64)
    } else {
        ProgressBar::hidden()
    };
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {prefix} {wide_msg}")
        .expect("a constant template");
    progress.set_style(style);
    progress
}

fn begin_point(progress: &ProgressBar, name: String) {
    progress.set_prefix(name);
    progress.set_message("");
}

fn within_points(progress: &ProgressBar) -> Progress {
    if progress.is_hidden() {
        return Progress::default();
    }
    let line = progress.clone();
    Progress::new(move |look| line.set_message(look_text(look)))
}

/// Keeps the samples so far of a long point in the file of records, and shows it on the page.
fn unfinished(recorder: &Recorder, metrics: Option<&Page>) -> Unfinished {
    let (keep, page) = (recorder.unfinished(), metrics.cloned());
    if keep.is_none() && page.is_none() {
        return Unfinished::default();
    }
    Unfinished::new(move |record| {
        if let Some(keep) = &keep {
            keep(record);
        }
        if let Some(page) = &page {
            page.so_far(record);
        }
    })
}

fn look_text(look: &Look) -> String {
    let of = |done: usize| match look.lanes {
        1 => String::new(),
        lanes => format!(", {done} of {lanes} lanes"),
    };
    let what = match look.phase {
        Phase::Preparing(ready) => format!("preparing{}", of(ready)),
        Phase::Timed => "timed steps".to_owned(),
        Phase::Ending(ended) => format!("checking{}", of(ended)),
    };
    match &look.limit {
        Some(name) => format!("limit {}: {what}", sanitise::text(name)),
        None => what,
    }
}

fn expect(progress: &ProgressBar, metrics: Option<&Page>, points: usize) {
    progress.set_length(points as u64);
    if let Some(page) = metrics {
        page.set("daqmeter_points_planned", "run", points as f64);
    }
}

fn keep(
    recorder: &mut Recorder,
    progress: &ProgressBar,
    metrics: Option<&Page>,
    record: RunRecord,
) -> Result<(), Failure> {
    progress.inc(1);
    if let Some(page) = metrics {
        page.point(&record);
    }
    recorder.take(record)
}

struct Screen<'a> {
    recorder: &'a mut Recorder,
    progress: &'a ProgressBar,
    metrics: Option<&'a Page>,
}

impl Watch for Screen<'_> {
    type Error = Failure;

    fn planned(&mut self, points: usize, known: usize) {
        expect(self.progress, self.metrics, points);
        if known > 0 {
            let all = points + known;
            tell(&format!("daqmeter: {known} of {all} points are in the file already"));
        }
    }

    fn begins(&mut self, point: &PlannedPoint) -> Result<(), Failure> {
        let study = sanitise::text(&point.study);
        begin_point(self.progress, format!("{study} {}", point.engine));
        Ok(())
    }

    fn record(&mut self, record: RunRecord) -> Result<(), Failure> {
        keep(self.recorder, self.progress, self.metrics, record)
    }

    fn refused(&mut self, point: &PlannedPoint, refusal: Refusal) -> Result<(), Failure> {
        let PlannedPoint { source, workload, .. } = point;
        tell(&format!("daqmeter: {source}: {workload}: {refusal}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_point_says_in_words_what_it_is_at() {
        let text = |limit: Option<&str>, phase, lanes| {
            let limit = limit.map(str::to_owned);
            look_text(&Look { limit, phase, lanes })
        };
        let preparing = text(None, Phase::Preparing(12), 1000);
        assert_eq!(preparing, "preparing, 12 of 1000 lanes");
        assert_eq!(text(None, Phase::Preparing(0), 1), "preparing");
        assert_eq!(text(None, Phase::Timed, 4), "timed steps");
        assert_eq!(text(None, Phase::Ending(3), 4), "checking, 3 of 4 lanes");
        assert_eq!(text(Some("link\u{1b}"), Phase::Timed, 4), "limit link\\u001b: timed steps");
    }

    #[test]
    fn nobody_is_told_where_there_is_no_line_to_show_it_on() {
        let hidden = within_points(&progress_bar(1, false));
        assert!(format!("{hidden:?}").contains("is_wanted: false"));
    }
}
