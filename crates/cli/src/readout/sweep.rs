//! `daqmeter readout sweep`: the maximum rate, and the cost of reading below and beyond it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use daqmeter_harness::search::{SearchPlan, SearchResult, Stability, highest_rate};
use daqmeter_harness::{Request, StepPlan, ordered};
use daqmeter_path::ReadoutRequest;
use daqmeter_path::readout::Receivers;
use daqmeter_readout::Chosen;
use daqmeter_readout::chain::observed;
use daqmeter_record::units::significant;
use daqmeter_record::{Counter, Role, RunRecord};
use daqmeter_report::Frame;
use daqmeter_report::felix::{MAXIMUM_RATE, UNSTABLE_RATE, chains_text};

use super::options::completed;
use crate::arguments::{budget, rate, share};
use crate::measure::{Bench, Common};
use crate::output::{CANNOT_TELL, Ended, Failure};
use crate::progress::Forecast;

/// Find the maximum rate without loss, then measure CPU, ring and dead time around it.
#[derive(Debug, Args)]
#[command(after_long_help = include_str!("../../help/readout-sweep.txt"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Lowest rate of the search
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "100kHz")]
    from: f64,
    /// Highest rate of the search
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "40MHz")]
    to: f64,
    /// Resolution of the result, 0.01% to 50%: 1% or 0.01
    #[arg(long, value_name = "SHARE", value_parser = resolution, default_value = "0.01")]
    resolution: f64,
    /// Time for the search and the points [default: 50s without --probe]
    #[arg(long, value_name = "TIME", value_parser = budget)]
    time: Option<Duration>,
    /// Shortest time of a probe; the confirming run takes 24 times as long [default: --time / 300]
    #[arg(long, value_name = "TIME", value_parser = budget)]
    probe: Option<Duration>,
    /// Only search; measure no points around the maximum
    #[arg(long)]
    no_curves: bool,
    #[command(flatten)]
    receivers: Receivers,
    #[command(flatten)]
    common: Common,
}

fn resolution(text: &str) -> Result<f64, String> {
    let resolution = share(text).ok().filter(|share| (0.0001..=0.5).contains(share));
    resolution.ok_or_else(|| "a share from 0.01% to 50% is wanted, such as 1% or 0.01".to_owned())
}

fn probe(base: &ReadoutRequest, rate_hz: f64, duration: Duration) -> ReadoutRequest {
    let mut request = base.clone();
    request.chosen.rate_hz = Some(rate_hz);
    request.seconds = duration.as_secs_f64();
    request.probe = true;
    request
}

/// Rates of the points around the maximum, as shares of it.
const SHARES: [f64; 7] = [0.1, 0.25, 0.5, 0.75, 0.95, 1.05, 1.2];
const USUAL_TIME: Duration = Duration::from_secs(50);
/// Part of the time that a shortest probe takes: a search with eight points took 270 of its probes.
const PROBES: u32 = 300;
/// Nearly no triggers show the cost of polling by itself.
const IDLE_HZ: f64 = 1.0;

pub(crate) fn run(arguments: &Arguments) -> Ended {
    let base = ReadoutRequest {
        chosen: completed(&arguments.chosen)?,
        receivers: arguments.receivers.clone(),
        ..ReadoutRequest::default()
    };
    // An impossible combination is refused before the first run.
    if arguments.from == 0.0 || arguments.from > arguments.to {
        return Err(Failure::refused("--from is 0, or --from is above --to: the search goes up"));
    }
    let time = arguments.time.or(arguments.probe.is_none().then_some(USUAL_TIME));
    let shortest = arguments.probe.unwrap_or(time.unwrap_or(USUAL_TIME) / PROBES);
    probe(&base, arguments.from, shortest).check()?;
    let mut bench = Bench::new(&arguments.common)?;
    bench.recorder.expect(Forecast { time, most: time, ..Forecast::default() });
    let searched = search(arguments, &mut bench, &base, shortest, time);
    let payload = base.chosen.payload_bytes.map(|bytes| format!(", {bytes} B"));
    let name = format!("{}{}", base.chosen.scenario.name(), payload.unwrap_or_default());
    let answer = searched.as_ref().map_or_else(|_| Vec::new(), |found| answer(&name, found).into());
    let code = bench.recorder.finish(|records| {
        let points = records.iter().filter(|record| record.role.is_point());
        let points: Vec<RunRecord> = points.cloned().collect();
        Frame { answer, tables: chains_text(&points), ..Frame::default() }
    })?;
    let has_result = searched?.rate_hz.is_some() || code != ExitCode::SUCCESS;
    Ok(if has_result { code } else { ExitCode::from(CANNOT_TELL) })
}

/// Searches the maximum rate, and measures points around it.
fn search(
    arguments: &Arguments,
    bench: &mut Bench,
    base: &ReadoutRequest,
    shortest: Duration,
    time: Option<Duration>,
) -> Result<SearchResult, Failure> {
    let began = Instant::now();
    // The points around the maximum take as long as 16 probes with their preparation.
    let around = if arguments.no_curves { 4 } else { 20 };
    let for_search = time.map(|time| time.saturating_sub(shortest * around));
    let plan = SearchPlan {
        from_hz: arguments.from,
        to_hz: arguments.to,
        resolution: arguments.resolution,
        probe: shortest,
        confirm: shortest * 4,
    };
    let pin = arguments.common.pins();
    let before = bench.recorder.records.len();
    let event_bytes = base.chosen.completed()?.event_bytes();
    let found = highest_rate(&plan, |rate_hz, duration| {
        if for_search.is_some_and(|most| began.elapsed() + duration > most) {
            return Ok(None);
        }
        let request = probe(base, rate_hz, duration);
        let record = bench.probe(&request, "readout/search", &pin)?;
        Ok::<_, Failure>(Some(observed(&record, event_bytes)))
    })?;
    if let Some(record) = maximum(&bench.recorder.records[before..], &found) {
        bench.recorder.take(record)?;
    }
    let rates = found.rate_hz.filter(|_| !arguments.no_curves).map(rates).unwrap_or_default();
    let points = rates.iter().map(|rate_hz| probe(base, *rate_hz, shortest)).collect();
    for (order, request) in ordered(points, 1) {
        let settings = bench.runner.settings(StepPlan::ByStage(1), "readout/sweep", &pin);
        bench.measure(&request, &settings, Some(order))?;
    }
    Ok(found)
}

/// Makes the record of the maximum from that of the run that confirmed it, or from the last one.
fn maximum(records: &[RunRecord], found: &SearchResult) -> Option<RunRecord> {
    let mut record = found.confirmed.map_or(records.last(), |probe| records.get(probe))?.clone();
    record.study = "readout/maximum".into();
    match found.rate_hz {
        Some(_) => record.role = Role::Point,
        None => record.warnings.push(format!("no maximum rate: {}", found.confidence)),
    }
    for (name, hz) in [(MAXIMUM_RATE, found.rate_hz), (UNSTABLE_RATE, found.unstable_hz)] {
        record.counters.extend(hz.map(|hz| Counter::measured(name, hz, "Hz")));
    }
    Some(record)
}

/// Rates with three digits around a maximum.
fn rates(highest_hz: f64) -> Vec<f64> {
    let rounded = |hz: f64| {
        let unit = 10_f64.powf(hz.log10().floor() - 2.0);
        (hz / unit).round() * unit
    };
    SHARES.iter().map(|share| rounded(share * highest_hz)).chain([IDLE_HZ]).collect()
}

fn answer(name: &str, found: &SearchResult) -> [String; 2] {
    let khz = |hz: f64| format!("{} kHz", significant(hz / 1e3, 4));
    let unstable = found.unstable_hz.map(|hz| {
        let mut own = found.probes.iter().rev().filter(|probe| probe.rate_hz == hz);
        let why = own.find_map(|probe| match probe.verdict {
            Stability::Stable => None,
            Stability::Lost => Some("triggers were lost"),
            Stability::Dead => Some("dead time"),
            Stability::Growing => Some("the backlog grows"),
        });
        let why = why.unwrap_or_default();
        format!("not stable at {} ({why})", khz(hz))
    });
    let unstable = unstable.as_deref().unwrap_or("no fault up to the end of the search");
    let highest = found.rate_hz.map_or("none".to_owned(), khz);
    let (probes, confidence) = (found.probes.len(), &found.confidence);
    [
        format!("{name}: maximum rate {highest}; {unstable}"),
        format!("{probes} probes; {confidence}"),
    ]
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Workload;

    use super::*;

    #[test]
    fn the_maximum_is_a_record_of_the_run_that_confirmed_it() {
        let run = |rate_hz: u32| {
            let workload = Workload::new("readout").with("rate_hz", 0.1 + f64::from(rate_hz));
            let mut record = RunRecord::new(daqmeter_record::EngineInfo::default(), workload);
            (record.role, record.wall_ns) = (Role::Probe, rate_hz.into());
            record
        };
        let records = [2000, 4000, 3000, 3500].map(run);
        let of = |rate_hz: Option<f64>| {
            let unstable_hz = Some(3.5e3);
            let confirmed = rate_hz.map(|_| 2);
            let found = SearchResult { rate_hz, confirmed, unstable_hz, ..SearchResult::default() };
            super::maximum(&records, &found).unwrap()
        };
        let maximum = of(Some(3e3));
        assert_eq!((maximum.wall_ns, maximum.role), (3000, Role::Point));
        assert_eq!(maximum.study, "readout/maximum");
        assert_eq!(
            (maximum.counter(MAXIMUM_RATE), maximum.counter(UNSTABLE_RATE)),
            (Some(3e3), Some(3.5e3))
        );
        let none = of(None);
        assert_eq!((none.wall_ns, none.role), (3500, Role::Probe));
        assert_eq!(none.counter(MAXIMUM_RATE), None);
        assert!(none.warnings[0].starts_with("no maximum rate"));
    }

    #[test]
    fn the_points_are_on_both_sides_of_the_maximum() {
        assert_eq!(rates(812_345.6)[4..], [772e3, 853e3, 975e3, IDLE_HZ]);
    }
}
