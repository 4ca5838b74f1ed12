//! Figures of the study of 2018: time, rate and throughput by timestamps per cycle; time by words.

use daqmeter_record::RunRecord;

use super::cycles::{Cycles, ENGINE, cycles};
use crate::family::of_engine;
use crate::figures::{Axis, Curve, Figure, Plot, curves_of};

const PER_CYCLE: &str = "64-bit timestamps per cycle";
const TIME: Plot = Plot {
    id: "eb-time",
    title: "Etherbone: time to read 8 bytes",
    caption: "Mean time per 64-bit timestamp by the host's clock. Blocking cycles pay one round trip for all their timestamps, convenience \
              functions two for each; pipelined cycles overlap. Dashed: the same bytes without Etherbone, one message at a time, or \
              what the emulated bus or line allows.",
    x: Axis::linear(PER_CYCLE),
    y: Axis::log("us per timestamp"),
};
const RATE: Plot = Plot {
    id: "eb-rate",
    title: "Etherbone: rate of reading 8 bytes",
    caption: "How often a 64-bit timestamp can be read: all of them over all the time.",
    x: Axis::linear(PER_CYCLE),
    y: Axis::log("kHz"),
};
const THROUGHPUT: Plot = Plot {
    id: "eb-throughput",
    title: "Etherbone: throughput of reading 8 bytes",
    caption: "The same in payload bits: 64 for each timestamp, addresses and headers not counted.",
    x: Axis::linear(PER_CYCLE),
    y: Axis::log("Mbit/s"),
};
const WORDS: Plot = Plot {
    id: "eb-words",
    title: "Etherbone: time to read words",
    caption: "A series of cycles (90 in the study): time against the number of 32-bit words read. Where the time does not grow with the \
              words, latency is all there is.",
    x: Axis::linear("32-bit words"),
    y: Axis::log("ms"),
};

fn timestamps(records: &[RunRecord]) -> Vec<Cycles<'_>> {
    let mut points = cycles(records);
    points.retain(|point| point.payload == "timestamps");
    points
}

fn label(point: &Cycles<'_>) -> String {
    format!("{} {}", point.address, point.method)
}

/// Draws a figure over timestamps per cycle, by the time of one, with the raw path as a limit.
fn by_count(records: &[RunRecord], plot: Plot, value: fn(f64) -> f64) -> Option<Figure> {
    let points = timestamps(records);
    let at = |point: &Cycles<'_>, us| (point.count as f64, value(us));
    let mut curves =
        curves_of(points.iter().map(|point| (label(point), at(point, point.item_us()))));
    let blocking = points.iter().filter(|point| point.method == "blocking");
    let limits = curves_of(blocking.filter_map(|point| {
        let limit_us = point.limit_us()?;
        let is_loop = point.address.starts_with("loop/");
        let name = if is_loop { "raw ping-pong" } else { "bus or line" };
        Some((format!("{} {name}", point.address), at(point, limit_us)))
    }));
    curves.extend(limits.into_iter().map(Curve::into_limit));
    plot.curves(curves, of_engine(records, ENGINE))
}

pub(super) fn time(records: &[RunRecord]) -> Option<Figure> {
    by_count(records, TIME, |us| us)
}

pub(super) fn rate(records: &[RunRecord]) -> Option<Figure> {
    by_count(records, RATE, |us| 1e3 / us)
}

pub(super) fn throughput(records: &[RunRecord]) -> Option<Figure> {
    by_count(records, THROUGHPUT, |us| 64.0 / us)
}

pub(super) fn words(records: &[RunRecord]) -> Option<Figure> {
    let points = timestamps(records);
    let curves = curves_of(points.iter().map(|point| {
        let words = 2.0 * point.count as f64 * point.series();
        (label(point), (words, point.cycle_us() * point.series() / 1e3))
    }));
    WORDS.curves(curves, of_engine(records, ENGINE))
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
