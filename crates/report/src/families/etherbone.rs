//! Etherbone: cycles in the counts of the study of 2018, per timestamp and by three windows; its
//! figures; the cost of reading a register.

use daqmeter_record::units::{percent, plural, significant, whole};
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::{Rate, quantile, share_interval, sorted, supported_quantile};

use crate::aligned::{MAX_ROWS, TextColumn, asks_all, number, table, table_without};
use crate::family::{Brief, Family, WORTH_A_CHANGE, Work, of_engine};
use crate::faults::{faults_and_ledgers, labelled};
use crate::figures::{Mark, Plot};
use crate::frame::Frame;
use crate::rate;
use crate::samples::{first_stage, median_ns, summary};

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Sockets), ("pingpong", Work::Sockets)],
    plots: &[
        Plot { id: "eb-time", marks: |records| by_count(records, |us| us) },
        Plot { id: "eb-rate", marks: |records| by_count(records, |us| 1e3 / us) },
        Plot { id: "eb-throughput", marks: |records| by_count(records, |us| 64.0 / us) },
        Plot { id: "eb-words", marks: by_words },
    ],
    questions: &[("What does reading registers over Etherbone cost?", Some("eb-time"), headline)],
    briefs: &[round_trip, pipeline],
    headline,
    ..Family::EMPTY
};

const ENGINE: &str = "etherbone";

/// Returns lost and issued cycles of a record that lost some.
pub fn lost(record: &RunRecord) -> Option<(u64, u64)> {
    let ledger = record.ledgers.first().filter(|_| record.engine.name == ENGINE)?;
    (ledger.lost() > 0).then(|| (ledger.lost(), ledger.issued.max(ledger.lost())))
}

/// Writes the share of lost cycles in per cent, with its interval. Cycles of one datagram are lost
/// together, so that as many events are counted as datagrams.
fn shown_lost(record: &RunRecord) -> String {
    lost(record).map_or("0".to_owned(), |(lost, issued)| {
        let together = record.counter("cycles-per-datagram").map_or(1, whole).max(1);
        let (low, high) = share_interval(lost.div_ceil(together), issued.div_ceil(together));
        let [share, low, high] =
            [lost as f64 / issued as f64, low, high].map(|share| percent(share, 2));
        format!("{share} ({low} - {high})")
    })
}

fn timestamps(records: &[RunRecord]) -> Vec<Cycles<'_>> {
    let mut points = cycles(records);
    points.retain(|point| rate::is_done(point.record) && point.payload == "timestamps");
    points
}

fn label(point: &Cycles<'_>) -> String {
    format!("{} {}", point.address, point.method)
}

/// Draws a value of the time of one timestamp, with the raw path as a limit.
fn by_count(records: &[RunRecord], value: fn(f64) -> f64) -> Vec<Mark<'_>> {
    let mut marks = Vec::new();
    for point in timestamps(records) {
        let count = point.count as f64;
        marks.push(Mark::at(point.record, label(&point), count, value(point.item_us())));
        let limit = point.limit_us().filter(|_| point.method == "blocking");
        marks.extend(limit.map(|us| {
            let is_loop = point.address.starts_with("loop/");
            let name = if is_loop { "raw ping-pong" } else { "bus or line" };
            let series = format!("{} {name}", point.address);
            Mark::at(point.record, series, count, value(us)).into_limit()
        }));
    }
    marks
}

fn by_words(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let marks = timestamps(records).into_iter().map(|point| {
        let series = point.record.workload.int("cycles").unwrap_or(1) as f64;
        let (words, ms) = (2.0 * point.count as f64 * series, point.cycle_us() * series / 1e3);
        Mark::at(point.record, label(&point), words, ms)
    });
    marks.collect()
}

fn fastest<'a, 'b>(points: &'b [Cycles<'a>]) -> Option<&'b Cycles<'a>> {
    points.iter().min_by(|a, b| a.item_us().total_cmp(&b.item_us()))
}

/// Answers with the time of the smallest blocking cycle and of the fastest item.
fn headline(records: &[RunRecord]) -> Option<String> {
    let mut points = cycles(records);
    let address = points.iter().map(|point| point.address).max_by_key(|at| *at == "loop/udp")?;
    points.retain(|point| point.address == address);
    let smallest = points.iter().min_by_key(|point| (point.method != "blocking", point.count))?;
    let said = |point: &Cycles<'_>| {
        let (us, share) = (significant(point.item_us(), 3), rate::held(point.record, point.stage));
        let of = share.map_or(String::new(), |share| {
            format!(" ({} of the limit)", rate::shown_share(Some(share)))
        });
        format!("{us} us {}, {} a cycle{of}", point.method, point.count)
    };
    let first = said(smallest);
    let item = if smallest.payload == "memory" { "a word" } else { "a timestamp" };
    let best = fastest(&points).map(said).filter(|best| *best != first);
    let best = best.map_or(String::new(), |best| format!("; at best {best}"));
    Some(match smallest.payload {
        "tlu" => format!("{address}: a TLU cycle takes {first}"),
        _ => format!("{address}: {item} takes {first}{best}"),
    })
}

/// Compares the blocking reads of the fewest timestamps over UDP with the fastest pipelined ones.
fn pipeline(records: &[RunRecord]) -> Option<Brief> {
    let all = timestamps(records).into_iter().filter(|point| point.address == "loop/udp");
    let (pipelined, others): (Vec<_>, Vec<_>) = all.partition(|point| point.method == "pipelined");
    let blocking = others.iter().filter(|point| point.method == "blocking");
    let before = blocking.min_by_key(|point| point.count)?.item_us();
    let best = fastest(&pipelined)?;
    (before > best.item_us() * WORTH_A_CHANGE).then(|| Brief::Change {
        what: format!("read registers {} a cycle, without waiting for each", best.count),
        gain: format!("{} us -> {} us", significant(before, 3), significant(best.item_us(), 3)),
    })
}

/// Returns the round trip of a raw message over UDP, with both ends on one CPU and on two.
fn round_trip(records: &[RunRecord]) -> Option<Brief> {
    let points = of_engine(records, "pingpong").filter(|record| {
        let text = |name| record.workload.text(name);
        record.role.is_point() && text("transport") == Ok("udp")
    });
    let us = |is_apart: bool| {
        let mut of_kind = points.clone().filter(|record| {
            let peer = record.workload.int("peer_cpu").ok();
            let own = record.lanes[0].requested_cpu.map(u64::from);
            is_apart == (peer.is_some() && peer != own)
        });
        let median_ns = summary(first_stage(of_kind.next()?)?)?.median;
        Some(significant(median_ns / 1e3, 3))
    };
    let one = us(false)?;
    let two = us(true).map_or(String::new(), |us| format!(", {us} us between two"));
    Some(Brief::Host(format!("UDP round trip {one} us on one CPU{two}")))
}

/// Point in the study's quantities. Times and rates are those of all cycles over all time, by the
/// host's clock.
struct Cycles<'a> {
    record: &'a RunRecord,
    stage: &'a Stage,
    address: &'a str,
    /// One of `convenience`, `blocking`, `pipelined`.
    method: &'a str,
    /// One of `timestamps`, `tlu`, `memory`.
    payload: &'a str,
    /// Timestamps or words per cycle.
    count: u64,
    rate: Rate,
}

/// Returns the points in the order of address, payload, method and count.
fn cycles(records: &[RunRecord]) -> Vec<Cycles<'_>> {
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
        Some(Cycles {
            record,
            stage,
            address: text("address"),
            method: text("method"),
            payload: text("payload"),
            count: record.workload.int("count").unwrap_or(1),
            rate: stage.rate()?,
        })
    }

    fn cycles(&self) -> u64 {
        self.stage.sample_ns.len() as u64 * self.stage.ops_per_sample
    }

    /// Returns the items per cycle: one for the TLU.
    fn items(&self) -> f64 {
        if self.payload == "tlu" { 1.0 } else { self.count as f64 }
    }

    /// Returns the time per item in us, at a rate in bytes per second.
    fn us(&self, bytes_per_s: f64) -> f64 {
        self.stage.bytes_per_op.max(1) as f64 / bytes_per_s * 1e6 / self.items()
    }

    /// Returns the time per timestamp, per cycle of the TLU, or per word.
    fn item_us(&self) -> f64 {
        self.us(self.rate.per_s)
    }

    fn cycle_us(&self) -> f64 {
        self.item_us() * self.items()
    }

    fn limit_us(&self) -> Option<f64> {
        Some(self.us(rate::limit_of(self.record, self.stage)?.rate_bytes_per_s))
    }

    /// Returns the time per item in a window of the device's clock, in us.
    fn window(&self, name: &str) -> Option<f64> {
        Some(self.record.counter(name)? / 1e3 / (self.cycles() as f64 * self.items()))
    }

    fn per_cycle(&self) -> String {
        match self.payload {
            "tlu" => "3 reads, 1 write".to_owned(),
            "memory" => plural(self.count, "word"),
            _ => plural(self.count, "timestamp"),
        }
    }
}

/// Cycles are those of samples without a loss, and all times and windows are theirs. Windows:
/// `realistic` is from a single timestamp before the series to the last of the series, one
/// whole round trip. `underest.` is from the first to the last of the series, with the stack only
/// between cycles. The third is the gap between two timestamps of one cycle.
fn columns<'a>() -> [TextColumn<Cycles<'a>>; 15] {
    [
        ("slave", |point| point.address.to_owned()),
        ("method", |point| point.method.to_owned()),
        ("per cycle", Cycles::per_cycle),
        ("cycles", |point| point.cycles().to_string()),
        ("lost [%]", |point| shown_lost(point.record)),
        ("us/cycle", |point| significant(point.cycle_us(), 3)),
        // Cycles that overlap have no round trip of one.
        ("p99", |point| {
            let p99 = summary(point.stage).and_then(|times| times.p99);
            number(p99.filter(|_| point.stage.ops_per_sample == 1).map(|ns| ns / 1e3), 3)
        }),
        ("us/item", |point| significant(point.item_us(), 3)),
        ("realistic", |point| number(point.window("eca-window-realistic"), 3)),
        ("underest.", |point| number(point.window("eca-window-underestimated"), 3)),
        ("gap [ns]", |point| number(point.record.counter("eca-in-cycle-gap"), 3)),
        ("kHz", |point| significant(1e3 / point.item_us(), 4)),
        ("Mbit/s", |point| significant(point.rate.per_s * 8e-6, 3)),
        ("limit us", |point| number(point.limit_us(), 3)),
        ("of limit", |point| rate::shown_share_of(point.record, point.stage)),
    ]
}

/// Columns that a narrow table leaves out, the least important first.
const SPARE: [&str; 7] =
    ["gap [ns]", "underest.", "realistic", "limit us", "Mbit/s", "us/cycle", "cycles"];

/// Shows the cycles, of which a narrow choice has powers of two of items; with `--all` each, and
/// the round trips.
pub fn cycles_shown(records: &[RunRecord]) -> Frame {
    let notes = labelled(records, faults_and_ledgers);
    let mut points = cycles(records);
    let all = points.len();
    if all > MAX_ROWS && !asks_all() {
        points.retain(|point| point.count.is_power_of_two());
    }
    let left = plural((all - points.len()) as u64, "more row");
    let left = if all > points.len() {
        format!(" {left}, and round trips: --all\n")
    } else {
        String::new()
    };
    let trips = if asks_all() { round_trips(records) } else { String::new() };
    let between = if trips.is_empty() { "" } else { "\n" };
    let table = table_without(3, &columns(), &SPARE, &points);
    let mut frame = Frame::of(table + &left + between + &trips, notes);
    frame.answer.extend(longer_packets(records));
    frame
}

/// Predicts the rate of the longest packets of LiteX from the round trips of shorter ones: a time
/// for each packet, and one for each of its words, by least squares.
fn longer_packets(records: &[RunRecord]) -> Option<String> {
    const MAX_WORDS: f64 = 255.0;
    let is_litex = |record: &&RunRecord| record.workload.flag("litex") && rate::is_done(record);
    let point = |record: &RunRecord| {
        let us = median_ns(first_stage(record)?)? / 1e3;
        Some((record.workload.int("count").ok()? as f64, us))
    };
    let points: Vec<(f64, f64)> = records.iter().filter(is_litex).filter_map(point).collect();
    let n = points.len() as f64;
    let [words, us] = [0, 1].map(|at| points.iter().map(|&(w, us)| [w, us][at]).sum::<f64>() / n);
    let spread: f64 = points.iter().map(|(w, _)| (w - words).powi(2)).sum();
    let common: f64 = points.iter().map(|(w, t)| (w - words) * (t - us)).sum();
    let &(most, at_most_us) = points.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let word_us = (common / spread).max(0.0);
    let packet_us = us - word_us * words;
    if spread == 0.0 || packet_us <= 0.0 {
        return None;
    }
    let rate = |words: f64, us: f64| significant(4.0 * words / us, 2);
    let [packet, word] = [packet_us, word_us].map(|us| significant(us, 3));
    let now = format!(
        "{most} words in {} us: {} MB/s",
        significant(at_most_us, 3),
        rate(most, at_most_us)
    );
    let longest = rate(MAX_WORDS, packet_us + MAX_WORDS * word_us);
    let then = format!("packets of 255 words would give {longest}");
    let why = format!("a packet takes {packet} us and {word} us for each word");
    Some(if most < MAX_WORDS { format!("{now}; {then} ({why})") } else { format!("{now} ({why})") })
}

/// Cycles whose times are known one by one, with the times in us: overlapping cycles have no known
/// round trip.
type RoundTrips<'a> = (Cycles<'a>, Vec<f64>);

fn round_trips(records: &[RunRecord]) -> String {
    let single = |point: &Cycles<'_>| {
        let is_single = point.method == "blocking" && point.stage.ops_per_sample == 1;
        is_single && rate::is_done(point.record)
    };
    let trips = cycles(records).into_iter().filter(single).map(|point| {
        let us: Vec<f64> = point.stage.sample_ns.iter().map(|ns| *ns as f64 / 1e3).collect();
        (point, sorted(&us))
    });
    let trips: Vec<RoundTrips<'_>> = trips.collect();
    let columns: [TextColumn<RoundTrips<'_>>; 9] = [
        ("round trip [us]", |(point, _)| point.address.to_owned()),
        ("blocking", |(point, _)| point.per_cycle()),
        ("n", |(_, us)| us.len().to_string()),
        ("min", |(_, us)| number(quantile(us, 0.0), 3)),
        ("p50", |(_, us)| number(quantile(us, 0.5), 3)),
        ("p90", |(_, us)| number(supported_quantile(us, 0.9), 3)),
        ("p99", |(_, us)| number(supported_quantile(us, 0.99), 3)),
        ("p99.9", |(_, us)| number(supported_quantile(us, 0.999), 3)),
        ("max", |(_, us)| number(quantile(us, 1.0), 3)),
    ];
    table(2, &columns, &trips)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{Counter, Ledger, Workload};

    use super::*;
    use crate::examples;

    /// Ten blocking cycles of two timestamps, 10 us each, beside a ping-pong of 8 us.
    fn example(method: &str, count: u64) -> RunRecord {
        let workload = Workload::new("etherbone")
            .with("address", "loop/udp")
            .with("method", method)
            .with("payload", "timestamps")
            .with("count", count)
            .with("cycles", 10_u64);
        let mut record = examples::record("etherbone", workload, "eb/perf", method, 10_000);
        record.limits[0].rate_bytes_per_s = 8.0 * count as f64 / 8e-6;
        let stage = &mut record.lanes[0].stages[0];
        (stage.bytes_per_op, stage.sample_ns) = (8 * count, vec![10_000; 10]);
        let counters = [
            ("eca-window-realistic", 110_000),
            ("eca-window-underestimated", 90_000),
            ("eca-in-cycle-gap", 64),
        ];
        record.counters = counters.map(|(name, ns)| Counter::count(name, ns)).into();
        record
    }

    #[test]
    fn the_study_s_quantities_follow_from_the_samples() {
        let records = [example("blocking", 2)];
        let point = &cycles(&records)[0];
        assert_eq!((point.cycles(), point.cycle_us(), point.item_us()), (10, 10.0, 5.0));
        let windows = ["eca-window-realistic", "eca-window-underestimated"];
        assert_eq!(windows.map(|name| point.window(name)), [Some(5.5), Some(4.5)]);
        assert_eq!((point.limit_us(), point.rate.per_s), (Some(4.0), 1.6e6));
        assert!(cycles_shown(&records).tables.contains("0.80"));
    }

    #[test]
    fn rates_are_sustained_and_what_failed_is_marked_and_not_drawn() {
        let mut slow = example("blocking", 1);
        slow.lanes[0].stages[0].sample_ns = vec![10_000, 10_000, 280_000];
        let records = [slow.clone()];
        let point = &cycles(&records)[0];
        // All of one statistic: all cycles over all time.
        assert_eq!((point.cycle_us(), point.item_us()), (100.0, 100.0));
        assert!(cycles_shown(&records).tables.contains("  0.08"));
        slow.outcome = daqmeter_record::Outcome::Failed("an answer is missing".into());
        assert!(timestamps(std::slice::from_ref(&slow)).is_empty());
        assert!(cycles_shown(&[slow]).tables.contains("FAILED"));
    }

    #[test]
    fn the_table_for_people() {
        let mut lossy = example("blocking", 1);
        let mut ledger = Ledger { issued: 990, delivered: 989, ..Ledger::new("cycles") };
        ledger.lose("timeout", 1);
        lossy.ledgers.push(ledger);
        let records = [example("pipelined", 8), lossy];
        insta::assert_snapshot!(cycles_shown(&records).text(None) + "\n" + &round_trips(&records));
    }

    #[test]
    fn the_four_figures_of_the_study() {
        let points = [("blocking", 1), ("blocking", 2), ("pipelined", 1), ("pipelined", 2)];
        let records = points.map(|(method, count)| example(method, count));
        for (plot, limits) in FAMILY.plots.iter().zip([1, 1, 1, 0]) {
            let figure = plot.draw(&records).unwrap();
            let found = figure.series.iter().filter(|series| series.limit).count();
            assert_eq!((figure.xs.len(), found, figure.series.len()), (2, limits, 2 + limits));
            assert!(plot.draw(&records[..1]).is_none());
        }
    }
}
