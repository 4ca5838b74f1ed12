//! Rates of block devices and streams by the size of one read or message.

use daqmeter_record::RunRecord;

use super::{Axis, Figure, Kind, add_banded, add_point, join, of_engine, rate_band_mb};

pub(super) fn stream(records: &[RunRecord]) -> Option<Figure> {
    by_size(
        records,
        "stream",
        "message_bytes",
        (
            "stream",
            "Network: streams by message",
            "TCP on loopback, a thread at each end, and the limit: the one copy of each byte that each end has to make.",
        ),
    )
}

pub(super) fn block(records: &[RunRecord]) -> Option<Figure> {
    by_size(
        records,
        "block",
        "block_bytes",
        (
            "block",
            "Storage: reads by block",
            "Sequential reads of one block at a time. Past the page cache: the device. Out of it: a copy by the kernel, with the plain copy as its limit. Nothing is written.",
        ),
    )
}

fn by_size(
    records: &[RunRecord],
    engine: &str,
    parameter: &str,
    (id, title, caption): (&'static str, &str, &str),
) -> Option<Figure> {
    let (mut curves, mut command) = (Vec::new(), None);
    for record in of_engine(records, engine) {
        let Ok(bytes) = record.workload.int(parameter) else {
            continue;
        };
        for stage in &record.lanes[0].stages {
            let Some((rate, band)) = rate_band_mb(stage) else {
                continue;
            };
            command.get_or_insert(record.command.clone());
            add_banded(&mut curves, &stage.name, (bytes as f64, rate), band);
            let limit = stage.limit.as_deref().and_then(|name| record.limit(name));
            if let Some(limit) = limit {
                let label = format!("limit of {}", stage.name);
                add_point(
                    &mut curves,
                    &label,
                    (bytes as f64, limit.rate_bytes_per_s / 1e6),
                );
                curves
                    .iter_mut()
                    .filter(|curve| curve.label == label)
                    .for_each(|curve| curve.limit = true);
            }
        }
    }
    let (xs, series) = join(curves);
    (xs.len() > 1).then(|| Figure {
        id,
        title: title.to_owned(),
        caption: caption.to_owned(),
        kind: Kind::Lines,
        x: Axis::log_bytes(if engine == "stream" {
            "message"
        } else {
            "block"
        }),
        y: Axis {
            label: "MB/s".to_owned(),
            log: true,
            unit: "",
        },
        xs,
        categories: Vec::new(),
        series,
        command: command.unwrap_or_default(),
        emulated: false,
    })
}
