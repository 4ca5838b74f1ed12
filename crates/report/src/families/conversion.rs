//! Conversion of samples: rates beside their limits, and cached against non-temporal stores by
//! footprint.

use std::collections::HashMap;

use daqmeter_record::RunRecord;
use daqmeter_record::units::{plural, show_bytes, significant};
use daqmeter_stats::Rate;

use super::functions;
use crate::family::{Advice, Family, PlainAnswer, Work, of_engine};
use crate::figures::{Axis, Figure, Plot, Series, curves_of};
use crate::parameters::{distinguished, pairs};
use crate::rate;
use crate::samples::first_stage;

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Cpu)],
    figures: &[rates_figure, stores_figure],
    answers: &[limited_by, stores_answer],
    advice: &[stores_advice],
    label: functions::label,
    in_label: functions::IN_LABEL,
    ..Family::EMPTY
};

const ENGINE: &str = "convert";

const RATES: Plot = Plot {
    id: "conversion",
    title: "Conversion against its limit",
    caption: "Raw bytes converted per second by one thread over all the time, with its 95 % interval, and what memory alone allows at the same footprint and the same ratio of \
              reads to writes. Where a bar reaches its mark, only fewer bytes or more threads are faster.",
    x: Axis::linear(""),
    y: Axis::linear("MB/s raw"),
};
const STORES: Plot = Plot {
    id: "stores",
    title: "Stores: through the caches or around them",
    caption: "Conversion by one thread. Non-temporal stores lose while the result fits into the caches and win beyond; \
              daqmeter chooses by footprint.",
    x: Axis::log_bytes("footprint, raw + converted"),
    y: Axis::linear("MB/s raw"),
};

fn samples(record: &RunRecord) -> u64 {
    record.workload.int("samples").unwrap_or(0)
}

/// Returns the requested kind of stores; `None` if the footprint chose it.
fn store(record: &RunRecord) -> Option<&str> {
    let store = record.workload.text("store").ok()?;
    ["cached", "non-temporal"].contains(&store).then_some(store)
}

/// Splits the records: one conversion at several footprints with a requested kind of stores, for a
/// comparison of stores, and all others.
fn split(records: &[RunRecord]) -> (Vec<&RunRecord>, Vec<&RunRecord>) {
    let key = |record: &RunRecord| record.workload.key_without(&["samples", "store"]);
    let mut sizes: HashMap<String, Vec<u64>> = HashMap::new();
    let all = of_engine(records, ENGINE).filter(|record| first_stage(record).is_some());
    for record in all.clone().filter(|record| store(record).is_some()) {
        sizes.entry(key(record)).or_default().push(samples(record));
    }
    all.partition(|record| {
        let known = sizes.get(&key(record)).filter(|_| store(record).is_some());
        known.is_some_and(|known| known.iter().any(|size| *size != known[0]))
    })
}

struct Conversion {
    name: String,
    rate: Option<Rate>,
    limit: Option<Rate>,
    share: Option<Rate>,
}

/// Returns the newest run of each conversion, in the order of their functions, and the records.
fn conversions(records: &[RunRecord]) -> (Vec<Conversion>, Vec<&RunRecord>) {
    let mut drawn = split(records).1;
    let int = |record: &RunRecord, name: &str| record.workload.int(name).unwrap_or(0);
    drawn.sort_by_key(|record| (int(record, "function"), int(record, "dec_factor")));
    let label = |record: &&RunRecord| {
        let stage = first_stage(record);
        stage.map_or_else(String::new, |stage| functions::label(record, stage))
    };
    let names: Vec<String> = drawn.iter().map(label).collect();
    let names = distinguished(&drawn, &names, functions::IN_LABEL);
    let mut all: Vec<Conversion> = Vec::new();
    for (record, name) in drawn.iter().zip(names) {
        all.retain(|known| known.name != name);
        let Some(stage) = first_stage(record) else { continue };
        let rate = rate::of(stage);
        let limit = rate::limit_of(record, stage).map(rate::limit_rate);
        let share = rate.zip(limit).map(|(rate, limit)| rate::ratio(rate, limit));
        all.push(Conversion { name, rate, limit, share });
    }
    (all, drawn)
}

fn rates_figure(records: &[RunRecord]) -> Option<Figure> {
    let (all, drawn) = conversions(records);
    let mb = |of: fn(&Conversion) -> Option<Rate>| -> Vec<Option<f64>> {
        all.iter().map(|one| Some(of(one)?.per_s / 1e6)).collect()
    };
    let band = all.iter().map(|one| one.rate?.times(1e-6).interval);
    let series = vec![
        Series::new("converted", mb(|one| one.rate)).with_band(band.collect()),
        Series::new("limit", mb(|one| one.limit)).into_limit(),
    ];
    RATES.bars(all.iter().map(|one| one.name.clone()).collect(), series, drawn)
}

fn limited_by(records: &[RunRecord]) -> Option<PlainAnswer> {
    let (all, _) = conversions(records);
    let shares: Vec<(Rate, &str)> =
        all.iter().filter_map(|one| Some((one.share?, one.name.as_str()))).collect();
    let (worst, slowest) = shares.iter().min_by(|a, b| a.0.per_s.total_cmp(&b.0.per_s))?;
    let at_limit = shares.iter().filter(|(share, _)| share.per_s >= 0.9).count();
    Some(PlainAnswer {
        question: "Is conversion limited by arithmetic or by memory?",
        answer: format!(
            "{at_limit} of {} run within 10 % of what memory allows; furthest from it is {slowest} at {} times that",
            plural(shares.len() as u64, "conversion"),
            rate::spoken_number(*worst, 2)
        ),
        figure: Some("conversion"),
    })
}

fn stores_figure(records: &[RunRecord]) -> Option<Figure> {
    let drawn = split(records).0;
    let names: Vec<String> =
        drawn.iter().filter_map(|record| store(record).map(str::to_owned)).collect();
    let names = distinguished(&drawn, &names, &["samples", "store"]);
    let mut curves = curves_of(drawn.iter().zip(names).filter_map(|(record, name)| {
        let stage = first_stage(record)?;
        let footprint = stage.traffic_bytes_per_op as f64;
        Some((name, (footprint, rate::of(stage)?.per_s / 1e6)))
    }));
    curves.sort_by(|a, b| a.label.cmp(&b.label));
    // A comparison needs two kinds of stores.
    (curves.len() > 1).then(|| STORES.curves(curves, drawn))?
}

/// Returns two runs that differ in the kind of stores alone, at the largest common footprint. With
/// them comes the rate of non-temporal stores over that of cached ones.
fn largest_pair(records: &[RunRecord]) -> Option<(&RunRecord, Rate)> {
    let is = |kind: &'static str| move |record: &RunRecord| store(record) == Some(kind);
    let all = of_engine(records, ENGINE);
    let pairs = pairs(all, &["store"], [&is("cached"), &is("non-temporal")]);
    let [cached, around] = pairs.into_iter().max_by_key(|[cached, _]| samples(cached))?;
    let rate = |record| rate::of(first_stage(record)?);
    Some((cached, rate::ratio(rate(around)?, rate(cached)?)))
}

fn stores_answer(records: &[RunRecord]) -> Option<PlainAnswer> {
    let (cached, gain) = largest_pair(records)?;
    let footprint = show_bytes(first_stage(cached)?.traffic_bytes_per_op);
    Some(PlainAnswer {
        question: "Should converted data bypass the caches?",
        answer: format!(
            "at {footprint} non-temporal stores run at {} times the rate of cached ones",
            rate::spoken_number(gain, 3)
        ),
        figure: Some("stores"),
    })
}

fn stores_advice(records: &[RunRecord]) -> Option<Advice> {
    let (cached, gain) = largest_pair(records)?;
    let (millions, gained) = (samples(cached) as f64 / 1e6, rate::spoken_number(gain, 3));
    (gain.low() > 1.1).then(|| Advice {
        what: "let large conversions bypass the caches (-A with store by footprint does)".into(),
        evidence: format!(
            "{} M samples were converted {gained} times as fast",
            significant(millions, 3)
        ),
    })
}

#[cfg(test)]
mod tests {
    use daqmeter_record::{EngineInfo, Lane, Stage, Workload};

    use super::*;

    fn record(study: &str, samples: u64, store: &str, ns: u64) -> RunRecord {
        let engine = EngineInfo { name: "convert".into(), ..Default::default() };
        let workload = Workload::new("convert")
            .with("function", 4_u64)
            .with("samples", samples)
            .with("store", store);
        let mut record = RunRecord::new(engine, workload);
        record.study = study.into();
        let stage = Stage {
            name: "func_no_decsca".into(),
            bytes_per_op: 2 * samples,
            traffic_bytes_per_op: 6 * samples,
            ops_per_sample: 1,
            sample_ns: vec![ns; 5],
            ..Stage::default()
        };
        record.lanes = vec![Lane { stages: vec![stage], ..Lane::default() }];
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
            let figure = stores_figure(&records).unwrap();
            assert_eq!(figure.xs, [6000.0, 12_000.0], "{study}");
            assert!(rates_figure(&records).is_none(), "{study}");
            let answer = stores_answer(&records);
            assert_eq!(
                answer.unwrap().answer,
                "at 11.72 KiB non-temporal stores run at 3 (3 - 3) times the rate of cached ones"
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
        let figure = rates_figure(&records).unwrap();
        assert_eq!(figure.categories, ["cast, store cached", "cast, store non-temporal"]);
        assert_eq!(figure.series[0].ys, [Some(1000.0), Some(4000.0)]);
    }
}
