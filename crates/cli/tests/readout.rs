//! The read-out verbs as scripts meet them: output, exit codes, one clear line for what is wrong.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;
#[path = "readout/signals.rs"]
mod signals;

use std::process::{Command, Stdio};

use common::{PROGRAM, are_refused, daqmeter, stderr, stdout};

fn readout(arguments: &[&str]) -> std::process::Output {
    daqmeter("readout", arguments)
}

#[test]
fn bad_input_gives_one_clear_line_and_exit_2() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let (wrong, foreign, taken) = (place("wrong.toml"), place("foreign.dat"), place("taken.toml"));
    std::fs::write(&wrong, "[card]\nlinks = 3\ncolour = \"red\"\n").unwrap();
    std::fs::write(&foreign, "these are no blocks").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().to_string();
    std::fs::write(&taken, format!("[publish]\naddress = \"{port}\"\n")).unwrap();
    let none = place("none");
    are_refused(
        "readout",
        &[
            (&["run", "nothing"][..], "shipped ones are gbt, full, felig, nikhef"),
            (&["run", &wrong], "line 3 (`colour = \"red\"`)"),
            (&["run", &taken, "--time", "10ms"], "cannot listen on"),
            (&["run", "gbt", "--pin", "1000"], "CPU 1000 does not exist"),
            (&["run", "gbt", "--receiver-pin", "1000"], "CPU 1000 does not exist"),
            (&["run", "gbt", "--payload", "0"], "card.payload"),
            (&["run", "gbt", "--transport", "pigeon"], "publish.transport"),
            (&["check", &foreign], "no file of FELIX blocks"),
            (&["check", &none], "No such file"),
            (&["check", "--scenario", "nothing"], "cannot read the scenario"),
            (&["record", "gbt", "-o", "/nowhere/x"], "cannot write /nowhere/x"),
            (&["tohost", "gbt", "--card", &none, "--patience", "0s"], "is a card emulated there?"),
            (&["tohost", "gbt", "--channels", "3"], "no channel 3; the scenario has 0 to 0"),
            (&["receive", "127.0.0.1:1", "--patience", "0s"], "cannot connect to 127.0.0.1:1"),
            (&["receive", "--bus-dir", &none, "--patience", "0s"], "bus directory"),
            (&["monitor", "127.0.0.1:1"], "does an instance serve --metrics there?"),
            (&["sweep", "gbt", "--payloads", "24,2MiB"], "card.payload"),
            (&["receive", "127.0.0.1:1", "--elinks", "0x800"], "E-links are 0 to 0x7ff"),
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

#[test]
fn card_reader_and_receiver_work_as_processes_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let (card, bus) = (directory.path().join("card"), directory.path().join("bus"));
    let (card, bus) = (card.display().to_string(), bus.display().to_string());
    let start = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("readout").args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let emulate = start(&["emulate", "gbt", "--at", &card, "--rate", "20kHz", "--triggers", "5000"]);
    while !std::path::Path::new(&card).exists() {
        std::thread::yield_now();
    }
    let tohost = start(&["tohost", "gbt", "--card", &card, "--bus-dir", &bus, "--interrupt", "--json"]);
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
    assert_eq!((&record["engine"]["name"], &record["ledgers"][0]["issued"]), (&"readout".into(), &24_000.into()));
    let people = readout(&["run", "gbt", "--rate", "10kHz", "--time", "100ms"]);
    assert!(stdout(&people).contains(" closes\n") && stdout(&people).contains("dead time: 0 % by DMA"));
}

#[test]
fn what_is_computed_and_simulated_of_the_study_is_printed() {
    let reproduced = readout(&["reproduce", "--no-measurement"]);
    assert!(reproduced.status.success());
    insta::assert_snapshot!("reproduce", stdout(&reproduced));
}

#[test]
fn help_for_people() {
    for verb in ["run", "sweep", "emulate", "tohost", "receive", "monitor", "record", "check", "reproduce"] {
        let help = readout(&[verb, "-h"]);
        assert!(help.status.success());
        assert!(stdout(&help).lines().count() <= 48, "{verb}");
        insta::assert_snapshot!(format!("help-{verb}"), stdout(&help));
    }
    insta::assert_snapshot!("help-readout", stdout(&readout(&["--help"])));
}
