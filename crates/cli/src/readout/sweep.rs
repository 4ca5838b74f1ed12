//! `daqmeter readout sweep`: the maximum rate, and the cost of reading below and beyond it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_harness::{Request, Settings, StepPlan, ordered};
use daqmeter_path::ReadoutRequest;
use daqmeter_path::readout::observation;
use daqmeter_path::readout::{Placement, Receivers};
use daqmeter_readout::Chosen;
use daqmeter_readout::scenario::ReaderMode;
use daqmeter_readout::search::{
    AllowedLoss, Observation, RatedSystem, SearchPlan, SearchResult, Stability, highest_rate,
};
use daqmeter_record::units::significant;
use daqmeter_record::{Counter, Outcome, Role, RunRecord, Workload};
use daqmeter_report::felix::{MAXIMUM_RATE, UNSTABLE_RATE, chains_text};

use super::options::completed;
use crate::arguments::{bytes, count, duration, rate};
use crate::measure::{Bench, Common};
use crate::output::Failure;

/// Find the maximum rate without loss, then measure CPU, ring and dead time around it.
#[derive(Debug, Args)]
#[command(
    after_long_help = "The search doubles the rate until something is lost, time is dead, or the backlog grows in ring, pages or\nnetwork; halves the interval to --resolution; and confirms the result by one longer run. Lists sweep further: the search runs for each\npayload, mode and number of channels.\n\nExample:\n\n  $ daqmeter readout sweep gbt --pin 1 --receiver-pin 0 --payloads 16,24,32 -o sweep.html"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Payloads to search for, one by one
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', value_parser = bytes)]
    payloads: Vec<u64>,
    /// Numbers of DMA channels, each with its reader
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = count)]
    instances: Vec<u64>,
    /// Search in both modes: copied chunks, and blocks from the ring
    #[arg(long)]
    both_modes: bool,
    /// Search with threads pinned and free
    #[arg(long, requires = "pin")]
    both_placements: bool,
    /// Polling intervals of the curves
    #[arg(long, value_name = "TIME,..", value_delimiter = ',', value_parser = duration, default_value = "10us,100us,1ms")]
    polls: Vec<Duration>,
    /// Share of the time that may be dead
    #[arg(long, value_name = "SHARE", default_value = "0")]
    dead: f64,
    /// Where the search begins
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "100kHz")]
    from: f64,
    /// Where it ends at the latest
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "40MHz")]
    to: f64,
    /// Share to which the result is narrowed down
    #[arg(long, value_name = "SHARE", default_value = "0.01")]
    resolution: f64,
    /// Time of a probe; the run that confirms takes 16 times as long
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "400ms")]
    probe: Duration,
    /// Only the search, no curves
    #[arg(long)]
    no_curves: bool,
    #[command(flatten)]
    receivers: Receivers,
    #[command(flatten)]
    common: Common,
}

struct Chain<'a> {
    bench: &'a mut Bench,
    base: &'a ReadoutRequest,
    pin: &'a [u32],
}

impl RatedSystem for Chain<'_> {
    type Error = Failure;

    fn observe(&mut self, rate_hz: f64, duration: Duration) -> Result<Observation, Failure> {
        let settings = self.bench.runner.settings(StepPlan::ByStage(1), "readout/search", self.pin);
        let settings = Settings { role: Role::Probe, ..settings };
        let request = probe(self.base, rate_hz, duration);
        self.bench.measure(&request, &settings, None)?;
        if self.bench.runner.stop.is_set() {
            return Err(Failure::interrupted());
        }
        let record = self.bench.recorder.records.last();
        let record = record.ok_or_else(|| Failure::refused("nothing was measured"))?;
        match &record.outcome {
            Outcome::Ok => Ok(observation(record)),
            other => Err(Failure::tool(other.reason().unwrap_or("failed"))),
        }
    }
}

fn probe(base: &ReadoutRequest, rate_hz: f64, duration: Duration) -> ReadoutRequest {
    let mut request = base.clone();
    request.chosen.rate_hz = Some(rate_hz);
    request.seconds = duration.as_secs_f64();
    request.probe = true;
    request
}

/// Combines each base with each value; returns the bases if there is no value.
fn over<T: Copy>(
    bases: Vec<ReadoutRequest>,
    values: &[T],
    set: impl Fn(&mut ReadoutRequest, T),
) -> Vec<ReadoutRequest> {
    if values.is_empty() {
        return bases;
    }
    let with = |base: &ReadoutRequest, value: &T| {
        let mut request = base.clone();
        set(&mut request, *value);
        request
    };
    bases.iter().flat_map(|base| values.iter().map(|value| with(base, value))).collect()
}

impl Arguments {
    fn bases(&self) -> Result<Vec<ReadoutRequest>, Failure> {
        if self.from > self.to {
            let [from, to] = [self.from, self.to].map(|hz| significant(hz / 1e3, 6));
            return Err(Failure::refused(format!(
                "--from {from} kHz is above --to {to} kHz: the search goes up from --from"
            )));
        }
        for (option, value, range) in
            [("--resolution", self.resolution, 1e-4..=0.5), ("--dead", self.dead, 0.0..=1.0)]
        {
            if !range.contains(&value) {
                let (least, most) = range.into_inner();
                return Err(Failure::refused(format!(
                    "{option} is {value}; a share from {least} to {most} is wanted"
                )));
            }
        }
        let wanted = |is_wanted: bool| if is_wanted { 2 } else { 0 };
        let modes = &[ReaderMode::Buffered, ReaderMode::ZeroCopy][..wanted(self.both_modes)];
        let placements = &[Placement::Pinned, Placement::Free][..wanted(self.both_placements)];
        // A probe takes its time, however short a recorded file is.
        let chosen =
            Chosen { replay_loop: self.chosen.replay.is_some(), ..completed(&self.chosen)? };
        let receivers = self.receivers.clone();
        let bases = vec![ReadoutRequest { chosen, receivers, ..ReadoutRequest::default() }];
        let bases = over(bases, &self.payloads, |base, bytes| {
            base.chosen.payload_bytes = Some(bytes);
        });
        let bases = over(bases, &self.instances, |base, channels| {
            // The scenario's own check refuses more.
            base.chosen.channels = Some(u16::try_from(channels).unwrap_or(u16::MAX));
        });
        let bases = over(bases, modes, |base, mode| base.chosen.mode = Some(mode));
        let bases = over(bases, placements, |base, placement| {
            base.placement = Some(placement);
            if placement == Placement::Free {
                base.receivers.peer_cpu = None;
            }
        });
        // An impossible combination is refused before the first run.
        for base in &bases {
            let probe = probe(base, self.from, self.probe);
            probe.chosen.load().map_err(Failure::refused)?;
            probe
                .check()
                .map_err(|wrong| Failure::refused(format!("`{}` {}", wrong.name, wrong.text)))?;
        }
        Ok(bases)
    }

    fn plan(&self) -> SearchPlan {
        SearchPlan {
            from_hz: self.from,
            to_hz: self.to,
            resolution: self.resolution,
            probe: self.probe,
            confirm: self.probe * 4,
            allowed: AllowedLoss { lost: 0, dead_share: self.dead },
        }
    }
}

/// Rates of the curves, as shares of the maximum, before [`preferred`].
const SHARES: [f64; 7] = [0.1, 0.25, 0.5, 0.75, 0.95, 1.05, 1.2];

/// Returns the preferred number nearest to a rate. ISO 3's series R20 has 20 to a decade, so that
/// it is at most 6 % away. The maximum is measured: rates that followed it exactly would give every
/// run its own points, which no other run has.
fn preferred(rate_hz: f64) -> f64 {
    const R20: [f64; 21] = [
        1.0, 1.12, 1.25, 1.4, 1.6, 1.8, 2.0, 2.24, 2.5, 2.8, 3.15, 3.55, 4.0, 4.5, 5.0, 5.6, 6.3,
        7.1, 8.0, 9.0, 10.0,
    ];
    let decade = 10_f64.powf(rate_hz.log10().floor());
    let distance = |step: &f64| (step * decade / rate_hz).ln().abs();
    let nearest = R20.into_iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(1.0);
    // Digits beyond the series' three come from the floating point only.
    let unit = decade / 100.0;
    if unit >= 1.0 { (nearest * 100.0).round() * unit } else { nearest * decade }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let bases = arguments.bases()?;
    let mut bench = Bench::new(&arguments.common, 0)?;
    let mut results = Vec::new();
    let searched =
        bases.into_iter().try_for_each(|base| search(arguments, &mut bench, base, &mut results));
    let code = bench.recorder.finish(|records| text(&results, records))?;
    searched.map(|()| code)
}

fn search(
    arguments: &Arguments,
    bench: &mut Bench,
    base: ReadoutRequest,
    results: &mut Vec<(Workload, SearchResult)>,
) -> Result<(), Failure> {
    let is_free = base.placement == Some(Placement::Free);
    let pin = if is_free { Vec::new() } else { arguments.common.pins() };
    let before = bench.recorder.records.len();
    let found = highest_rate(&mut Chain { bench, base: &base, pin: &pin }, &arguments.plan())?;
    let highest_hz = found.rate_hz;
    let last = last_of(&bench.recorder.records[before..], highest_hz);
    if let Some(record) = last.map(|last| with_maximum(last, &found)) {
        bench.recorder.take(record)?;
    }
    results.push((base.workload(), found));
    let (Some(highest_hz), false) = (highest_hz, arguments.no_curves) else {
        return Ok(());
    };
    // Combines each polling interval with each rate.
    let polls: Vec<f64> = arguments.polls.iter().map(|poll| poll.as_secs_f64() * 1e6).collect();
    let curves = over(vec![base], &polls, |base, poll_us| base.chosen.poll_us = Some(poll_us));
    let curves = over(curves, &rates(highest_hz), |base, rate_hz| {
        *base = probe(base, rate_hz, arguments.probe);
    });
    for (order, request) in ordered(curves, 1) {
        let settings = bench.runner.settings(StepPlan::ByStage(1), "readout/sweep", &pin);
        bench.measure(&request, &settings, Some(order))?;
    }
    Ok(())
}

fn last_of(records: &[RunRecord], highest_hz: Option<f64>) -> Option<&RunRecord> {
    let asked_hz = |record: &RunRecord| record.workload.float("rate_hz").ok();
    let mut last_first = records.iter().rev();
    last_first.find(|record| highest_hz.is_none() || asked_hz(record) == highest_hz)
}

fn with_maximum(last: &RunRecord, found: &SearchResult) -> RunRecord {
    let mut record = last.clone();
    record.study = "readout/maximum".into();
    if found.rate_hz.is_some() {
        record.role = Role::Point;
    }
    let counted = |name: &str, value: f64, unit: &str| Counter {
        value,
        unit: unit.into(),
        ..Counter::count(name, 0)
    };
    let maximum = found.rate_hz.map(|hz| counted(MAXIMUM_RATE, hz, "Hz"));
    let above = found.unstable_hz.map(|hz| counted(UNSTABLE_RATE, hz, "Hz"));
    record.counters.extend(maximum.into_iter().chain(above));
    record
}

fn rates(highest_hz: f64) -> Vec<f64> {
    let mut rates: Vec<f64> = SHARES.iter().map(|share| preferred(share * highest_hz)).collect();
    rates.dedup();
    // Nearly no triggers show the cost of polling by itself.
    rates.push(1.0);
    rates
}

fn text(results: &[(Workload, SearchResult)], records: &[RunRecord]) -> String {
    let mut out: String =
        results.iter().map(|(workload, found)| result_text(workload, found)).collect();
    let swept: Vec<RunRecord> =
        records.iter().filter(|record| record.role.is_point()).cloned().collect();
    if !swept.is_empty() {
        out.push('\n');
        out.push_str(&chains_text(&swept));
    }
    out
}

fn result_text(workload: &Workload, found: &SearchResult) -> String {
    let mut name = workload.text("scenario").unwrap_or("").to_owned();
    for (parameter, unit) in
        [("payload_bytes", " B"), ("channels", " channels"), ("mode", ""), ("placement", "")]
    {
        if let Some(value) = workload.params.get(parameter) {
            name.push_str(&format!(", {value}{unit}"));
        }
    }
    let khz = |hz: f64| format!("{} kHz", significant(hz / 1e3, 4));
    let unstable = found.unstable_hz.map(|hz| {
        let last = found.probes.iter().rev().find(|probe| probe.rate_hz == hz);
        let why = match last.map_or(Stability::Stable, |probe| probe.verdict) {
            Stability::Stable => "",
            Stability::Lost => "triggers were lost",
            Stability::Dead => "dead time",
            Stability::Growing => "the backlog grows",
        };
        format!("not stable at {} ({why})", khz(hz))
    });
    let mut out = format!(
        "{name}: maximum rate {}; {}\n  {} probes; {}\n",
        found.rate_hz.map_or("none".to_owned(), khz),
        unstable.unwrap_or_else(|| "no fault up to the end of the search".to_owned()),
        found.probes.len(),
        found.confidence()
    );
    if found.lowered > 0 {
        out.push_str(&format!(
            "  lowered {} times because two runs that were to confirm failed\n",
            found.lowered
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_whose_maximum_differs_a_little_sweep_the_same_rates() {
        let (one, other) = (rates(812_345.6), rates(823_456.7));
        assert_eq!(one, other);
        assert_eq!(one, [80e3, 200e3, 400e3, 630e3, 800e3, 900e3, 1e6, 1.0]);
    }

    #[test]
    fn the_maximum_is_a_record_of_the_run_that_confirmed_it() {
        let run = |rate_hz: u32| {
            let workload = Workload::new("readout").with("rate_hz", f64::from(rate_hz));
            let mut record = RunRecord::new(daqmeter_record::EngineInfo::default(), workload);
            (record.role, record.wall_ns) = (Role::Probe, rate_hz.into());
            record
        };
        let records = [2000, 4000, 3000, 3500].map(run);
        let found = |rate_hz| SearchResult {
            rate_hz,
            unstable_hz: Some(3.5e3),
            is_cut: false,
            probes: Vec::new(),
            confirmed_s: 6.4,
            failed: 0,
            rarer_than_s: 1.6,
            lowered: 0,
        };
        let of = |rate_hz| with_maximum(last_of(&records, rate_hz).unwrap(), &found(rate_hz));
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
    }

    #[test]
    fn a_rate_below_and_one_above_the_maximum_are_swept() {
        for highest in [1.5, 37.0, 999.0, 1.04e6, 7.77e6] {
            let rates = rates(highest);
            assert!(
                rates.iter().any(|rate| (0.7..1.0).contains(&(rate / highest))),
                "{highest}: {rates:?}"
            );
            assert!(
                rates.iter().any(|rate| (1.0..1.3).contains(&(rate / highest))),
                "{highest}: {rates:?}"
            );
        }
    }
}
