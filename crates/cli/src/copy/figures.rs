//! `daqmeter copy figures`: the study's 50 figures from stored records.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use daqmeter_report::figures::copy_study::study;
use daqmeter_report::page_of;
use daqmeter_report::table::plain;

use crate::files::read_all;
use crate::named::Replaced;
use crate::output::{Failure, emit, tell, write_file};

/// Draw the study's 50 figures from records; say which command fills those that are missing.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Records come from latency, bandwidth, trace and pollution with --records FILE.jsonl; those of a cache model from
`cargo xtask copy-vm --pollution`.\n\nExample:\n\n  $ daqmeter copy latency --records copies.jsonl\n  $ daqmeter copy figures copies.jsonl -o figures.html"
)]
pub(super) struct Arguments {
    /// Files of records
    #[arg(required = true, value_name = "FILE.jsonl")]
    files: Vec<PathBuf>,
    /// Page to write
    #[arg(short, long, value_name = "FILE.html", default_value = "copy-figures.html")]
    output: Replaced,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let records = read_all(&arguments.files)?;
    let drawn = study(&records);
    let rows = drawn.iter().map(|drawn| {
        let state = if drawn.figure.is_some() {
            "drawn".to_owned()
        } else {
            format!("no records; {}", drawn.command)
        };
        vec![drawn.title.clone(), state]
    });
    emit(&plain(&["figure", "state"], rows))?;
    let figures: Vec<_> = drawn.into_iter().filter_map(|drawn| drawn.figure).collect();
    if figures.is_empty() {
        return Err(Failure::refused(
            "the records fill none of the figures; see the commands above",
        ));
    }
    let count = figures.len();
    write_file(&arguments.output, &page_of(&records, figures, &[]).map_err(Failure::refused)?)?;
    tell(&format!("wrote {} with {count} of 50 figures", arguments.output.display()));
    Ok(ExitCode::SUCCESS)
}
