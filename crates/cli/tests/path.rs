//! `daqmeter path` for scripts: output, records, exit codes, one clear line for errors.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use common::{Folder, Running, done, ends_with, fail_with};
use daqmeter_harness::frames::FrameStream;
use daqmeter_wire::felix::page::{FelixFrame, FrameKind};

/// Writes a file in a folder of its own; returns both.
fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    (folder, path.display().to_string())
}

#[test]
fn help_for_people() {
    for verb in ["", "run", "explain", "serve"] {
        let name = if verb.is_empty() { "path" } else { verb };
        let help = done(&format!("path {verb} -h"));
        insta::with_settings!({ snapshot_suffix => name }, { insta::assert_snapshot!("help", help) });
    }
}

#[test]
fn a_run_is_a_record_with_its_threads() {
    let (_folder, out) = file("run.jsonl", "");
    let text = done(&format!("path run pattern --layout pipeline --time 20ms --records {out}"));
    for wanted in ["MB/s sustained", "memory -> copy", "all accounted for in 1 of 1 streams"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let line = std::fs::read_to_string(out).unwrap();
    assert!(line.contains("\"elsewhere_ns\""), "{line}");
}

#[test]
fn a_path_that_ends_at_a_receiver_is_accounted_for_at_both_ends() {
    for transport in ["tcp", "udp"] {
        let mut receiver = Running::start("path serve 127.0.0.1:0 --senders 1");
        let first = receiver.printed();
        let to = first.strip_prefix("listening on ").unwrap();
        let text = format!(
            "title = \"x\"\nblock = \"4KiB\"\nrate = \"1kHz\"\n[source]\nkind = \"memory\"\n[sink]\nkind = \"{transport}\"\nto = \"{to}\"\n"
        );
        let (_folder, file) = file("remote.toml", &text);
        let shown = done(&format!("path run {file} --time 20ms"));
        assert!(shown.contains("all accounted for in 1 of 1 streams"), "{shown}");
        let has_buffer = shown.contains("UDP        socket buffer: 4 MiB requested");
        assert_eq!(has_buffer, transport == "udp", "{shown}");
        let (code, reported) = receiver.end();
        assert_eq!((code, reported.lines().count()), (Some(0), 1), "{reported}");
        assert!(reported.ends_with("20 blocks, 80 KiB, the bytes of 20 compared\n"), "{reported}");
    }
}

/// Starts a receiver that takes all blocks, removes a file at the first, and gives no account.
/// Returns the text of a path that ends there.
fn without_an_account(removes: Option<PathBuf>) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let text = format!(
        "title = \"x\"\nblock = \"4KiB\"\nrate = \"1kHz\"\n[source]\nkind = \"memory\"\n[sink]\nkind = \"tcp\"\nto = \"{to}\"\n"
    );
    let serve = move || {
        let (within, mut removes) = (Duration::from_secs(10), removes);
        let mut frames = FrameStream::new(listener.accept().unwrap().0, 1 << 20).unwrap();
        loop {
            let (frame, _) = frames.receive(within, &|| false).unwrap().unwrap();
            match frame.kind {
                FrameKind::Hello => {
                    let hello = FelixFrame::control(FrameKind::Hello, 12);
                    frames.send(&hello, [br#"{"udp":null}"#, &[]], within).unwrap();
                }
                FrameKind::Account => return,
                _ => {
                    removes.take().into_iter().for_each(|file| std::fs::remove_file(file).unwrap())
                }
            }
        }
    };
    (text, std::thread::spawn(serve))
}

#[test]
fn without_an_account_of_the_receiver_the_exit_code_is_3() {
    let (text, receiver) = without_an_account(None);
    let (_folder, file) = file("remote.toml", &text);
    let (shown, _) = ends_with(3, &format!("path run {file} --time 20ms"));
    assert!(shown.contains("cannot tell what came"), "{shown}");
    receiver.join().unwrap();
}

#[test]
fn records_that_were_removed_during_a_run_are_said() {
    let folder = Folder::new();
    let (text, receiver) = without_an_account(Some(folder.path("out.jsonl")));
    folder.write("remote.toml", text);
    let (_, said) = folder.ends_with(1, "path run remote.toml --time 20ms --records out.jsonl");
    assert!(said.contains("out.jsonl was removed during the run"), "{said}");
    receiver.join().unwrap();
}

#[test]
fn a_card_that_is_read_out_live_says_what_became_of_its_triggers() {
    let text = done("path run felix-readout --time 20ms --rate 20kHz");
    for wanted in [
        "card gbt -> to-host -> published over tcp -> receiver",
        "from the oldest trigger of a page to the receiver",
        "all accounted for in 24 of 24 streams",
        "BUSY       0 % of the time (0 % by DMA",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn a_card_that_is_read_out_live_is_explained_with_what_shares_the_reader_s_thread() {
    // The ring is soon full.
    let card = "[trigger]\nrate = \"100kHz\"\n[card]\nmode = \"gbt\"\nlinks = 1\nring = \"2MiB\"\n";
    let (_one, scenario) = file("card.toml", card);
    let text = format!(
        "title = \"a card\"\nblock = \"1KiB\"\n[source]\nkind = \"card\"\nscenario = \"{scenario}\"\n[[stage]]\nkind = \"to-host\"\n[[stage]]\nkind = \"tcp\"\n[sink]\nkind = \"receiver\"\n"
    );
    let (_other, file) = file("path.toml", &text);
    let text = done(&format!("path explain {file} --time 1s"));
    for wanted in ["  limit ", "to-host works for: card ", "\n card ", "\n receiver "] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

fn small() -> (tempfile::TempDir, String) {
    file(
        "small.toml",
        "title = \"small\"\nblock = \"4KiB\"\nbuffers = 2\n[source]\nkind = \"memory\"\nspan = \"64KiB\"\n[sink]\nkind = \"read\"\n",
    )
}

#[test]
fn the_largest_rate_is_stated_with_its_confidence() {
    let (_folder, file) = small();
    let text = done(&format!("path run {file} --time 12ms --max"));
    assert!(text.contains("small.toml: largest rate: "), "{text}");
    assert!(
        text.contains("95 % confidence") || text.contains("no rate was free of faults"),
        "{text}"
    );
}

#[test]
fn an_explanation_has_a_slope_for_each_part_and_an_answer() {
    let (folder, file) = small();
    let out = folder.path().join("explained.jsonl");
    let text = done(&format!("path explain {file} --time 1s --records {}", out.display()));
    for part in ["\n memory ", "\n read ", "  limit "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The last record is a run of the path with the answer, for pages and tables.
    let records = std::fs::read_to_string(&out).unwrap();
    let last: serde_json::Value = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    assert_eq!(last["study"], "path/explain");
    assert!(last["sections"]["path"]["limit"]["runs"].as_u64() > Some(20), "{last}");
    let shown = done(&format!("report {} --format text", out.display()));
    let limit = shown.lines().find(|line| line.starts_with("  limit "));
    assert!(limit.is_some_and(|line| line.contains(" runs")), "{shown}");
}

#[test]
fn a_field_of_the_file_gets_another_value_and_the_record_says_which() {
    let (folder, file) = small();
    let records = folder.path().join("run.jsonl").display().to_string();
    let set = "--set block=8KiB --set pages=base";
    let text = done(&format!("path run {file} --time 5ms {set} --records {records}"));
    assert!(text.contains("8 KiB -> memory"), "{text}");
    let shown = done(&format!("report {records} --format text"));
    assert!(shown.contains(&format!("small.toml {set}")), "{shown}");
}

#[test]
fn a_path_is_listed_by_its_name_or_its_file_and_what_is_wrong_with_it_is_named() {
    let (_folder, file) = small();
    let listed = done(&format!("list {file}"));
    assert!(listed.contains("memory, 64 KiB\n"), "{listed}");
    std::fs::write(&file, "[source]\nkind = \"memroy\"\n").unwrap();
    fail_with(2, &[(&format!("list {file}"), "small.toml: missing field")]);
    assert!(done("list paths").contains("register-control"));
    let toml = done("list felix-card --toml");
    assert!(toml.contains("[[stage]]\nkind = \"tcp\""), "{toml}");
}

#[test]
fn bad_input_gives_one_clear_line_and_exit_2() {
    let text =
        "title = \"x\"\nblock = \"4KiB\"\n[source]\nkind = \"memroy\"\n[sink]\nkind = \"read\"\n";
    let (_folder, bad) = file("bad.toml", text);
    for (line, says) in [
        ("run BAD", "bad.toml: source: kind: unknown variant `memroy`"),
        ("run patern", "did you mean `pattern`?"),
        ("run pattern --rate much", "--rate:"),
        ("run pattern --rate 1Hz --max", "cannot be used with"),
        ("run pattern --lossy", "loses nothing without a rate"),
        ("run felix-readout --lossy --rate 20kHz", "does not go with the source `card`"),
        ("run pattern --pin 4000", "`cpus` is 4000: there is no such CPU"),
        ("run pattern --time 0s", "`seconds` is 0"),
        ("serve here", "here: "),
        ("run pattern --set blocks=1", "unknown field `blocks`"),
        ("run pattern --set block=100", "pattern: block: is 100"),
        ("explain pattern --time 0s", "the time is 0"),
    ] {
        fail_with(2, &[(&format!("path {}", line.replace("BAD", &bad)), says)]);
    }
}
