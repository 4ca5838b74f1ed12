//! Read-out chains: CPU, ring occupancy and dead time against the trigger rate, CPU of an idle reader against the polling interval.

use daqmeter_record::RunRecord;

use super::{Axis, Curve, Figure, Kind, add_point, join};
use crate::readout::{ChainRow, chain_rows};

/// Rows of sweeps; probes of searches are too short to draw.
fn swept(records: &[RunRecord]) -> Vec<ChainRow> {
    chain_rows(records)
        .into_iter()
        .filter(|row| !row.is_probe)
        .collect()
}

/// Below this a rate is as good as none.
const IDLE_HZ: f64 = 100.0;

fn label(row: &ChainRow, what: &str) -> String {
    let poll = row
        .poll_us
        .map_or("interrupt".to_owned(), |us| format!("{us} us"));
    if what.is_empty() {
        format!("{}, {poll}", row.chain)
    } else {
        format!("{what}, {}, {poll}", row.chain)
    }
}

struct Texts {
    id: &'static str,
    title: &'static str,
    caption: &'static str,
    y: &'static str,
    log: bool,
}

fn over_rate(
    records: &[RunRecord],
    texts: Texts,
    points: impl Fn(&ChainRow, &mut Vec<Curve>),
) -> Option<Figure> {
    let mut curves = Vec::new();
    for row in swept(records).iter().filter(|row| row.rate_hz > IDLE_HZ) {
        points(row, &mut curves);
    }
    figure(records, texts, Axis::linear("trigger rate [kHz]"), curves)
}

fn figure(records: &[RunRecord], texts: Texts, x: Axis, curves: Vec<Curve>) -> Option<Figure> {
    // One point is no curve.
    if !curves.iter().any(|curve| curve.points.len() > 1) {
        return None;
    }
    let first = records
        .iter()
        .find(|record| record.engine.name == "readout")?;
    let (xs, series) = join(curves);
    Some(Figure {
        id: texts.id,
        title: texts.title.to_owned(),
        caption: texts.caption.to_owned(),
        kind: Kind::Lines,
        x,
        y: Axis {
            label: texts.y.to_owned(),
            log: texts.log,
            unit: "",
        },
        xs,
        categories: Vec::new(),
        series,
        command: first.command.clone(),
        emulated: true,
    })
}

pub(super) fn cpu(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "felix-cpu",
        title: "Read-out: CPU against trigger rate",
        caption: "CPU of the reader by polling interval. Where a line ends at 100 %, the core is full and the ring fills; an emulated \
                  card's own work, little for replayed blocks, is in it.",
        y: "CPU of the reader [% of a core]",
        log: false,
    };
    over_rate(records, texts, |row, curves| {
        add_point(
            curves,
            &label(row, ""),
            (row.rate_hz / 1e3, row.reader_cpu * 100.0),
        );
    })
}

pub(super) fn ring(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "felix-ring",
        title: "Read-out: ring occupancy against trigger rate",
        caption: "What a look at the ring found on average, and the highest filling. Far below the limit the ring holds what comes in a \
                  polling interval; a few percent beyond it, it is full.",
        y: "MB in the ring",
        log: true,
    };
    over_rate(records, texts, |row, curves| {
        let khz = row.rate_hz / 1e3;
        add_point(
            curves,
            &label(row, "mean"),
            (khz, row.ring_found_bytes.max(1.0) / 1e6),
        );
        add_point(
            curves,
            &label(row, "peak"),
            (khz, row.ring_peak_bytes.max(1.0) / 1e6),
        );
    })
}

pub(super) fn dead_time(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "felix-dead",
        title: "Read-out: dead time against trigger rate",
        caption: "Share of the time with BUSY, measured at the trigger source. Beyond the maximum rate it is what the chain cannot carry.",
        y: "time with BUSY [%]",
        log: false,
    };
    over_rate(records, texts, |row, curves| {
        add_point(
            curves,
            &label(row, ""),
            (row.rate_hz / 1e3, row.dead_share * 100.0),
        );
    })
}

pub(super) fn polling(records: &[RunRecord]) -> Option<Figure> {
    let mut curves = Vec::new();
    for row in swept(records).iter().filter(|row| row.rate_hz <= IDLE_HZ) {
        let Some(poll_us) = row.poll_us else { continue };
        add_point(&mut curves, &row.chain, (poll_us, row.reader_cpu * 100.0));
    }
    let texts = Texts {
        id: "felix-poll",
        title: "Read-out: CPU of an idle reader against its polling interval",
        caption: "Nothing to read: what waking up costs. The cost of one wake-up is the CPU share times the interval.",
        y: "CPU of the reader [% of a core]",
        log: true,
    };
    let x = Axis {
        label: "polling interval [us]".to_owned(),
        log: true,
        unit: "",
    };
    figure(records, texts, x, curves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readout::tests::example;

    #[test]
    fn a_sweep_gives_all_four() {
        let mut records = Vec::new();
        for poll_us in [10.0, 100.0] {
            for (rate_hz, dead) in [(1.0, 0.0), (1e6, 0.0), (2e6, 0.1)] {
                records.push(example(poll_us, rate_hz, dead));
            }
        }
        for make in [cpu, ring, dead_time] {
            let figure = make(&records).unwrap();
            assert_eq!(figure.xs, [1000.0, 2000.0], "{}", figure.id);
        }
        assert_eq!(polling(&records).unwrap().xs, [10.0, 100.0]);
        assert_eq!(ring(&records).unwrap().series.len(), 4);
    }

    #[test]
    fn probes_of_a_search_are_not_drawn() {
        let mut records = vec![example(10.0, 1e6, 0.0), example(10.0, 2e6, 0.0)];
        records
            .iter_mut()
            .for_each(|record| record.study = "readout/search".to_owned());
        assert!(cpu(&records).is_none());
    }
}
