//! `daqmeter ab` for a user: outcomes with their exit codes, records, refusals.

use crate::common::{Folder, PROGRAM, done, ends_with};
use serde_json::Value;

#[test]
fn a_point_with_itself_is_the_same() {
    // A host's disturbance is not ten times as long on one side only.
    let text = done("ab null null --ignore 900% --time 2m");
    let first = "nothing is slower: 1 point by no more than ";
    assert!(text.starts_with(first) && text.contains("\n verdict"), "{text}");
}

#[test]
fn points_that_differ_give_1_and_lines_of_json_and_a_short_budget_a_bound() {
    let points = ["convert function=3 samples=2000", "convert function=3 samples=16000"];
    let ab = |budget: &str| format!("ab '{}' '{}' --time {budget} --json", points[0], points[1]);
    let (text, _) = ends_with(1, &ab("2m"));
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    let verdict = &line["points"][0]["verdict"];
    assert_eq!((&line["conclusion"], verdict), (&"different".into(), &"slower".into()));
    assert!(line["points"][0]["invocations"][0].as_u64() >= Some(4), "{line}");
    let (text, _) = ends_with(0, "ab null null --ignore 900% --time 1ms --json");
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!(line["conclusion"], "no-difference");
    assert!(line["points"][0]["bound"].as_f64() > Some(0.0), "{line}");
}

#[test]
fn two_binaries_measure_the_points_of_a_plan_and_every_point_is_accounted_for() {
    let folder = Folder::new();
    let text = "title = 't'\n[[sweep]]\nstudy = 's'\nengine = 'null'\n\
                [[sweep]]\nstudy = 's'\nengine = 'memory'\nworkload = { read_bytes = '4KiB', read_lines = 1, write_lines = 1, lanes = 2 }\n";
    folder.write("two.toml", text);
    let text =
        folder.done(&format!("ab {PROGRAM} {PROGRAM} --plan two.toml --ignore 900% --time 2m"));
    assert!(text.contains("the tool's own loop") && text.contains("2 lanes, lane 0"), "{text}");
    let (_, said) = folder.ends_with(2, &format!("ab {PROGRAM} true --plan two.toml"));
    assert!(
        said.contains("2 of 2 points not measured: the tool's own loop: side B: ended without"),
        "{said}"
    );
}

#[test]
fn two_commands_take_turns_and_the_time_of_each_run_is_kept() {
    let folder = Folder::new();
    let turns = |count: u32| format!("'i=0; while [ $i -lt {count} ]; do i=$((i+1)); done'");
    let (few, many) = (turns(1_000), turns(100_000));
    let ab = |rest: &str| format!("ab --commands {few} {rest} --time 2m --records r.jsonl");
    let (text, _) = folder.ends_with(1, &ab(&many));
    assert!(text.contains(" command ") && text.contains("B is slower at 1 of 1 point"), "{text}");
    let kept = |side: &str| {
        let lines = folder.read("r.jsonl");
        lines.lines().filter(|line| line.contains(side)).count()
    };
    assert_eq!(kept("lt 100000 "), kept("lt 1000 "), "pairs");
    assert!(kept("sample_ns") >= 8, "four pairs before the first look");
    folder.done("report r.jsonl");
    folder.done(&ab(&format!("{few} --ignore 900%")));
    let (_, said) = folder.ends_with(2, &ab("'echo gone >&2; exit 7'"));
    assert!(said.contains("command: side B: failed (exit status: 7): gone"), "{said}");
}
