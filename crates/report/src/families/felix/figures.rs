//! Read-out chains: CPU, ring occupancy and dead time against the trigger rate, CPU of an idle reader against the polling interval.

use daqmeter_record::RunRecord;

use super::chains::{ChainRow, chain_rows, chains};
use crate::figures::{Axis, Curve, Figure, Texts, add_point, has_line, lines};

/// Rows of sweeps; probes of searches are too short to draw.
fn swept(records: &[RunRecord]) -> Vec<ChainRow> {
    let mut rows = chain_rows(records);
    rows.retain(|row| !row.is_probe);
    rows
}

/// Below this a rate is as good as none.
const IDLE_HZ: f64 = 100.0;

fn label(row: &ChainRow, what: &str) -> String {
    let poll = row.poll_us.map_or("interrupt".to_owned(), |us| format!("{us} us"));
    if what.is_empty() {
        format!("{}, {poll}", row.chain)
    } else {
        format!("{what}, {}, {poll}", row.chain)
    }
}

fn over_rate(
    records: &[RunRecord],
    texts: Texts,
    y: Axis,
    points: impl Fn(&ChainRow, &mut Vec<Curve>),
) -> Option<Figure> {
    let mut curves = Vec::new();
    for row in swept(records).iter().filter(|row| row.rate_hz > IDLE_HZ) {
        points(row, &mut curves);
    }
    figure(records, texts, Axis::linear("trigger rate [kHz]"), y, curves)
}

fn figure(
    records: &[RunRecord],
    texts: Texts,
    x: Axis,
    y: Axis,
    curves: Vec<Curve>,
) -> Option<Figure> {
    // One point is not a curve.
    has_line(&curves).then(|| lines(texts, x, y, curves).drawn_from(chains(records)))
}

pub(super) fn cpu(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "felix-cpu",
        title: "Read-out: CPU against trigger rate",
        caption: "CPU of the reader by polling interval. Where a line ends at 100 %, the core is full and the ring fills; an emulated \
                  card's own work, little for replayed blocks, is in it.",
    };
    let y = Axis::linear("CPU of the reader [% of a core]");
    over_rate(records, texts, y, |row, curves| {
        add_point(curves, &label(row, ""), (row.rate_hz / 1e3, row.reader_cpu * 100.0));
    })
}

pub(super) fn ring(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "felix-ring",
        title: "Read-out: ring occupancy against trigger rate",
        caption: "What a look at the ring found on average, and the highest filling. Far below the limit the ring holds what comes in a \
                  polling interval; a few percent beyond it, it is full.",
    };
    let y = Axis::log("MB in the ring");
    over_rate(records, texts, y, |row, curves| {
        let khz = row.rate_hz / 1e3;
        add_point(curves, &label(row, "mean"), (khz, row.ring_found_bytes.max(1.0) / 1e6));
        add_point(curves, &label(row, "peak"), (khz, row.ring_peak_bytes.max(1.0) / 1e6));
    })
}

pub(super) fn dead_time(records: &[RunRecord]) -> Option<Figure> {
    let texts = Texts {
        id: "felix-dead",
        title: "Read-out: dead time against trigger rate",
        caption: "Share of the time with BUSY, measured at the trigger source. Beyond the maximum rate it is what the chain cannot carry.",
    };
    let y = Axis::linear("time with BUSY [%]");
    over_rate(records, texts, y, |row, curves| {
        add_point(curves, &label(row, ""), (row.rate_hz / 1e3, row.dead_share * 100.0));
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
    };
    let (x, y) = (Axis::log("polling interval [us]"), Axis::log("CPU of the reader [% of a core]"));
    figure(records, texts, x, y, curves)
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Role;

    use super::*;
    use crate::families::felix::chains::tests::example;

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
        records.iter_mut().for_each(|record| record.role = Role::Probe);
        assert!(cpu(&records).is_none());
    }
}
