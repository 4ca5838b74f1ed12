//! `daqmeter report`: a page or a table from recorded runs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use daqmeter_record::units::plural;
use daqmeter_record::{RunRecord, jsonl};
use daqmeter_report::{export, page, table};

use crate::files::read_all;
use crate::named::Replaced;
use crate::output::{Failure, emit, tell, write_file};

/// Make a page or a table from recorded runs.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n\n  $ daqmeter report records.jsonl -o report.html\n  $ daqmeter report records.jsonl --format md >> ticket.md"
)]
pub(crate) struct Arguments {
    /// Records (JSON lines), or folders of them; - is standard input
    #[arg(required = true, value_name = "PATH")]
    files: Vec<PathBuf>,
    /// What to make
    #[arg(long, value_enum, default_value = "html")]
    format: Format,
    /// Where to; html goes to report.html by default, the others to standard output
    #[arg(short, long, value_name = "FILE", value_parser = Replaced::or_stdout)]
    output: Option<Replaced>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One self-contained page
    Html,
    /// Markdown table
    Md,
    /// Comma-separated values
    Csv,
    /// Records as they are, those that could be read
    Json,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let records = read_all(&arguments.files)?;
    let text = render(arguments.format, &records)?;
    let count = records.len();
    // The process ends soon, and to free a hundred thousand records would take longer than to draw
    // them.
    std::mem::forget(records);
    let by_default = (arguments.format == Format::Html).then(|| Replaced::at("report.html"));
    match arguments.output.clone().or(by_default) {
        Some(path) if path.as_os_str() != "-" => {
            write_file(&path, &text)?;
            tell(&format!(
                "daqmeter: wrote {} ({})",
                path.display(),
                plural(count as u64, "record")
            ));
            Ok(ExitCode::SUCCESS)
        }
        _ => emit(&text),
    }
}

fn render(format: Format, records: &[RunRecord]) -> Result<String, Failure> {
    Ok(match format {
        Format::Html => page(records).map_err(Failure::refused)?,
        Format::Md => table::markdown(records),
        Format::Csv => export::stages(records).csv(true),
        Format::Json => records
            .iter()
            .map(|record| String::from_utf8_lossy(&jsonl::to_line(record)).into_owned())
            .collect(),
    })
}
