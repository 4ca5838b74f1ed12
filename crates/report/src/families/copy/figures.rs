//! Copies between user and kernel: time and rate by size.

use daqmeter_record::RunRecord;

use super::rows::{CopyRow, ENGINE, copy_rows};
use crate::family::of_engine;
use crate::figures::{Axis, Figure, Texts, add_point, lines};

fn by_size(
    records: &[RunRecord],
    texts: Texts,
    y: &str,
    keep: impl Fn(&CopyRow) -> bool,
    value: impl Fn(&CopyRow) -> f64,
) -> Option<Figure> {
    let mut rows = copy_rows(records);
    rows.retain(|row| row.load == "light" && keep(row));
    let mut curves = Vec::new();
    for row in &rows {
        let label = format!("{} {}", row.operation(), row.who());
        add_point(&mut curves, &label, (row.block_bytes as f64, value(row)));
    }
    let figure = lines(texts, Axis::log_bytes("block"), Axis::log(y), curves);
    (figure.xs.len() > 1).then(|| Figure {
        emulated: rows.iter().any(|row| row.emulated),
        ..figure.drawn_from(of_engine(records, ENGINE))
    })
}

pub(super) fn latency(records: &[RunRecord]) -> Option<Figure> {
    let caption = "Median time of one copy between user and kernel. Flat on the left: the cost of asking; rising on the right: the bytes. \
                   An engine pays from the size at which its line falls below the CPU's.";
    let texts = Texts { id: "copy-latency", title: "Copies: time by size", caption };
    by_size(
        records,
        texts,
        "median [ns]",
        |row| row.lanes_bytes_per_s.len() == 1,
        |row| row.median_ns,
    )
}

pub(super) fn bandwidth(records: &[RunRecord]) -> Option<Figure> {
    let caption = "Sum of the rates of all CPUs or channels that copy at once; MB of 2^20 bytes.";
    let texts =
        Texts { id: "copy-bandwidth", title: "Copies: all CPUs or channels at once", caption };
    by_size(
        records,
        texts,
        "total [MB/s]",
        |row| row.lanes_bytes_per_s.len() > 1,
        |row| row.total_bytes_per_s() / 1_048_576.0,
    )
}
