//! Cached against non-temporal stores, by footprint.

use daqmeter_record::RunRecord;

use super::{Axis, Figure, Kind, join, of_engine, rate_mb};

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let mut curves: Vec<(String, bool, Vec<(f64, f64)>)> = Vec::new();
    let mut command = None;
    for record in of_engine(records, "convert").filter(|record| record.study.contains("stores")) {
        let (Ok(store), Ok(samples)) = (record.workload.text("store"), record.workload.int("samples")) else {
            continue;
        };
        let Some(rate) = rate_mb(&record.lanes[0].stages[0]) else { continue };
        command.get_or_insert(record.command.clone());
        // Cast: 2 bytes read and 4 written per sample.
        let point = (samples as f64 * 6.0, rate);
        match curves.iter_mut().find(|(known, ..)| known == store) {
            Some((.., points)) => points.push(point),
            None => curves.push((store.to_owned(), false, vec![point])),
        }
    }
    curves.sort_by(|a, b| a.0.cmp(&b.0));
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
