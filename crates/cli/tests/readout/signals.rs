//! Signals to the read-out verbs: each ends soon, reports its results, and gives 130. Its waits
//! have an end.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::common::{PROGRAM, are_refused, stderr, stdout};
use crate::readout;

/// Longest time until the end. Two seconds are promised; hosts of tests are slow.
const WITHIN: Duration = Duration::from_secs(10);
const EVENT_WITHIN: Duration = Duration::from_secs(60);

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(PROGRAM);
    command
        .arg("readout")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    let line = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
}

fn ended(child: &mut Child, within: Duration) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > within {
            child.kill().unwrap();
            panic!("it goes on after {} s", within.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn until_said(from: &mut impl BufRead, text: &str) {
    let begin = Instant::now();
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert!(from.read_line(&mut line).unwrap() > 0, "it ended without `{text}`");
        assert!(begin.elapsed() < EVENT_WITHIN, "no `{text}`");
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < EVENT_WITHIN, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the output after the signal: within the time, and with 130.
fn interrupted(mut child: Child, name: &str) -> String {
    let mut out = child.stdout.take().unwrap();
    signal(&child, name);
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    let status = ended(&mut child, WITHIN);
    let text = reading.join().unwrap().unwrap();
    assert_eq!(status.code(), Some(130), "{text}");
    text
}

fn errors(child: &mut Child) -> BufReader<std::process::ChildStderr> {
    BufReader::new(child.stderr.take().unwrap())
}

#[test]
fn a_receiver_that_waits_for_a_publisher_ends() {
    for name in ["INT", "TERM"] {
        let mut child = start(&["receive", "127.0.0.1:1", "--wait", "1h"]);
        until_said(
            &mut errors(&mut child),
            "waiting for publishers: cannot connect to 127.0.0.1:1",
        );
        interrupted(child, name);
    }
}

#[test]
fn a_reader_that_waits_for_its_card_or_its_subscribers_ends() {
    let directory = tempfile::tempdir().unwrap();
    let none = directory.path().join("none").display().to_string();
    let mut child = start(&["tohost", "gbt", "--card", &none, "--wait", "1h"]);
    until_said(&mut errors(&mut child), "waiting for a card at");
    interrupted(child, "INT");
    let at = directory.path().join("card").display().to_string();
    let card = start(&["emulate", "gbt", "--at", &at]);
    let mut child = start(&["tohost", "gbt", "--card", &at]);
    until_said(
        &mut errors(&mut child),
        "waiting for subscribers of 24 E-links (0x008, 0x00c, 0x010, 0x014, ...)",
    );
    assert!(interrupted(child, "INT").contains("ledger:"));
    interrupted(card, "INT");
}

#[test]
fn card_reader_and_receiver_end_with_their_accounts() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("card");
    let shown = at.display().to_string();
    let emulate = start(&["emulate", "gbt", "--at", &shown, "--rate", "5kHz", "--time", "1h"]);
    let metrics = ["--metrics", "127.0.0.1:0"];
    let mut tohost = start(&[&["tohost", "gbt", "--card", &shown][..], &metrics].concat());
    let mut said = errors(&mut tohost);
    let mut after = |text: &str| {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0);
        }
        let end = line.split(text).nth(1).unwrap();
        end.split([' ', '/', '\n']).next().unwrap().to_owned()
    };
    let page = after("metrics at http://");
    let receive = start(&["receive", &after("publishes at ")]);
    until("no bytes in the metrics", || {
        let mut text = String::new();
        let mut stream = std::net::TcpStream::connect(&page).unwrap();
        let asked = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        std::io::Write::write_all(&mut stream, asked).unwrap();
        stream.read_to_string(&mut text).unwrap();
        let mut lines = text.lines().filter(|line| line.starts_with("daqmeter_bytes_total{"));
        lines.any(|line| !line.ends_with(" 0"))
    });
    let text = interrupted(receive, "INT");
    assert!(text.contains(" chunks "), "{text}");
    let text = interrupted(emulate, "TERM");
    assert!(text.contains(" triggers in "), "{text}");
    // Its card has finished as if its triggers had ended.
    let status = ended(&mut tohost, WITHIN);
    assert!(status.code().is_some_and(|code| code < 2), "{status}");
}

#[test]
fn a_recording_ends_with_whole_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("blocks.dat");
    let shown = path.display().to_string();
    let child = start(&["record", "gbt", "--triggers", "1000000000000", "-o", &shown]);
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    until("no blocks", || bytes(&path) > 1 << 20);
    interrupted(child, "INT");
    assert_eq!(bytes(&path) % 1024, 0);
    let checked = readout(&["check", &shown]);
    assert!(checked.status.success(), "{}", stdout(&checked));
}

#[test]
fn a_run_and_a_search_end_with_their_records() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [
        &["run", "gbt", "--rate", "10kHz", "--time", "1h"][..],
        &["sweep", "gbt", "--probe", "1h", "--from", "10kHz"],
    ] {
        let records = directory.path().join(arguments[0]).display().to_string();
        let child =
            start(&[arguments, &["--records", &records, "--metrics", "127.0.0.1:0"]].concat());
        // The receiver's thread exists once the chain runs.
        let tasks = format!("/proc/{}/task", child.id());
        let names = || {
            let tasks = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
            tasks
                .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
                .collect::<String>()
        };
        until("no receiver", || names().contains("receiver\n"));
        interrupted(child, "INT");
        let record: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&records).unwrap()).unwrap();
        assert!(record["outcome"].to_string().contains("interrupted"), "{}", record["outcome"]);
    }
}

#[test]
fn what_is_waited_for_in_vain_is_said_and_ends_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let emulated = |name: &str| {
        let at = directory.path().join(name).display().to_string();
        let card = start(&["emulate", "gbt", "--at", &at]);
        until("no card", || Path::new(&at).exists());
        (card, at)
    };
    let (card, at) = emulated("one");
    are_refused(
        "readout",
        &[(
            &["tohost", "gbt", "--card", &at, "--wait", "0s"][..],
            "no subscriber of 24 E-links (0x008, 0x00c, 0x010, 0x014, ...)",
        )],
    );
    interrupted(card, "INT");
    // A subscription to a part of the E-links lets the publisher wait for the others.
    let (card, at) = emulated("other");
    let mut tohost = start(&["tohost", "gbt", "--card", &at]);
    let mut said = errors(&mut tohost);
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address =
        line.split("publishes at ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let receive = readout(&["receive", &address, "--elinks", "0x008", "--wait", "100ms"]);
    let text = stderr(&receive);
    assert!(
        receive.status.code() == Some(2) && text.contains("no data came within 100 ms"),
        "{text}"
    );
    interrupted(tohost, "INT");
    interrupted(card, "INT");
}

/// Issue 14: the card's process was killed without any report.
#[test]
fn a_card_that_is_killed_is_reported_and_ends_with_1() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("card");
    let shown = at.display().to_string();
    let mut emulate = start(&["emulate", "gbt", "--at", &shown, "--rate", "5kHz", "--time", "1h"]);
    let mut tohost = start(&["tohost", "gbt", "--card", &shown, "--no-wait"]);
    let mut said = errors(&mut tohost);
    until_said(&mut said, "publishes at ");
    emulate.kill().unwrap();
    emulate.wait().unwrap();
    until_said(&mut said, "the card's process ended before its triggers did");
    assert_eq!(ended(&mut tohost, EVENT_WITHIN).code(), Some(1));
}

/// Issue 14: `emulate --at` removed an existing file.
#[test]
fn an_ordinary_file_is_left_where_a_socket_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    let shown = path.display().to_string();
    are_refused(
        "readout",
        &[(&["emulate", "gbt", "--at", &shown][..], "is not a socket: it is left as it is")],
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    let stale = directory.path().join("stale");
    drop(UnixListener::bind(&stale).unwrap());
    let mut emulate = start(&["emulate", "gbt", "--at", &stale.display().to_string()]);
    until_said(&mut errors(&mut emulate), "triggers begin when all have readers");
    interrupted(emulate, "INT");
    assert!(!stale.exists());
}

/// Regression: each E-link had a line, with a negative number that was "unaccounted for", below a
/// verdict that had passed.
#[test]
fn a_card_that_is_killed_fails_the_verdict_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("card").display().to_string();
    let mut card = start(&["emulate", "gbt", "--at", &at, "--time", "1h"]);
    let arguments = ["tohost", "gbt", "--card", &at, "--no-wait"];
    let address = ["--address", "127.0.0.1:0"];
    let mut reader = start(&[&arguments[..], &address].concat());
    let mut said = BufReader::new(reader.stderr.take().unwrap());
    until_said(&mut said, "publishes at");
    signal(&card, "KILL");
    card.wait().unwrap();
    assert_eq!(ended(&mut reader, WITHIN).code(), Some(1));
    let mut text = String::new();
    reader.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(
        text.contains("verdict: failed: the card's process ended before its triggers did"),
        "{text}"
    );
    assert!(!text.contains("unaccounted") && text.lines().count() < 7, "{text}");
}
