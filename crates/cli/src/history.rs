//! `daqmeter history`: points over time; `daqmeter export`: records as tables for other tools.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_record::RunRecord;
use daqmeter_report::export::{Frame, ParquetError, counters, samples_in_parts, series, summary};
use daqmeter_report::history::{figures, text, trends};
use daqmeter_report::page_of;

use crate::cmp::per_cent;
use crate::output::{Failure, emit, read_records, tell, write_file, write_with};

/// Show how points changed from run to run, and where they took a step.
///
/// Reads files and folders of records, such as bench/record/HOST/DATE.jsonl. Each run of a point counts as one
/// value: the mean time of what data takes on its way, the median of work of the CPU alone. Runs that failed do not
/// count; hosts are kept apart. Steps are sought over all runs of a point; a single wild run is none.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter run quick --out bench/record/lab7/2026-11-21.jsonl\n  $ daqmeter history bench/record/lab7\n  $ daqmeter history bench/record -o history.html"
)]
pub(crate) struct Arguments {
    /// Records (JSON lines), or folders of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Only studies whose name contains this
    #[arg(long, value_name = "TEXT")]
    study: Option<String>,
    /// Steps that are of no interest
    #[arg(long, value_name = "PERCENT", value_parser = per_cent, default_value = "2%")]
    ignore: f64,
    /// Write a page with a figure for each study
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// Print the trends as JSON
    #[arg(long)]
    json: bool,
}

/// Write records as a table that DuckDB, pandas, Polars and spreadsheets read.
///
/// One row a stage with its summary, or with --what a row a sample, a counter or a value of a time series. Parameters of the workloads are columns of their
/// own, named param.NAME.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter export records.jsonl -o records.parquet\n  $ duckdb -c \"select stage, median(rate_bytes_per_s) / 1e6 from 'records.parquet' group by stage\"\n  $ daqmeter export bench/record --what samples -o samples.parquet\n  $ daqmeter export records.jsonl > records.csv"
)]
pub(crate) struct ExportArguments {
    /// Records (JSON lines), or folders of them; - is standard input
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// What a row is
    #[arg(long, value_enum, default_value = "stages")]
    what: Rows,
    /// Where to; .parquet is Parquet, everything else CSV; standard output unless told otherwise
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rows {
    /// A stage of a lane, summarised
    Stages,
    /// A sample
    Samples,
    /// A counter
    Counters,
    /// A value of a time series
    Series,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut records = read_all(&arguments.paths)?;
    if let Some(wanted) = &arguments.study {
        records.retain(|record| record.study.contains(wanted));
    }
    let found = trends(&records, arguments.ignore);
    if found.is_empty() {
        return Err(Failure::refused(
            "no point was done twice on one host: there is no history yet",
        ));
    }
    if let Some(path) = &arguments.output {
        let names: Vec<String> = arguments
            .paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let figures = figures(&found, &format!("daqmeter history {}", names.join(" ")));
        let newest: Vec<RunRecord> = records
            .into_iter()
            .max_by(|a, b| a.time_utc.cmp(&b.time_utc))
            .into_iter()
            .collect();
        write_file(path, &page_of(&newest, figures).map_err(Failure::refused)?)?;
        tell(&format!("daqmeter: wrote {}", path.display()));
    }
    if arguments.json {
        let lines = found
            .iter()
            .map(serde_json::to_string)
            .collect::<Result<Vec<_>, _>>()
            .map_err(Failure::refused)?;
        return emit(&(lines.join("\n") + "\n"));
    }
    emit(&text(&found))
}

pub(crate) fn export(arguments: &ExportArguments) -> Result<ExitCode, Failure> {
    /// Rows that are laid out at once, and of a row group.
    const PART_ROWS: usize = 1 << 17;
    let records = read_all(&arguments.paths)?;
    let mut parts: Box<dyn Iterator<Item = Frame>> = match arguments.what {
        Rows::Stages => Box::new(std::iter::once(summary(&records))),
        Rows::Samples => Box::new(samples_in_parts(&records, PART_ROWS)),
        Rows::Counters => Box::new(std::iter::once(counters(&records))),
        Rows::Series => Box::new(std::iter::once(series(&records))),
    };
    let first = parts.next().filter(|frame| !frame.is_empty());
    let first = first.ok_or_else(|| Failure::refused("the records hold no such row"))?;
    let Some(path) = &arguments.output else {
        emit(&first.csv())?;
        for part in parts {
            emit(&part.csv_rows())?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let columns = first.columns.len();
    let is_parquet = path
        .extension()
        .is_some_and(|extension| extension == "parquet");
    let rows = if is_parquet {
        write_with(path, |sink| write_parquet(first, parts, sink))?
    } else {
        write_with(path, |sink| write_csv(first, parts, sink))?
    };
    tell(&format!(
        "daqmeter: wrote {} ({rows} rows, {columns} columns)",
        path.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Returns the rows written.
fn write_parquet(
    first: Frame,
    more: impl Iterator<Item = Frame>,
    sink: impl Write + Send,
) -> Result<usize, ParquetError> {
    let mut file = first.begin_parquet(sink)?;
    first.append_to(&mut file)?;
    let mut rows = first.len();
    for part in more {
        part.append_to(&mut file)?;
        rows += part.len();
    }
    file.close().map(|_| rows)
}

fn write_csv(
    first: Frame,
    more: impl Iterator<Item = Frame>,
    sink: &mut impl Write,
) -> std::io::Result<usize> {
    sink.write_all(first.csv().as_bytes())?;
    let mut rows = first.len();
    for part in more {
        sink.write_all(part.csv_rows().as_bytes())?;
        rows += part.len();
    }
    Ok(rows)
}

/// Records of files and folders.
pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<RunRecord>, Failure> {
    let files = files_of(paths)?;
    if files.is_empty() {
        let names: Vec<String> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        return Err(Failure::refused(format!(
            "{}: no .jsonl file in this folder or below",
            names.join(", ")
        )));
    }
    read_records(&files)
}

/// Files as they are named, folders with all their .jsonl files in order of their names.
pub(crate) fn files_of(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    listed(paths, Links::Followed)
}

/// Where links in a folder may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// Anywhere: the user's own folder.
    Followed,
    /// To files below the folder: what is served to others.
    KeptBelow,
}

/// [`files_of`] with a say about links. What is no regular file is left out of folders: a pipe would be waited for.
pub(crate) fn listed(paths: &[PathBuf], links: Links) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Found {
        files: Vec::new(),
        links,
        root: PathBuf::new(),
        entries: 0,
    };
    for path in paths {
        if path.is_dir() {
            found.root = path
                .canonicalize()
                .map_err(|error| unreadable(path, &error))?;
            found.collect(path, 0)?;
        } else {
            found.files.push(path.clone());
        }
    }
    Ok(found.files)
}

fn unreadable(folder: &Path, error: &std::io::Error) -> Failure {
    Failure::refused(format!("cannot read {}: {error}", folder.display()))
}

/// What was found in folders so far.
struct Found {
    files: Vec<PathBuf>,
    links: Links,
    /// The folder that was named, without links in its path.
    root: PathBuf,
    /// Entries looked at.
    entries: usize,
}

impl Found {
    fn collect(&mut self, folder: &Path, depth: usize) -> Result<(), Failure> {
        /// Folders of folders; deeper is a link that leads back.
        const MAX_DEPTH: usize = 8;
        /// A folder of records has some thousand entries; / has millions.
        const MAX_ENTRIES: usize = 100_000;
        let entries = std::fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
        let mut entries: Vec<PathBuf> = entries
            .take(MAX_ENTRIES + 1)
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        self.entries += entries.len();
        if self.entries > MAX_ENTRIES {
            let shown = self.root.display();
            return Err(Failure::refused(format!(
                "{shown}: more than {MAX_ENTRIES} entries in this folder and below; name a folder of records"
            )));
        }
        entries.sort();
        for entry in entries {
            if self.is_folder(&entry) && depth < MAX_DEPTH {
                self.collect(&entry, depth + 1)?;
            } else if entry
                .extension()
                .is_some_and(|extension| extension == "jsonl")
                && self.is_wanted(&entry)
            {
                self.files.push(entry);
            }
        }
        Ok(())
    }

    fn is_folder(&self, entry: &Path) -> bool {
        entry.is_dir() && (self.links == Links::Followed || !entry.is_symlink())
    }

    fn is_wanted(&self, entry: &Path) -> bool {
        let stays = || {
            entry
                .canonicalize()
                .is_ok_and(|target| target.starts_with(&self.root))
        };
        entry.is_file() && (self.links == Links::Followed || stays())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_stays_below_its_folder_and_is_a_regular_file() {
        let (outside, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = |name: &str| folder.path().join(name);
        std::fs::create_dir(place("sub")).unwrap();
        for file in [
            place("a.jsonl"),
            place("sub/b.jsonl"),
            outside.path().join("secret.jsonl"),
        ] {
            std::fs::write(file, "").unwrap();
        }
        let link =
            |target: &Path, name: &str| std::os::unix::fs::symlink(target, place(name)).unwrap();
        link(Path::new("/dev/zero"), "zero.jsonl");
        link(&outside.path().join("secret.jsonl"), "link.jsonl");
        link(outside.path(), "folder");
        link(&place("a.jsonl"), "same.jsonl");
        let _socket = std::os::unix::net::UnixListener::bind(place("socket.jsonl")).unwrap();
        let names = |links| -> Vec<String> {
            let found = listed(&[folder.path().to_owned()], links)
                .map_err(|failure| failure.line().to_owned());
            let name = |path: &PathBuf| {
                path.strip_prefix(folder.path())
                    .unwrap()
                    .display()
                    .to_string()
            };
            found.unwrap().iter().map(name).collect()
        };
        assert_eq!(
            names(Links::KeptBelow),
            ["a.jsonl", "same.jsonl", "sub/b.jsonl"]
        );
        let followed = [
            "a.jsonl",
            "folder/secret.jsonl",
            "link.jsonl",
            "same.jsonl",
            "sub/b.jsonl",
        ];
        assert_eq!(names(Links::Followed), followed);
    }
}
