//! Copies between user and kernel: time and rate by size.

use daqmeter_record::RunRecord;

use super::rows::{CopyRow, ENGINE, copy_rows};
use crate::family::of_engine;
use crate::figures::{Axis, Figure, Plot, curves_of};

const LATENCY: Plot = Plot {
    id: "copy-latency",
    title: "Copies: time by size",
    caption: "Median time of one copy between user and kernel. Flat on the left: the cost of asking; rising on the right: the bytes. \
              An engine pays from the size at which its line falls below the CPU's.",
    x: Axis::log_bytes("block"),
    y: Axis::log("median [ns]"),
};
const BANDWIDTH: Plot = Plot {
    id: "copy-bandwidth",
    title: "Copies: all CPUs or channels at once",
    caption: "Sum of the rates of all CPUs or channels that copy at once; MB of 2^20 bytes.",
    x: Axis::log_bytes("block"),
    y: Axis::log("total [MB/s]"),
};

fn by_size(
    records: &[RunRecord],
    plot: Plot,
    keep: fn(&CopyRow) -> bool,
    value: fn(&CopyRow) -> f64,
) -> Option<Figure> {
    let mut rows = copy_rows(records);
    rows.retain(|row| row.load == "light" && keep(row));
    let curves = curves_of(rows.iter().map(|row| {
        let label = format!("{} {}", row.operation(), row.who());
        (label, (row.block_bytes as f64, value(row)))
    }));
    let figure = plot.curves(curves, of_engine(records, ENGINE))?;
    Some(Figure { emulated: rows.iter().any(|row| row.emulated), ..figure })
}

pub(super) fn latency(records: &[RunRecord]) -> Option<Figure> {
    by_size(records, LATENCY, |row| row.lanes_bytes_per_s.len() == 1, |row| row.median_ns)
}

pub(super) fn bandwidth(records: &[RunRecord]) -> Option<Figure> {
    let value = |row: &CopyRow| row.total_bytes_per_s() / 1_048_576.0;
    by_size(records, BANDWIDTH, |row| row.lanes_bytes_per_s.len() > 1, value)
}
