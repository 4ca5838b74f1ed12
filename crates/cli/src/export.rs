//! `daqmeter export`: records as tables for other tools.

use std::cell::Cell;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_record::units::plural;
use daqmeter_report::export::{DataFrame, counters, parquet, sample_parts, series, stages};

use crate::files::{read_all, shown};
use crate::named::Replaced;
use crate::output::{Failure, emit, tell, write_with};

/// Write records as a table that DuckDB, pandas, Polars and spreadsheets read.
///
/// One row a stage with its summary, or with --what a row a sample, a counter or a value of a time
/// series. Parameters of the workloads are columns of their own, named param.NAME.
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

const PART_ROWS: usize = 1 << 17;

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let records = read_all(&arguments.paths)?;
    let mut frames: Box<dyn Iterator<Item = DataFrame>> = match arguments.what {
        Rows::Stages => Box::new(std::iter::once(stages(&records))),
        Rows::Counters => Box::new(std::iter::once(counters(&records))),
        Rows::Series => Box::new(std::iter::once(series(&records))),
        Rows::Samples => Box::new(sample_parts(&records, PART_ROWS)),
    };
    let Some(first) = frames.next().filter(|frame| !frame.is_empty()) else {
        let rows = arguments.what.to_possible_value();
        return Err(Failure::refused(format!(
            "{}: {} record(s) without any row of --what {}",
            shown(&arguments.paths),
            records.len(),
            rows.as_ref().map_or("", |value| value.get_name())
        )));
    };
    let (rows, columns) = (Cell::new(0), first.columns.len());
    let counted = |frame: &DataFrame| rows.set(rows.get() + frame.len());
    let mut frames = std::iter::once(first).chain(frames).inspect(counted);
    let mut parts = (&mut frames).map(|frame| frame.csv(rows.get() == frame.len()));
    let Some(path) = arguments.output.as_ref().filter(|path| path.as_os_str() != "-") else {
        return parts.try_fold(ExitCode::SUCCESS, |_, part| emit(&part));
    };
    if path.extension().is_some_and(|extension| extension == "parquet") {
        write_with(path, |sink| parquet(frames, sink))?;
    } else {
        write_with(path, |sink| parts.try_for_each(|part| sink.write_all(part.as_bytes())))?;
    }
    let (rows, columns) = (plural(rows.get() as u64, "row"), plural(columns as u64, "column"));
    tell(&format!("daqmeter: wrote {} ({rows}, {columns})", path.display()));
    Ok(ExitCode::SUCCESS)
}
