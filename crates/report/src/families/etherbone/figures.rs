//! The four figures of the study of 2018: time, rate and throughput by timestamps per cycle; time by words.

use daqmeter_record::RunRecord;

use super::cycles::{CycleRow, ENGINE, cycle_rows};
use crate::family::of_engine;
use crate::figures::{Axis, Curve, Figure, Texts, add_point, has_line, lines};

/// Points of timestamps.
fn timestamps(records: &[RunRecord]) -> Vec<CycleRow> {
    let mut rows = cycle_rows(records);
    rows.retain(|row| row.payload == "timestamps");
    rows
}

fn label(row: &CycleRow) -> String {
    format!("{} {}", row.address, row.method)
}

fn figure(
    records: &[RunRecord],
    texts: Texts,
    x: &str,
    y: &str,
    curves: Vec<Curve>,
) -> Option<Figure> {
    // One point is not a curve.
    has_line(&curves).then(|| {
        let figure = lines(texts, Axis::linear(x), Axis::log(y), curves);
        figure.drawn_from(of_engine(records, ENGINE))
    })
}

/// A figure over timestamps per cycle, with the raw path as a limit.
fn by_count(
    records: &[RunRecord],
    texts: Texts,
    y: &str,
    value: fn(&CycleRow) -> f64,
    of_limit: fn(f64) -> f64,
) -> Option<Figure> {
    let rows = timestamps(records);
    let (mut curves, mut limits): (Vec<Curve>, Vec<Curve>) = (Vec::new(), Vec::new());
    for row in &rows {
        let count = row.count as f64;
        add_point(&mut curves, &label(row), (count, value(row)));
        if let Some(limit_us) = row.limit_us.filter(|_| row.method == "blocking") {
            let is_loop = row.address.starts_with("loop/");
            let name = if is_loop { "raw ping-pong" } else { "bus or line" };
            let label = format!("{} {name}", row.address);
            add_point(&mut limits, &label, (count, of_limit(limit_us)));
        }
    }
    // A limit alone is not a figure.
    if !has_line(&curves) {
        return None;
    }
    curves.extend(limits.into_iter().map(Curve::into_limit));
    figure(records, texts, "64-bit timestamps per cycle", y, curves)
}

pub(super) fn time(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "eb-time",
        title: "Etherbone: time to read 8 bytes",
        caption: "Mean time per 64-bit timestamp by the host's clock. Blocking cycles pay one round trip for all their timestamps, convenience \
                  functions two for each; pipelined cycles overlap. Dashed: the same bytes without Etherbone, one message at a time, or \
                  what the emulated bus or line allows.",
    };
    let value = |row: &CycleRow| row.item_us;
    by_count(records, texts, "us per timestamp", value, |limit_us| limit_us)
}

pub(super) fn rate(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "eb-rate",
        title: "Etherbone: rate of reading 8 bytes",
        caption: "How often a 64-bit timestamp can be read: all of them over all the time.",
    };
    let value = |row: &CycleRow| row.rate_khz;
    by_count(records, texts, "kHz", value, |limit_us| 1e3 / limit_us)
}

pub(super) fn throughput(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "eb-throughput",
        title: "Etherbone: throughput of reading 8 bytes",
        caption: "The same in payload bits: 64 for each timestamp, addresses and headers not counted.",
    };
    let value = |row: &CycleRow| row.mbit_per_s;
    by_count(records, texts, "Mbit/s", value, |limit_us| 64.0 / limit_us)
}

pub(super) fn words(records: &[RunRecord]) -> Option<Figure> {
    let mut curves = Vec::new();
    for row in timestamps(records) {
        let series = row.series as f64;
        let words = 2.0 * row.count as f64 * series;
        let point = (words, row.cycle_us * series / 1e3);
        add_point(&mut curves, &label(&row), point);
    }
    let texts = Texts {
        id: "eb-words",
        title: "Etherbone: time to read words",
        caption: "A series of cycles (90 in the study): time against the number of 32-bit words read. Where the time does not grow with the \
                  words, latency is all there is.",
    };
    figure(records, texts, "32-bit words", "ms", curves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::etherbone::cycles::tests::example;

    #[test]
    fn the_four_figures_of_the_study() {
        let records = [
            example("blocking", 1),
            example("blocking", 2),
            example("pipelined", 1),
            example("pipelined", 2),
        ];
        for make in [time, rate, throughput, words] {
            let figure = make(&records).unwrap();
            assert_eq!(figure.xs.len(), 2, "{}", figure.id);
            assert_eq!(figure.series.iter().filter(|series| !series.limit).count(), 2);
        }
        let limits =
            |figure: Figure| figure.series.into_iter().filter(|series| series.limit).count();
        assert_eq!((limits(time(&records).unwrap()), limits(words(&records).unwrap())), (1, 0));
    }

    #[test]
    fn one_point_makes_no_figure() {
        assert!(time(&[example("blocking", 1)]).is_none() && words(&[]).is_none());
    }
}
