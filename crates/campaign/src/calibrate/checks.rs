//! Paths that went into no cost, predicted and measured: by how much predictions are off.

use daqmeter_record::path::PathRun;
use daqmeter_record::shape::PathShape;
use daqmeter_stats::simulated::Random;
use daqmeter_twin::{Check, MIN_CHECKS, Pair, Profile, Simulated, ThreadsOutcome, simulate};

use super::paths::{Paths, threads_by_row};
use crate::drawn::{DrawnPath, drawn_path};

/// Time of a run that is compared with a prediction: equal runs of pinned threads differ by 4 % in their rates, those of 80 ms by 8 %.
const CHECK_S: f64 = 0.25;
/// Runs of a path at one load of which the median is compared: equal runs are far apart.
pub const REPEATS: usize = 3;
/// Seed of the paths that are checked.
const SEED: u64 = 2026;

/// Most paths that are checked: intervals hardly gain from more.
const MAX_CHECKED: usize = 400;

pub(super) fn checks(
    paths: &mut Paths<'_>,
    profile: &Profile,
    wants_more: impl Fn() -> bool,
) -> Result<Vec<Check>, String> {
    let mut random = Random::new(SEED);
    let mut checks = Vec::new();
    // Of pinned and other paths enough, where the budget allows it; for an interval at all in any case.
    while checks.len() < 2 * MIN_CHECKS || (checks.len() < 2 * MAX_CHECKED && wants_more()) {
        let drawn = drawn_path(&mut random, &profile.host.allowed_cpus);
        if !paths.has(&drawn.text) {
            break;
        }
        checks.extend(check(paths, profile, &drawn)?.map(|compared| compared.check));
    }
    Ok(checks)
}

/// Runs the paths that a calibration checked again, in turn, as fast as they go: whether the host is as it was then. What is measured is held
/// to what was measured, so that no fault of a prediction shows in it.
pub struct Again<'a> {
    profile: &'a Profile,
    random: Random,
    at: usize,
}

impl<'a> Again<'a> {
    /// Begins with the first path; the profile is one of the CPUs that are allowed now.
    pub fn new(profile: &'a Profile) -> Again<'a> {
        Again { profile, random: Random::new(SEED), at: 0 }
    }

    /// How much faster the next path is now than it was then, as a logarithm; nothing where its runs are not in the file, or where the
    /// profile checked other paths.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn next(&mut self, paths: &mut Paths<'_>) -> Result<Option<f64>, String> {
        let mut frees = self.profile.checks.iter().step_by(2);
        let then = match frees.clone().nth(self.at) {
            Some(then) => then,
            None => {
                *self = Again::new(self.profile);
                let Some(first) = frees.next() else {
                    return Ok(None);
                };
                first
            }
        };
        self.at += 1;
        let drawn = drawn_path(&mut self.random, &self.profile.host.allowed_cpus);
        if !paths.has(&drawn.text) {
            return Ok(None);
        }
        let mut rates = Vec::new();
        for _ in 0..REPEATS {
            let (shape, run) = paths.run(&drawn.text, CHECK_S, None, &[])?;
            if shape.line != then.line || shape.block_bytes != then.block_bytes {
                return Ok(None);
            }
            rates.push(blocks_per_s(&run));
        }
        Ok(Some((daqmeter_stats::median(&rates) / then.rate.measured).ln()))
    }
}

fn blocks_per_s(run: &PathRun) -> f64 {
    run.blocks as f64 / (run.wall_ns as f64 * 1e-9)
}

/// A path at one load: what was predicted, and what its runs gave.
pub struct Compared {
    /// The path at that load.
    pub shape: PathShape,
    /// Medians of the runs beside what was predicted.
    pub check: Check,
    /// Each run by itself.
    runs: Vec<Check>,
}

impl Compared {
    /// How far each run is from the median of the others.
    pub fn apart(&self, value: impl Fn(&Check) -> f64, distance: fn(f64, f64) -> f64) -> Vec<f64> {
        let of = |at: usize| {
            let others = self.runs.iter().enumerate().filter(|(other, _)| *other != at);
            let others: Vec<f64> = others.map(|(_, run)| value(run)).collect();
            distance(value(&self.runs[at]), daqmeter_stats::median(&others))
        };
        (0..self.runs.len()).map(of).collect()
    }
}

/// A path as fast as it goes, and at its share of that, several runs of each.
///
/// # Errors
/// When it cannot be run or predicted.
pub fn check(
    paths: &mut Paths<'_>,
    profile: &Profile,
    drawn: &DrawnPath,
) -> Result<[Compared; 2], String> {
    let free = compared(paths, profile, drawn, None)?;
    let streams = free.shape.rows[0].threads as f64;
    let rate_hz = free.check.rate.measured / streams * drawn.load;
    let paced = compared(paths, profile, drawn, Some(rate_hz))?;
    Ok([free, paced])
}

fn compared(
    paths: &mut Paths<'_>,
    profile: &Profile,
    drawn: &DrawnPath,
    rate_hz: Option<f64>,
) -> Result<Compared, String> {
    let (shape, first) = paths.run(&drawn.text, CHECK_S, rate_hz, &[])?;
    let simulated = simulate(&shape, profile, 1).map_err(|error| error.to_string())?;
    let Simulated { at_rate, .. } = simulated;
    let mut runs = vec![beside(&shape, &first, &at_rate)];
    for _ in 1..REPEATS {
        let (shape, run) = paths.run(&drawn.text, CHECK_S, rate_hz, &[])?;
        runs.push(beside(&shape, &run, &at_rate));
    }
    Ok(Compared { check: middle(&runs), shape, runs })
}

/// The median of each figure over the runs.
fn middle(runs: &[Check]) -> Check {
    let median = |of: &dyn Fn(&Check) -> Pair| Pair {
        predicted: of(&runs[0]).predicted,
        measured: daqmeter_stats::median(
            &runs.iter().map(|run| of(run).measured).collect::<Vec<_>>(),
        ),
    };
    let each = |of: fn(&Check) -> &Vec<Pair>| {
        let count = runs.iter().map(|run| of(run).len()).min().unwrap_or(0);
        (0..count).map(|at| median(&|run| of(run)[at])).collect()
    };
    Check {
        rate: median(&|run| run.rate),
        p50_ns: median(&|run| run.p50_ns),
        p99_ns: median(&|run| run.p99_ns),
        cpu: each(|run| &run.cpu),
        depth: each(|run| &run.depth),
        ..runs[0].clone()
    }
}

/// Prediction and measurement of a run.
fn beside(shape: &PathShape, run: &PathRun, at_rate: &ThreadsOutcome) -> Check {
    let pair = |predicted: f64, measured: f64| Pair { predicted, measured };
    let latency = |share| {
        let measured = run.latency_ns(share).unwrap_or(0).max(1);
        pair(at_rate.latency_ns.quantile(share).max(1) as f64, measured as f64)
    };
    let cpu = threads_by_row(shape, run).zip(&at_rate.cpu).map(|(own, predicted)| {
        let cpu_ns: u64 = own.iter().map(|thread| thread.cpu_ns).sum();
        pair(*predicted, cpu_ns as f64 / run.wall_ns as f64 / own.len() as f64)
    });
    let depth =
        threads_by_row(shape, run).skip(1).zip(&at_rate.depth).filter_map(|(own, predicted)| {
            let queues =
                run.queues.iter().filter(|queue| own.iter().any(|thread| thread.name == queue.to));
            let means: Vec<f64> =
                queues.filter_map(daqmeter_record::path::PathQueue::mean).collect();
            (!means.is_empty())
                .then(|| pair(*predicted, means.iter().sum::<f64>() / means.len() as f64))
        });
    Check {
        line: shape.line.clone(),
        threads: shape.threads(),
        block_bytes: shape.block_bytes,
        is_pinned: shape.rows.iter().any(|row| !row.cpus.is_empty()),
        rate_hz: shape.rate_hz,
        rate: pair(at_rate.rate_hz(), blocks_per_s(run)),
        p50_ns: latency(0.5),
        p99_ns: latency(0.99),
        cpu: cpu.collect(),
        depth: depth.collect(),
    }
}

/// The path that a calibration checks at that place, on CPUs 0 and 1.
#[cfg(test)]
pub(super) fn checked_path(at: usize) -> String {
    let mut random = Random::new(SEED);
    let mut drawn = (0..).map(|_| drawn_path(&mut random, &[0, 1]).text);
    drawn.nth(at).expect("there is no end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_runs_counts_and_each_is_held_to_the_others() {
        let check = |measured: f64| {
            let pair = Pair { predicted: 10.0, measured };
            Check { rate: pair, cpu: vec![pair], ..Check::default() }
        };
        let runs: Vec<Check> = [8.0, 30.0, 11.0].map(check).into();
        let found = middle(&runs);
        assert_eq!((found.rate.measured, found.cpu[0].measured), (11.0, 11.0));
        let compared = Compared { shape: PathShape::default(), check: found, runs };
        let apart = compared.apart(|run| run.rate.measured, |one, other| (one - other).abs());
        assert_eq!(apart, [12.5, 20.5, 8.0]);
    }
}
