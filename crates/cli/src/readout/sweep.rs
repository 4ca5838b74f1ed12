//! `daqmeter readout sweep`: the maximum rate, and what reading costs below and beyond it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use daqmeter_harness::{StepPlan, Sweep, ordered};
use daqmeter_readout::engine::{observation, probe_workload};
use daqmeter_readout::search::{Allowed, Found, Observation, Plan, System, highest_rate};
use daqmeter_record::units::significant;
use daqmeter_record::{Outcome, RunRecord, Workload};
use daqmeter_report::page;
use daqmeter_report::readout::chains_text;

use super::pins::{check_pins, cpus};
use super::{Chosen, bytes, count, rate};
use crate::arguments::{cpu_list, duration};
use crate::output::{Failure, emit, tell, write_file};
use crate::run::{Common, CpuList, Runner};

/// Find the maximum rate without loss, then measure CPU, ring and dead time around it.
#[derive(Debug, Args)]
#[command(
    after_long_help = "The search doubles the rate until something is lost, time is dead, or the ring fills; halves the interval to\n--resolution; and confirms the result by longer runs. Lists sweep further: the search runs for each\npayload, mode and number of channels.\n\nExample:\n\n  $ daqmeter readout sweep gbt --pin 1 --receiver-pin 0 --payloads 16,24,32 -o sweep.html"
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
    /// Time of a probe; confirmations take four times as long
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "400ms")]
    probe: Duration,
    /// Only the search, no curves
    #[arg(long)]
    no_curves: bool,
    /// CPUs of the receivers, in turn
    #[arg(long, value_name = "CPUS", value_parser = cpu_list, help_heading = "Placement")]
    receiver_pin: Option<CpuList>,
    /// Page to write
    #[arg(short, long, value_name = "FILE.html", help_heading = "Output")]
    output: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// The chain of a workload, as the search sees it.
struct Chain<'a> {
    runner: &'a mut Runner,
    base: Workload,
    pin: Vec<u32>,
}

impl System for Chain<'_> {
    type Error = Failure;

    fn observe(&mut self, rate_hz: f64, duration: Duration) -> Result<Observation, Failure> {
        let settings = self
            .runner
            .settings(StepPlan::ByStage(1), "readout/search", &self.pin);
        self.runner.point(
            "readout",
            &probe_workload(&self.base, rate_hz, duration),
            &settings,
            None,
        )?;
        let Some(record) = self.runner.recorder.records.last() else {
            return Err(Failure::refused("nothing was measured"));
        };
        if self.runner.stop.is_set() {
            return Err(Failure::interrupted());
        }
        match &record.outcome {
            Outcome::Ok => Ok(observation(record)),
            other => Err(Failure::tool(other.reason().unwrap_or("failed"))),
        }
    }
}

impl Arguments {
    /// The chains to search, each by its workload.
    fn bases(&self) -> Result<Vec<Workload>, Failure> {
        let mut base = self.chosen.workload()?;
        if let Some(cpus) = cpus(self.receiver_pin.as_ref()) {
            base = base.with("receiver_cpus", cpus);
        }
        let mut sweep = Sweep::of(base);
        if !self.payloads.is_empty() {
            sweep = sweep.over("payload_bytes", self.payloads.clone());
        }
        if !self.instances.is_empty() {
            sweep = sweep.over("channels", self.instances.clone());
        }
        if self.both_modes {
            sweep = sweep.over("mode", ["buffered", "zero-copy"]);
        }
        if self.both_placements {
            sweep = sweep.over("placement", ["pinned", FREE]);
        }
        let mut bases = sweep.workloads();
        for base in bases.iter_mut().filter(|base| is_free(base)) {
            base.params.remove("receiver_cpus");
        }
        // A combination that cannot be is refused before the first is run.
        for base in &bases {
            daqmeter_readout::engine::scenario_of(base)?;
        }
        Ok(bases)
    }

    fn plan(&self) -> Plan {
        Plan {
            from_hz: self.from,
            to_hz: self.to.max(self.from),
            resolution: self.resolution.clamp(1e-4, 0.5),
            probe: self.probe,
            confirm: self.probe * 4,
            confirmations: 3,
            allowed: Allowed {
                lost: 0,
                dead_share: self.dead,
            },
        }
    }
}

/// Threads run where the kernel puts them.
const FREE: &str = "free";

fn is_free(workload: &Workload) -> bool {
    workload
        .text("placement")
        .is_ok_and(|placement| placement == FREE)
}

/// Rates of the curves, as shares of the maximum, before [`preferred`].
const SHARES: [f64; 7] = [0.1, 0.25, 0.5, 0.75, 0.95, 1.05, 1.2];

/// The preferred number nearest to a rate (ISO 3, series R20: 20 to a decade, so at most 6 % away). The maximum is measured;
/// rates that followed it exactly would give every run points of its own, which no other run could be compared with.
fn preferred(rate_hz: f64) -> f64 {
    const R20: [f64; 21] = [
        1.0, 1.12, 1.25, 1.4, 1.6, 1.8, 2.0, 2.24, 2.5, 2.8, 3.15, 3.55, 4.0, 4.5, 5.0, 5.6, 6.3,
        7.1, 8.0, 9.0, 10.0,
    ];
    let decade = 10_f64.powf(rate_hz.log10().floor());
    let distance = |step: &f64| (step * decade / rate_hz).ln().abs();
    let nearest = R20
        .into_iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)))
        .unwrap_or(1.0);
    // Digits beyond the series' three are of the floating point only.
    let unit = decade / 100.0;
    if unit >= 1.0 {
        (nearest * 100.0).round() * unit
    } else {
        nearest * decade
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let bases = arguments.bases()?;
    let mut runner = Runner::new(&arguments.common, 0)?;
    check_pins(arguments.receiver_pin.as_ref(), &runner)?;
    let pin = arguments
        .common
        .pin
        .as_ref()
        .map(|list| list.0.clone())
        .unwrap_or_default();
    let mut results = Vec::new();
    for base in &bases {
        let pin = if is_free(base) {
            Vec::new()
        } else {
            pin.clone()
        };
        let mut chain = Chain {
            runner: &mut runner,
            base: base.clone(),
            pin: pin.clone(),
        };
        let found = match highest_rate(&mut chain, &arguments.plan()) {
            Ok(found) => found,
            Err(failure) => return finish(arguments, &runner, &results, Some(failure)),
        };
        let highest_hz = found.rate_hz;
        results.push((base.clone(), found));
        let (Some(highest_hz), false) = (highest_hz, arguments.no_curves) else {
            continue;
        };
        let points = curves(arguments, base, highest_hz);
        for (order, workload) in ordered(points, 1) {
            let settings = runner.settings(StepPlan::ByStage(1), "readout/sweep", &pin);
            runner.point("readout", &workload, &settings, Some(order))?;
        }
    }
    finish(arguments, &runner, &results, None)
}

/// The rates of the curves for a measured maximum.
fn rates(highest_hz: f64) -> Vec<f64> {
    let mut rates: Vec<f64> = SHARES
        .iter()
        .map(|share| preferred(share * highest_hz))
        .collect();
    rates.dedup();
    // As good as no trigger: what polling costs by itself.
    rates.push(1.0);
    rates
}

/// Rate by polling interval; the first chain has all intervals, and what costs nothing is at every one.
fn curves(arguments: &Arguments, base: &Workload, highest_hz: f64) -> Vec<Workload> {
    let probe = probe_workload(base, highest_hz, arguments.probe);
    let polls: Vec<f64> = arguments
        .polls
        .iter()
        .map(|poll| poll.as_secs_f64() * 1e6)
        .collect();
    Sweep::of(probe)
        .over("poll_us", polls)
        .over("rate_hz", rates(highest_hz))
        .workloads()
}

fn finish(
    arguments: &Arguments,
    runner: &Runner,
    results: &[(Workload, Found)],
    failure: Option<Failure>,
) -> Result<ExitCode, Failure> {
    runner.finish();
    let records = &runner.recorder.records;
    if !arguments.common.json {
        emit(&text(results, records))?;
    }
    if let Some(path) = &arguments.output {
        write_file(path, &page(records).map_err(Failure::refused)?)?;
        tell(&format!("wrote {}", path.display()));
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(runner.recorder.exit_code(runner.stop.is_set())),
    }
}

fn text(results: &[(Workload, Found)], records: &[RunRecord]) -> String {
    let mut out = String::new();
    for (workload, found) in results {
        let khz = |hz: f64| format!("{} kHz", significant(hz / 1e3, 4));
        let mut name = workload.text("scenario").unwrap_or("").to_owned();
        for (parameter, unit) in [
            ("payload_bytes", " B"),
            ("channels", " channels"),
            ("mode", ""),
            ("placement", ""),
        ] {
            if let Some(value) = workload.params.get(parameter) {
                name.push_str(&format!(", {value}{unit}"));
            }
        }
        let rate = found.rate_hz.map_or("none".to_owned(), khz);
        let above =
            found
                .unstable_hz
                .map_or("no fault up to the end of the search".to_owned(), |hz| {
                    let why = found
                        .probes
                        .iter()
                        .rev()
                        .find(|probe| probe.rate_hz == hz)
                        .map(|probe| probe.verdict);
                    format!("not stable at {} ({})", khz(hz), why.map_or("", why_text))
                });
        out.push_str(&format!(
            "{name}: maximum rate {rate}; {above}\n  {} probes; {}\n",
            found.probes.len(),
            found.confidence()
        ));
        if found.lowered > 0 {
            out.push_str(&format!(
                "  lowered {} times because a confirmation failed twice\n",
                found.lowered
            ));
        }
    }
    let swept: Vec<RunRecord> = records
        .iter()
        .filter(|record| record.study == "readout/sweep")
        .cloned()
        .collect();
    if !swept.is_empty() {
        out.push('\n');
        out.push_str(&chains_text(&swept));
    }
    out
}

fn why_text(verdict: daqmeter_readout::search::Verdict) -> &'static str {
    use daqmeter_readout::search::Verdict;
    match verdict {
        Verdict::Stable => "",
        Verdict::Lost => "triggers were lost",
        Verdict::Dead => "dead time",
        Verdict::Filling => "the ring fills",
    }
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
    fn a_rate_below_and_one_above_the_maximum_are_swept() {
        for highest in [1.5, 37.0, 999.0, 1.04e6, 7.77e6] {
            let rates = rates(highest);
            assert!(
                rates
                    .iter()
                    .any(|rate| (0.7..1.0).contains(&(rate / highest))),
                "{highest}: {rates:?}"
            );
            assert!(
                rates
                    .iter()
                    .any(|rate| (1.0..1.3).contains(&(rate / highest))),
                "{highest}: {rates:?}"
            );
        }
    }
}
