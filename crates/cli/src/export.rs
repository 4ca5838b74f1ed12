//! `daqmeter export`: records as tables for other tools.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_record::units::plural;
use daqmeter_report::export::{Frame, ParquetError, counters, samples_in_parts, series, summary};

use crate::files::{read_all, shown};
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

/// A file whose ending names a format that is written here.
fn table_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
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
    let first = first.ok_or_else(|| {
        let rows = arguments.what.to_possible_value();
        Failure::refused(format!(
            "{}: {} record(s) without any row of --what {}",
            shown(&arguments.paths),
            records.len(),
            rows.as_ref().map_or("", |value| value.get_name())
        ))
    })?;
    let to_file = |path: &&PathBuf| path.as_os_str() != "-";
    let Some(path) = arguments.output.as_ref().filter(to_file) else {
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
        "daqmeter: wrote {} ({}, {})",
        path.display(),
        plural(rows as u64, "row"),
        plural(columns as u64, "column")
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
