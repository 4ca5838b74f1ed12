//! `daqmeter copy import`: the original study's files as records that were measured elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use daqmeter_copy::trace::{Trace, TraceFile, operation_of};
use daqmeter_copy::{CopyContext, CopyLoad, Direction, Neighbour};
use daqmeter_harness::text_input_up_to;
use daqmeter_record::units::plural;
use daqmeter_record::{Clock, Counter, EngineInfo, Host, RunRecord, Workload};
use daqmeter_report::copy_classic::FileConditions;
use daqmeter_report::copy_imported::StudyFile;
use daqmeter_sys::symbols::KernelSymbols;

use super::pollution::copies;
use super::trace::tables;
use crate::context::context;
use crate::files::files_below;
use crate::output::{Ended, Failure, tell};
use crate::recorder::{Recorder, Recording};

const UNKNOWN: &str = "unknown";
/// Longest file: 300 copies of 26 sizes are a third of a MiB.
const MAX_BYTES: u64 = 256 << 20;

#[derive(Debug, Args)]
#[command(after_long_help = "\
        Files: micro-benchmark_*.dat, measures_*.dat, measure_*.dat, mem_trace_*.dat. Files with \
        a synthesis are left out: they hold no single times. The name of a folder gives the \
        context: cpu, exclusive, shared or priority. For files of a program it gives the \
        neighbour and its copies, such as cpu_from_224; --neighbour and --copies do so for the \
        others. The mem_trace files of a folder are one trace. A file .json of the same name, as \
        --classic writes it, gives path, load and emulation. All files of one import count as \
        one host.\n\n\
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
    /// System load of files that do not say it
    #[arg(long, value_name = "LOAD", value_enum)]
    load: Option<CopyLoad>,
    /// Neighbour of programs whose folder does not name it
    #[arg(long, value_name = "NAME", value_enum, requires = "copies")]
    neighbour: Option<Neighbour>,
    /// Copies of that neighbour
    #[arg(long, value_name = "DIR:SIZE", value_parser = copies, requires = "neighbour")]
    copies: Option<(Direction, usize)>,
    /// Lines of each table of a trace
    #[arg(long, value_name = "N", default_value = "12")]
    top: usize,
    #[command(flatten)]
    recording: Recording,
}

/// Reads all files before any record is kept.
pub(super) fn run(arguments: &Arguments) -> Ended {
    let (mut records, mut traces) = (Vec::new(), BTreeMap::<PathBuf, Folder>::new());
    let mut left_out = Vec::new();
    for source in &arguments.from {
        let files = files_below(std::slice::from_ref(source), &is_of_study)?;
        let files = files.into_iter().filter(|file| is_of_study(file)).collect::<Vec<_>>();
        if files.is_empty() {
            let why = "holds no file of the study (see the names in --help)";
            return Err(Failure::refused(format!("{}: {why}", source.display())));
        }
        for file in files {
            let wrong = |why: String| format!("{}: {why}", file.display());
            let text =
                text_input_up_to(&file, MAX_BYTES).map_err(|error| wrong(error.to_string()))?;
            if let Some(operation) = operation_of(&file) {
                let folder = file.parent().unwrap_or(&file).to_owned();
                let read = TraceFile::parse(operation, &text).map_err(wrong)?;
                traces.entry(folder).or_default().add(&read);
            } else if let Some(workload) = arguments.workload(&file) {
                records.extend(arguments.records(&file, workload, &text).map_err(wrong)?);
            } else {
                left_out.push(wrong(
                    "its folder must say neighbour and copies, as cpu_from_224; or give --neighbour and --copies".to_owned(),
                ));
            }
        }
    }
    if records.is_empty() && traces.is_empty() {
        return Err(Failure::refused(left_out.join("; ")));
    }
    left_out.iter().for_each(|file| tell(&format!("daqmeter: left out: {file}")));
    let mut text = String::new();
    for (folder, found) in traces {
        let record = arguments.trace(&folder, &found);
        let time = Duration::from_nanos(record.wall_ns);
        text += &format!("{}: ", folder.display());
        text += &tables(&found.trace, &KernelSymbols::default(), arguments.top, time);
        records.push(record);
    }
    let mut recorder = Recorder::new(&arguments.recording)?;
    records.into_iter().try_for_each(|record| recorder.take(record))?;
    recorder.finish(|records| format!("{text}read {}\n", plural(records.len() as u64, "point")))
}

/// Trace of the files of one folder.
#[derive(Default)]
struct Folder {
    trace: Trace,
    long_addresses: usize,
}

impl Folder {
    fn add(&mut self, file: &TraceFile) {
        self.trace.add(&file.records);
        self.long_addresses += file.long_addresses;
    }
}

fn is_of_study(file: &Path) -> bool {
    StudyFile::of(file).is_some() || operation_of(file).is_some()
}

/// Reads a folder's name such as `cpu_from_224`: the neighbour, and the direction and bytes of its
/// copies.
fn neighbour(folder: &str) -> Option<(Neighbour, Direction, usize)> {
    let (before, bytes) = folder.rsplit_once('_')?;
    let (neighbour, direction) = before.split_once('_')?;
    let direction = if direction == "from_to" { "both" } else { direction };
    let (neighbour, direction) =
        (Neighbour::from_str(neighbour, false), Direction::from_str(direction, false));
    Some((neighbour.ok()?, direction.ok()?, bytes.parse().ok()?))
}

impl Arguments {
    /// Returns the workload that the place of a file gives; `None` for a program without neighbour.
    fn workload(&self, file: &Path) -> Option<Workload> {
        let folder = file.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        let folder = folder.unwrap_or_default();
        if StudyFile::of(file)? != StudyFile::Pollution {
            let named = CopyContext::from_str(folder, false).unwrap_or(self.context);
            return Some(Workload::new("copy").with("context", named.to_string()));
        }
        let given = || {
            let (direction, bytes) = self.copies?;
            Some((self.neighbour?, direction, bytes))
        };
        let (neighbour, direction, bytes) = neighbour(folder).or_else(given)?;
        let workload = Workload::new("pollution").with("neighbour", neighbour.to_string());
        let workload = workload.with("direction", direction.to_string());
        Some(workload.with("block_bytes", bytes as u64))
    }

    fn records(
        &self,
        file: &Path,
        workload: Workload,
        text: &str,
    ) -> Result<Vec<RunRecord>, String> {
        let Some(study) = StudyFile::of(file) else { return Ok(Vec::new()) };
        let beside = file.with_extension("json");
        let said: Option<FileConditions> = match beside.exists() {
            true => {
                let wrong = |why: String| format!("{}: {why}", beside.display());
                let text =
                    text_input_up_to(&beside, 4096).map_err(|error| wrong(error.to_string()))?;
                Some(serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?)
            }
            false => None,
        };
        let load = said.as_ref().and_then(|said| CopyLoad::from_str(&said.load, false).ok());
        let load = load.or(self.load).map_or(UNKNOWN.to_owned(), |load| load.to_string());
        let path = said.as_ref().map_or(UNKNOWN, |said| said.path.as_str());
        let workload = workload.with("path", path).with("load", load);
        let mut template = self.elsewhere(file, workload);
        template.engine.emulated = said.is_some_and(|said| said.emulated);
        study.records(text, &template)
    }

    fn trace(&self, folder: &Path, found: &Folder) -> RunRecord {
        let (first_ns, wall_ns) = found.trace.span_ns().unwrap_or_default();
        let seconds = Duration::from_nanos(wall_ns).as_secs_f64();
        let mut record = self.elsewhere(folder, Workload::new("trace").with("seconds", seconds));
        (record.origin_ns, record.wall_ns) = (first_ns, wall_ns);
        record.counters = found.trace.counters();
        record.counters.push(Counter::measured("traced", wall_ns as f64, "ns"));
        if let count @ 1.. = found.long_addresses {
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
