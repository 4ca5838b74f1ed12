//! FELIX-class read-out: chains, their figures, and the decoding of blocks by itself.

mod chains;
mod host;
mod missing;

use daqmeter_record::RunRecord;
use daqmeter_record::units::significant;

use chains::{ChainRun, swept};
pub use chains::{against_triggers, asserted_by, chains_text, read_out};
pub(crate) use missing::maps;

use crate::family::{Family, Work};
use crate::figures::{Mark, Plot};

pub(super) const FAMILY: Family = Family {
    engines: &[(chains::ENGINE, Work::Threads), ("decode", Work::Cpu)],
    plots: &[
        Plot {
            id: "felix-cpu",
            marks: |records| over_rate(records, &[("", |run| run.reader_cpu() * 100.0)]),
        },
        Plot { id: "felix-ring", marks: |records| over_rate(records, &RINGS) },
        Plot {
            id: "felix-dead",
            marks: |records| over_rate(records, &[("", |run| run.value("dead-time") * 100.0)]),
        },
        Plot { id: "felix-poll", marks: idle },
    ],
    questions: &[("What trigger rate can this host read out?", Some("felix-cpu"), answer)],
    headline,
    ..Family::EMPTY
};

/// Counter of the highest rate without a fault in a search, in Hz.
pub const MAXIMUM_RATE: &str = "maximum rate";
/// Counter of the lowest rate above it with a fault, in Hz.
pub const UNSTABLE_RATE: &str = "not stable at";

const IDLE_HZ: f64 = 100.0;

/// Beginning of a curve's name, and its value for a run.
type Quantity = (&'static str, fn(&ChainRun<'_>) -> f64);

const RINGS: [Quantity; 2] = [
    ("mean, ", |run| run.value("ring found").max(1.0) / 1e6),
    ("peak, ", |run| run.value("ring peak").max(1.0) / 1e6),
];

/// Draws a curve of each quantity for each chain and polling interval.
fn over_rate<'a>(records: &'a [RunRecord], quantities: &[Quantity]) -> Vec<Mark<'a>> {
    let busy = swept(records).into_iter().filter(|run| run.rate_hz > IDLE_HZ);
    let marks = busy.flat_map(|run| {
        let poll = run.poll_us.map_or("interrupt".to_owned(), |us| format!("{us} us"));
        let mark = |(prefix, value): &Quantity| {
            let series = format!("{prefix}{}, {poll}", run.chain);
            Mark::at(run.record, series, run.rate_hz / 1e3, value(&run))
        };
        quantities.iter().map(mark).collect::<Vec<_>>()
    });
    marks.collect()
}

fn idle(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let idle = swept(records).into_iter().filter(|run| run.rate_hz <= IDLE_HZ);
    let marks = idle.filter_map(|run| {
        Some(Mark::at(run.record, run.chain.as_str(), run.poll_us?, run.reader_cpu() * 100.0))
    });
    marks.collect()
}

/// Answers with the rate of the last chain and its dead time.
fn headline(records: &[RunRecord]) -> Option<String> {
    let last = records.last()?;
    let run = swept(std::slice::from_ref(last)).pop()?;
    let (chain, kilohertz) = (&run.chain, significant(run.rate_hz / 1e3, 4));
    let [network, dead] = [run.value("network") * 8e-9, run.value("dead-time") * 100.0]
        .map(|value| significant(value, 3));
    Some(format!("{chain} at {kilohertz} kHz: {network} Gb/s, dead for {dead} % of the time"))
}

/// Answers the rate, from chains without losses.
fn answer(records: &[RunRecord]) -> Option<String> {
    let runs = swept(records);
    // A rate that a search confirmed is preferred, because a point of a curve is short.
    let is_confirmed = |run: &ChainRun<'_>| run.record.counter(MAXIMUM_RATE).is_some();
    let is_searched = runs.iter().any(is_confirmed);
    let clean: Vec<_> =
        runs.iter().filter(|run| run.is_clean() && is_confirmed(run) == is_searched).collect();
    let best = clean.iter().max_by(|a, b| a.mchunks_per_s().total_cmp(&b.mchunks_per_s()))?;
    let which = match clean.len() {
        _ if is_searched => ", the maximum rate of the search".to_owned(),
        1 => String::new(),
        count => format!(", the fastest of {count}"),
    };
    Some(format!(
        "{} was read out at {} kHz for {} s without a loss{which}. With 95 % confidence, fewer than {} of the triggers are lost ({} M chunks/s).",
        best.chain,
        significant(best.rate_hz / 1e3, 4),
        significant(best.seconds(), 2),
        // No loss in n triggers: below 3 in n (the rule of three).
        significant(3.0 / best.value("triggers").max(1.0), 2),
        significant(best.mchunks_per_s(), 3)
    ))
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Counter;

    use super::chains::tests::example;
    use super::*;
    use crate::examples::chain;

    #[test]
    fn the_answer_is_the_rate_that_a_search_confirmed() {
        let mut confirmed = chain(1_000_000);
        let maximum = Counter { value: 1e6, ..Counter::count(MAXIMUM_RATE, 0) };
        confirmed.counters.push(maximum);
        // A short point of a curve beyond it, whose backlog had no time to become a loss.
        let mut beyond = chain(2_000_000);
        let rates = beyond.counters.iter_mut();
        rates.filter(|counter| counter.name == "trigger-rate").for_each(|rate| rate.value *= 2.0);
        for (record, chunks) in [(&mut confirmed, 24e6), (&mut beyond, 48e6)] {
            let counter = Counter::count("chunks", 0);
            record.counters.push(Counter { value: chunks, ..counter });
        }
        let of = |records: &[RunRecord]| answer(records).unwrap();
        let by_search = of(&[confirmed.clone(), beyond.clone()]);
        assert!(by_search.contains("the maximum rate of the search"), "{by_search}");
        let by_points = of(&[beyond]);
        assert!(!by_points.contains("search"), "{by_points}");
        assert!(by_points.contains("fewer than 0.003 of the triggers are lost"), "{by_points}");
        let at = |text: &str| text.split(" was read out at ").nth(1).unwrap().to_owned();
        assert_ne!(at(&by_search)[..6], at(&by_points)[..6]);
    }

    #[test]
    fn a_sweep_gives_all_four_figures_without_the_probes_of_a_search() {
        let points = [10.0, 100.0].into_iter().flat_map(|poll_us| {
            [(1.0, 0.0), (1e6, 0.0), (2e6, 0.1)]
                .map(|(rate_hz, dead)| example(poll_us, rate_hz, dead))
        });
        let mut records: Vec<RunRecord> = points.collect();
        let figures: Vec<_> = FAMILY.plots.iter().filter_map(|plot| plot.draw(&records)).collect();
        assert!(figures[..3].iter().all(|figure| figure.xs == [1000.0, 2000.0]));
        assert_eq!((figures[1].series.len(), &figures[3].xs[..]), (4, &[10.0, 100.0][..]));
        records.iter_mut().for_each(|record| record.role = daqmeter_record::Role::Probe);
        assert!(FAMILY.plots.iter().all(|plot| plot.draw(&records).is_none()));
    }
}
