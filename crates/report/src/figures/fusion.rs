//! Read-out and conversion, one after the other or fused block by block.

use daqmeter_record::{RunRecord, Stage};

use super::{Axis, Curve, Figure, Kind, join, of_engine};

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let mut fused = Vec::new();
    let mut unfused = None;
    let mut command = None;
    let mut emulated = false;
    for record in of_engine(records, "digitizer").filter(|record| record.study.contains("fusion")) {
        let stages: Vec<&Stage> = record.lanes[0]
            .stages
            .iter()
            .filter(|stage| stage.bytes_per_op > 0)
            .collect();
        let ns: Option<f64> = stages.iter().map(|stage| crate::rate::mean_ns(stage)).sum();
        let Some(ns) = ns.filter(|&ns| ns > 0.0) else {
            continue;
        };
        let rate = stages[0].bytes_per_op as f64 / ns * 1e3;
        emulated |= record.engine.emulated;
        command.get_or_insert(record.command.clone());
        match record.workload.int("block_bytes") {
            Ok(block_bytes) if block_bytes > 0 => fused.push((block_bytes as f64, rate)),
            _ => unfused = Some(rate),
        }
    }
    fused.sort_by(|a, b| a.0.total_cmp(&b.0));
    let straight = unfused.map(|rate| {
        fused
            .iter()
            .map(|(block_bytes, _)| (*block_bytes, rate))
            .collect::<Vec<_>>()
    });
    let mut curves = vec![Curve::new("fused", fused)];
    curves.extend(straight.map(|points| Curve::new("one after the other", points).into_limit()));
    let (xs, series) = join(curves);
    (!xs.is_empty()).then(|| Figure {
        id: "fusion",
        title: "Read-out and conversion, fused".to_owned(),
        caption: "Read-out and cast of 6 MB by one thread, over all the time. In blocks that stay in a near cache the converter finds its samples \
                  there; which block is best depends on the caches. Blocks of the driver's 4 MiB gain nothing."
            .to_owned(),
        kind: Kind::Lines,
        x: Axis::log_bytes("block"),
        y: Axis::linear("MB/s raw, read out and converted"),
        xs,
        categories: Vec::new(),
        series,
        command: command.unwrap_or_default(),
        emulated,
    })
}
