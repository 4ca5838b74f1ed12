//! The read-out verbs for scripts: output, exit codes, one clear line for errors.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;
#[path = "readout/signals.rs"]
mod signals;

use std::process::{Command, Stdio};

use common::{PROGRAM, are_refused, daqmeter, stderr, stdout};
use daqmeter_wire::felix::Elink;
use daqmeter_wire::felix::page::{FelixFrame, FrameKind, PageWriter, Status};
use daqmeter_wire::felix::payload::{EmulatorHeader, Fid};

fn readout(arguments: &[&str]) -> std::process::Output {
    daqmeter("readout", arguments)
}

#[test]
fn bad_input_gives_one_clear_line_and_exit_2() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let (wrong, foreign, taken) = (place("wrong.toml"), place("foreign.dat"), place("taken.toml"));
    std::fs::write(&wrong, "[card]\nlinks = 3\ncolour = \"red\"\n").unwrap();
    std::fs::write(&foreign, "these are not blocks").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().to_string();
    std::fs::write(&taken, format!("[publish]\naddress = \"{port}\"\n")).unwrap();
    let none = place("none");
    are_refused(
        "readout",
        &[
            (&["run", "nothing"][..], "shipped with daqmeter: gbt, full, felig, nikhef"),
            (&["run", &wrong], "wrong.toml:3: unknown field `colour`"),
            (&["run", &taken, "--time", "10ms"], "cannot listen on"),
            (&["run", "gbt", "--pin", "1000"], "pin is 1000: there is no such CPU"),
            (&["run", "gbt", "--receiver-pin", "1000"], "`peer_cpu` is 1000: there is no such CPU"),
            (&["run", "gbt", "--payload", "0"], "card.payload"),
            (&["run", "gbt", "--transport", "pigeon"], "publish.transport"),
            (&["check", &foreign], "no file of FELIX blocks"),
            (&["check", &none], "No such file"),
            (&["check", "--scenario", "nothing"], "scenario nothing: No such file"),
            (&["record", "gbt", "-o", "/nowhere/x"], "cannot write /nowhere/x"),
            (&["tohost", "gbt", "--card", &none, "--wait", "0s"], "is a card emulated there?"),
            (&["tohost", "gbt"], "--card <PATH>"),
            (&["receive", "127.0.0.1:1", "--wait", "0s"], "cannot connect to 127.0.0.1:1"),
            (&["receive", "--bus-dir", &none, "--wait", "0s"], "bus directory"),
            (&["sweep", "gbt", "--payload", "2MiB"], "card.payload"),
            (&["run", "gbt", "--receivers", "0"], "`receivers` is 0; 1 to 1 is wanted"),
            (&["sweep", "gbt", "--receivers", "100"], "`receivers` is 100; 1 to 1 is wanted"),
            (&["receive", "127.0.0.1:1", "--elinks", "0x800"], "E-links are 0 to 0x7ff"),
            (&["run", "gbt", "--fail-on", "los=1"], "`los` is not known; write loss, order, dead"),
        ],
    );
}

#[test]
fn a_recorded_file_is_checked_and_a_damaged_one_ends_with_1() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("felig.dat");
    let shown = path.display().to_string();
    let recorded = readout(&["record", "felig", "--triggers", "2000", "-o", &shown]);
    assert!(recorded.status.success(), "{}", stderr(&recorded));
    let good = readout(&["check", &shown]);
    assert!(good.status.success(), "{}", stdout(&good));
    let text = stdout(&good).replace(&shown, "FILE");
    insta::assert_snapshot!("check", text);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.drain(40 * 1024..41 * 1024);
    bytes[60 * 1024 - 1] = 0xC0;
    std::fs::write(&path, bytes).unwrap();
    let bad = readout(&["check", &shown, "--messages", "3"]);
    assert_eq!(bad.status.code(), Some(1));
    let text = stdout(&bad);
    assert!(text.contains("sequence mismatch") && text.contains("undefined type"), "{text}");
    let json = readout(&["check", &shown, "--json", "--level", "1"]);
    let line: serde_json::Value = serde_json::from_str(stdout(&json).trim()).unwrap();
    assert_eq!(line["checked"]["faults"]["undefined type"], 1, "{line}");
}

/// Regression: a file named `-` was written.
#[test]
fn blocks_go_to_standard_output_raw_and_of_one_channel() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("felig.dat");
    let file = readout(&["record", "felig", "--triggers", "2000", "-o", path.to_str().unwrap()]);
    assert!(file.status.success(), "{}", stderr(&file));
    let piped = readout(&["record", "felig", "--triggers", "2000", "-o", "-"]);
    assert!(piped.status.success(), "{}", stderr(&piped));
    assert!(piped.stdout == std::fs::read(&path).unwrap(), "the same bytes");
    assert!(stderr(&piped).contains("wrote standard output: "));
    let one = ["--triggers", "10", "--channel", "3.1", "-o", "-"];
    let one = readout(&[&["record", "nikhef"][..], &one].concat());
    assert!(
        one.status.success() && one.stdout.len().is_multiple_of(1024) && !one.stdout.is_empty()
    );
    assert!(!std::path::Path::new("-").exists());
}

#[test]
fn several_elinks_are_checked_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("felig.dat").display().to_string();
    let recorded = readout(&["record", "felig", "--triggers", "1000", "-o", &path]);
    assert!(recorded.status.success());
    let blocks = |elinks: &str| {
        let checked = readout(&["check", &path, "--json", "--elinks", elinks]);
        let line: serde_json::Value = serde_json::from_str(stdout(&checked).trim()).unwrap();
        line["checked"]["checked_blocks"].as_u64().unwrap()
    };
    let (one, other) = (blocks("0x008"), blocks("0x010"));
    assert!(one > 0 && other > 0);
    assert_eq!(blocks("0x008,0x010"), one + other);
    assert_eq!(blocks("0x010,0x7ff"), other);
}

#[test]
fn a_check_of_nothing_ends_with_1_and_what_is_left_out_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("felig.dat").display().to_string();
    assert!(readout(&["record", "felig", "--triggers", "1000", "-o", &path]).status.success());
    let blocks = std::fs::metadata(&path).unwrap().len() / 1024;
    let checked = readout(&["check", &path, "--elink", "0x7ff"]);
    let text = stdout(&checked);
    assert_eq!(checked.status.code(), Some(1), "{text}");
    let why = format!("nothing was checked: none of {blocks} blocks is of these E-links");
    assert!(text.ends_with(&format!("verdict: failed: {why}\n")), "{text}");
    let one = readout(&["check", &path, "--elink", "0x008"]);
    assert!(one.status.success(), "{}", stdout(&one));
    // An E-link must be in one channel of a card, but need not be in all.
    let scenario =
        readout(&["check", "--scenario", "felig", "--triggers", "100", "--elink", "0x7ff"]);
    assert!(scenario.status.code() == Some(1) && stdout(&scenario).contains("nothing was checked"));
    // Loses every second block: more messages than are shown.
    let bytes = std::fs::read(&path).unwrap();
    let half: Vec<u8> = bytes.chunks(1024).step_by(2).flatten().copied().collect();
    std::fs::write(&path, half).unwrap();
    let damaged = readout(&["check", &path, "--messages", "5"]);
    let text = stdout(&damaged);
    assert!(
        damaged.status.code() == Some(1) && text.contains("more messages; --messages "),
        "{text}"
    );
    let all = text.split("--messages ").nth(1).unwrap().split(' ').next().unwrap();
    let shown = stdout(&readout(&["check", &path, "--messages", all]));
    assert!(
        shown.matches(": missing events: E-link 0x").count() > 100
            && !shown.contains("more messages")
    );
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with("verdict: failed: loss ") && last.ends_with(" is more than 0"),
        "{last}"
    );
    let allowed = readout(&["check", &path, "--fail-on", "loss=60%"]);
    assert!(allowed.status.success(), "{}", stdout(&allowed).lines().last().unwrap());
}

#[test]
fn chosen_channels_of_a_card_are_checked_and_others_are_refused() {
    let check = ["check", "--scenario", "nikhef", "--triggers", "500", "--json"];
    let names = |arguments: &[&str]| -> Vec<String> {
        let done = readout(&[&check[..], arguments].concat());
        assert!(done.status.success(), "{}", stderr(&done));
        let name = |line: &str| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].to_string()
        };
        stdout(&done).lines().map(name).collect()
    };
    assert_eq!(names(&["--channels", "3.1,0.0"]), [r#""nikhef:0.0""#, r#""nikhef:3.1""#]);
    assert_eq!(names(&[]).len(), 16);
    let unknown = readout(&[&check[..], &["--channels", "4.0"]].concat());
    assert_eq!(unknown.status.code(), Some(2));
    assert_eq!(stderr(&unknown).trim(), "daqmeter: --channels 4.0: nikhef has channels 0.0 to 3.3");
}

#[test]
fn a_run_that_loses_more_than_is_allowed_ends_with_1() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lossy.toml").display().to_string();
    // Ring and FIFO hold less data than 20 ms bring, and BUSY does not stop them.
    let text = "[trigger]\nrate = \"1MHz\"\n[card]\nlinks = 1\nring = \"1MiB\"\nfifo = \"16KiB\"\nblocks = \"live\"\n\
                [busy]\ndma = false\n[reader]\npoll = \"20ms\"\n";
    std::fs::write(&path, text).unwrap();
    let run = |limits: &[&str]| readout(&[&["run", &path, "--time", "100ms"][..], limits].concat());
    let failed = run(&[]);
    let text = stdout(&failed);
    assert_eq!(failed.status.code(), Some(1), "{text}");
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with(" verdict: failed: loss ") && last.contains(" %) is more than 0"),
        "{last}"
    );
    for limits in ["flags", "dead=50%", "loss=100%,dead=50%,flags"] {
        let passed = run(&["--fail-on", limits]);
        assert!(passed.status.success(), "{limits}: {}", stdout(&passed));
    }
    // The verdict for programs is not among the records.
    let json = run(&["--json"]);
    assert_eq!((json.status.code(), stdout(&json).lines().count()), (Some(1), 1));
    assert!(stderr(&json).contains("verdict: failed: loss"));
}

#[test]
fn faults_that_a_scenario_asks_for_fail_the_file_and_not_the_run_unless_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("faulty.dat").display().to_string();
    for (fault, every, run, check) in [
        (
            "truncated",
            2,
            "passed: loss 0, limit 0; dead 0 %, limit 1%; flags 0, limit 0",
            "failed: loss 400 of 800 (50 %) is more than 0",
        ),
        (
            "crc",
            2,
            "passed: loss 0, limit 0; dead 0 %, limit 1%; flags 0, limit 0",
            "failed: flags 400 of 800 (50 %) is more than 0",
        ),
        ("lost-block", 1, "failed: no event was delivered", ""),
    ] {
        let path = directory.path().join(format!("{fault}.toml"));
        let path = path.display().to_string();
        let card = "[trigger]\nrate = \"10kHz\"\n[card]\nlinks = 1\nring = \"16MiB\"\n";
        let text = format!("{card}[[fault]]\nkind = \"{fault}\"\nevery = {every}\n");
        std::fs::write(&path, text).unwrap();
        let done = readout(&["run", &path, "--time", "50ms"]);
        let said = stdout(&done);
        let last = said.lines().last().unwrap();
        assert_eq!(last, format!(" verdict: {run}"), "{fault}");
        assert_eq!(done.status.success(), run.starts_with("passed"), "{fault}");
        if check.is_empty() {
            continue;
        }
        let recorded = readout(&["record", &path, "--triggers", "100", "-o", &file]);
        assert!(recorded.status.success(), "{}", stderr(&recorded));
        let checked = readout(&["check", &file]);
        let said = stdout(&checked);
        let last = said.lines().last().unwrap();
        assert_eq!(last, format!("verdict: {check}"), "{fault}");
        assert_eq!(checked.status.code(), Some(1), "{fault}");
    }
}

#[test]
fn a_counter_that_falls_to_0_ends_the_check_with_3() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("felig.dat").display().to_string();
    let block = |counters: std::ops::Range<u8>| -> Vec<u8> {
        counters
            .flat_map(|event| {
                let mut chunk = [0; 24];
                EmulatorHeader { length: 24, event, elink_index: Elink::new(8).index(), width: 8 }
                    .fill(&mut chunk);
                [&chunk[..], &(3_u32 << 29 | 24).to_le_bytes()].concat()
            })
            .collect()
    };
    let bytes = |sequence: u16, counters: [std::ops::Range<u8>; 2]| {
        let [one, other] = counters.map(block);
        let head = u32::from(sequence << 11 | 8) | 0xC0CE << 16;
        let mut bytes = [&head.to_le_bytes()[..], &one, &other].concat();
        bytes.resize(1024, 0);
        bytes
    };
    let file = [bytes(0, [0..20, 20..36]), bytes(1, [36..40, 0..20])].concat();
    std::fs::write(&path, file).unwrap();
    let checked = readout(&["check", &path]);
    let text = stdout(&checked);
    assert_eq!(checked.status.code(), Some(3), "{text}");
    let last = text.lines().last().unwrap();
    assert_eq!(
        last,
        "verdict: cannot tell: loss 0, limit 0: event counters fell to 0: 1 resets, or a loss of 216"
    );
    let allowed = readout(&["check", &path, "--fail-on", "loss=216"]);
    assert!(allowed.status.success(), "{}", stdout(&allowed));
    let absent = readout(&["check", &path, "--elinks", "8,0x7ff"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(stdout(&absent).ends_with("no block was checked of E-link 0x7ff\n"));
}

/// A publisher that offers one E-link, sends one event of it and the account, if there is one, and
/// leaves.
fn fake_publisher(account: Option<serde_json::Value>) -> (String, std::thread::JoinHandle<()>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let elink = Elink::new(8);
    let tag = Fid::of_elink(0, 0, elink).to_u64();
    let mut event = [0; 24];
    EmulatorHeader { length: 24, event: 0, elink_index: elink.index(), width: 8 }.fill(&mut event);
    let (mut page, mut writer) = (vec![0; 100], PageWriter::default());
    assert!(writer.push(&mut page, tag, Status::default(), &event, 0, 24));
    page.truncate(writer.used());
    let hello = serde_json::json!({ "stream": 1, "scenario": "fake", "tags": [tag], "magic": 0xC0CE, "block_bytes": 1024 });
    let thread = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut send = |kind: FrameKind, count: u32, body: &[u8]| {
            let body_bytes = u32::try_from(body.len()).unwrap();
            let frame =
                FelixFrame { kind, body_bytes, count, sequence: u64::from(count), birth_ns: 0 };
            stream.write_all(&[&frame.emit()[..], body].concat()).unwrap();
        };
        send(FrameKind::Hello, 0, hello.to_string().as_bytes());
        send(FrameKind::Messages, 1, &page);
        if let Some(mut account) = account {
            account["card"]["elinks"][0]["tag"] = tag.into();
            send(FrameKind::Account, 0, account.to_string().as_bytes());
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // Reads everything until the receiver closes.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (address, thread)
}

/// An account with `events` issued events, all of them delivered.
fn account_of(events: u64) -> serde_json::Value {
    let zero = |names: &[&str]| {
        names.iter().map(|name| ((*name).to_owned(), 0.into())).collect::<serde_json::Map<_, _>>()
    };
    let mut elink = zero(&["tag", "deficit", "fifo_lost", "truncated", "fault_lost", "chunks"]);
    elink["chunks"] = events.into();
    let others = [
        "chunks",
        "unsubscribed",
        "dropped",
        "network_lost",
        "delivered_truncated",
        "delivered_flagged",
    ];
    let mut reader = zero(&others);
    reader.insert("delivered".to_owned(), events.into());
    reader["chunks"] = events.into();
    serde_json::json!({
        "card": { "issued": events, "vetoed_dma": 0, "vetoed_fifo": 0, "elinks": [elink] }, "readers": [reader],
    })
}

#[test]
fn a_receiver_ends_with_1_when_an_account_does_not_close_or_a_connection_is_lost() {
    for (account, limits, code, verdict) in [
        (
            Some(account_of(1)),
            &[][..],
            0,
            "verdict: passed: loss 0, limit 0; order 0, limit 0; flags 0, limit 0; connections 0, limit 0",
        ),
        (Some(account_of(3)), &[], 1, "verdict: failed: accounts that do not close: 1"),
        // Regression: the sums of this account overflowed, and the data that had arrived were lost.
        (Some(account_of(u64::MAX)), &[], 1, "verdict: failed: pages that cannot be read: 1"),
        (
            Some(account_of(3)),
            &["--fail-on", "flags"],
            1,
            "verdict: failed: accounts that do not close: 1",
        ),
        (None, &[], 1, "verdict: failed: connections 1 is more than 0"),
        (None, &["--fail-on", "loss=0"], 0, "verdict: passed: loss 0, limit 0"),
    ] {
        let (address, publisher) = fake_publisher(account);
        let received = readout(&[&["receive", &address, "--wait", "1s"][..], limits].concat());
        let text = stdout(&received);
        assert_eq!(received.status.code(), Some(code), "{limits:?}: {text}{}", stderr(&received));
        assert_eq!(text.lines().last().unwrap().trim(), verdict);
        publisher.join().unwrap();
    }
}

#[test]
fn card_reader_and_receiver_work_as_processes_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let (card, bus) = (directory.path().join("card"), directory.path().join("bus"));
    let (card, bus) = (card.display().to_string(), bus.display().to_string());
    let start = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command
            .arg("readout")
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let emulate =
        start(&["emulate", "gbt", "--at", &card, "--rate", "20kHz", "--triggers", "5000"]);
    while !std::path::Path::new(&card).exists() {
        std::thread::yield_now();
    }
    let tohost =
        start(&["tohost", "gbt", "--card", &card, "--bus-dir", &bus, "--interrupt", "--json"]);
    let receive = readout(&["receive", "--bus-dir", &bus, "--json"]);
    let line = |text: &str| serde_json::from_str::<serde_json::Value>(text.trim()).unwrap();
    let report = line(&stdout(&receive));
    assert!(receive.status.success(), "{report}");
    assert_eq!((&report["chunks"], &report["faults"]["payload"]), (&120_000.into(), &0.into()));
    let account = tohost.wait_with_output().unwrap();
    assert!(account.status.success());
    let account = line(&String::from_utf8(account.stdout).unwrap());
    let elinks = account["elinks"].as_array().unwrap();
    assert!(elinks.len() == 24 && elinks.iter().all(|elink| elink["closes"] == true), "{account}");
    let said = String::from_utf8(emulate.wait_with_output().unwrap().stdout).unwrap();
    assert!(said.starts_with("5000 triggers in"), "{said}");
}

#[test]
fn a_run_is_a_record_with_its_ledger() {
    let run = readout(&["run", "gbt", "--rate", "10kHz", "--time", "100ms", "--json"]);
    let text = stdout(&run);
    assert!(run.status.success(), "{}{text}", stderr(&run));
    let record: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    assert_eq!(
        (&record["engine"]["name"], &record["ledgers"][0]["issued"]),
        (&"readout".into(), &24_000.into())
    );
    let people = readout(&["run", "gbt", "--rate", "10kHz", "--time", "100ms"]);
    assert!(
        stdout(&people).contains(" closes\n") && stdout(&people).contains("dead time: 0 % by DMA")
    );
}

#[test]
fn what_is_computed_and_simulated_of_the_study_is_printed() {
    let reproduced = daqmeter("reproduce", &["readout", "--no-measurement"]);
    assert!(reproduced.status.success());
    insta::assert_snapshot!("reproduce", stdout(&reproduced));
}

#[test]
fn help_for_people() {
    for verb in ["run", "sweep", "emulate", "tohost", "receive", "record", "check"] {
        let help = readout(&[verb, "-h"]);
        assert!(help.status.success());
        assert!(stdout(&help).lines().count() <= 48, "{verb}");
        insta::assert_snapshot!(format!("help-{verb}"), stdout(&help));
    }
    insta::assert_snapshot!("help-readout", stdout(&readout(&["--help"])));
}
