//! `daqmeter hosts`: records of many hosts as one answer.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use daqmeter_report::hosts::{Farm, FarmFile, FarmSide, judged};

use crate::arguments::share;
use crate::files::files_of;
use crate::launch::{Launcher, filled};
use crate::named::Replaced;
use crate::output::{
    CANNOT_TELL, Ended, FAILED, Failure, contents, emit, json_lines, tell, write_file,
};

/// Find the hosts that differ from others of their kind.
///
/// Hosts with one model of CPU are compared with each other, and divided further where their times
/// differ by a fact such as the kernel. A farm of healthy hosts has a false alarm in less than 1 of
/// 100 cases. A host differs only after two runs that agree.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/hosts.txt"))]
pub(crate) struct Arguments {
    /// Records of the hosts, a folder; two folders: before and after a change
    #[arg(value_name = "PATH", num_args = 1..=2, required_unless_present = "print")]
    paths: Vec<PathBuf>,
    /// Print a file that starts a command on many hosts
    #[arg(long, value_name = "LAUNCHER", value_enum, conflicts_with_all = ["paths", "expect", "ignore", "output", "all", "json"])]
    print: Option<Launcher>,
    /// Command of --print [default: survey --records farm/]
    #[arg(last = true, value_name = "COMMAND", requires = "print")]
    command: Vec<String>,
    /// Hosts that should be there: n[01-16],m3 or a file with their names
    #[arg(long, value_name = "NAMES")]
    expect: Option<String>,
    /// Largest difference that is not called one
    #[arg(long, value_name = "PERCENT", value_parser = share, default_value = "2%")]
    ignore: f64,
    /// Write a page
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<Replaced>,
    /// Print all hosts and notes
    #[arg(long)]
    all: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Ended {
    if let Some(launcher) = arguments.print {
        return emit(&filled(launcher, &arguments.command)?);
    }
    let expected = arguments.expect.as_deref().map_or(Ok(Vec::new()), expected)?;
    let farm = read(&arguments.paths)?;
    let found = judged(&farm, &expected, arguments.ignore);
    if found.hosts.is_empty() {
        let why = found.missing.iter().find(|(name, _)| !expected.contains(name));
        return Err(Failure::refused(match why {
            Some((file, why)) => format!("{file}: {why}"),
            None => format!("{}: no .jsonl file", crate::files::shown(&arguments.paths)),
        }));
    }
    if arguments.all {
        daqmeter_report::table::ask_columns(&[daqmeter_report::table::ALL.to_owned()]);
    }
    emit(&match arguments.json {
        true => json_lines(std::slice::from_ref(&found))?,
        false => found.frame().text(None),
    })?;
    if let Some(path) = &arguments.output {
        write_file(path, &found.page())?;
        tell(&format!("daqmeter: wrote {}", path.display()));
    }
    Ok(ExitCode::from(match () {
        () if found.differs() => FAILED,
        () if found.is_unseen() => CANNOT_TELL,
        () => 0,
    }))
}

/// Reads a farm, or the two sides of one, on all CPUs.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Farm, Failure> {
    let mut farm = if paths.len() == 2 { Farm::paired() } else { Farm::default() };
    for (path, side) in paths.iter().zip([FarmSide::Before, FarmSide::After]) {
        let files = files_of(std::slice::from_ref(path))?;
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
        let (sender, readings) = std::sync::mpsc::sync_channel(threads);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (sender, next, files) = (sender.clone(), &next, &files);
                scope.spawn(move || {
                    while let Some((at, file)) = numbered(files, next)
                        && sender.send((at, reduced(file, side))).is_ok()
                    {}
                });
            }
            drop(sender);
            // In the order of their names, whichever is read first.
            let (mut waiting, mut due) = (BTreeMap::new(), 0);
            for (at, file) in readings {
                waiting.insert(at, file);
                while let Some(file) = waiting.remove(&due) {
                    farm.add(file);
                    due += 1;
                }
            }
        });
    }
    Ok(farm)
}

/// Most threads that read: each holds the records of a file.
const MAX_THREADS: usize = 16;

fn numbered<'a>(files: &'a [PathBuf], next: &AtomicUsize) -> Option<(usize, &'a PathBuf)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    Some((at, files.get(at)?))
}

fn reduced(path: &Path, side: FarmSide) -> FarmFile {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let read = File::open(path).map_err(Failure::from);
    let read = read.and_then(|file| contents(BufReader::with_capacity(1 << 20, file), path));
    let (records, problems) = read.unwrap_or_else(|failure| (Vec::new(), vec![failure.line]));
    FarmFile::of(&path.display().to_string(), &stem, side, records, problems)
}

/// Most names that a list may stand for.
const MAX_NAMES: usize = 100_000;

/// Reads names of hosts: those of a file, or a list such as `n[01-16],m3`.
fn expected(text: &str) -> Result<Vec<String>, Failure> {
    if Path::new(text).is_file() {
        let names = std::fs::read_to_string(text)?;
        return Ok(names.split_whitespace().map(str::to_owned).collect());
    }
    let mut names = Vec::new();
    // Commas within brackets separate ranges.
    let mut is_within = false;
    let outside = |mark: char| {
        is_within = (is_within || mark == '[') && mark != ']';
        mark == ',' && !is_within
    };
    for part in text.split(outside) {
        let found = expanded(part).filter(|found| names.len() + found.len() <= MAX_NAMES);
        let wrong = || format!("--expect: `{part}` is no list of hosts such as n[01-16],m3");
        names.extend(found.ok_or_else(wrong)?);
    }
    Ok(names)
}

/// Returns the names that `n[01-16,20]` stands for, each with as many digits as the first number.
fn expanded(text: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = text.split_once('[') else {
        return (!text.is_empty() && !text.contains(']')).then(|| vec![text.to_owned()]);
    };
    let (ranges, after) = rest.split_once(']').filter(|(_, after)| !after.contains(['[', ']']))?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let ends: (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if ends.1.checked_sub(ends.0)? + names.len() >= MAX_NAMES {
            return None;
        }
        let digits = first.len();
        names.extend((ends.0..=ends.1).map(|number| format!("{before}{number:0digits$}{after}")));
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_hosts_are_those_of_slurm() {
        let names = |text| expected(text).map(|names| names.join(" ")).map_err(|it| it.line);
        assert_eq!(names("n[01-03,9]-ib,m3").unwrap(), "n01-ib n02-ib n03-ib n9-ib m3");
        for wrong in ["", "n[1-", "n[3-1]", "n[a]", "n[1-9999999]", "n]", "n[1][2]"] {
            assert!(names(wrong).unwrap_err().contains("is no list of hosts"), "{wrong}");
        }
    }
}
