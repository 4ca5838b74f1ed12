//! Raw samples in the order of measurement, which shows drift, periods and outliers.

use daqmeter_record::{RunRecord, Stage};

use super::all;
use crate::families::functions::short;
use crate::figures::{Axis, ChartKind, Curve, Figure, Plot};
use crate::samples::stages;

const TRACE: Plot = Plot {
    id: "trace",
    title: "Every sample",
    caption: "Time of each operation in the order in which they were done. None is dropped; a slope is drift, a comb is \
              somebody else's timer.",
    x: Axis::linear("operation"),
    y: Axis::linear("ms per operation"),
};

/// Points per curve that a browser draws at once; longer runs are thinned to the extremes of equal
/// parts.
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
    let figure = TRACE.curves(curves.collect(), [record])?;
    Some(Figure { kind: ChartKind::Points, ..figure })
}

fn thinned(stage: &Stage) -> Vec<(f64, f64)> {
    let part = stage.sample_ns.len().div_ceil(MAX_POINTS / 2).max(1);
    let samples: Vec<(usize, u64)> = stage.sample_ns.iter().copied().enumerate().collect();
    let extremes = samples.chunks(part).flat_map(|samples| {
        let by_time = |sample: &&(usize, u64)| sample.1;
        let [low, high] = [samples.iter().min_by_key(by_time), samples.iter().max_by_key(by_time)];
        let mut pair: Vec<_> = low.into_iter().chain(high).copied().collect();
        pair.sort_unstable();
        pair.dedup();
        pair
    });
    let ms = |ns: u64| ns as f64 / stage.ops_per_sample.max(1) as f64 * 1e-6;
    extremes.map(|(at, ns)| (at as f64, ms(ns))).collect()
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
