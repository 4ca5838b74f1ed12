//! `daqmeter pmu stat`: counting in intervals.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_harness::{OpenRecord, Tally, next_line};
use daqmeter_pmu::count::{Pause, error_of, total_error_of, totals, turns_warning};
use daqmeter_pmu::emulated::Synthetic;
use daqmeter_pmu::plan::Driver;
use daqmeter_pmu::source::{KernelOpener, Opener};
use daqmeter_pmu::{Count, CountedHost, Selection, perf_format};
use daqmeter_record::{EngineInfo, Observations, RunRecord, Sections, Workload};
use daqmeter_report::Frame;
use daqmeter_report::pmu::tables::{self, RateUnit};
use daqmeter_report::pmu::{heats, map};

use super::chosen::{Wanted, byte_unit};
use crate::arguments::{budget, duration};
use crate::command::{end, exit_code, start};
use crate::context::context;
use crate::interrupt;
use crate::metrics::{Metrics, Page};
use crate::output::{Ended, Failure, emit, tell};
use crate::progress::{Forecast, Progress};
use crate::recorder::{Recorder, Recording};

/// Count in intervals: scaled values with their share and error, rates, a heat map of a mesh.
///
/// Without --time, --count or a command it goes on until Ctrl-C. `nodeid` without `bynodeid` is
/// completed, with a warning. A plan follows the rules of the kernel's scheduler and of the driver:
/// a group that does not fit keeps those behind it waiting, so order alone changes the shares.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/pmu-stat.txt"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) wanted: Wanted,
    /// Interval [default: 1s]; a number without a unit is in ms, as for perf
    #[arg(short = 'I', long, value_name = "TIME", value_parser = interval)]
    pub(super) interval: Option<Duration>,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = budget, conflicts_with = "step")]
    time: Option<Duration>,
    /// Number of intervals
    #[arg(long, alias = "interval-count", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End an interval at each line of stdin
    #[arg(long, conflicts_with = "interval", hide_short_help = true)]
    step: bool,
    /// Show records or the output of perf stat instead of counting; - is stdin
    ///
    /// Records come from --records, or from --observe of another verb. The output of perf stat may
    /// be text, -x or -j. With --group, the rates of its events are computed.
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_COUNTS, conflicts_with_all = OF_EVENTS)]
    pub(super) from: Option<PathBuf>,
    /// Show which events fit at once and the time share of each, instead of counting
    #[arg(long, conflicts_with_all = OF_COUNTS, conflicts_with_all = OF_TABLES, conflicts_with_all = OF_RECORDS)]
    pub(super) plan: bool,
    /// Driver rules of a plan: a Linux version (mainline: 6.18) or the N1SDP's software release
    /// [default: this kernel for its own mesh, else mainline]
    #[arg(long, value_name = "DRIVER", requires = "plan", conflicts_with_all = OF_COUNTS, conflicts_with_all = OF_TABLES, conflicts_with_all = OF_RECORDS, hide_short_help = true)]
    pub(super) driver: Option<Driver>,
    #[command(flatten)]
    metrics: Metrics,
    /// Print intervals as perf stat -x, with this separator
    #[arg(short = 'x', long, value_name = "CHAR", value_parser = separator, help_heading = "Output", hide_short_help = true)]
    pub(super) separator: Option<char>,
    /// Unit of bytes
    #[arg(long, value_parser = byte_unit(), default_value = "mb", help_heading = "Output", hide_short_help = true)]
    pub(super) bytes: RateUnit,
    #[command(flatten)]
    pub(super) recording: Recording,
    /// Count on all CPUs, as always (for users of perf)
    #[arg(short, long, hide_short_help = true)]
    all_cpus: bool,
    /// Count while this command runs
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["time", "count", "step"])]
    command: Vec<String>,
}

// Options that act only in some modes: neither records nor plans are counted, a plan shows and
// records no counts, and records have their events.
const OF_COUNTS: [&str; 7] = ["by", "time", "count", "step", "metrics", "all_cpus", "command"];
const OF_TABLES: [&str; 5] = ["names", "from", "interval", "separator", "bytes"];
const OF_RECORDS: [&str; 4] = ["records", "label", "output", "quiet"];
const OF_EVENTS: [&str; 5] = ["events", "heat", "map", "part", "emulated"];

/// Reads a separator; a tab may be written as for perf.
fn separator(text: &str) -> Result<char, String> {
    text.replace("\\t", "\t").parse().map_err(|_| "one character, such as ; or \\t".to_owned())
}

/// Reads the length of an interval: with its unit, or in milliseconds as in perf.
fn interval(text: &str) -> Result<Duration, String> {
    let length = match text.parse::<f64>() {
        Ok(ms) => Duration::try_from_secs_f64(ms / 1e3).map_err(|error| error.to_string()),
        Err(_) => duration(text),
    };
    match length {
        Ok(Duration::ZERO) => {
            Err("an interval must be longer than 0: write 1000, 1s or 100ms".to_owned())
        }
        length => length,
    }
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let host = arguments.wanted.place.host()?;
    let selection = arguments.wanted.choose(&host)?;
    let mut recorder = Recorder::new(&arguments.recording)?;
    let length = arguments.interval.unwrap_or(Duration::from_secs(1));
    // Short intervals are the progress.
    let is_shown = arguments.recording.json || length > Duration::from_secs(5);
    recorder.progress = Progress::begin(arguments.recording.quiet || !is_shown, true);
    let by_count = arguments.count.map(|count| length.as_secs_f64() * count as f64);
    let by_count = by_count.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    recorder.expect(Forecast::points(0, arguments.time.or(by_count)));
    let mut count = opened(&selection, &host)?;
    let stop = interrupt::flag();
    recorder.stop = stop.clone();
    let page = arguments.metrics.served(|_| {})?;
    let workload = Workload::new("pmu")
        .with("what", selection.what.as_str())
        .with("interval_s", length.as_secs_f64());
    let info = info(&selection, &host);
    let context = context(arguments.recording.label.as_deref());
    let open = context.open_record("pmu/stat", info, workload);
    count.begin(open.origin_ns());
    let mut program = start(&arguments.command, Stdio::inherit())?;
    // A command may end any time.
    let look = if program.is_some() { LOOK / 20 } else { LOOK };
    let began = Instant::now();
    let mut parts = Parts { open, warnings: selection.set.warnings, written: 0, last: began };
    let steps = arguments.step.then(steps);
    let pause = |left: Duration| {
        let status = program.as_mut().map(Child::try_wait).transpose()?.flatten();
        if stop.is_set() || status.is_some() {
            return Ok::<_, Failure>(Pause::EndCount);
        }
        if let Some(steps) = &steps {
            return Ok(match steps.recv_timeout(look) {
                Ok(()) => Pause::EndInterval,
                Err(RecvTimeoutError::Timeout) => Pause::Continue,
                Err(RecvTimeoutError::Disconnected) => Pause::EndCount,
            });
        }
        let end = arguments.time.map(|time| time.saturating_sub(began.elapsed()));
        std::thread::sleep(left.min(look).min(end.unwrap_or(look)));
        Ok(if end == Some(Duration::ZERO) { Pause::EndCount } else { Pause::Continue })
    };
    let each = |observed: &Observations| {
        let intervals = observed.end_ns.len();
        if let Some(page) = &page {
            publish(page, observed);
        }
        if parts.is_due(began) {
            recorder.take(parts.next(observed))?;
        }
        arguments.print(observed, intervals - 1, arguments.wanted.heat.is_some())?;
        let is_over = arguments.time.is_some_and(|time| began.elapsed() >= time);
        Ok(!is_over && arguments.count != Some(intervals as u64))
    };
    let ended = count.run((!arguments.step).then_some(length), pause, each);
    let status = program.map(end).transpose();
    let observed = count.observed;
    // Intervals from before a failure are kept.
    let ended = if observed.end_ns.is_empty() { Ok(ended?) } else { ended };
    if let Some(warning) = turns_warning(&observed) {
        tell(&format!("daqmeter: warning: {warning}"));
    }
    // Without new intervals the record before is whole.
    if parts.written < observed.end_ns.len() || parts.written == 0 {
        recorder.take(parts.next(&observed))?;
    }
    let done = arguments.finish(&mut recorder)?;
    ended?;
    let failed = status?.filter(|status| !status.success() && !stop.is_set());
    Ok(failed.map_or(done, exit_code))
}

/// Longest time between two looks at signals.
const LOOK: Duration = Duration::from_millis(100);

fn opened(selection: &Selection, host: &CountedHost) -> Result<Count, Failure> {
    let mut opener: Box<dyn Opener> = if host.is_emulated {
        let made = Synthetic::new(&host.meshes[0], &selection.set.groups);
        Box::new(made.map_err(|fault| fault.context("--emulated"))?)
    } else {
        Box::new(KernelOpener { files: host.files.clone() })
    };
    let count = Count::open(selection, opener.as_mut())?;
    for refused in &count.refused {
        tell(&format!("daqmeter: not counted: {refused}"));
    }
    Ok(count)
}

fn info(selection: &Selection, host: &CountedHost) -> EngineInfo {
    let pmus: BTreeSet<&str> = selection.set.events().map(|event| event.pmu.as_str()).collect();
    let target = pmus.into_iter().collect::<Vec<_>>().join(", ");
    EngineInfo { name: "pmu".into(), target, emulated: host.is_emulated }
}

/// Sends a message for each line on stdin. The thread that reads them ends with stdin, or with the
/// program.
fn steps() -> Receiver<()> {
    tell("counting: Enter ends an interval, Ctrl-D ends the count");
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

/// Records of the parts of a long count.
struct Parts {
    open: OpenRecord,
    warnings: Vec<String>,
    written: usize,
    last: Instant,
}

impl Parts {
    /// Returns true after each hundredth of the run, so that there are few parts, but no sooner
    /// than after 1 s and no later than after 10 s.
    fn is_due(&self, began: Instant) -> bool {
        let due = (began.elapsed() / 100).clamp(Duration::from_secs(1), Duration::from_secs(10));
        self.last.elapsed() >= due
    }

    fn next(&mut self, observed: &Observations) -> RunRecord {
        let mut part = observed.part(self.written..observed.end_ns.len());
        if self.written > 0 {
            part.continues = true;
            part.meshes.clear();
        }
        (self.written, self.last) = (observed.end_ns.len(), Instant::now());
        let warnings = self.warnings.iter().cloned().chain(turns_warning(observed)).collect();
        let sections = Sections { observed: Some(Box::new(part)), ..Sections::default() };
        let found = Tally { counters: totals(observed), warnings, sections, ..Tally::default() };
        self.open.so_far(found, Vec::new())
    }
}

/// Publishes the last interval, scaled to the time for which each event was enabled.
fn publish(page: &Page, observed: &Observations) {
    let at = observed.end_ns.len() - 1;
    for event in &observed.events {
        if let (Some(count), Some(share)) = (event.scaled(at), event.share(at)) {
            page.add("daqmeter_events_total", &[&event.name], count);
            page.set("daqmeter_event_share", &[&event.name], share);
        }
    }
    for metric in &observed.metrics {
        if let Some(value) = metric.values[at] {
            let name = format!("{} [{}]", metric.name, metric.unit);
            page.set("daqmeter_event_rate", &[name.trim_end_matches(" []")], value);
        }
    }
}

impl Arguments {
    /// Returns the table of an interval, or its grid of rates.
    fn interval_text(&self, observed: &Observations, at: usize, has_grid: bool) -> String {
        let heats = if has_grid { heats(observed, Some(at)) } else { Vec::new() };
        if heats.is_empty() {
            return tables::text(observed, Some(at), self.bytes, |event| error_of(event, at));
        }
        let end_s = observed.end_ns[at].saturating_sub(observed.begin_ns) as f64 * 1e-9;
        let grids = heats.iter().map(|heat| {
            format!("{}, {end_s:.3} s\n{}\n", heat.event, map::grid(heat.mesh, Some(heat)))
        });
        grids.collect::<String>() + &tables::metrics(observed, Some(at), self.bytes)
    }

    /// Returns true if tables are printed, rather than records, lines of perf, or nothing.
    pub(super) fn is_text(&self) -> bool {
        let Recording { json, quiet, .. } = self.recording;
        !json && !quiet && self.separator.is_none()
    }

    pub(super) fn summary(&self, observed: &Observations) -> String {
        tables::text(observed, None, self.bytes, total_error_of)
    }

    pub(super) fn print(
        &self,
        observed: &Observations,
        at: usize,
        has_grid: bool,
    ) -> Result<(), Failure> {
        let text = match self.separator {
            _ if self.recording.json || self.recording.quiet => return Ok(()),
            Some(separator) => perf_format::csv_interval(observed, at, separator),
            // One interval is its own summary.
            None if self.count == Some(1) && !has_grid => return Ok(()),
            None => self.interval_text(observed, at, has_grid),
        };
        emit(&text).map(drop)
    }

    pub(super) fn finish(&self, recorder: &mut Recorder) -> Ended {
        // Ctrl-C is the usual end of a count.
        recorder.finish(|records| {
            let observed = records.iter().filter_map(|record| record.sections.observed.as_deref());
            let shown = observed.filter(|_| self.separator.is_none());
            let tables = shown.map(|observed| format!("\n{}", self.summary(observed))).collect();
            Frame { tables, ..Frame::default() }
        })
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
        let end_ns = vec![100];
        let (events, metrics) = (vec![event], vec![metric]);
        let observed = Observations { end_ns, events, metrics, ..Observations::default() };
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
        for (text, expected_us) in
            [("1000", 1_000_000), ("1", 1000), ("1.5", 1500), ("1.5s", 1_500_000), ("5ms", 5000)]
        {
            assert_eq!(interval(text), Ok(Duration::from_micros(expected_us)), "{text}");
        }
        for wrong in ["soon", "-1", "nan", "inf", "1e300", "", "0", "0s"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
