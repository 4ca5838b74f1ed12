//! Copies between user and kernel: time and rate by size, and what a neighbour costs a program.

use daqmeter_record::RunRecord;

use super::{Axis, Curve, Figure, Kind, Series, add_point, bars, join};
use crate::copy::{CopyRow, copy_rows, pollution_rows};

fn label(row: &CopyRow) -> String {
    format!("{} {}", row.operation(), row.who())
}

fn lines(
    records: &[RunRecord],
    (id, title, caption, y): (&'static str, &str, &str, &str),
    keep: impl Fn(&CopyRow) -> bool,
    value: impl Fn(&CopyRow) -> f64,
) -> Option<Figure> {
    let rows: Vec<CopyRow> = copy_rows(records)
        .into_iter()
        .filter(|row| row.load == "light" && keep(row))
        .collect();
    let mut curves: Vec<Curve> = Vec::new();
    for row in &rows {
        add_point(
            &mut curves,
            &label(row),
            (row.block_bytes as f64, value(row)),
        );
    }
    let (xs, series) = join(curves);
    (xs.len() > 1).then(|| Figure {
        id,
        title: title.to_owned(),
        caption: caption.to_owned(),
        kind: Kind::Lines,
        x: Axis::log_bytes("block"),
        y: Axis {
            label: y.to_owned(),
            log: true,
            unit: "",
        },
        xs,
        categories: Vec::new(),
        series,
        command: records
            .iter()
            .find(|record| record.engine.name == "copy")
            .map_or(String::new(), |record| record.command.clone()),
        emulated: rows.iter().any(|row| row.emulated),
    })
}

pub(super) fn latency(records: &[RunRecord]) -> Option<Figure> {
    let caption = "Median time of one copy between user and kernel. Flat on the left: the cost of asking; rising on the right: the bytes. \
                   An engine pays from the size at which its line falls below the CPU's.";
    let texts = (
        "copy-latency",
        "Copies: time by size",
        caption,
        "median [ns]",
    );
    lines(
        records,
        texts,
        |row| row.lanes_bytes_per_s.len() == 1,
        |row| row.median_ns,
    )
}

pub(super) fn bandwidth(records: &[RunRecord]) -> Option<Figure> {
    let caption = "Sum of the rates of all CPUs or channels that copy at once; MB of 2^20 bytes.";
    let texts = (
        "copy-bandwidth",
        "Copies: all CPUs or channels at once",
        caption,
        "total [MB/s]",
    );
    lines(
        records,
        texts,
        |row| row.lanes_bytes_per_s.len() > 1,
        |row| row.total_bytes_per_s() / 1_048_576.0,
    )
}

pub(super) fn pollution(records: &[RunRecord]) -> Option<Figure> {
    let rows = pollution_rows(records);
    let mut places: Vec<(String, String)> = rows
        .iter()
        .filter(|row| !row.simulated)
        .map(|row| (row.test.clone(), row.copies.clone()))
        .collect();
    places.dedup();
    if places.is_empty() {
        return None;
    }
    let of = |(test, copies): &(String, String), neighbour: &str| {
        let found = rows.iter().find(|row| {
            row.test == *test
                && row.copies == *copies
                && row.neighbour == neighbour
                && !row.simulated
        });
        found.and_then(|row| row.p10_ns)
    };
    let series = ["cpu", "dma", "spin", "null-call"]
        .into_iter()
        .map(|neighbour| Series {
            label: neighbour.to_owned(),
            ys: places
                .iter()
                .map(|place| Some(of(place, neighbour)? / of(place, "ideal")?))
                .collect(),
            limit: false,
            band: Vec::new(),
        });
    let series: Vec<Series> = series
        .filter(|series| series.ys.iter().any(Option::is_some))
        .collect();
    let categories = places
        .iter()
        .map(|(test, copies)| format!("{test}, {copies} B"))
        .collect();
    let caption = "Time of a program beside a neighbour over its time alone (10th percentiles). spin and null-call touch no memory: only what \
                   exceeds them is the copies' doing.";
    (!series.is_empty()).then(|| {
        let figure = bars(
            "copy-pollution",
            "What a copying neighbour costs a program",
            caption,
            "time, alone = 1",
            categories,
            series,
        );
        let command = records
            .iter()
            .find(|record| record.engine.name == "pollution")
            .map(|record| record.command.clone());
        Figure {
            command: command.unwrap_or_default(),
            ..figure
        }
    })
}
