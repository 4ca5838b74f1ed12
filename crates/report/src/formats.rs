//! Formats of `daqmeter report`, a row each: a new one is its file and its row in [`FORMATS`].

use std::io::{self, Write};

use daqmeter_record::{RunRecord, jsonl};

use crate::export::DataFrame;
use crate::families::copy::study::figures as copy_study;
use crate::rate::{first_hosts, of_hosts};
use crate::{answers_text, disturbed, headline, page, table};

#[derive(Debug)]
pub struct Format {
    pub name: &'static str,
    /// Ending of its files; empty if none chooses it.
    pub ending: &'static str,
    pub about: &'static str,
    /// File without `--output`; standard output if it is empty.
    pub file: &'static str,
    /// Its writer, or what to do because this program was built without it.
    pub writer: Result<FormatWriter, &'static str>,
}

/// A page, or why there is none.
pub type PageOrWhy = Result<String, String>;

/// Tables of rows, one after the other, with equal columns.
pub type Frames<'a> = Box<dyn Iterator<Item = DataFrame> + 'a>;

#[derive(Debug)]
pub enum FormatWriter {
    /// Whole text.
    Text(fn(&[RunRecord]) -> String),
    /// Whole text with a table for the terminal.
    Both(fn(&[RunRecord]) -> (PageOrWhy, String)),
    /// Text of a table; true for the first one, which has the names of the columns.
    Rows(fn(&DataFrame, bool) -> String),
    /// Bytes of tables, which no terminal shows.
    Binary(BinaryWriter),
}

pub type BinaryWriter = fn(Frames<'_>, &mut (dyn Write + Send)) -> io::Result<()>;

use FormatWriter::{Both, Rows, Text};

pub const FORMATS: [Format; 7] = [
    format("html", "html", "One self-contained page", "report.html", Ok(Text(page))),
    format("text", "txt", "Answers and tables for a terminal", "", Ok(Text(text))),
    format("md", "md", "Markdown table", "", Ok(Text(table::markdown))),
    format("csv", "csv", "Comma-separated values", "", Ok(Rows(DataFrame::csv))),
    format("parquet", "parquet", "Table for DuckDB, pandas and Polars", "", PARQUET),
    format("json", "jsonl", "Records as they are, those that could be read", "", Ok(Text(lines))),
    format("copy-figures", "", copy_study::ABOUT, "report.html", Ok(Both(copy_study::page))),
];

const fn format(
    name: &'static str,
    ending: &'static str,
    about: &'static str,
    file: &'static str,
    writer: Result<FormatWriter, &'static str>,
) -> Format {
    Format { name, ending, about, file, writer }
}

/// Writes answers and tables.
pub(crate) fn text(records: &[RunRecord]) -> String {
    let (records, more) = &first_hosts(records);
    let answers = answers_text(records);
    let between = if answers.is_empty() { "" } else { "\n" };
    let mut frame = table::stages(records);
    frame.tables = answers + between + &frame.tables;
    frame.answer.extend(of_hosts(records, headline));
    frame.answer.extend(more.clone());
    frame.text(disturbed(records))
}

fn lines(records: &[RunRecord]) -> String {
    let lines: Vec<u8> = records.iter().flat_map(jsonl::to_line).collect();
    String::from_utf8(lines).expect("JSON is UTF-8")
}

#[cfg(feature = "parquet")]
const PARQUET: Result<FormatWriter, &str> = Ok(FormatWriter::Binary(|frames, sink| {
    crate::parquet::write(frames, sink).map_err(io::Error::other)
}));

#[cfg(not(feature = "parquet"))]
const PARQUET: Result<FormatWriter, &str> =
    Err("this program was built without Parquet: write .csv, or build it with --features parquet");
