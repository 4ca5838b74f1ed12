//! Signals to the read-out verbs: each ends soon, reports its results, and gives 130. Its waits
//! have an end.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::common::{Folder, Running, done, fail_with, until};

fn start(arguments: &str) -> Running {
    Running::start(&format!("readout {arguments}"))
}

/// Returns the output after the signal: within the time, and with 130.
fn interrupted(mut child: Running, name: &str) -> String {
    child.signal(name);
    let (code, text) = child.end();
    assert_eq!(code, Some(130), "{text}");
    text
}

/// Starts a card; returns it with its socket, at which it listens.
fn card(more: &str) -> (Running, String) {
    let card = start(&format!("emulate gbt --at card {more}"));
    card.said("triggers begin when each channel has a reader");
    let at = card.folder.path().join("card").display().to_string();
    (card, at)
}

/// Returns the word after a text on stderr.
fn word_after(child: &Running, text: &str) -> String {
    let line = child.said(text);
    let end = line.split(text).nth(1).unwrap();
    end.split([' ', '/']).next().unwrap().to_owned()
}

#[test]
fn a_receiver_that_waits_for_a_publisher_ends() {
    for name in ["INT", "TERM"] {
        let child = start("receive 127.0.0.1:1 --wait 1h");
        child.said("waiting for publishers: cannot connect to 127.0.0.1:1");
        interrupted(child, name);
    }
}

#[test]
fn a_reader_that_waits_for_its_card_or_its_subscribers_ends() {
    let child = start("tohost gbt --card none --wait 1h");
    child.said("waiting for a card at");
    interrupted(child, "INT");
    let (card, at) = card("");
    let child = start(&format!("tohost gbt --card {at}"));
    child.said("waiting for subscribers of 24 E-links (0x008, 0x00c, 0x010, 0x014, ...)");
    assert!(interrupted(child, "INT").contains("ledger:"));
    interrupted(card, "INT");
}

/// Returns the sum of these metrics at an address.
fn value(page: &str, metric: &str) -> f64 {
    let mut text = String::new();
    let mut stream = std::net::TcpStream::connect(page).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    stream.read_to_string(&mut text).unwrap();
    let lines = text.lines().filter(|line| line.starts_with(metric));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Waits until these metrics at an address are above a value.
fn exceeds(page: &str, metric: &str, least: f64) {
    until(metric, || value(page, metric) > least);
}

/// Waits until a reader that serves its metrics there has read bytes.
fn reads(page: &str) {
    exceeds(page, "daqmeter_bytes_total{", 0.0);
}

/// Issue 50: of 2 million dropped chunks no metric moved, and the receiver said nothing to its end.
#[test]
fn a_drop_is_in_the_metrics_and_a_loss_on_stderr_while_they_happen() {
    let folder = Folder::new();
    // A receiver that is stopped for long is not taken for dead, and a slow one keeps up.
    let text = "[trigger]\nrate = \"10kHz\"\n[card]\nlinks = 3\n[reader]\non_slow = \"drop\"\npage = \"16KiB\"\npages = 4\n[publish]\ndead_after = \"60s\"\n";
    folder.write("drop.toml", text);
    let scenario = folder.path("drop.toml").display().to_string();
    let at = folder.path("card").display().to_string();
    let metrics = "--metrics 127.0.0.1:0";
    let _card = start(&format!("emulate {scenario} --at {at} --time 1h {metrics}"));
    let tohost = start(&format!("tohost {scenario} --card {at} --address 127.0.0.1:0 {metrics}"));
    let page = word_after(&tohost, "metrics at http://");
    let receive = start(&format!("receive {} {metrics}", word_after(&tohost, "publishes at ")));
    let received = word_after(&receive, "metrics at http://");
    let delivered = "daqmeter_delivered_total{device=\"receiver\"}";
    let dropped = "daqmeter_lost_total{device=\"tohost drop:0.0\",cause=\"dropped by reader\"}";
    let missing = "daqmeter_lost_total{device=\"receiver\",cause=\"missing\"}";
    exceeds(&received, delivered, 0.0);
    // Counters of 8 bits show half of the losses as events that came twice: one of several is seen.
    until(missing, || {
        let before = value(&page, dropped);
        receive.signal("STOP");
        exceeds(&page, dropped, before);
        receive.signal("CONT");
        exceeds(&received, delivered, value(&received, delivered) + 300e3);
        value(&received, missing) > 0.0
    });
    receive.said("daqmeter: lost so far: at least ");
}

#[test]
fn card_reader_and_receiver_end_with_their_accounts() {
    let (card, at) = card("--rate 5kHz --time 1h");
    let mut tohost = start(&format!("tohost gbt --card {at} --metrics 127.0.0.1:0"));
    let page = word_after(&tohost, "metrics at http://");
    let receive = start(&format!("receive {}", word_after(&tohost, "publishes at ")));
    reads(&page);
    let text = interrupted(receive, "INT");
    assert!(
        text.contains(" chunks ") && text.contains("cannot tell: missing: the account of"),
        "{text}"
    );
    let text = interrupted(card, "TERM");
    assert!(text.contains(" triggers in "), "{text}");
    // Its card has finished as if its triggers had ended.
    let (code, text) = tohost.end();
    assert!(code.is_some_and(|code| code < 2), "{text}");
}

/// Issue 48: the usual stop of a publisher failed its run and that of its receiver.
#[test]
fn a_publisher_that_is_stopped_is_whole_and_so_is_its_receiver() {
    let (mut card, at) = card("--rate 5kHz --time 1h");
    let more = "--address 127.0.0.1:0 --metrics 127.0.0.1:0";
    let tohost = start(&format!("tohost gbt --card {at} {more}"));
    let page = word_after(&tohost, "metrics at http://");
    let folder = Folder::new();
    let (publisher, run) = (word_after(&tohost, "publishes at "), folder.path("run"));
    let mut receive = start(&format!("receive {publisher} --keep {}", run.display()));
    reads(&page);
    let text = interrupted(tohost, "TERM");
    assert!(text.contains("verdict: passed: loss 0"), "{text}");
    let (code, text) = receive.end();
    assert!(code == Some(0) && text.contains("verdict: passed: loss 0"), "{text}");
    assert_eq!(card.end().0, Some(0));
    // The pages that it kept have the same chunks.
    let chunks = |text: &str| {
        let line = text.lines().find(|line| line.starts_with(" chunks ")).expect("chunks");
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    folder.done("check run");
    assert_eq!(chunks(&folder.done("readout check run")), chunks(&text));
    let page = std::fs::read_dir(&run).unwrap().map(|file| file.unwrap().path());
    let page = page.into_iter().find(|path| path.extension().is_some_and(|end| end == "dat"));
    let mut bytes = std::fs::read(page.as_ref().unwrap()).unwrap();
    bytes[60] ^= 1;
    std::fs::write(page.unwrap(), bytes).unwrap();
    folder.ends_with(1, "check run");
}

#[test]
fn a_recording_ends_with_whole_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blocks.dat");
    let shown = path.display();
    let child = start(&format!("record gbt --triggers 1000000000000 -o {shown}"));
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    until("no blocks", || bytes(&path) > 1 << 20);
    interrupted(child, "INT");
    assert_eq!(bytes(&path) % 1024, 0);
    done(&format!("readout check {shown}"));
}

#[test]
fn a_run_and_a_search_end_with_their_records() {
    let folder = tempfile::tempdir().unwrap();
    for verb in ["run gbt --rate 10kHz --time 1h", "sweep gbt --probe 1h --from 10kHz"] {
        let records = folder.path().join(&verb[..3]);
        let more = format!("--records {} --metrics 127.0.0.1:0", records.display());
        let child = start(&format!("{verb} {more}"));
        // The receiver's thread exists once the chain runs.
        let tasks = format!("/proc/{}/task", child.child.id());
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
    let (one, at) = card("");
    let none = "no subscriber of 24 E-links (0x008, 0x00c, 0x010, 0x014, ...)";
    fail_with(2, &[(&format!("readout tohost gbt --card {at} --wait 0s"), none)]);
    interrupted(one, "INT");
    // A subscription to a part of the E-links lets the publisher wait for the others.
    let (other, at) = card("");
    let tohost = start(&format!("tohost gbt --card {at}"));
    let address = word_after(&tohost, "publishes at ");
    let receive = format!("readout receive {address} --elinks 0x008 --wait 100ms");
    fail_with(2, &[(&receive, "no data came within 100 ms")]);
    interrupted(tohost, "INT");
    interrupted(other, "INT");
}

/// Issue 14: the card's process was killed without any report. Regression: each E-link had a line,
/// with a negative number that was "unaccounted for", below a verdict that had passed.
#[test]
fn a_card_that_is_killed_is_reported_and_its_verdict_is_cannot_tell_in_one_line() {
    let (mut card, at) = card("--rate 5kHz --time 1h");
    let mut tohost = start(&format!("tohost gbt --card {at} --no-wait --address 127.0.0.1:0"));
    tohost.said("publishes at ");
    card.child.kill().unwrap();
    card.child.wait().unwrap();
    tohost.said("the process of the card ended before all triggers");
    let (code, text) = tohost.end();
    assert_eq!(code, Some(3), "{text}");
    let verdict = "verdict: cannot tell: missing: the last counts of the card";
    assert!(text.contains(verdict), "{text}");
    assert!(!text.contains("unaccounted") && text.lines().count() < 7, "{text}");
}

/// Issue 14: `emulate --at` removed an existing file.
#[test]
fn an_ordinary_file_is_left_where_a_socket_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    let emulate = format!("readout emulate gbt --at {}", path.display());
    fail_with(2, &[(&emulate, "is not a socket: choose another path")]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
    let stale = folder.path().join("stale");
    drop(UnixListener::bind(&stale).unwrap());
    let emulate = start(&format!("emulate gbt --at {}", stale.display()));
    emulate.said("triggers begin when each channel has a reader");
    interrupted(emulate, "INT");
    assert!(!stale.exists());
}
