//! Block devices and streams: rates by the size of one read or message.

use daqmeter_record::RunRecord;

use crate::family::{Family, Work, of_engine};
use crate::figures::{Axis, Curve, Figure, Plot, add_banded, curve};
use crate::parameters::distinguished;
use crate::rate;
use crate::samples::first_stage;

pub(super) const FAMILY: Family = Family {
    engines: &[("block", Work::Path), ("stream", Work::Path)],
    figures: &[
        |records| by_size(records, "block", "block_bytes", BLOCK),
        |records| by_size(records, "stream", "message_bytes", STREAM),
    ],
    ..Family::EMPTY
};

const BLOCK: Plot = Plot {
    id: "block",
    title: "Storage: reads by block",
    caption: "Sequential reads of one block at a time. Past the page cache: the device. Out of it: a copy by the kernel, with the plain copy as its limit. Nothing is written.",
    x: Axis::log_bytes("block"),
    y: Axis::log("MB/s"),
};
const STREAM: Plot = Plot {
    id: "stream",
    title: "Network: streams by message",
    caption: "TCP on loopback, a thread at each end, and the limit: the one copy of each byte that each end has to make.",
    x: Axis::log_bytes("message"),
    y: Axis::log("MB/s"),
};

fn by_size(records: &[RunRecord], engine: &str, size: &str, plot: Plot) -> Option<Figure> {
    let sized = |record: &&RunRecord| record.workload.int(size).is_ok();
    let drawn: Vec<&RunRecord> = of_engine(records, engine).filter(sized).collect();
    let name = |record: &&RunRecord| {
        first_stage(record).map_or_else(String::new, |stage| stage.name.to_string())
    };
    let names: Vec<String> = drawn.iter().map(name).collect();
    let labels = distinguished(&drawn, &names, &[size]);
    let mut curves = Vec::new();
    for ((record, name), label) in drawn.iter().zip(&names).zip(&labels) {
        let distinction = label.strip_prefix(name.as_str()).unwrap_or_default();
        let bytes = record.workload.int(size).unwrap_or(0) as f64;
        add_stages(&mut curves, record, bytes, distinction);
    }
    plot.curves(curves, drawn)
}

fn add_stages(curves: &mut Vec<Curve>, record: &RunRecord, bytes: f64, distinction: &str) {
    for stage in &record.lanes[0].stages {
        let Some(rate) = rate::of(stage).map(|rate| rate.times(1e-6)) else {
            continue;
        };
        let label = format!("{}{distinction}", stage.name);
        add_banded(curves, &label, (bytes, rate.per_s), rate.interval);
        if let Some(limit) = rate::limit_of(record, stage) {
            let limits = curve(curves, &format!("limit of {label}"));
            limits.limit = true;
            limits.points.push((bytes, limit.rate_bytes_per_s / 1e6));
        }
    }
}
