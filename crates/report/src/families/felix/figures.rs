//! Read-out chains: CPU, ring occupancy and dead time against the trigger rate, CPU of an idle
//! reader against the polling interval.

use daqmeter_record::RunRecord;

use super::chains::{ChainRun, chains, swept};
use crate::figures::{Axis, Figure, Plot, curves_of};

const RATE: Axis = Axis::linear("trigger rate [kHz]");
const CPU: Plot = Plot {
    id: "felix-cpu",
    title: "Read-out: CPU against trigger rate",
    caption: "CPU of the reader by polling interval. Where a line ends at 100 %, the core is full and the ring fills; an emulated \
              card's own work, little for replayed blocks, is in it.",
    x: RATE,
    y: Axis::linear("CPU of the reader [% of a core]"),
};
const RING: Plot = Plot {
    id: "felix-ring",
    title: "Read-out: ring occupancy against trigger rate",
    caption: "What a look at the ring found on average, and the highest filling. Far below the limit the ring holds what comes in a \
              polling interval; a few percent beyond it, it is full.",
    x: RATE,
    y: Axis::log("MB in the ring"),
};
const DEAD_TIME: Plot = Plot {
    id: "felix-dead",
    title: "Read-out: dead time against trigger rate",
    caption: "Share of the time with BUSY, measured at the trigger source. Beyond the maximum rate it is what the chain cannot carry.",
    x: RATE,
    y: Axis::linear("time with BUSY [%]"),
};
const POLLING: Plot = Plot {
    id: "felix-poll",
    title: "Read-out: CPU of an idle reader against its polling interval",
    caption: "Nothing to read: what waking up costs. The cost of one wake-up is the CPU share times the interval.",
    x: Axis::log("polling interval [us]"),
    y: Axis::log("CPU of the reader [% of a core]"),
};

const IDLE_HZ: f64 = 100.0;

/// Value of a quantity in a run.
type Quantity = fn(&ChainRun<'_>) -> f64;

/// Draws a curve of each quantity for each chain and polling interval.
fn over_rate(records: &[RunRecord], plot: Plot, quantities: &[(&str, Quantity)]) -> Option<Figure> {
    let runs = swept(records);
    let busy = runs.iter().filter(|run| run.rate_hz > IDLE_HZ);
    let points = busy.flat_map(|run| {
        let poll = run.poll_us.map_or("interrupt".to_owned(), |us| format!("{us} us"));
        quantities.iter().map(move |(prefix, value)| {
            (format!("{prefix}{}, {poll}", run.chain), (run.rate_hz / 1e3, value(run)))
        })
    });
    plot.curves(curves_of(points), chains(records))
}

pub(super) fn cpu(records: &[RunRecord]) -> Option<Figure> {
    over_rate(records, CPU, &[("", |run| run.reader_cpu() * 100.0)])
}

pub(super) fn ring(records: &[RunRecord]) -> Option<Figure> {
    let mean = |run: &ChainRun<'_>| run.value("ring found").max(1.0) / 1e6;
    let peak = |run: &ChainRun<'_>| run.value("ring peak").max(1.0) / 1e6;
    over_rate(records, RING, &[("mean, ", mean), ("peak, ", peak)])
}

pub(super) fn dead_time(records: &[RunRecord]) -> Option<Figure> {
    over_rate(records, DEAD_TIME, &[("", |run| run.value("dead-time") * 100.0)])
}

pub(super) fn polling(records: &[RunRecord]) -> Option<Figure> {
    let runs = swept(records);
    let idle = runs.iter().filter(|run| run.rate_hz <= IDLE_HZ);
    let points =
        idle.filter_map(|run| Some((run.chain.clone(), (run.poll_us?, run.reader_cpu() * 100.0))));
    POLLING.curves(curves_of(points), chains(records))
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
