//! `daqmeter ab` for a user: outcomes with their exit codes, records, refusals.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use common::{PROGRAM, done, ends_with, fail_with};
use serde_json::Value;

#[test]
fn a_point_with_itself_is_the_same_and_is_recorded_whole() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("ab.jsonl");
    // A host's disturbance of slices of 1 ms is not ten times as long on one side only.
    let ab = format!("ab null null --ignore 900% --budget 2m --records {}", record.display());
    let text = done(&ab);
    assert!(text.contains("same"), "{text}");
    let text = std::fs::read_to_string(record).unwrap();
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!((&line["ab"], &line["outcome"]), (&1.into(), &"same".into()));
    assert_eq!(&line["ignore"], &9.0);
    let answer = &line["answers"][0];
    assert_eq!(answer["stage"], "null");
    let blocks = answer["blocks"].as_array().unwrap();
    assert!(blocks.len() >= 11 && blocks.iter().all(|block| block["log_ratio"].is_f64()), "{line}");
}

#[test]
fn points_that_differ_give_1_and_lines_of_json_and_a_short_budget_gives_3() {
    let points = ["convert function=3 samples=2000", "convert function=3 samples=8000"];
    let ab = |budget: &str| format!("ab '{}' '{}' --budget {budget} --json", points[0], points[1]);
    let (text, _) = ends_with(1, &ab("2m"));
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    let verdict = &line["answers"][0]["verdict"];
    assert_eq!((&line["outcome"], verdict), (&"different".into(), &"slower".into()));
    assert_eq!((&line["a"], &line["b"]), (&points[0].into(), &points[1].into()));
    ends_with(3, &ab("1ms"));
}

#[test]
fn two_binaries_measure_the_points_of_a_plan_and_every_point_is_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("two.toml");
    let text = "title = 't'\n[[sweep]]\nstudy = 's'\nengine = 'null'\n\
                [[sweep]]\nstudy = 's'\nengine = 'memory'\nworkload = { read_bytes = '4KiB', read_lines = 1, write_lines = 1, lanes = 2 }\n";
    std::fs::write(&plan, text).unwrap();
    let plan = plan.display();
    let ab = format!("ab {PROGRAM} {PROGRAM} --plan {plan} --ignore 900% --budget 2m");
    let text = done(&ab);
    assert!(text.contains("left out: memory ") && text.contains("it has 2 lanes"), "{text}");
    let (text, said) = ends_with(2, &format!("ab {PROGRAM} true --plan {plan}"));
    assert!(text.contains("not measured: null: side B: ended before"), "{text}");
    assert!(said.contains("1 of 2 points could not be measured"), "{said}");
}

#[test]
fn bad_input_gives_one_clear_line_and_2() {
    let lanes = "'memory read_bytes=4KiB read_lines=1 write_lines=1 lanes=2'";
    for (arguments, says) in [
        ("null null --budget 0s", "no time to measure in"),
        ("null null --error 0%", "is a chance above 0% and below 50%"),
        ("null null --ignore NaN", "0% to 1000% is wanted"),
        ("null 'null x'", "B: `x` is not a parameter"),
        ("'null cpu=9999' null", "A: cpu is 9999: there is no such CPU"),
        ("null null --pin 9999", "--pin is 9999: there is no such CPU"),
        ("/nowhere/daqmeter true --plan quick", "/nowhere/daqmeter is not a file"),
        ("true true --plan quack", "quack"),
        // Only the side can give this message.
        ("nothing nothing", "side A: no engine is named `nothing`"),
        ("null 'convert samples=x'", "side B: "),
        (&format!("{lanes} {lanes}"), "it has 2 lanes, which run together"),
    ] {
        let (_, said) = ends_with(2, &format!("ab {arguments}"));
        assert!(said.contains(says) && !said.contains("panicked"), "{arguments}: {said}");
    }
    fail_with(2, &[("ab-side", "is started by daqmeter ab, not by hand")]);
}
