//! The read-out verbs for scripts: output, exit codes, one clear line for errors.

mod signals;

use std::time::Duration;

use crate::common::{self, Folder, Running, done, ends_with};
use daqmeter_harness::frames::FrameStream;
use daqmeter_readout::accounts::{CardAccount, CardElink, FinalAccount, Outcomes, ReaderElink};
use daqmeter_readout::transport::{PublisherHello, bus};
use daqmeter_wire::felix::Elink;
use daqmeter_wire::felix::page::{FelixFrame, FrameKind, PageChunk, PageWriter, Status};
use daqmeter_wire::felix::payload::{EmulatorHeader, Fid};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap()
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap()
}

/// Records blocks of a scenario; returns the folder of the file, and its name.
fn recorded(what: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("felig.dat").display().to_string();
    done(&format!("readout record {what} -o {path}"));
    (folder, path)
}

#[test]
fn a_recorded_file_is_checked_and_a_damaged_one_ends_with_1() {
    let (_folder, path) = recorded("felig --triggers 2000");
    let text = done(&format!("readout check {path}")).replace(&path, "FILE");
    insta::assert_snapshot!("check", text);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.drain(40 * 1024..41 * 1024);
    bytes[60 * 1024 - 1] = 0xC0;
    std::fs::write(&path, bytes).unwrap();
    let (text, _) = ends_with(1, &format!("readout check {path} --messages 3"));
    assert!(text.contains("sequence mismatch") && text.contains("undefined type"), "{text}");
    let (text, _) = ends_with(1, &format!("readout check {path} --json --level 1"));
    assert_eq!(json(&text)["checked"]["faults"]["undefined type"], 1, "{text}");
}

/// Regression: a file named `-` was written.
#[test]
fn blocks_go_to_standard_output_raw_and_of_one_channel() {
    let (_folder, path) = recorded("felig --triggers 2000");
    let piped = common::run("readout record felig --triggers 2000 -o -");
    assert!(piped.status.success(), "{}", common::stderr(&piped));
    assert!(piped.stdout == std::fs::read(&path).unwrap(), "the same bytes");
    assert!(common::stderr(&piped).contains("wrote standard output: "));
    let one = common::run("readout record nikhef --triggers 10 --channel 3.1 -o -").stdout;
    assert!(one.len().is_multiple_of(1024) && !one.is_empty());
    assert!(!std::path::Path::new("-").exists());
}

#[test]
fn kept_blocks_are_those_of_a_file_and_are_checked_as_one_run() {
    let folder = Folder::new();
    folder.done("readout record felig --triggers 30k -o one.dat");
    folder.done("readout record felig --triggers 30k --keep run --rotate 1MiB");
    let whole = std::fs::read(folder.path("one.dat")).unwrap();
    let files = (0..)
        .map_while(|at| std::fs::read(folder.path(&format!("run/felig-0-0.{at:04}.dat"))).ok());
    let files: Vec<Vec<u8>> = files.collect();
    assert!(files.len() > 1 && files.concat() == whole, "{} files", files.len());
    folder.done("check run");
    let text = folder.done("readout check run");
    assert!(first_line(&text).starts_with("run: felig:0.0: passed"), "{text}");
    let wanted = folder.done("readout check one.dat");
    assert_eq!(text.split_once('\n').unwrap().1, wanted.split_once('\n').unwrap().1);
    let (_, said) = folder.ends_with(2, "readout record felig --keep run");
    assert!(said.contains("holds something: name another folder"), "{said}");
}

#[test]
fn several_elinks_are_checked_at_once() {
    let (_folder, path) = recorded("felig --triggers 1000");
    let blocks = |elinks: &str| {
        // An E-link that is absent fails the check.
        let checked = common::run(&format!("readout check {path} --json --elinks {elinks}"));
        json(&common::stdout(&checked))["checked"]["checked_blocks"].as_u64().unwrap()
    };
    let (one, other) = (blocks("0x008"), blocks("0x010"));
    assert!(one > 0 && other > 0);
    assert_eq!(blocks("0x008,0x010"), one + other);
    assert_eq!(blocks("0x010,0x7ff"), other);
}

#[test]
fn a_check_of_nothing_ends_with_1_and_what_is_left_out_is_said() {
    let (_folder, path) = recorded("felig --triggers 1000");
    let blocks = std::fs::metadata(&path).unwrap().len() / 1024;
    let (text, _) = ends_with(1, &format!("readout check {path} --elink 0x7ff"));
    let why = format!("nothing was checked: none of {blocks} blocks is of these E-links");
    assert_eq!(first_line(&text), format!("{path}: failed: {why}"));
    done(&format!("readout check {path} --elink 0x008"));
    // An E-link must be in one channel of a card, but need not be in all.
    let scenario = "readout check --scenario felig --triggers 100 --elink 0x7ff";
    assert!(ends_with(1, scenario).0.contains("nothing was checked"));
    // Loses every second block: more messages than are shown.
    let bytes = std::fs::read(&path).unwrap();
    let half: Vec<u8> = bytes.chunks(1024).step_by(2).flatten().copied().collect();
    std::fs::write(&path, half).unwrap();
    let (text, _) = ends_with(1, &format!("readout check {path} --messages 5"));
    let (_, all) = text.split_once("more messages; --messages ").unwrap();
    let all = all.split(' ').next().unwrap();
    let (shown, _) = ends_with(1, &format!("readout check {path} --messages {all}"));
    assert!(shown.matches(": missing events: E-link 0x").count() > 100, "{shown}");
    assert!(!shown.contains("more messages"), "{shown}");
    let first = first_line(&text);
    let is_loss = first.contains(": failed: loss ") && first.ends_with(" is more than 0");
    assert!(is_loss, "{first}");
    done(&format!("readout check {path} --fail-on loss=60%"));
}

#[test]
fn chosen_channels_of_a_card_are_checked() {
    let names = |more: &str| -> Vec<String> {
        let text = done(&format!("readout check --scenario nikhef --triggers 500 --json {more}"));
        text.lines().map(|line| json(line)["name"].to_string()).collect()
    };
    assert_eq!(names("--channels 3.1,0.0"), [r#""nikhef:0.0""#, r#""nikhef:3.1""#]);
    assert_eq!(names("").len(), 16);
}

#[test]
fn a_run_that_loses_more_than_is_allowed_ends_with_1() {
    let folder = Folder::new();
    // Ring and FIFO hold less data than 20 ms bring, and BUSY does not stop them.
    let text = "[trigger]\nrate = \"1MHz\"\n[card]\nlinks = 1\nring = \"1MiB\"\nfifo = \"16KiB\"\nblocks = \"live\"\n\
                [busy]\ndma = false\n[reader]\npoll = \"20ms\"\n";
    folder.write("lossy.toml", text);
    let run = "readout run lossy.toml --time 100ms";
    let (text, _) = folder.ends_with(1, run);
    let first = first_line(&text);
    let is_loss = first.starts_with("verdict: failed: loss ") && first.ends_with(" is more than 0");
    assert!(is_loss, "{first}");
    for limits in ["flags", "dead=50%", "loss=100%,dead=50%,flags"] {
        folder.done(&format!("{run} --fail-on {limits}"));
    }
    // The verdict for programs is not among the records.
    let (records, said) = folder.ends_with(1, &format!("{run} --json"));
    assert_eq!(records.lines().count(), 1);
    assert!(said.contains("verdict: failed: loss"), "{said}");
}

#[test]
fn faults_that_a_scenario_asks_for_fail_the_file_and_not_the_run_unless_nothing_is_left() {
    let folder = Folder::new();
    let passed = "passed: loss 0, limit 0; dead 0 %, limit 1%; flags 0, limit 0";
    for (fault, every, code, run, check) in [
        ("truncated", 2, 0, passed, "failed: loss 400 of 800 (50 %) is more than 0"),
        ("crc", 2, 0, passed, "failed: flags 400 of 800 (50 %) is more than 0"),
        ("lost-block", 1, 1, "failed: no event was delivered", ""),
    ] {
        let card = "[trigger]\nrate = \"10kHz\"\n[card]\nlinks = 1\nring = \"16MiB\"\n";
        let text = format!("{card}[[fault]]\nkind = \"{fault}\"\nevery = {every}\n");
        folder.write("faulty.toml", text);
        let (text, _) = folder.ends_with(code, "readout run faulty.toml --time 50ms");
        assert_eq!(first_line(&text), format!("verdict: {run}"), "{fault}");
        if !check.is_empty() {
            folder.done("readout record faulty.toml --triggers 100 -o faulty.dat");
            let (text, _) = folder.ends_with(1, "readout check faulty.dat");
            assert_eq!(first_line(&text), format!("faulty.dat: {check}"), "{fault}");
        }
    }
}

#[test]
fn a_counter_that_falls_to_0_ends_the_check_with_3() {
    let folder = Folder::new();
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
    folder.write("felig.dat", file);
    let (text, _) = folder.ends_with(3, "readout check felig.dat");
    let cannot = "felig.dat: cannot tell: loss 0, limit 0: the counters allow a loss of 216 more, in 1 places";
    assert_eq!(first_line(&text), cannot);
    folder.done("readout check felig.dat --fail-on loss=216");
    let (text, _) = folder.ends_with(1, "readout check felig.dat --elinks 8,0x7ff");
    assert!(first_line(&text).ends_with("no block was checked of E-link 0x7ff"), "{text}");
}

/// Two files of one run, between which five blocks are missing, were both passed.
#[test]
fn files_of_one_run_that_do_not_join_are_named_and_judged_together_on_request() {
    let folder = Folder::new();
    folder.done("readout record felig --triggers 3000 -o whole.dat");
    let whole = std::fs::read(folder.path("whole.dat")).unwrap();
    let middle = whole.len() / 2048 * 1024;
    folder.write("a.dat", &whole[..middle]);
    folder.write("b.dat", &whole[middle..]);
    folder.write("later.dat", &whole[middle + 5 * 1024..]);
    let joined = folder.done("readout check a.dat b.dat");
    assert!(!joined.contains("--one-run"), "{joined}");
    let apart = folder.done("readout check a.dat later.dat");
    assert!(apart.contains("if later.dat follows a.dat, at least 5 blocks are missing"), "{apart}");
    folder.done("readout check a.dat b.dat --one-run");
    let (text, _) = folder.ends_with(1, "readout check a.dat later.dat --one-run");
    assert!(first_line(&text).starts_with("a.dat + later.dat: failed: loss 18"), "{text}");
}

/// An E-link that stopped beside others that went on was passed, and so was a file without a chunk.
#[test]
fn an_e_link_that_stops_ends_the_check_with_3_and_no_chunk_at_all_with_1() {
    let folder = Folder::new();
    folder.write("s.toml", "[card]\nlinks = 1\nttc = true\n");
    folder.done("readout record s.toml --triggers 6000 -o s.dat");
    let bytes = std::fs::read(folder.path("s.dat")).unwrap();
    let mut came = 0;
    let kept = bytes.chunks(1024).filter(|block| {
        let is_first = block[0] == 8;
        came += usize::from(is_first);
        !is_first || came <= 1
    });
    folder.write("stops.dat", kept.flatten().copied().collect::<Vec<u8>>());
    let (text, _) = folder.ends_with(3, "readout check stops.dat");
    assert!(first_line(&text).starts_with("stops.dat: cannot tell: loss 0, limit 0"), "{text}");
    let why = "events 36 to 5999 may be missing on E-link 0x008 only: 5964 in all; or the E-link ended there";
    assert!(text.contains(why), "{text}");
    let mut block = vec![0; 1024];
    block[..4].copy_from_slice(&[8, 0, 0xCE, 0xC0]);
    block[1020..].copy_from_slice(&(5_u32 << 29 | 1016).to_le_bytes());
    folder.write("none.dat", &block);
    let (text, _) = folder.ends_with(1, "readout check none.dat");
    assert!(first_line(&text).ends_with("nothing was checked: no chunk in 1 blocks"), "{text}");
}

/// A publisher that offers one E-link, sends one event of it and the account, if there is one. It
/// then leaves, or is silent.
fn fake_publisher(account: Option<Value>, leaves: bool) -> (String, std::thread::JoinHandle<()>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let elink = Elink::new(8);
    let tag = Fid::of_elink(0, 0, elink).to_u64();
    let mut event = [0; 24];
    EmulatorHeader { length: 24, event: 0, elink_index: elink.index(), width: 8 }.fill(&mut event);
    let (mut page, mut writer) = (vec![0; 100], PageWriter::default());
    assert!(writer.push(&mut page, tag, &PageChunk::whole(&event, Status::default())));
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
        if leaves {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        // Reads everything until the receiver closes.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (address, thread)
}

/// An account with `events` issued events, all of them delivered.
fn account_of(events: u64) -> Value {
    let elink = CardElink { chunks: events, ..CardElink::default() };
    let outcomes = Outcomes { delivered: events, ..Outcomes::default() };
    let reader = ReaderElink { chunks: events, offered: events, left: 0, outcomes };
    let card = CardAccount { issued: events, elinks: vec![elink], ..CardAccount::default() };
    let account = FinalAccount { card, readers: vec![reader], ..FinalAccount::default() };
    serde_json::to_value(account).unwrap()
}

#[test]
fn a_receiver_passes_only_with_an_account_that_closes() {
    let passed =
        "passed: loss 0, limit 0; order 0, limit 0; flags 0, limit 0; connections 0, limit 0";
    let open = "failed: streams that are not fully accounted for: 1";
    // The limits of a publisher that does not leave.
    const SILENT: &str = "--fail-on loss=0,connections=0";
    for (account, limits, code, verdict) in [
        (Some(account_of(1)), "", 0, passed),
        (Some(account_of(3)), "", 1, open),
        // Regression: the sums of this account overflowed, and the data that had arrived were lost.
        (Some(account_of(u64::MAX)), "", 1, "failed: pages that cannot be read: 1"),
        (Some(account_of(3)), "--fail-on flags", 1, open),
        (None, "", 1, "failed: connections 1 is more than 0"),
        // Regression: this had passed.
        (None, "--fail-on loss=0", 3, "cannot tell: missing: the account of ADDRESS"),
        (None, SILENT, 3, "cannot tell: missing: the account of ADDRESS"),
    ] {
        let (address, publisher) = fake_publisher(account, limits != SILENT);
        let (text, _) = ends_with(code, &format!("readout receive {address} --wait 1s {limits}"));
        assert_eq!(first_line(&text), format!("verdict: {}", verdict.replace("ADDRESS", &address)));
        publisher.join().unwrap();
    }
}

/// Issue 48: a silent publisher was waited for without a word, and an interrupt then "passed".
#[test]
fn a_publisher_that_falls_silent_is_named_and_its_receiver_cannot_tell() {
    let (address, publisher) = fake_publisher(None, false);
    let mut receive = Running::start(&format!("readout receive {address}"));
    receive.said(&format!("waiting for {address}, which has fallen silent"));
    receive.signal("INT");
    let (code, text) = receive.end();
    assert_eq!(code, Some(130), "{text}");
    let cannot = format!("verdict: cannot tell: missing: the account of {address}");
    assert_eq!(first_line(&text), cannot);
    publisher.join().unwrap();
}

#[test]
fn card_reader_and_receiver_work_as_processes_of_their_own() {
    let start = |arguments: &str| Running::start(&format!("readout {arguments}"));
    let mut emulate = start("emulate gbt --at card --rate 20kHz --triggers 5000");
    emulate.said("triggers begin when each channel has a reader");
    let (folder, entries) = (emulate.folder.path().display(), emulate.folder.path().join("bus"));
    let bus = format!("--bus-dir {} --json", entries.display());
    let mut tohost = start(&format!("tohost gbt --card {folder}/card --interrupt {bus}"));
    // The stream had another number in the bus file than in its greeting.
    let found = |_| {
        std::thread::sleep(Duration::from_millis(10));
        bus::entries(&entries).unwrap_or_default()
    };
    let entry = (0..1000).flat_map(found).next().unwrap().1;
    let mut inlet = FrameStream::connect(&entry.address, 1 << 20).unwrap();
    let greeting = inlet.receive(Duration::from_secs(10), &|| false).unwrap().unwrap().1;
    let greeting: PublisherHello = serde_json::from_slice(greeting).unwrap();
    assert_eq!((greeting.stream, greeting.tags), (entry.stream, entry.tags));
    drop(inlet);
    let report = json(&done(&format!("readout receive {bus}")));
    assert_eq!((&report["chunks"], &report["faults"]["payload"]), (&120_000.into(), &0.into()));
    let (code, account) = tohost.end();
    assert_eq!(code, Some(0), "{account}");
    let account = json(&account);
    let elinks = account["elinks"].as_array().unwrap();
    assert!(elinks.len() == 24 && elinks.iter().all(|elink| elink["closes"] == true), "{account}");
    let (_, said) = emulate.end();
    assert!(said.starts_with("5000 triggers in"), "{said}");
}

#[test]
fn a_run_is_a_record_with_its_ledger() {
    let run = "readout run gbt --rate 10kHz --time 100ms";
    let record = json(&done(&format!("{run} --json")));
    assert_eq!(
        (&record["engine"]["name"], &record["ledgers"][0]["issued"]),
        (&"readout".into(), &24_000.into())
    );
    let people = done(run);
    assert!(people.contains(" closes\n") && people.contains("dead time: 0 % by DMA"), "{people}");
}

#[test]
fn what_is_computed_and_simulated_of_the_study_is_printed() {
    insta::assert_snapshot!("reproduce", done("reproduce readout --no-measurement"));
}
