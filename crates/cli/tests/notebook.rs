//! Plans, comparisons, history, export and serving for users.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{PROGRAM, are_refused, daqmeter, stderr, stdout};

const PLAN: &str = "title = 'Tiny'\nabout = 'For tests.'\nrepetitions = 2\ntime = '2ms'\n[[sweep]]\nstudy = 'tiny'\nengine = 'memory'\n\
                    workload = { read_lines = 1, write_lines = 0 }\naxes = { read_bytes = ['4KiB', '16KiB'] }\n";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write("plan.toml", PLAN);
        folder
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn lines(&self, name: &str) -> usize {
        std::fs::read_to_string(self.path(name)).unwrap().lines().count()
    }

    fn measured(&self, name: &str) -> String {
        let out = self.path(name);
        assert_eq!(
            daqmeter("run", &[&self.path("plan.toml"), "--records", &out]).status.code(),
            Some(0)
        );
        out
    }
}

#[test]
fn an_interrupted_plan_is_gone_on_with_where_it_stopped() {
    let folder = Folder::new();
    let out = folder.measured("out.jsonl");
    assert_eq!(folder.lines("out.jsonl"), 4);
    // A crash would cut the third line off.
    let text = std::fs::read_to_string(&out).unwrap();
    let two: usize = text.lines().take(2).map(|line| line.len() + 1).sum();
    std::fs::write(&out, &text[..two + 100]).unwrap();
    let again = daqmeter("run", &[&folder.path("plan.toml"), "--records", &out, "--resume"]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert!(stderr(&again).contains("2 of 4 points are in the file already"), "{}", stderr(&again));
    assert!(stderr(&again).contains("line 3: not a record"), "{}", stderr(&again));
    let shown = daqmeter("report", &[&out, "--format", "csv"]);
    // Two points were whole, and two were measured again; a memory point has a row for each kind of
    // read.
    let rows = stdout(&shown).lines().count() - 1;
    assert!(rows >= 4 && rows.is_multiple_of(4), "{rows} rows");
    let done = daqmeter("run", &[&folder.path("plan.toml"), "--records", &out, "--resume"]);
    assert!(stderr(&done).contains("4 of 4 points are in the file already"));
}

#[test]
fn a_budget_ends_a_plan_between_points_and_says_how_to_go_on() {
    let folder = Folder::new();
    let out = folder.path("out.jsonl");
    let run = daqmeter("run", &[&folder.path("plan.toml"), "--records", &out, "--budget", "1ns"]);
    assert_eq!(run.status.code(), Some(0));
    assert!(
        stderr(&run).contains("0 of 4 points measured")
            && stderr(&run).contains("--resume goes on"),
        "{}",
        stderr(&run)
    );
}

#[test]
fn a_list_shows_points_and_runs_nothing() {
    let folder = Folder::new();
    let listed = stdout(&daqmeter("list", &[&folder.path("plan.toml")]));
    assert!(
        listed.contains("4 points, 2 of them different") && listed.contains("ready"),
        "{listed}"
    );
    assert!(stdout(&daqmeter("list", &["plans"])).contains("digitizer-2017"));
}

#[test]
fn what_this_host_lacks_is_waived_and_what_is_refused_costs_no_other_point() {
    let folder = Folder::new();
    let absent = if cfg!(target_arch = "x86_64") { "neon" } else { "avx512" };
    let sweep = |engine: &str, workload: &str| {
        format!("[[sweep]]\nstudy = 's'\nengine = '{engine}'\nworkload = {{ {workload} }}\n")
    };
    let waived = sweep("convert", &format!("samples = 1000, function = 3, isa = '{absent}'"));
    folder.write("plan.toml", &format!("{PLAN}{waived}"));
    let listed = stdout(&daqmeter("list", &[&folder.path("plan.toml")]));
    let why = format!("this CPU has no {absent}");
    assert!(listed.contains(&format!("waived: {why}")), "{listed}");
    let run = daqmeter("run", &[&folder.path("plan.toml")]);
    assert!(
        run.status.success() && stdout(&run).contains(&why),
        "{}{}",
        stdout(&run),
        stderr(&run)
    );

    folder.write(
        "plan.toml",
        &format!("{PLAN}{}", sweep("copy", "path = 'by-hand', block_bytes = 64")),
    );
    let run = daqmeter("run", &[&folder.path("plan.toml"), "--records", &folder.path("out.jsonl")]);
    assert_eq!((run.status.code(), folder.lines("out.jsonl")), (Some(2), 4), "{}", stderr(&run));
    assert!(
        stderr(&run).contains("by-hand")
            && stderr(&run).contains("2 of 6 points could not be measured")
    );
}

#[test]
fn two_runs_do_not_write_one_file() {
    let folder = Folder::new();
    let out = folder.path("out.jsonl");
    let held = std::fs::File::create(&out).unwrap();
    held.lock().unwrap();
    are_refused(
        "run",
        &[(&[&folder.path("plan.toml"), "--records", &out], "is being written by another run")],
    );
    drop(held);
    assert_eq!(
        daqmeter("run", &[&folder.path("plan.toml"), "--records", &out]).status.code(),
        Some(0)
    );
}

#[test]
fn a_gate_fails_on_what_became_slower_and_on_nothing_else() {
    let folder = Folder::new();
    let out = folder.measured("a.jsonl");
    let text = std::fs::read_to_string(&out).unwrap();
    // Ten invocations a side, in turn, have our own samples: the test is of the comparison, not of
    // this host.
    let side = |name: &str, ns: u64, parity: u64, runs: u64| {
        let mut lines = String::new();
        for run in 0..runs {
            let mut record: serde_json::Value =
                serde_json::from_str(text.lines().next().unwrap()).unwrap();
            let minute = 2 * run + parity;
            record["run_id"] = format!("run-{minute}").into();
            record["time_utc"] = format!("2026-11-22T03:{minute:02}:00.000Z").into();
            for stage in record["lanes"][0]["stages"].as_array_mut().unwrap() {
                stage["sample_ns"] =
                    (0..20).map(|at| ns + run * 7 % 5 + at % 5).collect::<Vec<u64>>().into();
            }
            lines.push_str(&format!("{record}\n"));
        }
        folder.write(name, &lines);
        folder.path(name)
    };
    let (a, b, same) = (
        side("before.jsonl", 10_000, 0, 10),
        side("after.jsonl", 10_800, 1, 10),
        side("same.jsonl", 10_001, 1, 10),
    );
    let code = |arguments: &[&str]| daqmeter("cmp", arguments).status.code();
    assert_eq!(code(&[&a, &b]), Some(1), "different");
    assert_eq!(code(&[&a, &same]), Some(0), "the same");
    assert_eq!(code(&[&a, &b, "--fail-on", "5%"]), Some(1));
    assert_eq!(code(&[&a, &b, "--fail-on", "15%"]), Some(0));
    assert_eq!(code(&[&b, &a, "--fail-on", "5%"]), Some(0), "faster is not a regression");
    let alike = daqmeter("cmp", &[&a, &same, "--fail-on", "5%"]);
    assert!(
        stdout(&alike).ends_with("verdict: same, within 2 % everywhere\n"),
        "{}",
        stdout(&alike)
    );
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&daqmeter("cmp", &[&a, &b, "--json"]))).unwrap();
    assert_eq!(json["points"][0]["verdict"], "slower");
    // One invocation a side says nothing, and a gate reports that.
    let (one, other) = (side("one.jsonl", 10_000, 0, 1), side("other.jsonl", 10_800, 1, 1));
    assert_eq!(code(&[&one, &other]), Some(3), "cannot tell");
    let gate = daqmeter("cmp", &[&one, &other, "--fail-on", "5%"]);
    assert_eq!(gate.status.code(), Some(3));
    assert!(stderr(&gate).contains("--fail-on had no power"), "{}", stderr(&gate));
    let known = daqmeter(
        "cmp",
        &[&one, &side("again.jsonl", 10_001, 31, 1), "--history", &a, "--history", &same],
    );
    assert_eq!(known.status.code(), Some(0), "{}", stdout(&known));
}

#[test]
fn what_cannot_be_compared_exported_or_planned_is_refused_in_a_line() {
    let folder = Folder::new();
    let out = folder.measured("a.jsonl");
    folder.write("empty.jsonl", "");
    folder.write("newer.jsonl", "{\"schema\":99,\"new\":true}\n");
    folder.write("typo.toml", &PLAN.replace("read_lines", "raed_lines"));
    let (empty, newer, typo) =
        (folder.path("empty.jsonl"), folder.path("newer.jsonl"), folder.path("typo.toml"));
    are_refused(
        "cmp",
        &[
            (&[&out, &empty], "holds no record"),
            (&[&out, &newer], "holds no record"),
            (&[&out, "/nonexistent"], "No such file"),
        ],
    );
    assert!(
        stderr(&daqmeter("report", &[&newer, "--format", "text"]))
            .contains("schema version 99, this daqmeter reads up to 1: use the newer daqmeter")
    );
    are_refused(
        "run",
        &[
            (&[&typo], "typo.toml:8: sweep 1, workload: `raed_lines` is not a parameter of memory"),
            (&[&folder.path("plan.toml"), "--resume"], "name it with --records"),
        ],
    );
    are_refused("history", &[(&[&out], "no point was done twice")]);
    are_refused("report", &[(&[&folder.path("")], "holds no record")]);
}

#[test]
fn a_step_between_revisions_is_found() {
    let folder = Folder::new();
    let out = folder.measured("a.jsonl");
    let first = std::fs::read_to_string(&out).unwrap().lines().next().unwrap().to_owned();
    std::fs::create_dir(folder.0.path().join("host")).unwrap();
    for day in 1..=12 {
        let mut record: serde_json::Value = serde_json::from_str(&first).unwrap();
        record["time_utc"] = format!("2026-11-{day:02}T00:00:00.000Z").into();
        record["run_id"] = format!("run-{day}").into();
        record["tool"]["git_revision"] = if day <= 6 { "aaaaaaa" } else { "bbbbbbb" }.into();
        for stage in record["lanes"][0]["stages"].as_array_mut().unwrap() {
            let ns = if day <= 6 { 1000 } else { 1200 };
            stage["sample_ns"] = (0..20).map(|at| ns + (at + day) % 4).collect::<Vec<u64>>().into();
        }
        folder.write(&format!("host/2026-11-{day:02}.jsonl"), &format!("{record}\n"));
    }
    let found = daqmeter("history", &[&folder.path("host")]);
    assert_eq!(found.status.code(), Some(0), "{}", stderr(&found));
    assert!(
        stdout(&found).contains("slower from 2026-11-07T00:00 on (between aaaaaaa and bbbbbbb; z "),
        "{}",
        stdout(&found)
    );
}

#[test]
fn parquet_begins_and_ends_as_parquet_does() {
    let folder = Folder::new();
    let (out, parquet) = (folder.measured("a.jsonl"), folder.path("a.parquet"));
    let done = daqmeter("report", &[&out, "--rows", "samples", "-o", &parquet]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let bytes = std::fs::read(&parquet).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    assert!(!Path::new(&folder.path("a.parquet.part")).exists());
}

#[test]
fn a_line_of_a_hundred_megabytes_costs_only_itself() {
    let folder = Folder::new();
    let out = folder.measured("a.jsonl");
    let whole = std::fs::read(&out).unwrap();
    let mut file = std::fs::File::create(folder.path("long.jsonl")).unwrap();
    let piece = vec![b'x'; 1 << 20];
    (0..100).for_each(|_| file.write_all(&piece).unwrap());
    file.write_all(b"\n").unwrap();
    file.write_all(&whole).unwrap();
    let shown = daqmeter("report", &[&folder.path("long.jsonl"), "--format", "text"]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(
        stderr(&shown).contains("line 1: longer than") && stdout(&shown).contains("read"),
        "{}",
        stderr(&shown)
    );
}

#[test]
fn a_browser_gets_the_index_and_a_report_and_a_signal_ends_the_server() {
    let folder = Folder::new();
    folder.measured("a.jsonl");
    std::os::unix::fs::symlink("/dev/zero", folder.path("zero.jsonl")).unwrap();
    let mut child = Command::new(PROGRAM)
        .args(["serve", &folder.path(""), "--port", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.trim().strip_prefix("serving 1 file at http://").unwrap().to_owned();
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(address.trim_end_matches('/')).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let index = get("/");
    assert!(index.starts_with("HTTP/1.1 200") && index.contains("a.jsonl"), "{index}");
    let page = index.split("<a href=\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(get(page).contains("tiny"));
    assert!(get("/report/1").starts_with("HTTP/1.1 404"));
    let ended = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(ended.success() && child.wait().unwrap().code() == Some(130));
    are_refused("serve", &[(&["/dev/zero"], "no such file or folder")]);
}

#[test]
fn a_run_tells_its_progress_as_metrics() {
    let folder = Folder::new();
    let run = daqmeter("run", &[&folder.path("plan.toml"), "--metrics", "127.0.0.1:0"]);
    assert!(stderr(&run).contains("metrics at http://127.0.0.1:"), "{}", stderr(&run));
    are_refused(
        "run",
        &[(
            &[&folder.path("plan.toml"), "--metrics", "256.0.0.1:1"],
            "cannot listen on 256.0.0.1:1",
        )],
    );
}

#[test]
fn the_survey_is_a_plan_that_can_be_listed() {
    let listed = |arguments: &[&str]| {
        let out = daqmeter("list", arguments);
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        stdout(&out)
    };
    let plans = listed(&["plans"]);
    assert!(plans.contains("survey-short"), "{plans}");
    let points = listed(&["survey-short"]);
    assert!(points.contains("survey/felix") && points.contains("survey/memory"), "{points}");
    assert!(points.contains("; 20 s for all"), "{points}");
}
