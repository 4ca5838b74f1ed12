//! Runs paths that are texts. What they gave can be saved, and taken from there again: a model that was changed is held to the runs
//! that the model before was held to, and nothing is measured for that.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path as FilePath, PathBuf};

use daqmeter_harness::{Request, StepPlan};
use daqmeter_path::{Path, PathRequest};
use daqmeter_record::conditions::Disturbance;
use daqmeter_record::path::{PathRun, PathThread};
use daqmeter_record::shape::PathShape;
use daqmeter_record::{Host, RunRecord, Tool, conditions};
use serde::{Deserialize, Serialize};

use crate::run::Runner;

/// What the first line of a file of runs says.
const FORMAT: &str = "daqmeter-path-runs";
/// Version of that file.
const VERSION: u32 = 1;
/// Tries of a run that other programs or the hypervisor disturb. What is shorter than a fifth of a second cannot be told to be
/// disturbed: the kernel counts in ticks of 10 ms.
const TRIES: usize = 2;
/// What stands in a text for the folder of the files that a path writes.
pub(crate) const FOLDER: &str = "{folder}";

/// Where and by what the runs were measured: the first line of a file of runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measured {
    format: String,
    version: u32,
    /// The program.
    pub(crate) tool: Tool,
    /// The host.
    pub(crate) host: Host,
    /// CPUs that the process could use, in parts where it had a quota.
    pub(crate) cpus: f64,
}

/// A run: what was asked for, and what it gave. A line of a file of runs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedRun {
    text: String,
    seconds: f64,
    rate_hz: Option<f64>,
    pins: Vec<u32>,
    /// What else took the CPUs meanwhile, in the last of its tries.
    disturbed: Option<String>,
    run: PathRun,
}

/// Runs of the same path at the same kind of load and placement, in the order in which they were made. The rate is not a part of it:
/// it follows from runs before.
type Asked = (String, bool, Vec<u32>);

impl SavedRun {
    fn asked(&self) -> Asked {
        (self.text.clone(), self.rate_hz.is_some(), self.pins.clone())
    }
}

/// Where runs come from.
enum From<'a> {
    Host(&'a Runner, Folder),
    File(BTreeMap<Asked, VecDeque<SavedRun>>),
}

/// Runs paths that are texts, or takes what they gave from a file.
pub struct Paths<'a> {
    from: From<'a>,
    save: Option<BufWriter<File>>,
    pub(crate) measured: Measured,
    pub(crate) runs: u64,
    /// Runs that were disturbed in all tries, and the last reason.
    pub(crate) disturbed: (u64, Option<String>),
}

/// Removed with what is in it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // It is in the system's folder for such things, which is emptied anyway.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl<'a> Paths<'a> {
    /// Runs them on this host, with a folder for the files. With `save`, what each gave is written there.
    ///
    /// # Errors
    /// When the folder or the file cannot be made.
    pub fn new(runner: &'a Runner, save: Option<&FilePath>) -> Result<Paths<'a>, String> {
        let folder = std::env::temp_dir().join(format!("daqmeter-paths-{}", std::process::id()));
        std::fs::create_dir(&folder)
            .map_err(|error| format!("make {}: {error}", folder.display()))?;
        let context = &runner.context;
        let mut paths = Paths {
            from: From::Host(runner, Folder(folder)),
            save: None,
            measured: Measured {
                format: FORMAT.to_owned(),
                version: VERSION,
                tool: context.tool.clone(),
                host: (*context.host).clone(),
                cpus: daqmeter_sys::available::cpus(),
            },
            runs: 0,
            disturbed: (0, None),
        };
        if let Some(file) = save {
            let made = File::create(file);
            let made = made.map_err(|error| format!("make {}: {error}", file.display()))?;
            paths.save = Some(BufWriter::new(made));
            write_line(&mut paths.save, &paths.measured)?;
        }
        Ok(paths)
    }

    /// Takes them from the text of a file of runs.
    ///
    /// # Errors
    /// When it is something else, of another version, or a line is no run: names the line.
    pub fn of_file(text: &str) -> Result<Paths<'static>, String> {
        let mut lines = (1..).zip(text.lines());
        let no_runs = |why: String| {
            format!("is no file of runs: {why}; write one with daqmeter twin validate --save-runs")
        };
        let (_, first) = lines.next().ok_or_else(|| no_runs("it is empty".to_owned()))?;
        let measured: Measured =
            serde_json::from_str(first).map_err(|error| no_runs(error.to_string()))?;
        if (measured.format.as_str(), measured.version) != (FORMAT, VERSION) {
            let wanted = format!("its first line does not say {FORMAT} and version {VERSION}");
            return Err(no_runs(wanted));
        }
        let mut saved: BTreeMap<Asked, VecDeque<SavedRun>> = BTreeMap::new();
        for (number, line) in lines {
            let run: SavedRun = serde_json::from_str(line)
                .map_err(|error| format!("line {number} is no run: {error}"))?;
            saved.entry(run.asked()).or_default().push_back(run);
        }
        Ok(Paths { from: From::File(saved), save: None, measured, runs: 0, disturbed: (0, None) })
    }

    /// Whether a path can be run as fast as it goes: from a file as often as it was run, on a host always.
    pub fn has(&self, text: &str) -> bool {
        match &self.from {
            From::Host(..) => true,
            From::File(saved) => {
                let asked = (text.to_owned(), false, Vec::new());
                saved.get(&asked).is_some_and(|runs| !runs.is_empty())
            }
        }
    }

    /// Whether runs come from a file: no budget limits them.
    pub fn is_file(&self) -> bool {
        matches!(self.from, From::File(_))
    }

    /// Runs a path for that time, as fast as it goes or at so many blocks per second and stream, its threads pinned to these CPUs in
    /// turn, or as the path says where there are none.
    ///
    /// # Errors
    /// When it cannot be run, a signal came, or the file does not have the run.
    pub fn run(
        &mut self,
        text: &str,
        seconds: f64,
        rate_hz: Option<f64>,
        pins: &[u32],
    ) -> Result<(PathShape, PathRun), String> {
        self.runs += 1;
        let mut asked = SavedRun {
            text: text.to_owned(),
            seconds,
            rate_hz,
            pins: pins.to_vec(),
            disturbed: None,
            run: PathRun::default(),
        };
        match &mut self.from {
            From::Host(runner, folder) => {
                measure(runner, &folder.0, &mut asked)?;
                write_line(&mut self.save, &asked)?;
            }
            From::File(saved) => {
                let next = saved.get_mut(&asked.asked()).and_then(VecDeque::pop_front);
                asked = next.ok_or_else(|| {
                    format!("the file of runs has no further run of this path:\n{text}")
                })?;
            }
        }
        if asked.disturbed.is_some() {
            self.disturbed.0 += 1;
            self.disturbed.1.clone_from(&asked.disturbed);
        }
        let path = Path::parse(&asked.text, "path.toml").map_err(|error| error.to_string())?;
        let mut shape = path.shape()?;
        shape.rate_hz = asked.rate_hz;
        pin(&mut shape, pins);
        Ok((shape, asked.run))
    }
}

fn write_line(file: &mut Option<BufWriter<File>>, line: &impl Serialize) -> Result<(), String> {
    let Some(file) = file else {
        return Ok(());
    };
    let text = serde_json::to_string(line).expect("a run is plain JSON");
    // Whole lines, also of a calibration that is interrupted.
    let written = writeln!(file, "{text}").and_then(|()| file.flush());
    written.map_err(|error| format!("write the runs: {error}"))
}

/// Runs it on this host, again where it was disturbed.
fn measure(runner: &Runner, folder: &FilePath, asked: &mut SavedRun) -> Result<(), String> {
    let file = folder.join("path.toml");
    let name = "the folder for temporary files is not UTF-8";
    let text = asked.text.replace(FOLDER, folder.to_str().ok_or(name)?);
    std::fs::write(&file, text).map_err(|error| format!("write {}: {error}", file.display()))?;
    let path = Path::load(file.to_str().ok_or(name)?).map_err(|error| error.to_string())?;
    let cpus: Vec<String> = asked.pins.iter().map(u32::to_string).collect();
    let request = PathRequest {
        rate_hz: asked.rate_hz,
        unpaced: asked.rate_hz.is_none(),
        cpus: cpus.join(","),
        ..PathRequest::new(&path, asked.seconds)
    };
    for _ in 0..TRIES {
        let record = record_of(runner, &request, &path)?;
        let disturbances = conditions::of(&record);
        let run = record.path.filter(|run| run.blocks > 0);
        asked.run = *run.ok_or_else(|| format!("{}: no block came to the end", path.line()))?;
        // CPU time that others took. The speed of the CPUs is a part of what is measured.
        let taken = disturbances.iter();
        let mut taken = taken.filter(|found| !matches!(found, Disturbance::Speed(_)));
        asked.disturbed = taken.next().map(ToString::to_string);
        if asked.disturbed.is_none() {
            break;
        }
    }
    Ok(())
}

fn record_of(runner: &Runner, request: &PathRequest, path: &Path) -> Result<RunRecord, String> {
    let settings = runner.settings(StepPlan::ByStage(1), "twin/calibrate", &[]);
    let record = runner.quietly("path", &request.workload(), &settings);
    let record = record.map_err(|refusal| refusal.to_string())?;
    if runner.stop.is_set() {
        return Err("interrupted".to_owned());
    }
    match record.outcome.reason() {
        Some(reason) => Err(format!("{}: {reason}", path.line())),
        None => Ok(record),
    }
}

/// Pins the threads of a shape in turn, from source to sink, as a run does.
pub(crate) fn pin(shape: &mut PathShape, pins: &[u32]) {
    let mut turn = pins.iter().copied().cycle();
    for row in &mut shape.rows {
        if !pins.is_empty() {
            row.cpus = turn.by_ref().take(row.threads).collect();
        }
    }
}

/// The threads of each row.
pub(crate) fn threads_by_row<'a>(
    shape: &'a PathShape,
    run: &'a PathRun,
) -> impl Iterator<Item = &'a [PathThread]> {
    let mut rest = &run.threads[..];
    shape.rows.iter().map(move |row| {
        let (own, others) = rest.split_at(row.threads.min(rest.len()));
        rest = others;
        own
    })
}

#[cfg(test)]
mod tests {
    use daqmeter_twin::{Check, Pair, Profile};

    use super::super::checks::{Again, checked_path};
    use super::*;

    #[test]
    fn threads_are_pinned_in_turn_from_source_to_sink() {
        let row = |threads| daqmeter_record::shape::ShapeRow { threads, ..Default::default() };
        let mut shape = PathShape { rows: vec![row(1), row(2), row(1)], ..PathShape::default() };
        pin(&mut shape, &[4, 7]);
        let cpus: Vec<&[u32]> = shape.rows.iter().map(|row| &row.cpus[..]).collect();
        assert_eq!(cpus, [&[4][..], &[7, 4], &[7]]);
    }

    const TEXT: &str =
        "title = \"x\"\nblock = \"4KiB\"\n[source]\nkind = \"memory\"\n[sink]\nkind = \"read\"\n";

    fn first_line(version: u32) -> String {
        let measured = Measured {
            format: FORMAT.to_owned(),
            version,
            tool: Tool::default(),
            host: Host::default(),
            cpus: 2.0,
        };
        serde_json::to_string(&measured).unwrap()
    }

    fn line(rate_hz: Option<f64>, blocks: u64) -> String {
        line_of(TEXT, rate_hz, blocks)
    }

    fn line_of(text: &str, rate_hz: Option<f64>, blocks: u64) -> String {
        let run = SavedRun {
            text: text.to_owned(),
            seconds: 0.25,
            rate_hz,
            pins: Vec::new(),
            disturbed: (blocks == 2).then(|| "other programs".to_owned()),
            run: PathRun { blocks, wall_ns: 1_000_000_000, ..PathRun::default() },
        };
        serde_json::to_string(&run).unwrap()
    }

    #[test]
    fn paths_of_a_calibration_that_are_run_again_say_how_much_faster_they_are_now() {
        let (first, other) = (checked_path(0), checked_path(1));
        let check = |text: &str, line: Option<&str>| {
            let shape = Path::parse(text, "path.toml").unwrap().shape().unwrap();
            Check {
                line: line.map_or(shape.line, str::to_owned),
                block_bytes: shape.block_bytes,
                rate: Pair { predicted: 1.0, measured: 50.0 },
                ..Check::default()
            }
        };
        let paced = Check::default();
        let mut profile = Profile {
            checks: vec![check(&first, None), paced.clone(), check(&other, None), paced],
            ..Profile::default()
        };
        profile.host.allowed_cpus = vec![0, 1];
        let run = |text: &str, blocks| line_of(text, None, blocks);
        let mut lines = vec![first_line(VERSION)];
        lines.extend([90, 100, 700].map(|blocks| run(&first, blocks)));
        lines.extend([25, 1, 30].map(|blocks| run(&other, blocks)));
        let file = lines.join("\n");
        let mut paths = Paths::of_file(&file).unwrap();
        let mut again = Again::new(&profile);
        // Medians of three: 100 and 25 blocks a second, 50 then. After the last one the first comes again, which the file does not have.
        let found = [(); 3].map(|()| again.next(&mut paths).unwrap());
        let wanted = [Some(2_f64.ln()), Some(0.5_f64.ln()), None];
        assert_eq!(found, wanted);
        // A profile that checked other paths says nothing.
        profile.checks[0] = check(&first, Some("another path"));
        let mut paths = Paths::of_file(&file).unwrap();
        assert_eq!(Again::new(&profile).next(&mut paths), Ok(None));
    }

    #[test]
    fn runs_of_a_file_come_in_their_order_by_what_is_asked() {
        let lines = [first_line(VERSION), line(None, 1), line(Some(5.0), 3), line(None, 2)];
        let mut paths = Paths::of_file(&lines.join("\n")).unwrap();
        assert!(paths.is_file() && paths.has(TEXT) && !paths.has("another"));
        let mut blocks = |rate_hz| {
            let found = paths.run(TEXT, 0.25, rate_hz, &[]);
            found.map(|(shape, run)| (run.blocks, shape.rate_hz))
        };
        assert_eq!(blocks(None), Ok((1, None)));
        // The rate of a run follows from runs before, and is that of the file.
        assert_eq!(blocks(Some(9.0)), Ok((3, Some(5.0))));
        assert_eq!(blocks(None), Ok((2, None)));
        assert!(blocks(None).unwrap_err().contains("no further run"));
        assert_eq!(paths.disturbed.0, 1);
        assert!(!paths.has(TEXT));
    }

    #[test]
    fn what_is_no_file_of_runs_is_refused_with_the_reason() {
        let bad_line = format!("{}\n{{}}", first_line(VERSION));
        let cases = [
            ("", "it is empty"),
            ("{}", "missing field"),
            (&first_line(VERSION + 1), "version 1"),
            (&bad_line, "line 2 is no run"),
        ];
        for (text, wanted) in cases {
            let error = Paths::of_file(text).err().unwrap();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
