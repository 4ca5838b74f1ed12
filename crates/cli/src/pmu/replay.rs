//! `daqmeter pmu replay`: recorded intervals again.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_pmu::count::{error_of, total_error_of};
use daqmeter_record::Observations;
use daqmeter_report::pmu::{frames, map, tables};

use super::chosen::ByteUnit;
use super::live::Live;
use crate::files::read_all;
use crate::output::{Failure, emit};

/// Show what was recorded by pmu record, pmu stat --records or any verb with --observe.
///
/// On a terminal, records with a mesh are played as a heat map; elsewhere, and without a mesh,
/// intervals are printed.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n\n  $ daqmeter pmu replay lab7.jsonl --speed 10")]
pub(crate) struct Arguments {
    /// Records; - is stdin
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// So many times as fast as it was
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    speed: f64,
    /// Only the totals of each record
    #[arg(long)]
    totals: bool,
    /// Unit of bytes
    #[arg(long, value_enum, default_value = "mb")]
    bytes: ByteUnit,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if !(arguments.speed > 0.0 && arguments.speed.is_finite()) {
        return Err(Failure::refused("--speed: a factor above 0 is wanted, e.g. --speed 10"));
    }
    let records = read_all(&arguments.records)?;
    let mut shown = 0;
    for record in &records {
        let Some(observed) = &record.observed else {
            continue;
        };
        shown += 1;
        let has_heat = !frames(observed).is_empty();
        if has_heat && std::io::stdout().is_terminal() && !arguments.totals {
            if play(observed, arguments.speed)? {
                break;
            }
            continue;
        }
        emit(&format!("{}: {}\n", record.time_utc, record.command))?;
        if !arguments.totals {
            emit(&intervals(observed, arguments))?;
        }
        emit(&format!("{}\n", tables::summary(observed, arguments.bytes.into(), total_error_of)))?;
    }
    if shown == 0 {
        return Err(Failure::refused(format!(
            "none of the {} records holds counters over time: record some with pmu record, or --observe GROUP of any verb",
            records.len()
        )));
    }
    Ok(ExitCode::SUCCESS)
}

fn intervals(observed: &Observations, arguments: &Arguments) -> String {
    let heats = frames(observed);
    let at = |at: usize| -> String {
        if heats.is_empty() {
            return tables::interval(observed, at, arguments.bytes.into(), error_of);
        }
        let grid = |heat: &daqmeter_report::pmu::Heat| {
            format!(
                "{}, {:.3} s\n{}\n",
                heat.event,
                heat.frames[at].0,
                map::grid(&heat.mesh, Some((heat, at)))
            )
        };
        heats.iter().map(grid).collect()
    };
    (0..observed.end_ns.len()).map(at).collect()
}

fn play(observed: &Observations, speed: f64) -> Result<bool, Failure> {
    let mut live = Live::open(observed.what.clone())?;
    let began = Instant::now();
    for at in 0..observed.end_ns.len() {
        let due = Duration::from_secs_f64(
            observed.end_ns[at].saturating_sub(observed.begin_ns) as f64 * 1e-9 / speed,
        );
        while let Some(left) = due.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            if live.wait(left)? {
                return Ok(true);
            }
        }
        live.show(observed, at)?;
    }
    // The last picture stays until a key is pressed.
    while !live.wait(Duration::from_secs(3600))? {}
    Ok(false)
}
