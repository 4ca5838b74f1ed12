//! `--from` of latency, bandwidth, pollution and trace: the study's files as records that were
//! measured elsewhere.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::ValueEnum;
use daqmeter_copy::{Context, Path as Way, Request};
use daqmeter_harness::Request as _;
use daqmeter_record::{Clock, EngineInfo, Host, NoiseFloor, RunRecord, Workload};
use daqmeter_report::copy_classic::Files;
use daqmeter_report::copy_imported as imported;

use super::{Chosen, EngineChoice, Written, write_classic};
use crate::output::{Failure, Recorder};
use crate::runner::{Common, context};

/// What stands for the way of a copy where nobody said it.
pub(super) const UNKNOWN: &str = "unknown";

/// Options of a measurement, which files have behind them.
pub(super) const NOT_OF_FILES: [&str; 9] =
    ["operations", "sizes", "up_to", "menu", "reps", "seed", "pin", "observe", "metrics"];

/// Longest file: 300 copies of 26 sizes are a third of a MiB.
const MAX_BYTES: u64 = 256 << 20;

/// Files to read, and what becomes of their records.
pub(super) struct Import<'a> {
    /// As typed: `latency`.
    pub(super) verb: &'static str,
    pub(super) from: &'a [PathBuf],
    pub(super) common: &'a Common,
    pub(super) written: &'a Written,
}

/// What is known of a file besides its contents: who did the work, and what was asked.
pub(super) type Told = (EngineInfo, Workload);

impl Import<'_> {
    /// All files as records, before any is kept; then what follows a measurement: table, page, records, classic files.
    pub(super) fn run(
        &self,
        told: impl Fn(&Path) -> Result<Told, Failure>,
        classic: impl Fn(&[RunRecord]) -> Files,
        text: fn(&[RunRecord]) -> String,
    ) -> Result<ExitCode, Failure> {
        let page = self.written.output.as_ref();
        let context = context();
        let mut records = Vec::new();
        for source in self.from {
            for file in self.files(source)? {
                let (engine, workload) = told(&file)?;
                let blank = context.blank_record(engine, workload);
                records.extend(read(&file, &elsewhere(blank, source, &file, self.verb))?);
            }
        }
        let mut recorder = Recorder::new(self.common.out.as_ref(), self.common.json)?;
        recorder.quiet = self.common.quiet;
        for record in records {
            recorder.take(record)?;
        }
        write_classic(self.written, &classic(&recorder.records))?;
        recorder.finish(page, false, text)
    }

    /// A file as it was named; of a folder and those in it, the files of this verb.
    fn files(&self, source: &Path) -> Result<Vec<PathBuf>, Failure> {
        let verb = self.verb;
        let shown = source.display();
        if !source.is_dir() {
            return match imported::File::of(source) {
                Some(file) if file.verb() == Some(verb) => Ok(vec![source.to_owned()]),
                Some(file) => Err(Failure::refused(match file.verb() {
                    Some(other) => format!("{shown}: is a file of `daqmeter copy {other} --from`"),
                    None => format!(
                        "{shown}: a synthesis holds no single times: name the file that it was made from"
                    ),
                })),
                None => Err(Failure::refused(format!(
                    "{shown}: the name says what was measured: {}",
                    names(verb)
                ))),
            };
        }
        let mut files = Vec::new();
        for entry in entries(source)? {
            if entry.is_dir() {
                files.extend(entries(&entry)?);
            } else {
                files.push(entry);
            }
        }
        files.retain(|file| imported::File::of(file).and_then(imported::File::verb) == Some(verb));
        files.sort();
        if files.is_empty() {
            let names = names(verb);
            return Err(Failure::refused(format!("{shown}: holds no {names}")));
        }
        Ok(files)
    }
}

/// How the files of a verb are called.
fn names(verb: &str) -> &'static str {
    match verb {
        "latency" => "micro-benchmark_{from,to,from_nc,to_nc}_<x>.dat",
        "bandwidth" => "measures_{from,to,from_to}.dat",
        _ => "measure_X.dat",
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let refused = |error| Failure::refused(format!("{}: {error}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(refused)?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(refused)).collect()
}

/// The points of a file.
fn read(file: &Path, template: &RunRecord) -> Result<Vec<RunRecord>, Failure> {
    let shown = file.display();
    let text = text_of(file).map_err(|error| Failure::refused(format!("{shown}: {error}")))?;
    let Some(kind) = imported::File::of(file) else {
        return Ok(Vec::new());
    };
    let records = kind.records(&text, template);
    records.map_err(|problem| Failure::refused(format!("{shown}: {problem}")))
}

fn text_of(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = File::open(file)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_BYTES {
        return Err(std::io::Error::other(format!("longer than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

/// A record of this invocation with nothing of this host in it. Files that were named together are of one host, others may be of
/// another.
pub(super) fn elsewhere(blank: RunRecord, source: &Path, file: &Path, verb: &str) -> RunRecord {
    let folder = match source.is_dir() {
        true => Some(source),
        false => source.parent(),
    };
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).display();
    let mut record = blank;
    record.study = format!("copy/{verb}").into();
    record.time_utc.clear();
    record.host =
        Arc::new(Host { cpu_model: format!("unknown (files of {folder})"), ..Host::default() });
    record.clock = Clock { source: UNKNOWN.into(), ..Clock::default() };
    record.noise = NoiseFloor::default();
    record.warnings = vec![format!(
        "measured elsewhere: read from {}; host, load and limits are not known, and no byte was verified here",
        file.display()
    )];
    record
}

impl Chosen {
    /// Who copied, by the file's folder or by --contexts; by which way, if --path or --engine says so.
    pub(super) fn told(&self, file: &Path) -> Result<Told, Failure> {
        let context = self.context_of(file)?;
        let way = match context {
            Context::Cpu => self.path,
            _ if self.engine == EngineChoice::Auto => None,
            _ => Some(self.engine.path()),
        };
        let request = Request { path: way.unwrap_or(Way::Pread), context, ..self.request.clone() };
        let workload = match way {
            Some(_) => request.workload(),
            None => request.workload().with("path", UNKNOWN),
        };
        let engine = EngineInfo {
            name: "copy".into(),
            target: file.display().to_string().into(),
            emulated: way == Some(Way::EngineThread),
        };
        Ok((engine, workload))
    }

    fn context_of(&self, file: &Path) -> Result<Context, Failure> {
        let shown = file.display();
        let by_folder = folder(file).and_then(|name| Context::from_str(name, false).ok());
        match (by_folder, &self.contexts[..]) {
            (_, [_, _, ..]) => Err(Failure::refused(
                "--contexts: the files of one context are read at a time; name one",
            )),
            (Some(context), []) => Ok(context),
            (None, [context]) => Ok(*context),
            (Some(context), [said]) if context == *said => Ok(context),
            (Some(context), [said]) => Err(Failure::refused(format!(
                "{shown}: lies in a folder {context}, and --contexts says {said}"
            ))),
            (None, []) => Err(Failure::refused(format!(
                "{shown}: does not say who copied: add --contexts cpu, exclusive, shared or priority"
            ))),
        }
    }
}

/// Name of the folder in which a file lies.
pub(super) fn folder(file: &Path) -> Option<&str> {
    file.parent()?.file_name()?.to_str()
}
