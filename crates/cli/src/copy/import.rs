//! `daqmeter copy import`: the original study's files as records that were measured elsewhere.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use daqmeter_copy::CopyContext;
use daqmeter_copy::trace::{Trace, TraceFile, operation_of};
use daqmeter_harness::text_input_up_to;
use daqmeter_record::units::plural;
use daqmeter_record::{Clock, EngineInfo, Host, RunRecord, Workload};
use daqmeter_report::copy_imported::StudyFile;

use crate::context::context;
use crate::files::files_below;
use crate::output::{Ended, Failure};
use crate::recorder::{Recorder, Recording};

const UNKNOWN: &str = "unknown";
/// Longest file: 300 copies of 26 sizes are a third of a MiB.
const MAX_BYTES: u64 = 256 << 20;

#[derive(Debug, Args)]
#[command(after_long_help = "\
        Files: micro-benchmark_*.dat, measures_*.dat, measure_*.dat, mem_trace_*.dat. Files with \
        a synthesis are left out: they hold no single times. The name of a folder gives the \
        context: cpu, exclusive, shared or priority. For files of a program it gives the \
        neighbour and its copies, such as cpu_from_224. All files of one import count as one \
        host.\n\n\
        Example:\n\n  \
        $ daqmeter copy import results --records study.jsonl\n  \
        $ daqmeter report study.jsonl --format copy-figures -o figures.html")]
pub(crate) struct Arguments {
    /// Files of the study, or folders that hold them
    #[arg(value_name = "FILE|DIR", required = true)]
    from: Vec<PathBuf>,
    /// Context of files whose folder does not name it
    #[arg(long, value_name = "NAME", value_enum, default_value = "cpu")]
    context: CopyContext,
    #[command(flatten)]
    recording: Recording,
}

/// Reads all files before any record is kept.
pub(super) fn run(arguments: &Arguments) -> Ended {
    let mut records = Vec::new();
    for source in &arguments.from {
        let before = records.len();
        for file in files_below(std::slice::from_ref(source), &is_of_study)? {
            let read = text_input_up_to(&file, MAX_BYTES).map_err(|error| error.to_string());
            let read = read.and_then(|text| arguments.records(&file, &text));
            records.extend(read.map_err(|why| format!("{}: {why}", file.display()))?);
        }
        if records.len() == before {
            let why = "holds no file of the study (see the names in --help)";
            return Err(Failure::refused(format!("{}: {why}", source.display())));
        }
    }
    let mut recorder = Recorder::new(&arguments.recording)?;
    records.into_iter().try_for_each(|record| recorder.take(record))?;
    recorder.finish(|records| format!("read {}\n", plural(records.len() as u64, "point")))
}

fn is_of_study(file: &Path) -> bool {
    StudyFile::of(file).is_some() || operation_of(file).is_some()
}

/// Reads a folder's name such as `cpu_from_224`: the neighbour, and the direction and bytes of its
/// copies.
fn neighbour(folder: &str) -> Option<(&str, &str, u64)> {
    let (before, bytes) = folder.rsplit_once('_')?;
    let (neighbour, direction) = before.split_once('_')?;
    let direction = if direction == "from_to" { "both" } else { direction };
    let bytes = bytes.parse().ok()?;
    ["from", "to", "both"].contains(&direction).then_some((neighbour, direction, bytes))
}

impl Arguments {
    fn records(&self, file: &Path, text: &str) -> Result<Vec<RunRecord>, String> {
        if let Some(operation) = operation_of(file) {
            return Ok(vec![self.trace(file, TraceFile::parse(operation, text)?)]);
        }
        let folder = file.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        let folder = folder.unwrap_or_default();
        let Some(study) = StudyFile::of(file) else { return Ok(Vec::new()) };
        let workload = match study {
            StudyFile::Pollution => {
                let wrong = "its folder must say neighbour and copies, as cpu_from_224";
                let (neighbour, direction, bytes) = neighbour(folder).ok_or(wrong)?;
                let workload = Workload::new("pollution").with("neighbour", neighbour);
                workload.with("direction", direction).with("block_bytes", bytes)
            }
            StudyFile::Latency(_) | StudyFile::Bandwidth(_) => {
                let named = CopyContext::from_str(folder, false).unwrap_or(self.context);
                Workload::new("copy").with("context", named.to_string())
            }
        };
        study.records(text, &self.elsewhere(file, workload.with("path", UNKNOWN)))
    }

    fn trace(&self, file: &Path, read: TraceFile) -> RunRecord {
        let (first, last) = (read.records.first(), read.records.last());
        let first_ns = first.map_or(0, |record| record.before_ns);
        let wall_ns = last.map_or(0, |record| record.after_ns.saturating_sub(first_ns));
        let seconds = std::time::Duration::from_nanos(wall_ns).as_secs_f64();
        let mut record = self.elsewhere(file, Workload::new("trace").with("seconds", seconds));
        (record.origin_ns, record.wall_ns) = (first_ns, wall_ns);
        let mut trace = Trace::new(false);
        trace.add(&read.records);
        record.counters = trace.calls_by_size();
        if let count @ 1.. = read.long_addresses {
            let warning =
                format!("{count} addresses of more than 16 digits: their last 16 are used");
            record.warnings.push(warning);
        }
        record
    }

    /// Returns a record of this invocation without facts of this host. All files are of one host:
    /// a study has a folder for each context, and a page shows the figures of one host.
    fn elsewhere(&self, file: &Path, workload: Workload) -> RunRecord {
        let target = file.display().to_string();
        let engine = EngineInfo { name: workload.kind.clone(), target, emulated: false };
        let verb = match &*workload.kind {
            "copy" if file.to_string_lossy().contains("measures_") => "bandwidth",
            "copy" => "latency",
            kind => kind,
        };
        let study = format!("copy/{verb}");
        let mut record = context().blank_record(engine, workload);
        let others = if self.from.len() > 1 { " and others" } else { "" };
        let cpu_model = format!("unknown (files of {}{others})", self.from[0].display());
        record.study = study;
        record.time_utc.clear();
        record.host = Arc::new(Host { cpu_model, ..Host::default() });
        record.clock = Clock { source: UNKNOWN.into(), ..Clock::default() };
        record.warnings = vec![format!(
            "measured elsewhere, read from {}: host, load and limits are unknown, and no data were verified",
            file.display()
        )];
        record
    }
}
