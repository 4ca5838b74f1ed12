//! `daqmeter report`: a page, a table or data for other tools from recorded runs.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_record::{RunRecord, jsonl};
use daqmeter_report::export::{DataFrame, counters, sample_parts, series, stages};
use daqmeter_report::figures::copy_study::study;
use daqmeter_report::{answers_text, page, page_of, table};

use crate::files::{read_study, shown};
use crate::named::Replaced;
use crate::output::{Ended, Failure, emit, tell, write_file, write_with};
use crate::recorder::Columns;

/// Make a page, a table or data for other tools from records.
///
/// A row of CSV and Parquet is a stage with its summary. With --rows it is a sample, a counter or a
/// value of a time series. Parameters of the workload are columns named param.NAME.
#[derive(Debug, Args)]
#[command(after_long_help = "\
        Example:\n\n  \
        $ daqmeter report records.jsonl\n  \
        $ daqmeter report records.jsonl --format text --study conversion\n  \
        $ daqmeter report records.jsonl --format md >> ticket.md\n  \
        $ daqmeter report bench/record --rows samples -o samples.parquet")]
pub(crate) struct Arguments {
    /// Records (JSON lines), or folders of them; - is standard input
    #[arg(required = true, value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Only studies whose name contains this
    #[arg(long, value_name = "TEXT")]
    study: Option<String>,
    /// Format [default: that of the name of --output, or html]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Kind of a row of csv and parquet
    #[arg(long, value_enum, default_value = "stages")]
    rows: Rows,
    /// File to write [default: report.html for pages, else standard output]
    #[arg(short, long, value_name = "FILE", value_parser = Replaced::or_stdout)]
    output: Option<Replaced>,
    #[command(flatten)]
    columns: Columns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One self-contained page
    Html,
    /// Answers and tables for a terminal
    #[value(alias = "txt")]
    Text,
    /// Markdown table
    Md,
    /// Comma-separated values
    Csv,
    /// Table for DuckDB, pandas and Polars
    Parquet,
    /// Records as they are, those that could be read
    #[value(alias = "jsonl")]
    Json,
    /// Page with the 50 figures of the copy study; the commands that fill missing ones
    CopyFigures,
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
    let records = read_study(&arguments.files, arguments.study.as_deref())?;
    let format = arguments.format()?;
    arguments.columns.apply();
    let is_page = matches!(format, Format::Html | Format::CopyFigures);
    let by_default = is_page.then(|| Replaced::at("report.html"));
    let named = arguments.output.clone().or(by_default);
    let output = named.as_ref().filter(|path| path.as_os_str() != "-");
    let text = match format {
        Format::Csv | Format::Parquet => return data(arguments, format, output, &records),
        Format::Html => page(&records),
        Format::CopyFigures => copy_figures(&records)?,
        Format::Md => table::markdown(&records),
        Format::Text => text(&records),
        Format::Json => {
            let lines = records.iter().map(jsonl::to_line).collect::<Vec<_>>().concat();
            String::from_utf8_lossy(&lines).into_owned()
        }
    };
    let Some(path) = output else { return emit(&text) };
    write_file(path, &text)?;
    wrote(path)
}

impl Arguments {
    fn format(&self) -> Result<Format, Failure> {
        let ending = self.output.as_ref().and_then(|path| path.extension()?.to_str());
        match (self.format, ending) {
            (Some(format), _) => Ok(format),
            (None, None) => Ok(Format::Html),
            (None, Some(ending)) => Format::from_str(ending, true).map_err(|_| {
                Failure::refused(format!(
                    "`.{ending}` says no format: name a file that ends in .html, .txt, .md, .csv, .parquet or .jsonl, or give --format"
                ))
            }),
        }
    }
}

/// Writes answers and tables.
pub(crate) fn text(records: &[RunRecord]) -> String {
    let answers = answers_text(records);
    let between = if answers.is_empty() { "" } else { "\n" };
    answers + between + &table::text(records) + &table::stamp(records)
}

fn data(
    arguments: &Arguments,
    format: Format,
    output: Option<&Replaced>,
    records: &[RunRecord],
) -> Ended {
    const PART_ROWS: usize = 1 << 17;
    let mut frames: Box<dyn Iterator<Item = DataFrame>> = match arguments.rows {
        Rows::Stages => Box::new(std::iter::once(stages(records))),
        Rows::Counters => Box::new(std::iter::once(counters(records))),
        Rows::Series => Box::new(std::iter::once(series(records))),
        Rows::Samples => Box::new(sample_parts(records, PART_ROWS)),
    };
    let Some(first) = frames.next().filter(|frame| !frame.is_empty()) else {
        let (files, records, rows) = (shown(&arguments.files), records.len(), arguments.rows);
        return Err(format!("{files}: {records} record(s) without any row of {rows:?}").into());
    };
    let frames = std::iter::once(first).chain(frames);
    let csv = |(at, frame): (usize, DataFrame)| frame.csv(at == 0);
    match (output, format) {
        (None, Format::Parquet) => Err("parquet goes to a file: name it with --output".into()),
        (None, _) => frames.enumerate().map(csv).try_fold(ExitCode::SUCCESS, |_, part| emit(&part)),
        (Some(path), Format::Parquet) => parquet(path, frames).and_then(|()| wrote(path)),
        (Some(path), _) => {
            let mut parts = frames.enumerate().map(csv);
            write_with(path, |sink| parts.try_for_each(|part| sink.write_all(part.as_bytes())))?;
            wrote(path)
        }
    }
}

#[cfg(feature = "parquet")]
fn parquet(path: &Replaced, frames: impl Iterator<Item = DataFrame>) -> Result<(), Failure> {
    write_with(path, |sink| daqmeter_report::parquet::write(frames, sink))
}

#[cfg(not(feature = "parquet"))]
fn parquet(path: &Replaced, _frames: impl Iterator<Item = DataFrame>) -> Result<(), Failure> {
    Err(Failure::refused(format!(
        "{}: this program was built without Parquet; write .csv, or build it with --features parquet",
        path.display()
    )))
}

fn wrote(path: &Replaced) -> Ended {
    tell(&format!("daqmeter: wrote {}", path.display()));
    Ok(ExitCode::SUCCESS)
}

fn copy_figures(records: &[RunRecord]) -> Result<String, Failure> {
    let mut figures = study(records);
    let rows = figures.iter().map(|figure| {
        let state = match figure.xs.is_empty() {
            true => format!("no records; {}", figure.command),
            false => "drawn".to_owned(),
        };
        vec![figure.title.clone(), state]
    });
    emit(&table::plain(&["figure", "state"], rows))?;
    figures.retain(|figure| !figure.xs.is_empty());
    if figures.is_empty() {
        return Err("the records fill none of the figures; see the commands above".into());
    }
    Ok(page_of(records, figures, &[]))
}
