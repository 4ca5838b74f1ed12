//! `daqmeter report`: a page, a table or data for other tools from recorded runs.

use std::io::Write;
use std::iter::once;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use daqmeter_record::RunRecord;
use daqmeter_report::export::{DataFrame, counters, sample_parts, series, stages};
use daqmeter_report::formats::{FORMATS, Format, FormatWriter, Frames};

mod data_set;

use crate::files::{read_study, shown};
use crate::named::{FileOrFolder, Replaced};
use crate::output::{Ended, Failure, emit, tell, write_with};
use crate::recorder::Columns;

/// Make a page, a table or data for other tools from records.
///
/// A row of CSV and Parquet is a stage with its summary. With --rows it is a sample, a counter or a
/// value of a time series. Parameters of the workload are columns named param.NAME.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../help/report.txt"))]
pub(crate) struct Arguments {
    /// Records (JSON lines), or folders of them; - is standard input
    #[arg(required = true, value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Only studies whose name contains this
    #[arg(long, value_name = "TEXT")]
    study: Option<String>,
    /// Format [default: that of the name of --output, or html]
    #[arg(long, value_parser = format_name())]
    format: Option<&'static Format>,
    /// Kind of a row of csv and parquet
    #[arg(long, default_value = "stages")]
    rows: Rows,
    /// File to write [default: report.html for pages, else standard output], or FOLDER/ for parquet
    /// by host
    #[arg(short, long, value_name = "FILE", value_parser = |text: &str| Replaced::or_stdout(text).map(FileOrFolder))]
    output: Option<FileOrFolder>,
    #[command(flatten)]
    columns: Columns,
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

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let format = arguments.format()?;
    let writer = format.writer.as_ref()?;
    let by_default = (!format.file.is_empty()).then(|| Replaced::at(format.file));
    let named = arguments.output.clone().map(|output| output.0).or(by_default);
    let output = named.as_ref().filter(|path| path.as_os_str() != "-");
    let is_folder =
        |path: &&Replaced| path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if let Some(folder) = output.filter(is_folder) {
        let FormatWriter::Binary(write) = writer else {
            let name = folder.display();
            return Err(format!("{name} is a folder: name a file, or give --format parquet").into());
        };
        return data_set::write(arguments, folder, *write);
    }
    let records = read_study(&arguments.files, arguments.study.as_deref())?;
    arguments.columns.apply();
    let is_of_rows = matches!(format.writer, Ok(FormatWriter::Rows(_) | FormatWriter::Binary(_)));
    if arguments.rows != Rows::Stages && !is_of_rows {
        let name = format.name;
        return Err(format!("--rows is for csv and parquet: {name} has no rows of one kind").into());
    }
    let frames = || frames(arguments, &records, stages);
    let mut parts: Box<dyn Iterator<Item = String>> = match writer {
        FormatWriter::Text(text) => Box::new(once(text(&records))),
        FormatWriter::Both(both) => {
            let (text, beside) = both(&records);
            emit(&beside)?;
            Box::new(once(text?))
        }
        FormatWriter::Rows(text) => {
            Box::new(frames()?.enumerate().map(|(at, frame)| text(&frame, at == 0)))
        }
        FormatWriter::Binary(write) => {
            let none = || format!("{} goes to a file: name it with --output", format.name);
            let (path, frames) = (output.ok_or_else(none)?, frames()?);
            write_with(path, |sink| write(frames, sink))?;
            return wrote(path);
        }
    };
    let Some(path) = output else {
        return parts.try_fold(ExitCode::SUCCESS, |_, part| emit(&part));
    };
    write_with(path, |sink| parts.try_for_each(|part| sink.write_all(part.as_bytes())))?;
    wrote(path)
}

/// Parser of the name of a format, or of the ending of its files.
fn format_name() -> impl TypedValueParser<Value = &'static Format> {
    let value = |format: &Format| {
        let alias = Some(format.ending).filter(|it| !it.is_empty() && *it != format.name);
        PossibleValue::new(format.name).help(format.about).aliases(alias)
    };
    PossibleValuesParser::new(FORMATS.iter().map(value))
        .map(|name| found(&name).expect("it is one"))
}

fn found(name: &str) -> Option<&'static Format> {
    let is = |own: &str| !own.is_empty() && own.eq_ignore_ascii_case(name);
    FORMATS.iter().find(|format| is(format.name) || is(format.ending))
}

impl Arguments {
    fn format(&self) -> Result<&'static Format, Failure> {
        let ending = self.output.as_ref().and_then(|path| path.0.extension()?.to_str());
        let known = || found(ending.unwrap_or("html"));
        self.format.or_else(known).ok_or_else(|| {
            let endings = FORMATS.iter().map(|format| format.ending).filter(|it| !it.is_empty());
            let endings: Vec<String> = endings.map(|ending| format!(".{ending}")).collect();
            Failure::refused(format!(
                "`.{}` says no format: name a file that ends in one of {}, or give --format",
                ending.unwrap_or_default(),
                endings.join(", ")
            ))
        })
    }
}

/// Returns the rows of csv and parquet; refuses records without any.
fn frames<'a>(
    arguments: &Arguments,
    records: &'a [RunRecord],
    stages: impl Fn(&[RunRecord]) -> DataFrame,
) -> Result<Frames<'a>, Failure> {
    const PART_ROWS: usize = 1 << 17;
    let mut frames: Frames<'a> = match arguments.rows {
        Rows::Stages => Box::new(once(stages(records))),
        Rows::Counters => Box::new(once(counters(records))),
        Rows::Series => Box::new(once(series(records))),
        Rows::Samples => Box::new(sample_parts(records, PART_ROWS)),
    };
    let Some(first) = frames.next().filter(|frame| !frame.is_empty()) else {
        let (files, records, rows) = (shown(&arguments.files), records.len(), arguments.rows);
        return Err(format!("{files}: {records} record(s) without any row of {rows:?}").into());
    };
    Ok(Box::new(once(first).chain(frames)))
}

fn wrote(path: &Replaced) -> Ended {
    tell(&format!("daqmeter: wrote {}", path.display()));
    Ok(ExitCode::SUCCESS)
}
