use super::*;
use crate::{EngineInfo, Outcome, RunRecord, Workload};

fn figure(json: &str) -> Result<Published, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

fn record(emulated: bool) -> RunRecord {
    let engine = EngineInfo { name: "null".into(), target: "here".into(), emulated };
    let mut record = RunRecord::new(engine, Workload::new("null"));
    record.outcome = Outcome::Ok;
    record
}

fn line(published: &str, model: Option<f64>, measured: Option<Measured>) -> Comparison {
    Comparison::new("table", "row", figure(published).unwrap(), "MB/s")
        .model(model)
        .measured(measured)
}

#[test]
fn a_published_figure_without_its_place_is_refused() {
    let refused = |json: &str, wanted: &str| {
        let why = figure(json).unwrap_err();
        assert!(why.contains(wanted), "{json}: {why}");
    };
    refused(r#"{ "value": 1.0 }"#, "place");
    refused(r#"{ "value": 1.0, "place": " " }"#, "needs the `place`");
    refused(r#"{ "place": "table 1" }"#, "has `value`");
    refused(r#"{ "value": 1.0, "to": 2.0, "place": "table 1" }"#, "has `value`");
    refused(r#"{ "from": 3.0, "to": 2.0, "place": "table 1" }"#, "not a range");
}

#[test]
fn figures_are_shown_as_published_and_ranges_and_bounds_are_met_inside() {
    let check = |json: &str, shown: &str, value: f64, difference: f64| {
        let figure = figure(json).unwrap();
        assert_eq!(figure.to_string(), shown);
        assert!((figure.difference(value) - difference).abs() < 1e-9, "{shown}: {value}");
    };
    check(r#"{ "value": 621.7, "place": "p" }"#, "621.7", 621.7 * 1.1, 0.1);
    check(r#"{ "value": 0, "place": "p" }"#, "0", 0.0, 0.0);
    check(r#"{ "from": 5.8, "to": 7.1, "place": "p" }"#, "5.8 to 7.1", 6.0, 0.0);
    check(r#"{ "from": 5.8, "to": 7.1, "place": "p" }"#, "5.8 to 7.1", 2.9, -0.5);
    check(r#"{ "to": 45, "place": "p" }"#, "up to 45", 12.0, 0.0);
    check(r#"{ "from": 10, "place": "p" }"#, "at least 10", 9.0, -0.1);
    assert!(figure(r#"{ "value": 0, "place": "p" }"#).unwrap().difference(1.0).is_infinite());
}

#[test]
fn a_verdict_names_what_it_rests_on() {
    const HUNDRED: &str = r#"{ "value": 100, "place": "table 1, row 1" }"#;
    let verdict = |model, measured| line(HUNDRED, model, measured).verdict().to_string();
    let here = |value| Measured::of(&record(false), value);
    assert_eq!(verdict(Some(100.0), here(104.0)), "reproduced");
    assert_eq!(verdict(Some(100.0), here(115.0)), "near");
    assert_eq!(verdict(Some(100.0), here(60.0)), "differs");
    assert_eq!(verdict(None, here(104.0)), "reproduced");
    assert_eq!(verdict(Some(102.0), None), "reproduced (model)");
    assert_eq!(verdict(Some(100.0), Measured::of(&record(true), 120.0)), "near (emulated)");
    assert_eq!(verdict(None, None), "not measured");
    let own = |model| line(HUNDRED, model, here(900.0)).of_this_host().verdict().to_string();
    assert_eq!(
        (own(Some(101.0)), own(None)),
        ("reproduced (model)".to_owned(), "this host".to_owned())
    );
}

#[test]
fn what_is_derived_alone_gets_no_verdict() {
    let derived = figure(r#"{ "value": 100, "place": "p" }"#)
        .unwrap()
        .derived("half of it", |value| value / 2.0);
    let line = Comparison::new("t", "r", None, "B")
        .derived(derived)
        .model(50.0)
        .measured(Measured::of(&record(false), 50.0));
    assert_eq!(line.verdict().to_string(), "nothing published");
    assert_eq!(line.verdict().grade(), None);
    assert_eq!(line.difference(), Some(0.0));
}

#[test]
fn what_failed_or_was_waived_is_not_measured() {
    for outcome in [Outcome::Failed("wrong bytes".into()), Outcome::Waived("no card".into())] {
        let broken = RunRecord { outcome, ..record(false) };
        assert_eq!(Measured::of(&broken, 1.0), None);
        assert_eq!(Measured::over([&record(false), &broken], 1.0), None);
        assert_eq!(Measured::over([&broken, &record(false)], 1.0), None);
    }
    assert_eq!(Measured::over([], 1.0), None);
    assert_eq!(Measured::of(&record(false), f64::NAN), None);
    let mixed = Measured::over([&record(true), &record(false)], 1.0).unwrap();
    assert_eq!(mixed.basis(), Basis::Emulated, "one emulated record makes the value emulated");
}

#[test]
fn a_statement_is_judged_by_measurements_or_not_at_all() {
    let statement: Statement =
        serde_json::from_str(r#"{ "text": "it doubles", "place": "section 2" }"#).unwrap();
    let doubles = |[one, two]: [f64; 2]| ((two / one > 1.8).into(), format!("{two} / {one}"));
    let none = statement.judged([None, Measured::of(&record(false), 1.0)], doubles);
    assert_eq!(none.verdict.to_string(), "cannot tell");
    let here = |one, two| {
        statement
            .judged([Measured::of(&record(true), one), Measured::of(&record(false), two)], doubles)
    };
    assert_eq!(here(1.0, 2.0).verdict.to_string(), "confirmed (emulated)");
    assert_eq!(
        here(562.0, 895.0).verdict.to_string(),
        "refuted (emulated)",
        "whatever the document's own tables give"
    );
    let question: Question =
        serde_json::from_str(r#"{ "text": "from where?", "place": "figure 2" }"#).unwrap();
    let answer =
        question.answered([Measured::of(&record(false), 7.0)], |[bytes]| format!("from {bytes} B"));
    assert_eq!(
        (answer.verdict.to_string(), answer.evidence),
        ("this host".to_owned(), "from 7 B".to_owned())
    );
    assert!(serde_json::from_str::<Statement>(r#"{ "text": "it doubles", "place": "" }"#).is_err());
}

/// A record of a second during which other programs took all of a CPU.
fn disturbed_record() -> RunRecord {
    let mut record = record(true);
    record.wall_ns = 1_000_000_000;
    record.host_cpu.user_ns = 1_000_000_000;
    record.lanes.push(crate::Lane {
        stages: vec![crate::Stage { sample_ns: vec![1], ..Default::default() }],
        ..Default::default()
    });
    record
}

/// A point that ran at the same time as a compiler refuted a statement whose true ratio was 1.00.
#[test]
fn what_was_measured_on_a_disturbed_host_decides_nothing() {
    let published = r#"{ "value": 100, "place": "p" }"#;
    let disturbed = Measured::of(&disturbed_record(), 50.0);
    assert!(disturbed.unwrap().is_disturbed());
    let verdict = |measured| line(published, None, measured).verdict().to_string();
    assert_eq!(verdict(disturbed), "cannot tell");
    assert_eq!(verdict(Measured::of(&record(true), 50.0)), "differs (emulated)");
    let statement: Statement =
        serde_json::from_str(r#"{ "text": "independent", "place": "p" }"#).unwrap();
    let finding = statement.judged([disturbed], |[ratio]| (false.into(), format!("ratio {ratio}")));
    assert_eq!(finding.verdict.to_string(), "cannot tell");
    assert!(finding.evidence.contains("quiet host: ratio 50"), "{finding:?}");
}

#[test]
fn a_row_that_a_profile_was_fitted_to_is_no_reproduction() {
    let published = r#"{ "value": 100, "place": "p" }"#;
    let emulated = Measured::of(&record(true), 100.0);
    let fitted = |model, measured| line(published, model, measured).of_a_fit().verdict();
    assert_eq!(fitted(Some(100.0), None).to_string(), "fitted (model)");
    assert_eq!(fitted(None, emulated).to_string(), "fitted (emulated)");
    assert_eq!(fitted(None, emulated).grade(), None);
    assert_eq!(fitted(Some(50.0), None).to_string(), "differs (model)");
    // A real board owes nothing to the profile.
    let real = Measured::of(&record(false), 100.0);
    assert_eq!(fitted(Some(1.0), real).to_string(), "reproduced");
}
