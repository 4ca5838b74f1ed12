//! The output of `perf stat`, read and written: text, `-x`, `-j`.
//! Three states are kept apart: counted (which may be zero), not counted (never scheduled), not
//! supported (never opened).
//! Grammar: Linux tools/perf/util/stat-display.c of 6.1, 6.12 and 7.2. CSV does not quote event
//! names, which contain commas. CSV and JSON give the share as an integer division, and times as
//! sums over CPUs and instances. Rates therefore come from the time steps alone.

mod emit;
mod intervals;
mod rows;

use std::time::Duration;

use daqmeter_record::Observations;

pub use emit::{PerfFormat, emit_interval};
pub use intervals::PerfReader;
pub use rows::PerfError;

pub fn parse(text: &str) -> Result<Observations, PerfError> {
    parse_with(text, None)
}

pub fn parse_with(text: &str, interval: Option<Duration>) -> Result<Observations, PerfError> {
    let mut reader = PerfReader::new(interval);
    text.lines().try_for_each(|line| reader.line(line.as_bytes()))?;
    reader.end()?;
    Ok(std::mem::take(reader.observed()))
}

#[cfg(test)]
mod tests;
