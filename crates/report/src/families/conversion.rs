//! Conversion of samples: rates beside their limits, and cached against non-temporal stores by
//! footprint.

use daqmeter_record::RunRecord;
use daqmeter_record::units::{plural, show_bytes, significant};
use daqmeter_stats::Rate;

use super::functions;
use crate::family::{Brief, Family, WORTH_A_CHANGE, Work, of_engine, prefixed};
use crate::figures::{Mark, Plot};
use crate::parameters::{labelled, pairs};
use crate::points::middle_runs;
use crate::rate;
use crate::samples::first_stage;

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Cpu)],
    plots: &[Plot { id: "conversion", marks: rates }, Plot { id: "stores", marks: stores }],
    questions: &[
        ("Is conversion limited by arithmetic or by memory?", Some("conversion"), limited_by),
        ("Should converted data bypass the caches?", Some("stores"), stores_answer),
    ],
    briefs: &[around_the_caches],
    headline,
    ..Family::EMPTY
};

const ENGINE: &str = "convert";

fn is(store: &'static str) -> impl Fn(&RunRecord) -> bool {
    move |record| record.workload.text("store") == Ok(store)
}

/// Tests for a requested kind of stores.
fn has_store(record: &RunRecord) -> bool {
    is("cached")(record) || is("non-temporal")(record)
}

/// Returns the records without a requested kind of stores, which the footprint then chose; all if
/// each requested one.
fn drawn(records: &[RunRecord]) -> Vec<&RunRecord> {
    let all = of_engine(records, ENGINE).filter(|record| first_stage(record).is_some());
    let free: Vec<&RunRecord> = all.clone().filter(|record| !has_store(record)).collect();
    if free.is_empty() { all.collect() } else { free }
}

fn name(record: &RunRecord) -> String {
    functions::label(&record.workload, first_stage(record).map_or("", |stage| &stage.name))
}

fn rates(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let mut drawn = drawn(records);
    drawn.sort_by_key(|record| {
        ["function", "dec_factor"].map(|name| record.workload.int(name).unwrap_or(0))
    });
    let all = labelled(drawn, name, functions::IN_LABEL).into_iter();
    let marks = all.filter_map(|(record, category)| {
        let stage = first_stage(record)?;
        let mark = Mark::rate(record, "converted", 0.0, stage.rate()?);
        Some(Mark { category, ..mark }.with_limit(stage, "limit"))
    });
    marks.flatten().collect()
}

/// Answers with the slowest and the fastest conversion.
fn headline(records: &[RunRecord]) -> Option<String> {
    let middle = middle_runs(records);
    let all = labelled(drawn(&middle), name, functions::IN_LABEL).into_iter();
    let rates = all.filter_map(|(record, name)| Some((first_stage(record)?.rate()?.per_s, name)));
    let mut rates: Vec<(f64, String)> = rates.collect();
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let said = |(per_s, name): &(f64, String)| format!("{name} at {}", prefixed(*per_s, "B/s"));
    let (slowest, fastest) = (rates.first().map(said)?, rates.last().map(said)?);
    Some(match rates.len() {
        1 => fastest,
        count => format!("{count} conversions: the slowest {slowest}, the fastest {fastest}"),
    })
}

fn limited_by(records: &[RunRecord]) -> Option<String> {
    let shares = drawn(records).into_iter().filter_map(|record| {
        let stage = first_stage(record)?;
        let limit = rate::limit_of(record, stage)?.rate();
        Some((rate::ratio(stage.rate()?, limit), record))
    });
    let shares: Vec<(Rate, &RunRecord)> = shares.collect();
    let (worst, slowest) = shares.iter().min_by(|a, b| a.0.per_s.total_cmp(&b.0.per_s))?;
    Some(format!(
        "{} of {} reach at least 90 % of the rate that memory allows. The slowest, {}, reaches {} times that rate.",
        shares.iter().filter(|(share, _)| share.per_s >= 0.9).count(),
        plural(shares.len() as u64, "conversion"),
        name(slowest),
        rate::spoken_number(*worst, 2)
    ))
}

fn stores(records: &[RunRecord]) -> Vec<Mark<'_>> {
    let store = |record: &RunRecord| record.workload.text("store").unwrap_or("").to_owned();
    let asked = of_engine(records, ENGINE).filter(|record| has_store(record)).collect();
    let marks = labelled(asked, store, &["samples", "store"]).into_iter();
    let marks = marks.filter_map(|(record, label)| {
        let stage = first_stage(record)?;
        let bytes = stage.traffic_bytes_per_op as f64;
        Some(Mark { band: None, ..Mark::rate(record, &label, bytes, stage.rate()?) })
    });
    let mut marks: Vec<Mark<'_>> = marks.collect();
    marks.sort_by(|a, b| a.series.cmp(&b.series));
    // A comparison needs two kinds of stores.
    if marks.iter().all(|mark| mark.series == marks[0].series) { Vec::new() } else { marks }
}

/// Returns footprints that have runs of both kinds of stores, with the gain of non-temporal ones.
fn gains(records: &[RunRecord]) -> Vec<(u64, Rate)> {
    let pairs = pairs(of_engine(records, ENGINE), &["store"], [&is("cached"), &is("non-temporal")]);
    let gains = pairs.into_iter().filter_map(|pair| {
        let [cached, around] = pair.map(first_stage);
        let gain = rate::ratio(around?.rate()?, cached?.rate()?);
        Some((cached?.traffic_bytes_per_op, gain))
    });
    let mut gains: Vec<(u64, Rate)> = gains.collect();
    gains.sort_by_key(|(bytes, _)| *bytes);
    gains
}

fn stores_answer(records: &[RunRecord]) -> Option<String> {
    let (bytes, gain) = gains(records).pop()?;
    let gain = rate::spoken_number(gain, 3);
    let bytes = show_bytes(bytes);
    Some(format!("At {bytes}, non-temporal stores run at {gain} times the rate of cached ones."))
}

/// Proposes non-temporal stores from the footprint on from which they are always faster.
fn around_the_caches(records: &[RunRecord]) -> Option<Brief> {
    let gains = gains(records);
    let pays = |gain: &Rate| gain.interval.is_some_and(|(low, _)| low > WORTH_A_CHANGE);
    let from = gains.iter().rev().take_while(|(_, gain)| pays(gain)).last()?;
    let largest = gains.last()?;
    Some(Brief::Change {
        what: format!("store conversions past the cache from {} on", show_bytes(from.0)),
        gain: format!("{}x at {}", significant(largest.1.per_s, 3), show_bytes(largest.0)),
    })
}

#[cfg(test)]
mod tests {
    use daqmeter_record::Workload;

    use super::*;
    use crate::examples;

    fn record(study: &str, samples: u64, store: &str, ns: u64) -> RunRecord {
        let workload = Workload::new("convert")
            .with("function", 4_u64)
            .with("samples", samples)
            .with("store", store);
        let mut record = examples::record("convert", workload, study, "func_no_decsca", ns);
        let stage = &mut record.lanes[0].stages[0];
        (stage.bytes_per_op, stage.traffic_bytes_per_op) = (2 * samples, 6 * samples);
        record
    }

    fn swept(study: &str) -> Vec<RunRecord> {
        let points = [1000, 2000].into_iter().flat_map(|samples| {
            [("cached", 3000), ("non-temporal", 1000)].map(|(store, ns)| (samples, store, ns))
        });
        points.map(|(samples, store, ns)| record(study, samples, store, ns)).collect()
    }

    /// Regression: a part of the study's name chose the figures (issue 15).
    #[test]
    fn what_a_figure_shows_does_not_depend_on_the_name_of_the_study() {
        for study in ["survey/stores", "lab7/my plan", ""] {
            let records = swept(study);
            let [rates, stores] = FAMILY.plots else { unreachable!() };
            assert_eq!(stores.draw(&records).unwrap().xs, [6000.0, 12_000.0], "{study}");
            assert_eq!(rates.draw(&records).unwrap().categories.len(), 4, "{study}");
            let chosen = [&records[..], &[record(study, 1000, "footprint", 2000)]].concat();
            assert_eq!(rates.draw(&chosen).unwrap().categories, ["cast"], "{study}");
            assert_eq!(
                stores_answer(&records).unwrap(),
                "At 11.72 KiB, non-temporal stores run at 3 (3 - 3) times the rate of cached ones."
            );
        }
    }

    /// Regression: of two conversions with one name one was dropped silently (issue 15).
    #[test]
    fn points_with_one_name_are_told_apart_by_what_differs_and_repeated_runs_are_one() {
        let records = [
            record("a", 1000, "cached", 2000),
            record("a", 1000, "non-temporal", 1000),
            record("a", 1000, "non-temporal", 500),
        ];
        let figure = FAMILY.plots[0].draw(&records).unwrap();
        assert_eq!(figure.categories, ["cast, cached stores", "cast, non-temporal stores"]);
        assert_eq!(figure.series[0].ys, [Some(1000.0), Some(4000.0)]);
    }
}
