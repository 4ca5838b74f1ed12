//! `daqmeter cmp --confirm`: points that differ are measured again before it is said, in turns where the old program is at hand, else with
//! the new one in fresh invocations.

use std::time::Duration;

use clap::Args;
use daqmeter_record::RunRecord;
use daqmeter_report::cmp::Compared;
use daqmeter_report::points::points_of;
use daqmeter_stats::Asked;

use super::fresh::{Records, afresh};
use crate::ab::binary;
use crate::again::{Flagged, in_turns, pins, refuse_other_hosts, stop_on_signal};
use crate::arguments::budget;
use crate::output::Failure;

/// Options of measuring again.
#[derive(Debug, Args)]
pub(super) struct Confirm {
    /// Measure what differs again, here and now: with --old both in turns, else B's side in five fresh runs
    #[arg(long)]
    confirm: bool,
    /// With --confirm: the binary that recorded A
    #[arg(long, value_name = "BINARY", requires = "confirm")]
    old: Option<String>,
    /// With --confirm: the binary that recorded B [default: this one]
    #[arg(long, value_name = "BINARY", requires = "confirm")]
    new: Option<String>,
    /// With --old: time for each point
    #[arg(long, value_name = "TIME", value_parser = budget, default_value = "10s")]
    budget: Duration,
}

/// Measures what differs again, if that is asked for, and joins what was found to the comparison.
///
/// # Errors
/// When the records are of another host, or a binary is none.
pub(super) fn confirm(
    options: &Confirm,
    found: &mut Compared,
    records: Records<'_>,
    asked: Asked,
) -> Result<(), Failure> {
    let places = found.flagged();
    if !options.confirm || places.is_empty() {
        return Ok(());
    }
    refuse_other_hosts(records.a.iter().chain(records.b))?;
    let stop = stop_on_signal();
    let flagged = flagged(found, &places, records);
    let new = match &options.new {
        Some(new) => binary(new)?,
        None => std::env::current_exe().map_err(Failure::refused)?,
    };
    let confirmations = match &options.old {
        Some(old) => {
            let sides = [binary(old)?, new];
            in_turns(&sides, &flagged, asked.ignore, options.budget, &stop)
        }
        None => afresh(found, &new, &flagged, records, asked, &stop),
    };
    found.confirm(confirmations);
    Ok(())
}

/// The points at these places with a record of B on the CPUs that a record of A has as well.
fn flagged(found: &Compared, places: &[usize], records: Records<'_>) -> Vec<Flagged> {
    let of = |record: &RunRecord, name: &str| {
        let is_done = record.outcome.is_ok();
        let mut points = points_of(record).filter(|_| is_done);
        let found = points.find(|(point, _)| point.to_string() == name);
        found.map(|(point, _)| point.stage)
    };
    let flagged = |at: &usize| {
        let name = &found.points[*at].point;
        let of_a = records.a.iter().filter(|record| of(record, name).is_some());
        let of_a: Vec<Vec<u32>> = of_a.map(pins).collect();
        let mut of_b = records.b.iter().rev();
        let is_there = |record: &&RunRecord| of_a.contains(&pins(record));
        of_b.find_map(|record| {
            let stage = of(record, name).filter(|_| is_there(&record))?;
            let record = record.clone();
            Some(Flagged { at: *at, stage, record })
        })
    };
    places.iter().filter_map(flagged).collect()
}
