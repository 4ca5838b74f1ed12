//! The output of `perf stat`, read and written: text, `-x`, `-j`. Three states are kept apart everywhere: counted (which may be
//! zero), not counted (never scheduled), not supported (never opened).
//!
//! Grammar: Linux tools/perf/util/stat-display.c of 6.1, 6.12 and 7.2. Two traps: CSV does not quote event names, which contain
//! commas; and CSV and JSON give the share as an integer division, so that the enabled time cannot be had back from them.

mod emit;
mod intervals;
mod rows;

use std::time::Duration;

use daqmeter_record::Observations;

pub use emit::{PerfFormat, emit_interval};
pub use rows::PerfError;

/// Reads any of the three.
///
/// # Errors
/// Names the first line that is none of perf's.
pub fn parse(text: &str) -> Result<Observations, PerfError> {
    parse_with(text, Duration::from_secs(1))
}

/// The same, for an output of that interval. It counts where there is one stamp that does not begin at 0; of several stamps, the
/// others tell how long the first interval is.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(text: &str, interval: Duration) -> Result<Observations, PerfError> {
    let table = rows::read(text)?;
    Ok(intervals::build(&table, interval.as_secs_f64()))
}

#[cfg(test)]
mod tests;
