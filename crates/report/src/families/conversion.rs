//! Conversion of samples: rates beside their limits, and cached against non-temporal stores by footprint.

use std::collections::HashMap;

use daqmeter_record::units::{plural, show_bytes, significant};
use daqmeter_record::{RunRecord, Stage};
use daqmeter_stats::Rate;

use super::functions;
use crate::family::{Advice, Answer, Family, Found, Measured, Place, Segment, Work, of_engine};
use crate::figures::{Axis, Curve, Figure, Series, Texts, bars, curve, lines};
use crate::parameters::{distinguished, pairs};
use crate::rate;
use crate::samples::first_stage;

pub(super) const FAMILY: Family = Family {
    engines: &[(ENGINE, Work::Cpu)],
    figures: &[rates_figure, stores_figure],
    answers: &[limited_by, stores_answer],
    segments: &[segment],
    advice: &[stores_advice],
    label: functions::label,
    in_label: functions::IN_LABEL,
    ..Family::EMPTY
};

const ENGINE: &str = "convert";

/// Whether a record's stores are what its workload says. Only the AVX2 and AVX-512 kernels have non-temporal stores; older
/// records of other CPUs say that they used them, and stored through the caches.
fn stored_as_asked(record: &RunRecord) -> bool {
    let has = |name: &str| ["avx2", "avx512"].contains(&name);
    if record.workload.text("store") != Ok("non-temporal") {
        return true;
    }
    match record.workload.text("isa") {
        Ok(named) if named != "best" => has(named),
        // An empty list is of a record that does not say.
        _ => record.host.isa.is_empty() || record.host.isa.iter().any(|name| has(name)),
    }
}

fn samples(record: &RunRecord) -> u64 {
    record.workload.int("samples").unwrap_or(0)
}

/// The kind of stores that was asked for; none where the footprint chose it.
fn store(record: &RunRecord) -> Option<&str> {
    let store = record.workload.text("store").ok()?;
    ["cached", "non-temporal"].contains(&store).then_some(store)
}

/// Records of one conversion at several footprints, each with the kind of stores that was asked for: they compare stores. All
/// others are points of their own.
struct Split<'a> {
    by_footprint: Vec<&'a RunRecord>,
    others: Vec<&'a RunRecord>,
}

impl<'a> Split<'a> {
    fn of(records: &'a [RunRecord]) -> Split<'a> {
        let key = |record: &RunRecord| record.workload.key_without(&["samples", "store"]);
        let mut sizes: HashMap<String, Vec<u64>> = HashMap::new();
        let all = of_engine(records, ENGINE).filter(|record| first_stage(record).is_some());
        for record in all.clone().filter(|record| store(record).is_some()) {
            sizes.entry(key(record)).or_default().push(samples(record));
        }
        let is_swept = |record: &&RunRecord| {
            let known = sizes.get(&key(record)).filter(|_| store(record).is_some());
            known.is_some_and(|known| known.iter().any(|size| *size != known[0]))
        };
        let (by_footprint, others) = all.partition(is_swept);
        Split { by_footprint, others }
    }
}

/// One conversion.
struct Point {
    /// Place of its function among the others.
    order: u64,
    name: String,
    mb_per_s: Option<f64>,
    band: Option<(f64, f64)>,
    limit: Option<f64>,
    /// Rate over limit.
    share: Option<Rate>,
}

/// The newest run of each conversion, in the order of their functions.
fn points(records: &[RunRecord]) -> (Vec<Point>, Vec<&RunRecord>) {
    let drawn = Split::of(records).others;
    let label = |record: &&RunRecord| {
        let stage = first_stage(record);
        stage.map_or_else(String::new, |stage| functions::label(record, stage))
    };
    let names: Vec<String> = drawn.iter().map(label).collect();
    let names = distinguished(&drawn, &names, functions::IN_LABEL);
    let mut points: Vec<Point> = Vec::new();
    for (record, name) in drawn.iter().zip(names) {
        points.retain(|known| known.name != name);
        points.extend(first_stage(record).map(|stage| point(record, stage, name)));
    }
    points.sort_by_key(|point| point.order);
    (points, drawn)
}

fn point(record: &RunRecord, stage: &Stage, name: String) -> Point {
    let rate = rate::of(stage).map(|rate| rate.times(1e-6));
    let int = |name: &str, absent: u64| record.workload.int(name).unwrap_or(absent);
    Point {
        order: int("function", 0)
            .saturating_mul(1000)
            .saturating_add(int("dec_factor", 1).min(999)),
        name,
        mb_per_s: rate.map(|rate| rate.per_s),
        band: rate.and_then(|rate| rate.interval),
        limit: rate::limit_of(record, stage).map(|limit| limit.rate_bytes_per_s / 1e6),
        share: rate::of(stage)
            .zip(rate::limit_of(record, stage).map(rate::limit_rate))
            .map(|(rate, limit)| rate::ratio(rate, limit)),
    }
}

fn rates_figure(records: &[RunRecord]) -> Option<Figure> {
    let (points, drawn) = points(records);
    let band: Vec<_> = points.iter().map(|point| point.band).collect();
    let has_band = band.iter().any(Option::is_some);
    let rates = points.iter().map(|point| point.mb_per_s).collect();
    let limits = points.iter().map(|point| point.limit).collect();
    let series = vec![
        Series {
            band: if has_band { band } else { Vec::new() },
            ..Series::new("converted", rates)
        },
        Series::new("limit", limits).into_limit(),
    ];
    let figure = bars(
        "conversion",
        "Conversion against its limit",
        "Raw bytes converted per second by one thread over all the time, with its 95 % interval, and what memory alone allows at the same footprint and the same ratio of \
         reads to writes. Where a bar reaches its mark, only fewer bytes or more threads are faster.",
        "MB/s raw",
        points.iter().map(|point| point.name.clone()).collect(),
        series,
    );
    (!points.is_empty()).then(|| figure.drawn_from(drawn))
}

fn limited_by(measured: &Measured<'_>) -> Option<Answer> {
    let (points, _) = points(measured.usable);
    let share = |point: &Point| Some((point.share?, point.name.clone()));
    let shares: Vec<(Rate, String)> = points.iter().filter_map(share).collect();
    let (worst, slowest) = shares.iter().min_by(|a, b| a.0.per_s.total_cmp(&b.0.per_s))?;
    let at_limit = shares.iter().filter(|(share, _)| share.per_s >= 0.9).count();
    Some(Answer {
        question: "Is conversion limited by arithmetic or by memory?",
        answer: format!(
            "{at_limit} of {} run within 10 % of what memory allows; furthest from it is {slowest} at {} times that",
            plural(shares.len() as u64, "conversion"),
            rate::spoken_number(*worst, 2)
        ),
        figure: Some("conversion"),
    })
}

/// Rate by footprint, a curve for each kind of stores.
fn store_curves(records: &[&RunRecord]) -> Vec<Curve> {
    let names: Vec<String> =
        records.iter().filter_map(|record| store(record).map(str::to_owned)).collect();
    let names = distinguished(records, &names, &["samples", "store"]);
    let mut curves = Vec::new();
    for (record, name) in records.iter().zip(&names) {
        let stage = first_stage(record);
        if let Some((stage, rate)) = stage.and_then(|stage| Some((stage, rate::of(stage)?))) {
            let footprint = stage.traffic_bytes_per_op as f64;
            curve(&mut curves, name).points.push((footprint, rate.per_s / 1e6));
        }
    }
    curves.sort_by(|a, b| a.label.cmp(&b.label));
    curves
}

fn stores_figure(records: &[RunRecord]) -> Option<Figure> {
    let mut drawn = Split::of(records).by_footprint;
    drawn.retain(|record| stored_as_asked(record));
    let curves = store_curves(&drawn);
    let texts = Texts {
        id: "stores",
        title: "Stores: through the caches or around them",
        caption: "Conversion by one thread. Non-temporal stores lose while the result fits into the caches and win beyond; \
                  daqmeter chooses by footprint.",
    };
    let (x, y) = (Axis::log_bytes("footprint, raw + converted"), Axis::linear("MB/s raw"));
    // One way to store is not a comparison.
    (curves.len() > 1).then(|| lines(texts, x, y, curves).drawn_from(drawn))
}

/// Two runs that differ in the kind of stores alone, at the largest footprint that has both:
/// cached, non-temporal.
fn largest_pair(records: &[RunRecord]) -> Option<[&RunRecord; 2]> {
    let all = of_engine(records, ENGINE).filter(|record| stored_as_asked(record));
    let is = |kind: &'static str| move |record: &RunRecord| store(record) == Some(kind);
    let pairs = pairs(all, &["store"], [&is("cached"), &is("non-temporal")]);
    pairs.into_iter().max_by_key(|[cached, _]| samples(cached))
}

/// Rate of non-temporal stores over that of cached ones.
fn gain([cached, around]: [&RunRecord; 2]) -> Option<Rate> {
    let rate = |record| rate::of(first_stage(record)?);
    Some(rate::ratio(rate(around)?, rate(cached)?))
}

fn stores_answer(measured: &Measured<'_>) -> Option<Answer> {
    let pair = largest_pair(measured.usable)?;
    let footprint = show_bytes(first_stage(pair[0])?.traffic_bytes_per_op);
    Some(Answer {
        question: "Should converted data bypass the caches?",
        answer: format!(
            "at {footprint} non-temporal stores run at {} times the rate of cached ones",
            rate::spoken_number(gain(pair)?, 3)
        ),
        figure: Some("stores"),
    })
}

/// Non-temporal stores where converted data outgrow the caches.
fn stores_advice(records: &[RunRecord]) -> Option<Advice> {
    let pair = largest_pair(records)?;
    let gain = gain(pair)?;
    (gain.low() > 1.1).then(|| {
        let millions = significant(samples(pair[0]) as f64 / 1e6, 3);
        Advice::measured(
            "let large conversions bypass the caches (-A with store by footprint does)",
            format!(
                "{millions} M samples were converted {} times as fast",
                rate::spoken_number(gain, 3)
            ),
        )
    })
}

/// Scaling to f32, which every crate does; else the first conversion there is.
fn segment(records: &[RunRecord]) -> Option<Segment> {
    let others = Split::of(records).others;
    let record =
        others.into_iter().min_by_key(|record| record.workload.int("function") != Ok(3))?;
    let stage = first_stage(record)?;
    let by = format!("conversion: {}", functions::short(&stage.name));
    let found = Found::of(record, stage)?;
    Some(Segment::new(Place::Samples, by, found))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use daqmeter_record::{EngineInfo, Host, Lane, Workload};

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

    /// Both kinds of stores at two sizes, on a host with these vector sets.
    fn swept(study: &str, isa: &[&str]) -> Vec<RunRecord> {
        let host = Host { isa: isa.iter().map(ToString::to_string).collect(), ..Host::default() };
        let host = Arc::new(host);
        let points = [1000, 2000].into_iter().flat_map(|samples| {
            [("cached", 3000), ("non-temporal", 1000)].map(|(store, ns)| (samples, store, ns))
        });
        let point = |(samples, store, ns)| {
            let mut record = record(study, samples, store, ns);
            record.host = host.clone();
            record
        };
        points.map(point).collect()
    }

    /// AArch64 got an answer which stores are better, and has one kind only (issue 14, A11).
    #[test]
    fn a_cpu_without_non_temporal_stores_has_no_comparison_of_stores() {
        let found = |isa: &[&str]| {
            let records = swept("survey/stores", isa);
            let figure = stores_figure(&records).map(|figure| figure.series.len());
            (figure, stores_advice(&records).is_some())
        };
        assert_eq!(found(&["portable", "neon"]), (None, false));
        assert_eq!(found(&["portable", "avx2"]), (Some(2), true));
    }

    /// Figures were chosen by a part of the study's name (issue 15).
    #[test]
    fn what_a_figure_shows_does_not_depend_on_the_name_of_the_study() {
        for study in ["survey/stores", "lab7/my plan", ""] {
            let records = swept(study, &["avx2"]);
            let figure = stores_figure(&records).unwrap();
            assert_eq!(figure.xs, [6000.0, 12_000.0], "{study}");
            assert!(rates_figure(&records).is_none(), "{study}");
            let answer = stores_answer(&Measured { usable: &records, all: &records });
            assert_eq!(
                answer.unwrap().answer,
                "at 11.72 KiB non-temporal stores run at 3 (3 - 3) times the rate of cached ones"
            );
        }
    }

    /// Of two conversions with one name one was dropped silently (issue 15).
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
