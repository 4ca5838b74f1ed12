//! `--from` of latency, bandwidth and pollution: the study's files as records measured elsewhere.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use daqmeter_record::{Clock, EngineInfo, Host, NoiseFloor, RunRecord, Workload};
use daqmeter_report::copy_classic::{StudyFile, StudyFiles};

use super::Written;
use crate::output::{Failure, Recorder};
use crate::runner::{Common, context};

pub(super) const UNKNOWN: &str = "unknown";

/// Options of a measurement, which files cannot have.
pub(super) const NOT_OF_FILES: [&str; 9] =
    ["operations", "sizes", "up_to", "menu", "reps", "seed", "pin", "observe", "metrics"];

/// Longest file: 300 copies of 26 sizes are a third of a MiB.
const MAX_BYTES: u64 = 256 << 20;

pub(super) struct Import<'a> {
    pub(super) verb: &'static str,
    pub(super) from: &'a [PathBuf],
    pub(super) common: &'a Common,
    pub(super) written: &'a Written,
}

impl Import<'_> {
    /// Reads all files before any record is kept; then makes the outputs of a measurement. `about`
    /// gives the facts of a file besides its contents: engine and request.
    pub(super) fn run(
        &self,
        about: impl Fn(&Path) -> Result<(EngineInfo, Workload), Failure>,
        classic: impl Fn(&[RunRecord]) -> StudyFiles,
        text: fn(&[RunRecord]) -> String,
    ) -> Result<ExitCode, Failure> {
        let context = context();
        let mut records = Vec::new();
        for source in self.from {
            for (file, kind) in self.files(source)? {
                let (engine, workload) = about(&file)?;
                let blank = context.blank_record(engine, workload);
                let template = elsewhere(blank, source, &file, self.verb);
                let read = text_of(&file).and_then(|text| kind.records(&text, &template));
                let shown = file.display();
                records.extend(read.map_err(|why| Failure::refused(format!("{shown}: {why}")))?);
            }
        }
        let mut recorder = Recorder::new(self.common.out.as_ref(), self.common.json)?;
        recorder.quiet = self.common.quiet;
        records.into_iter().try_for_each(|record| recorder.take(record))?;
        self.written.write(&classic(&recorder.records))?;
        recorder.finish(self.written.output.as_ref(), false, text)
    }

    fn files(&self, source: &Path) -> Result<Vec<(PathBuf, StudyFile)>, Failure> {
        let names = match self.verb {
            "latency" => "micro-benchmark_{from,to,from_nc,to_nc}_<x>.dat",
            "bandwidth" => "measures_{from,to,from_to}.dat",
            _ => "measure_X.dat",
        };
        let refused = |why: String| Failure::refused(format!("{}: {why}", source.display()));
        if !source.is_dir() {
            let kind = StudyFile::of(source);
            return match kind.map(|kind| (kind, kind.verb())) {
                Some((kind, Some(verb))) if verb == self.verb => Ok(vec![(source.into(), kind)]),
                Some((_, Some(verb))) => {
                    Err(refused(format!("is a file of `daqmeter copy {verb} --from`")))
                }
                Some((_, None)) => Err(refused(
                    "a synthesis holds no single times: name the file that it was made from".into(),
                )),
                None => Err(refused(format!("the name says what was measured: {names}"))),
            };
        }
        let list = |folder: &Path| -> Result<Vec<PathBuf>, Failure> {
            let failed = |error| Failure::refused(format!("{}: {error}", folder.display()));
            let entries = std::fs::read_dir(folder).map_err(failed)?;
            entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect()
        };
        let (folders, mut files): (Vec<PathBuf>, _) =
            list(source)?.into_iter().partition(|entry| entry.is_dir());
        for folder in folders {
            files.extend(list(&folder)?);
        }
        files.sort();
        let known = files.into_iter().filter_map(|file| Some((StudyFile::of(&file)?, file)));
        let ours = known.filter(|(kind, _)| kind.verb() == Some(self.verb));
        let found: Vec<_> = ours.map(|(kind, file)| (file, kind)).collect();
        if found.is_empty() { Err(refused(format!("holds no {names}"))) } else { Ok(found) }
    }
}

pub(super) fn text_of(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let opened = File::open(file);
    let read = opened.and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    match read.map_err(|error| error.to_string())? as u64 {
        0..=MAX_BYTES => Ok(text),
        _ => Err(format!("longer than {MAX_BYTES} bytes")),
    }
}

/// Returns a record of this invocation without facts of this host. Files of one folder are of one
/// host, those of another folder may be of another.
pub(super) fn elsewhere(blank: RunRecord, source: &Path, file: &Path, verb: &str) -> RunRecord {
    let folder = if source.is_dir() { Some(source) } else { source.parent() };
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).display();
    let mut record = blank;
    record.study = format!("copy/{verb}");
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

pub(super) fn folder(file: &Path) -> Option<&str> {
    file.parent()?.file_name()?.to_str()
}
