//! `daqmeter path` for scripts: output, records, exit codes, one clear line for errors.

use std::net::TcpListener;
use std::time::Duration;

use crate::common::{Folder, Running, done, stderr, stdout};
use daqmeter_harness::frames::FrameStream;
use daqmeter_wire::felix::page::{FelixFrame, FrameKind};
use serde_json::Value;

fn folder_of(name: &str, text: &str) -> Folder {
    let folder = Folder::new();
    folder.write(name, text);
    folder
}

#[test]
fn a_run_is_a_record_with_its_threads() {
    let folder = Folder::new();
    let text = folder.done("path run pattern --layout pipeline --time 20ms --records run.jsonl");
    for wanted in ["MB/s sustained", "memory -> copy", "all accounted for in 1 of 1 streams"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let line = folder.read("run.jsonl");
    let record: Value = serde_json::from_str(&line).unwrap();
    let run = &record["sections"]["path"];
    let threads = run["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 3, "a thread for each element: {line}");
    for thread in threads {
        // A thread that carries all blocks does so in the time of the run.
        let of = |name: &str| thread[name].as_u64().unwrap_or(0);
        let states = ["busy_ns", "input_ns", "output_ns", "due_ns", "preempted_ns", "elsewhere_ns"];
        let sum_ns: u64 = states.map(of).iter().sum();
        assert!(thread["blocks"] == run["blocks"] && of("busy_ns") > 0, "{line}");
        assert!(sum_ns.abs_diff(of("wall_ns")) < of("wall_ns") / 10, "{sum_ns}: {line}");
    }
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
        let folder = folder_of("remote.toml", &text);
        let shown = folder.done("path run remote.toml --time 20ms --records r.jsonl");
        let record: Value = serde_json::from_str(&folder.read("r.jsonl")).unwrap();
        let stages = &record["sections"]["watched"]["stages"];
        assert!(stages[0]["came_in"].as_u64() >= Some(20), "{stages}");
        assert!(shown.contains("all accounted for in 1 of 1 streams"), "{shown}");
        let has_buffer = shown.contains("UDP        socket buffer: 4 MiB requested");
        assert_eq!(has_buffer, transport == "udp", "{shown}");
        let (code, reported) = receiver.end();
        assert_eq!((code, reported.lines().count()), (Some(0), 1), "{reported}");
        assert!(reported.ends_with("20 blocks, 80 KiB, the bytes of 20 compared\n"), "{reported}");
    }
}

/// Starts a receiver that takes all blocks and gives no account. Returns the text of a path that
/// ends there.
fn without_an_account() -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let text = format!(
        "title = \"x\"\nblock = \"4KiB\"\nrate = \"1kHz\"\n[source]\nkind = \"memory\"\n[sink]\nkind = \"tcp\"\nto = \"{to}\"\n"
    );
    let serve = move || {
        let within = Duration::from_secs(10);
        let mut frames = FrameStream::new(listener.accept().unwrap().0, 1 << 20).unwrap();
        loop {
            let (frame, _) = frames.receive(within, &|| false).unwrap().unwrap();
            match frame.kind {
                FrameKind::Hello => {
                    let hello = FelixFrame::control(FrameKind::Hello, 12);
                    frames.send(&hello, [br#"{"udp":null}"#, &[]], within).unwrap();
                }
                FrameKind::Account => return,
                _ => {}
            }
        }
    };
    (text, std::thread::spawn(serve))
}

#[test]
fn without_an_account_of_the_receiver_the_exit_code_is_3() {
    let (text, receiver) = without_an_account();
    let folder = folder_of("remote.toml", &text);
    let (shown, _) = folder.ends_with(3, "path run remote.toml --time 20ms");
    assert!(shown.contains("cannot tell what came"), "{shown}");
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
    let folder = folder_of("card.toml", card);
    folder.write(
        "path.toml",
        "title = \"a card\"\nblock = \"1KiB\"\n[source]\nkind = \"card\"\nscenario = \"./card.toml\"\n[[stage]]\nkind = \"to-host\"\n[[stage]]\nkind = \"tcp\"\n[sink]\nkind = \"receiver\"\n",
    );
    // A busy host refuses the shorter time.
    let explain = |time| folder.command(&format!("path explain path.toml --time {time}")).output();
    let (short, long) = (explain("8s").unwrap(), || explain("40s").unwrap());
    let found = if short.status.success() { short } else { long() };
    let text = stdout(&found);
    assert!(found.status.success(), "{text}{}", stderr(&found));
    for wanted in ["its limit is ", "\n card ", "\n to-host ", "\n receiver "] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

fn small() -> Folder {
    folder_of(
        "small.toml",
        "title = \"small\"\nblock = \"4KiB\"\nbuffers = 2\n[source]\nkind = \"memory\"\nspan = \"64KiB\"\n[sink]\nkind = \"read\"\n",
    )
}

fn slow() -> Folder {
    folder_of(
        "slow.toml",
        "title = \"slow\"\nblock = \"4KiB\"\nbuffers = 2\n[source]\nkind = \"memory\"\nspan = \"64KiB\"\n[[stage]]\nkind = \"work\"\ntime = \"1ms\"\n[sink]\nkind = \"read\"\n",
    )
}

/// A thread that waits for 1 ms cannot keep more than 1 kHz; two buffers let a short run end early.
#[test]
fn the_largest_rate_is_at_most_what_the_slowest_stage_can_keep() {
    let set = "--set stage.1.kind=wait --layout pipeline";
    let text = slow().done(&format!("path run slow.toml {set} --max --keep 60ms"));
    let (_, rate) = text.split_once("slow.toml: largest rate: ").unwrap();
    let words: Vec<&str> = rate.split_whitespace().collect();
    let unclear = ["none", "not"].contains(&words[0]);
    let hz = words[0].parse::<f64>();
    assert!(unclear || hz.is_ok_and(|hz| hz > 1.0 && hz < 1200.0), "{text}");
}

#[test]
fn an_explanation_names_the_slow_part_and_never_another() {
    let folder = slow();
    let text =
        folder.done("path explain slow.toml --layout pipeline --time 8s --records out.jsonl");
    for part in ["\n memory ", "\n work ", "\n read ", "its limit is "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The last record is a run of the path with the answer, for pages and tables.
    let records = folder.read("out.jsonl");
    let last: Value = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    assert_eq!(last["study"], "path/explain");
    assert!(last["sections"]["path"]["limit"]["runs"].as_u64() > Some(20), "{last}");
    let shown = folder.done("report out.jsonl --format text");
    let limit = shown.lines().find_map(|line| line.trim().strip_prefix("limit")).unwrap();
    // A busy host may hide the limit.
    let answers = ["work: ", "not clear", "no single part: ", "other programs: "];
    assert!(answers.iter().any(|answer| limit.trim().starts_with(answer)), "{shown}");
}

#[test]
fn a_field_of_the_file_gets_another_value_and_the_record_says_which() {
    let folder = small();
    let set = "--set block=8KiB --set pages=base";
    let text = folder.done(&format!("path run small.toml --time 5ms {set} --records run.jsonl"));
    assert!(text.contains("8 KiB -> memory"), "{text}");
    let shown = folder.done("report run.jsonl --format text");
    assert!(shown.contains(&format!("small.toml {set}")), "{shown}");
}

#[test]
fn a_path_is_listed_by_its_name_or_its_file_and_what_is_wrong_with_it_is_named() {
    let folder = small();
    let listed = folder.done("list small.toml");
    assert!(listed.contains("memory, 64 KiB\n"), "{listed}");
    folder.write("small.toml", "[source]\nkind = \"memroy\"\n");
    folder.refuses("list small.toml", "small.toml: missing field");
    assert!(done("list paths").contains("register-control"));
    let toml = done("list felix-card --toml");
    assert!(toml.contains("[[stage]]\nkind = \"tcp\""), "{toml}");
}

/// A recorder's path, and one that replays what it kept, with a stage.
const KEPT: [(&str, &str); 2] = [
    (
        "record.toml",
        "title = 't'\nblock = '4KiB'\nrate = '100Hz'\n[source]\nkind = 'memory'\n[sink]\nkind = 'file'\npath = 'run'\nkeep = true\n",
    ),
    (
        "replay.toml",
        "title = 't'\n[source]\nkind = 'file'\npath = 'run'\n[[stage]]\nkind = 'copy'\n[sink]\nkind = 'file'\npath = 'again'\nkeep = true\n",
    ),
];

#[test]
fn a_kept_run_is_complete_and_replayed_at_its_own_times() {
    let folder = Folder::new();
    KEPT.iter().for_each(|(name, text)| folder.write(name, text));
    let shown = folder.done("path run record.toml --time 200ms");
    assert!(shown.contains("20 blocks and 1 file in run"), "{shown}");
    assert!(shown.contains("all durable, all read back and equal"), "{shown}");
    let checked = folder.done("check run");
    assert!(checked.starts_with("run: complete: 80 KiB in 20 blocks, each as it was"), "{checked}");
    let (_, refused) = folder.ends_with(2, "path run record.toml --time 200ms");
    assert!(refused.contains("run is there and holds something: name another folder"), "{refused}");
    folder.done("path run replay.toml --time 10s -q");
    for file in ["run", "again"].map(|run| format!("{run}/memory.0000.dat")) {
        assert_eq!(std::fs::metadata(folder.path(&file)).unwrap().len(), 80 << 10, "{file}");
    }
    let [first, again] = ["run", "again"].map(|run| {
        let found: Value =
            serde_json::from_str(&folder.done(&format!("check {run} --json"))).unwrap();
        assert_eq!(found["complete"], true, "{found}");
        let time = |name: &str| found["streams"][0][name].as_u64().unwrap();
        Duration::from_nanos(time("end_ns") - time("begin_ns"))
    });
    // 19 periods of 10 ms, however late a busy host is with the blocks.
    assert_eq!(first.as_millis(), 190);
    assert!(again.abs_diff(first) < Duration::from_millis(2), "{again:?} in place of {first:?}");
    // One changed byte is found, with its place.
    let path = folder.path("run/memory.0000.dat");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[5 * 4096 + 9] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    let (checked, _) = folder.ends_with(1, "check run");
    let wanted = "run/memory.0000.dat: block 5 at byte 20480 is not as it was written";
    assert!(checked.contains(wanted) && checked.contains("run: not complete"), "{checked}");
}

#[test]
fn a_search_for_the_largest_rate_keeps_no_trial() {
    let folder = Folder::new();
    let (name, text) = KEPT[0];
    folder.write(name, text.replace("rate = '100Hz'\n", ""));
    let search = "path run record.toml --set sink.write=cached --max --time 4s --keep 60ms -q";
    let code = folder.command(search).output().unwrap().status.code();
    // On a busy host no rate may be kept; then no run is, either.
    let runs = usize::from(code == Some(0));
    assert!(runs == 1 || code == Some(3), "{code:?}");
    assert_eq!(folder.files(), 1 + runs, "the path, and the run at its rate");
    if runs == 1 {
        folder.done("check run");
    }
}

#[test]
fn losses_of_a_kept_run_are_named_by_its_check() {
    let folder = Folder::new();
    let text =
        KEPT[0].1.replace("[sink]", "[[stage]]\nkind = 'drop'\nshare = 0.3\nseed = 1\n[sink]");
    folder.write("record.toml", text);
    folder.done("path run record.toml --time 300ms -q");
    let (checked, _) = folder.ends_with(1, "check run");
    for wanted in ["run: not complete: ", "   missing ", " lost by drop"] {
        assert!(checked.contains(wanted), "{wanted}: {checked}");
    }
    // The record is that of any other run, and is not left out if it is damaged.
    let shown = folder.done("report run --format text");
    assert!(shown.contains(" lost by drop") && shown.contains("files in run, kept"), "{shown}");
    folder.write("run/record.jsonl", "{}\n");
    let (_, said) = folder.ends_with(2, "check run");
    assert!(said.contains("run/record.jsonl: no record that"), "{said}");
}
