//! `daqmeter export`: records as tables for other tools.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use clap::{Args, ValueEnum};
use daqmeter_record::units::plural;
use daqmeter_report::export::{Frame, ParquetError, SampleParts, counters, series, summary};

use crate::files::{read_all, read_all_parts, shown};
use crate::named::Replaced;
use crate::output::{Failure, emit, tell, write_with};

/// Write records as a table that DuckDB, pandas, Polars and spreadsheets read.
///
/// One row a stage with its summary, or with --what a row a sample, a counter or a value of a time series. Parameters of the workloads are columns of their
/// own, named param.NAME.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter export records.jsonl -o records.parquet\n  $ duckdb -c \"select stage, median(rate_bytes_per_s) / 1e6 from 'records.parquet' group by stage\"\n  $ daqmeter export bench/record --what samples -o samples.parquet\n  $ daqmeter export records.jsonl > records.csv"
)]
pub(crate) struct Arguments {
    /// Records (JSON lines), or folders of them; - is standard input
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// What a row is
    #[arg(long, value_enum, default_value = "stages")]
    what: Rows,
    /// Where to, by its ending: .parquet or .csv; - and without it: CSV to standard output
    #[arg(short, long, value_name = "FILE", value_parser = table_file)]
    output: Option<Replaced>,
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

/// A file whose ending names a format that is written here.
fn table_file(text: &str) -> Result<Replaced, String> {
    let path = Replaced::or_stdout(text)?;
    let ending = path.extension().and_then(|ending| ending.to_str());
    match ending {
        _ if text == "-" => Ok(path),
        Some("parquet" | "csv" | "txt") => Ok(path),
        Some(other) => Err(format!(
            "`.{other}` cannot be written: name a file that ends in .parquet or .csv (spreadsheets open .csv)"
        )),
        None => Err("which format is wanted? Name a file that ends in .parquet or .csv".to_owned()),
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // Samples are many: they are laid out while records are read, and written in a thread of their own.
    let (frames, written) = sync_channel(MAX_WAITING);
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || write(arguments.output.as_ref(), written));
        let read = lay_out(arguments, frames);
        let written = writing.join().expect("writing does not panic");
        // What was wrong with the records is why nothing was written.
        let records = read?;
        let Some(wrote) = written? else {
            return Err(without_rows(arguments, records));
        };
        if let Some(path) = file(arguments.output.as_ref()) {
            tell(&format!(
                "daqmeter: wrote {} ({}, {})",
                path.display(),
                plural(wrote.rows as u64, "row"),
                plural(wrote.columns as u64, "column")
            ));
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn without_rows(arguments: &Arguments, records: usize) -> Failure {
    let rows = arguments.what.to_possible_value();
    Failure::refused(format!(
        "{}: {records} record(s) without any row of --what {}",
        shown(&arguments.paths),
        rows.as_ref().map_or("", |value| value.get_name())
    ))
}

/// The file that a table goes to; none for standard output.
fn file(output: Option<&Replaced>) -> Option<&Replaced> {
    output.filter(|path| path.as_os_str() != "-")
}

fn is_parquet(output: Option<&Replaced>) -> bool {
    let extension = file(output).and_then(|path| path.extension());
    extension.is_some_and(|extension| extension == "parquet")
}

/// Frames that may wait for the writer.
const MAX_WAITING: usize = 2;

/// A part of the table, as its format wants it.
enum Part {
    Frame(Frame),
    /// Rows as CSV, with the heading where they are the first.
    Csv {
        text: String,
        rows: usize,
        columns: usize,
    },
    /// All were sent: without it the table is not whole.
    End,
}

/// Sends the parts of the table; how many records were read.
fn lay_out(arguments: &Arguments, parts: SyncSender<Part>) -> Result<usize, Failure> {
    let mut sender =
        Sender { parts, is_parquet: is_parquet(arguments.output.as_ref()), is_first: true };
    let records = match arguments.what {
        Rows::Samples => lay_out_samples(arguments, &mut sender)?,
        _ => {
            let records = read_all(&arguments.paths)?;
            let frame = match arguments.what {
                Rows::Counters => counters(&records),
                Rows::Series => series(&records),
                Rows::Stages | Rows::Samples => summary(&records),
            };
            let _ = sender.send(frame);
            records.len()
        }
    };
    // A writer that has gone says why by itself.
    let _ = sender.parts.send(Part::End);
    Ok(records)
}

fn lay_out_samples(arguments: &Arguments, sender: &mut Sender) -> Result<usize, Failure> {
    /// Rows that are laid out at once, and of a row group.
    const PART_ROWS: usize = 1 << 17;
    let mut parts = SampleParts::new(PART_ROWS);
    let records = read_all_parts(&arguments.paths, |records| {
        let mut full = records.iter().flat_map(|record| parts.add(record));
        full.try_for_each(|frame| sender.send(frame))
    })?;
    let _ = parts.finish().map(|frame| sender.send(frame));
    Ok(records)
}

struct Sender {
    parts: SyncSender<Part>,
    is_parquet: bool,
    is_first: bool,
}

impl Sender {
    /// Sends a frame that holds rows; breaks when nobody takes it any more.
    fn send(&mut self, frame: Frame) -> ControlFlow<()> {
        if frame.is_empty() {
            return ControlFlow::Continue(());
        }
        let is_first = std::mem::replace(&mut self.is_first, false);
        let part = match self.is_parquet {
            true => Part::Frame(frame),
            false => Part::Csv {
                text: if is_first { frame.csv() } else { frame.csv_rows() },
                rows: frame.len(),
                columns: frame.columns.len(),
            },
        };
        match self.parts.send(part) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

/// What was written.
#[derive(Default)]
struct Wrote {
    rows: usize,
    columns: usize,
}

/// The parts ended before the table was whole: why is known where they come from.
const CUT_OFF: &str = "the records could not be read to their end";

/// Writes what comes; none where nothing came.
fn write(output: Option<&Replaced>, parts: Receiver<Part>) -> Result<Option<Wrote>, Failure> {
    let mut parts = parts.into_iter();
    let Some(first) = parts.next().filter(|part| !matches!(part, Part::End)) else {
        return Ok(None);
    };
    let written = match (file(output), first) {
        (Some(path), Part::Frame(first)) => {
            write_with(path, |sink| write_parquet(&first, parts, sink))?
        }
        (Some(path), first) => write_with(path, |sink| {
            write_csv(first, parts, |text| sink.write_all(text.as_bytes()))
        })?,
        (None, first) => write_csv(first, parts, |text| emit(text).map(drop))?,
    };
    Ok(Some(written))
}

fn write_parquet(
    first: &Frame,
    more: impl Iterator<Item = Part>,
    sink: impl Write + Send,
) -> Result<Wrote, ParquetError> {
    let mut file = first.begin_parquet(sink)?;
    first.append_to(&mut file)?;
    let (mut rows, columns) = (first.len(), first.columns.len());
    for part in more {
        match part {
            Part::Frame(part) => {
                part.append_to(&mut file)?;
                rows += part.len();
            }
            _ => return file.close().map(|_| Wrote { rows, columns }),
        }
    }
    Err(ParquetError::General(CUT_OFF.to_owned()))
}

fn write_csv<E: From<CutOff>>(
    first: Part,
    more: impl Iterator<Item = Part>,
    mut write: impl FnMut(&str) -> Result<(), E>,
) -> Result<Wrote, E> {
    let mut wrote = Wrote::default();
    for part in std::iter::once(first).chain(more) {
        let Part::Csv { text, rows, columns } = part else {
            return Ok(wrote);
        };
        write(&text)?;
        (wrote.rows, wrote.columns) = (wrote.rows + rows, columns);
    }
    Err(CutOff.into())
}

struct CutOff;

impl From<CutOff> for Failure {
    fn from(_: CutOff) -> Failure {
        Failure::refused(CUT_OFF)
    }
}

impl From<CutOff> for std::io::Error {
    fn from(_: CutOff) -> std::io::Error {
        std::io::Error::other(CUT_OFF)
    }
}
