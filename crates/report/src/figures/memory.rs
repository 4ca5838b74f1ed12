//! Memory rates against footprint: the roof of everything else.

use daqmeter_record::RunRecord;

use super::{Axis, Figure, Kind, add_banded, join, of_engine, rate_band_mb};

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let mut curves = Vec::new();
    let mut command = None;
    for record in of_engine(records, "memory") {
        let int = |name: &str| record.workload.int(name).ok();
        let (Some(bytes), Some(reads), Some(writes)) =
            (int("read_bytes"), int("read_lines"), int("write_lines"))
        else {
            continue;
        };
        let label = match (reads, writes) {
            (_, 0) => "read".to_owned(),
            (1, 1) => "copy".to_owned(),
            _ => format!("{reads} read : {writes} written"),
        };
        // The best store of each point: that is the limit.
        let rates = record.lanes[0].stages.iter().filter_map(rate_band_mb);
        let Some((rate, band)) = rates.reduce(|a, b| if b.0 > a.0 { b } else { a }) else {
            continue;
        };
        let moved = 1.0 + writes as f64 / reads.max(1) as f64;
        command.get_or_insert(record.command.clone());
        add_banded(
            &mut curves,
            &label,
            (bytes as f64 * moved, rate * moved),
            band.map(|(low, high)| (low * moved, high * moved)),
        );
    }
    curves.sort_by(|a, b| a.label.cmp(&b.label));
    let (xs, series) = join(curves);
    (xs.len() > 1).then(|| Figure {
        id: "memory",
        title: "Memory: the limit under everything".to_owned(),
        caption: "Bytes read and written together, best of all kinds of stores, one thread. The steps are the caches; a stage \
                  can be no faster than the curve of its own ratio at its own footprint."
            .to_owned(),
        kind: Kind::Lines,
        x: Axis::log_bytes("footprint"),
        y: Axis { label: "MB/s read + written".to_owned(), log: true, unit: "" },
        xs,
        categories: Vec::new(),
        series,
        command: command.unwrap_or_default(),
        emulated: false,
    })
}
