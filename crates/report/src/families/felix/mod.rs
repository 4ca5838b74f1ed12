//! FELIX-class read-out: chains, and the decoding of blocks by itself.

mod chains;
mod figures;
mod host;

use daqmeter_record::RunRecord;
use daqmeter_record::units::significant;

pub(crate) use chains::dead_time;
use chains::{ChainRun, swept};
pub use chains::{chains_text, details_text};

use crate::family::{Family, PlainAnswer, Work, of_engine};
use crate::rate;
use crate::samples::{first_stage, summary};

pub(super) const FAMILY: Family = Family {
    engines: &[(chains::ENGINE, Work::Path), (DECODE, Work::Cpu)],
    figures: &[figures::cpu, figures::ring, figures::dead_time, figures::polling],
    answers: &[answer],
    ..Family::EMPTY
};

const DECODE: &str = "decode";
/// Counter of the highest rate without a fault in a search, in Hz.
pub const MAXIMUM_RATE: &str = "maximum rate";
/// Counter of the lowest rate above it with a fault, in Hz.
pub const UNSTABLE_RATE: &str = "not stable at";

/// Answers the rate and the cost of a chunk, from chains without losses.
fn answer(records: &[RunRecord]) -> Option<PlainAnswer> {
    let runs = swept(records);
    // A rate that a search confirmed is preferred, because a point of a curve is short.
    let is_confirmed = |run: &ChainRun<'_>| run.record.counter(MAXIMUM_RATE).is_some();
    let is_searched = runs.iter().any(is_confirmed);
    let clean: Vec<_> =
        runs.iter().filter(|run| run.is_clean() && is_confirmed(run) == is_searched).collect();
    let best = clean.iter().max_by(|a, b| a.mchunks_per_s().total_cmp(&b.mchunks_per_s()))?;
    // No loss in n triggers: below 3 in n at 95 % confidence (the rule of three).
    let lost_at_most = 3.0 / best.value("triggers").max(1.0);
    Some(PlainAnswer {
        question: "What trigger rate can this host read out?",
        answer: format!(
            "{} was carried at {} kHz for {} s without a loss{} (at 95 % confidence fewer than {} of the triggers are lost; {} M chunks/s){}",
            best.chain,
            significant(best.rate_hz / 1e3, 4),
            significant(best.seconds(), 2),
            if is_searched {
                ", the maximum that the search confirmed".to_owned()
            } else {
                rate::of_several("fastest", clean.len())
            },
            significant(lost_at_most, 2),
            significant(best.mchunks_per_s(), 3),
            cost(best, decode_ns(records, chains::scenario(best.record)))
        ),
        figure: Some("felix-cpu").filter(|_| runs.len() > 1),
    })
}

/// Returns the cost of a chunk to the reader, with the part for finding it. A whole that is less
/// than its part was measured wrongly; then neither is reported.
fn cost(best: &ChainRun<'_>, finding_ns: Option<(f64, (f64, f64))>) -> String {
    let Some(whole_ns) = best.reader_ns_per_chunk() else {
        return String::new();
    };
    let whole = format!(
        "; a chunk takes {} ns of a reader's core (one run, without an interval)",
        significant(whole_ns, 3)
    );
    match finding_ns {
        Some((_, (low, _))) if low > whole_ns => format!(
            "; what a chunk costs the reader cannot be told: its CPU account says {} ns, less than the {} ns that finding a chunk takes alone",
            significant(whole_ns, 3),
            significant(low, 3)
        ),
        Some((ns, (low, high))) => format!(
            "{whole}, of which finding it in its block takes {} ({} - {}){}",
            significant(ns, 3),
            significant(low, 3),
            significant(high, 3),
            by_links(whole_ns)
        ),
        None => whole + &by_links(whole_ns),
    }
}

/// Returns the time to find a chunk of that scenario in its block, and its interval.
fn decode_ns(records: &[RunRecord], scenario: &str) -> Option<(f64, (f64, f64))> {
    let record = of_engine(records, DECODE).find(|record| chains::scenario(record) == scenario)?;
    let per_pass = record.counter("subchunks per pass")?;
    let summary = summary(first_stage(record)?)?;
    let (low, high) = summary.median_ci;
    Some((summary.median / per_pass, (low / per_pass, high / per_pass)))
}

/// Returns the highest trigger rate of one reader's core for a number of E-links, at the cost of a
/// chunk in the best chain.
fn by_links(ns: f64) -> String {
    if ns <= 0.0 {
        return String::new();
    }
    let khz = |links: f64| significant(1e6 / (links * ns), 2);
    format!(
        "; by its CPU a reader's core would do for 24 E-links up to {} kHz, 96 up to {}, 384 up to {}",
        khz(24.0),
        khz(96.0),
        khz(384.0)
    )
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{Counter, Workload};

    use super::*;
    use crate::examples::{chain, record};

    /// A chain with that reader's time per chunk in nanoseconds, and the decoding of blocks at 13
    /// ns a chunk.
    fn with_cost(reader_ns: f64) -> String {
        let mut chain = chain(1_000_000);
        let chunks = 1e6;
        let value = |name: &str, value| Counter { value, ..Counter::count(name, 0) };
        chain.counters.push(value("chunks", chunks));
        chain.counters.push(value("reader-cpu-ppm", reader_ns * chunks * 1e-3));
        let workload = Workload::new(DECODE).with("scenario", "gbt");
        let mut decode = record(DECODE, workload, "survey/decode", "decode", 13_000);
        decode.counters.push(value("subchunks per pass", 1000.0));
        let records = [chain, decode];
        answer(&records).unwrap().answer
    }

    #[test]
    fn no_part_is_larger_than_its_whole() {
        let impossible = with_cost(2.18);
        assert!(
            impossible
                .contains("cannot be told: its CPU account says 2.18 ns, less than the 13 ns"),
            "{impossible}"
        );
        assert!(!impossible.contains("E-links up to"), "{impossible}");
        let possible = with_cost(20.0);
        assert!(
            possible.contains("takes 20 ns of a reader's core")
                && possible.contains("of which finding it in its block takes 13"),
            "{possible}"
        );
    }

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
        let of = |records: &[RunRecord]| answer(records).unwrap().answer;
        let by_search = of(&[confirmed.clone(), beyond.clone()]);
        assert!(by_search.contains("the maximum that the search confirmed"), "{by_search}");
        let by_points = of(&[beyond]);
        assert!(!by_points.contains("search"), "{by_points}");
        let at = |text: &str| text.split(" was carried at ").nth(1).unwrap().to_owned();
        assert_ne!(at(&by_search)[..6], at(&by_points)[..6]);
    }

    #[test]
    fn no_loss_is_said_with_what_it_proves() {
        assert!(with_cost(20.0).contains("fewer than 0.003 of the triggers are lost"));
    }
}
