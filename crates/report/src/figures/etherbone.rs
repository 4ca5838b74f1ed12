//! The four figures of the study of 2018: time, rate and throughput by timestamps per cycle; time by words.

use daqmeter_record::RunRecord;

use super::{Axis, Curve, Figure, Kind, add_point, join};
use crate::etherbone::{CycleRow, cycle_rows};

/// A figure over timestamps per cycle, with the raw path as a limit.
fn figure(
    records: &[RunRecord],
    (id, title, caption): (&'static str, &str, &str),
    y: &str,
    value: fn(&CycleRow) -> f64,
    of_limit: fn(f64) -> f64,
) -> Option<Figure> {
    let rows: Vec<CycleRow> = cycle_rows(records)
        .into_iter()
        .filter(|row| row.payload == "timestamps")
        .collect();
    let mut curves: Vec<Curve> = Vec::new();
    for row in &rows {
        add_point(
            &mut curves,
            &format!("{} {}", row.address, row.method),
            (row.count as f64, value(row)),
        );
    }
    // One point is no curve.
    if !curves.iter().any(|curve| curve.points.len() > 1) {
        return None;
    }
    let mut limits: Vec<Curve> = Vec::new();
    for row in rows.iter().filter(|row| row.method == "blocking") {
        let Some(limit_us) = row.limit_us else {
            continue;
        };
        let name = if row.address.starts_with("loop/") {
            "raw ping-pong"
        } else {
            "bus or line"
        };
        let label = format!("{} {name}", row.address);
        add_point(&mut limits, &label, (row.count as f64, of_limit(limit_us)));
    }
    for limit in &mut limits {
        limit.limit = true;
    }
    curves.extend(limits);
    let first = records
        .iter()
        .find(|record| record.engine.name == "etherbone")?;
    let (xs, series) = join(curves);
    Some(Figure {
        id,
        title: title.to_owned(),
        caption: caption.to_owned(),
        kind: Kind::Lines,
        x: Axis::linear("64-bit timestamps per cycle"),
        y: Axis {
            label: y.to_owned(),
            log: true,
            unit: "",
        },
        xs,
        categories: Vec::new(),
        series,
        command: first.command.clone(),
        emulated: records
            .iter()
            .any(|record| record.engine.name == "etherbone" && record.engine.emulated),
    })
}

pub(super) fn time(records: &[RunRecord]) -> Option<Figure> {
    let text = (
        "eb-time",
        "Etherbone: time to read 8 bytes",
        "Median time per 64-bit timestamp by the host's clock. Blocking cycles pay one round trip for all their timestamps, convenience \
         functions two for each; pipelined cycles overlap. Dashed: the same bytes without Etherbone, one message at a time, or \
         what the emulated bus or line allows.",
    );
    figure(
        records,
        text,
        "us per timestamp",
        |row| row.item_us,
        |limit_us| limit_us,
    )
}

pub(super) fn rate(records: &[RunRecord]) -> Option<Figure> {
    let text = (
        "eb-rate",
        "Etherbone: rate of reading 8 bytes",
        "How often a 64-bit timestamp can be read: all of them over all the time.",
    );
    figure(
        records,
        text,
        "kHz",
        |row| row.rate_khz,
        |limit_us| 1e3 / limit_us,
    )
}

pub(super) fn throughput(records: &[RunRecord]) -> Option<Figure> {
    let text = (
        "eb-throughput",
        "Etherbone: throughput of reading 8 bytes",
        "The same in payload bits: 64 for each timestamp, addresses and headers not counted.",
    );
    figure(
        records,
        text,
        "Mbit/s",
        |row| row.mbit_per_s,
        |limit_us| 64.0 / limit_us,
    )
}

pub(super) fn words(records: &[RunRecord]) -> Option<Figure> {
    let mut curves = Vec::new();
    for row in cycle_rows(records)
        .iter()
        .filter(|row| row.payload == "timestamps")
    {
        let series = row.series as f64;
        let words = 2.0 * row.count as f64 * series;
        add_point(
            &mut curves,
            &format!("{} {}", row.address, row.method),
            (words, row.cycle_us * series / 1e3),
        );
    }
    if !curves.iter().any(|curve: &Curve| curve.points.len() > 1) {
        return None;
    }
    let first = records
        .iter()
        .find(|record| record.engine.name == "etherbone")?;
    let (xs, series) = join(curves);
    Some(Figure {
        id: "eb-words",
        title: "Etherbone: time to read words".to_owned(),
        caption: "A series of cycles (90 in the study): time against the number of 32-bit words read. Where the time does not grow with the \
                  words, latency is all there is."
            .to_owned(),
        kind: Kind::Lines,
        x: Axis::linear("32-bit words"),
        y: Axis { label: "ms".to_owned(), log: true, unit: "" },
        xs,
        categories: Vec::new(),
        series,
        command: first.command.clone(),
        emulated: records.iter().any(|record| record.engine.name == "etherbone" && record.engine.emulated),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etherbone::tests::example;

    #[test]
    fn the_four_figures_of_the_study() {
        let records = [
            example("blocking", 1),
            example("blocking", 2),
            example("pipelined", 1),
            example("pipelined", 2),
        ];
        for make in [time, rate, throughput, words] {
            let figure = make(&records).unwrap();
            assert_eq!(figure.xs.len(), 2, "{}", figure.id);
            assert_eq!(
                figure.series.iter().filter(|series| !series.limit).count(),
                2
            );
        }
        let limits = |figure: Figure| {
            figure
                .series
                .into_iter()
                .filter(|series| series.limit)
                .count()
        };
        assert_eq!(
            (
                limits(time(&records).unwrap()),
                limits(words(&records).unwrap())
            ),
            (1, 0)
        );
    }

    #[test]
    fn one_point_makes_no_figure() {
        assert!(time(&[example("blocking", 1)]).is_none() && words(&[]).is_none());
    }
}
