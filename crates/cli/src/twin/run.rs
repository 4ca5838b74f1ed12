//! `daqmeter twin run`: a scenario, simulated with several seeds, as tables with intervals.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use daqmeter_record::units::{plural, show_bytes, show_ns, significant};
use daqmeter_report::table::{numbers_from, wrapped};
use daqmeter_twin::{Estimate, Model, Outcome, Scenario, Station, estimate, replicate};

use crate::output::{Failure, emit};

/// Simulate a scenario several times, each with other random numbers, and say what flows, waits and gets lost.
#[derive(Debug, Args)]
#[command(
    after_long_help = "Each figure is a mean over the replications with its 95 % interval (Student's t). `load` is the share of a station's\nservers that work, looks included; `queue` counts what waits or is served.\n\nExample:\n\n  $ daqmeter twin run felix-reader --replications 20"
)]
pub(crate) struct Arguments {
    /// Scenario: one that ships, or a TOML file
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Independent replications, whose spread gives the intervals
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=1000))]
    replications: u32,
    /// Seed of the first replication
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print a JSON line instead of tables
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let scenario = Scenario::load(&arguments.scenario).map_err(Failure::refused)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let replications = arguments.replications as usize;
    let outcomes = replicate(&scenario.model, arguments.seed, replications, threads);
    let refused = |error| Failure::refused(format!("scenario {}: {error}", arguments.scenario));
    let outcomes = outcomes.map_err(refused)?;
    emit(&match arguments.json {
        true => json(arguments, &scenario, &outcomes),
        false => text(&scenario, &outcomes),
    })
}

/// Values of one row over all replications.
struct Of<'a>(&'a [Outcome]);

impl Of<'_> {
    fn estimate(&self, value: impl Fn(&Outcome) -> f64) -> Option<Estimate> {
        estimate(self.0, |outcome| Some(value(outcome)))
    }

    /// `12.3 +-0.4`; one number where all replications agree.
    fn shown(&self, value: impl Fn(&Outcome) -> f64) -> String {
        self.estimate(value)
            .map_or("-".to_owned(), |found| with_interval(found, |x| significant(x, 4)))
    }
}

pub(super) fn with_interval(found: Estimate, show: impl Fn(f64) -> String) -> String {
    let half = (found.high - found.low) / 2.0;
    match half > found.mean.abs() * 5e-4 {
        true => format!("{} +-{}", show(found.mean), significant(half, 2)),
        false => show(found.mean),
    }
}

fn text(scenario: &Scenario, outcomes: &[Outcome]) -> String {
    let of = Of(outcomes);
    let counted_s = outcomes[0].seconds;
    let mut out = format!("{}\n\n", scenario.title);
    let runs = plural(outcomes.len() as u64, "replication");
    let _ = writeln!(
        out,
        "{} items/s, {} MB/s through the end; {runs} of {} s after the warm-up",
        of.shown(|run| run.left as f64 / run.seconds),
        of.shown(|run| run.left_bytes as f64 / run.seconds / 1e6),
        significant(counted_s, 4)
    );
    out.push_str(&latency(outcomes));
    out.push('\n');
    out.push_str(&stations(&scenario.model, &of));
    out.push('\n');
    out.push_str(&sources(&scenario.model, &of));
    for line in remarks(&scenario.model, outcomes) {
        let _ = writeln!(out, "{}", wrapped(&format!(" {line}"), 3));
    }
    out
}

/// Half the width of a bucket of [`Outcome::latency_ps`], relative to its values.
const HALF_BUCKET: f64 = 1.0 / 64.0;

/// Median and p99 of the time from source to end, where there are items enough in each replication.
fn latency(outcomes: &[Outcome]) -> String {
    let quantile = |share| {
        let found = estimate(outcomes, |outcome| {
            let ps = outcome.latency_ps.supported_quantile(share)?;
            Some(ps as f64 / 1e3)
        });
        found.map_or("-".to_owned(), |found| {
            // A quantile is the middle of a bucket: it is known no better than that.
            let half = ((found.high - found.low) / 2.0).max(found.mean * HALF_BUCKET);
            format!("{} +-{}", show_ns(found.mean), show_ns(half))
        })
    };
    format!("latency from source to end: median {}, p99 {}\n", quantile(0.5), quantile(0.99))
}

/// Share of the servers that work; none where nobody waits.
fn load(station: &Station, at: usize, run: &Outcome) -> f64 {
    let servers = station.servers.map_or(f64::NAN, f64::from);
    run.stations[at].work_s / run.seconds / servers * 100.0
}

fn stations(model: &Model, of: &Of<'_>) -> String {
    let row = |(at, station): (usize, &Station)| {
        let fullest = of.0.iter().map(|run| run.stations[at].max_bytes).max();
        let loads = match station.servers {
            Some(_) => of.shown(|run| load(station, at, run)),
            None => "-".to_owned(),
        };
        vec![
            station.name.clone(),
            of.shown(|run| run.stations[at].done as f64 / run.seconds),
            loads,
            of.shown(|run| run.stations[at].mean_items),
            show_bytes(fullest.unwrap_or(0)),
            of.shown(|run| run.stations[at].lost_full as f64 / run.seconds),
            of.shown(|run| run.stations[at].lost_on_way as f64 / run.seconds),
        ]
    };
    let headings = [
        "station",
        "served [/s]",
        "load [%]",
        "queue [items]",
        "fullest",
        "lost, full [/s]",
        "lost, sent [/s]",
    ];
    numbers_from(1, &headings, model.stations.iter().enumerate().map(row))
}

fn sources(model: &Model, of: &Of<'_>) -> String {
    let row = |(at, source): (usize, &daqmeter_twin::Source)| {
        let first = of.0.iter().filter_map(|run| run.sources[at].first_busy_s);
        let first = first.reduce(f64::min);
        vec![
            source.name.clone(),
            of.shown(|run| run.sources[at].offered as f64 / run.seconds),
            of.shown(|run| run.sources[at].stopped as f64 / run.seconds),
            of.shown(|run| run.sources[at].busy_share * 100.0),
            first.map_or("-".to_owned(), |seconds| show_ns(seconds * 1e9)),
        ]
    };
    let headings = ["source", "offered [/s]", "stopped by BUSY [/s]", "BUSY [%]", "first BUSY"];
    numbers_from(1, &headings, model.sources.iter().enumerate().map(row))
}

/// What must be known to believe the tables.
fn remarks(model: &Model, outcomes: &[Outcome]) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(at_s) = outcomes.iter().filter_map(|run| run.stuck_at_s).reduce(f64::min) {
        let at = show_ns(at_s * 1e9);
        lines
            .push(format!("STUCK at {at}: buffers in a circle are all full, and nothing can move"));
    }
    for (at, station) in model.stations.iter().enumerate() {
        let grows = |run: &Outcome| {
            let used = load(station, at, run);
            used > 99.9 && run.stations[at].max_items as f64 > 1.9 * run.stations[at].mean_items
        };
        if outcomes.iter().all(grows) {
            lines.push(format!(
                "{}: works all the time and its queue was still growing: these are not the figures of a steady state",
                station.name
            ));
        }
    }
    lines
}

fn json(arguments: &Arguments, scenario: &Scenario, outcomes: &[Outcome]) -> String {
    let of = Of(outcomes);
    let figure = |value: &dyn Fn(&Outcome) -> f64| {
        let found = of.estimate(value);
        found.map(
            |found| serde_json::json!({ "mean": found.mean, "low": found.low, "high": found.high }),
        )
    };
    let quantile_ns = |share| {
        let found =
            estimate(outcomes, |run| Some(run.latency_ps.supported_quantile(share)? as f64 / 1e3));
        found.map(|found| {
            let bucket = found.mean * HALF_BUCKET;
            let low = found.low.min(found.mean - bucket);
            let high = found.high.max(found.mean + bucket);
            serde_json::json!({ "mean": found.mean, "low": low, "high": high })
        })
    };
    let station = |(at, station): (usize, &Station)| {
        serde_json::json!({
            "name": station.name,
            "served_per_s": figure(&|run| run.stations[at].done as f64 / run.seconds),
            "load": station.servers.map(|_| figure(&|run| load(station, at, run) / 100.0)),
            "queue_items": figure(&|run| run.stations[at].mean_items),
            "queue_bytes": figure(&|run| run.stations[at].mean_bytes),
            "lost_full_per_s": figure(&|run| run.stations[at].lost_full as f64 / run.seconds),
            "lost_sent_per_s": figure(&|run| run.stations[at].lost_on_way as f64 / run.seconds),
        })
    };
    let source = |(at, source): (usize, &daqmeter_twin::Source)| {
        serde_json::json!({
            "name": source.name,
            "offered_per_s": figure(&|run| run.sources[at].offered as f64 / run.seconds),
            "stopped_per_s": figure(&|run| run.sources[at].stopped as f64 / run.seconds),
            "busy_share": figure(&|run| run.sources[at].busy_share),
        })
    };
    let line = serde_json::json!({
        "title": scenario.title,
        "seed": arguments.seed,
        "replications": outcomes.len(),
        "counted_s": outcomes[0].seconds,
        "items_per_s": figure(&|run| run.left as f64 / run.seconds),
        "bytes_per_s": figure(&|run| run.left_bytes as f64 / run.seconds),
        "latency_p50_ns": quantile_ns(0.5),
        "latency_p99_ns": quantile_ns(0.99),
        "stations": scenario.model.stations.iter().enumerate().map(station).collect::<Vec<_>>(),
        "sources": scenario.model.sources.iter().enumerate().map(source).collect::<Vec<_>>(),
    });
    format!("{line}\n")
}
