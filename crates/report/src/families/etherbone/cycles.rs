//! Etherbone cycles as the study of 2018 counts them: per timestamp, by three windows.

use daqmeter_record::units::significant;
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{quantile, sorted, supported_quantile};
use serde::Serialize;

use crate::aligned::numbers_from;
use crate::family::of_engine;
use crate::rate::{self, Doubt, shown_share};
use crate::samples::{first_stage, summary};

/// Engine of these points.
pub(super) const ENGINE: &str = "etherbone";

/// One point, in the study's quantities.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CycleRow {
    /// The slave's address.
    pub address: String,
    /// `convenience`, `blocking` or `pipelined`.
    pub method: String,
    /// `timestamps`, `tlu` or `memory`.
    pub payload: String,
    /// Timestamps or words per cycle.
    pub count: u64,
    /// Cycles measured.
    pub cycles: u64,
    /// Cycles of a series.
    pub series: u64,
    /// Time per cycle by the host's clock: the mean, as all figures of a row but the percentile.
    pub cycle_us: f64,
    /// Time per timestamp, or per cycle of the TLU, or per word, by the host's clock: the mean.
    pub item_us: f64,
    /// 95 % interval of that time.
    pub item_interval_us: Option<(f64, f64)>,
    /// Per timestamp, from a single timestamp before the series to the last of the series: one whole way there and back.
    pub realistic_us: Option<f64>,
    /// Per timestamp, from the first to the last of the series: the stack only between cycles.
    pub underestimated_us: Option<f64>,
    /// Between two timestamps of one cycle.
    pub gap_ns: Option<f64>,
    /// Items per second, in kHz: sustained, all items over all time.
    pub rate_khz: f64,
    /// Payload, in Mbit/s: sustained.
    pub mbit_per_s: f64,
    /// 99th percentile of the round trip; none where cycles overlap, or samples are too few for it.
    pub p99_us: Option<f64>,
    /// Time per item at the limit of the same run.
    pub limit_us: Option<f64>,
    /// Share of the limit that is reached.
    pub fraction: Option<f64>,
    /// Why the share cannot be.
    pub doubt: Option<Doubt>,
    /// How it ended, where it was not done: `failed`.
    pub undone: Option<&'static str>,
}

/// The points among the records that were done and verified, in the order of address, payload, method and count.
pub(crate) fn cycle_rows(records: &[RunRecord]) -> Vec<CycleRow> {
    all_rows(&rate::done(records))
}

/// The same with those that failed.
fn all_rows(records: &[RunRecord]) -> Vec<CycleRow> {
    let mut rows: Vec<CycleRow> = of_engine(records, ENGINE).filter_map(row).collect();
    let rank = |method: &str| {
        ["convenience", "blocking", "pipelined"].iter().position(|known| *known == method)
    };
    let place =
        |row: &CycleRow| (row.address.clone(), row.payload.clone(), rank(&row.method), row.count);
    rows.sort_by_key(place);
    rows
}

fn row(record: &RunRecord) -> Option<CycleRow> {
    let stage: &Stage = first_stage(record)?;
    let summary = summary(stage)?;
    let text = |name: &str| record.workload.text(name).unwrap_or("?").to_owned();
    let payload = text("payload");
    let count = record.workload.int("count").unwrap_or(1);
    let items = if payload == "tlu" { 1 } else { count } as f64;
    let cycles = stage.sample_ns.len() as u64 * stage.ops_per_sample;
    let rate = rate::of(stage)?;
    let cycle_bytes = stage.bytes_per_op.max(1) as f64;
    let us_at = |bytes_per_s: f64| cycle_bytes / bytes_per_s * 1e6;
    let cycle_us = us_at(rate.per_s);
    let window = |name: &str| Some(record.counter(name)? / 1e3 / (cycles as f64 * items));
    let limit = rate::limit_of(record, stage);
    let limit_us =
        limit.map(|limit| stage.bytes_per_op as f64 / limit.rate_bytes_per_s * 1e6 / items);
    let item_us = cycle_us / items;
    let undone = (!rate::is_done(record))
        .then(|| rate::undone(&record.outcome).map_or("failed", |(how, _)| how));
    let share = rate::held(record, stage).map(|held| held.share).filter(|_| undone.is_none());
    Some(CycleRow {
        address: text("address"),
        method: text("method"),
        payload,
        count,
        cycles,
        series: record.workload.int("cycles").unwrap_or(1),
        cycle_us,
        item_us,
        item_interval_us: rate
            .interval
            .map(|(low, high)| (us_at(high) / items, us_at(low) / items)),
        realistic_us: window("eca-window-realistic"),
        underestimated_us: window("eca-window-underestimated"),
        gap_ns: record.counter("eca-in-cycle-gap"),
        rate_khz: 1e3 / item_us,
        mbit_per_s: rate.per_s * 8.0 / 1e6,
        p99_us: summary.p99.filter(|_| stage.ops_per_sample == 1).map(|ns| ns / 1e3),
        limit_us,
        fraction: share.map(|share| share.fraction),
        doubt: share.and_then(Doubt::of),
        undone,
    })
}

/// The points as a table; nothing when there are none.
pub fn cycles_text(records: &[RunRecord]) -> String {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| significant(value, 3));
    let rows = all_rows(records);
    if rows.is_empty() {
        return String::new();
    }
    let rows = rows.into_iter().map(|row| {
        let per_cycle = per_cycle(&row);
        vec![
            row.address,
            row.method,
            per_cycle,
            row.cycles.to_string(),
            number(Some(row.cycle_us)),
            number(row.p99_us),
            number(Some(row.item_us)),
            number(row.realistic_us),
            number(row.underestimated_us),
            number(row.gap_ns),
            significant(row.rate_khz, 4),
            significant(row.mbit_per_s, 3),
            number(row.limit_us),
            row.undone.map_or_else(|| shown_share(row.fraction, row.doubt), str::to_uppercase),
        ]
    });
    numbers_from(
        3,
        &[
            "slave",
            "method",
            "per cycle",
            "cycles",
            "us/cycle",
            "p99",
            "us/item",
            "realistic",
            "underest.",
            "gap [ns]",
            "kHz",
            "Mbit/s",
            "limit us",
            "of limit",
        ],
        rows,
    )
}

/// The distribution of round trips, for the points that time each one; nothing when there are none.
pub fn round_trips_text(records: &[RunRecord]) -> String {
    let mut trips: Vec<(CycleRow, Vec<f64>)> = of_engine(records, ENGINE)
        .filter(|record| rate::is_done(record))
        .filter_map(round_trips)
        .collect();
    if trips.is_empty() {
        return String::new();
    }
    trips.sort_by_key(|(row, _)| (row.address.clone(), row.payload.clone(), row.count));
    let rows = trips.into_iter().map(|(row, samples)| {
        let at = |q: f64| significant(quantile(&samples, q), 3);
        let beyond = |q: f64| {
            supported_quantile(&samples, q).map_or("-".to_owned(), |us| significant(us, 3))
        };
        let (per_cycle, n) = (per_cycle(&row), samples.len().to_string());
        vec![
            row.address,
            per_cycle,
            n,
            at(0.0),
            at(0.5),
            beyond(0.9),
            beyond(0.99),
            beyond(0.999),
            at(1.0),
        ]
    });
    numbers_from(
        2,
        &["round trip [us]", "blocking", "n", "min", "p50", "p90", "p99", "p99.9", "max"],
        rows,
    )
}

/// The times of each cycle in us, where they follow one another: of cycles that overlap no round trip is known.
fn round_trips(record: &RunRecord) -> Option<(CycleRow, Vec<f64>)> {
    let row = row(record).filter(|row| row.method == "blocking")?;
    let stage = first_stage(record).filter(|stage| stage.ops_per_sample == 1)?;
    let samples: Vec<f64> = stage.sample_ns.iter().map(|&ns| ns as f64 / 1e3).collect();
    Some((row, sorted(&samples)))
}

fn per_cycle(row: &CycleRow) -> String {
    match (row.payload.as_str(), row.count) {
        ("tlu", _) => "3 reads, 1 write".to_owned(),
        ("memory", 1) => "1 word".to_owned(),
        ("memory", count) => format!("{count} words"),
        (_, 1) => "1 timestamp".to_owned(),
        (_, count) => format!("{count} timestamps"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use daqmeter_record::{Counter, EngineInfo, Lane, Limit, Workload};

    use super::*;

    /// Ten blocking cycles of two timestamps, 10 us each, beside a ping-pong of 8 us.
    pub(crate) fn example(method: &str, count: u64) -> RunRecord {
        let workload = Workload::new("etherbone")
            .with("address", "loop/udp")
            .with("method", method)
            .with("payload", "timestamps")
            .with("count", count)
            .with("cycles", 10_u64);
        let engine =
            EngineInfo { name: "etherbone".into(), target: "loop/udp".into(), emulated: true };
        let mut record = RunRecord::new(engine, workload);
        record.study = "eb/perf".into();
        record.command = "daqmeter eb perf".into();
        record.limits = vec![Limit::given("raw", 8.0 * count as f64 / 8e-6, "")];
        let stage = Stage {
            name: method.into(),
            bytes_per_op: 8 * count,
            ops_per_sample: 1,
            sample_ns: vec![10_000; 10],
            limit: Some("raw".into()),
            ..Stage::default()
        };
        record.lanes =
            vec![Lane { device: "loop/udp".into(), stages: vec![stage], ..Lane::default() }];
        let counter = |name: &str, value: f64| Counter {
            name: name.into(),
            value,
            unit: "ns".into(),
            share: 1.0,
        };
        record.counters = vec![
            counter("eca-window-realistic", 110_000.0),
            counter("eca-window-underestimated", 90_000.0),
            counter("eca-in-cycle-gap", 64.0),
        ];
        record
    }

    #[test]
    fn the_study_s_quantities_follow_from_the_samples() {
        let row = &cycle_rows(&[example("blocking", 2)])[0];
        assert_eq!((row.cycles, row.cycle_us, row.item_us), (10, 10.0, 5.0));
        assert_eq!((row.realistic_us, row.underestimated_us), (Some(5.5), Some(4.5)));
        assert_eq!((row.rate_khz, row.mbit_per_s), (200.0, 12.8));
        assert!((row.fraction.unwrap() - 0.8).abs() < 1e-12);
    }

    #[test]
    fn rates_are_sustained_and_what_failed_is_marked_and_not_drawn() {
        let mut slow = example("blocking", 1);
        slow.lanes[0].stages[0].sample_ns = vec![10_000, 10_000, 280_000];
        let row = &cycle_rows(&[slow.clone()])[0];
        assert_eq!(
            (row.cycle_us, row.item_us, row.rate_khz, row.mbit_per_s),
            (100.0, 100.0, 10.0, 0.64),
            "all of one statistic: all cycles over all time"
        );
        assert!((row.fraction.unwrap() - 0.08).abs() < 1e-12);
        slow.outcome = daqmeter_record::Outcome::Failed("an answer is missing".into());
        assert!(cycle_rows(std::slice::from_ref(&slow)).is_empty());
        assert!(cycles_text(&[slow]).contains("FAILED"));
    }

    #[test]
    fn the_table_for_people() {
        let records = [example("pipelined", 8), example("blocking", 1)];
        insta::assert_snapshot!(cycles_text(&records) + "\n" + &round_trips_text(&records));
    }
}
