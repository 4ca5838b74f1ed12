//! Cached against non-temporal stores, by footprint.

use daqmeter_record::RunRecord;

use super::{Axis, Figure, Kind, add_point, join, of_engine, rate_mb};

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let mut curves = Vec::new();
    let mut command = None;
    for record in of_engine(records, "convert").filter(|record| record.study.contains("stores")) {
        let (Ok(store), Ok(samples)) = (record.workload.text("store"), record.workload.int("samples")) else {
            continue;
        };
        let Some(rate) = rate_mb(&record.lanes[0].stages[0]) else { continue };
        command.get_or_insert(record.command.clone());
        // Cast: 2 bytes read and 4 written per sample.
        add_point(&mut curves, store, (samples as f64 * 6.0, rate));
    }
    curves.sort_by(|a, b| a.label.cmp(&b.label));
    let (xs, series) = join(curves);
    (!xs.is_empty()).then(|| Figure {
        id: "stores",
        title: "Stores: through the caches or around them".to_owned(),
        caption: "Cast to float by one thread. Non-temporal stores lose while the result fits into the caches and win beyond; \
                  daqmeter chooses by footprint."
            .to_owned(),
        kind: Kind::Lines,
        x: Axis::log_bytes("footprint, raw + converted"),
        y: Axis::linear("MB/s raw"),
        xs,
        categories: Vec::new(),
        series,
        command: command.unwrap_or_default(),
        emulated: false,
    })
}
