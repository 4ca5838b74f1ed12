//! `daqmeter pmu stat` and `record`: counting in intervals.

use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use daqmeter_harness::{Tally, Watched, next_line};
use daqmeter_pmu::Count;
use daqmeter_pmu::count::{error_of, total_error_of, totals, turns_warning};
use daqmeter_pmu::emulated::Synthetic;
use daqmeter_pmu::perf_format::{self, PerfFormat};
use daqmeter_pmu::source::{KernelOpener, Opener};
use daqmeter_record::{EngineInfo, Observations, RunRecord, Workload};
use daqmeter_report::pmu::{frames, map, tables};

use super::chosen::{ByteUnit, Chosen, Setting, Wanted};
use super::import;
use super::live::Live;
use crate::arguments::{budget, duration};
use crate::interrupt;
use crate::metrics::{Metrics, Page};
use crate::output::{Failure, emit, tell};
use crate::recorder::{Recorder, Recording};

/// Count in intervals: scaled values with their share and error, rates, a heat map of a mesh.
///
/// Without --time, --count or a command it goes on until Ctrl-C. `nodeid` without `bynodeid` is
/// done as it is meant, and said.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n\n  $ daqmeter pmu stat --group block -I 1s --count 5\n  $ daqmeter pmu stat -e arm_cmn/hnf_mc_reqs,nodeid=0x24/ -I 1s --format perf\n  $ daqmeter pmu stat --emulated n1sdp --heat hnf_mc_reqs -I 100ms\n  $ perf stat -I 1000 -x';' -e ... 2>&1 | daqmeter pmu stat --from - --group memory\n\n`95 %` is half the width of the interval in which the true count of an event that took turns lies; METHODOLOGY.md says how it is had."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) wanted: Wanted,
    /// Length of an interval [default: 1s]; a bare number is in milliseconds, as for perf
    #[arg(short = 'I', long, value_name = "TIME", value_parser = interval)]
    pub(super) interval: Option<Duration>,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = budget, conflicts_with = "step")]
    time: Option<Duration>,
    /// End after so many intervals
    #[arg(long, alias = "interval-count", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End an interval at each line on stdin instead of by time
    #[arg(long, conflicts_with = "interval")]
    step: bool,
    /// Read the output of perf stat (text, -x or -j) instead of counting; - is stdin. With --group,
    /// its rates are computed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["events", "heat", "time", "count", "step", "metrics"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    metrics: Metrics,
    #[command(flatten)]
    pub(super) written: Written,
    /// Count on all CPUs, as for perf: what is counted here is always of the whole system
    #[arg(short, long)]
    all_cpus: bool,
    /// Count while this command runs
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["time", "count", "step", "from"])]
    command: Vec<String>,
}

/// Reads the length of an interval: with its unit, or in milliseconds as in perf.
fn interval(text: &str) -> Result<Duration, String> {
    let Ok(ms) = text.parse::<f64>() else {
        return duration(text);
    };
    Duration::try_from_secs_f64(ms / 1e3)
        .map_err(|_| format!("`{text}` is no length in milliseconds: write 1000, 1s or 100ms"))
}

impl Arguments {
    fn length(&self) -> Duration {
        self.interval.unwrap_or(Duration::from_secs(1))
    }
}

#[derive(Debug, Clone, Args)]
pub(super) struct Written {
    /// How intervals are printed
    #[arg(long, value_enum, default_value = "table", help_heading = "Output")]
    format: Format,
    /// Separator of --format csv
    #[arg(short = 'x', long, value_name = "CHAR", default_value = ";", help_heading = "Output")]
    separator: char,
    /// Unit of bytes
    #[arg(long, value_enum, default_value = "mb", help_heading = "Output")]
    pub(super) bytes: ByteUnit,
    #[command(flatten)]
    pub(super) recording: Recording,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Aligned, with errors and rates; a heat map where --heat asks for one
    Table,
    /// As perf stat prints it
    Perf,
    /// As perf stat -x
    Csv,
    /// As perf stat -j
    PerfJson,
}

impl Written {
    pub(super) fn perf_format(&self) -> Option<PerfFormat> {
        match self.format {
            Format::Table => None,
            Format::Perf => Some(PerfFormat::Text),
            Format::Csv => Some(PerfFormat::Csv(self.separator)),
            Format::PerfJson => Some(PerfFormat::Json),
        }
    }
}

pub(crate) fn run(arguments: &Arguments, quiet: bool) -> Result<ExitCode, Failure> {
    check(arguments, quiet)?;
    if let Some(path) = &arguments.from {
        return import::run(path, arguments);
    }
    let setting = arguments.wanted.place.setting()?;
    let chosen = arguments.wanted.choose(&setting)?;
    let mut recorder = Recorder::new(&arguments.written.recording)?;
    let mut count = opened(&chosen, &setting)?;
    let stop = interrupt::flag();
    let metrics = arguments.metrics.served()?;
    let shown = shown(arguments, quiet, &count, &setting)?;
    let watched = arguments.written.recording.context().watch(
        "pmu/stat",
        info(&chosen, &setting),
        workload(arguments, &chosen),
    );
    let mut parts = Parts::new();
    let counting = Loop {
        arguments,
        stop: &stop,
        shown,
        metrics,
        recorder: &mut recorder,
        watched: &watched,
        warnings: &chosen.set.warnings,
        parts: &mut parts,
        status: None,
    };
    let ended = counting.run(&mut count);
    let observed = count.finish();
    // Intervals from before a failure are kept.
    if observed.end_ns.is_empty()
        && let Err(failure) = ended
    {
        return Err(failure);
    }
    let record = so_far(&watched, &chosen.set.warnings, &observed, &mut parts);
    let done = finish(record, &observed, arguments, quiet, &mut recorder)?;
    let status = ended?;
    let failed = status.filter(|status| !status.success() && !stop.load(Ordering::Relaxed));
    Ok(failed.map_or(done, exit_code))
}

/// Returns the exit code of the command, as shells have it: 128 and the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

pub(super) struct Parts {
    pub(super) written: usize,
    began: Instant,
    last: Instant,
}

impl Parts {
    pub(super) fn new() -> Parts {
        let now = Instant::now();
        Parts { written: 0, began: now, last: now }
    }

    /// True if a part is due: after each hundredth of the run, so that there are few parts. This is
    /// no sooner than after 1 s and no later than after 10 s.
    pub(super) fn is_due(&self) -> bool {
        const LEAST: Duration = Duration::from_secs(1);
        const MOST: Duration = Duration::from_secs(10);
        self.last.elapsed() >= (self.began.elapsed() / 100).clamp(LEAST, MOST)
    }

    pub(super) fn next(&mut self, observed: &Observations, to: usize) -> Observations {
        let mut part = observed.part(self.written..to);
        if self.written > 0 {
            part.continues = true;
            part.meshes.clear();
        }
        self.written = to;
        self.last = Instant::now();
        part
    }
}

fn so_far(
    watched: &Watched,
    warnings: &[String],
    observed: &Observations,
    parts: &mut Parts,
) -> RunRecord {
    let found =
        Tally { counters: totals(observed), warnings: warnings.to_vec(), ..Tally::default() };
    let part = parts.next(observed, observed.end_ns.len());
    watched.so_far(found, Some(part), Vec::new())
}

fn check(arguments: &Arguments, quiet: bool) -> Result<(), Failure> {
    if quiet && arguments.written.recording.records.is_none() {
        return Err(Failure::refused("record needs --records FILE.jsonl, into which it records"));
    }
    if arguments.length().is_zero() {
        return Err(Failure::refused("-I 0: an interval has a length, e.g. -I 1s"));
    }
    Ok(())
}

fn opened(chosen: &Chosen, setting: &Setting) -> Result<Count, Failure> {
    let mut opener: Box<dyn Opener> = if setting.is_emulated {
        Box::new(Synthetic::new(&setting.meshes[0], &chosen.set.groups).map_err(Failure::refused)?)
    } else {
        Box::new(KernelOpener { files: setting.files.clone() })
    };
    let count =
        Count::open(&chosen.set, &chosen.what, opener.as_mut()).map_err(Failure::refused)?;
    for refused in &count.refused {
        tell(&format!("daqmeter: not counted: {refused}"));
    }
    Ok(count.with(chosen.metrics.clone(), setting.meshes.clone()))
}

fn info(chosen: &Chosen, setting: &Setting) -> EngineInfo {
    let mut pmus: Vec<&str> = chosen.set.events().map(|event| event.pmu.as_str()).collect();
    pmus.sort_unstable();
    pmus.dedup();
    EngineInfo { name: "pmu".into(), target: pmus.join(", "), emulated: setting.is_emulated }
}

fn workload(arguments: &Arguments, chosen: &Chosen) -> Workload {
    Workload::new("pmu")
        .with("what", chosen.what.as_str())
        .with("interval_s", arguments.length().as_secs_f64())
}

pub(super) fn finish(
    mut record: RunRecord,
    observed: &Observations,
    arguments: &Arguments,
    quiet: bool,
    recorder: &mut Recorder,
) -> Result<ExitCode, Failure> {
    if let Some(warning) = turns_warning(observed) {
        tell(&format!("daqmeter: warning: {warning}"));
        record.warnings.push(warning);
    }
    let written = &arguments.written;
    recorder.take(record)?;
    // Ctrl-C is the usual end of a count.
    recorder.finish(|records| {
        let observed = records.iter().filter_map(|record| record.observed.as_deref());
        let summary = |observed| {
            let text = tables::summary(observed, written.bytes.into(), total_error_of);
            format!("\n{text}")
        };
        if quiet || written.perf_format().is_some() {
            String::new()
        } else {
            observed.map(summary).collect()
        }
    })
}

/// Publishes the last interval, scaled to the time for which each event was enabled.
fn publish(page: &Page, observed: &Observations) {
    for event in &observed.events {
        let last = (event.count.last(), event.enabled_ns.last(), event.running_ns.last());
        if let (Some(&count), Some(&enabled), Some(&running)) = last
            && running > 0
        {
            let scaled = count as f64 * event.scale * (enabled as f64 / running as f64).max(1.0);
            page.add("daqmeter_events_total", &event.name, scaled);
            let share = running as f64 / enabled.max(1) as f64;
            page.set("daqmeter_event_share", &event.name, share);
        }
    }
    for metric in &observed.metrics {
        if let Some(value) = metric.values.last().copied().flatten() {
            let (kind, name) = (&metric.unit, &metric.name);
            let name = if kind.is_empty() { name.clone() } else { format!("{name} [{kind}]") };
            page.set("daqmeter_event_rate", &name, value);
        }
    }
}

enum Shown {
    Nowhere,
    Table,
    Perf(PerfFormat),
    Grid,
    Live(Box<Live>),
}

fn shown(
    arguments: &Arguments,
    quiet: bool,
    count: &Count,
    setting: &Setting,
) -> Result<Shown, Failure> {
    if quiet || arguments.written.recording.json {
        return Ok(Shown::Nowhere);
    }
    if let Some(format) = arguments.written.perf_format() {
        return Ok(Shown::Perf(format));
    }
    let has_heat = arguments.wanted.heat.is_some() && !setting.meshes.is_empty();
    if has_heat && std::io::stdout().is_terminal() && !arguments.step {
        return Ok(Shown::Live(Box::new(Live::open(count.observed().what.clone())?)));
    }
    // One interval is its own summary.
    let is_one = arguments.count == Some(1);
    Ok(match (has_heat, is_one) {
        (true, _) => Shown::Grid,
        (false, true) => Shown::Nowhere,
        (false, false) => Shown::Table,
    })
}

struct Loop<'a> {
    arguments: &'a Arguments,
    stop: &'a AtomicBool,
    shown: Shown,
    metrics: Option<Page>,
    recorder: &'a mut Recorder,
    watched: &'a Watched,
    warnings: &'a [String],
    parts: &'a mut Parts,
    status: Option<ExitStatus>,
}

const LOOK: Duration = Duration::from_millis(100);

/// Sends a message for each line on stdin. The thread that reads them ends with stdin, or with the
/// program.
fn steps() -> Receiver<()> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let (mut stdin, mut line) = (std::io::stdin().lock(), Vec::new());
        while next_line(&mut stdin, &mut line).is_ok_and(|is_line| is_line) {
            if send.send(()).is_err() {
                return;
            }
        }
    });
    receive
}

impl Loop<'_> {
    fn run(mut self, count: &mut Count) -> Result<Option<ExitStatus>, Failure> {
        count.begin(self.watched.origin_ns());
        let mut child = self.start()?;
        let began = Instant::now();
        let steps = self.arguments.step.then(steps);
        if steps.is_some() {
            tell("counting: Enter ends an interval, Ctrl-D ends the count");
        }
        let mut intervals = 0_u64;
        let mut due = began;
        loop {
            let is_last = if let Some(steps) = &steps {
                if !self.step(steps, count) {
                    break;
                }
                false
            } else {
                // Deadlines instead of pauses keep intervals from drifting.
                due += self.arguments.length();
                let end = self.arguments.time.map(|time| began + time);
                let asked =
                    self.sleep(end.map_or(due, |end| end.min(due)), child.as_mut(), count)?;
                asked || end.is_some_and(|end| Instant::now() >= end)
            };
            count.interval();
            intervals += 1;
            if let Some(page) = &self.metrics {
                publish(page, count.observed());
            }
            if self.parts.is_due() {
                let record = so_far(self.watched, self.warnings, count.observed(), self.parts);
                self.recorder.take(record)?;
            }
            self.show(count)?;
            if is_last || self.arguments.count == Some(intervals) {
                break;
            }
        }
        self.end(child)?;
        Ok(self.status)
    }

    fn end(&mut self, child: Option<Child>) -> Result<(), Failure> {
        if let Some(child) = child {
            let status = self.wait(child)?;
            self.status = Some(status);
            if !status.success() {
                tell(&format!("daqmeter: the command ended with {status}"));
            }
        }
        Ok(())
    }

    fn step(&self, steps: &Receiver<()>, count: &mut Count) -> bool {
        loop {
            count.keep_up();
            match steps.recv_timeout(LOOK) {
                Ok(()) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Relaxed) => {
                    return false;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits for the command. After a signal it is asked to end, too, as in perf stat, and soon
    /// killed.
    fn wait(&self, mut child: Child) -> Result<ExitStatus, Failure> {
        const PATIENCE: Duration = Duration::from_secs(1);
        let mut asked: Option<Instant> = None;
        loop {
            if let Some(status) = child.try_wait().map_err(Failure::refused)? {
                return Ok(status);
            }
            match asked {
                None if self.stop.load(Ordering::Relaxed) => {
                    daqmeter_sys::process::terminate(&mut child).map_err(Failure::refused)?;
                    asked = Some(Instant::now());
                }
                Some(at) if at.elapsed() > PATIENCE => child.kill().map_err(Failure::refused)?,
                _ => {}
            }
            std::thread::sleep(LOOK / 20);
        }
    }

    fn start(&self) -> Result<Option<Child>, Failure> {
        let Some((program, arguments)) = self.arguments.command.split_first() else {
            return Ok(None);
        };
        let child = Command::new(program).args(arguments).spawn();
        Ok(Some(
            child.map_err(|error| Failure::refused(format!("cannot start {program}: {error}")))?,
        ))
    }

    /// Sleeps until the deadline; true at an end by Ctrl-C, q in the view, or the end of the
    /// command.
    fn sleep(
        &mut self,
        until: Instant,
        mut child: Option<&mut Child>,
        count: &mut Count,
    ) -> Result<bool, Failure> {
        loop {
            count.keep_up();
            if self.stop.load(Ordering::Relaxed) {
                return Ok(true);
            }
            if let Some(child) = &mut child
                && child.try_wait().map_err(Failure::refused)?.is_some()
            {
                return Ok(true);
            }
            let Some(left) =
                until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                return Ok(false);
            };
            match &mut self.shown {
                Shown::Live(live) => {
                    if live.wait(left)? {
                        return Ok(true);
                    }
                }
                // A command may end any time.
                _ => std::thread::sleep(left.min(if child.is_some() { LOOK / 20 } else { LOOK })),
            }
        }
    }

    fn show(&mut self, count: &Count) -> Result<(), Failure> {
        let observed = count.observed();
        let at = observed.end_ns.len() - 1;
        match &mut self.shown {
            Shown::Nowhere => {}
            Shown::Table => {
                emit(&tables::interval(
                    observed,
                    at,
                    self.arguments.written.bytes.into(),
                    error_of,
                ))?;
            }
            Shown::Perf(format) => {
                emit(&perf_format::emit_interval(observed, at, *format))?;
            }
            Shown::Grid => {
                for heat in frames(observed) {
                    let last = heat.frames.len() - 1;
                    emit(&format!(
                        "{}, {:.3} s\n{}\n",
                        heat.event,
                        heat.frames[last].0,
                        map::grid(&heat.mesh, Some((&heat, last)))
                    ))?;
                }
            }
            Shown::Live(live) => live.show(observed, at)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use daqmeter_record::observed::{ObservedEvent, ObservedMetric};

    use super::*;

    #[test]
    fn shares_and_rates_are_on_the_page_of_metrics() {
        let event = ObservedEvent {
            name: "a/b/".into(),
            scale: 1.0,
            count: vec![50],
            enabled_ns: vec![100],
            running_ns: vec![25],
            ..ObservedEvent::default()
        };
        let metric = ObservedMetric {
            name: "memory".into(),
            unit: "B/s".into(),
            values: vec![Some(6400.0)],
            ..ObservedMetric::default()
        };
        let observed =
            Observations { events: vec![event], metrics: vec![metric], ..Observations::default() };
        let page = Page::default();
        publish(&page, &observed);
        let text = page.text();
        for line in [
            "daqmeter_events_total{event=\"a/b/\"} 200",
            "daqmeter_event_share{event=\"a/b/\"} 0.25",
            "daqmeter_event_rate{metric=\"memory [B/s]\"} 6400",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn a_bare_number_is_perfs_milliseconds() {
        assert_eq!(interval("1000"), Ok(Duration::from_secs(1)));
        assert_eq!(interval("1"), Ok(Duration::from_millis(1)));
        assert_eq!(interval("1.5"), Ok(Duration::from_micros(1500)));
        assert_eq!(interval("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(interval("5ms"), Ok(Duration::from_millis(5)));
        for wrong in ["soon", "-1", "nan", "inf", "1e300", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
