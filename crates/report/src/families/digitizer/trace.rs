//! Raw samples in the order in which they were taken: drift, periods and outliers are seen at once.

use daqmeter_record::{RunRecord, Stage};

use super::records::all;
use crate::families::functions::short;
use crate::figures::{Axis, Curve, Figure, Kind, Texts, lines};
use crate::samples::stages;

/// Points per curve that a browser draws in an instant; longer runs are thinned to the extremes of equal parts.
const MAX_POINTS: usize = 2000;

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let samples =
        |record: &RunRecord| -> usize { stages(record).map(|stage| stage.sample_ns.len()).sum() };
    let record = all(records).max_by_key(|record| (record.lanes.len(), samples(record)))?;
    let is_drawn = |stage: &&Stage| stage.bytes_per_op > 0 && stage.sample_ns.len() > 1;
    let curves = record.lanes.iter().flat_map(|lane| {
        lane.stages.iter().filter(is_drawn).map(|stage| {
            let label = format!("{} {}", lane.device, short(&stage.name));
            Curve::new(label, thinned(stage))
        })
    });
    let texts = Texts {
        id: "trace",
        title: "Every sample",
        caption: "Time of each operation in the order in which they were done. None is dropped; a slope is drift, a comb is \
                  somebody else's timer.",
    };
    let (x, y) = (Axis::linear("operation"), Axis::linear("ms per operation"));
    let figure = Figure { kind: Kind::Points, ..lines(texts, x, y, curves.collect()) };
    (!figure.xs.is_empty()).then(|| figure.drawn_from([record]))
}

fn thinned(stage: &Stage) -> Vec<(f64, f64)> {
    let ms = |ns: u64| ns as f64 / stage.ops_per_sample.max(1) as f64 * 1e-6;
    let part = stage.sample_ns.len().div_ceil(MAX_POINTS / 2);
    if part <= 1 {
        return stage.sample_ns.iter().enumerate().map(|(at, &ns)| (at as f64, ms(ns))).collect();
    }
    let mut points = Vec::new();
    for (number, samples) in stage.sample_ns.chunks(part).enumerate() {
        let first = number * part;
        let by_time = || samples.iter().enumerate();
        let (low, high) =
            (by_time().min_by_key(|(_, ns)| **ns), by_time().max_by_key(|(_, ns)| **ns));
        let mut pair: Vec<_> =
            low.into_iter().chain(high).map(|(at, &ns)| ((first + at) as f64, ms(ns))).collect();
        pair.sort_by(|a, b| a.0.total_cmp(&b.0));
        pair.dedup_by(|a, b| a.0 == b.0);
        points.extend(pair);
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_extremes() {
        let mut sample_ns = vec![1_000_000; 50_000];
        sample_ns[31_234] = 9_000_000;
        let stage = Stage { sample_ns, ops_per_sample: 1, ..Stage::default() };
        let points = thinned(&stage);
        assert!(points.len() <= MAX_POINTS + 2);
        assert!(points.contains(&(31_234.0, 9.0)));
    }
}
