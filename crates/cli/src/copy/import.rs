//! `daqmeter copy import`: the original study's files as records that were measured elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use daqmeter_copy::trace::{Trace, TraceFile, operation_of};
use daqmeter_copy::{CopyContext, CopyLoad, Direction, Neighbour};
use daqmeter_harness::text_input;
use daqmeter_record::border::from_peer;
use daqmeter_record::units::plural;
use daqmeter_record::{Clock, Counter, EngineInfo, Host, RunRecord, Workload};
use daqmeter_report::Frame;
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
#[command(after_long_help = include_str!("../../help/copy-import.txt"))]
pub(crate) struct Arguments {
    /// Files of the study, or folders that hold them
    #[arg(value_name = "FILE|DIR", required = true)]
    from: Vec<PathBuf>,
    /// Context of files whose folder does not name it
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    context: CopyContext,
    /// System load of files that do not say it
    #[arg(long, value_name = "LOAD")]
    load: Option<CopyLoad>,
    /// Neighbour of programs whose folder does not name it
    #[arg(long, value_name = "NAME", requires = "copies")]
    neighbour: Option<Neighbour>,
    /// Copies of that neighbour
    #[arg(long, value_name = "DIR:SIZE", value_parser = copies, requires = "neighbour")]
    copies: Option<(Direction, usize)>,
    /// Lines of each table of a trace [default: 12]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    #[command(flatten)]
    recording: Recording,
}

/// Reads all files before any record is kept.
pub(super) fn run(arguments: &Arguments) -> Ended {
    let (mut records, mut traces) = (Vec::new(), BTreeMap::<PathBuf, Trace>::new());
    let mut left_out = Vec::new();
    for source in &arguments.from {
        let files = files_below(std::slice::from_ref(source), &is_of_study)?;
        let files = files.into_iter().filter(|file| is_of_study(file)).collect::<Vec<_>>();
        if files.is_empty() {
            let why = "holds no file of the study (see the names in --help)";
            return Err(Failure::refused(format!("{}: {why}", source.display())));
        }
        for file in files {
            if let Some(operation) = operation_of(&file) {
                let folder = file.parent().unwrap_or(&file).to_owned();
                let read = parsed(&file, MAX_BYTES, |text| TraceFile::parse(operation, text))?;
                traces.entry(folder).or_default().add_file(&read);
            } else if let Some((study, workload)) = arguments.workload(&file) {
                records.extend(arguments.records(&file, study, workload)?);
            } else {
                let why = "its folder must say neighbour and copies, as cpu_from_224; or give --neighbour and --copies";
                left_out.push(format!("{}: {why}", file.display()));
            }
        }
    }
    if records.is_empty() && traces.is_empty() {
        return Err(Failure::refused(left_out.join("; ")));
    }
    if arguments.top.is_some() && traces.is_empty() {
        return Err(Failure::refused("--top is for traces: none of the files is of one"));
    }
    left_out.iter().for_each(|file| tell(&format!("daqmeter: left out: {file}")));
    let mut tables = String::new();
    for (folder, trace) in traces {
        let record = arguments.trace(&folder, &trace);
        let time = Duration::from_nanos(record.wall_ns);
        tables += &format!("{}: ", folder.display());
        let top = arguments.top.unwrap_or(12);
        tables += &self::tables(&trace, &KernelSymbols::default(), top, time);
        records.push(record);
    }
    let mut recorder = Recorder::new(&arguments.recording)?;
    records.into_iter().try_for_each(|record| recorder.take(record))?;
    recorder.finish(|records| {
        let answer = vec![format!("read {}", plural(records.len() as u64, "point"))];
        Frame { answer, tables, ..Frame::default() }
    })
}

/// Reads and parses a file. An error names it.
fn parsed<T>(
    file: &Path,
    max_bytes: u64,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, String> {
    let text = text_input(file, max_bytes).map_err(|error| error.to_string());
    text.and_then(|text| parse(&text)).map_err(|why| format!("{}: {why}", file.display()))
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
    /// Returns kind and workload that the place of a file gives; `None` for a program without
    /// neighbour.
    fn workload(&self, file: &Path) -> Option<(StudyFile, Workload)> {
        let study = StudyFile::of(file)?;
        let folder = file.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        let folder = folder.unwrap_or_default();
        if study != StudyFile::Pollution {
            let named = CopyContext::from_str(folder, false).unwrap_or(self.context);
            return Some((study, Workload::new("copy").with("context", named.to_string())));
        }
        let given = || {
            let (direction, bytes) = self.copies?;
            Some((self.neighbour?, direction, bytes))
        };
        let (neighbour, direction, bytes) = neighbour(folder).or_else(given)?;
        let workload = Workload::new("pollution").with("neighbour", neighbour.to_string());
        let workload = workload.with("direction", direction.to_string());
        Some((study, workload.with("block_bytes", bytes as u64)))
    }

    fn records(
        &self,
        file: &Path,
        study: StudyFile,
        workload: Workload,
    ) -> Result<Vec<RunRecord>, String> {
        let beside = file.with_extension("json");
        let read = |text: &str| from_peer::<FileConditions>(text.as_bytes(), &[]);
        let said = beside.exists().then(|| parsed(&beside, 4096, read)).transpose()?;
        let FileConditions { path, load, emulated } = said.unwrap_or_default();
        let load = load.and_then(|load| CopyLoad::from_str(&load, false).ok()).or(self.load);
        let load = load.map_or(UNKNOWN.to_owned(), |load| load.to_string());
        let workload = workload.with("path", path.unwrap_or(UNKNOWN.to_owned()));
        let mut template = self.elsewhere(file, workload.with("load", load));
        template.engine.emulated = emulated;
        parsed(file, MAX_BYTES, |text| study.records(text, &template))
    }

    fn trace(&self, folder: &Path, trace: &Trace) -> RunRecord {
        let (first_ns, wall_ns) = trace.span_ns().unwrap_or_default();
        let seconds = Duration::from_nanos(wall_ns).as_secs_f64();
        let mut record = self.elsewhere(folder, Workload::new("trace").with("seconds", seconds));
        (record.origin_ns, record.wall_ns) = (first_ns, wall_ns);
        record.counters = trace.counters();
        record.counters.push(Counter::measured("traced", wall_ns as f64, "ns"));
        if let count @ 1.. = trace.long_addresses {
            let what = "addresses of more than 16 digits: their last 16 are used";
            record.warnings.push(format!("{count} {what}"));
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
        let mut record = context(None).blank_record(engine, workload);
        let others = if self.from.len() > 1 { " and others" } else { "" };
        let cpu_model = format!("unknown (files of {}{others})", self.from[0].display());
        record.study = study;
        record.time_utc.clear();
        let name = self.recording.label.clone().unwrap_or_default();
        record.host = Arc::new(Host { name, cpu_model, ..Host::default() });
        record.clock = Clock { source: UNKNOWN.into(), ..Clock::default() };
        record.warnings = vec![format!(
            "measured elsewhere, read from {}: host, load and limits are unknown, and no data were verified",
            file.display()
        )];
        record
    }
}
