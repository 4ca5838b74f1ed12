//! Where results go, as people and scripts meet it: files that are named once, answers before tables, metrics while a run lasts.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{PROGRAM, are_refused, stderr, stdout};

/// Runs the program in a folder.
fn within(folder: &tempfile::TempDir, arguments: &str) -> Output {
    Command::new(PROGRAM)
        .args(arguments.split(' '))
        .current_dir(folder.path())
        .output()
        .unwrap()
}

#[test]
fn one_file_named_twice_is_refused_and_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let same = folder.path().join("same");
    std::fs::write(&same, "records of last year\n").unwrap();
    for verb in [
        "survey --budget 1s",
        "reproduce pmu",
        "eb perf loop/udp",
        "readout run gbt --time 10ms",
        "readout sweep gbt",
        "copy latency --sizes 64",
        "copy bandwidth --sizes 64",
        "copy pollution",
    ] {
        for files in [
            "-o same --records same",
            "-o ./same --records same",
            "--output same --out same",
        ] {
            let out = within(&folder, &format!("{verb} {files}"));
            let said = stderr(&out);
            assert_eq!(out.status.code(), Some(2), "{verb} {files}: {said}");
            assert!(
                said.contains("name the same file"),
                "{verb} {files}: {said}"
            );
            assert_eq!(said.lines().count(), 1, "{verb} {files}: {said}");
        }
    }
    assert_eq!(
        std::fs::read_to_string(&same).unwrap(),
        "records of last year\n"
    );
}

#[test]
fn standard_output_is_no_file_of_a_measurement() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        "survey -o -",
        "survey --records -",
        "survey --out -",
        "run quick --records -",
        "digitizer emu:l0 --records -",
        "readout run gbt -o -",
        "copy latency -o -",
        "eb perf loop/udp --out -",
        "pmu stat --records -",
    ] {
        let out = within(&folder, arguments);
        let said = stderr(&out);
        assert_eq!(out.status.code(), Some(2), "{arguments}: {said}");
        assert!(
            said.contains("standard output is taken"),
            "{arguments}: {said}"
        );
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_done_is_refused_in_a_line() {
    are_refused("survey", &[(&["--budget", "0s"], "no time to measure in")]);
    are_refused(
        "run",
        &[(&["quick", "--budget", "0"], "no time to measure in")],
    );
    are_refused(
        "export",
        &[
            (
                &["records.jsonl", "-o", "x.xlsx"],
                "`.xlsx` cannot be written",
            ),
            (&["records.jsonl", "-o", "x"], "which format is wanted"),
        ],
    );
    are_refused(
        "serve",
        &[(&["nosuchdir"], "nosuchdir: no such file or folder")],
    );
    are_refused(
        "man",
        &[(
            &["readout", "nothing"],
            "there is no verb `readout nothing`",
        )],
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
fn records_have_one_option_and_its_older_name_and_quiet_prints_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), PLAN).unwrap();
    for (option, lines) in [("--records", 1), ("--out", 2)] {
        let out = within(&folder, &format!("run p.toml {option} r.jsonl"));
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
    assert!(
        speeds.len() == 2 && speeds.iter().all(|ns| ns.as_u64().unwrap() > 0),
        "{speeds:?}"
    );
}

/// A survey of little time: what it could not measure for lack of it is said, and the table comes where it is asked for.
#[test]
fn a_survey_answers_first_and_ends_with_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    let out = within(&folder, "survey --budget 1 --no-wait");
    let (text, said) = (stdout(&out), stderr(&out));
    assert!(matches!(out.status.code(), Some(0 | 1)), "{said}");
    assert!(said.contains("the budget was over before"), "{said}");
    assert!(!text.contains("spread [%]"), "{text}");
    let with_table = within(&folder, "survey --budget 1 --no-wait --tables");
    let text = stdout(&with_table);
    let table = text.find("spread [%]").unwrap();
    assert!(text.find(" points in ").unwrap() < table, "{text}");
}

#[test]
fn metrics_of_a_chain_are_served_while_it_runs() {
    let mut child = Command::new(PROGRAM)
        .args(["readout", "run", "gbt", "--time", "1h", "--rate", "10kHz"])
        .args(["--metrics", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("metrics at http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_owned();
    let until = Instant::now() + Duration::from_secs(120);
    let served = loop {
        let page = asked(&address);
        let triggers = page
            .lines()
            .find(|line| line.starts_with("daqmeter_triggers_total{device=\"card gbt\"} "));
        let count = triggers.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        if count.is_some_and(|count| count > 0.0) || Instant::now() > until {
            break page;
        }
        std::thread::yield_now();
    };
    interrupt(child.id());
    let code = child.wait().unwrap().code();
    assert!(
        served.contains("daqmeter_ring_size_bytes{device=\"card gbt\"}"),
        "{served}"
    );
    assert!(
        served.contains("# TYPE daqmeter_triggers_total counter"),
        "{served}"
    );
    assert_eq!(code, Some(130));
}

/// The page as a plain client gets it.
fn asked(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

/// SIGINT, as from the keyboard.
fn interrupt(pid: u32) {
    let done = Command::new("kill")
        .args(["-INT", &pid.to_string()])
        .status()
        .unwrap();
    assert!(done.success());
}
