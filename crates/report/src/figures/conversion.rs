//! Conversion rates beside their limits.

use daqmeter_record::RunRecord;

use super::{Figure, Series, bars, of_engine, rate_band_mb};
use crate::rows::short;

pub(super) fn figure(records: &[RunRecord]) -> Option<Figure> {
    let mut points = Vec::new();
    let mut command = None;
    for record in of_engine(records, "convert").filter(|record| !record.study.contains("stores")) {
        let stage = &record.lanes[0].stages[0];
        let factor = record.workload.int("dec_factor").unwrap_or(1);
        let name = match factor {
            1 => short(&stage.name),
            factor => format!("{} 1:{factor}", short(&stage.name)),
        };
        let limit = stage
            .limit
            .as_deref()
            .and_then(|limit| record.limit(limit))
            .map(|limit| limit.rate_bytes_per_s / 1e6);
        command.get_or_insert(record.command.clone());
        let order = record.workload.int("function").unwrap_or(0) * 1000 + factor;
        points.push((order, name, rate_band_mb(stage), limit));
    }
    if points.is_empty() {
        return None;
    }
    // Of several runs the newest is drawn; the sort keeps them in their order.
    points.sort_by_key(|(order, ..)| *order);
    points.reverse();
    points.dedup_by(|a, b| (a.0, &a.1) == (b.0, &b.1));
    points.reverse();
    let rates = points
        .iter()
        .map(|(.., rate, _)| rate.map(|(rate, _)| rate))
        .collect();
    let band: Vec<_> = points
        .iter()
        .map(|(.., rate, _)| rate.and_then(|(_, band)| band))
        .collect();
    let band = if band.iter().any(Option::is_some) {
        band
    } else {
        Vec::new()
    };
    let mut figure = bars(
        "conversion",
        "Conversion against its limit",
        "Raw bytes converted per second by one thread over all the time, with its 95 % interval, and what memory alone allows at the same footprint and the same ratio of \
         reads to writes. Where a bar reaches its mark, only fewer bytes or more threads are faster.",
        "MB/s raw",
        points.iter().map(|(_, name, ..)| name.clone()).collect(),
        vec![
            Series {
                band,
                ..Series::new("converted", rates)
            },
            Series::new("limit", points.iter().map(|(.., limit)| *limit).collect()).into_limit(),
        ],
    );
    figure.command = command.unwrap_or_default();
    Some(figure)
}
