//! Outputs for people and scripts: files that are named once, answers before tables, metrics during
//! a run.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use common::{PROGRAM, fail_with, stderr, stdout};

fn within(folder: &tempfile::TempDir, arguments: &str) -> Output {
    Command::new(PROGRAM).args(arguments.split(' ')).current_dir(folder.path()).output().unwrap()
}

const RECORDS: &str = include_str!("../../record/testdata/v1/digitizer.jsonl");

/// Runs every verb that writes files. Its outputs are named as each other, as its input by any
/// name, or as files that they must not replace.
#[test]
fn no_verb_writes_over_what_it_reads_over_its_other_output_or_over_records() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let texts = [
        ("r.jsonl", RECORDS),
        ("page.html", "<!doctype html>"),
        ("p.toml", PLAN),
        ("data", "of last year"),
    ];
    for (name, text) in texts {
        std::fs::write(place(name), text).unwrap();
    }
    std::os::unix::fs::symlink("r.jsonl", place("link")).unwrap();
    std::os::unix::fs::symlink("not-yet", place("early")).unwrap();
    std::fs::hard_link(place("r.jsonl"), place("hard.csv")).unwrap();
    let same = "name the same file";
    let (records, none) = ("holds records", "does not hold records");
    for (line, says) in [
        ("survey --budget 1s -o a --records a", same),
        ("survey --budget 1s -o early --records not-yet", same),
        ("survey --budget 1s -o records.jsonl", same),
        ("survey --budget 1s -o r.jsonl", records),
        ("run p.toml --records p.toml", same),
        ("run quick --records page.html", none),
        ("digitizer emu:l0 --records data", none),
        ("reproduce pmu -o a --records a", same),
        ("reproduce --from r.jsonl -o r.jsonl", same),
        ("reproduce --from link -o hard.csv", records),
        ("reproduce digitizer --from r.jsonl -o link", same),
        ("eb perf loop/udp -o a --records a", same),
        ("path run digitizer-crate -o a --records a", same),
        ("path run digitizer-crate -o r.jsonl", records),
        ("path run p.toml -o p.toml", same),
        ("path run digitizer-crate --set source.file=data -o data", same),
        ("readout run gbt --time 10ms -o a --records a", same),
        ("readout record p.toml -o p.toml", same),
        ("readout record gbt -o r.jsonl", records),
        ("readout sweep gbt -o a --records a", same),
        ("copy latency --sizes 64 -o a --records a", same),
        ("copy bandwidth --sizes 64 -o a --records a", same),
        ("copy pollution -o a --records a", same),
        ("copy latency --records data", none),
        ("copy trace --records data", none),
        ("pmu stat --records a -o a", same),
        ("pmu stat --from data -o data", same),
        ("pmu verify --records page.html", none),
        ("report r.jsonl -o r.jsonl", same),
        ("report r.jsonl --format csv -o link", same),
        ("report r.jsonl --format json -o hard.csv", records),
        ("report - -o r.jsonl", records),
        ("report r.jsonl --format parquet -o hard.csv", records),
        ("report . -o hard.csv", records),
        ("ab null null --records page.html", none),
    ] {
        let out = within(&folder, line);
        let said = stderr(&out);
        assert_eq!(out.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(says), "{line}: {said}");
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
    }
    for (name, text) in texts {
        let left = std::fs::read_to_string(place(name)).unwrap();
        assert_eq!(left, text, "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 7);
    for line in [
        "report r.jsonl --format csv -o /dev/null",
        "report r.jsonl --format csv -o /dev/stdout",
        "report r.jsonl -o -",
        "report r.jsonl -o page.html",
        "run p.toml --records /dev/null",
    ] {
        let out = within(&folder, line);
        assert_eq!(out.status.code(), Some(0), "{line}: {}", stderr(&out));
    }
}

/// A reader that closes the pipe (`| head -1`) ends the run as it ends other programs. The measured
/// points are in the file.
#[test]
fn a_closed_pipe_is_no_success_and_costs_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let plan =
        "title = 't'\ntime = '5ms'\n[[sweep]]\nstudy = 'a'\nengine = 'null'\nrepetitions = 100\n";
    std::fs::write(folder.path().join("p.toml"), plan).unwrap();
    let mut child = Command::new(PROGRAM)
        .args(["run", "p.toml", "--json", "--records", "r.jsonl"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut reader = BufReader::with_capacity(16, child.stdout.take().unwrap());
    reader.read_line(&mut first).unwrap();
    drop(reader);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(141), "{}", stderr(&out));
    assert_eq!(stderr(&out), "");
    let kept = std::fs::read_to_string(folder.path().join("r.jsonl")).unwrap();
    assert!(kept.starts_with(&first) && kept.lines().count() > 1);
    let mut child = Command::new(PROGRAM)
        .args(["readout", "record", "gbt", "--triggers", "1M", "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), stderr(&out).as_str()), (Some(141), ""));
}

#[test]
fn help_is_a_verb_and_folders_are_read_by_every_verb_of_records() {
    for verbs in ["", "readout run", "cmp"] {
        let folder = tempfile::tempdir().unwrap();
        let as_verb = within(&folder, format!("help {verbs}").trim());
        let as_option = within(&folder, format!("{verbs} --help").trim());
        assert_eq!(stdout(&as_verb).trim(), stdout(&as_option).trim());
        assert!(stdout(&as_verb).contains("Usage: daqmeter"));
    }
    fail_with(2, &[("help readout nothing", "there is no verb `readout nothing`")]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("day")).unwrap();
    std::fs::write(folder.path().join("day/r.jsonl"), RECORDS).unwrap();
    let shown = |line: &str| {
        let out = within(&folder, line);
        (out.status.code(), stdout(&out))
    };
    assert_eq!(shown("report day --format text"), shown("report day/r.jsonl --format text"));
    let file = "report day/r.jsonl --format csv";
    assert_eq!(shown("report day --format csv"), shown(file));
    let (code, text) = shown("cmp day/r.jsonl day/r.jsonl --all");
    assert!(text.contains("records of"), "{text}");
    let of_folder = text.replace("day/r.jsonl", "day");
    assert_eq!(shown("cmp day day --all"), (code, of_folder));
}

#[test]
fn standard_output_is_no_file_of_a_measurement() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        "survey -o -",
        "survey --records -",
        "run quick --records -",
        "digitizer emu:l0 --records -",
        "readout run gbt -o -",
        "copy latency -o -",
        "eb perf loop/udp --records -",
        "pmu stat --records -",
    ] {
        let out = within(&folder, arguments);
        let said = stderr(&out);
        assert_eq!(out.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains("standard output is taken"), "{arguments}: {said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_done_is_refused_in_a_line() {
    let records = concat!(env!("CARGO_MANIFEST_DIR"), "/../record/testdata/v1/digitizer.jsonl");
    fail_with(
        2,
        &[
            ("survey --budget 0s", "no time to measure in"),
            ("run quick --budget 0", "no time to measure in"),
            (&format!("report {records} -o x.xlsx"), "`.xlsx` says no format"),
            ("serve nosuchdir", "nosuchdir: no such file or folder"),
        ],
    );
}

const PLAN: &str = "
title = 't'
time = '5ms'
[[sweep]]
study = 'a'
engine = 'null'
";

#[test]
fn records_are_appended_and_quiet_prints_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), PLAN).unwrap();
    for lines in 1..=2 {
        let out = within(&folder, "run p.toml --records r.jsonl");
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        assert!(stdout(&out).contains("null"), "{}", stdout(&out));
        let records = std::fs::read_to_string(folder.path().join("r.jsonl")).unwrap();
        assert_eq!(records.lines().count(), lines);
    }
    let out = within(&folder, "run p.toml -q --records r.jsonl");
    assert_eq!((stdout(&out).as_str(), stderr(&out).as_str()), ("", ""));
    assert_eq!(out.status.code(), Some(0));
}

#[test]
fn a_record_has_what_its_conditions_are_judged_by() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), PLAN).unwrap();
    let out = within(&folder, "run p.toml --json");
    let record: serde_json::Value = serde_json::from_str(&stdout(&out)).unwrap();
    let speeds = record["lanes"][0]["reference_ns"].as_array().unwrap();
    assert!(speeds.len() == 2 && speeds.iter().all(|ns| ns.as_u64().unwrap() > 0), "{speeds:?}");
}

/// A survey of little time reports the points that it left out, and prints answers without tables.
#[test]
fn a_survey_answers_first_and_ends_with_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    let out = within(&folder, "survey --budget 1");
    let (text, said) = (stdout(&out), stderr(&out));
    assert!(matches!(out.status.code(), Some(0 | 1)), "{said}");
    assert!(said.contains("the budget was over before"), "{said}");
    assert!(!text.contains("spread [%]") && text.contains(" points in "), "{text}");
}
