use super::*;
use crate::{EngineInfo, Lane, Outcome, RunRecord, Stage, Workload};

fn figure(json: &str) -> Result<Published, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

fn record(emulated: bool) -> RunRecord {
    let engine = EngineInfo { name: "null".into(), target: "here".into(), emulated };
    let mut record = RunRecord::new(engine, Workload::new("null"));
    record.outcome = Outcome::Ok;
    record
}

/// A line with 100 published.
fn line(model: Option<f64>, measured: Option<Measured>) -> StudyLine {
    StudyLine {
        table: "table".to_owned(),
        row: "row".to_owned(),
        published: Some(figure(r#"{ "value": 100, "place": "table 1, row 1" }"#).unwrap()),
        derived: None,
        model,
        measured,
        is_of_host: false,
        is_fitted: false,
        unit: "MB/s".to_owned(),
    }
}

#[test]
fn a_published_figure_without_its_place_is_refused() {
    for (json, wanted) in [
        (r#"{ "value": 1.0 }"#, "place"),
        (r#"{ "value": 1.0, "place": " " }"#, "needs the `place`"),
        (r#"{ "place": "table 1" }"#, "has `value`"),
        (r#"{ "value": 1.0, "to": 2.0, "place": "table 1" }"#, "has `value`"),
        (r#"{ "from": 3.0, "to": 2.0, "place": "table 1" }"#, "not a range"),
    ] {
        let why = figure(json).unwrap_err();
        assert!(why.contains(wanted), "{json}: {why}");
    }
}

#[test]
fn figures_are_shown_as_published_and_ranges_and_bounds_are_met_inside() {
    for (json, shown, value, difference) in [
        (r#"{ "value": 621.7, "place": "p" }"#, "621.7", 621.7 * 1.1, 0.1),
        (r#"{ "value": 0, "place": "p" }"#, "0", 0.0, 0.0),
        (r#"{ "value": 0, "place": "p" }"#, "0", 1.0, f64::INFINITY),
        (r#"{ "from": 5.8, "to": 7.1, "place": "p" }"#, "5.8 to 7.1", 6.0, 0.0),
        (r#"{ "from": 5.8, "to": 7.1, "place": "p" }"#, "5.8 to 7.1", 2.9, -0.5),
        (r#"{ "to": 45, "place": "p" }"#, "up to 45", 12.0, 0.0),
        (r#"{ "from": 10, "place": "p" }"#, "at least 10", 9.0, -0.1),
    ] {
        let figure = figure(json).unwrap();
        assert_eq!(figure.to_string(), shown);
        let off = figure.difference(value);
        assert!(off == difference || (off - difference).abs() < 1e-9, "{shown}: {value}: {off}");
    }
}

#[test]
fn a_verdict_names_its_basis() {
    let here = |emulated, value| Measured::over([&record(emulated)], value);
    // Other programs took all of a CPU during a second.
    let mut busy = record(true);
    busy.wall_ns = 1_000_000_000;
    busy.host_cpu.busy_by_cpu_ns.insert(0, 1_000_000_000);
    let stages = vec![Stage { sample_ns: vec![1], ..Default::default() }];
    busy.lanes.push(Lane { stages, seen_cpus: vec![0], ..Default::default() });
    let disturbed = Measured::over([&busy], 50.0);
    assert!(disturbed.unwrap().is_disturbed);
    let of_host = |line| StudyLine { is_of_host: true, ..line };
    let fitted = |line| StudyLine { is_fitted: true, ..line };
    for (line, expected) in [
        (line(Some(100.0), here(false, 104.0)), "reproduced"),
        (line(Some(100.0), here(false, 115.0)), "near"),
        (line(Some(100.0), here(false, 60.0)), "differs"),
        (line(None, here(false, 104.0)), "reproduced"),
        (line(Some(102.0), None), "reproduced (model)"),
        (line(Some(100.0), here(true, 120.0)), "near (emulated)"),
        (line(None, here(true, 50.0)), "differs (emulated)"),
        (line(None, disturbed), "cannot tell"),
        (line(None, None), "not measured"),
        (of_host(line(Some(101.0), here(false, 900.0))), "reproduced (model)"),
        (of_host(line(None, here(false, 900.0))), "this host"),
        (fitted(line(Some(100.0), None)), "fitted (model)"),
        (fitted(line(None, here(true, 100.0))), "fitted (emulated)"),
        (fitted(line(Some(50.0), None)), "differs (model)"),
        // A real board does not depend on the profile.
        (fitted(line(Some(1.0), here(false, 100.0))), "reproduced"),
    ] {
        assert_eq!(line.verdict().to_string(), expected, "{line:?}");
    }
}

#[test]
fn a_derived_figure_alone_gets_no_verdict() {
    let measured = Measured::over([&record(false)], 50.0);
    let derived = Some(Derived::between(50.0, 50.0, "half of it"));
    let line = StudyLine { published: None, derived, ..line(Some(50.0), measured) };
    assert_eq!(line.verdict(), StudyVerdict::Unpublished);
    assert_eq!(line.difference(), Some(0.0));
}

#[test]
fn what_failed_or_was_waived_is_not_measured() {
    for outcome in [Outcome::Failed("wrong bytes".into()), Outcome::Waived("no card".into())] {
        let broken = RunRecord { outcome, ..record(false) };
        assert_eq!(Measured::over([&broken], 1.0), None);
        assert_eq!(Measured::over([&record(false), &broken], 1.0), None);
    }
    assert_eq!(Measured::over([], 1.0), None);
    assert_eq!(Measured::over([&record(false)], f64::NAN), None);
    let mixed = Measured::over([&record(true), &record(false)], 1.0).unwrap();
    assert_eq!(mixed.basis, Basis::Emulated, "one emulated record makes the value emulated");
}
