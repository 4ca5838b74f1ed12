//! The command for a user: exit codes, one clear line for bad input, kept records, printed text.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops where it fails, and says what it left out"
)]

use std::path::PathBuf;
use std::process::Output;

use assert_cmd::Command;

fn daqmeter(arguments: &[&str]) -> Output {
    Command::cargo_bin("daqmeter").unwrap().args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn quick(more: &[&str]) -> Output {
    let mut arguments = vec!["digitizer", "emu:l0", "-S", "3200", "--unpaced"];
    arguments.extend(more);
    daqmeter(&arguments)
}

#[test]
fn bad_input_gives_one_clear_line_and_exit_2() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo = fifo.to_str().unwrap();
    let directory = dir.path().to_str().unwrap();
    for (arguments, says) in [
        (vec!["emu:l0", "-S", "0"], "`samples` is 0"),
        (vec!["emu:l0", "-S", "4G"], "1 to 1073741824"),
        (vec!["emu:l0", "-N", "0"], "-N 0"),
        (vec!["emu:l0", "-f", "0"], "1 or more"),
        (vec!["emu:l0", "-S", "160", "-o", "160"], "past the 160 samples"),
        (vec!["emu:l0", "-A", "9"], "0 to 8, 99 or 100"),
        (vec!["emu:l0", "-A", "-1"], "-1"),
        (vec!["emu:l0", "-B", "1", "-S", "3M"], "-B 0"),
        (vec!["emu:l0", "-F", "nan", "-A", "3"], "finite"),
        (vec!["emu:zz9"], "emu:l0"),
        (vec!["emu:l0", "emu:l0"], "named twice"),
        (vec!["emu:l0", "--isa", "mmx"], "possible values: best, portable"),
        (vec![""], "names no board"),
        (vec!["/dev/no such board"], "/dev/no such board: No such file"),
        (vec!["emu:l0", "--pin", "900"], "pin is 900: there is no such CPU"),
        (vec!["emu:l0", "--profile", "/nonexistent.toml"], "ess-2017"),
        (vec!["/nonexistent/sis8300-1"], "No such file"),
        (vec!["/dev/null"], "does not answer a register read"),
        (vec![fifo], "is a FIFO"),
        (vec![directory], "is a directory"),
    ] {
        let output = daqmeter(&[&["digitizer"], &arguments[..]].concat());
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(says), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        if error.starts_with("daqmeter:") {
            assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
        }
    }
}

#[test]
fn values_that_clap_refuses_name_the_option() {
    for (arguments, says) in [
        (["emu:l0", "-S", "many"], "300000, 0x100000, 3M, 1e6 or 64Ki"),
        (["emu:l0", "--rate", "fast"], "14Hz"),
        (["emu:l0", "--block", "big"], "64KiB"),
        (["emu:l0", "--poll-interval", "soon"], "10ms"),
        (["emu:l0", "--pin", "x"], "0,1 or 0-3"),
    ] {
        let output = daqmeter(&[&["digitizer"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
}

#[cfg(unix)]
#[test]
fn names_that_are_no_text_are_refused_and_not_a_panic() {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"/dev/\xFF\xFE");
    let output =
        Command::cargo_bin("daqmeter").unwrap().arg("digitizer").arg(name).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("is not UTF-8, as names in records are"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_full_disk_is_told_and_what_was_printed_stays() {
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    let output = quick(&["--records", "/dev/full", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/dev/full"), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 1, "the record is printed though the disk is full");
}

#[test]
fn every_letter_of_the_original_works_as_typed() {
    let line = [
        "digitizer",
        "emu:l0",
        "emu:l1",
        "-S",
        "30000",
        "-N",
        "3",
        "-o",
        "1",
        "-f",
        "10",
        "-O",
        "-1e-5",
        "-F",
        "-7e-05",
        "-B",
        "0",
        "-A1",
    ];
    let output = daqmeter(&[&line[..], &["--unpaced", "--format", "classic"]].concat());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for expected in [
        " function        1",
        " nreads          3",
        " dec_offset      1",
        " dec_factor      10",
        " scale_offset    -0.000010",
        " scale_factor    -0.000070",
        " ndevices        2",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(text.lines().filter(|line| line.contains("func_decsca")).count(), 2);
    assert_eq!(text.lines().filter(|line| line.contains("func_readout")).count(), 2);
}

#[test]
fn options_may_come_before_and_after_devices() {
    let output = daqmeter(&[
        "digitizer",
        "-S",
        "3200",
        "emu:l0",
        "-A",
        "4",
        "emu:ku0",
        "--unpaced",
        "--format",
        "classic",
    ]);
    assert!(stdout(&output).contains(" ndevices        2"), "{}", stderr(&output));
}

#[test]
fn a_trigger_loop_accounts_for_every_trigger_by_polling_and_by_interrupt() {
    for more in [vec!["-l", "8", "--rate", "1kHz"], vec!["-l", "8", "-i", "--rate", "1kHz"]] {
        let output = quick(&[&more[..], &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let record: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        let ledgers = record["ledgers"].as_array().unwrap();
        let triggers = ledgers.iter().find(|ledger| ledger["unit"] == "triggers").unwrap();
        let losses: u64 = triggers["losses"]
            .as_object()
            .unwrap()
            .values()
            .map(|count| count.as_u64().unwrap())
            .sum();
        assert_eq!(
            triggers["issued"].as_u64().unwrap(),
            triggers["delivered"].as_u64().unwrap() + losses
        );
        assert_eq!(triggers["delivered"], 8);
        let reads = record["counters"]
            .as_array()
            .unwrap()
            .iter()
            .find(|counter| counter["name"] == "register-reads")
            .unwrap();
        assert!(reads["value"].as_f64().unwrap() >= 8.0);
    }
}

#[test]
fn a_board_that_disappears_fails_its_row_and_the_run_with_exit_1() {
    let arguments =
        ["digitizer", "emu:l0:gone-after=4", "emu:l1", "-S", "3200", "-N", "9", "--unpaced"];
    let quiet = daqmeter(&[&arguments[..], &["-q"]].concat());
    assert_eq!(quiet.status.code(), Some(1));
    assert!(stdout(&quiet).is_empty());
    let said = stderr(&quiet);
    assert!(said.contains("digitizer: FAILED: emu:l0:gone-after=4: emu:l0"), "{said}");
    let output = daqmeter(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.contains("FAILED emu:l0:gone-after=4"), "{text}");
    assert!(
        text.lines().any(|line| line.contains("emu:l1")
            && line.contains(" 9 ")
            && !line.contains("FAILED")),
        "the other board did all its reads: {text}"
    );
}

#[test]
fn a_short_read_is_a_named_loss() {
    let output =
        daqmeter(&["digitizer", "emu:l0:short-read-at=3", "-S", "3200", "-N", "9", "--unpaced"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.contains("+ 3200 short read"), "{text}");
}

#[test]
fn more_threads_than_cores_run_and_say_so() {
    let output = daqmeter(&["digitizer", "emu:l0..40", "-S", "1600", "--unpaced"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("41 threads share"), "{}", stdout(&output));
}

fn recorded() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    let out = path.to_str().unwrap().to_owned();
    for function in ["0", "4"] {
        assert_eq!(quick(&["-N", "5", "-A", function, "--records", &out]).status.code(), Some(0));
    }
    (dir, path)
}

#[test]
fn records_can_be_shown_and_reported_in_every_format() {
    let (dir, path) = recorded();
    let path = path.to_str().unwrap();
    assert!(stdout(&daqmeter(&["report", path, "--format", "text"])).contains("read-out"));
    assert!(stdout(&daqmeter(&["report", path, "--format", "md"])).starts_with("| device |"));
    assert!(
        stdout(&daqmeter(&["report", path, "--format", "csv"]))
            .starts_with("run_id,time_utc,study")
    );
    assert_eq!(stdout(&daqmeter(&["report", path, "--format", "json"])).lines().count(), 2);
    let page = dir.path().join("page.html");
    let output = daqmeter(&["report", path, "-o", page.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(std::fs::read_to_string(page).unwrap().contains("class=\"chart\""));
}

#[test]
fn a_cut_file_gives_what_is_whole_and_names_the_rest() {
    let (_dir, path) = recorded();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 40]).unwrap();
    let output = daqmeter(&["report", path.to_str().unwrap(), "--format", "text"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("line 2: cut off"), "{}", stderr(&output));
}

#[test]
fn files_without_records_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("foreign.txt");
    std::fs::write(&path, "hello\n").unwrap();
    let output = daqmeter(&["report", path.to_str().unwrap(), "--format", "text"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("holds no record"));
    assert_eq!(daqmeter(&["report", "/nonexistent.jsonl"]).status.code(), Some(2));
}

#[test]
fn a_page_that_cannot_be_written_leaves_nothing_behind() {
    let (dir, path) = recorded();
    let target = dir.path().join("missing/page.html");
    let output = daqmeter(&["report", path.to_str().unwrap(), "-o", target.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn what_the_host_lacks_does_not_stop_list_and_doctor() {
    let text = stdout(&daqmeter(&["list"]));
    for expected in ["emu:ku0", "digitizer", "func_smn2double", "portable"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(daqmeter(&["doctor"]).status.code(), Some(0));
}

#[test]
fn completions_and_manual_pages_are_made() {
    assert!(stdout(&daqmeter(&["completions", "bash"])).contains("daqmeter"));
    assert!(stdout(&daqmeter(&["help", "--man", "digitizer"])).contains(".TH"));
    assert_eq!(daqmeter(&["help", "--man", "nonsense"]).status.code(), Some(2));
}

#[test]
fn serving_refuses_what_it_cannot_serve() {
    let output = daqmeter(&["digitizer", "serve", "/dev/null", "/tmp"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("only emulated boards"));
}

#[test]
fn ctrl_c_keeps_what_was_measured_and_exits_130() {
    use std::io::Read;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    // A trigger every 20 ms has no end, so that only the signal ends the run.
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("daqmeter"))
        .args([
            "digitizer",
            "emu:l0",
            "-S",
            "3200",
            "-l",
            "60000",
            "--rate",
            "50Hz",
            "--unpaced",
            "--records",
        ])
        .arg(&path)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The lane's thread has taken its first trigger when it has run: this waits for the thread,
    // then for a little real work.
    let tasks = format!("/proc/{}/task", child.id());
    let lane_runs = || {
        let entries = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        entries.into_iter().any(|task| {
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.starts_with("lane-"))
        })
    };
    while !lane_runs() {
        std::thread::yield_now();
    }
    let signalled = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(signalled.success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("interrupted"), "{text}");
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 1);
}

#[test]
fn help_for_people() {
    for verb in [
        "",
        "ab",
        "survey",
        "digitizer",
        "run",
        "reproduce",
        "report",
        "cmp",
        "history",
        "serve",
        "list",
        "doctor",
    ] {
        let arguments: Vec<&str> =
            [verb, "-h"].into_iter().filter(|argument| !argument.is_empty()).collect();
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_suffix(if verb.is_empty() { "daqmeter" } else { verb });
        settings.bind(|| insta::assert_snapshot!("help", stdout(&daqmeter(&arguments))));
    }
}

#[test]
fn several_studies_are_totals_and_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("all.html");
    let output = daqmeter(&[
        "reproduce",
        "etherbone",
        "pmu",
        "--no-measurement",
        "-o",
        page.to_str().unwrap(),
    ]);
    let text = stdout(&output);
    assert!(text.contains("\n  27 rows: ") && text.contains("\n  18 rows: "), "{text}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("study-etherbone") && html.contains("study-pmu"));
    assert!(html.contains("daqmeter reproduce etherbone"));
}

#[test]
fn records_that_failed_end_a_reproduction_with_1() {
    let example = include_str!("../../record/testdata/v1/digitizer.jsonl");
    let mut record: serde_json::Value =
        serde_json::from_str(example.lines().next().unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    for (outcome, code) in [
        (serde_json::json!({ "status": "ok" }), 0),
        (serde_json::json!({ "status": "failed", "reason": "bytes differ" }), 1),
    ] {
        record["outcome"] = outcome;
        std::fs::write(&path, format!("{record}\n")).unwrap();
        let output = daqmeter(&["reproduce", "digitizer", "--from", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    }
}
