//! Etherbone cycles in the counts of the study of 2018: per timestamp, by three windows.

use daqmeter_record::units::significant;
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{Rate, quantile, sorted, supported_quantile};

use crate::aligned::{TextColumn, table};
use crate::family::of_engine;
use crate::rate;
use crate::samples::{first_stage, summary};

pub(super) const ENGINE: &str = "etherbone";

/// Point in the study's quantities. Times and rates are those of all cycles over all time, by the
/// host's clock.
pub(super) struct Cycles<'a> {
    record: &'a RunRecord,
    stage: &'a Stage,
    pub(super) address: &'a str,
    /// One of `convenience`, `blocking`, `pipelined`.
    pub(super) method: &'a str,
    /// One of `timestamps`, `tlu`, `memory`.
    pub(super) payload: &'a str,
    /// Timestamps or words per cycle.
    pub(super) count: u64,
    /// Items per cycle: one for the TLU.
    pub(super) items: f64,
    pub(super) rate: Rate,
}

/// Returns the points that were done and verified, in the order of address, payload, method and
/// count.
pub(super) fn cycles(records: &[RunRecord]) -> Vec<Cycles<'_>> {
    let mut points = all(records);
    points.retain(|point| rate::is_done(point.record));
    points
}

fn all(records: &[RunRecord]) -> Vec<Cycles<'_>> {
    let mut points: Vec<Cycles<'_>> = of_engine(records, ENGINE).filter_map(Cycles::of).collect();
    let rank = |method: &str| {
        ["convenience", "blocking", "pipelined"].iter().position(|known| *known == method)
    };
    points.sort_by_key(|point| (point.address, point.payload, rank(point.method), point.count));
    points
}

impl Cycles<'_> {
    fn of(record: &RunRecord) -> Option<Cycles<'_>> {
        let stage = first_stage(record)?;
        let text = |name| record.workload.text(name).unwrap_or("?");
        let (payload, count) = (text("payload"), record.workload.int("count").unwrap_or(1));
        Some(Cycles {
            record,
            stage,
            address: text("address"),
            method: text("method"),
            payload,
            count,
            items: if payload == "tlu" { 1.0 } else { count as f64 },
            rate: rate::of(stage)?,
        })
    }

    fn cycles(&self) -> u64 {
        self.stage.sample_ns.len() as u64 * self.stage.ops_per_sample
    }

    /// Returns the time per item in us, at a rate in bytes per second.
    pub(super) fn us(&self, bytes_per_s: f64) -> f64 {
        self.stage.bytes_per_op.max(1) as f64 / bytes_per_s * 1e6 / self.items
    }

    /// Returns the time per timestamp, per cycle of the TLU, or per word.
    pub(super) fn item_us(&self) -> f64 {
        self.us(self.rate.per_s)
    }

    pub(super) fn cycle_us(&self) -> f64 {
        self.item_us() * self.items
    }

    pub(super) fn series(&self) -> f64 {
        self.record.workload.int("cycles").unwrap_or(1) as f64
    }

    pub(super) fn mbit_per_s(&self) -> f64 {
        self.rate.per_s * 8.0 / 1e6
    }

    pub(super) fn limit_us(&self) -> Option<f64> {
        Some(self.us(rate::limit_of(self.record, self.stage)?.rate_bytes_per_s))
    }

    /// Returns the time per item in a window of the device's clock, in us.
    fn window(&self, name: &str) -> Option<f64> {
        Some(self.record.counter(name)? / 1e3 / (self.cycles() as f64 * self.items))
    }

    /// Returns the 99th percentile of the round trip; `None` if cycles overlap, or samples are too
    /// few.
    fn p99_us(&self) -> Option<f64> {
        let p99 = summary(self.stage)?.p99.filter(|_| self.stage.ops_per_sample == 1);
        p99.map(|ns| ns / 1e3)
    }

    fn per_cycle(&self) -> String {
        match (self.payload, self.count) {
            ("tlu", _) => "3 reads, 1 write".to_owned(),
            ("memory", 1) => "1 word".to_owned(),
            ("memory", count) => format!("{count} words"),
            (_, 1) => "1 timestamp".to_owned(),
            (_, count) => format!("{count} timestamps"),
        }
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| significant(value, 3))
}

/// Windows: `realistic` is from a single timestamp before the series to the last of the series, one
/// whole round trip. `underest.` is from the first to the last of the series, with the stack only
/// between cycles. The third is the gap between two timestamps of one cycle.
fn columns<'a>() -> [TextColumn<Cycles<'a>>; 14] {
    [
        ("slave", |point| point.address.to_owned()),
        ("method", |point| point.method.to_owned()),
        ("per cycle", Cycles::per_cycle),
        ("cycles", |point| point.cycles().to_string()),
        ("us/cycle", |point| significant(point.cycle_us(), 3)),
        ("p99", |point| number(point.p99_us())),
        ("us/item", |point| significant(point.item_us(), 3)),
        ("realistic", |point| number(point.window("eca-window-realistic"))),
        ("underest.", |point| number(point.window("eca-window-underestimated"))),
        ("gap [ns]", |point| number(point.record.counter("eca-in-cycle-gap"))),
        ("kHz", |point| significant(1e3 / point.item_us(), 4)),
        ("Mbit/s", |point| significant(point.mbit_per_s(), 3)),
        ("limit us", |point| number(point.limit_us())),
        ("of limit", |point| rate::shown_share_of(point.record, point.stage)),
    ]
}

pub fn cycles_text(records: &[RunRecord]) -> String {
    let points = all(records);
    if points.is_empty() { String::new() } else { table(3, &columns(), &points) }
}

/// Cycles whose times are known one by one, with the times in us: overlapping cycles have no known
/// round trip.
type RoundTrips<'a> = (Cycles<'a>, Vec<f64>);

fn trip_columns<'a>() -> [TextColumn<RoundTrips<'a>>; 9] {
    [
        ("round trip [us]", |(point, _)| point.address.to_owned()),
        ("blocking", |(point, _)| point.per_cycle()),
        ("n", |(_, us)| us.len().to_string()),
        ("min", |(_, us)| significant(quantile(us, 0.0), 3)),
        ("p50", |(_, us)| significant(quantile(us, 0.5), 3)),
        ("p90", |(_, us)| number(supported_quantile(us, 0.9))),
        ("p99", |(_, us)| number(supported_quantile(us, 0.99))),
        ("p99.9", |(_, us)| number(supported_quantile(us, 0.999))),
        ("max", |(_, us)| significant(quantile(us, 1.0), 3)),
    ]
}

pub fn round_trips_text(records: &[RunRecord]) -> String {
    let single = |point: &Cycles<'_>| point.method == "blocking" && point.stage.ops_per_sample == 1;
    let us = |ns: &u64| *ns as f64 / 1e3;
    let trips = cycles(records).into_iter().filter(single).map(|point| {
        let us: Vec<f64> = point.stage.sample_ns.iter().map(us).collect();
        (point, sorted(&us))
    });
    let trips: Vec<RoundTrips<'_>> = trips.collect();
    if trips.is_empty() { String::new() } else { table(2, &trip_columns(), &trips) }
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
        let records = [example("blocking", 2)];
        let point = &cycles(&records)[0];
        assert_eq!((point.cycles(), point.cycle_us(), point.item_us()), (10, 10.0, 5.0));
        let windows = ["eca-window-realistic", "eca-window-underestimated"];
        assert_eq!(windows.map(|name| point.window(name)), [Some(5.5), Some(4.5)]);
        assert_eq!((point.limit_us(), point.mbit_per_s()), (Some(4.0), 12.8));
        assert!(cycles_text(&records).contains("0.80"));
    }

    #[test]
    fn rates_are_sustained_and_what_failed_is_marked_and_not_drawn() {
        let mut slow = example("blocking", 1);
        slow.lanes[0].stages[0].sample_ns = vec![10_000, 10_000, 280_000];
        let records = [slow.clone()];
        let point = &cycles(&records)[0];
        assert_eq!(
            (point.cycle_us(), point.item_us(), point.mbit_per_s()),
            (100.0, 100.0, 0.64),
            "all of one statistic: all cycles over all time"
        );
        assert!(cycles_text(&records).contains("  0.08"));
        slow.outcome = daqmeter_record::Outcome::Failed("an answer is missing".into());
        assert!(cycles(std::slice::from_ref(&slow)).is_empty());
        assert!(cycles_text(&[slow]).contains("FAILED"));
    }

    #[test]
    fn the_table_for_people() {
        let records = [example("pipelined", 8), example("blocking", 1)];
        insta::assert_snapshot!(cycles_text(&records) + "\n" + &round_trips_text(&records));
    }
}
